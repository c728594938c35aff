"""`kernelcast devices` and `devices kernels`: what can be predicted and was measured; and which device this machine is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..features.device import known_machine, machine_id, machine_name
from ..features.errors import SpecError
from . import console, names

if TYPE_CHECKING:
    from ..collectors.meters.nvml import NvmlReader
    from ..datasets.store.store import Store
    from ..features.device import Catalogue, Device
    from ..features.kernel import KernelFamily
    from ..models.family_model.measured_kernels import MeasuredKernel


def devices(
    name: Annotated[
        str | None,
        typer.Argument(
            help="One device: its facts and what answers for it rest on.", autocompletion=names.complete_device
        ),
    ] = None,
    model: console.Model = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """List the known devices and what was measured on each, or show one: its facts, what answers for it rest on."""
    known = console.read_catalogue(device_file)
    if name:
        from .predict.device_page import print_page

        print_page(names.device(name, known), known, model, as_json=as_json)
        return
    measured = _measured(model)
    if as_json:
        from msgspec.structs import asdict

        from ..workloads.answers import device_answer

        console.print_json(
            [asdict(device_answer(device)) | {"measured": _by_family(measured, device)} for device in known]
        )
    else:
        _list_devices(list(known), measured)


def kernels(
    family: Annotated[
        str | None,
        typer.Argument(
            help="One family: its sizes, variants, settings and what was measured.",
            autocompletion=names.complete_family,
        ),
    ] = None,
    model: console.Model = None,
    as_json: console.Json = False,
) -> None:
    """List the kernel families with the dtypes and implementations measured, or show one; `--json` gives JSON Schemas."""
    from ..features.kernel import families

    chosen = None if family is None else names.family(family)
    if as_json:
        from ..features.spec_io.json_schema import standalone_schema

        if chosen is not None:
            console.print_json(standalone_schema(chosen))
        else:
            console.print_json({member.name: standalone_schema(member) for member in families().values()})
        return
    measured = _measured(model)
    if chosen is None:
        table = console.new_table("family", "sizes", "dtypes", "implementations")
        for member in families().values():
            rows = [item for item in measured if item.family == member.name]
            impls = _most_measured(rows)
            table.add_row(member.name, " ".join(member.dim_names), " ".join(_unique(item.dtype for item in rows)),
                          " ".join(impls))  # fmt: skip
        console.out().print(table)
        console.note(
            "dtypes and implementations are those that were measured; `kernelcast devices kernels FAMILY` says where"
        )
    else:
        _show_family(chosen, [item for item in measured if item.family == chosen.name])


def _show_family(family: KernelFamily, measured: Sequence[MeasuredKernel]) -> None:
    table = console.new_table("size", "default", "least", "what it is", title=family.doc.strip().splitlines()[0])
    for dim in family.dims:
        table.add_row(dim.name, "" if dim.default is None else str(dim.default), str(dim.minimum), dim.doc)
    table.caption = (
        f"variants: {', '.join(name or '(plain)' for name in family.variants)}\n"
        f"config: {', '.join(family.config) or 'none'}"
    )
    console.out().print(table)
    if not measured:
        console.note("no row of it was measured; answers rest on its bytes and operations")
        return
    rows = []
    for impl in _unique(item.impl for item in measured):
        of = [item for item in measured if item.impl == impl]
        where = _unique(item.device for item in of)
        shown = " ".join(where[:_SHOWN]) + (f" and {len(where) - _SHOWN} more" if len(where) > _SHOWN else "")
        rows.append((impl or "not named", " ".join(_unique(item.dtype for item in of)), shown,
                     f"{sum(item.rows for item in of):,}"))  # fmt: skip
    console.show_table(("impl", "dtypes", "devices", "rows"), rows, numbers=("rows",), title="what was measured")


_MOST_IMPLS = 6
_SHOWN = 3
"""Devices and families that a line names."""


def _measured(model: Path | None) -> Sequence[MeasuredKernel]:
    """What the model was measured on; nothing, and a note, where the serving one cannot be read or a package is missing.

    Raises:
        ArtifactError: the model that was given cannot be read.
    """
    try:
        from ..models.family_model.artifact_files import ArtifactError
        from ..models.family_model.measured_kernels import measured_kernels
    except ModuleNotFoundError as error:
        if (error.name or "kernelcast").startswith("kernelcast"):
            raise
        console.note(f"what was measured is not known: it needs {error.name}; run: pip install kernelcast")
        return ()
    try:
        return measured_kernels(console.model_dir(model))
    except ArtifactError as error:
        if model is not None:
            raise
        console.note(f"what was measured is not known: {error}")
        return ()


def _most_measured(measured: Sequence[MeasuredKernel]) -> list[str]:
    """Implementations by their rows, the most first; of more than six how many the others are."""
    rows: Counter[str] = Counter()
    for item in measured:
        rows[item.impl] += item.rows
    impls = [impl for impl, _ in rows.most_common()]
    return (
        impls
        if len(impls) <= _MOST_IMPLS
        else [*impls[: _MOST_IMPLS - 1], f"and {len(impls) - _MOST_IMPLS + 1} others"]
    )


def _unique(words: Iterable[str]) -> list[str]:
    return sorted(set(words))


def _by_family(measured: Sequence[MeasuredKernel], device: Device) -> list[dict[str, Any]]:
    """What was measured on a device, a record per family."""
    on_device = [item for item in measured if item.device == device.name]
    records = []
    for family in _unique(item.family for item in on_device):
        of = [item for item in on_device if item.family == family]
        records.append({"family": family, "dtypes": _unique(item.dtype for item in of),
                        "impls": _unique(item.impl for item in of), "rows": sum(item.rows for item in of)})  # fmt: skip
    return records


def _list_devices(known: list[Device], measured: Sequence[MeasuredKernel]) -> None:
    from rich.text import Text

    heads = ("", "device", "bf16 peak", "memory", "bandwidth", "TDP")
    table = console.new_table(*heads, numbers=set(heads[2:]))
    n_families = len({item.family for item in measured})
    for device in known:
        memory, tdp = device.fact("memory_b"), device.fact("tdp_w")
        records = _by_family(measured, device)
        about = Text(device.name)
        if records:
            rows = sum(record["rows"] for record in records)
            families = [record["family"] for record in records]
            which = " ".join(families) if len(records) <= _SHOWN else f"{len(records)} of {n_families} families"
            dtypes = " ".join(_unique(dtype for record in records for dtype in record["dtypes"]))
            about.append(f"\n  {which}: {dtypes}; {rows:,} rows", "dim")
        table.add_row(
            console.domain_mark(bool(records)), about, console.flops_per_s(device.peak_flops_per_s("bf16", "matrix")[0]),
            "" if memory is None else console.num_bytes(memory),
            console.bytes_per_s(device.required("memory_bandwidth_b_per_s")), "" if tdp is None else f"{tdp:g} W",
        )  # fmt: skip
    console.out().print(table)
    console.note(
        "● measured, ○ answered from devices like it; peaks are of the nearest dtype where there is no bf16. "
        "`kernelcast devices NAME` has all facts, each with its source"
    )


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
            "`kernelcast measure machine --out my-gpu.yaml` and give it with --device-file",
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
