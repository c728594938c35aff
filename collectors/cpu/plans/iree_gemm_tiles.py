"""Which tiled matrix products a CPU campaign measures: shapes × tile configurations for the `iree` runner.

The CPU's counterpart of a CUTLASS sweep. Most configurations are ones an engineer would try, some are poor (register
tiles that spill, vectors half filled, tiles of one row), since a model that ranks configurations must know both. What
only wastes time stays out: code that unrolls without end, and blocks so small that handing them out is all the work.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from ....features.kernel import KernelSpec, get_family
from ....features.tuning.cpu_block import MAX_FILLED
from ....features.tuning.kinds.iree_contraction import TILES, sensible
from .shapes import MODEL_SHARE, additive_recurrence, aligned, between, drawn

Config = dict[str, int]

SIZES = {"m": (4, 2048), "n": (16, 2048), "k": (32, 4096)}
"""Range of each size of a space-filling shape, inclusive."""

ALIGNMENT = 32
"""Every second space-filling shape has its sizes rounded to multiples of this: sizes as people choose them."""

FLOPS = (2e6, 1e9)
"""Least and most work of a shape: above the 2 µs that a call costs, and some 10 ms at a usual 100 GFLOP/s."""

VARIANTS = {"": 5, "nt": 3, "batched": 3, "tn": 1}
"""Operand layouts and how often each is drawn; attention multiplies batches, and PyTorch keeps weights transposed."""

_BATCHES = (2, 4, 8, 12, 16)

# Choices and how often each is drawn; 8 and 24 columns leave AVX-512 vectors of 16 floats part empty.
_INNER_M = {1: 4, 2: 6, 3: 4, 4: 14, 5: 4, 6: 14, 7: 3, 8: 20, 10: 6, 12: 11, 14: 5, 16: 9}
_INNER_N = {8: 8, 16: 28, 24: 4, 32: 30, 48: 10, 64: 20}
_INNER_K = {1: 20, 2: 20, 4: 25, 8: 20, 16: 15}
_TILE_M = (8, 256)
_TILE_N = (16, 512)
_TILE_K = (16, 512)
_TILE_K_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one product, and how its operands lie.

    Attributes:
        m: Rows of the result.
        n: Columns of the result.
        k: Length of the sums.
        variant: Layout of the operands, as in a spec; empty: both in rows.
        batch: Products of one call.
    """

    m: int
    n: int
    k: int
    variant: str = ""
    batch: int = 1

    @property
    def flops(self) -> float:
        """Multiply-adds, counted twice."""
        return 2.0 * self.batch * self.m * self.n * self.k


def tiled_gemm_plan(n_shapes: int, n_configs: int, seed: int, threads: int = 1) -> list[KernelSpec]:
    """`n_shapes` products, each with IREE's default, its data tiling, and `n_configs` different tile configurations.

    Cases are fp32, hot, in random order; equal arguments give equal plans.

    Raises:
        ValueError: a shape has too few different configurations.
    """
    rng = np.random.default_rng(seed)
    specs = []
    for shape in _shapes(n_shapes, rng):
        configs: list[Config] = [{}, {"data_tiling": 1}, *_configs(shape, n_configs, rng)]
        specs += [
            KernelSpec.of("gemm", "fp32", impl="iree", threads=threads, config=config, **asdict(shape))
            for config in configs
        ]
    return [specs[i] for i in rng.permutation(len(specs))]


def _shapes(wanted: int, rng: np.random.Generator) -> list[Shape]:
    """Different shapes within `FLOPS`: `MODEL_SHARE` of them from models, the rest space-filling in log space."""
    chosen = dict.fromkeys(_laid_out(shape, rng) for shape in _model_shapes(round(wanted * MODEL_SHARE), rng))
    for i, point in enumerate(additive_recurrence(len(SIZES), rng.random(len(SIZES)))):
        if len(chosen) >= wanted:
            break
        sizes = {name: between(u, *SIZES[name]) for name, u in zip(SIZES, point, strict=True)}
        shape = _laid_out(_shape(sizes, rounded=i % 2 == 1), rng)
        if FLOPS[0] <= shape.flops <= FLOPS[1]:
            chosen[shape] = None
    return list(chosen)


