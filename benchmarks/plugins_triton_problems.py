"""What `plugins_triton.py` tunes: two Triton kernels as users write them, and shapes of both.

The product has the names of Triton's tutorial 03, attention those of tutorial 06.
"""
# ruff: noqa: N803, D103, ARG001  a Triton kernel's constants are written in capitals; its sizes are there for the tuner
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from kernelcast.plugins.triton import FLASH_ATTENTION, GEMM

GEMM_SHAPES = (
    (4096, 4096, 4096), (16, 4096, 4096), (1024, 1024, 1024), (512, 512, 512), (2048, 2048, 8192), (64, 14336, 4096),
    (4096, 14336, 4096), (4096, 4096, 14336), (8192, 1024, 8192), (128, 8192, 8192), (256, 6144, 4096), (8192, 8192, 1024),
    (3136, 256, 576), (1, 4096, 11008), (1000, 3000, 2000), (333, 768, 3072), (12544, 64, 147), (2048, 50257, 768),
)  # fmt: skip
"""(m, n, k) in bf16: squares, layers of language models at prefill and decode, shapes of convolutions, and odd sizes last:
each of those is compiled anew, while sizes that 16 divides share their binaries."""

ATTENTION_SHAPES = ((1, 32, 4096, 128), (4, 32, 1024, 128), (8, 16, 2048, 64), (16, 12, 512, 64), (1, 8, 16384, 128),
                    (32, 12, 197, 64))  # fmt: skip
"""(batch, heads, sequence, head size) in fp16, causal."""

GEMM_TILES = (
    (16, 64, 128), (16, 128, 64), (32, 64, 64), (32, 128, 64), (64, 32, 64), (64, 64, 32), (64, 64, 64), (64, 128, 32),
    (64, 128, 64), (64, 256, 32), (64, 256, 64), (128, 32, 64), (128, 64, 32), (128, 64, 64), (128, 128, 32), (128, 128, 64),
    (128, 128, 128), (128, 256, 64), (256, 64, 32), (256, 128, 64),
)  # fmt: skip
ATTENTION_TILES = ((64, 32), (64, 64), (64, 128), (128, 32), (128, 64), (128, 128))
LAUNCHES = ((4, 3), (8, 3))
"""(warps, stages): every tile is tried with each."""


@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    pids_m, pids_n = tl.cdiv(M, BLOCK_SIZE_M), tl.cdiv(N, BLOCK_SIZE_N)
    group = pid // (GROUP_SIZE_M * pids_n)
    first = group * GROUP_SIZE_M
    height = min(pids_m - first, GROUP_SIZE_M)
    pid_m = first + (pid % (GROUP_SIZE_M * pids_n)) % height
    pid_n = (pid % (GROUP_SIZE_M * pids_n)) // height
    rows, cols = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M), pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    ks = tl.arange(0, BLOCK_SIZE_K)
    a_tile = a_ptr + (rows % M)[:, None] * stride_am + ks[None, :] * stride_ak
    b_tile = b_ptr + ks[:, None] * stride_bk + (cols % N)[None, :] * stride_bn
    total = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for step in range(tl.cdiv(K, BLOCK_SIZE_K)):
        left = K - step * BLOCK_SIZE_K
        a = tl.load(a_tile, mask=(ks < left)[None, :], other=0.0)
        b = tl.load(b_tile, mask=(ks < left)[:, None], other=0.0)
        total = tl.dot(a, b, total)
        a_tile += BLOCK_SIZE_K * stride_ak
        b_tile += BLOCK_SIZE_K * stride_bk
    inside = (rows < M)[:, None] & (cols < N)[None, :]
    c_tile = c_ptr + rows[:, None] * stride_cm + cols[None, :] * stride_cn
    tl.store(c_tile, total.to(c_ptr.dtype.element_ty), mask=inside)


