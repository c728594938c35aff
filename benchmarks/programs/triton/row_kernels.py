"""Triton kernels that work on rows: softmax, normalisations, losses and reductions, forward and backward."""
# ruff: noqa: N803  constants of a Triton kernel are written in capitals
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softmax(
    x, bias, out, n, stride, scale, BLOCK: tl.constexpr, LOG: tl.constexpr, CAUSAL: tl.constexpr, POINT: tl.constexpr
):
    """A row per program, held whole; `bias` may be None, POINT is applied before the softmax."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < n
    if CAUSAL:
        inside = inside & (cols <= row % n)
    values = tl.load(x + row * stride + cols, mask=inside, other=0.0).to(tl.float32) * scale
    if bias is not None:
        values += tl.load(bias + cols, mask=inside, other=0.0).to(tl.float32)
    if POINT is not None:
        values = POINT(values, values, values)
    values = tl.where(inside, values, float("-inf"))
    values -= tl.max(values, 0)
    powers = tl.exp(values)
    result = values - tl.log(tl.sum(powers, 0)) if LOG else powers / tl.sum(powers, 0)
    tl.store(out + row * stride + cols, result.to(out.dtype.element_ty), mask=cols < n)


@triton.jit
def softmax_tiled(x, out, rows, n, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr):
    """Several rows per program, each held whole."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (cols < n)[None, :]
    where = row[:, None] * stride + cols[None, :]
    values = tl.load(x + where, mask=inside, other=float("-inf")).to(tl.float32)
    values -= tl.max(values, 1)[:, None]
    powers = tl.exp(values)
    total = tl.sum(powers, 1)[:, None]
    result = values - tl.log(total) if LOG else powers / total
    tl.store(out + where, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def softmax_looped(x, out, n, stride, BLOCK: tl.constexpr, LOG: tl.constexpr):
    """A row per program, read twice: once for the running peak and sum, once to write."""
    row = tl.program_id(0).to(tl.int64)
    x += row * stride
    out += row * stride
    peak = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        values = tl.load(x + cols, mask=cols < n, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(peak, values)
        total = total * tl.exp(peak - higher) + tl.exp(values - higher)
        peak = higher
    highest = tl.max(peak, 0)
    whole = tl.sum(total * tl.exp(peak - highest), 0)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        values = tl.load(x + cols, mask=cols < n, other=0.0).to(tl.float32) - highest
        result = values - tl.log(whole) if LOG else tl.exp(values) / whole
        tl.store(out + cols, result.to(out.dtype.element_ty), mask=cols < n)


@triton.jit
def softmax_backward(y, dy, dx, n, stride, BLOCK: tl.constexpr, LOG: tl.constexpr):
    """Gives dx of a softmax or, with LOG, of a log-softmax."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < n
    out = tl.load(y + row * stride + cols, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(dy + row * stride + cols, mask=inside, other=0.0).to(tl.float32)
    grad = slope - tl.exp(out) * tl.sum(slope, 0) if LOG else out * (slope - tl.sum(out * slope, 0))
    tl.store(dx + row * stride + cols, grad.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def norm(
    x, residual, weight, bias, out, mean, rstd, n, stride, eps, BLOCK: tl.constexpr, RMS: tl.constexpr, POINT: tl.constexpr
):  # fmt: skip
    """Layer norm, or RMS norm, of a row held whole; `residual` is added and written back, `bias`, `mean` may be None."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < n
    values = tl.load(x + row * stride + cols, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        values += tl.load(residual + row * stride + cols, mask=inside, other=0.0).to(tl.float32)
        tl.store(residual + row * stride + cols, values.to(residual.dtype.element_ty), mask=inside)
    if not RMS:
        centre = tl.sum(values, 0) / n
        values = tl.where(inside, values - centre, 0.0)
        if mean is not None:
            tl.store(mean + row, centre)
    scale = tl.rsqrt(tl.sum(values * values, 0) / n + eps)
    if rstd is not None:
        tl.store(rstd + row, scale)
    result = values * scale * tl.load(weight + cols, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        result += tl.load(bias + cols, mask=inside, other=0.0).to(tl.float32)
    if POINT is not None:
        result = POINT(result, values, result)
    tl.store(out + row * stride + cols, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def norm_looped(x, weight, bias, out, n, stride, eps, BLOCK: tl.constexpr, RMS: tl.constexpr):
    """Layer norm, or RMS norm, of rows longer than a block: three passes, or two."""
    row = tl.program_id(0).to(tl.int64)
    x += row * stride
    out += row * stride
    centre = 0.0
    if not RMS:
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, n, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            total += tl.load(x + cols, mask=cols < n, other=0.0).to(tl.float32)
        centre = tl.sum(total, 0) / n
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        values = tl.load(x + cols, mask=cols < n, other=0.0).to(tl.float32)
        values = tl.where(cols < n, values - centre, 0.0)
        squares += values * values
    scale = tl.rsqrt(tl.sum(squares, 0) / n + eps)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        values = tl.load(x + cols, mask=cols < n, other=0.0).to(tl.float32) - centre
        result = values * scale * tl.load(weight + cols, mask=cols < n, other=0.0).to(tl.float32)
        if bias is not None:
            result += tl.load(bias + cols, mask=cols < n, other=0.0).to(tl.float32)
        tl.store(out + cols, result.to(out.dtype.element_ty), mask=cols < n)


@triton.jit
def norm_backward(
    dy, x, weight, mean, rstd, dx, dweight, dbias, rows, n, stride, BLOCK: tl.constexpr, RMS: tl.constexpr
):  # fmt: skip
    """Gives dx of a norm, and this program's part of the gradients of weight and bias, over the rows it walks through."""
    cols = tl.arange(0, BLOCK)
    inside = cols < n
    gain = tl.load(weight + cols, mask=inside, other=0.0).to(tl.float32)
    sum_weight = tl.zeros((BLOCK,), tl.float32)
    sum_bias = tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        where = row * stride + cols
        slope = tl.load(dy + where, mask=inside, other=0.0).to(tl.float32)
        values = tl.load(x + where, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(rstd + row)
        if not RMS:
            values -= tl.load(mean + row)
        normal = tl.where(inside, values * scale, 0.0)
        sum_weight += slope * normal
        scaled = slope * gain
        along = tl.sum(normal * scaled, 0) / n
        grad = scaled - normal * along
        if not RMS:
            sum_bias += slope
            grad -= tl.sum(scaled, 0) / n
        tl.store(dx + where, (grad * scale).to(dx.dtype.element_ty), mask=inside)
    tl.store(dweight + tl.program_id(0) * n + cols, sum_weight, mask=inside)
    if not RMS:
        tl.store(dbias + tl.program_id(0) * n + cols, sum_bias, mask=inside)


@triton.jit
def group_norm(
    x, weight, bias, out, channels, size, eps, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, SILU: tl.constexpr
):
    """Group norm of images (n, c, h·w): a group of channels per program, in two passes over its pixels."""
    group = tl.program_id(0).to(tl.int64)
    arange = tl.arange(0, CHANNELS)
    base = group * channels * size
    total = tl.zeros((CHANNELS, BLOCK), tl.float32)
    squares = tl.zeros((CHANNELS, BLOCK), tl.float32)
    for start in range(0, size, BLOCK):
        pixels = start + tl.arange(0, BLOCK)
        inside = (arange < channels)[:, None] & (pixels < size)[None, :]
        values = tl.load(x + base + arange[:, None] * size + pixels[None, :], mask=inside, other=0.0).to(tl.float32)
        total += values
        squares += values * values
    count = channels * size
    centre = tl.sum(tl.sum(total, 1), 0) / count
    scale = tl.rsqrt(tl.sum(tl.sum(squares, 1), 0) / count - centre * centre + eps)
    gain = tl.load(weight + arange, mask=arange < channels, other=0.0).to(tl.float32)
    shift = tl.load(bias + arange, mask=arange < channels, other=0.0).to(tl.float32)
    for start in range(0, size, BLOCK):
        pixels = start + tl.arange(0, BLOCK)
        inside = (arange < channels)[:, None] & (pixels < size)[None, :]
        where = base + arange[:, None] * size + pixels[None, :]
        values = tl.load(x + where, mask=inside, other=0.0).to(tl.float32)
        result = (values - centre) * scale * gain[:, None] + shift[:, None]
        if SILU:
            result *= tl.sigmoid(result)
        tl.store(out + where, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def cross_entropy(
    logits, target, loss, grad, n, stride, smoothing, BLOCK: tl.constexpr, SMOOTH: tl.constexpr
):  # fmt: skip
    """Loss of a row of logits taken in blocks; where `grad` is not None, the gradient is written too."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    label = tl.load(target + row)
    peak = float("-inf")
    total = 0.0
    spread = 0.0
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        values = tl.load(logits + cols, mask=cols < n, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(peak, tl.max(values, 0))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(values - higher), 0)
        if SMOOTH:
            spread += tl.sum(tl.where(cols < n, values, 0.0), 0)
        peak = higher
    whole = peak + tl.log(total)
    lost = whole - tl.load(logits + label).to(tl.float32)
    if SMOOTH:
        lost = lost * (1 - smoothing) + smoothing * (whole - spread / n)
    tl.store(loss + row, lost)
    if grad is not None:
        for start in range(0, n, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            values = tl.load(logits + cols, mask=cols < n, other=float("-inf")).to(tl.float32)
            slope = tl.exp(values - whole)
            if SMOOTH:
                slope -= smoothing / n
            slope = tl.where(cols == label, slope - (1 - smoothing if SMOOTH else 1.0), slope)
            tl.store(grad + row * stride + cols, slope.to(grad.dtype.element_ty), mask=cols < n)


@triton.jit
def divergence(p, q, out, n, stride, BLOCK: tl.constexpr, SYMMETRIC: tl.constexpr):
    """Kullback-Leibler divergence of rows of log-probabilities or, with SYMMETRIC, Jensen-Shannon's."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        inside = cols < n
        log_p = tl.load(p + row * stride + cols, mask=inside, other=float("-inf")).to(tl.float32)
        log_q = tl.load(q + row * stride + cols, mask=inside, other=float("-inf")).to(tl.float32)
        left = tl.exp(log_p)
        if SYMMETRIC:
            right = tl.exp(log_q)
            middle = tl.log((left + right) * 0.5)
            term = 0.5 * (left * (log_p - middle) + right * (log_q - middle))
        else:
            term = left * (log_p - log_q)
        total += tl.where(inside, term, 0.0)
    tl.store(out + row, tl.sum(total, 0))


@triton.jit
def row_quantise(x, out, scales, n, stride, limit, BLOCK: tl.constexpr, RMS: tl.constexpr, POINT: tl.constexpr):
    """A row divided by its largest magnitude over `limit` and rounded; with RMS it is normalised first."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + cols, mask=cols < n, other=0.0).to(tl.float32)
    if RMS:
        values *= tl.rsqrt(tl.sum(values * values, 0) / n + 1e-6)
    if POINT is not None:
        values = POINT(values, values, values)
    scale = tl.maximum(tl.max(tl.abs(tl.where(cols < n, values, 0.0)), 0), 1e-10) / limit
    scaled = values / scale
    if out.dtype.element_ty == tl.int8:
        scaled = tl.floor(scaled + 0.5)
    tl.store(out + row * stride + cols, scaled.to(out.dtype.element_ty), mask=cols < n)
    tl.store(scales + row, scale)


@triton.jit
def rope(q, cos, sin, out, heads, stride, HALF: tl.constexpr, HEADS: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Rotary position of every head of a token; pairs are halves apart or, with INTERLEAVED, neighbours."""
    token = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, HALF)
    head = tl.arange(0, HEADS)
    turn_cos = tl.load(cos + token * HALF + dims).to(tl.float32)[None, :]
    turn_sin = tl.load(sin + token * HALF + dims).to(tl.float32)[None, :]
    base = token * stride + head[:, None] * (2 * HALF)
    inside = (head < heads)[:, None]
    first = base + (2 * dims if INTERLEAVED else dims)[None, :]
    second = first + (1 if INTERLEAVED else HALF)
    left = tl.load(q + first, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(q + second, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + first, (left * turn_cos - right * turn_sin).to(out.dtype.element_ty), mask=inside)
    tl.store(out + second, (right * turn_cos + left * turn_sin).to(out.dtype.element_ty), mask=inside)
