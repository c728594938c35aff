"""Writes docs/families.md, docs/devices.md and the table of docs/carbon.md from the objects they describe.

Run `.venv/bin/python docs/tables.py` after adding any of them; a test fails while a page is out of date.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from kernelcast.features.device import Catalogue, Device
from kernelcast.features.kernel import KernelFamily, families
from kernelcast.models.predict.carbon import grids

HERE = Path(__file__).parent


def families_page() -> str:
    """The whole of docs/families.md."""
    parts = ["# Kernel families\n\nWritten by `docs/tables.py` from `features/families/`; one file each.\n"]
    for family in families().values():
        parts.append("\n".join([f"## {family.name}\n\n{family.doc.strip()}\n", *_dims(family), ""]))
        if any(family.variants):
            parts.append(f"Variants: {_words(family.variants)}.")
        if family.config:
            parts.append(f"Configuration: {_words(family.config)}.")
        mlir = f" MLIR: {_words(family.mlir_ops)}." if family.mlir_ops else ""
        parts.append(f"Arithmetic: {family.unit} units.{mlir}\n")
    return "\n".join(parts)


def devices_page() -> str:
    """The whole of docs/devices.md."""
    head = (
        "# Devices\n\nWritten by `docs/tables.py` from `features/devices/`, where every figure has its source. Peaks are "
        "dense, and where no data sheet names them twice what was measured; a blank is a figure that is not public. Rates "
        "in TFLOP/s, memory bandwidth in GB/s, power limit in W. Further names, such as those of NVML and ROCm, are in "
        "`kernelcast devices NAME --json`.\n"
    )
    columns = (
        "device",
        "kind",
        "fp32",
        "bf16 or fp16 matrix",
        "fp8 matrix",
        "bandwidth",
        "limit",
        "short name",
    )
    return "\n".join([head, _table(columns, (_row(device) for device in Catalogue()))])


def carbon_page() -> str:
    """The whole of docs/carbon.md, of which the table of grids is written."""
    text, heading, _ = (HERE / "carbon.md").read_text(encoding="utf-8").partition("## Grids\n")
    (source,) = {grid.source.rpartition(", of ")[0] for grid in grids().values()}
    about = (
        f"Emissions of electricity over the lifetime of what generates it ({source}, CC BY 4.0, rounded), written by "
        "`docs/tables.py`. A name or a title, in any case, is taken.\n"
    )
    rows = ((f"`{grid.name}`", grid.title, f"{grid.g_per_kwh:g}", grid.source[-4:]) for grid in grids().values())
    return "\n".join([text + heading, about, _table(("name", "grid", "g CO2e per kWh", "year"), rows)])


def _dims(family: KernelFamily) -> Iterable[str]:
    for dim in family.dims:
        yield f"* `{dim.name}`: {dim.doc}" + ("" if dim.default is None else f" (default {dim.default})")


def _row(device: Device) -> tuple[str, ...]:
    half = device.matrix_flops_per_s.get("bf16") or device.matrix_flops_per_s.get("fp16")
    fp8 = device.matrix_flops_per_s.get("fp8")
    return (
        f"`{device.name}`",
        f"{device.architecture} {device.kind}",
        _scaled(device.vector_flops_per_s["fp32"].value, 1e12),
        _scaled(half.value if half else None, 1e12),
        _scaled(fp8.value if fp8 else None, 1e12),
        _scaled(device.required("memory_bandwidth_b_per_s"), 1e9),
        _scaled(device.fact("tdp_w"), 1.0),
        _words(sorted(device.aliases, key=len)[:1]),
    )


def _scaled(value: float | None, unit: float) -> str:
    return "" if value is None else f"{value / unit:.4g}"


def _words(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" if word else "none" for word in words)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    (HERE / "families.md").write_text(families_page(), encoding="utf-8")
    (HERE / "devices.md").write_text(devices_page(), encoding="utf-8")
    (HERE / "carbon.md").write_text(carbon_page(), encoding="utf-8")
