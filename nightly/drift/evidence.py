"""Evidence over nights that a model's intervals no longer hold, by betting; its false alarms are bounded by a proof.

Let x be the share of a night's judged rows outside their intervals, and m = 1 - coverage. While the model holds,
E[x | nights before] <= m, however the rows of one night depend on each other. Then L = 1 + b (x - m) with 0 <= b < 1/m is
positive with E[L | before] <= 1: a fair bet (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by
betting", JRSS B 86, 2024). The sum M = (M before + 1) L of bets begun at every night (a Shiryaev-Roberts e-detector: Shin,
Ramdas and Rinaldo, "E-detectors", NEJSDS 2, 2024) has E[M - nights] <= 0, so an alarm at M >= c comes on average after at
least c quiet nights, and within n quiet nights with probability at most n / c, by optional stopping and Markov's inequality.
An average over several b keeps both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...features.cases import Floats


@dataclass(frozen=True, slots=True)
class CoverageWatch:
    """How the evidence is gathered: `bets` are shares of the most that may be bet; all slices together have a false alarm
    within a year of nights with at most `per_year`, half of it for all rows together. A night with fewer than `least_rows`
    judged rows is passed over; that may not depend on what they show.
    """

    per_year: float = 0.05
    nights_per_year: int = 365
    bets: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.7, 0.9)
    least_rows: int = 5

    def limit(self, slices: int, overall: bool) -> float:
        """The evidence at which a slice alarms, among `slices` besides all rows together."""
        share = 0.5 if overall else 0.5 / max(slices, 1)
        return self.nights_per_year / (self.per_year * share)


def coverage_evidence(outside: Floats, coverage: float, watch: CoverageWatch) -> Floats:
    """Evidence after each night, shape of `outside`: `(..., nights)` shares of rows outside intervals of `coverage`.

    NaN, a night without enough rows, changes nothing and counts as no night.
    """
    missed = 1.0 - coverage
    bets = np.array(watch.bets) / missed
    gains = 1.0 + bets * (outside[..., None] - missed)
    sums = np.zeros((*outside.shape[:-1], len(bets)))
    found = np.zeros(outside.shape)
    for night in range(outside.shape[-1]):
        gain = gains[..., night, :]
        sums = np.where(np.isnan(gain), sums, (sums + 1.0) * gain)
        # Far beyond any limit, and far below what would overflow.
        sums = np.minimum(sums, _MOST)
        found[..., night] = sums.mean(axis=-1)
    return found


def likely_start(outside: Floats, coverage: float) -> int:
    """The night from which intervals stopped holding, given that they did: the least squares fit of one step up from what the
    coverage promises. `outside` of shape `(nights,)`, NaN for nights that said nothing; at least one said something.
    """
    known = np.flatnonzero(~np.isnan(outside))
    shares = outside[known]
    before = np.concatenate([[0.0], np.cumsum((shares - (1.0 - coverage)) ** 2)[:-1]])
    left = np.array([np.sum((shares[start:] - shares[start:].mean()) ** 2) for start in range(len(shares))])
    return int(known[np.argmin(before + left)])


_MOST = 1e12
