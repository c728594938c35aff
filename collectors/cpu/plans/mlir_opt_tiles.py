"""Which tiled matrix products a campaign of the `mlir-opt` runner measures: shapes × tiles of the kind mlir-opt-tiles.

Half of the tiles are drawn from everything, since which are poor is what a model has to learn: the slowest takes hundreds of
times as long as the fastest, and shapes are small enough for the slowest. The other half is drawn where the fast ones mostly
are, to tell them apart.
"""

from __future__ import annotations

import math

import numpy as np

from ....features.kernel import KernelSpec, get_family
from ....features.tuning.kind import Candidates, Task
from ....features.tuning.kinds.mlir_opt_tiles import KIND
from .iree_gemm_tiles import aligned, between
from .shapes import additive_recurrence

FLOPS = (5e5, 6e7)
"""Least and most work of a shape: some µs at the usual best rate, and 0.2 s at the usual worst."""

SIZES = {"m": (4, 768), "n": (16, 1024), "k": (16, 1024)}
"""Range of each size of a space-filling shape, inclusive."""

_PUBLISHED_SHARE = 0.2
"""Share of shapes that are products of published models."""

_LIKELY_SHARE = 0.5
_LIKELY_M, _LIKELY_N, _LIKELY_K = (4, 64), (32, 64), (1, 8)
"""Where the fastest tiles mostly are, inclusive: on Zen 5, LLVM keeps the results of these in registers."""

_VARIANTS = ("", "nt", "", "", "tn", "", "batched", "", "", "nt")
_BATCHES = (4, 12)

Shape = tuple[int, int, int]


def mlir_tiles_plan(n_shapes: int, n_configs: int, seed: int, device: str) -> list[KernelSpec]:
    """`n_shapes` products, each untiled and with `n_configs` different tiles; fp32, one thread, hot, in random order.

    Equal arguments give equal plans.

    Raises:
        ValueError: a shape has fewer different tiles.
    """
    rng = np.random.default_rng(seed)
    specs = []
    for i, (m, n, k) in enumerate(_shapes(n_shapes, rng)):
        variant = _VARIANTS[i % len(_VARIANTS)]
        batch = _BATCHES[i % len(_BATCHES)] if variant == "batched" else 1
        # Several products of this size would be too much work.
        m = max(1, m // batch)
        layout = {"a_transposed": int(variant == "tn"), "b_transposed": int(variant == "nt")}
        task = Task(KIND.name, {"batch": batch, "m": m, "n": n, "k": k, **layout}, "fp32", device)
        space = KIND.space(task)
        if len(space) <= n_configs:
            raise ValueError(f"{m}x{n}x{k} has only {len(space) - 1} different tiles, not {n_configs}")
        result = (KIND.spec_of(task, space.config(row)) for row in _rows(space, n_configs, rng))
        specs += [spec for spec in result if spec is not None]
    return [specs[i] for i in rng.permutation(len(specs))]


def _rows(space: Candidates, wanted: int, rng: np.random.Generator) -> list[int]:
    """Rows of a space: the first, which is the untiled product, and `wanted` others."""
    inside = np.ones(len(space), dtype=np.bool_)
    for knob, (low, high) in zip(KIND.knobs, (_LIKELY_M, _LIKELY_N, _LIKELY_K), strict=True):
        inside &= (space.knobs[knob] >= low) & (space.knobs[knob] <= high)
    likely = rng.permutation(np.flatnonzero(inside))[: round(wanted * _LIKELY_SHARE)]
    others = rng.permutation(np.setdiff1d(np.arange(1, len(space)), likely))[: wanted - len(likely)]
    return [0, *likely.tolist(), *others.tolist()]


def _shapes(wanted: int, rng: np.random.Generator) -> list[Shape]:
    """Different shapes within `FLOPS`; every second space-filling one has sizes as people choose them."""
    models = [(sizes["m"], sizes["n"], sizes["k"]) for sizes in get_family("gemm").model_shapes]
    fitting = [shape for shape in models if _fits(shape)]
    chosen = dict.fromkeys(fitting[i] for i in rng.permutation(len(fitting))[: round(wanted * _PUBLISHED_SHARE)])
    for i, point in enumerate(additive_recurrence(len(SIZES), rng.random(len(SIZES)))):
        if len(chosen) >= wanted:
            break
        m, n, k = (between(u, *bounds) for u, bounds in zip(point, SIZES.values(), strict=True))
        shape = (aligned(m), aligned(n), aligned(k)) if i % 2 else (m, n, k)
        if _fits(shape):
            chosen[shape] = None
    # So that every variant meets shapes of both kinds.
    shapes = list(chosen)
    return [shapes[i] for i in rng.permutation(len(shapes))]


def _fits(shape: Shape) -> bool:
    return FLOPS[0] <= 2.0 * math.prod(shape) <= FLOPS[1]
