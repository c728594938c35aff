"""Products unlike the measured ones: of sizes that divide by other powers of two, and of a matrix with a vector.

Libraries run those with a vector without tiles, as a sum along each row, so that sizes next to them (n = 64) say little of
n = 1: fp32 products with one column (KernelBench, seven GPUs) were said to take 1.8 to 3.3 times as long as they do. On GPUs
where none was measured memory bounds how long they take from above, too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from ...features.batch.cases import Cases, Floats
from ...features.batch.category import CaseCategory, place_label
from ...features.cost.bounds import Work
from ...features.vector.extract import Features
from .device_transfer import STREAM_SHARES

ALIGNMENTS = ("least alignment", "most alignment")
"""What `domain.largest_sizes` calls the alignments between which products were measured."""

COMMON = (0.01, 0.99)
"""Between these quantiles lies the alignment of what was measured."""

_MOST_ALIGNED = 64.0
_MOST_LEVEL = np.log2(_MOST_ALIGNED)
_STEPS_PER_LEVEL = 1.0 / 3.0
"""Steps outside the domain for every power of two. NeuSight's training rows have odd sizes; those of its second campaign, which
mostly divide by 64, err by 7 to 9 % where held-out odd ones err by 5 %. How much of that is the campaign's they do not tell."""

SIDES = ("m", "n")
"""The sizes of which one is 1 in a product with a vector."""

_OVERHEAD_S = 25e-6
"""Time beside the traffic: nine in ten of 1,929 measured ones of less than 50 us, of seven labs, need no more."""

_LOG_ERROR_SIZE = math.log(0.15)
"""Ln of the size of the errors of those that the traffic bounds: of KernelBench's 14, half err by less."""


def vector_labels(cases: Cases) -> tuple[str, ...]:
    """Along which side, where, in which dtype and by which impl products with a vector are among the cases, sorted
    (`n nvidia-v100-pcie-16gb fp16 torch`).
    """
    if not _has_products(cases):
        return ()
    labels = cases.categories.labels(lambda category: f"{category.device} {category.dtype} {category.impl}")
    return tuple(
        f"{side} {labels.words[code]}"
        for side in SIDES
        for code in np.unique(labels.code[cases.sizes[side] == 1]).tolist()
    )


def unknown_sides(category: CaseCategory, impl: str, measured: Collection[str] | None) -> tuple[bool, bool]:
    """Whether products with a vector along each of `SIDES` were never measured on a category's GPU, where it is read as `impl`.

    `measured` are the `vector_labels` of training, None where it did not look.
    """
    if measured is None or category.threads is not None:
        return False, False
    m, n = (f"{side} {category.device} {category.dtype} {impl}" not in measured for side in SIDES)
    return m, n


def unknown_vectors(cases: Cases, unknown: Any) -> Any:
    """Which cases are products with a vector where none was measured, shape `(n,)`, None where none is; `unknown` of shape
    `(2, n)` or `(2, 1)`.
    """
    # Asked of every single prediction, where each operation costs a microsecond.
    if not unknown.any() or not _has_products(cases):
        return None
    m, n = unknown
    rows = (cases.sizes["m"] == 1) & (m > 0) | (cases.sizes["n"] == 1) & (n > 0)
    return rows if rows.any() else None


def bound_by_streams(log_latency: Floats, log_error: Floats, work: Work, rows: Any) -> None:
    """Keep `rows` below what their bytes take at the least rate of a stream, in place: ln(s) and ln of the size of errors."""
    traffic_s = np.maximum(work.bounds_s["dram"], work.bounds_s["cache"]) / STREAM_SHARES[0]
    limit = np.log(_OVERHEAD_S + traffic_s)
    bounded = rows & (log_latency > limit)
    log_latency[bounded] = limit[bounded]
    log_error[bounded] = np.minimum(log_error[bounded], _LOG_ERROR_SIZE)


def _has_products(cases: Cases) -> bool:
    return "m" in cases.sizes and "n" in cases.sizes and "k" in cases.sizes


def alignment(sizes: Mapping[str, Floats]) -> Floats | None:
    """log2 of the largest power of two, up to `_MOST_ALIGNED`, that divides both sizes along which a product's operands lie in
    memory, shape `(n,)`: libraries choose kernels by it. None where there are no such sizes.
    """
    if "n" not in sizes or "k" not in sizes:
        return None
    both = sizes["n"].astype(np.int64) | sizes["k"].astype(np.int64) | int(_MOST_ALIGNED)
    levels: Floats = np.log2(both & -both)
    return levels


def alignment_limits(category: CaseCategory, largest: Mapping[str, Mapping[str, float]]) -> tuple[float, float]:
    """The alignments between which measured products lie where a category runs, of `domain.Largest`; any where none was."""
    there = largest.get(place_label(category), {})
    least, most = ALIGNMENTS
    return there.get(least, 0.0), there.get(most, np.inf)


def alignment_excess(features: Features, least: Floats, most: Floats) -> Floats | float:
    """How many steps outside the domain the alignment of each case is, shape `(n,)`."""
    names, wanted = features.schema.sized_names, ("alignment n", "alignment k")
    if not all(name in names for name in wanted):
        return 0.0
    n, k = features.sized[[names.index(name) for name in wanted]]
    levels = np.minimum(np.minimum(n, k), _MOST_LEVEL)
    excess: Floats = _STEPS_PER_LEVEL * np.maximum(np.maximum(levels - most, least - levels), 0.0)
    return excess
