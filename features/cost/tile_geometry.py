"""What a kernel's own tile knobs make of its sizes: blocks over the device, steps through the inner dimension, storage.

A regression tree cannot multiply; whether a configuration leaves a device half empty or its registers overfull is in
products of knobs and sizes, so these are features of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from ..batch.cases import Cases, Floats
from ..dtypes import itemsize_b
from .bounds import product_shapes

TILING_NAMES = (
    "log own waves", "own wave filling", "log own steps", "log own intensity", "log own sums per warp",
    "log own staged bytes", "log own staged over shared",
)  # fmt: skip
"""own waves: blocks over compute units; steps: tiles along the inner dimension that one block goes through; intensity:
multiply-adds per element loaded; sums per warp: results one warp keeps; staged: bytes of operand tiles in flight."""


def has_tiling(knobs: Collection[str]) -> bool:
    """Whether a set of knobs says how a product is cut into blocks."""
    return {"tile_m", "tile_n"} <= set(knobs)


def tiling_columns(cases: Cases, units: Floats, shared_b: Floats) -> Iterable[tuple[str, Floats]]:
    """Columns of `TILING_NAMES`, each of shape `(n,)`; NaN where a case has not the knobs.

    `units` are compute units and `shared_b` bytes of shared memory per unit, NaN where there is none. A kernel with a
    `tile_k` cuts its result into blocks of `tile_m` × `tile_n` and steps through k; one without (attention) cuts rows only
    and steps through columns, `tile_n` at a time.
    """
    shape_of = cases.family.blocked or cases.family.tiles
    assert shape_of is not None, "only called for families with tiles"  # noqa: S101
    batch, m, n, k = product_shapes(cases, shape_of)
    tile_m, tile_n, tile_k = _knob(cases, "tile_m"), _knob(cases, "tile_n"), _knob(cases, "tile_k")
    parts = np.nan_to_num(_knob(cases, "split_k"), nan=1.0)
    flat = "tile_k" in cases.family.config
    blocks = batch * np.ceil(m / tile_m) * (np.ceil(n / tile_n) * parts if flat else 1.0)
    steps = np.ceil(k / (tile_k * parts)) if flat else np.ceil(n / tile_n)
    depth = tile_k if flat else k
    stages = np.nan_to_num(_knob(cases, "stages"), nan=1.0)
    dtypes = cases.coded("dtype")
    itemsize = np.array([itemsize_b(dtype) for dtype in dtypes.words])[dtypes.code]
    staged = stages * depth * (tile_m + tile_n) * itemsize
    waves = blocks / units
    columns = (
        np.log2(waves), waves / np.ceil(waves), np.log2(steps), np.log2(tile_m * tile_n / (tile_m + tile_n)),
        np.log2(tile_m * tile_n / _knob(cases, "warps")), np.log2(staged), np.log2(staged / shared_b),
    )  # fmt: skip
    return zip(TILING_NAMES, columns, strict=True)


def _knob(cases: Cases, name: str) -> Floats:
    """A knob's column, NaN where it is not set or 0, or the family has none of that name."""
    column = cases.config.get(name)
    return np.full(len(cases), np.nan) if column is None else np.where(column > 0, column, np.nan)
