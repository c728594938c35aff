"""Triton kernels that move data or make it: gathers, scatters, transposes, packing, random numbers."""
# ruff: noqa: N803  constants of a Triton kernel are written in capitals
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def embedding(table, index, positions, out, n, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of a table picked by index, with those of `positions` added where it is not None."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    which = tl.load(index + row, mask=row < n, other=0).to(tl.int64)
    inside = (row < n)[:, None] & (cols < width)[None, :]
    values = tl.load(table + which[:, None] * width + cols[None, :], mask=inside, other=0.0)
    if positions is not None:
        values += tl.load(positions + row[:, None] * width + cols[None, :], mask=inside, other=0.0)
    tl.store(out + row[:, None] * width + cols[None, :], values, mask=inside)


@triton.jit
def embedding_bag(table, index, offsets, weights, out, width, BLOCK: tl.constexpr, MEAN: tl.constexpr):
    """The sum, or mean, of the rows of a bag; weighted where `weights` is not None."""
    bag = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first, end = tl.load(offsets + bag), tl.load(offsets + bag + 1)
    total = tl.zeros((BLOCK,), tl.float32)
    for at in range(first, end):
        row = tl.load(index + at).to(tl.int64)
        values = tl.load(table + row * width + cols, mask=cols < width, other=0.0).to(tl.float32)
        if weights is not None:
            values *= tl.load(weights + at)
        total += values
    if MEAN:
        total /= tl.maximum(end - first, 1)
    tl.store(out + bag * width + cols, total.to(out.dtype.element_ty), mask=cols < width)


@triton.jit
def scatter_add(values, index, out, n, width, ROWS: tl.constexpr, BLOCK: tl.constexpr, ATOMIC: tl.constexpr):
    """Rows added to, or written over, the rows that an index names."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    which = tl.load(index + row, mask=row < n, other=0).to(tl.int64)
    inside = (row < n)[:, None] & (cols < width)[None, :]
    moved = tl.load(values + row[:, None] * width + cols[None, :], mask=inside, other=0.0)
    to = out + which[:, None] * width + cols[None, :]
    if ATOMIC:
        tl.atomic_add(to, moved.to(out.dtype.element_ty), mask=inside)
    else:
        tl.store(to, moved.to(out.dtype.element_ty), mask=inside)


@triton.jit
def gather_elements(x, index, out, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr, ON_CHIP: tl.constexpr):
    """out[i, j] = x[i, index[i, j]], from memory or, with ON_CHIP, from the tile."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (cols < n)[None, :]
    where = row[:, None] * n + cols[None, :]
    which = tl.load(index + where, mask=inside, other=0)
    if ON_CHIP:
        values = tl.gather(tl.load(x + where, mask=inside, other=0.0), which, 1)
    else:
        values = tl.load(x + row[:, None] * n + which, mask=inside, other=0.0)
    tl.store(out + where, values, mask=inside)


@triton.jit
def transpose(x, out, m, n, TILE_M: tl.constexpr, TILE_N: tl.constexpr, ON_CHIP: tl.constexpr, BATCHED: tl.constexpr):
    """out[n, m] = x[m, n]; turned on the chip, or by the order of the stores."""
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    cols = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    if BATCHED:
        x += tl.program_id(2).to(tl.int64) * m * n
        out += tl.program_id(2).to(tl.int64) * m * n
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    tile = tl.load(x + rows[:, None] * n + cols[None, :], mask=inside, other=0.0)
    if ON_CHIP:
        tl.store(out + cols[:, None] * m + rows[None, :], tl.trans(tile), mask=tl.trans(inside))
    else:
        tl.store(out + cols[None, :] * m + rows[:, None], tile, mask=inside)


@triton.jit
def swap_heads(x, out, length, heads, HEAD_DIM: tl.constexpr, HEADS: tl.constexpr, STEPS: tl.constexpr):
    """(length, heads, dim) to (heads, length, dim) as a permuted three-dimensional tile."""
    time = tl.program_id(0) * STEPS + tl.arange(0, STEPS)
    head = tl.arange(0, HEADS)
    dims = tl.arange(0, HEAD_DIM)
    inside = (time < length)[:, None, None] & (head < heads)[None, :, None]
    tile = tl.load(
        x + (time[:, None, None] * heads + head[None, :, None]) * HEAD_DIM + dims[None, None, :], mask=inside
    )
    where = (head[:, None, None] * length + time[None, :, None]) * HEAD_DIM + dims[None, None, :]
    tl.store(out + where, tl.permute(tile, (1, 0, 2)), mask=tl.permute(inside, (1, 0, 2)))


@triton.jit
def interleave(x, y, out, n, BLOCK: tl.constexpr, SPLIT: tl.constexpr):
    """Neighbours from two arrays, or, with SPLIT, one array's neighbours multiplied and added as complex numbers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if SPLIT:
        both = tl.program_id(0) * 2 * BLOCK + tl.arange(0, 2 * BLOCK)
        left, right = tl.split(tl.reshape(tl.load(x + both, mask=both < n, other=0.0), (BLOCK, 2)))
        other_left, other_right = tl.split(tl.reshape(tl.load(y + both, mask=both < n, other=0.0), (BLOCK, 2)))
        real = left * other_left - right * other_right
        imaginary = left * other_right + right * other_left
        tl.store(out + both, tl.interleave(real, imaginary), mask=both < n)
    else:
        left, right = tl.load(x + at, mask=at < n, other=0.0), tl.load(y + at, mask=at < n, other=0.0)
        both = tl.program_id(0) * 2 * BLOCK + tl.arange(0, 2 * BLOCK)
        tl.store(out + both, tl.interleave(left, right), mask=both < 2 * n)


@triton.jit
def concat(x, y, out, rows, n_x, n_y, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Two matrices side by side."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = (row < rows)[:, None]
    left = tl.load(x + row[:, None] * n_x + cols[None, :], mask=real & (cols < n_x)[None, :], other=0.0)
    right = tl.load(y + row[:, None] * n_y + (cols - n_x)[None, :],
                    mask=real & ((cols >= n_x) & (cols < n_x + n_y))[None, :], other=0.0)  # fmt: skip
    where = row[:, None] * (n_x + n_y) + cols[None, :]
    tl.store(out + where, tl.where((cols < n_x)[None, :], left, right), mask=real & (cols < n_x + n_y)[None, :])


@triton.jit
def arrange(x, out, height, width, BLOCK: tl.constexpr, WHAT: tl.constexpr):
    """Images moved pixel by pixel: flipped, rolled, padded by one, doubled in size, or cut below the diagonal."""
    plane = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wide = width * 2 if WHAT == "double" else width + 2 if WHAT == "pad" else width
    high = height * 2 if WHAT == "double" else height + 2 if WHAT == "pad" else height
    down, right = at // wide, at % wide
    inside = at < wide * high
    keep = inside
    if WHAT == "flip":
        right = width - 1 - right
    elif WHAT == "roll":
        right = (right + width // 2) % width
        down = (down + height // 2) % height
    elif WHAT == "pad":
        keep = inside & (down > 0) & (down <= height) & (right > 0) & (right <= width)
        down -= 1
        right -= 1
    elif WHAT == "double":
        down = down // 2
        right = right // 2
    else:
        keep = inside & (right <= down)
    values = tl.load(x + plane * height * width + down * width + right, mask=keep, other=0.0)
    tl.store(out + plane * wide * high + at, values, mask=inside)


@triton.jit
def dropout(x, residual, out, n, seed, chance, BLOCK: tl.constexpr, POINT: tl.constexpr):
    """Elements dropped by a counter-based generator; POINT first, `residual` added last."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    if POINT is not None:
        values = POINT(values, values, values)
    values = tl.where(tl.rand(seed, at) > chance, values / (1 - chance), 0.0)
    if residual is not None:
        values += tl.load(residual + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(out + at, values.to(out.dtype.element_ty), mask=at < n)


@triton.jit
def random_fill(out, n, seed, BLOCK: tl.constexpr, WHAT: tl.constexpr):
    """Uniform, normal or whole random numbers, or four uniform ones from each draw."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if WHAT == "uniform":
        values = tl.rand(seed, at)
    elif WHAT == "normal":
        values = tl.randn(seed, at)
    elif WHAT == "whole":
        values = tl.randint(seed, at)
    else:
        first, second, third, fourth = tl.rand4x(seed, at)
        tl.store(out + n + at, second.to(out.dtype.element_ty), mask=at < n)
        tl.store(out + 2 * n + at, third.to(out.dtype.element_ty), mask=at < n)
        tl.store(out + 3 * n + at, fourth.to(out.dtype.element_ty), mask=at < n)
        values = first
    tl.store(out + at, values.to(out.dtype.element_ty), mask=at < n)


@triton.jit
def mix_bits(x, out, n, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """The finaliser of MurmurHash3, so many times over."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bits = tl.load(x + at, mask=at < n, other=0).to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        bits ^= bits >> 16
        bits *= 0x85EBCA6B
        bits ^= bits >> 13
        bits *= 0xC2B2AE35
        bits ^= bits >> 16
    tl.store(out + at, bits.to(tl.int32, bitcast=True), mask=at < n)


@triton.jit
def sort_rows(x, out, n, stride, BLOCK: tl.constexpr, DESCENDING: tl.constexpr):
    """A row sorted on the chip."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + cols, mask=cols < n, other=float("inf"))
    tl.store(out + row * stride + cols, tl.sort(values, descending=DESCENDING), mask=cols < n)
