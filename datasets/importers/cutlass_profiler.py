"""`cutlass_profiler --output=NAME.csv` (NVIDIA CUTLASS): tiled matrix products with their block and warp tiles.

What is known of the file, from the code that writes it (`tools/profiler/src/performance_report.cpp`,
`operation_profiler.cpp`, `gemm_operation_profiler.cu`):

* Pivot tags, then `Problem,Provider,OperationKind,Operation,Disposition,Status`, the operation's arguments, then
  `Bytes,Flops, Flops/Byte,Runtime,GB/s,GFLOPs`. `Runtime` is in **milliseconds**, 0 where nothing ran: the mean of many
  launches in a queue between two CUDA events (`timing` `device`).
* `Disposition` is `passed` only where the result was compared with another library's. `not_verified`, from runs with
  `--verification-enabled=false`, may be the time of a wrong kernel: such rows are left out, as are all other words.
* `A`, `B`, `C`, `D` are `TYPE:LAYOUT`. `warps_m` counts warps along m; the warp tile is the block tile over it.
* `beta` other than 0 makes the kernel read C too, which is more work than the family's.
* Nothing in the file names the device, and no column of the form holds cluster shapes or rasterisation; rows that
  differ only in those stay as repeats of one case.

cuBLAS rows (`--providers=cublas`) have no tile of their own and become `impl` `cublas`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...features.batch.cases import Floats, Strings
from ..form.importer import MS, ImportBuilder, RowFilter, Sheet, agreed_device, header_of, table_importer

CUTLASS_FORMATS: Mapping[str, str] = {
    "f64": "fp64", "f32": "fp32", "tf32": "tf32", "f16": "fp16", "bf16": "bf16", "e4m3": "fp8", "fe4m3": "fp8", "s8": "int8",
}  # fmt: skip
"""Element types of `cutlass/library/util.h` that the project has a format for."""

_NAME = re.compile(
    r"cutlass\w*?_(?P<kind>simt|tensorop)_(?P<accumulate>[sdh])(?P<instruction>\d*)(?P<inside>tf32|bf16|f16)?gemm_"
    r"(?:(?P<element>f16|bf16|tf32|f32)_)?(?P<m>\d+)x(?P<n>\d+)_(?P<k>\d+)x(?P<stages>\d+)_(?P<layout>[nt]{2})_align\d+"
)
_PLAIN = {"s": "fp32", "d": "fp64", "h": "fp16"}


@dataclass(frozen=True, slots=True)
class CutlassKernel:
    """What the name of a CUTLASS 2 kernel says.

    Attributes:
        dtype: Format of the operands.
        tile_m: Rows of the block tile.
        tile_n: Columns of the block tile.
        tile_k: Depth of the block tile.
        stages: Pipeline stages.
        layout: Layouts of A and B: `nn`, `tn` …
    """

    dtype: str
    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    layout: str


def parse_kernel(name: str) -> CutlassKernel | None:
    """The kernel of a name like `cutlass_simt_sgemm_128x128_8x2_nn_align1`, None where it is no plain product.

    The parts are those `GemmOperation.procedural_name` puts together (CUTLASS, python/cutlass_library/gemm_operation.py):
    accumulator, instruction, operands' type where it differs, block tile `m x n`, `k x stages`, layouts, alignment.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    word = match["element"] or match["inside"]
    if match["kind"] == "simt":
        dtype = _PLAIN[match["accumulate"]] if word is None else None
    else:
        dtype = CUTLASS_FORMATS[word] if word else ("fp16" if match["accumulate"] == "h" else None)
    # Tensor cores compute fp32 operands in tf32.
    dtype = "tf32" if dtype == "fp32" and match["kind"] == "tensorop" else dtype
    if dtype is None:
        return None
    m, n, k, stages = (int(match[part]) for part in ("m", "n", "k", "stages"))
    return CutlassKernel(dtype, m, n, k, stages, match["layout"])


def variant_of(a_by_column: bool, b_by_column: bool, c_by_column: bool) -> str:
    """The gemm variant of operands that lie row by row or column by column, as the product with C row by row.

    With C by column the operands change places: B, transposed, is then the left one. A left or right operand that lies
    column by column after that is `t`.
    """
    left, right = (not b_by_column, not a_by_column) if c_by_column else (a_by_column, b_by_column)
    word = f"{'t' if left else 'n'}{'t' if right else 'n'}"
    return "" if word == "nn" else word


_COLUMNS = {"Problem", "Provider", "OperationKind", "Operation", "Disposition", "Status", "Runtime"}
_ADVICE = {"not_verified": "; profile with --verification-enabled=true"}
_PROVIDERS = ("cutlass", "cublas")


def _is_table(path: Path) -> bool:
    return path.suffix.lower() == ".csv" and set(header_of(path)) >= _COLUMNS


