"""Which catalogue device this machine or its GPU is, and that a store has rows of no other machine under its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...features.device import known_by, known_machine, machine_id, machine_name
from ...features.errors import SpecError, listed

if TYPE_CHECKING:
    from ...collectors.meters.find import GpuReader
    from ...collectors.meters.protocol import GpuIdentity
    from ...datasets.store.store import Store
    from ...features.device import Catalogue, Device
    from ...nightly.context import Night

_CPU_IDENTITY = ("cpu_model", "cpu_family", "cpu_model_number", "cores")
"""Facts of a CPU that stay when it is restarted, and that another CPU has otherwise."""


def device_of_kind(name: str, kind: str, known: Catalogue) -> Device:
    """The device of `kind` (`cpu`, `gpu`) that a user says this machine has.

    Raises:
        SpecError: there is no such device, or it is of another kind.
    """
    device = known.get(name)
    if device.kind != kind:
        raise SpecError(f"a {kind.upper()} is what is measured, and {device.name} is a {device.kind}", field="device")
    return device


def this_device(name: str | None, known: Catalogue) -> str:
    """The catalogue name of the machine that measures.

    Raises:
        SpecError: `name` is unknown or no CPU, or none was given and no device file is of this machine, or one
            that says it is no CPU.
    """
    if name is not None:
        return device_of_kind(name, "cpu", known).name
    machine = known_machine(known)
    if machine is None:
        raise SpecError(
            f"no device file matches this machine ({machine_name()}, {machine_id()}). Create one with "
            "`kernelcast measure machine --out my.yaml` and pass it with --device-file, or name a device with --device",
            field="device",
        )
    if machine.kind != "cpu":
        raise SpecError(
            f"the device file of {machine.name} says that it is a {machine.kind}, and it names this machine's CPU "
            f"({machine_id()}); correct its kind or its aliases",
            field="device",
        )
    return machine.name


def this_gpu(stated: str | None, index: int, known: Catalogue) -> tuple[Device, GpuReader | None]:
    """The GPU and what reads its board; no reader where nothing can and `stated` or torch says what the GPU is.

    Raises:
        SpecError: there is no such GPU in the catalogue, `stated` is another one than this machine's, or nothing says which
            it is.
    """
    from ...collectors.gpu.measure.torch_gpu import identity_by_torch
    from ...collectors.host import torch_library
    from ...collectors.meters.find import gpu_reader
    from ...collectors.meters.protocol import SensorMissingError
    from ...process import ChildStartError

    wanted = None if stated is None else device_of_kind(stated, "gpu", known)
    reader: GpuReader | None = None
    try:
        reader = gpu_reader(index)
        identity = reader.identity()
    except SensorMissingError as missing:
        if wanted is not None:
            return wanted, None
        if torch_library() not in ("hip", "xpu"):
            raise SpecError(f"{missing}; or name the GPU with --device", field="device") from missing
        try:
            identity = identity_by_torch(index)
        except ChildStartError as error:
            raise SpecError(f"{error}; or name the GPU with --device", field="device") from error
    if identity.name is None:
        if wanted is None:
            raise SpecError(f"the driver does not say what GPU {index} is; name it with --device", field="device")
        return wanted, reader
    return _identified(identity, wanted, index, known), reader


def _identified(identity: GpuIdentity, wanted: Device | None, index: int, known: Catalogue) -> Device:
    """The device that a GPU is, by its name; where that is no data sheet's, by its architecture and compute units.

    One die of an AMD board with two has the board's name and half of its units.
    """
    units, named = identity.compute_units, known_by(str(identity.name), known)
    fits = [] if named is None or named.kind != "gpu" else [named]
    if identity.architecture is not None and not (fits and units in (None, fits[0].required("compute_units"))):
        fits = [device for device in known if device.kind == "gpu" and device.required("compute_units") == units
                and device.compute_capability == identity.architecture]  # fmt: skip
    if wanted is not None and wanted in fits:
        return wanted
    calls_itself = f"GPU {index} calls itself {identity.name!r}"
    if not fits:
        # Also where --device names one: a board that calls itself otherwise has other clocks, limits or units.
        raise SpecError(
            f"{calls_itself}, which is in no device file; give one with --device-file (`kernelcast measure machine --out "
            "my-gpu.yaml` makes it of an NVIDIA GPU)", field="device",
        )  # fmt: skip
    names = listed(device.name for device in fits)
    if wanted is not None:
        raise SpecError(f"--device is {wanted.name}, but GPU {index} is {names} ({identity.name})", field="device")
    if len(fits) > 1:
        raise SpecError(f"{calls_itself}, with {units} compute units; name it with --device: {names}", field="device")
    return fits[0]


def refuse_other_machine(store: Store, device: Device, reader: GpuReader | None = None) -> None:
    """Refuse a machine that is not of the kind on which all rows of the device in the store were measured.

    Raises:
        SpecError: the processor, its number of cores, or the GPU is another.
    """
    from ...collectors.host import machine_facts
    from ...collectors.meters.find import gpu_facts
    from ...datasets.store.store import block_facts

    blocks = block_facts(store, device.name)
    if not blocks:
        return
    now: Mapping[str, Any] = machine_facts(device.name)
    identity: tuple[str, ...] = _CPU_IDENTITY
    if device.kind == "gpu":
        identity, now = ("name", "memory_b"), {} if reader is None else gpu_facts(reader)
    for facts in blocks:
        before = (facts.get("gpu") or {}) if device.kind == "gpu" else facts
        changes = [f"{name} {before[name]} before, {now[name]} now" for name in identity
                   if before.get(name) is not None and now.get(name) is not None and before[name] != now[name]]  # fmt: skip
        if changes:
            raise SpecError(
                f"{device.name} is not the machine that was measured under this name ({'; '.join(changes)}); rows of two "
                "machines must not mix. Measure it under a name of its own (kernelcast measure machine, --device-file), or "
                "give another --store",
                field="device",
            )


def refuse_other_of_night(night: Night) -> None:
    """The same for the device of a night that measures on this machine.

    Raises:
        SpecError: the rows of the device were measured on another machine.
    """
    if night.plan.collector not in ("cpu", "gpu"):
        return
    device = night.devices.get(night.measurer.devices[0])
    reader = this_gpu(device.name, 0, night.devices)[1] if device.kind == "gpu" else None
    refuse_other_machine(night.store, device, reader)
