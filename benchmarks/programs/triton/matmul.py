"""Triton kernels of products: plain, batched, split, quantised, gathered, fused in twos, and convolutions."""
# ruff: noqa: N803, SIM108  constants of a Triton kernel are in capitals; a compile-time choice is a statement
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile_of(program, m, n, TILE_M: tl.constexpr, TILE_N: tl.constexpr, GROUP: tl.constexpr):
    """Row and column of a program's tile: GROUP rows of tiles down before the next column, or row after row for 1."""
    tiles_m, tiles_n = tl.cdiv(m, TILE_M), tl.cdiv(n, TILE_N)
    if GROUP == 1:
        return program // tiles_n, program % tiles_n
    first = program // (GROUP * tiles_n) * GROUP
    height = min(tiles_m - first, GROUP)
    return first + program % (GROUP * tiles_n) % height, program % (GROUP * tiles_n) // height


@triton.jit
def matmul(
    a, b, bias, other, scale_a, scale_b, out, m, n, k,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr, TRANS_A: tl.constexpr,
    TRANS_B: tl.constexpr, EVEN_K: tl.constexpr, SPLIT: tl.constexpr, BATCHED: tl.constexpr, INTEGER: tl.constexpr,
    PRECISION: tl.constexpr, POINT: tl.constexpr,
):  # fmt: skip
    """Gives out = POINT(a · b · scales + bias, other): operands row-major or transposed, what is None left out.

    SPLIT adds parts of k atomically; BATCHED takes the matrix of program axis 2.
    """
    tile_row, tile_col = _tile_of(tl.program_id(0), m, n, TILE_M, TILE_N, GROUP)
    rows = tile_row * TILE_M + tl.arange(0, TILE_M)
    cols = tile_col * TILE_N + tl.arange(0, TILE_N)
    ks = tl.arange(0, TILE_K)
    if SPLIT > 1:
        ks += tl.program_id(1) * TILE_K
    if BATCHED:
        batch = tl.program_id(2).to(tl.int64)
        a += batch * m * k
        b += batch * k * n
        out += batch * m * n
    if TRANS_A:
        lhs_at = a + ks[None, :] * m + (rows % m)[:, None]
    else:
        lhs_at = a + (rows % m)[:, None] * k + ks[None, :]
    if TRANS_B:
        rhs_at = b + (cols % n)[None, :] * k + ks[:, None]
    else:
        rhs_at = b + ks[:, None] * n + (cols % n)[None, :]
    sum_type: tl.constexpr = tl.int32 if INTEGER else tl.float32
    total = tl.zeros((TILE_M, TILE_N), dtype=sum_type)
    for step in range(tl.cdiv(k, TILE_K * SPLIT)):
        if EVEN_K:
            lhs, rhs = tl.load(lhs_at), tl.load(rhs_at)
        else:
            left = k - step * TILE_K * SPLIT
            lhs = tl.load(lhs_at, mask=ks[None, :] < left, other=0.0)
            rhs = tl.load(rhs_at, mask=ks[:, None] < left, other=0.0)
        total = tl.dot(lhs, rhs, total, input_precision=PRECISION, out_dtype=sum_type)
        lhs_at += TILE_K * SPLIT * (m if TRANS_A else 1)
        rhs_at += TILE_K * SPLIT * (1 if TRANS_B else n)
    result = total.to(tl.float32)
    if scale_a is not None:
        result *= tl.load(scale_a + rows, mask=rows < m, other=0.0)[:, None]
    if scale_b is not None:
        result *= tl.load(scale_b + cols, mask=cols < n, other=0.0)[None, :]
    if bias is not None:
        result += tl.load(bias + cols, mask=cols < n, other=0.0).to(tl.float32)[None, :]
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    where = rows[:, None] * n + cols[None, :]
    if other is not None:
        added = tl.load(other + where, mask=inside, other=0.0).to(tl.float32)
        result = result + added if POINT is None else POINT(result, added, result)
    elif POINT is not None:
        result = POINT(result, result, result)
    if SPLIT > 1:
        tl.atomic_add(out + where, result.to(out.dtype.element_ty), mask=inside)
    else:
        tl.store(out + where, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def matmul_blocks(
    a, b, out, m, n, k, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr,
    TRANS_B: tl.constexpr, POINT: tl.constexpr,
):  # fmt: skip
    """A product by block pointers, which check the edges themselves."""
    tile_row, tile_col = _tile_of(tl.program_id(0), m, n, TILE_M, TILE_N, GROUP)
    lhs_at = tl.make_block_ptr(a, (m, k), (k, 1), (tile_row * TILE_M, 0), (TILE_M, TILE_K), (1, 0))
    if TRANS_B:
        rhs_at = tl.make_block_ptr(b, (k, n), (1, k), (0, tile_col * TILE_N), (TILE_K, TILE_N), (0, 1))
    else:
        rhs_at = tl.make_block_ptr(b, (k, n), (n, 1), (0, tile_col * TILE_N), (TILE_K, TILE_N), (1, 0))
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    for _ in range(0, k, TILE_K):
        lhs = tl.load(lhs_at, boundary_check=(0, 1), padding_option="zero")
        rhs = tl.load(rhs_at, boundary_check=(0, 1), padding_option="zero")
        total = tl.dot(lhs, rhs, total)
        lhs_at = tl.advance(lhs_at, (0, TILE_K))
        rhs_at = tl.advance(rhs_at, (TILE_K, 0))
    if POINT is not None:
        total = POINT(total, total, total)
    out_at = tl.make_block_ptr(out, (m, n), (n, 1), (tile_row * TILE_M, tile_col * TILE_N), (TILE_M, TILE_N), (1, 0))
    tl.store(out_at, total.to(out.dtype.element_ty), boundary_check=(0, 1))


@triton.jit
def matmul_descriptors(
    a, b, out, m, n, k, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr,
    POINT: tl.constexpr,
):  # fmt: skip
    """A product by tensor descriptors, that is Hopper's copy engine; b is (n, k)."""
    tile_row, tile_col = _tile_of(tl.program_id(0), m, n, TILE_M, TILE_N, GROUP)
    lhs_at = tl.make_tensor_descriptor(a, [m, k], [k, 1], [TILE_M, TILE_K])
    rhs_at = tl.make_tensor_descriptor(b, [n, k], [k, 1], [TILE_N, TILE_K])
    out_at = tl.make_tensor_descriptor(out, [m, n], [n, 1], [TILE_M, TILE_N])
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    for start in range(0, k, TILE_K):
        lhs = lhs_at.load([tile_row * TILE_M, start])
        rhs = rhs_at.load([tile_col * TILE_N, start])
        total = tl.dot(lhs, rhs.T, total)
    if POINT is not None:
        total = POINT(total, total, total)
    out_at.store([tile_row * TILE_M, tile_col * TILE_N], total.to(out.dtype.element_ty))


@triton.jit
def matmul_persistent(
    a, b, out, m, n, k, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr,
    POINT: tl.constexpr,
):  # fmt: skip
    """A product in which as many programs as multiprocessors walk through the tiles."""
    tiles = tl.cdiv(m, TILE_M) * tl.cdiv(n, TILE_N)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        tile_row, tile_col = _tile_of(tile, m, n, TILE_M, TILE_N, GROUP)
        rows = tile_row * TILE_M + tl.arange(0, TILE_M)
        cols = tile_col * TILE_N + tl.arange(0, TILE_N)
        total = tl.zeros((TILE_M, TILE_N), tl.float32)
        for start in range(0, k, TILE_K):
            ks = start + tl.arange(0, TILE_K)
            lhs = tl.load(a + (rows % m)[:, None] * k + ks[None, :], mask=ks[None, :] < k, other=0.0)
            rhs = tl.load(b + ks[:, None] * n + (cols % n)[None, :], mask=ks[:, None] < k, other=0.0)
            total = tl.dot(lhs, rhs, total)
        if POINT is not None:
            total = POINT(total, total, total)
        inside = (rows < m)[:, None] & (cols < n)[None, :]
        tl.store(out + rows[:, None] * n + cols[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def matmul_gated(
    a, gate, up, out, m, n, k, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, POINT: tl.constexpr
):  # fmt: skip
    """Two products of the same rows, one gating the other: silu(a · gate) · (a · up), or POINT of both."""
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    cols = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    left = tl.zeros((TILE_M, TILE_N), tl.float32)
    right = tl.zeros((TILE_M, TILE_N), tl.float32)
    for start in range(0, k, TILE_K):
        ks = start + tl.arange(0, TILE_K)
        lhs = tl.load(a + (rows % m)[:, None] * k + ks[None, :], mask=ks[None, :] < k, other=0.0)
        where = ks[:, None] * n + (cols % n)[None, :]
        left = tl.dot(lhs, tl.load(gate + where, mask=ks[:, None] < k, other=0.0), left)
        right = tl.dot(lhs, tl.load(up + where, mask=ks[:, None] < k, other=0.0), right)
    result = left * tl.sigmoid(left) * right if POINT is None else POINT(left, right, left)
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    tl.store(out + rows[:, None] * n + cols[None, :], result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def matmul_weights(
    a, b, scales, zeros, out, m, n, k, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
    FOUR: tl.constexpr,
):  # fmt: skip
    """Rows times weights kept in 8 or, with FOUR, packed in 4 bits, with a scale and maybe a zero per column and TILE_K."""
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    cols = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    for step in range(tl.cdiv(k, TILE_K)):
        ks = step * TILE_K + tl.arange(0, TILE_K)
        lhs = tl.load(a + (rows % m)[:, None] * k + ks[None, :], mask=ks[None, :] < k, other=0.0)
        if FOUR:
            packed = tl.load(b + (ks // 2)[:, None] * n + (cols % n)[None, :], mask=ks[:, None] < k, other=0)
            weights = ((packed >> ((ks % 2) * 4)[:, None]) & 0xF).to(tl.float32)
        else:
            weights = tl.load(b + ks[:, None] * n + (cols % n)[None, :], mask=ks[:, None] < k, other=0).to(tl.float32)
        if zeros is not None:
            weights -= tl.load(zeros + step * n + cols, mask=cols < n, other=0.0).to(tl.float32)[None, :]
        weights *= tl.load(scales + step * n + cols, mask=cols < n, other=0.0).to(tl.float32)[None, :]
        total = tl.dot(lhs, weights.to(lhs.dtype), total)
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    tl.store(out + rows[:, None] * n + cols[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def matmul_blockwise(
    a, b, scale_a, scale_b, out, m, n, k, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr
):  # fmt: skip
    """A product of 8-bit operands with a scale per row and TILE_K of a, and per TILE_N and TILE_K of b."""
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    cols = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    steps = tl.cdiv(k, TILE_K)
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    for step in range(steps):
        ks = step * TILE_K + tl.arange(0, TILE_K)
        lhs = tl.load(a + (rows % m)[:, None] * k + ks[None, :], mask=ks[None, :] < k, other=0.0)
        rhs = tl.load(b + (cols % n)[None, :] * k + ks[:, None], mask=ks[:, None] < k, other=0.0)
        down = tl.load(scale_a + rows * steps + step, mask=rows < m, other=0.0)
        total += tl.dot(lhs, rhs) * down[:, None] * tl.load(scale_b + tl.program_id(1) * steps + step)
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    tl.store(out + rows[:, None] * n + cols[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def matmul_experts(
    a, b, tokens, experts, gates, out, n, k, count, per_token,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Rows gathered by `tokens`, sorted by expert, each tile times its own expert's weights (n, k)."""
    slots = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    token = tl.load(tokens + slots)
    real = token < count
    expert = tl.load(experts + tl.program_id(0)).to(tl.int64)
    cols = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    ks = tl.arange(0, TILE_K)
    lhs_at = a + (token // per_token)[:, None] * k + ks[None, :]
    rhs_at = b + expert * n * k + (cols % n)[None, :] * k + ks[:, None]
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    for step in range(tl.cdiv(k, TILE_K)):
        left = k - step * TILE_K
        lhs = tl.load(lhs_at, mask=real[:, None] & (ks < left)[None, :], other=0.0)
        rhs = tl.load(rhs_at, mask=(ks < left)[:, None], other=0.0)
        total = tl.dot(lhs, rhs, total)
        lhs_at += TILE_K
        rhs_at += TILE_K
    if GATED:
        total *= tl.load(gates + token, mask=real, other=0.0)[:, None]
    inside = real[:, None] & (cols < n)[None, :]
    tl.store(out + token[:, None] * n + cols[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def matmul_low_rank(
    x, down, up, out, m, n, k, scale, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, RANK: tl.constexpr
):  # fmt: skip
    """Adds to out: scale · (x · down) · up, the product in the middle kept on the chip."""
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    ranks = tl.arange(0, RANK)
    middle = tl.zeros((TILE_M, RANK), tl.float32)
    for start in range(0, k, TILE_K):
        ks = start + tl.arange(0, TILE_K)
        lhs = tl.load(x + (rows % m)[:, None] * k + ks[None, :], mask=ks[None, :] < k, other=0.0)
        rhs = tl.load(down + ks[:, None] * RANK + ranks[None, :], mask=ks[:, None] < k, other=0.0)
        middle = tl.dot(lhs, rhs, middle)
    narrow = (middle * scale).to(x.dtype.element_ty)
    for start in range(0, n, TILE_N):
        cols = start + tl.arange(0, TILE_N)
        rhs = tl.load(up + ranks[:, None] * n + cols[None, :], mask=cols[None, :] < n, other=0.0)
        inside = (rows < m)[:, None] & (cols < n)[None, :]
        where = rows[:, None] * n + cols[None, :]
        before = tl.load(out + where, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + where, tl.dot(narrow, rhs, before).to(out.dtype.element_ty), mask=inside)


@triton.jit
def matmul_pair(
    x, first, second, out, m, hidden, WIDTH: tl.constexpr, TILE_M: tl.constexpr, TILE_H: tl.constexpr, POINT: tl.constexpr
):  # fmt: skip
    """A small two-layer network in one kernel: POINT(x · first) · second, the hidden layer in tiles."""
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    width = tl.arange(0, WIDTH)
    where = rows[:, None] * WIDTH + width[None, :]
    inside = (rows < m)[:, None]
    lhs = tl.load(x + where, mask=inside, other=0.0)
    total = tl.zeros((TILE_M, WIDTH), tl.float32)
    for start in range(0, hidden, TILE_H):
        local = start + tl.arange(0, TILE_H)
        weights = tl.load(first + width[:, None] * hidden + local[None, :], mask=(local < hidden)[None, :], other=0.0)
        middle = tl.dot(lhs, weights)
        middle = tl.maximum(middle, 0.0) if POINT is None else POINT(middle, middle, middle)
        weights = tl.load(second + local[:, None] * WIDTH + width[None, :], mask=(local < hidden)[:, None], other=0.0)
        total = tl.dot(middle.to(lhs.dtype), weights, total)
    tl.store(out + where, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def conv2d(
    x, weight, bias, out, batch, height, width, channels, filters,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, WINDOW: tl.constexpr, STRIDE: tl.constexpr,
    POINT: tl.constexpr,
):  # fmt: skip
    """Convolution of images (n, h, w, c) with filters (window, window, c, filters) as a product without im2col."""
    out_width = (width - WINDOW) // STRIDE + 1
    out_height = (height - WINDOW) // STRIDE + 1
    pixels = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    cols = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    image = pixels // (out_width * out_height)
    down = pixels // out_width % out_height * STRIDE
    right = pixels % out_width * STRIDE
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    for place in range(WINDOW * WINDOW):
        corner = ((image * height + down + place // WINDOW) * width + right + place % WINDOW) * channels
        for start in range(0, channels, TILE_K):
            ks = start + tl.arange(0, TILE_K)
            inside = (image < batch)[:, None] & (ks < channels)[None, :]
            lhs = tl.load(x + corner[:, None] + ks[None, :], mask=inside, other=0.0)
            where = (place * channels + ks)[:, None] * filters + cols[None, :]
            rhs = tl.load(weight + where, mask=(ks < channels)[:, None] & (cols < filters)[None, :], other=0.0)
            total = tl.dot(lhs, rhs, total)
    if bias is not None:
        total += tl.load(bias + cols, mask=cols < filters, other=0.0).to(tl.float32)[None, :]
    if POINT is not None:
        total = POINT(total, total, total)
    inside = (image < batch)[:, None] & (cols < filters)[None, :]
    tl.store(out + pixels[:, None] * filters + cols[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def conv1d(
    x, weight, bias, out, length, channels,
    BLOCK: tl.constexpr, STEPS: tl.constexpr, WINDOW: tl.constexpr, SILU: tl.constexpr,
):  # fmt: skip
    """Causal depthwise convolution along time of (batch, length, channels), STEPS × BLOCK results per program."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    time = tl.program_id(1) * STEPS + tl.arange(0, STEPS)
    base = tl.program_id(2).to(tl.int64) * length * channels
    total = tl.zeros((STEPS, BLOCK), tl.float32)
    if bias is not None:
        total += tl.load(bias + channel, mask=channel < channels, other=0.0).to(tl.float32)[None, :]
    for back in tl.static_range(WINDOW):
        then = time - (WINDOW - 1 - back)
        inside = ((then >= 0) & (then < length))[:, None] & (channel < channels)[None, :]
        value = tl.load(x + base + then[:, None] * channels + channel[None, :], mask=inside, other=0.0).to(tl.float32)
        total += (
            value
            * tl.load(weight + back * channels + channel, mask=channel < channels, other=0.0).to(tl.float32)[None, :]
        )
    if SILU:
        total *= tl.sigmoid(total)
    inside = (time < length)[:, None] & (channel < channels)[None, :]
    tl.store(out + base + time[:, None] * channels + channel[None, :], total.to(out.dtype.element_ty), mask=inside)
