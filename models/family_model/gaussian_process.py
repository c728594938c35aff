"""A Gaussian process on a handful of rows: what is left over after a model's own answer, and how sure that is.

Exact regression by Cholesky factorisation (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006,
algorithm 2.1), with one covariance made for kernels on a device: a common factor, a factor of each implementation and
variant, one of threads and cache state, directions in which devices are known to differ, and a smooth remainder over sizes and
over how these fall on tiles, with a length for each column (Matérn 3/2: Rasmussen and Williams, equation 4.17). A row far from
what its neighbours say, such as one measured while another program ran, is given more noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...features.batch.cases import Floats, Strings
from ...features.batch.categorical import Categorical
from ..regressor import Matrix

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
log2 features, of the Gaussian remainder that holds while no row is measured. Each is fitted within about a factor of two around
these, which fit left-out devices of public tables well (docs/decisions/009)."""

_SCALES = tuple(name for name in PRIOR if name != "length")
_PLACE_LENGTH, _TILING_LENGTH = 0.7, 12.0
"""Where the search for the length of each column of `place` begins, in steps as above, and of `tiling`, in standard deviations
of the rows: so long that a column that says nothing costs nothing."""
_LEAST_SPREAD = 0.25
"""Standard deviations of the rows in a column of `tiling` are taken for no less: a new row may differ where these did not."""

_LOG_SPREAD = 0.7
"""Deviations of ln(scale) around `PRIOR`: 0.7 is a factor of two."""
_LOG_LENGTH_SPREAD, _SURE_ROWS = 1.0, 512
"""Deviation of ln(length) around these for so many rows or more; for fewer it is less by the fourth root of their share. A few
rows cannot tell which of thirty columns matter: with 1.0 throughout, 32 rows held 86 % in intervals of 90 %, and now 90 %."""
_MOST_STEPS = 40
"""Most iterations of the search for the scales."""
_MOST_SEARCHED = 512
"""Rows that scales are searched with: with 1,000 errors are within 0.3 points, and a search takes eight times as long."""

_PIECE_ROWS = 256
"""Points answered at once."""

_OUTLIER, _MOST_NOISE, _ROUNDS = 2.0, 10.0, 3
"""A row left out that errs by more than so many of the deviations claimed has its noise raised to what makes it so many, by at
most the second factor; then scales are fitted again, in so many rounds in all. On a busy CPU this took the mean error of cases
never measured from 25.8 to 24.7 % (docs/decisions/010)."""