@triton.jit
def attend(
    sm_scale, Z, H, Q, K, V, Out, N_CTX,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    base = tl.program_id(1).to(tl.int64) * N_CTX * HEAD_DIM
    rows, dims = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    query = base + rows[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(Q + query, mask=(rows < N_CTX)[:, None], other=0.0)
    peak = tl.full((BLOCK_M,), -1e30, dtype=tl.float32)
    weight = tl.zeros((BLOCK_M,), dtype=tl.float32)
    total = tl.zeros((BLOCK_M, HEAD_DIM), dtype=tl.float32)
    end = N_CTX
    if STAGE == 3:
        end = min(N_CTX, (tl.program_id(0) + 1) * BLOCK_M)
    for start in range(0, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        where = base + keys[:, None] * HEAD_DIM + dims[None, :]
        k = tl.load(K + where, mask=(keys < N_CTX)[:, None], other=0.0)
        v = tl.load(V + where, mask=(keys < N_CTX)[:, None], other=0.0)
        seen = (keys < N_CTX)[None, :]
        if STAGE == 3:
            seen = seen & (keys[None, :] <= rows[:, None])
        scores = tl.where(seen, tl.dot(q, tl.trans(k)) * (sm_scale * 1.44269504), -1e30)
        higher = tl.maximum(peak, tl.max(scores, 1))
        p = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(peak - higher)
        weight = weight * fade + tl.sum(p, 1)
        total = tl.dot(p.to(v.dtype), v, total * fade[:, None])
        peak = higher
    tl.store(Out + query, (total / weight[:, None]).to(Out.dtype.element_ty), mask=(rows < N_CTX)[:, None])


@dataclass(frozen=True)
class Problem:
    """One shape to tune: its kernel, what it is launched with, its configurations, and how far its result is off."""

    name: str
    kernel: Any
    maps: Any
    key: tuple[str, ...]
    configs: Sequence[Any]
    arguments: Mapping[str, Any]
    grid: Callable[[Mapping[str, Any]], tuple[int, ...]]
    error: Callable[[], float]


def problems(n_shapes: int) -> Iterable[Problem]:
    """The shapes in the order of the lists, products and attention three and one in turns; operands are made when asked."""
    shapes: list[Callable[[], Problem]] = []
    for i, gemm in enumerate(GEMM_SHAPES):
        shapes.append(lambda gemm=gemm: product(*gemm, "bfloat16"))
        if i % 3 == 2:
            shapes.append(lambda item=ATTENTION_SHAPES[i // 3]: attention(*item))
    return (make() for make in shapes[:n_shapes])


def product(m: int, n: int, k: int, dtype: str, device: str = "cuda") -> Problem:
    """A product of two random matrices."""
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    a, b = torch.randn(m, k, device=device, dtype=kind), torch.randn(k, n, device=device, dtype=kind)
    c = torch.empty(m, n, device=device, dtype=kind)
    configs = [
        triton.Config({"BLOCK_SIZE_M": tile_m, "BLOCK_SIZE_N": tile_n, "BLOCK_SIZE_K": tile_k, "GROUP_SIZE_M": 8},
                      num_warps=warps, num_stages=stages)
        for tile_m, tile_n, tile_k in GEMM_TILES for warps, stages in LAUNCHES
    ]  # fmt: skip
    strides = zip(
        ("stride_am", "stride_ak", "stride_bk", "stride_bn", "stride_cm", "stride_cn"),
        (*a.stride(), *b.stride(), *c.stride()), strict=True,
    )  # fmt: skip
    return Problem(
        f"product {m}x{n}x{k} {dtype}", matmul, GEMM, ("M", "N", "K"), configs,
        {"a_ptr": a, "b_ptr": b, "c_ptr": c, "M": m, "N": n, "K": k, **dict(strides)},
        lambda meta: (triton.cdiv(m, meta["BLOCK_SIZE_M"]) * triton.cdiv(n, meta["BLOCK_SIZE_N"]),),
        lambda: _relative_error(c, a @ b),
    )  # fmt: skip


def attention(batch: int, heads: int, length: int, head_dim: int, device: str = "cuda") -> Problem:
    """Causal attention over random queries, keys and values."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(batch, heads, length, head_dim, device=device, dtype=torch.float16) for _ in range(3))
    out = torch.empty_like(q)
    configs = [
        triton.Config({"BLOCK_M": tile_m, "BLOCK_N": tile_n}, num_warps=warps, num_stages=stages)
        for tile_m, tile_n in ATTENTION_TILES for warps, stages in LAUNCHES
    ]  # fmt: skip
    arguments = {"sm_scale": head_dim**-0.5, "Z": batch, "H": heads, "Q": q, "K": k, "V": v, "Out": out, "N_CTX": length,
                 "HEAD_DIM": head_dim, "STAGE": 3}  # fmt: skip
    reference = torch.nn.functional.scaled_dot_product_attention
    return Problem(
        f"attention {batch}x{heads}x{length}x{head_dim} float16", attend, FLASH_ATTENTION, ("N_CTX", "HEAD_DIM"),
        configs, arguments, lambda meta: (triton.cdiv(length, meta["BLOCK_M"]), batch * heads),
        lambda: _relative_error(out, reference(q, k, v, is_causal=True)),
    )  # fmt: skip


def _relative_error(found: Any, wanted: Any) -> float:
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())
