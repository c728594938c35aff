"""What measuring a case would teach of all the others: the greedy choice by expected lowering of variance.

A Gaussian process knows before anything is measured how far each measurement would lower its variance everywhere (active
learning after Cohn: "Neural network exploration using optimal experiment design", 1996). Taking the best case again and again
is near the best choice there is (Krause, Singh and Guestrin, "Near-optimal sensor placements in Gaussian processes", 2008),
and keeps cases of one batch apart by itself: what one has taught, its neighbours cannot teach again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..features.cases import Floats


class Gains:
    """The gain of measuring each of `n` cases, kept up to date while cases are taken.

    The covariance between the cases is `places @ spread @ places.T`; `places` None stands for the identity, so that `spread`
    is the covariance itself. Every update costs products of `n` by `r`, never of `n` by `n`.
    """

    def __init__(
        self, spread: Floats, noise: Floats, *, places: Floats | None = None, weights: Floats | None = None
    ) -> None:
        """What is known before the choice.

        Args:
            spread: covariance of the weights of `places`, shape `(r, r)`.
            noise: standard deviation of a measurement of each case, shape `(n,)`.
            places: where the cases lie, shape `(n, r)`; None: each case is a direction of its own.
            weights: how much the variance of each case matters, shape `(n,)`; None: all alike, adding up to 1.
        """
        n = len(noise)
        self._spread, self._places, self._noise2 = spread.copy(), places, noise**2
        self._weights = np.full(n, 1.0 / n) if weights is None else weights
        self._matters = None if places is None else places.T @ (self._weights[:, None] * places)
        across = self._at(self._spread)
        self.variance: Floats = np.diag(across).copy() if places is None else (across * places).sum(axis=1)
        # Of each case the weighted sum of its squared covariances with all.
        columns = self._spread if places is None else across.T
        moved = self._weighed(columns)
        self._sums: Floats = (columns * moved).sum(axis=0)

    def gain(self) -> Floats:
        """By how much measuring each case lowers the weighted sum of variances, shape `(n,)`."""
        found: Floats = self._sums / (self.variance + self._noise2)
        return found

    def left(self) -> float:
        """The weighted sum of variances that is left."""
        return float(self._weights @ self.variance)

    def take(self, chosen: Sequence[int]) -> None:
        """Count the cases at `chosen` as measured."""
        index = np.asarray(chosen, dtype=np.intp)
        columns = self._spread[:, index] if self._places is None else self._spread @ self._places[index].T
        own = columns[index] if self._places is None else self._places[index] @ columns
        factor = np.linalg.cholesky(own + np.diag(self._noise2[index]))
        columns = np.linalg.solve(factor, columns.T).T
        moved = self._weighed(columns)
        lowered, across = self._at(columns), self._at(self._spread @ moved)
        inner = columns.T @ moved
        change = ((lowered @ inner) * lowered).sum(axis=1) - 2.0 * (lowered * across).sum(axis=1)
        self._sums = np.maximum(self._sums + change, 0.0)
        self.variance = np.maximum(self.variance - (lowered**2).sum(axis=1), 0.0)
        self._spread -= columns @ columns.T

    def _at(self, columns: Floats) -> Floats:
        return columns if self._places is None else self._places @ columns

    def _weighed(self, columns: Floats) -> Floats:
        """The product of the weighted sum of squares of the cases' places with `columns`."""
        return self._weights[:, None] * columns if self._matters is None else self._matters @ columns
