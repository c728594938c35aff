"""Whether paired errors differ beyond noise: a bootstrap over clusters, and what many tests at once do to chance.

Rows of one shape rise and fall together, so shapes are drawn, not rows (the cluster bootstrap: Davison and Hinkley, "Bootstrap
Methods and their Application", 1997, section 3.8). Percentiles of few clusters are too narrow; they are widened by the ratio of
Student's quantile to the normal one and by sqrt(C / (C - 1)) (Hesterberg, "What Teachers Should Know About the Bootstrap", The
American Statistician 69, 2015), and the p-value is never below that of the clustered t test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...features.batch.cases import Floats

_LEVEL = 0.9
"""Of the two-sided interval."""

_PIECE = 2_000_000
"""Most weights held at a time: 16 MB."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean of paired differences, and how certain it is.

    Attributes:
        mean: The mean difference.
        low: Lower end of its two-sided 90 % interval.
        high: Upper end of it.
        p_above: One-sided p-value of the hypothesis that the mean is not above the tolerance.
        p_below: One-sided p-value of the hypothesis that the mean is not below zero.
        clusters: Number of clusters.
    """

    mean: float
    low: float
    high: float
    p_above: float
    p_below: float
    clusters: int


def difference(
    values: Floats,
    clusters: npt.NDArray[np.uint64],
    *,
    tolerance: float = 0.0,
    resamples: int = 4999,
    seed: int = 0,
) -> Difference:
    """The mean of paired differences and how sure it is.

    Args:
        values: one difference a row, shape `(n,)`, finite.
        clusters: which rows belong together, shape `(n,)`.
        tolerance: by how much the mean may be above zero without counting as above.
        resamples: draws of as many clusters as there are.
        seed: of the draws; equal arguments give equal answers.
    """
    from scipy.stats import norm, t

    _, which = np.unique(clusters, return_inverse=True)
    count = int(which.max()) + 1
    sums = np.bincount(which, values).astype(np.float64)
    sizes = np.bincount(which).astype(np.float64)
    mean = float(sums.sum() / sizes.sum())
    if count < 2:
        return Difference(mean, -math.inf, math.inf, 1.0, 1.0, count)
    error = math.sqrt(count / (count - 1) * float(((sums - mean * sizes) ** 2).sum())) / float(sizes.sum())
    drawn = _means(sums, sizes, resamples, seed)
    tail = (1.0 - _LEVEL) / 2.0
    wider = float(t.isf(tail, count - 1) / norm.isf(tail)) * math.sqrt(count / (count - 1))
    low, high = (mean + wider * (float(np.quantile(drawn, q)) - mean) for q in (tail, 1.0 - tail))

    def p_value(gap: float, beyond: int) -> float:
        if error == 0.0:
            return 0.0 if gap > 0 else 1.0
        return max((1 + beyond) / (resamples + 1), float(t.sf(gap / error, count - 1)))

    return Difference(mean, low, high, p_value(mean - tolerance, int((drawn <= tolerance).sum())),
                      p_value(-mean, int((drawn >= 0.0).sum())), count)  # fmt: skip


def resamples_for(tests: int, alpha: float, least: int = 4999) -> int:
    """Draws enough for the smallest p-value to pass Holm's first step by a factor of four; fewer could never reject."""
    return max(least, math.ceil(4 * tests / alpha))


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Which hypotheses are rejected when all rejections together may be wrong with probability `alpha`.

    Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian Journal of Statistics 6, 1979. It needs no
    independence: slices share rows.
    """
    rejected = [False] * len(p_values)
    for step, place in enumerate(np.argsort(p_values, kind="stable").tolist()):
        if p_values[place] > alpha / (len(p_values) - step):
            break
        rejected[place] = True
    return rejected


def _means(sums: Floats, sizes: Floats, resamples: int, seed: int) -> Floats:
    """Means of `resamples` draws of as many clusters as there are, shape `(resamples,)`."""
    rng, count = np.random.default_rng(seed), len(sums)
    each = np.full(count, 1.0 / count)
    step = max(1, _PIECE // count)
    parts = []
    for start in range(0, resamples, step):
        weights = rng.multinomial(count, each, size=min(step, resamples - start)).astype(np.float64)
        parts.append((weights @ sums) / (weights @ sizes))
    return np.concatenate(parts)
