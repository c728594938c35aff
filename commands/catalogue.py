"""`kernelcast devices` and `kernelcast kernels`: what can be asked about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .console import DeviceFiles, Json, out, print_json, read_catalogue

if TYPE_CHECKING:
    from ..features.device import Device


def devices(
    name: Annotated[str | None, typer.Argument(help="One device: every fact with its source.")] = None,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """List the devices that can be asked about, or show one of them with the source of each fact."""
    known = read_catalogue(device_file)
    if as_json:
        from ..api.describe import device_answer

        print_json(device_answer(known.get(name)) if name else [device_answer(device) for device in known])
    elif name:
        _show_device(known.get(name))
    else:
        _list_devices(list(known))


def kernels(
    family: Annotated[str | None, typer.Argument(help="One family: its sizes, variants and settings.")] = None,
    as_json: Json = False,
) -> None:
    """List the kernel families, or show one of them; `--json` gives JSON Schemas."""
    from ..features.kernel import families, get_family

    if as_json:
        from ..api.describe import standalone_schema

        if family:
            print_json(standalone_schema(get_family(family)))
        else:
            print_json({one.name: standalone_schema(one) for one in families().values()})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    if family is None:
        for title in ("family", "sizes", "what it is"):
            table.add_column(title, overflow="fold")
        for one in families().values():
            table.add_row(one.name, " ".join(one.dim_names), one.doc.strip().splitlines()[0])
    else:
        chosen = get_family(family)
        table.title = chosen.doc.strip().splitlines()[0]
        for title in ("size", "default", "least", "what it is"):
            table.add_column(title)
        for dim in chosen.dims:
            table.add_row(dim.name, "" if dim.default is None else str(dim.default), str(dim.minimum), dim.doc)
        table.caption = (
            f"variants: {', '.join(name or '(plain)' for name in chosen.variants)}\n"
            f"config: {', '.join(chosen.config) or 'none'}"
        )
    out().print(table)


def _list_devices(known: list[Device]) -> None:
    from rich.table import Table

    from .units import bytes_per_s, flops_per_s, num_bytes

    table = Table(box=None, pad_edge=False)
    for title in ("device", "what it is", "architecture", "fp32", "best matrix peak", "memory", "bandwidth", "TDP"):
        table.add_column(title, no_wrap=title != "what it is")
    for device in known:
        best = max(device.matrix_flops_per_s.items(), key=lambda item: item[1].value, default=None)
        memory, tdp = device.fact("memory_b"), device.fact("tdp_w")
        table.add_row(
            device.name, device.title, device.architecture,
            flops_per_s(device.vector_flops_per_s["fp32"].value),
            "" if best is None else f"{flops_per_s(best[1].value)} {best[0]}",
            "" if memory is None else num_bytes(memory),
            bytes_per_s(device.required("memory_bandwidth_b_per_s")),
            "" if tdp is None else f"{tdp:g} W",
        )  # fmt: skip
    out().print(table)


def _show_device(device: Device) -> None:
    from rich.table import Table

    from .units import flops_per_s

    table = Table(title=f"{device.title} ({device.name})", box=None, pad_edge=False)
    table.add_column("fact", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("source")
    for name, fact in (*device.facts.items(), *device.measured.items()):
        table.add_row(name, _with_unit(name, fact.value), fact.source)
    for what, peaks in (("matrix", device.matrix_flops_per_s), ("vector", device.vector_flops_per_s)):
        for dtype, fact in peaks.items():
            table.add_row(f"{what} {dtype}", flops_per_s(fact.value), fact.source)
    table.caption = f"also called: {', '.join(device.aliases)}" if device.aliases else None
    out().print(table)


def _with_unit(name: str, value: float) -> str:
    """A fact in units a person reads, by the suffix of its name."""
    from . import units

    scales = (("flops_per_s", units.flops_per_s), ("b_per_s", units.bytes_per_s), ("_hz", lambda v: f"{v / 1e9:g} GHz"),
              ("_w", units.watts), ("_j", units.joules), ("_s", units.seconds), ("_b", units.num_bytes))  # fmt: skip
    return next((show(value) for suffix, show in scales if name.endswith(suffix)), f"{value:g}")
