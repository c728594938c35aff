"""Which CUTLASS products a GPU campaign measures: shapes × the tile configurations that CUTLASS's own profiler offers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ....features.kernel import KernelSpec
from ...cpu.plans.shapes import MODEL_SHARE, aligned
from .model_shapes import MODEL_SHAPES
from .sweeps import recurrence


@dataclass(frozen=True, slots=True)
class Tiles:
    """A CUTLASS configuration; tiles in elements.

    Attributes:
        tile_m: Rows of a block's tile.
        tile_n: Columns of a block's tile.
        tile_k: Depth of one step for 16-bit elements.
        inner_m: Rows of a warp's tile.
        inner_n: Columns of a warp's tile.
        stages: Pipeline stages.
        group_m: The threadblock swizzle.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    inner_m: int
    inner_n: int
    stages: int
    group_m: int = 1

    def config(self, dtype: str, split_k: int) -> dict[str, int]:
        """The knobs of a case; 4-byte elements get half the depth, so that stages keep their bytes."""
        config = {name: getattr(self, name) for name in self.__slots__}
        config["tile_k"] //= 2 if dtype == "tf32" else 1
        config["warps"] = self.tile_m // self.inner_m * (self.tile_n // self.inner_n)
        return config | {"split_k": split_k}


# The tensor-core tiles that CUTLASS instantiates for sm80 (python/cutlass_library/generator.py, GenerateSM80_TensorOp_16816),
# and three poor ones: two stages, one warp, sixteen small warps.
TILES = (
    Tiles(256, 128, 32, 64, 64, 3), Tiles(128, 256, 64, 64, 64, 3, 8), Tiles(256, 64, 32, 64, 64, 4),
    Tiles(64, 256, 32, 64, 64, 4), Tiles(128, 128, 32, 64, 64, 4), Tiles(128, 128, 64, 64, 64, 3, 8),
    Tiles(128, 64, 64, 64, 32, 3), Tiles(64, 128, 64, 32, 64, 4), Tiles(64, 64, 64, 32, 32, 5),
    Tiles(128, 32, 64, 32, 32, 4), Tiles(32, 128, 64, 32, 32, 4, 8), Tiles(16, 128, 64, 16, 32, 4),
    Tiles(64, 64, 32, 32, 32, 2), Tiles(64, 64, 32, 64, 64, 3), Tiles(128, 128, 32, 32, 32, 2),
)  # fmt: skip

DTYPES = {"bf16": 0.5, "fp16": 0.25, "tf32": 0.25}

CONFIGS_PER_SHAPE = 6
COLD_SHARE = 0.15

ALIGNMENT = 8
"""n and k are multiples of this: 16 bytes of 16-bit elements."""

SIZES = {"m": (1, 8192), "n": (16, 16384), "k": (16, 16384)}
MAX_FLOPS = 2e12
"""The worst configurations reach some 100 TFLOP/s, so 20 ms."""

MAX_OPERANDS = 1e9

# A card has 132 units; with fewer blocks than that, cutting k is worth a try.
_FEW_BLOCKS = 132
_LEAST_SPLIT_K = 1024
_SPLITS = (2, 4, 8)
_SPLIT_SHARE = 0.5


def cutlass_gpu_plan(n_rows: int, seed: int | Sequence[int]) -> list[KernelSpec]:
    """`n_rows` different CUTLASS products in random order; equal arguments give equal plans.

    Every shape is measured in one dtype with `CONFIGS_PER_SHAPE` configurations, since a model that ranks
    configurations must see them on equal shapes.
    """
    rng = np.random.default_rng(seed)
    specs: dict[KernelSpec, None] = {}
    shapes = _shapes(n_rows, rng)
    while len(specs) < n_rows:
        m, n, k = next(shapes)
        dtype = str(rng.choice(list(DTYPES), p=list(DTYPES.values())))
        cache_state = "cold" if rng.random() < COLD_SHARE else "hot"
        for i in rng.permutation(len(TILES))[:CONFIGS_PER_SHAPE]:
            config = TILES[i].config(dtype, _split_k(TILES[i], m, n, k, rng))
            spec = KernelSpec.of("gemm", dtype, impl="cutlass", config=config, cache_state=cache_state, m=m, n=n, k=k)
            specs[spec] = None
    chosen = list(specs)[:n_rows]
    return [chosen[i] for i in rng.permutation(len(chosen))]


def _shapes(n_rows: int, rng: np.random.Generator) -> Iterator[tuple[int, int, int]]:
    """Shapes without end: models' and space-filling ones in the ratio `MODEL_SHARE`, m as it comes, n and k aligned."""
    models = [(s["m"], s["n"], s["k"]) for s in MODEL_SHAPES["gemm"] if s["batch"] == 1]
    models = [mnk for mnk in models if mnk[1] % ALIGNMENT == mnk[2] % ALIGNMENT == 0 and _fits(*mnk)]
    bounds = np.log(np.array(list(SIZES.values()), dtype=np.float64))
    while True:
        for point in recurrence(n_rows, len(SIZES), rng):
            m, n, k = (round(size) for size in np.exp(bounds[:, 0] + point * (bounds[:, 1] - bounds[:, 0])))
            n, k = aligned(n, ALIGNMENT), aligned(k, ALIGNMENT)
            if rng.random() < MODEL_SHARE:
                yield models[rng.integers(len(models))]
            elif _fits(m, n, k):
                yield m, n, k


def _fits(m: int, n: int, k: int) -> bool:
    return 2.0 * m * n * k <= MAX_FLOPS and float(m) * k + float(k) * n + float(m) * n <= MAX_OPERANDS


def _split_k(tiles: Tiles, m: int, n: int, k: int, rng: np.random.Generator) -> int:
    blocks = -(-m // tiles.tile_m) * -(-n // tiles.tile_n)
    worth = blocks < _FEW_BLOCKS and k >= _LEAST_SPLIT_K and rng.random() < _SPLIT_SHARE
    return int(rng.choice(_SPLITS)) if worth else 1
