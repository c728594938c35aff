"""`kernelcast devices` and `kernelcast kernels`: what can be predicted; and which of the devices this machine is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..features.device import known_machine, machine_id, machine_name
from ..features.errors import SpecError
from . import console, names

if TYPE_CHECKING:
    from ..collectors.meters.nvml import NvmlReader
    from ..datasets.store.store import Store
    from ..features.device import Catalogue, Device


def devices(
    name: Annotated[str | None, typer.Argument(help="One device: its facts and what answers for it rest on.")] = None,
    model: console.Model = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """List the known devices, or show one: the source of each fact, what answers for it rest on, what adapting would bring."""
    known = console.read_catalogue(device_file)
    if name:
        from .predict.device_page import print_page

        print_page(names.device(name, known), known, model, as_json=as_json)
    elif as_json:
        from ..workloads.answers import device_answer

        console.print_json([device_answer(device) for device in known])
    else:
        _list_devices(list(known))


def kernels(
    family: Annotated[str | None, typer.Argument(help="One family: its sizes, variants and settings.")] = None,
    as_json: console.Json = False,
) -> None:
    """List the kernel families, or show one of them; `--json` gives JSON Schemas."""
    from ..features.kernel import families, get_family

    if as_json:
        from ..features.spec_io.json_schema import standalone_schema

        if family:
            console.print_json(standalone_schema(get_family(family)))
        else:
            console.print_json({member.name: standalone_schema(member) for member in families().values()})
        return
    if family is None:
        table = console.new_table("family", "sizes", "what it is")
        for member in families().values():
            table.add_row(member.name, " ".join(member.dim_names), member.doc.strip().splitlines()[0])
    else:
        chosen = get_family(family)
        table = console.new_table("size", "default", "least", "what it is", title=chosen.doc.strip().splitlines()[0])
        for dim in chosen.dims:
            table.add_row(dim.name, "" if dim.default is None else str(dim.default), str(dim.minimum), dim.doc)
        table.caption = (
            f"variants: {', '.join(name or '(plain)' for name in chosen.variants)}\n"
            f"config: {', '.join(chosen.config) or 'none'}"
        )
    console.out().print(table)


def _list_devices(known: list[Device]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("device", "what it is", "architecture", "fp32", "best matrix peak", "memory", "bandwidth", "TDP"):
        table.add_column(title, no_wrap=title != "what it is")
    for device in known:
        best = max(device.matrix_flops_per_s.items(), key=lambda item: item[1].value, default=None)
        memory, tdp = device.fact("memory_b"), device.fact("tdp_w")
        table.add_row(
            device.name, device.title, device.architecture,
            console.flops_per_s(device.vector_flops_per_s["fp32"].value),
            "" if best is None else f"{console.flops_per_s(best[1].value)} {best[0]}",
            "" if memory is None else console.num_bytes(memory),
            console.bytes_per_s(device.required("memory_bandwidth_b_per_s")),
            "" if tdp is None else f"{tdp:g} W",
        )  # fmt: skip
    console.out().print(table)


def named(name: str, kind: str, known: Catalogue) -> Device:
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
        return named(name, "cpu", known).name
    machine = known_machine(known)
    if machine is None:
        raise SpecError(
            f"no device file matches this machine ({machine_name()}, {machine_id()}). Create one with "
            "`kernelcast characterize --out my.yaml` and pass it with --device-file, or name a device with --device",
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
    from ..collectors.meters.nvml import NvmlMissingError, nvml_reader

    wanted = None if stated is None else named(stated, "gpu", known)
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
        gpu = named(name, "gpu", known)
    except SpecError as error:
        # Also where --device names one: a board that calls itself otherwise has other clocks, limits or units.
        raise SpecError(
            f"GPU {index} calls itself {name!r}, which is in no device file; make one with "
            "`kernelcast characterize --out my-gpu.yaml` and give it with --device-file",
            field="device",
        ) from error
    if wanted is not None and wanted.name != gpu.name:
        raise SpecError(f"--device is {wanted.name}, but GPU {index} is {gpu.name} ({name})", field="device")
    return gpu, reader


_CPU_IDENTITY = ("cpu_model", "cpu_family", "cpu_model_number", "cores")
"""Facts of a CPU that stay when it is restarted, and that another CPU has otherwise."""


def refuse_other_machine(store: Store, device: Device, reader: NvmlReader | None = None) -> None:
    """Refuse a machine that is not of the kind on which all rows of the device in the store were measured.

    Raises:
        SpecError: the processor, its number of cores, or the GPU is another.
    """
    from ..collectors.host import machine_facts
    from ..collectors.meters.nvml import gpu_facts
    from ..datasets.store.store import block_facts

    blocks = block_facts(store, device.name)
    if not blocks:
        return
    now: Mapping[str, Any] = machine_facts(device.name)
    names: tuple[str, ...] = _CPU_IDENTITY
    if device.kind == "gpu":
        names, now = ("name", "memory_b"), {} if reader is None else gpu_facts(reader)
    for facts in blocks:
        before = (facts.get("gpu") or {}) if device.kind == "gpu" else facts
        changes = [f"{name} {before[name]} before, {now[name]} now" for name in names
                   if before.get(name) is not None and now.get(name) is not None and before[name] != now[name]]  # fmt: skip
        if changes:
            raise SpecError(
                f"{device.name} is not the machine that was measured under this name ({'; '.join(changes)}); rows of two "
                "machines must not mix. Measure it under a name of its own (kernelcast characterize, --device-file), or give "
                "another --store",
                field="device",
            )
