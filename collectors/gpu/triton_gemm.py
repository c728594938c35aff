"""Triton kernels of the tiled matrix product: the product itself, and the sum of its partial products."""
# ruff: noqa: N803  constants of a Triton kernel are written in capitals
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gemm(
    a, b, out, m, n, k, k_part, group_m,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, SPLIT: tl.constexpr, INTEGER: tl.constexpr,
    PRECISION: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out[m, n] = a[m, k] · b[k, n], all contiguous in rows; with SPLIT, out[part, m, n] of `k_part` columns of a each.

    Programs go down `group_m` rows of tiles before the next column, so that those that run together share tiles of b in
    L2. `k_part` is a multiple of TILE_K. Rows and columns beyond the edge wrap around and are not stored, which needs no
    mask in the loop; k is masked. WIDE computes offsets in 64 bits.
    """
    tiles_m, tiles_n = tl.cdiv(m, TILE_M), tl.cdiv(n, TILE_N)
    program = tl.program_id(0)
    group = program // (group_m * tiles_n)
    height = min(tiles_m - group * group_m, group_m)
    tile_row = group * group_m + program % (group_m * tiles_n) % height
    tile_col = program % (group_m * tiles_n) // height

    rows = tile_row * TILE_M + tl.arange(0, TILE_M)
    cols = tile_col * TILE_N + tl.arange(0, TILE_N)
    ks = tl.arange(0, TILE_K)
    if SPLIT:
        ks += tl.program_id(1) * k_part
        left = min(k_part, k - tl.program_id(1) * k_part)
    else:
        left = k
    if WIDE:
        rows, cols, ks = rows.to(tl.int64), cols.to(tl.int64), ks.to(tl.int64)
    a_tile = a + (rows % m)[:, None] * k + ks[None, :]
    b_tile = b + ks[:, None] * n + (cols % n)[None, :]

    sum_type: tl.constexpr = tl.int32 if INTEGER else tl.float32
    total = tl.zeros((TILE_M, TILE_N), dtype=sum_type)
    within = tl.arange(0, TILE_K)
    for _ in range(tl.cdiv(left, TILE_K)):
        lhs = tl.load(a_tile, mask=(within < left)[None, :], other=0.0)
        rhs = tl.load(b_tile, mask=(within < left)[:, None], other=0.0)
        total = tl.dot(lhs, rhs, total, input_precision=PRECISION, out_dtype=sum_type)
        left -= TILE_K
        a_tile += TILE_K
        b_tile += TILE_K * n

    if SPLIT:
        out += tl.program_id(1).to(tl.int64) * m * n
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    tl.store(out + rows[:, None] * n + cols[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def sum_partials(partials, out, size, parts, BLOCK: tl.constexpr):
    """out[size] = the sum of partials[parts, size] in the order of parts, so that every call gives the same bits."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=partials.dtype.element_ty)
    for _ in range(parts):
        total += tl.load(partials + at, mask=at < size, other=0)
        partials += size
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < size)
