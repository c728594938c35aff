"""Triton kernels of attention: forward, backward, decoding over contiguous and paged caches, and linear attention."""
# ruff: noqa: N803  constants of a Triton kernel are written in capitals
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def forward(
    q, k, v, bias, sinks, out, sums, q_len, kv_len, scale,
    HEAD_DIM: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CAP: tl.constexpr, MASK_IN_LOOP: tl.constexpr,
):  # fmt: skip
    """Softmax online over tiles of keys (Dao et al., "FlashAttention", 2022); a tile of queries of one head per program.

    WINDOW > 0 hides what is further back, CAP > 0 bounds scores by a tanh, `bias` is (q_len, kv_len), `sums` keeps the
    logarithms of the sums for the way back; what is None is left out.
    """
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    dims = tl.arange(0, HEAD_DIM)
    where = head * q_len * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :]
    queries = tl.load(q + where, mask=(rows < q_len)[:, None], other=0.0)
    k += head * kv_len * HEAD_DIM
    v += head * kv_len * HEAD_DIM
    peak = tl.full((TILE_M,), float("-inf"), tl.float32)
    weight = tl.zeros((TILE_M,), tl.float32)
    if sinks is not None:
        peak += tl.load(sinks + head)
        weight += 1.0
    total = tl.zeros((TILE_M, HEAD_DIM), tl.float32)
    first = 0
    if WINDOW > 0:
        first = max(0, (tl.program_id(0) * TILE_M - WINDOW) // TILE_N * TILE_N)
    end = min(kv_len, (tl.program_id(0) + 1) * TILE_M) if CAUSAL else kv_len
    for start in range(first, end, TILE_N):
        at = start + tl.arange(0, TILE_N)
        keys = tl.load(k + at[None, :] * HEAD_DIM + dims[:, None], mask=(at < kv_len)[None, :], other=0.0)
        scores = tl.dot(queries, keys) * scale
        if CAP > 0:
            scores = CAP * (2.0 * tl.sigmoid(2.0 * scores / CAP) - 1.0)
        if bias is not None:
            inside = (rows < q_len)[:, None] & (at < kv_len)[None, :]
            scores += tl.load(bias + rows[:, None] * kv_len + at[None, :], mask=inside, other=0.0).to(tl.float32)
        if MASK_IN_LOOP:
            visible = (at < kv_len)[None, :]
            if CAUSAL:
                visible = visible & (at[None, :] <= rows[:, None])
            if WINDOW > 0:
                visible = visible & (at[None, :] > rows[:, None] - WINDOW)
            scores = tl.where(visible, scores, -1.0e6)
        higher = tl.maximum(peak, tl.max(scores, 1))
        probabilities = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(peak - higher)
        weight = weight * fade + tl.sum(probabilities, 1)
        values = tl.load(v + at[:, None] * HEAD_DIM + dims[None, :], mask=(at < kv_len)[:, None], other=0.0)
        total = tl.dot(probabilities.to(values.dtype), values, total * fade[:, None])
        peak = higher
    tl.store(out + where, (total / weight[:, None]).to(out.dtype.element_ty), mask=(rows < q_len)[:, None])
    if sums is not None:
        tl.store(sums + head * q_len + rows, peak + tl.log2(weight), mask=rows < q_len)


@triton.jit
def backward_keys(
    q, k, v, dout, sums, delta, dk, dv, q_len, kv_len, scale,
    HEAD_DIM: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of keys and values, walking over the queries."""
    head = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    dims = tl.arange(0, HEAD_DIM)
    where = head * kv_len * HEAD_DIM + at[:, None] * HEAD_DIM + dims[None, :]
    keys = tl.load(k + where, mask=(at < kv_len)[:, None], other=0.0)
    values = tl.load(v + where, mask=(at < kv_len)[:, None], other=0.0)
    grad_k = tl.zeros((TILE_N, HEAD_DIM), tl.float32)
    grad_v = tl.zeros((TILE_N, HEAD_DIM), tl.float32)
    first = tl.program_id(0) * TILE_N // TILE_M * TILE_M if CAUSAL else 0
    for start in range(first, q_len, TILE_M):
        rows = start + tl.arange(0, TILE_M)
        place = head * q_len * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :]
        queries = tl.load(q + place, mask=(rows < q_len)[:, None], other=0.0)
        slope = tl.load(dout + place, mask=(rows < q_len)[:, None], other=0.0)
        whole = tl.load(sums + head * q_len + rows, mask=rows < q_len, other=0.0)
        part = tl.load(delta + head * q_len + rows, mask=rows < q_len, other=0.0)
        chances = tl.exp2(tl.dot(keys, tl.trans(queries)) * scale - whole[None, :])
        if CAUSAL:
            chances = tl.where(rows[None, :] >= at[:, None], chances, 0.0)
        grad_v = tl.dot(chances.to(slope.dtype), slope, grad_v)
        change = chances * (tl.dot(values, tl.trans(slope)) - part[None, :])
        grad_k = tl.dot(change.to(queries.dtype), queries, grad_k)
    tl.store(dk + where, (grad_k * scale).to(dk.dtype.element_ty), mask=(at < kv_len)[:, None])
    tl.store(dv + where, grad_v.to(dv.dtype.element_ty), mask=(at < kv_len)[:, None])


@triton.jit
def backward_queries(
    q, k, v, dout, sums, delta, dq, q_len, kv_len, scale,
    HEAD_DIM: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of queries, walking over the keys."""
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    dims = tl.arange(0, HEAD_DIM)
    where = head * q_len * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :]
    queries = tl.load(q + where, mask=(rows < q_len)[:, None], other=0.0)
    slope = tl.load(dout + where, mask=(rows < q_len)[:, None], other=0.0)
    whole = tl.load(sums + head * q_len + rows, mask=rows < q_len, other=0.0)
    part = tl.load(delta + head * q_len + rows, mask=rows < q_len, other=0.0)
    grad = tl.zeros((TILE_M, HEAD_DIM), tl.float32)
    end = min(kv_len, (tl.program_id(0) + 1) * TILE_M) if CAUSAL else kv_len
    for start in range(0, end, TILE_N):
        at = start + tl.arange(0, TILE_N)
        place = head * kv_len * HEAD_DIM + at[:, None] * HEAD_DIM + dims[None, :]
        keys = tl.load(k + place, mask=(at < kv_len)[:, None], other=0.0)
        values = tl.load(v + place, mask=(at < kv_len)[:, None], other=0.0)
        chances = tl.exp2(tl.dot(queries, tl.trans(keys)) * scale - whole[:, None])
        if CAUSAL:
            chances = tl.where(rows[:, None] >= at[None, :], chances, 0.0)
        change = chances * (tl.dot(slope, tl.trans(values)) - part[:, None])
        grad = tl.dot(change.to(keys.dtype), keys, grad)
    tl.store(dq + where, (grad * scale).to(dq.dtype.element_ty), mask=(rows < q_len)[:, None])


@triton.jit
def backward_delta(out, dout, delta, rows, HEAD_DIM: tl.constexpr, TILE_M: tl.constexpr):
    """The sum of out · dout of every row, which both gradients need."""
    row = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    where = row[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    inside = (row < rows)[:, None]
    product = tl.load(out + where, mask=inside, other=0.0).to(tl.float32) * tl.load(
        dout + where, mask=inside, other=0.0
    )
    tl.store(delta + row, tl.sum(product, 1), mask=row < rows)


@triton.jit
def decode(
    q, k, v, pages, lengths, out, sums, kv_heads, part_len, scale,
    HEAD_DIM: tl.constexpr, GROUP: tl.constexpr, TILE_N: tl.constexpr, PAGE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One new token's attention over a part of its cache: GROUP query heads of one key head per program.

    PAGE > 0 finds keys through a table of pages of so many positions. Without DOT a single head is reduced elementwise.
    """
    sequence, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + sequence)
    dims = tl.arange(0, HEAD_DIM)
    group = tl.arange(0, GROUP)
    where = ((sequence * kv_heads + kv_head) * GROUP + group)[:, None] * HEAD_DIM + dims[None, :]
    queries = tl.load(q + where)
    peak = tl.full((GROUP,), float("-inf"), tl.float32)
    weight = tl.zeros((GROUP,), tl.float32)
    total = tl.zeros((GROUP, HEAD_DIM), tl.float32)
    for start in range(part * part_len, min(length, (part + 1) * part_len), TILE_N):
        at = start + tl.arange(0, TILE_N)
        exists = at < length
        if PAGE > 0:
            page = tl.load(pages + sequence * 4096 + at // PAGE, mask=exists, other=0).to(tl.int64)
            rows = (page * PAGE + at % PAGE) * kv_heads + kv_head
        else:
            rows = (sequence.to(tl.int64) * 131072 + at) * kv_heads + kv_head
        place = rows[:, None] * HEAD_DIM + dims[None, :]
        keys = tl.load(k + place, mask=exists[:, None], other=0.0)
        values = tl.load(v + place, mask=exists[:, None], other=0.0)
        if DOT:
            scores = tl.dot(queries, tl.trans(keys.to(queries.dtype))) * scale
        else:
            scores = tl.sum(queries[:, None, :].to(tl.float32) * keys[None, :, :].to(tl.float32), 2) * scale
        scores = tl.where(exists[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        chances = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(peak - higher)
        weight = weight * fade + tl.sum(chances, 1)
        if DOT:
            total = tl.dot(chances.to(queries.dtype), values.to(queries.dtype), total * fade[:, None])
        else:
            total = total * fade[:, None] + tl.sum(chances[:, :, None] * values[None, :, :].to(tl.float32), 1)
        peak = higher
    base = ((part * tl.num_programs(0) + sequence) * kv_heads + kv_head) * GROUP + group
    tl.store(out + base[:, None] * HEAD_DIM + dims[None, :], (total / weight[:, None]).to(out.dtype.element_ty))
    tl.store(sums + base, peak + tl.log2(weight))


@triton.jit
def merge_parts(parts, sums, out, rows, count, HEAD_DIM: tl.constexpr, TILE_M: tl.constexpr):
    """The parts of decoded attention put together by their sums."""
    row = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    dims = tl.arange(0, HEAD_DIM)
    peak = tl.full((TILE_M,), float("-inf"), tl.float32)
    weight = tl.zeros((TILE_M,), tl.float32)
    total = tl.zeros((TILE_M, HEAD_DIM), tl.float32)
    for part in range(count):
        inside = row < rows
        size = tl.load(sums + part * rows + row, mask=inside, other=0.0)
        place = (part * rows + row)[:, None] * HEAD_DIM + dims[None, :]
        values = tl.load(parts + place, mask=inside[:, None], other=0.0).to(tl.float32)
        higher = tl.maximum(peak, size)
        local, fade = tl.exp2(size - higher), tl.exp2(peak - higher)
        total = total * fade[:, None] + values * local[:, None]
        weight = weight * fade + local
        peak = higher
    where = row[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out + where, (total / weight[:, None]).to(out.dtype.element_ty), mask=(row < rows)[:, None])


@triton.jit
def linear(
    q, k, v, gate, out, length, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, TILE: tl.constexpr, DECAY: tl.constexpr
):
    """Causal linear attention in chunks, the state in registers; with DECAY every position fades by its gate."""
    head = tl.program_id(0).to(tl.int64)
    q += head * length * KEY_DIM
    k += head * length * KEY_DIM
    v += head * length * VALUE_DIM
    out += head * length * VALUE_DIM
    near, keys_at, values_at = tl.arange(0, TILE), tl.arange(0, KEY_DIM), tl.arange(0, VALUE_DIM)
    state = tl.zeros((KEY_DIM, VALUE_DIM), tl.float32)
    for start in range(0, length, TILE):
        at = start + near
        inside = (at < length)[:, None]
        queries = tl.load(q + at[:, None] * KEY_DIM + keys_at[None, :], mask=inside, other=0.0)
        keys = tl.load(k + at[:, None] * KEY_DIM + keys_at[None, :], mask=inside, other=0.0)
        values = tl.load(v + at[:, None] * VALUE_DIM + values_at[None, :], mask=inside, other=0.0)
        scores = tl.where(near[:, None] >= near[None, :], tl.dot(queries, tl.trans(keys)), 0.0)
        if DECAY:
            faded = tl.cumsum(tl.load(gate + head * length + at, mask=at < length, other=0.0).to(tl.float32), 0)
            scores *= tl.exp2(faded[:, None] - faded[None, :])
            last = tl.sum(tl.where(near == TILE - 1, faded, 0.0), 0)
            queries = (queries * tl.exp2(faded)[:, None]).to(keys.dtype)
            keys = (keys * tl.exp2(last - faded)[:, None]).to(queries.dtype)
        result = tl.dot(queries, state.to(queries.dtype))
        result = tl.dot(scores.to(values.dtype), values, result)
        if DECAY:
            state *= tl.exp2(last)
        state = tl.dot(tl.trans(keys), values, state)
        tl.store(out + at[:, None] * VALUE_DIM + values_at[None, :], result.to(out.dtype.element_ty), mask=inside)