def _model_shapes(wanted: int, rng: np.random.Generator) -> list[Shape]:
    """Shapes of real models, evenly spread over the work within `FLOPS`."""
    shapes = [Shape(sizes["m"], sizes["n"], sizes["k"]) for sizes in get_family("gemm").model_shapes]
    fitting = sorted((shape for shape in shapes if FLOPS[0] <= shape.flops <= FLOPS[1]), key=lambda shape: shape.flops)
    parts = np.array_split(np.arange(len(fitting)), min(wanted, len(fitting)) or 1)
    return [fitting[rng.choice(part)] for part in parts][:wanted]


def _shape(sizes: Mapping[str, int], *, rounded: bool) -> Shape:
    m, n, k = (aligned(sizes[name], ALIGNMENT) if rounded else sizes[name] for name in SIZES)
    return Shape(m, n, k)


def _laid_out(shape: Shape, rng: np.random.Generator) -> Shape:
    """The shape under a drawn operand layout; in a batch of several where that is the layout and not too much work."""
    weights = np.array([*VARIANTS.values()], dtype=float)
    variant = str(rng.choice([*VARIANTS], p=weights / weights.sum()))
    laid_out = replace(shape, variant=variant, batch=int(rng.choice(_BATCHES)) if variant == "batched" else 1)
    return laid_out if laid_out.flops <= FLOPS[1] else shape


def _configs(shape: Shape, wanted: int, rng: np.random.Generator) -> list[Config]:
    """Different legal configurations, evenly spread over the knobs."""
    configs: dict[tuple[tuple[str, int], ...], Config] = {}
    points = additive_recurrence(7, rng.random(7))
    for point in itertools.islice(points, 200 * (wanted + 1)):
        if len(configs) == wanted:
            break
        config = _config(shape, iter(point.tolist()))
        if is_sensible(shape, config):
            configs[tuple(config.items())] = config
    if len(configs) < wanted:
        raise ValueError(f"{shape} has only {len(configs)} different tile configurations, not {wanted}")
    return list(configs.values())


def _config(shape: Shape, u: Iterator[float]) -> Config:
    """The configuration at one point of the unit cube; sizes beyond the shape are cut, they would change nothing."""
    inner_m = drawn_within(_INNER_M, next(u), shape.m)
    inner_n = drawn_within(_INNER_N, next(u), shape.n)
    inner_k = drawn_within(_INNER_K, next(u), shape.k)
    config = {
        "tile_m": multiple(inner_m, next(u), _TILE_M, shape.m),
        "tile_n": multiple(inner_n, next(u), _TILE_N, shape.n),
        "inner_m": inner_m,
        "inner_n": inner_n,
        "inner_k": inner_k,
    }
    with_tile_k, where = next(u) < _TILE_K_SHARE, next(u)
    tile_k = multiple(inner_k, where, _TILE_K, shape.k)
    if with_tile_k and tile_k < shape.k and config["tile_m"] * config["tile_n"] <= MAX_FILLED:
        config["tile_k"] = tile_k
    return config


def is_sensible(shape: Shape, config: Mapping[str, int]) -> bool:
    """Whether a configuration compiles in about a second and runs within some tens of times the best."""
    sizes = {"batch": shape.batch, "m": shape.m, "n": shape.n, "k": shape.k}
    return bool(sensible(sizes, {name: np.array([config.get(name, 0)]) for name in TILES})[0])


def drawn_within(weights: Mapping[int, int], u: float, size: int) -> int:
    """The choice at quantile `u` of those no larger than `size`, or the smallest of all."""
    possible = {choice: weight for choice, weight in weights.items() if choice <= size}
    return drawn(possible or {min(weights): 1}, u)


def multiple(inner: int, u: float, bounds: tuple[int, int], size: int) -> int:
    """A multiple of `inner` near quantile `u` of `bounds` (log-uniform), not beyond the first that covers `size`."""
    covering = -(-size // inner)
    low, high = max(1, -(-bounds[0] // inner)), max(1, min(bounds[1] // inner, covering))
    return inner * between(u, min(low, high), high)
