"""Triton kernels that update, quantise and gate element by element: optimiser steps, low-precision formats, gates."""
# ruff: noqa: N803  constants of a Triton kernel are written in capitals
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sgd(param, grad, velocity, copy, n, rate, momentum, decay, BLOCK: tl.constexpr, NESTEROV: tl.constexpr):
    """Gradient descent with momentum where `velocity` is not None, and a copy in another format where `copy` is not."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(param + at, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32) + decay * value
    if velocity is not None:
        speed = momentum * tl.load(velocity + at, mask=inside, other=0.0) + slope
        tl.store(velocity + at, speed, mask=inside)
        slope = slope + momentum * speed if NESTEROV else speed
    value -= rate * slope
    tl.store(param + at, value.to(param.dtype.element_ty), mask=inside)
    if copy is not None:
        tl.store(copy + at, value.to(copy.dtype.element_ty), mask=inside)


@triton.jit
def adam(
    param, grad, first, second, highest, copy, n, rate, beta1, beta2, eps, decay, correct1, correct2,
    BLOCK: tl.constexpr, DECOUPLED: tl.constexpr,
):  # fmt: skip
    """Adam or, with DECOUPLED decay, AdamW; AMSGrad where `highest` is not None."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(param + at, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    if DECOUPLED:
        value *= 1 - rate * decay
    else:
        slope += decay * value
    mean = beta1 * tl.load(first + at, mask=inside, other=0.0).to(tl.float32) + (1 - beta1) * slope
    square = beta2 * tl.load(second + at, mask=inside, other=0.0).to(tl.float32) + (1 - beta2) * slope * slope
    tl.store(first + at, mean.to(first.dtype.element_ty), mask=inside)
    tl.store(second + at, square.to(second.dtype.element_ty), mask=inside)
    if highest is not None:
        square = tl.maximum(square, tl.load(highest + at, mask=inside, other=0.0))
        tl.store(highest + at, square, mask=inside)
    value -= rate * (mean / correct1) / (tl.sqrt(square / correct2) + eps)
    tl.store(param + at, value.to(param.dtype.element_ty), mask=inside)
    if copy is not None:
        tl.store(copy + at, value.to(copy.dtype.element_ty), mask=inside)


@triton.jit
def adam_8bit(param, grad, first, second, scale1, scale2, n, rate, beta1, beta2, eps, BLOCK: tl.constexpr):
    """Adam whose moments are kept in 8 bits with a scale per block."""
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    slope = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.load(first + at, mask=inside, other=0).to(tl.float32) * tl.load(scale1 + block)
    square = tl.load(second + at, mask=inside, other=0).to(tl.float32) * tl.load(scale2 + block)
    mean = beta1 * mean + (1 - beta1) * slope
    square = beta2 * square + (1 - beta2) * slope * slope
    value = tl.load(param + at, mask=inside, other=0.0).to(tl.float32) - rate * mean / (tl.sqrt(square) + eps)
    tl.store(param + at, value.to(param.dtype.element_ty), mask=inside)
    new1, new2 = tl.max(tl.abs(mean), 0) / 127.0 + 1e-12, tl.max(square, 0) / 127.0 + 1e-12
    tl.store(first + at, tl.floor(mean / new1 + 0.5).to(tl.int8), mask=inside)
    tl.store(second + at, tl.floor(square / new2 + 0.5).to(tl.int8), mask=inside)
    tl.store(scale1 + block, new1)
    tl.store(scale2 + block, new2)


@triton.jit
def lion(param, grad, mean, n, rate, beta1, beta2, decay, BLOCK: tl.constexpr):
    """The sign of a running mean (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(param + at, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    before = tl.load(mean + at, mask=inside, other=0.0).to(tl.float32)
    turn = beta1 * before + (1 - beta1) * slope
    sign = tl.where(turn > 0, 1.0, tl.where(turn < 0, -1.0, 0.0))
    tl.store(param + at, (value * (1 - rate * decay) - rate * sign).to(param.dtype.element_ty), mask=inside)
    tl.store(mean + at, (beta2 * before + (1 - beta2) * slope).to(mean.dtype.element_ty), mask=inside)


@triton.jit
def adagrad(param, grad, squares, n, rate, alpha, eps, BLOCK: tl.constexpr, FADING: tl.constexpr):
    """Adagrad or, with FADING squares, RMSprop."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    slope = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    square = tl.load(squares + at, mask=inside, other=0.0)
    square = alpha * square + (1 - alpha) * slope * slope if FADING else square + slope * slope
    tl.store(squares + at, square, mask=inside)
    value = tl.load(param + at, mask=inside, other=0.0).to(tl.float32) - rate * slope / (tl.sqrt(square) + eps)
    tl.store(param + at, value.to(param.dtype.element_ty), mask=inside)