def _take(sheet: Sheet, device: str | None, builder: ImportBuilder) -> None:
    device, row_filter = agreed_device("", device, str(sheet.path)), RowFilter(builder, len(sheet))
    kinds, provider, disposition, status = (
        np.char.lower(sheet.text(name)) for name in ("OperationKind", "Provider", "Disposition", "Status")
    )
    row_filter.only(kinds, ("gemm",), lambda word: f"operation {word!r} is no plain matrix product")
    row_filter.only(provider, _PROVIDERS, lambda word: f"provider {word!r} is none of {', '.join(_PROVIDERS)}")
    row_filter.only(disposition, ("passed",), lambda word: f"disposition {word!r}, not 'passed'{_ADVICE.get(word, '')}")
    row_filter.only(status, ("success",), lambda word: f"status {word!r}, not 'success'")
    row_filter.leave_out(~(sheet.numbers("Runtime") > 0), "no runtime")
    row_filter.leave_out(np.nan_to_num(sheet.numbers("beta")) != 0, "beta is not 0: the kernel reads C too")
    (a, a_column), (b, b_column), (_, c_column) = (_operand(sheet, name) for name in "ABC")
    row_filter.leave_out(a != b, "operands of two formats")
    row_filter.only(a, CUTLASS_FORMATS, lambda word: f"no format {word!r}; formats: {', '.join(CUTLASS_FORMATS)}")
    keep = np.flatnonzero(~row_filter.out)
    rows = sheet.at(keep)
    swap = c_column[keep]
    simt = np.char.lower(rows.text("op_class")) == "simt"
    formats = np.array([CUTLASS_FORMATS[word] for word in a[keep].tolist()], dtype=np.str_)
    tiled = provider[keep] == "cutlass"
    batch = np.nan_to_num(rows.numbers("batch_count"), nan=1.0)
    builder.remark(
        int((tiled & _clustered(rows)).sum()), "imported without their cluster shape, which the form has no column for"
    )
    variants = [variant_of(*map(bool, item)) for item in zip(a_column[keep], b_column[keep], swap, strict=True)]
    knobs = {name: np.where(tiled, column, np.nan) for name, column in _knobs(rows, swap).items()}
    builder.add(
        "gemm", len(rows), device=device, impl=provider[keep], timing="device", latency_s=rows.numbers("Runtime") * MS,
        # On tensor cores fp32 operands are rounded to tf32.
        dtype=np.where((formats == "fp32") & ~simt & tiled, "tf32", formats),
        variant=np.where(batch > 1, "batched", np.array(variants, dtype=np.str_)),
        batch=batch, k=rows.numbers("k"), **_changed_over("m", "n", rows.numbers("m"), rows.numbers("n"), swap), **knobs,
    )  # fmt: skip


def _knobs(rows: Sheet, swap: npt.NDArray[np.bool_]) -> dict[str, Floats]:
    tile = {side: rows.numbers(f"cta_{side}") for side in "mnk"}
    warps = {side: rows.numbers(f"warps_{side}") for side in "mnk"}
    with np.errstate(divide="ignore", invalid="ignore"):
        # Kernels of CUTLASS 3 count warp groups another way; a share that is not whole is no warp tile.
        inner = {side: _whole(tile[side] / warps[side]) for side in "mnk"}
    split = rows.numbers("split_k_slices")
    return {
        **_changed_over("tile_m", "tile_n", tile["m"], tile["n"], swap), "tile_k": tile["k"],
        **_changed_over("inner_m", "inner_n", inner["m"], inner["n"], swap), "inner_k": inner["k"],
        "warps": warps["m"] * warps["n"] * warps["k"], "stages": rows.numbers("stages"), "split_k": split,
    }  # fmt: skip


def _changed_over(first: str, second: str, m: Floats, n: Floats, swap: npt.NDArray[np.bool_]) -> dict[str, Floats]:
    return {first: np.where(swap, n, m), second: np.where(swap, m, n)}


def _whole(values: Floats) -> Floats:
    return np.where(np.isfinite(values) & (values >= 1) & (np.floor(values) == values), values, np.nan)


def _clustered(rows: Sheet) -> npt.NDArray[Any]:
    any_side: npt.NDArray[Any] = np.any([rows.numbers(f"cluster_{side}") > 1 for side in "mnk"], axis=0)
    return any_side


def _operand(sheet: Sheet, name: str) -> tuple[Strings, npt.NDArray[np.bool_]]:
    """Element type of an operand and whether it lies column by column."""
    cells = np.char.partition(np.char.lower(sheet.text(name)), ":")
    return cells[:, 0], np.char.startswith(cells[:, 2], "col")


IMPORTER = table_importer(
    "cutlass-profiler", "tables of cutlass_profiler (--output=NAME.csv)", _is_table, _take, names_devices=False
)
