"""Where cases lie beside each other: how much measuring one says of another, before anything is measured.

Cases of one family are alike as far as their sizes and work are, in the space in which models judge their domain
(`Domain`), and as far as the same runs them. The correlation is exponential in the distance (a Matérn process of order
one half: Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, section 4.2.1), since latencies have steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...features.batch.cases import Cases, Floats, Indices
from ...features.cost.bounds import work
from ...features.device import Catalogue

LENGTH = 0.5
"""Distance, in root mean square standard deviations of the candidates' log sizes and work, that lowers a correlation to 1/e."""

EFFICIENCY_LENGTH = 2.0
"""The same for what a model answers, in standard deviations of ln(latency / lower bound)."""

_KNOB_LENGTH = 1.0
"""The same for tuning knobs, of which a kernel has up to eight: a choice must not take every setting for a world of its own."""

LIKENESS: Mapping[str, float] = {
    "impl": 0.3, "dtype": 0.6, "kv_dtype": 0.6, "variant": 0.6, "cache_state": 0.7, "threads": 0.7, "knobs": 0.6,
}  # fmt: skip
"""What is left of a correlation between cases that differ in one setting, or in which knobs are given: another implementation
is other code."""

MOST_DIRECTIONS = 512
"""Directions kept of a family's covariance: what a choice of one case costs grows with their number."""


@dataclass(frozen=True, slots=True)
class Space:
    """Where `n` cases of one family lie.

    Attributes:
        sizes: Standardised log sizes and work, shape `(n, d)`.
        knobs: Standardised tuning knobs, shape `(n, k)`.
        efficiency: Standardised ln(latency / lower bound), shape `(n,)`.
        settings: Codes of `LIKENESS`, shape `(n, 7)`.
    """

    sizes: Floats
    knobs: Floats
    efficiency: Floats
    settings: Indices

    @classmethod
    def of(cls, cases: Cases, devices: Catalogue, typical: Indices, latency_s: Floats | None = None) -> Space:
        """Where the cases lie; those at `typical` say how far sizes spread. `latency_s` is what a model answers, `(n,)`,
        NaN where its word is not taken.

        Raises:
            SpecError: unknown device, or a dtype it has no peak for.
        """
        paper = work(cases, devices)
        columns = [*cases.sizes.values(), paper.flops, paper.bytes]
        # Half a size stands for none at all, as in `candidates`.
        sizes = _standardised(np.log2(np.maximum(np.column_stack(columns), 0.5)), typical)
        ratio = np.zeros(len(cases)) if latency_s is None else np.log(latency_s / paper.lower_bound_s)
        knobs = [_standardised(np.log2(column + 1.0), typical) for column in cases.config.values()]
        tuned = [column for column in knobs if column.any()]
        codes = [cases.coded(name).code for name in LIKENESS if name not in ("threads", "knobs")]
        codes.append(np.unique(np.nan_to_num(cases.threads), return_inverse=True)[1].astype(np.intp))
        codes.append(cases.categories.labels(lambda category: " ".join(category.knobs)).code)
        turned = np.column_stack(tuned) if tuned else np.zeros((len(cases), 0))
        return cls(sizes, turned, _standardised(ratio, typical), np.column_stack(codes))

    def __len__(self) -> int:
        return len(self.sizes)

    def correlation(self, i: int, settings: Collection[str] = tuple(LIKENESS)) -> Floats:
        """How alike every case is to case `i`, shape `(n,)`, 1 for itself; by the `settings` named and the sizes."""
        apart = np.sqrt(((self.sizes - self.sizes[i]) ** 2).mean(axis=1)) / LENGTH
        apart = apart + np.abs(self.efficiency - self.efficiency[i]) / EFFICIENCY_LENGTH
        if self.knobs.shape[1]:
            apart = apart + np.sqrt(((self.knobs - self.knobs[i]) ** 2).mean(axis=1)) / _KNOB_LENGTH
        for column, name in enumerate(LIKENESS):
            if name in settings:
                other = self.settings[:, column] != self.settings[i, column]
                apart = apart - np.log(LIKENESS[name]) * other
        likeness: Floats = np.exp(-apart)
        return likeness

    def directions(self, most: int = MOST_DIRECTIONS) -> tuple[Floats, Floats]:
        """Places `(n, r)` whose products are the correlations, and the variance of each case they leave out, `(n,)`.

        A Cholesky factorisation that goes on with the case least explained so far (Fine and Scheinberg, "Efficient SVM
        training using low-rank kernel representations", 2001): the first `r` cases it goes through fill the space.
        """
        n = len(self)
        places = np.zeros((n, min(most, n)))
        left = np.ones(n)
        for step in range(places.shape[1]):
            pivot = int(np.argmax(left))
            if left[pivot] <= _EXPLAINED:
                return places[:, :step], left
            column = self.correlation(pivot) - places[:, :step] @ places[pivot, :step]
            places[:, step] = column / np.sqrt(left[pivot])
            left = np.maximum(left - places[:, step] ** 2, 0.0)
        return places, left


def _standardised(columns: Floats, typical: Indices) -> Floats:
    """Columns by the mean and spread of the typical rows; NaN is the mean."""
    spread = columns[typical]
    if np.isnan(spread).all():
        return np.zeros_like(columns)
    standardised: Floats = (columns - np.nanmean(spread, axis=0)) / np.maximum(np.nanstd(spread, axis=0), 1e-3)
    return np.nan_to_num(standardised)


_EXPLAINED = 1e-6
"""Variance that is none: two equal cases differ by rounding."""


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
        return self._sums / (self.variance + self._noise2)

    def left(self) -> float:
        """The weighted sum of variances that is left."""
        return float(self._weights @ self.variance)

    def take(self, chosen: Sequence[int]) -> None:
        """Count the cases at `chosen` as measured."""
        index = np.asarray(chosen, dtype=np.intp)
        columns = self._spread[:, index] if self._places is None else self._spread @ self._places[index].T
        among_chosen = columns[index] if self._places is None else self._places[index] @ columns
        factor = np.linalg.cholesky(among_chosen + np.diag(self._noise2[index]))
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
