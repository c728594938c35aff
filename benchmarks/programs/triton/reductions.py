"""Triton kernels that reduce and scan: sums, extremes and variances over rows, columns and all; running sums; pooling."""
# ruff: noqa: N803  constants of a Triton kernel are written in capitals
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def reduce_rows(
    x, out, rows, n, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr, WHAT: tl.constexpr, POINT: tl.constexpr
):
    """One number per row, rows held whole."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (cols < n)[None, :]
    values = tl.load(x + row[:, None] * stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    if POINT is not None:
        values = tl.where(inside, POINT(values, values, values), 0.0)
    if WHAT == "sum":
        result = tl.sum(values, 1)
    elif WHAT == "max":
        result = tl.max(tl.where(inside, values, float("-inf")), 1)
    elif WHAT == "min":
        result = tl.min(tl.where(inside, values, float("inf")), 1)
    elif WHAT == "argmax":
        result = tl.argmax(tl.where(inside, values, float("-inf")), 1)
    elif WHAT == "var":
        apart = tl.where(inside, values - (tl.sum(values, 1) / n)[:, None], 0.0)
        result = tl.sum(apart * apart, 1) / (n - 1)
    elif WHAT == "norm":
        result = tl.sqrt(tl.sum(values * values, 1))
    else:
        peak = tl.max(tl.where(inside, values, float("-inf")), 1)
        result = peak + tl.log(tl.sum(tl.where(inside, tl.exp(values - peak[:, None]), 0.0), 1))
    tl.store(out + row, result.to(out.dtype.element_ty), mask=row < rows)


@triton.jit
def reduce_columns(x, out, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr, WHAT: tl.constexpr, ATOMIC: tl.constexpr):
    """One number per column of a row-major matrix, walking down in tiles; with ATOMIC several programs share a column."""
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.full((ROWS, BLOCK), float("-inf") if WHAT == "max" else 0.0, tl.float32)
    for start in range(tl.program_id(1) * ROWS, rows, ROWS * tl.num_programs(1)):
        row = start + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (cols < n)[None, :]
        if WHAT == "max":
            values = tl.load(x + row[:, None] * n + cols[None, :], mask=inside, other=float("-inf")).to(tl.float32)
            total = tl.maximum(total, values)
        else:
            values = tl.load(x + row[:, None] * n + cols[None, :], mask=inside, other=0.0).to(tl.float32)
            total += values * values if WHAT == "squares" else values
    result = tl.max(total, 0) if WHAT == "max" else tl.sum(total, 0)
    if ATOMIC:
        tl.atomic_add(out + cols, result, mask=cols < n)
    else:
        tl.store(out + cols, result.to(out.dtype.element_ty), mask=cols < n)


@triton.jit
def reduce_all(x, y, out, n, BLOCK: tl.constexpr, WHAT: tl.constexpr, ATOMIC: tl.constexpr, POINT: tl.constexpr):
    """One number over everything, a partial one per program or, with ATOMIC, one; `y` is the other side of a dot product."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(tl.program_id(0) * BLOCK, n, BLOCK * tl.num_programs(0)):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
        if y is not None:
            values *= tl.load(y + at, mask=at < n, other=0.0).to(tl.float32)
        if POINT is not None:
            values = tl.where(at < n, POINT(values, values, values), 0.0)
        if WHAT == "max":
            total = tl.maximum(total, tl.abs(values))
        elif WHAT == "squares":
            total += values * values
        else:
            total += values
    result = tl.max(total, 0) if WHAT == "max" else tl.sum(total, 0)
    if ATOMIC:
        tl.atomic_add(out, result)
    else:
        tl.store(out + tl.program_id(0), result.to(out.dtype.element_ty))


@triton.jit
def _merge(mean_a, squares_a, count_a, mean_b, squares_b, count_b):
    """Mean, sum of squares and count of two samples together (Chan, Golub, LeVeque 1979)."""
    count = count_a + count_b
    part = count_b / tl.where(count == 0.0, 1.0, count)
    apart = mean_b - mean_a
    return mean_a + apart * part, squares_a + squares_b + apart * apart * count_a * part, count


@triton.jit
def welford(x, mean, variance, n, stride, BLOCK: tl.constexpr):
    """Mean and variance of a row in one pass over blocks."""
    row = tl.program_id(0).to(tl.int64)
    centre = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        inside = cols < n
        values = tl.load(x + row * stride + cols, mask=inside, other=0.0).to(tl.float32)
        count += inside.to(tl.float32)
        apart = values - centre
        centre += tl.where(inside, apart / tl.maximum(count, 1.0), 0.0)
        squares += tl.where(inside, apart * (values - centre), 0.0)
    centre_all, squares_all, count_all = tl.reduce((centre, squares, count), 0, _merge)
    tl.store(mean + row, centre_all)
    tl.store(variance + row, squares_all / count_all)