@dataclass(frozen=True, slots=True)
class Points:
    """What a process compares.

    Attributes:
        group: Implementation and dtypes, shape `(n,)`.
        variant: Variant, shape `(n,)`.
        context: Threads and cache state, shape `(n,)`.
        place: Sizes, as standardised log2 features, shape `(n, d)`.
        direction: Directions in which devices differ, shape `(n, k)`.
        doubt: How many times the usual noise a row's label has, shape `(n,)`.
        tiling: How sizes fall on tiles and units, as features, shape `(n, t)`.
    """

    group: Strings
    variant: Strings
    context: Strings
    place: Floats
    direction: Floats
    doubt: Floats
    tiling: Floats

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
        scales: Standard deviations of its parts, by name.
        weights: The inverse covariance times what was left over, shape `(n,)`.
        inverse: Inverse of the Cholesky factor of the covariance, shape `(n, n)`; single precision moves deviations by 0.01 %.
        lengths: Of each column of place and tiling, shape `(d + t,)`; None for the Gaussian remainder of earlier versions, of
            one length, which is in `scales`.
    """

    points: Points
    scales: Mapping[str, float]
    weights: Floats
    inverse: Matrix
    lengths: Floats | None = None

    @classmethod
    def fit(cls, points: Points, residuals: Floats, size: float = 1.0) -> Process:
        """The process that explains `residuals`, ln(measured / answered) of shape `(n,)`, best.

        Its scales have the highest probability given `PRIOR` and the rows; `size` is how large what is left over is thought to
        be before any row is seen, relative to a device never measured.
        """
        from scipy.optimize import minimize

        scales = [PRIOR[name] * (1.0 if name == "noise" else size) for name in _SCALES]
        width = points.place.shape[1]
        spread = np.maximum(points.tiling.std(axis=0), _LEAST_SPREAD)
        lengths = np.concatenate([np.full(width, _PLACE_LENGTH * np.sqrt(width)), _TILING_LENGTH * spread])
        start = np.log(np.concatenate([scales, lengths]))
        log_length_spread = _LOG_LENGTH_SPREAD * min(len(points) / _SURE_ROWS, 1.0) ** 0.25
        widths = np.repeat([_LOG_SPREAD, log_length_spread], [len(scales), len(lengths)])
        bounds = list(zip(start - 5.0 * widths, start + 5.0 * widths, strict=True))
        some = slice(None, None, -(-len(points) // _MOST_SEARCHED))
        usual, packed = points.doubt, start
        search = _Search.of(points.take(some), residuals[some], start, widths)
        for _ in range(_ROUNDS):
            # The result of minimize is not typed.
            optimum: Any = minimize(
                search.loss, packed, args=(points.doubt[some],), jac=True, method="L-BFGS-B", bounds=bounds,
                options={"maxiter": _MOST_STEPS},
            )  # fmt: skip
            packed = optimum.x
            values = np.exp(packed)
            named = dict(zip(_SCALES, values[: len(_SCALES)].tolist(), strict=True))
            process = cls.from_scales(points, residuals, named, values[len(_SCALES) :])
            excess = np.abs(process.left_out_errors()) / process.left_out_deviations(points.doubt) / _OUTLIER
            if (excess <= 1.0).all():
                break
            doubt = np.minimum(points.doubt * np.maximum(excess, 1.0), _MOST_NOISE * usual)
            points = replace(points, doubt=doubt)
        return process

    @classmethod
    def from_scales(
        cls, points: Points, residuals: Floats, scales: Mapping[str, float], lengths: Floats | None = None
    ) -> Process:
        """The process with these scales and lengths."""
        between = covariance(points, points, scales, lengths)
        inverse = np.linalg.inv(np.linalg.cholesky(between + np.diag(_noise(scales["noise"], points.doubt))))
        weights = inverse.T @ (inverse @ residuals)
        return cls(points, dict(scales), weights, inverse.astype(np.float32), lengths)

    def at(self, points: Points) -> tuple[Floats, Floats]:
        """Mean and standard deviation of what is left over at other points, noise of a new row included; each `(n,)`."""
        mean, known = np.empty(len(points)), np.empty(len(points))
        # In pieces that stay in the cache: twice as fast.
        for begin in range(0, len(points), _PIECE_ROWS):
            piece = slice(begin, begin + _PIECE_ROWS)
            across = covariance(points.take(piece), self.points, self.scales, self.lengths)
            mean[piece] = across @ self.weights
            known[piece] = np.square(across.astype(np.float32) @ self.inverse.T).sum(axis=1)
        noise = (self.scales["noise"] * points.doubt) ** 2
        prior = _Parts.variance(points, self.scales) + noise
        return mean, np.sqrt(np.maximum(prior - known, noise))

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
        precisions: Floats = (self.inverse.astype(np.float64) ** 2).sum(axis=0)
        return precisions


def covariance(a: Points, b: Points, scales: Mapping[str, float], lengths: Floats | None = None) -> Floats:
    """Covariance of what is left over at `a` and at `b`, noise aside, shape `(len(a), len(b))`.

    `lengths` are those of `Process`; None for the Gaussian remainder.
    """
    parts = _Parts.of(a, b)
    if lengths is None:
        width = max(a.place.shape[1], 1)
        smooth = np.exp(-_squares(a.place, b.place) / (2.0 * width * scales["length"] ** 2))
    else:
        smooth, _ = _matern(_columns(a, lengths), _columns(b, lengths))
    return parts.covariance(scales, smooth)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the covariance between two sets of points is made of, before any scale; each of shape `(n, m)`."""

    same_group: Floats
    same_variant: Floats
    same_context: Floats
    along: Floats

    @classmethod
    def of(cls, a: Points, b: Points) -> _Parts:
        # Points of earlier versions lack the last directions.
        k = min(a.direction.shape[1], b.direction.shape[1])
        return cls(
            same_group=_same(a.group, b.group),
            same_variant=_same(a.variant, b.variant),
            same_context=_same(a.context, b.context),
            along=a.direction[:, :k] @ b.direction[:, :k].T,
        )

    def by_scale(self, smooth: Floats) -> dict[str, Floats | float]:
        """What the square of each scale is multiplied by; `smooth` is the correlation of sizes."""
        return {
            "common": 1.0,
            "group": self.same_group,
            "variant": self.same_variant,
            "kind": self.same_variant * self.same_group,
            "context": self.same_context,
            "direction": self.along,
            "smooth": smooth,
            "own": smooth * self.same_group * self.same_context,
        }

    def covariance(self, scales: Mapping[str, float], smooth: Floats) -> Floats:
        return (
            scales["common"] ** 2
            + scales["group"] ** 2 * self.same_group
            + self.same_variant * (scales["variant"] ** 2 + scales["kind"] ** 2 * self.same_group)
            + scales["context"] ** 2 * self.same_context
            + scales["direction"] ** 2 * self.along
            + smooth * self.amplitude(scales)
        )

    def amplitude(self, scales: Mapping[str, float]) -> Floats:
        """Variance of the smooth remainder that both points share."""
        return scales["smooth"] ** 2 + scales["own"] ** 2 * self.same_group * self.same_context

    @staticmethod
    def variance(points: Points, scales: Mapping[str, float]) -> Floats:
        """The covariance of each point with itself, shape `(n,)`."""
        fixed = sum(scales[name] ** 2 for name in ("common", "group", "variant", "kind", "context", "smooth", "own"))
        prior: Floats = fixed + scales["direction"] ** 2 * (points.direction**2).sum(axis=1)
        return prior


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for scales and lengths, packed as their logarithms `(s,)`, with `start` and `widths` of the prior.

    Attributes:
        columns: Place and tiling of the rows, `(n, d + t)`.
        parts: The covariance's parts between them.
        residuals: What is to be explained, `(n,)`.
        start: The middle of the prior.
        widths: Its standard deviations.
    """

    columns: Floats
    parts: _Parts
    residuals: Floats
    start: Floats
    widths: Floats

    @classmethod
    def of(cls, points: Points, residuals: Floats, start: Floats, widths: Floats) -> _Search:
        return cls(np.column_stack([points.place, points.tiling]), _Parts.of(points, points), residuals, start, widths)

    def loss(self, packed: Floats, doubt: Floats) -> tuple[float, Floats]:
        """Minus ln of the probability of `packed`, up to a constant, and its gradient; `doubt` `(n,)` is that of the rows.

        The gradient is that of Rasmussen and Williams, equation 5.9.
        """
        values, n_scales = np.exp(packed), len(_SCALES)
        scales, lengths = dict(zip(_SCALES, values[:n_scales].tolist(), strict=True)), values[n_scales:]
        columns = self.columns / lengths
        smooth, slope = _matern(columns, columns)
        noise = _noise(scales["noise"], doubt)
        # NumPy's, whose threads `calibrated` limits: those of SciPy are not yet loaded there.
        try:
            factor = np.linalg.cholesky(self.parts.covariance(scales, smooth) + np.diag(noise))
        except np.linalg.LinAlgError:
            return 1e6, np.zeros(len(packed))
        root = np.linalg.inv(factor)
        inverse = root.T @ root
        weights, away = inverse @ self.residuals, (packed - self.start) / self.widths
        loss = 0.5 * (self.residuals @ weights + away @ away) + np.log(np.diag(factor)).sum()
        by_covariance = 0.5 * (inverse - np.outer(weights, weights))
        gradient = away / self.widths
        parts = self.parts.by_scale(smooth)
        gradient[:n_scales] += [
            2.0 * scales[name] ** 2 * float((by_covariance * parts[name]).sum()) if name in parts
            else 2.0 * float(np.diag(by_covariance) @ noise)
            for name in _SCALES
        ]  # fmt: skip
        pull = by_covariance * self.parts.amplitude(scales) * slope
        # The sum over pairs of pull times the squared difference of a column.
        gradient[n_scales:] += 2.0 * (pull.sum(axis=1) @ columns**2 - (columns * (pull @ columns)).sum(axis=0))
        return float(loss), gradient


def _columns(points: Points, lengths: Floats) -> Floats:
    """Place and tiling in lengths; of earlier versions the last columns of tiling are missing."""
    return np.column_stack([points.place, points.tiling])[:, : len(lengths)] / lengths


def _matern(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Matérn correlations 3/2 of rows of `a` and `b`, shape `(n, m)`, and by how much they grow with ln of a column's length,
    for each unit of squared difference in that column.
    """
    root = np.sqrt(3.0 * _squares(a, b))
    decay = np.exp(-root)
    return (1.0 + root) * decay, 3.0 * decay


def _squares(a: Floats, b: Floats) -> Floats:
    """Squared distances of rows, shape `(n, m)`."""
    squares: Floats = np.maximum((a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2.0 * (a @ b.T), 0.0)
    return squares


def _same(a: Strings, b: Strings) -> Floats:
    """1 where two words are the same, else 0, shape `(n, m)`; words are few, and compared once each."""
    there = Categorical.encode(b)
    same: Floats = np.array([a == word for word in there.words], dtype=np.float64).T[:, there.code]
    return same


def _noise(scale: float, doubt: Floats) -> Floats:
    """Variances of rows' noise, and a little to keep the covariance invertible."""
    return (scale * doubt) ** 2 + 1e-8
