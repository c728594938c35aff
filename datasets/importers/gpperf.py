"""GPPerf (Liu and Halim, arXiv 2411.16954; GitHub pavlyhalim/GPPerf): products of an RTX 4070 with runtime and power.

What is known of the files, from its README and scripts (`cutlass-analysis/experiment_data.sh`,
`cutlass_predictor.py`, `tiled-matmul-analysis/matmul.cu`, `profiling/matmul_power_prof.sh`):

* CUTLASS rows, cleaned: `M,N,K,Kernel Name,Layout,Blocksize1…3,Stage,Alpha,Beta,Runtime,Power,…`; the cleaned file's
  own spelling of these names is not known, so case, spaces and underscores are ignored. `Runtime` is in
  **milliseconds**, of many launches in a queue (`timing` `device`). Raw `results.csv` files have a header that does not
  name their columns in order, or one kernel's name for many, and are left out.
* The script passes `--layout` and `--block-size` to cutlass_profiler, which has no such arguments, so what ran is
  what the kernel's name says; rows that differ only in those columns are repeats. Results were not verified.
* `Energy` is not in joules: the README's row gives 87902 for 70.17 W over 0.0435 ms. It is not imported.
* **Power was read after the profiler had ended**, one reading, so nearly half the rows caught an idle card. It is not
  imported.
* Tiled kernels: `M,N,K,Tile Size,Execution Time` in milliseconds, one first launch each between CUDA events (`timing`
  `call`); `Average Power Usage (W)` is the mean over a whole process with start-up, copies and a cuBLAS check, which is
  not the kernel's, and is not imported.

The device is the one the paper and the rows name; tables of tiled kernels do not name it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..form.importer import MS, ImportBuilder, RowFilter, Sheet, agreed_device, header_of, table_importer
from .cutlass_profiler import CutlassKernel, parse_kernel, variant_of

_DEVICE = "NVIDIA GeForce RTX 4070"
_TILED = {"m", "n", "k", "tilesize", "executiontime"}
_TILED_POWER = {"m", "n", "k", "tilesize", "averagepowerusage(w)"}
_CUTLASS = {"m", "n", "k", "kernelname", "runtime", "power"}
_RAW = {"runtimems", "kernel"}


def _plain(name: str) -> str:
    return name.lower().replace(" ", "").replace("_", "")


def _kind(path: Path) -> str:
    if path.suffix.lower() != ".csv":
        return ""
    names = {_plain(name) for name in header_of(path)}
    kinds = (("cutlass", _CUTLASS), ("tiled", _TILED), ("tiled power", _TILED_POWER), ("raw", _RAW))
    return next((kind for kind, wanted in kinds if names >= wanted), "")


def _take(raw: Sheet, device: str | None, builder: ImportBuilder) -> None:
    sheet = Sheet(raw.path, raw.table.rename_columns([_plain(name) for name in raw.names]))
    kind = _kind(raw.path)
    if kind == "cutlass":
        _cutlass(sheet, device, builder)
    elif kind == "tiled":
        _tiled(sheet, agreed_device(_DEVICE, device, str(raw.path)), builder)
    elif kind == "raw":
        builder.leave_out(len(sheet), "raw results, whose header does not name their columns in order")
    else:
        builder.leave_out(len(sheet), "power of a whole process (start-up, copies, cuBLAS check), not of the kernel")


def _tiled(sheet: Sheet, device: str, builder: ImportBuilder) -> None:
    tile, latency = sheet.numbers("tilesize"), sheet.numbers("executiontime") * MS
    good = latency > 0
    builder.leave_out(int((~good).sum()), "no runtime")
    rows = sheet.at(good)
    sizes = {name: rows.numbers(name) for name in "mnk"}
    tiles = dict.fromkeys(("tile_m", "tile_n", "tile_k"), tile[good])
    builder.remark(len(rows), "one first launch each: the times hold what a first launch costs")
    builder.add("gemm", len(rows), device=device, dtype="fp32", impl="cuda_tiled", timing="call", variant="", batch=1,
                latency_s=latency[good], **sizes, **tiles)  # fmt: skip


def _cutlass(sheet: Sheet, device: str | None, builder: ImportBuilder) -> None:
    kernels = {name: parse_kernel(name) for name in set(sheet.text("kernelname").tolist())}
    matched = [kernels[name] for name in sheet.text("kernelname").tolist()]
    row_filter = RowFilter(builder, len(sheet))
    unknown = np.array([kernel is None for kernel in matched], dtype=np.bool_)
    row_filter.leave_out(unknown, "names that are no plain CUTLASS product")
    row_filter.leave_out(~(sheet.numbers("runtime") > 0), "no runtime")
    row_filter.leave_out(np.nan_to_num(sheet.numbers("beta")) != 0, "beta is not 0: the kernel reads C too")
    keep = np.flatnonzero(~row_filter.out)
    rows, chosen = sheet.at(keep), [kernel for kernel in (matched[i] for i in keep) if kernel is not None]
    if not chosen:
        return
    gpu_names = rows.text("gpuname")
    devices = np.array(
        [agreed_device(name or _DEVICE, device, str(sheet.path)) for name in gpu_names.tolist()], dtype=np.str_
    )
    latency, dtypes = rows.numbers("runtime") * MS, np.array([kernel.dtype for kernel in chosen])
    builder.remark(len(rows), "imported without power, which was read once after the kernel had ended")
    # GPPerf's kernels write C column by column, as all of CUTLASS's SIMT generators do; see `parse_kernel`.
    builder.add(
        "gemm", len(rows), device=devices, dtype=dtypes, impl="cutlass", timing="device", batch=1, latency_s=latency,
        variant=np.array([_variant(kernel) for kernel in chosen], dtype=np.str_),
        m=rows.numbers("n"), n=rows.numbers("m"), k=rows.numbers("k"),
        tile_m=np.array([kernel.tile_n for kernel in chosen], dtype=float),
        tile_n=np.array([kernel.tile_m for kernel in chosen], dtype=float),
        tile_k=np.array([kernel.tile_k for kernel in chosen], dtype=float),
        stages=np.array([kernel.stages for kernel in chosen], dtype=float),
    )  # fmt: skip


def _variant(kernel: CutlassKernel) -> str:
    a, b = (letter == "n" for letter in kernel.layout)
    return variant_of(a, b, True)


IMPORTER = table_importer(
    "gpperf",
    "a clone of GPPerf, or its tables of CUTLASS and tiled products",
    lambda file: bool(_kind(file)),
    _take,
    looks_like=lambda file: _kind(file) not in ("", "raw"),
    names_devices=False,
    origin="https://github.com/pavlyhalim/GPPerf",
)