@triton.jit
def argmax_looped(x, out, n, stride, BLOCK: tl.constexpr, LEAST: tl.constexpr):
    """Place of the largest value of a row longer than a block or, with LEAST, of the least."""
    row = tl.program_id(0).to(tl.int64)
    best = tl.full((BLOCK,), float("inf") if LEAST else float("-inf"), tl.float32)
    place = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        missing = float("inf") if LEAST else float("-inf")
        values = tl.load(x + row * stride + cols, mask=cols < n, other=missing).to(tl.float32)
        better = values < best if LEAST else values > best
        best = tl.where(better, values, best)
        place = tl.where(better, cols, place)
    winner = tl.argmin(best, 0) if LEAST else tl.argmax(best, 0)
    tl.store(out + row, tl.sum(tl.where(tl.arange(0, BLOCK) == winner, place, 0), 0))


@triton.jit
def _recur(decay_a, value_a, decay_b, value_b):
    """Two steps of h = decay · h + value as one."""
    return decay_a * decay_b, value_a * decay_b + value_b


@triton.jit
def scan(
    x, y, out, rows, n, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr, WHAT: tl.constexpr, REVERSE: tl.constexpr
):
    """Running sums, products or linear recurrences along rows held whole."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (cols < n)[None, :]
    where = row[:, None] * stride + cols[None, :]
    values = tl.load(x + where, mask=inside, other=0.0).to(tl.float32)
    if WHAT == "sum":
        result = tl.cumsum(values, 1, reverse=REVERSE)
    elif WHAT == "product":
        result = tl.cumprod(values, 1, reverse=REVERSE)
    else:
        decay = tl.load(y + where, mask=inside, other=0.0).to(tl.float32)
        _, result = tl.associative_scan((decay, values), 1, _recur, reverse=REVERSE)
    tl.store(out + where, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def scan_looped(x, out, n, stride, BLOCK: tl.constexpr):
    """Running sums along a row longer than a block, the sum so far carried on."""
    row = tl.program_id(0).to(tl.int64)
    carried = 0.0
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        values = tl.load(x + row * stride + cols, mask=cols < n, other=0.0).to(tl.float32)
        tl.store(out + row * stride + cols, (tl.cumsum(values, 0) + carried).to(out.dtype.element_ty), mask=cols < n)
        carried += tl.sum(values, 0)


@triton.jit
def state_space(x, delta, decay, gate, out, length, width, BLOCK: tl.constexpr, STATE: tl.constexpr):
    """A selective state-space step over time (Gu and Dao, "Mamba", 2023), sequential, a block of channels per program."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, STATE)
    rate = tl.load(decay + channel[:, None] * STATE + inner[None, :])
    state = tl.zeros((BLOCK, STATE), tl.float32)
    for time in range(length):
        value = tl.load(x + time * width + channel, mask=channel < width, other=0.0).to(tl.float32)
        step = tl.load(delta + time * width + channel, mask=channel < width, other=0.0).to(tl.float32)
        step = tl.log(1.0 + tl.exp(step))
        enter = tl.load(gate + time * 2 * STATE + inner).to(tl.float32)
        leave = tl.load(gate + time * 2 * STATE + STATE + inner).to(tl.float32)
        state = state * tl.exp(step[:, None] * rate) + (step * value)[:, None] * enter[None, :]
        result = tl.sum(state * leave[None, :], 1)
        tl.store(out + time * width + channel, result.to(out.dtype.element_ty), mask=channel < width)


@triton.jit
def histogram(x, out, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    """Counts of small whole numbers, added to those in memory."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n, other=0)
    counts = tl.histogram(values, BINS)
    tl.atomic_add(out + tl.arange(0, BINS), counts)


@triton.jit
def matvec(a, x, out, m, k, ROWS: tl.constexpr, BLOCK: tl.constexpr, POINT: tl.constexpr):
    """Matrix times vector without tensor cores: a tile of rows per program, walking along k."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, k, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        inside = (row < m)[:, None] & (cols < k)[None, :]
        matrix = tl.load(a + row[:, None] * k + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        total += matrix * tl.load(x + cols, mask=cols < k, other=0.0).to(tl.float32)[None, :]
    result = tl.sum(total, 1)
    if POINT is not None:
        result = POINT(result, result, result)
    tl.store(out + row, result.to(out.dtype.element_ty), mask=row < m)


@triton.jit
def pool(x, out, height, width, BLOCK: tl.constexpr, WINDOW: tl.constexpr, STRIDE: tl.constexpr, MAXIMUM: tl.constexpr):
    """Pooling of images (planes, height, width) with a square window; a block of output pixels per program."""
    plane = tl.program_id(1).to(tl.int64) * height * width
    out_width = (width - WINDOW) // STRIDE + 1
    out_height = (height - WINDOW) // STRIDE + 1
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < out_width * out_height
    corner = plane + at // out_width * STRIDE * width + at % out_width * STRIDE
    total = tl.full((BLOCK,), float("-inf") if MAXIMUM else 0.0, tl.float32)
    for down in tl.static_range(WINDOW):
        for right in tl.static_range(WINDOW):
            value = tl.load(x + corner + down * width + right, mask=inside, other=0.0).to(tl.float32)
            total = tl.maximum(total, value) if MAXIMUM else total + value
    if not MAXIMUM:
        total /= WINDOW * WINDOW
    tl.store(out + tl.program_id(1) * out_width * out_height + at, total.to(out.dtype.element_ty), mask=inside)
