"""Which kernels are compiled for their labels: every binary at most once, over the configurations of the GPU campaign."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator

import numpy as np

from ...features.kernel import KernelSpec
from .tiled import AttentionCode, GemmCode, attention_codes, gemm_codes
from .tiled_matmul import MAX_TILE
from .triton_steps import triton_binaries

ATTENTION_SHARE = 0.3
"""Of the Triton kernels."""

_ALIGNED_SIZE, _UNALIGNED_SIZE = 4096, 4097
_DRAWS_PER_CASE = 50


def label_plan(n_cases: int, seed: int) -> list[KernelSpec]:
    """Cases with different binaries: every tile of the textbook product, then Triton attention and products.

    Sizes only stand for their divisibility by 16. Equal arguments give equal plans, in random order.

    Raises:
        ValueError: there are not so many different binaries.
    """
    rng = np.random.default_rng(seed)
    textbook = [_textbook(tile) for tile in range(1, MAX_TILE + 1)][:n_cases]
    attentions = round(ATTENTION_SHARE * (n_cases - len(textbook)))
    products = (_gemm(code) for code in gemm_codes(rng) if code.sensible)
    attending = (_attention(code) for code in attention_codes(rng) if code.sensible)
    specs = [*textbook, *_different(attending, attentions), *_different(products, n_cases - len(textbook) - attentions)]
    return [specs[i] for i in rng.permutation(len(specs))]


def _different(specs: Iterator[KernelSpec], wanted: int) -> list[KernelSpec]:
    """The first `wanted` cases with different binaries."""
    first: dict[Hashable, KernelSpec] = {}
    for spec in itertools.islice(specs, _DRAWS_PER_CASE * wanted):
        if len(first) == wanted:
            break
        first.setdefault(triton_binaries(spec), spec)
    found = list(first.values())
    if len(found) < wanted:
        raise ValueError(
            f"only {len(found)} different binaries of {found[0].family} were found, not {wanted}; ask for fewer"
        )
    return found


def _textbook(tile: int) -> KernelSpec:
    config = dict.fromkeys(("tile_m", "tile_n", "tile_k"), tile)
    m = n = k = _ALIGNED_SIZE
    return KernelSpec.of("gemm", "fp32", impl="cupy-tiled", config=config, m=m, n=n, k=k)


def _gemm(code: GemmCode) -> KernelSpec:
    k, n = (_ALIGNED_SIZE if aligned else _UNALIGNED_SIZE for aligned in code.aligned)
    knobs = {"tile_m": code.tile_m, "tile_n": code.tile_n, "tile_k": code.tile_k, "warps": code.warps,
             "stages": code.stages, "group_m": 8, "split_k": 4 if code.split else 1}  # fmt: skip
    return KernelSpec.of("gemm", code.dtype, impl="triton", config=knobs, m=_ALIGNED_SIZE, n=n, k=k)


def _attention(code: AttentionCode) -> KernelSpec:
    knobs = {"tile_m": code.tile_m, "tile_n": code.tile_n, "warps": code.warps, "stages": code.stages}
    return KernelSpec.of("attention", code.dtype, impl="triton", config=knobs, batch=1, heads=32, kv_heads=8,
                         q_len=_ALIGNED_SIZE, kv_len=_ALIGNED_SIZE, head_dim=code.head_dim)  # fmt: skip
