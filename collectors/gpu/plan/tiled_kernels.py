"""Which tiled kernels a GPU campaign measures: Triton products and attention, and the textbook product in CuPy.

Compiling takes seconds and measuring milliseconds, so some twelve shapes share a binary, and some eight configurations a
shape: a model that ranks configurations must see them on equal shapes. Configurations are drawn from those that engineers
try, poor ones among them; only what cannot fit the device or what would spill everything is left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ....features.dtypes import itemsize_b
from ....features.kernel import KernelSpec, View, get_family
from ...cpu.plans.shapes import MODEL_SHARE, additive_recurrence, aligned, between, drawn

SHARES = {"attention": 0.25, "cupy": 0.15}
"""Of the rows: Triton attention and CuPy products; the rest are Triton products."""

ROWS_PER_BINARY = 12
ROWS_PER_SHAPE = 8
"""Shapes each binary runs, as compiling takes longer than measuring; binaries each shape is run by, on average."""

SHARED_LIMIT_B = 227 * 1024
"""Shared memory a block can have on compute capability 9.0 (CUDA C++ Programming Guide, "Technical Specifications")."""

MAX_SUMS_PER_THREAD = 256
"""Accumulators of a tile that one thread holds; it has 255 registers, so the largest tiles spill."""

MAX_HELD = 200
"""Values of a tile that one thread can hold without spilling."""

MAX_UNROLLED = 4096
"""Multiply-adds per thread of one step without tensor cores: they are unrolled, and compile for seconds."""

MAX_LATENCY_S = 0.03
MAX_FLOPS = 5e12
MAX_PARTIALS_B = 1e9
MAX_OPERANDS_B = 2e9
"""Limits of a case: guessed seconds of a call, arithmetic, bytes of partial products, bytes of operands."""

TINY_S = 3e-6
TINY_SHARE = 0.3
"""Of the space-filling shapes that would take less than `TINY_S` this share is kept; most of a log-uniform sweep would."""

GEMM_SIZES = {"m": (1, 8192), "n": (64, 16384), "k": (64, 16384)}
CUPY_SIZES = {"m": (1, 4096), "n": (16, 4096), "k": (16, 4096)}

# (k, n) of projections, MLPs and heads of Llama 3 8B and 70B, Qwen 2.5 1.5B and 7B, Mistral 7B, BERT, DeepSeek-V3, at
# token counts met in decode and prefill.
_LAYERS = ((4096, 6144), (4096, 4096), (4096, 14336), (14336, 4096), (8192, 8192), (8192, 1024), (1536, 8960),
           (3584, 3584), (2048, 7168), (768, 3072), (1024, 4096))  # fmt: skip
_TOKENS = (1, 4, 16, 33, 64, 128, 256, 500, 1024, 2048, 4096, 8192)

# Choices and how often each is drawn. Which of k and n are multiples of 16 decides how wide loads are.
_ALIGNED = {(True, True): 72, (False, False): 14, (True, False): 7, (False, True): 7}
_DTYPE = {"bf16": 34, "fp16": 18, "fp8": 16, "tf32": 12, "int8": 10, "fp32": 10}
_SPLIT = {False: 80, True: 20}
_TILE_M = {16: 14, 32: 16, 64: 28, 128: 32, 256: 10}
_TILE_N = {16: 6, 32: 14, 64: 28, 128: 34, 256: 18}
_TILE_K = {16: 12, 32: 36, 64: 38, 128: 14}
_WARPS = {1: 4, 2: 10, 4: 42, 8: 36, 16: 8}
_STAGES = {1: 10, 2: 24, 3: 34, 4: 24, 5: 8}
_GROUP_M = {1: 30, 2: 5, 4: 15, 8: 40, 16: 10}
_PARTS = {2: 30, 3: 10, 4: 30, 6: 5, 8: 15, 16: 10}

_HEAD_DIM = {128: 45, 64: 30, 80: 6, 96: 7, 256: 8, 32: 4}
_ATTENTION_DTYPE = {"bf16": 65, "fp16": 35}
_QUERY_TILE = {16: 25, 32: 15, 64: 30, 128: 30}
_KEY_TILE = {16: 10, 32: 25, 64: 40, 128: 25}
_ATTENTION_WARPS = {2: 12, 4: 50, 8: 38}
_ATTENTION_STAGES = {1: 12, 2: 36, 3: 36, 4: 16}
# (heads, kv_heads) of Llama 3, Qwen 2.5, GPT-2, BERT, Llama 2, Gemma 2, Falcon (one key head).
_HEADS = ((32, 8), (64, 8), (28, 4), (14, 2), (12, 12), (16, 16), (32, 32), (40, 8), (8, 4), (32, 1))

_CUPY_TILE = {1: 8, 2: 8, 3: 3, 4: 12, 6: 4, 8: 18, 12: 5, 16: 24, 20: 3, 24: 5, 32: 18}

# Rough rates of good kernels on an H200, only to leave out cases that would take too long and thin out tiny ones.
_FLOPS_PER_S = {"fp32": 1.5e13, "tf32": 2e14, "bf16": 5e14, "fp16": 5e14, "fp8": 6e14, "int8": 6e14}
_ATTENTION_FLOPS_PER_S = 2e14
_CUPY_FLOPS_PER_S = 4e12
_B_PER_S = 3e12
_UNALIGNED_SHARE = 0.4
_SPILLING_SHARE = 0.03

Sizes = dict[str, int]
Rng = np.random.Generator
_Code = TypeVar("_Code")


@dataclass(frozen=True, slots=True)
class GemmCode:
    """What one binary of the product is compiled for; tiles in elements.

    Attributes:
        dtype: The operands' dtype.
        aligned: Whether k and whether n are multiples of 16.
        split: Whether the product is cut along k.
        tile_m: Rows of a block's tile.
        tile_n: Columns of a block's tile.
        tile_k: Depth of one step.
        warps: Warps of a block.
        stages: Pipeline stages.
    """

    dtype: str
    aligned: tuple[bool, bool]
    split: bool
    tile_m: int
    tile_n: int
    tile_k: int
    warps: int
    stages: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    def knobs(self, group_m: int, split_k: int) -> dict[str, int]:
        """The configuration of a case that this binary runs."""
        names = ("tile_m", "tile_n", "tile_k", "warps", "stages")
        return {name: getattr(self, name) for name in names} | {"group_m": group_m, "split_k": split_k}

    @property
    def values_per_thread(self) -> float:
        """Values one thread holds: its sums, and its part of operands too narrow in memory to be copied without registers."""
        k_aligned, n_aligned = self.aligned
        narrow = (0 if k_aligned else self.tile_m) + (0 if n_aligned else self.tile_n)
        return (self.tile_m * self.tile_n + narrow * self.tile_k) / self.threads

    @property
    def sensible(self) -> bool:
        """Whether it can fit the device and is not absurd: too many or too few elements of the tile per thread."""
        sums = self.tile_m * self.tile_n / self.threads
        operands_b = (self.tile_m + self.tile_n) * self.tile_k * itemsize_b(self.dtype)
        least_k = 32 if self.dtype in ("fp8", "int8") else 16
        unrolled = sums * self.tile_k if self.dtype == "fp32" else 0.0
        fits = self.stages * operands_b <= SHARED_LIMIT_B and self.tile_k >= least_k
        return fits and 2 <= sums <= MAX_SUMS_PER_THREAD and unrolled <= MAX_UNROLLED


@dataclass(frozen=True, slots=True)
class AttentionCode:
    """What one binary of attention is compiled for; tiles in elements.

    Attributes:
        dtype: The operands' dtype.
        head_dim: Width of a head.
        tile_m: Queries of a tile.
        tile_n: Keys of a tile.
        warps: Warps of a block.
        stages: Pipeline stages.
    """

    dtype: str
    head_dim: int
    tile_m: int
    tile_n: int
    warps: int
    stages: int

    def knobs(self) -> dict[str, int]:
        """The configuration of a case that this binary runs."""
        return {name: getattr(self, name) for name in ("tile_m", "tile_n", "warps", "stages")}

    @property
    def sensible(self) -> bool:
        """Whether it can fit the device: query, key and value tiles in shared memory, result and scores in registers."""
        width = 1 << (self.head_dim - 1).bit_length()
        shared_b = 2.0 * width * (self.tile_m + 2 * self.stages * self.tile_n)
        sums = self.tile_m * (width + self.tile_n) / (32 * self.warps)
        return shared_b <= SHARED_LIMIT_B and sums <= MAX_SUMS_PER_THREAD


def tiled_gpu_plan(n_rows: int, seed: int | Sequence[int]) -> list[KernelSpec]:
    """`n_rows` different cases in random order; equal arguments give equal plans.

    Raises:
        ValueError: `n_rows` is not positive.
    """
    if n_rows < 1:
        raise ValueError(f"a plan has at least one row, got {n_rows}")
    rng = np.random.default_rng(seed)
    attention, cupy = (round(SHARES[name] * n_rows) for name in ("attention", "cupy"))
    specs = [*_gemms(n_rows - attention - cupy, rng), *_attentions(attention, rng), *_cupys(cupy, rng)]
    return [specs[i] for i in rng.permutation(len(specs))]


def _paired(
    wanted: int, codes: Iterator[tuple[Hashable, _Code]], pools: Mapping[Hashable, Sequence[Sizes]],
    spec_of: Callable[[_Code, Sizes], KernelSpec | None],
) -> list[KernelSpec]:  # fmt: skip
    """Different cases: every binary with `ROWS_PER_BINARY` shapes of its pool, each going on where the last one ended."""
    chosen: dict[KernelSpec, None] = {}
    offsets = dict.fromkeys(pools, 0)
    while len(chosen) < wanted:
        name, code = next(codes)
        pool, offset = pools[name], offsets[name]
        specs = (spec_of(code, pool[(offset + step) % len(pool)]) for step in range(len(pool)))
        new = (spec for spec in specs if spec is not None and spec not in chosen)
        chosen |= dict.fromkeys(itertools.islice(new, ROWS_PER_BINARY))
        offsets[name] += ROWS_PER_BINARY
    return list(chosen)[:wanted]


def _pool(shapes: Iterator[Sizes], rows: float) -> list[Sizes]:
    """As many shapes as `rows` rows are spread over."""
    return list(itertools.islice(shapes, max(ROWS_PER_BINARY, round(rows / ROWS_PER_SHAPE))))


def _gemms(wanted: int, rng: Rng) -> list[KernelSpec]:
    pools: dict[Hashable, list[Sizes]] = {
        aligned: _pool(_gemm_shapes(aligned, rng), wanted * weight / sum(_ALIGNED.values()))
        for aligned, weight in _ALIGNED.items()
    }
    codes = ((code.aligned, code) for code in gemm_codes(rng) if code.sensible)
    return _paired(wanted, codes, pools, lambda code, sizes: _gemm_spec(code, sizes, rng))


def gemm_codes(rng: Rng) -> Iterator[GemmCode]:
    """Binaries of the product without end, evenly spread over the knobs; some are not sensible, some come again."""
    choices = (_DTYPE, _ALIGNED, _SPLIT, _TILE_M, _TILE_N, _TILE_K, _WARPS, _STAGES)
    for point in additive_recurrence(len(choices), rng.random(len(choices))):
        yield GemmCode(*(drawn(weights, u) for weights, u in zip(choices, point.tolist(), strict=True)))  # type: ignore[arg-type]


def _gemm_shapes(aligned: tuple[bool, bool], rng: Rng) -> Iterator[Sizes]:
    """Shapes without end: of models (aligned ones) and space-filling ones, k and n multiples of 16 or not as asked."""
    layers = [{"m": m, "n": n, "k": k} for (k, n), m in itertools.product(_LAYERS, _TOKENS)]
    rng.shuffle(layers)
    filling = _filling(GEMM_SIZES, rng)
    while True:
        if all(aligned) and layers and rng.random() < MODEL_SHARE:
            yield layers.pop()
            continue
        sizes = next(filling)
        sizes |= {name: _as_multiple(sizes[name], multiple) for name, multiple in zip(("k", "n"), aligned, strict=True)}
        least_s = max(_flops(sizes) / _FLOPS_PER_S["bf16"], sizes["k"] * sizes["n"] * 2 / _B_PER_S)
        if least_s >= TINY_S or rng.random() < TINY_SHARE:
            yield sizes


def _gemm_spec(code: GemmCode, sizes: Sizes, rng: Rng) -> KernelSpec | None:
    """The case, or None where it would take too long or be split into too little."""
    m, n, k = sizes["m"], sizes["n"], sizes["k"]
    # A small tile reads its operands more often; the square root is a rough guess at what that costs.
    rate = _FLOPS_PER_S[code.dtype] * min(1.0, min(code.tile_m, m) * code.tile_n / 128**2) ** 0.5
    rate *= 1.0 if all(code.aligned) else _UNALIGNED_SHARE
    rate *= 1.0 if code.values_per_thread <= MAX_HELD else _SPILLING_SHARE
    padded = sizes | {"m": max(m, code.tile_m)}
    if _flops(sizes) > MAX_FLOPS or _flops(padded) / rate > MAX_LATENCY_S:
        return None
    parts = drawn(_PARTS, rng.random()) if code.split else 1
    if code.split and (k < 2 * parts * code.tile_k or 4.0 * parts * m * n > MAX_PARTIALS_B):
        return None
    knobs = code.knobs(group_m=drawn(_GROUP_M, rng.random()), split_k=parts)
    return KernelSpec.of("gemm", code.dtype, impl="triton", config=knobs, m=m, n=n, k=k)


def _as_multiple(size: int, multiple: bool) -> int:
    """The size as a multiple of 16, or as none."""
    if multiple:
        return aligned(size, 16)
    return size + 1 if size % 16 == 0 else size


def _attentions(wanted: int, rng: Rng) -> list[KernelSpec]:
    pools: dict[Hashable, list[Sizes]] = {
        head_dim: _pool(_attention_shapes(head_dim, rng), wanted * weight / sum(_HEAD_DIM.values()))
        for head_dim, weight in _HEAD_DIM.items()
    }
    codes = ((code.head_dim, code) for code in attention_codes(rng) if code.sensible)
    return _paired(wanted, codes, pools, _attention_spec)


def attention_codes(rng: Rng) -> Iterator[AttentionCode]:
    """Binaries of attention without end, evenly spread over the knobs; some are not sensible, some come again."""
    choices = (_ATTENTION_DTYPE, _HEAD_DIM, _QUERY_TILE, _KEY_TILE, _ATTENTION_WARPS, _ATTENTION_STAGES)
    for point in additive_recurrence(len(choices), rng.random(len(choices))):
        yield AttentionCode(*(drawn(weights, u) for weights, u in zip(choices, point.tolist(), strict=True)))  # type: ignore[arg-type]


def _attention_shapes(head_dim: int, rng: Rng) -> Iterator[Sizes]:
    """Half decoding over long contexts, half prefill, one in five of which continues a context."""
    family = get_family("attention")
    for point in additive_recurrence(3, rng.random(3)):
        u_kind, u_batch, u_len = point.tolist()
        heads, kv_heads = _HEADS[rng.integers(len(_HEADS))]
        if u_kind < 0.5:
            batch, q_len, kv_len = between(u_batch, 1, 128), 1, between(u_len, 64, 32768)
        else:
            batch, q_len = between(u_batch, 1, 16), between(u_len, 16, 8192)
            kv_len = q_len + (between(rng.random(), 16, 8192) if rng.random() < 0.2 else 0)
        sizes = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len,
                 "head_dim": head_dim, "window": 0}  # fmt: skip
        view = View("bf16", "bf16", "", sizes)
        flops, operands_b = float(family.flops(view)), float(family.footprint_b(view))
        least_s = max(flops / _FLOPS_PER_S["bf16"], operands_b / _B_PER_S)
        is_chosen = least_s >= TINY_S or rng.random() < TINY_SHARE
        if is_chosen and flops <= MAX_FLOPS and operands_b <= MAX_OPERANDS_B:
            yield sizes


def _attention_spec(code: AttentionCode, sizes: Sizes) -> KernelSpec | None:
    """The case, or None where it would take too long."""
    view = View(code.dtype, code.dtype, "", sizes)
    rows = sizes["q_len"] * sizes["heads"] // sizes["kv_heads"]
    rate = (
        _ATTENTION_FLOPS_PER_S * min(1.0, code.tile_m * code.tile_n / (128 * 64)) ** 0.5 * min(1.0, rows / code.tile_m)
    )
    if float(get_family("attention").flops(view)) / rate > MAX_LATENCY_S:
        return None
    return KernelSpec.of("attention", code.dtype, impl="triton", config=code.knobs(), **sizes)  # type: ignore[arg-type]


def _cupys(wanted: int, rng: Rng) -> list[KernelSpec]:
    chosen: dict[KernelSpec, None] = {}
    tiles = (drawn(_CUPY_TILE, float(point[0])) for point in additive_recurrence(1, rng.random(1)))
    filling = _filling(CUPY_SIZES, rng)
    while len(chosen) < wanted:
        tile = next(tiles)
        sizes = next(filling)
        # Below 16 x 16 a multiprocessor has too few threads, or too few per block.
        seconds = _flops(sizes) / (_CUPY_FLOPS_PER_S * (min(tile, 16) / 16) ** 2)
        if seconds > MAX_LATENCY_S or (seconds < TINY_S and rng.random() >= TINY_SHARE):
            continue
        knobs = dict.fromkeys(("tile_m", "tile_n", "tile_k"), tile)
        spec = KernelSpec.of("gemm", "fp32", impl="cupy-tiled", config=knobs, **sizes)  # type: ignore[arg-type]
        chosen[spec] = None
    return list(chosen)


def _filling(ranges: Mapping[str, tuple[int, int]], rng: Rng) -> Iterator[Sizes]:
    """Sizes without end, space-filling in their logarithms."""
    for point in additive_recurrence(len(ranges), rng.random(len(ranges))):
        yield {name: between(u, *bounds) for u, (name, bounds) in zip(point.tolist(), ranges.items(), strict=True)}


def _flops(sizes: Sizes) -> float:
    return 2.0 * sizes["m"] * sizes["n"] * sizes["k"]
