"""Which catalogue device this machine or its GPU is, and that a store has rows of no other machine under its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...features.device import known_machine, machine_id, machine_name
from ...features.errors import SpecError

if TYPE_CHECKING:
    from ...collectors.meters.nvml import NvmlReader
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


def this_gpu(stated: str | None, index: int, known: Catalogue) -> tuple[Device, NvmlReader | None]:
    """The GPU and what reads its board; no reader where there is no NVML and `stated` says what the GPU is.

    Raises:
        SpecError: there is no such GPU in the catalogue, `stated` is another one than this machine's, or nothing says which
            it is.
    """
    from ...collectors.meters.nvml import NvmlMissingError, nvml_reader

    wanted = None if stated is None else device_of_kind(stated, "gpu", known)
    try:
        reader = nvml_reader(index)
    except NvmlMissingError as missing:
        if wanted is None:
            raise SpecError(f"{missing}; or name the GPU with --device", field="device") from missing
        return wanted, None
    name = reader.name()
    if name is None:
        if wanted is None:
            raise SpecError(f"the driver does not say what GPU {index} is; name it with --device", field="device")
        return wanted, reader
    try:
        gpu = device_of_kind(name, "gpu", known)
    except SpecError as error:
        # Also where --device names one: a board that calls itself otherwise has other clocks, limits or units.
        raise SpecError(
            f"GPU {index} calls itself {name!r}, which is in no device file; make one with "
            "`kernelcast measure machine --out my-gpu.yaml` and give it with --device-file",
            field="device",
        ) from error
    if wanted is not None and wanted.name != gpu.name:
        raise SpecError(f"--device is {wanted.name}, but GPU {index} is {gpu.name} ({name})", field="device")
    return gpu, reader


def refuse_other_machine(store: Store, device: Device, reader: NvmlReader | None = None) -> None:
    """Refuse a machine that is not of the kind on which all rows of the device in the store were measured.

    Raises:
        SpecError: the processor, its number of cores, or the GPU is another.
    """
    from ...collectors.host import machine_facts
    from ...collectors.meters.nvml import gpu_facts
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
