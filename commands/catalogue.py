"""`kernelcast devices` and `devices kernels`: what can be predicted, and what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import console, names

if TYPE_CHECKING:
    from ..features.device import Device
    from ..features.kernel import KernelFamily
    from ..models.family_model.artifact import MeasuredKernel

_MOST_IMPLS, _SHOWN = 6, 3
"""Most implementations of a family in a list, and most devices or families that a line names."""


def devices(
    name: Annotated[
        str | None,
        typer.Argument(
            help="One device: its facts and what answers for it rest on; or a part of names, such as h100 or nvidia.",
            autocompletion=names.complete_device,
        ),
    ] = None,
    only_measured: Annotated[bool, typer.Option("--measured", help="Only devices with measured rows.")] = False,
    model: console.Model = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """List the known devices and what was measured on each, or show one: its facts, what answers for it rest on.

    kernelcast devices, devices h100, devices nvidia --measured, devices h100-sxm
    """
    known = console.read_catalogue(device_file)
    fitting = names.fitting_devices(name, known) if name else list(known)
    if name and len(fitting) == 1 and not only_measured:
        from .predict.device_page import print_page

        print_page(fitting[0], known, model, as_json=as_json)
        return
    measured = _measured(model)
    if only_measured:
        fitting = [device for device in fitting if _by_family(measured, device)]
        if not fitting:
            console.note(f"of {name or 'the known devices'} no rows were measured")
    if as_json:
        from msgspec.structs import asdict

        from ..workloads.answers import device_answer

        console.print_json(
            [asdict(device_answer(device)) | {"measured": _by_family(measured, device)} for device in fitting]
        )
    else:
        _list_devices(fitting, measured)


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
        some = [item for item in measured if item.impl == impl]
        where = _unique(item.device for item in some)
        shown = " ".join(where[:_SHOWN]) + (f" and {len(where) - _SHOWN} more" if len(where) > _SHOWN else "")
        rows.append((impl or "not named", " ".join(_unique(item.dtype for item in some)), shown,
                     f"{sum(item.rows for item in some):,}"))  # fmt: skip
    console.show_table(("impl", "dtypes", "devices", "rows"), rows, numbers=("rows",), title="what was measured")


def _measured(model: Path | None) -> Sequence[MeasuredKernel]:
    """What the model was measured on; nothing, and a note, where the serving one cannot be read or a package is missing.

    Raises:
        ArtifactError: the model that was given cannot be read.
    """
    try:
        from ..models.family_model.artifact import measured_kernels
        from ..models.family_model.artifact_files import ArtifactError
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
        some = [item for item in on_device if item.family == family]
        records.append({"family": family, "dtypes": _unique(item.dtype for item in some),
                        "impls": _unique(item.impl for item in some), "rows": sum(item.rows for item in some)})  # fmt: skip
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
