"""Do two samples follow one law? Exact p-values, and how far apart they are, which is another question."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ...features.cases import Floats

MOST_ROWS = 2000
"""Rows of either side that a p-value is worked out from: beyond, how far apart they are is all that counts."""

_BINS = 10


def largest_gap(one: Floats, other: Floats) -> float:
    """The largest difference of the two distribution functions (Kolmogorov-Smirnov D); 0 to 1, ties allowed."""
    places = np.concatenate([one, other])
    below = [np.searchsorted(np.sort(side), places, side="right") / len(side) for side in (one, other)]
    return float(np.abs(below[0] - below[1]).max())


def ks_p_value(one: Floats, other: Floats, seed: int) -> float:
    """Exact p-value of the two-sample Kolmogorov-Smirnov test, of equally many values drawn from either side.

    P(n D >= h) = 2 sum over j >= 1 of (-1)^(j+1) C(2n, n - jh) / C(2n, n) (Gnedenko and Korolyuk, 1951). With ties the true
    probability is smaller.
    """
    rng = np.random.default_rng(seed)
    n = min(len(one), len(other), MOST_ROWS)
    drawn = [side if len(side) == n else side[rng.permutation(len(side))[:n]] for side in (one, other)]
    steps = round(largest_gap(drawn[0], drawn[1]) * n)
    if steps == 0:
        return 1.0
    total = sum(
        (-1.0) ** (j + 1)
        * math.exp(2 * math.lgamma(n + 1) - math.lgamma(n - j * steps + 1) - math.lgamma(n + j * steps + 1))
        for j in range(1, n // steps + 1)
    )
    return min(max(2.0 * total, 0.0), 1.0)


def population_stability(one: Floats, other: Floats) -> float:
    """Population stability index of `other` against `one` over the tenths of `one`; half a value is added to every bin.

    Sum of (b - a) ln(b / a) over bins with shares a and b; by custom below 0.1 is no change and above 0.25 a large one.
    """
    edges = np.unique(np.quantile(one, np.arange(1, _BINS) / _BINS))
    counts = [np.bincount(np.searchsorted(edges, side, side="left"), minlength=len(edges) + 1) for side in (one, other)]
    return stability_of_counts(counts[0], counts[1])


def stability_of_counts(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """The same from counts by category."""
    a, b = (np.asarray(side, dtype=np.float64) + 0.5 for side in (one, other))
    a, b = a / a.sum(), b / b.sum()
    return float(np.sum((b - a) * np.log(b / a)))


def share_p_value(one: tuple[int, int], other: tuple[int, int]) -> float:
    """Fisher's exact p-value, two-sided, of two shares given as (hits, of how many)."""
    from scipy.stats import fisher_exact

    table = [[one[0], one[1] - one[0]], [other[0], other[1] - other[0]]]
    return float(fisher_exact(table).pvalue)
