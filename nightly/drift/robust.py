"""Medians, scales and exact intervals that one wild number does not move; missing numbers are NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...features.cases import Floats

_TO_DEVIATION = 1.4826
"""Median absolute deviation to standard deviation, for a normal law."""

_OUTER, _OUTER_DEVIATIONS = 0.8, 1.2816
"""A share of distances, and the deviations of a normal law it lies within."""


def median(values: Floats, axis: int) -> Floats:
    """Median along `axis` over the numbers there are, NaN where there are none; much faster than `numpy.nanmedian`."""
    ordered = np.sort(np.moveaxis(np.asarray(values, dtype=np.float64), axis, -1), axis=-1)
    if not ordered.shape[-1]:
        return np.full(ordered.shape[:-1], np.nan)
    known = np.count_nonzero(~np.isnan(ordered), axis=-1)
    at = np.maximum(np.stack([(known - 1) // 2, known // 2], axis=-1), 0)
    middle: Floats = np.take_along_axis(ordered, at, axis=-1).mean(axis=-1)
    return middle


def spread(values: Floats, axis: int, centre: Floats | None = None) -> Floats:
    """Robust standard deviation along `axis`: 1.4826 times the median distance from `centre`, by default the median."""
    around = median(values, axis) if centre is None else centre
    return _TO_DEVIATION * median(np.abs(values - np.expand_dims(around, axis)), axis)


def side_spread(values: Floats, axis: int, upper: bool) -> Floats:
    """Standard deviation around zero of the values on one side of it: times are skewed, and a long tail is no drift.

    From the 80th of 100 distances: a case that runs at one of two speeds has a scatter of their difference, even where most
    of its readings are of one.
    """
    side = np.abs(np.where(values >= 0.0 if upper else values <= 0.0, values, np.nan))
    ordered = np.sort(np.moveaxis(side, axis, -1), axis=-1)
    known = np.count_nonzero(~np.isnan(ordered), axis=-1)
    at = np.maximum(np.ceil(_OUTER * known).astype(np.intp) - 1, 0)
    found: Floats = np.take_along_axis(ordered, at[..., None], axis=-1)[..., 0] / _OUTER_DEVIATIONS
    return found


def step_spread(values: Floats, axis: int) -> Floats:
    """Robust standard deviation from the steps between neighbours, which a lasting shift or a slow creep hardly moves."""
    steps = np.abs(np.diff(values, axis=axis))
    return _TO_DEVIATION / math.sqrt(2.0) * median(steps, axis)


def weighted_median(values: Floats, weights: Floats) -> Floats:
    """Weighted median along the last axis, the weights of missing values left out; NaN where nothing is known."""
    order = np.argsort(values, axis=-1)
    heavy = np.where(np.isnan(values), 0.0, weights)
    summed = np.cumsum(np.take_along_axis(heavy, order, axis=-1), axis=-1)
    at = np.argmax(summed >= summed[..., -1:] / 2, axis=-1)
    found: Floats = np.take_along_axis(np.take_along_axis(values, order, axis=-1), at[..., None], axis=-1)[..., 0]
    return found


def median_interval(values: Floats, level: float) -> tuple[float, float] | None:
    """Interval of the median that contains it with at least `level`, whatever the law; None where `values` are too few.

    Between the j-th smallest and the j-th largest value, with the largest j that `level` allows: the number of values below
    the median is binomial (the sign test's interval; Gibbons and Chakraborti, "Nonparametric Statistical Inference", 5.2).
    """
    n = len(values)
    tail, j = 0.0, 0
    while j < n // 2 + n % 2:
        tail += math.exp(math.lgamma(n + 1) - math.lgamma(j + 1) - math.lgamma(n - j + 1) - n * math.log(2.0))
        if 2.0 * tail > 1.0 - level:
            break
        j += 1
    if j == 0:
        return None
    ordered = np.sort(values)
    return float(ordered[j - 1]), float(ordered[n - j])


def share_interval(hits: int, n: int, level: float) -> tuple[float, float]:
    """Exact interval of a share after `hits` of `n` (Clopper and Pearson, Biometrika 26, 1934); (0, 1) for `n` of 0."""
    # Not scipy.stats, which takes seconds to import, for the same function.
    from scipy.special import betaincinv

    tail = (1.0 - level) / 2.0
    low = float(betaincinv(hits, n - hits + 1, tail)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, n - hits, 1.0 - tail)) if hits < n else 1.0
    return low, high


def bootstrap_median(values: Floats, level: float, seed: int, rounds: int = 1000) -> tuple[float, float]:
    """Percentile bootstrap interval of the median of at least one value."""
    rng = np.random.default_rng(seed)
    drawn = np.median(values[rng.integers(0, len(values), (rounds, len(values)))], axis=1)
    low, high = np.quantile(drawn, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm, Scandinavian Journal of Statistics 6, 1979), in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    found, largest = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        found[i] = largest
    return found


def plain(value: Any) -> float | None:
    """A number for JSON: None where it is none."""
    return float(value) if value is not None and math.isfinite(value) else None


def percent(log_ratio: float) -> float:
    """A difference of ln as percent: 0.01 is 1.005 %."""
    return 100.0 * math.expm1(log_ratio)
