"""What CUTLASS says of its products: formats, layouts and tiles, as knobs and variants of the gemm family.

CUTLASS names a layout by the BLAS convention: `n` is column by column, `t` row by row, and its kernels mostly write C column by
column. A product whose C lies column by column is the product of the transposed operands with C row by row, with m and n, and
the tile's sides, changed over. That is how it is imported, since the family's C lies row by row: CUTLASS's `tn` is `nt`
here, as PyTorch's linear layers are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

FORMATS: Mapping[str, str] = {
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
    """What the name of a CUTLASS 2 kernel says: its format, block tile, stages and layout of A and B (`nn`, `tn` …)."""

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
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    word = found["element"] or found["inside"]
    if found["kind"] == "simt":
        dtype = _PLAIN[found["accumulate"]] if word is None else None
    else:
        dtype = FORMATS[word] if word else ("fp16" if found["accumulate"] == "h" else None)
    # Tensor cores compute fp32 operands in tf32.
    dtype = "tf32" if dtype == "fp32" and found["kind"] == "tensorop" else dtype
    if dtype is None:
        return None
    m, n, k, stages = (int(found[part]) for part in ("m", "n", "k", "stages"))
    return CutlassKernel(dtype, m, n, k, stages, found["layout"])


def variant_of(a_by_column: bool, b_by_column: bool, c_by_column: bool) -> str:
    """The gemm variant of operands that lie row by row or column by column, as the product with C row by row.

    With C by column the operands change places: B, transposed, is then the left one. A left or right operand that lies
    column by column after that is `t`.
    """
    left, right = (not b_by_column, not a_by_column) if c_by_column else (a_by_column, b_by_column)
    word = f"{'t' if left else 'n'}{'t' if right else 'n'}"
    return "" if word == "nn" else word
