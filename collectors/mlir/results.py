"""What a module computed, in little: a seeded sample of its floating-point results, for comparing runs and compilers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .operands import Array

SAMPLED = 64
"""Elements kept of each result."""

ALLOWED_ERROR = 0.1
"""Largest ‖a − b‖ / ‖b‖ (over the sampled elements) between two compilers' results. Loose on purpose: both may reorder sums and
use their own approximations of exp or tanh, in formats as coarse as bfloat16; a wrong result is off by its whole size."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Sampled elements of every floating-point result, in order, and whether all elements of all results are finite."""

    values: tuple[float, ...]
    finite: bool


def sample(results: Sequence[Array]) -> Sample:
    """Up to `SAMPLED` elements of each floating-point result, at places that depend on its size alone.

    Integers and truth values are left out: rounding decides ties, so two right programs may differ in them entirely.
    """
    values: list[float] = []
    finite = True
    for result in results:
        if not np.issubdtype(result.dtype, np.floating):
            continue
        flat = result.reshape(-1)
        finite = finite and bool(np.isfinite(flat).all())
        places = np.arange(flat.size)
        if flat.size > SAMPLED:
            places = np.sort(np.random.default_rng(flat.size).choice(flat.size, SAMPLED, replace=False))
        values += flat[places].astype(np.float64).tolist()
    return Sample(tuple(values), finite)


def relative_error(got: Sequence[float], wanted: Sequence[float]) -> float | None:
    """‖got − wanted‖ / ‖wanted‖ over the elements that are finite in both; infinite where the counts differ.

    None where nothing can be compared: no element is finite in both, or all wanted ones are 0 and the others as well.
    """
    if len(got) != len(wanted):
        return float("inf")
    a, b = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    both = np.isfinite(a) & np.isfinite(b)
    difference, size = float(np.linalg.norm(a[both] - b[both])), float(np.linalg.norm(b[both]))
    if size == 0.0:
        return float("inf") if difference > 0.0 else None
    return difference / size
