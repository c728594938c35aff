"""A Gaussian process on a handful of rows: what is left over after a model's own answer, and how sure that is.

Exact regression by Cholesky factorisation (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006,
algorithm 2.1), with one covariance made for kernels on a device: a common factor, a factor of each implementation and
variant, one of threads and cache state, directions in which devices are known to differ, and a smooth remainder over sizes.
A row far from what its neighbours say, such as one measured while another program ran, is given more noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...features.batch.cases import Floats, Strings

PRIOR = {
    "common": 0.3,
    "group": 0.15,
    "variant": 0.1,
    "kind": 0.1,
    "context": 0.15,
    "length": 0.6,
    "direction": 0.3,
    "smooth": 0.15,
    "own": 0.15,
    "noise": 0.05,
}
"""Standard deviations of ln(latency): of the factor common to a device, of one per impl and dtype, of one per variant, of one
per all three (a vectorised exp in fp32), of one per threads and cache state, of weights of the directions, of the smooth
remainder shared by all groups and of each group's own, of a row's noise; `length` is in root mean square steps of standardised
log2 features. Each is fitted within about a factor of two around these, which fit left-out devices of public tables well
(docs/decisions/009)."""

_LOG_SPREAD = {"length": 0.5}
_USUAL_LOG_SPREAD = 0.7
"""Deviations of ln(scale) around `PRIOR`: 0.7 is a factor of two."""
_NOT_SIZES = ("length", "noise")
_MOST_STEPS = 40
"""Most iterations of the search for the scales."""

_OUTLIER, _MOST_NOISE, _ROUNDS = 2.0, 10.0, 3
"""A row left out that errs by more than so many of the deviations claimed has its noise raised to what makes it so many, by at
most the second factor; then scales are fitted again, in so many rounds in all. On a busy CPU this took the mean error of cases
never measured from 25.8 to 24.7 % (docs/decisions/010)."""


@dataclass(frozen=True, slots=True)
class Points:
    """What a process compares: `group`, `variant` and `context` `(n,)`, standardised `place` `(n, d)`, `direction` `(n, k)`.

    `context` is threads and cache state. `doubt` `(n,)` is how many times the usual noise a row's label has.
    """

    group: Strings
    variant: Strings
    context: Strings
    place: Floats
    direction: Floats
    doubt: Floats

    def __len__(self) -> int:
        return len(self.group)

    def take(self, rows: Any) -> Points:
        """The points at `rows`."""
        return Points(*(getattr(self, name)[rows] for name in Points.__slots__))


@dataclass(frozen=True, slots=True)
class Process:
    """A process conditioned on `points`: `weights` `(n,)` are the inverse covariance times what was left over there.

    Attributes:
        points: The rows it is conditioned on.
        scales: Standard deviations and lengths of its parts, by name.
        weights: The inverse covariance times what was left over, shape `(n,)`.
        factor: Cholesky factor of the covariance, shape `(n, n)`.
    """

    points: Points
    scales: Mapping[str, float]
    weights: Floats
    factor: Floats

    @classmethod
    def fit(cls, points: Points, residuals: Floats, size: float = 1.0) -> Process:
        """The process that explains `residuals`, ln(measured / answered) of shape `(n,)`, best.

        Its scales have the highest probability given `PRIOR` and the rows; `size` is how large what is left over is thought to
        be before any row is seen, relative to a device never measured.
        """
        from scipy.optimize import minimize

        names = list(PRIOR)
        start = np.log([PRIOR[name] * (1.0 if name in _NOT_SIZES else size) for name in names])
        spread = np.array([_LOG_SPREAD.get(name, _USUAL_LOG_SPREAD) for name in names])
        bounds = [(middle - 5.0 * width, middle + 5.0 * width) for middle, width in zip(start, spread, strict=True)]
        parts, usual, packed = _Parts.of(points, points), points.doubt, start
        for _ in range(_ROUNDS):

            def loss(packed: Floats, points: Points = points) -> float:
                scales = dict(zip(names, np.exp(packed).tolist(), strict=True))
                try:
                    lower = np.linalg.cholesky(parts.covariance(scales) + _noise(scales, points))
                except np.linalg.LinAlgError:
                    return 1e6
                solved = np.linalg.solve(lower, residuals)
                return float(
                    0.5 * solved @ solved
                    + np.log(np.diag(lower)).sum()
                    + 0.5 * (((packed - start) / spread) ** 2).sum()
                )

            packed = minimize(loss, packed, method="L-BFGS-B", bounds=bounds, options={"maxiter": _MOST_STEPS}).x
            process = cls.from_scales(points, residuals, dict(zip(names, np.exp(packed).tolist(), strict=True)))
            excess = np.abs(process.left_out_errors()) / process.left_out_deviations(points.doubt) / _OUTLIER
            if (excess <= 1.0).all():
                break
            doubt = np.minimum(points.doubt * np.maximum(excess, 1.0), _MOST_NOISE * usual)
            points = replace(points, doubt=doubt)
        return process

    @classmethod
    def from_scales(cls, points: Points, residuals: Floats, scales: Mapping[str, float]) -> Process:
        """The process with these scales."""
        covariance = _Parts.of(points, points).covariance(scales) + _noise(scales, points)
        factor: Floats = np.linalg.cholesky(covariance).astype(np.float64)
        weights = np.linalg.solve(factor.T, np.linalg.solve(factor, residuals))
        return cls(points, dict(scales), weights, factor)

    def at(self, points: Points) -> tuple[Floats, Floats]:
        """Mean and standard deviation of what is left over at other points, noise of a new row included; each `(n,)`."""
        across = _Parts.of(points, self.points).covariance(self.scales)
        solved = np.linalg.solve(self.factor, across.T)
        noise = (self.scales["noise"] * points.doubt) ** 2
        prior = _Parts.variance(points, self.scales) + noise
        return across @ self.weights, np.sqrt(np.maximum(prior - (solved**2).sum(axis=0), noise))

    def left_out_errors(self) -> Floats:
        """ln(measured / answered) of each row, had it been left out, shape `(n,)`.

        Closed form: Rasmussen and Williams, equations 5.10–5.12.
        """
        return self.weights / self._precisions()

    def left_out_deviations(self, doubt: Floats) -> Floats:
        """The standard deviation claimed for each row, had it been left out and were its noise `doubt` times the usual one,
        shape `(n,)`; closed form as above.
        """
        noise = self.scales["noise"] ** 2
        usual = 1.0 / self._precisions() - noise * (self.points.doubt**2 - doubt**2)
        return np.sqrt(np.maximum(usual, noise))

    def _precisions(self) -> Floats:
        inverse = np.linalg.inv(self.factor)
        precisions: Floats = (inverse**2).sum(axis=0)
        return precisions


def covariance(a: Points, b: Points, scales: Mapping[str, float]) -> Floats:
    """Covariance of what is left over at `a` and at `b`, noise aside, shape `(len(a), len(b))`."""
    return _Parts.of(a, b).covariance(scales)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the covariance between two sets of points is made of, before any scale; each of shape `(n, m)`."""

    same_group: Floats
    same_variant: Floats
    same_context: Floats
    along: Floats
    apart: Floats

    @classmethod
    def of(cls, a: Points, b: Points) -> _Parts:
        width = max(a.place.shape[1], 1)
        # Points of earlier versions lack the last directions.
        k = min(a.direction.shape[1], b.direction.shape[1])
        squares = (a.place**2).sum(axis=1)[:, None] + (b.place**2).sum(axis=1)[None] - 2.0 * (a.place @ b.place.T)
        return cls(
            same_group=(a.group[:, None] == b.group[None]).astype(np.float64),
            same_variant=(a.variant[:, None] == b.variant[None]).astype(np.float64),
            same_context=(a.context[:, None] == b.context[None]).astype(np.float64),
            along=a.direction[:, :k] @ b.direction[:, :k].T,
            apart=np.maximum(squares, 0.0) / width,
        )

    def covariance(self, scales: Mapping[str, float]) -> Floats:
        smooth = np.exp(-self.apart / (2.0 * scales["length"] ** 2))
        return (
            scales["common"] ** 2
            + scales["group"] ** 2 * self.same_group
            + self.same_variant * (scales["variant"] ** 2 + scales["kind"] ** 2 * self.same_group)
            + scales["context"] ** 2 * self.same_context
            + scales["direction"] ** 2 * self.along
            + smooth * (scales["smooth"] ** 2 + scales["own"] ** 2 * self.same_group * self.same_context)
        )

    @staticmethod
    def variance(points: Points, scales: Mapping[str, float]) -> Floats:
        """The covariance of each point with itself, shape `(n,)`."""
        fixed = sum(scales[name] ** 2 for name in ("common", "group", "variant", "kind", "context", "smooth", "own"))
        prior: Floats = fixed + scales["direction"] ** 2 * (points.direction**2).sum(axis=1)
        return prior


def _noise(scales: Mapping[str, float], points: Points) -> Floats:
    return np.diag((scales["noise"] * points.doubt) ** 2 + 1e-8)
