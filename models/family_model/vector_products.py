"""Products of a matrix with a vector, on GPUs where none was measured: memory bounds how long they take from above, too.

Libraries run them without tiles, as a sum along each row, so that sizes next to them (n = 64) say little of n = 1: fp32
products with one column (KernelBench, seven GPUs) were said to take 1.8 to 3.3 times as long as they do.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from ...features.batch.cases import Cases, Floats
from ...features.batch.category import CaseCategory
from ...features.cost.bounds import Work
from .device_transfer import STREAM_SHARES

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
