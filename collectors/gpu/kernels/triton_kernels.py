"""Triton kernels: the tiled matrix product, the sum of its partial products, and attention.

Attention takes its softmax online over tiles of keys (Dao et al., "FlashAttention", 2022).
"""
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


@triton.jit
def _attend(
    total, weight, peak, queries, keys, values, last, first, end, kv_len,
    SCALE: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, TILE_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add keys `first` to `end` to the running sums; with MASKED a row sees none beyond its `last`."""
    dims = tl.arange(0, WIDTH)
    for start in range(first, end, TILE_N):
        at = start + tl.arange(0, TILE_N)
        where = at[:, None] * HEAD_DIM + dims[None, :]
        if MASKED:
            exists = (at < kv_len)[:, None] & (dims < HEAD_DIM)[None, :]
            key, value = tl.load(keys + where, mask=exists, other=0.0), tl.load(values + where, mask=exists, other=0.0)
        elif WIDTH != HEAD_DIM:
            exists = (dims < HEAD_DIM)[None, :]
            key, value = tl.load(keys + where, mask=exists, other=0.0), tl.load(values + where, mask=exists, other=0.0)
        else:
            key, value = tl.load(keys + where), tl.load(values + where)
        scores = tl.dot(queries, tl.trans(key)) * SCALE
        if MASKED:
            visible = (at[None, :] <= last[:, None]) & (at < kv_len)[None, :]
            scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        probabilities = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(peak - higher)
        weight = weight * fade + tl.sum(probabilities, 1)
        total = tl.dot(probabilities.to(value.dtype), value, total * fade[:, None])
        peak = higher
    return total, weight, peak


@triton.jit
def attention(
    q, k, v, out, group, q_len, kv_len,
    SCALE: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
):  # fmt: skip
    """Attention of queries that are the last `q_len` of `kv_len` positions; a query sees no later position.

    q and out are (batch, kv_heads · group, q_len, HEAD_DIM), k and v (batch, kv_heads, kv_len, HEAD_DIM), contiguous.
    The rows of a tile are the `group` query heads of one key head at one position, then at the next, so that a tile of
    decoding reads its keys once for all of them. WIDTH is HEAD_DIM rounded up to a power of two, SCALE is
    log2(e) / sqrt(HEAD_DIM).
    """
    tiles = tl.cdiv(q_len * group, TILE_M)
    # The last rows see the most keys; started first, they do not trail behind.
    tile = tiles - 1 - tl.program_id(0) % tiles
    pair = (tl.program_id(0) // tiles).to(tl.int64)

    rows = tile * TILE_M + tl.arange(0, TILE_M)
    positions = rows // group
    dims = tl.arange(0, WIDTH)
    where = (rows % group * q_len + positions)[:, None] * HEAD_DIM + dims[None, :]
    inside = (rows < q_len * group)[:, None] & (dims < HEAD_DIM)[None, :]
    base = pair * group * q_len * HEAD_DIM
    queries = tl.load(q + base + where, mask=inside, other=0.0)
    keys, values = k + pair * kv_len * HEAD_DIM, v + pair * kv_len * HEAD_DIM

    last = kv_len - q_len + positions
    seen_by_all = kv_len - q_len + tile * TILE_M // group + 1
    seen_by_any = min(kv_len, kv_len - q_len + (tile * TILE_M + TILE_M - 1) // group + 1)
    unmasked = seen_by_all // TILE_N * TILE_N
    total = tl.zeros((TILE_M, WIDTH), dtype=tl.float32)
    weight = tl.zeros((TILE_M,), dtype=tl.float32)
    peak = tl.full((TILE_M,), float("-inf"), dtype=tl.float32)
    total, weight, peak = _attend(total, weight, peak, queries, keys, values, last, 0, unmasked, kv_len,
                                  SCALE, HEAD_DIM, WIDTH, TILE_N, False)  # fmt: skip
    total, weight, peak = _attend(total, weight, peak, queries, keys, values, last, unmasked, seen_by_any, kv_len,
                                  SCALE, HEAD_DIM, WIDTH, TILE_N, True)  # fmt: skip
    tl.store(out + base + where, (total / weight[:, None]).to(out.dtype.element_ty), mask=inside)
