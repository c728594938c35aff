"""Corrections as plain as can be: the median ratio of a device's rows, and the mean of nearby rows' ratios.

What a calibration has to beat: both challenge the serving model every night. The weighted mean is that of Nadaraya ("On
estimating regression", 1964) and Watson, drawn towards the median by `shrinkage` rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...features.batch.cases import Floats
from .gaussian_process import Points

Method = Literal["process", "median", "nearby"]
"""How rows correct answers: by a Gaussian process, their median ratio, or the weighted mean of nearby rows."""

_WIDTHS, _APART, _SHRINKAGES = (0.1, 0.2, 0.35, 0.5, 0.8, 1.5), (0.0, 0.25, 1.0), (0.1, 0.5, 2.0)


@dataclass(frozen=True, slots=True)
class NearbyRows:
    """The mean of `residuals` `(n,)` at `points`, weighted by nearness.

    Attributes:
        points: Where rows lie.
        residuals: ln(measured / answered).
        scales: `width` of the weights in steps of standardised log2 features (0: the median alone), `apart` what one other
            setting adds to a squared distance, `shrinkage` rows of the median.
    """

    points: Points
    residuals: Floats
    scales: Mapping[str, float]

    @classmethod
    def fit(cls, points: Points, residuals: Floats, method: Method) -> NearbyRows:
        """The scales with the least error of each row left out."""
        every = [(0.0, 0.0, 1.0)] if method == "median" else itertools.product(_WIDTHS, _APART, _SHRINKAGES)
        tried = (
            cls(points, residuals, dict(zip(("width", "apart", "shrinkage"), each, strict=True))) for each in every
        )
        return min(tried, key=lambda rows: float(np.abs(np.expm1(-rows.left_out_errors())).mean()))

    @classmethod
    def from_scales(cls, points: Points, residuals: Floats, scales: Mapping[str, float]) -> NearbyRows:
        """The rows with these scales."""
        return cls(points, residuals, scales)

    def at(self, points: Points) -> tuple[Floats, Floats]:
        """What to add to ln(answers) at points, and the size of errors there; each `(n,)`."""
        middle = np.full(len(points), np.median(self.residuals))
        means = self._means(points, np.zeros((len(points), len(self.points))), middle)
        return means, _size(self.left_out_errors()) * points.doubt

    def left_out_errors(self) -> Floats:
        """ln(measured / answered) of each row, had it been left out of the mean, shape `(n,)`."""
        return self.residuals - self._means(
            self.points, np.diag(np.full(len(self.points), np.inf)), self._other_medians()
        )

    def left_out_deviations(self, doubt: Floats) -> Floats:
        """The standard deviation claimed for each row, shape `(n,)`."""
        return _size(self.left_out_errors()) * doubt

    def _other_medians(self) -> Floats:
        """The median of all rows but each one, 0 where there is no other, shape `(n,)`."""
        n = len(self.residuals)
        if n == 1:
            return np.zeros(1)
        order = np.sort(self.residuals)
        rank = np.argsort(np.argsort(self.residuals))
        # Without the row of rank r, what stands at i or behind it moves up by one from r on.
        below, above = (order[i + (rank <= i)] for i in ((n - 2) // 2, (n - 1) // 2))
        return np.asarray((below + above) / 2.0)

    def _means(self, points: Points, further: Floats, middle: Floats) -> Floats:
        """The means, drawn towards `middle` `(n,)`; what of `further` `(n, rows)` is infinite is left out."""
        if not self.scales["width"]:
            return middle
        place = ((points.place[:, None] - self.points.place[None]) ** 2).mean(axis=2)
        other = sum((getattr(points, name)[:, None] != getattr(self.points, name)[None]).astype(np.float64)
                    for name in ("group", "variant", "context"))  # fmt: skip
        weights = np.exp(-(place + self.scales["apart"] * other + further) / (2.0 * self.scales["width"] ** 2))
        total = weights.sum(axis=1)
        means: Floats = middle + (weights @ self.residuals - total * middle) / (total + self.scales["shrinkage"])
        return means


def _size(errors: Floats) -> float:
    return float(np.sqrt((errors**2).mean()))