@triton.jit
def quantise_groups(x, out, scales, zeros, n, GROUPS: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr):
    """Groups of neighbours in 8 or, packed in twos, 4 bits, with a scale each and, where `zeros` is not None, a zero."""
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    values = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    if zeros is not None:
        low = tl.min(values, 1)
        scale = (tl.max(values, 1) - low) / ((1 << BITS) - 1) + 1e-12
        tl.store(zeros + group, low, mask=group * GROUP < n)
        steps = tl.floor((values - low[:, None]) / scale[:, None] + 0.5)
    else:
        scale = tl.max(tl.abs(values), 1) / ((1 << (BITS - 1)) - 1) + 1e-12
        steps = tl.floor(values / scale[:, None] + 0.5)
    tl.store(scales + group, scale.to(scales.dtype.element_ty), mask=group * GROUP < n)
    whole = steps.to(tl.int32)
    if BITS == 4:
        low_half, high_half = tl.split(tl.reshape(whole & 0xF, (GROUPS, GROUP // 2, 2)))
        half_at = group[:, None] * (GROUP // 2) + tl.arange(0, GROUP // 2)[None, :]
        tl.store(out + half_at, (low_half | (high_half << 4)).to(out.dtype.element_ty), mask=half_at < n // 2)
    else:
        tl.store(out + at, whole.to(out.dtype.element_ty), mask=at < n)


@triton.jit
def dequantise(
    x, scales, table, out, n, BLOCK: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr, POINT: tl.constexpr
):
    """Numbers back from 8 bits, or from 4 packed in twos by a table of sixteen, with a scale per GROUP."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if BITS == 4:
        packed = tl.load(x + at // 2, mask=at < n, other=0).to(tl.int32)
        code = (packed >> (at % 2) * 4) & 0xF
        values = tl.load(table + code) if table is not None else code.to(tl.float32) - 8.0
    else:
        values = tl.load(x + at, mask=at < n, other=0).to(tl.float32)
    values *= tl.load(scales + at // GROUP, mask=at < n, other=0.0).to(tl.float32)
    if POINT is not None:
        values = POINT(values, values, values)
    tl.store(out + at, values.to(out.dtype.element_ty), mask=at < n)


@triton.jit
def fake_quantise(x, out, mask, n, scale, zero, BLOCK: tl.constexpr):
    """Rounded to 8 bits and back, with the mask its gradient needs."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    steps = tl.floor(tl.load(x + at, mask=at < n, other=0.0).to(tl.float32) / scale + zero + 0.5)
    inside = (steps >= -128.0) & (steps <= 127.0)
    remaining = (tl.clamp(steps, -128.0, 127.0) - zero) * scale
    tl.store(out + at, remaining.to(out.dtype.element_ty), mask=at < n)
    tl.store(mask + at, inside.to(tl.int8), mask=at < n)


@triton.jit
def gate(x, out, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """The left half of every row, through an activation, times the right half."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (cols < n)[None, :]
    where = row[:, None] * 2 * n + cols[None, :]
    left = tl.load(x + where, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(x + where + n, mask=inside, other=0.0).to(tl.float32)
    if KIND == "silu":
        left *= tl.sigmoid(left)
    elif KIND == "gelu":
        left *= 0.5 * (1.0 + tl.erf(left * 0.7071067811865476))
    else:
        left = tl.maximum(left, 0.0)
    tl.store(out + row[:, None] * n + cols[None, :], (left * right).to(out.dtype.element_ty), mask=inside)


@triton.jit
def gate_backward(x, dout, dx, n, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """Gradients of both halves of a gated row."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < n
    left = tl.load(x + row * 2 * n + cols, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(x + row * 2 * n + n + cols, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(dout + row * n + cols, mask=inside, other=0.0).to(tl.float32)
    if KIND == "silu":
        share = tl.sigmoid(left)
        value, rise = left * share, share * (1.0 + left * (1.0 - share))
    elif KIND == "gelu":
        share = 0.5 * (1.0 + tl.erf(left * 0.7071067811865476))
        value, rise = left * share, share + left * 0.3989422804014327 * tl.exp(-0.5 * left * left)
    else:
        value, rise = tl.maximum(left, 0.0), tl.where(left > 0, 1.0, 0.0)
    tl.store(dx + row * 2 * n + cols, (slope * right * rise).to(dx.dtype.element_ty), mask=inside)
    tl.store(dx + row * 2 * n + n + cols, (slope * value).to(dx.dtype.element_ty), mask=inside)


@triton.jit
def clip(grad, norm, n, most, BLOCK: tl.constexpr):
    """Gradients shrunk where their norm is above `most`."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    shrink = tl.minimum(most / (tl.load(norm) + 1e-6), 1.0)
    values = tl.load(grad + at, mask=at < n, other=0.0)
    tl.store(grad + at, (values * shrink).to(grad.dtype.element_ty), mask=at < n)


@triton.jit
def average(shadow, param, n, keep, BLOCK: tl.constexpr):
    """A running average of parameters."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    before = tl.load(shadow + at, mask=at < n, other=0.0).to(tl.float32)
    now = tl.load(param + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(shadow + at, (before * keep + now * (1 - keep)).to(shadow.dtype.element_ty), mask=at < n)
