"""Prediction intervals: conformal quantiles of held-out errors, scaled to how hard each case looks.

An error is ln(measured / predicted) of rows the model was not trained on. A small model learns the size of errors from
the features; errors divided by it are scores, and the interval at any level comes from the scores' quantiles (normalised
split-conformal prediction: Lei et al., "Distribution-free predictive inference for regression", JASA 2018, section 5).
Scores are kept apart by regime, since errors on a device never trained on follow another law.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from ...features.batch.cases import Floats
from ...features.errors import SpecError
from .artifact_files import finite, numbers

REGIMES = ("seen", "adapted", "unseen_device", "unseen_kind")
"""From the least strange to the strangest, an order that what is made of two answers goes by. seen: the like was measured on
the device; adapted: a device calibrated by a few rows, errors as its Gaussian process states (`device_correction.Adaptation`);
unseen_device: errors with each device left out, also for an impl, dtype, variant, cache state or knobs never measured together
on a device that was;
unseen_kind: no learned model applies (a kind of processor never trained on), errors are those of the lower bound times its
median ratio."""

SCORED = ("latency", "power", "energy")
"""The targets that have interval scores, in the order of their columns."""

COVERAGE_RANGE = (0.5, 0.99)
"""Levels that can be asked for; beyond them the held-out errors are too few to say."""

_PROBABILITIES = np.round(np.concatenate([np.arange(0.005, 0.5, 0.005), np.arange(0.5, 0.9951, 0.005)]), 4)

NO_EVIDENCE_FACTOR = 4.0
"""How much wider scores are taken for an unseen device when training had one device only, so none could be left out.
Public tables give errors of 25–115 % for a new architecture where seen devices give 5–8 %: a factor of 5 to 15 in error,
of about 4 in the scores once the scale model has widened what it can."""

NEAR_DUPLICATE = "near_duplicate"
"""Scores of devices of which another edition of the chip was measured; between these and strangers, intervals lie between."""


def scores_name(regime: str, kind: str) -> str:
    """The name of a regime's scores of one kind of device, beside those of all: CPUs left out err by thrice what GPUs do."""
    return f"{regime} {kind}"


_DUPLICATE_FACTOR = 0.6
"""What intervals of such a device are of a stranger's, where training had no two editions of a chip. Of an A100 with 80 GB,
predicted from one with 40, public tables show errors of 2–12 % in three families of four, where strangers show 17–25 %."""

_LOG_ERROR_OUTSIDE = 0.06
"""Standard deviation of ln that every doubling of an interval outside the domain adds on measured devices: scales learned
inside say little there. Larger sizes of public tables err by 1.6–14 % where hidden shapes of trained sizes err by 1.2–5 %."""

_LOG_ERROR_ELSEWHERE = 0.06
"""What it adds at once, within the first step outside, to times of families whose libraries choose kernels by size: NeuSight's
two campaigns of products on one GPU are 3 % (A100), 12 % (V100) and 30 % (T4) apart, and only sizes of one were trained on."""

WIDENING_PER_STEP = 0.5
"""Half-widths grow by half for every step (typical spacing) a case lies beyond the training points' own spacing; squares of
half-widths do where the device was never measured. Errors of a whole device are independent of those of a size, so that
variances add: other labs' products, whose intervals held 99 to 100 %, then hold 89 to 100 % at half the width."""

_MAX_LOG_WIDTH = 50.0
"""Keeps an absurdly wide upper end finite."""

_LEAST_SIZE, _MOST_SIZE = 0.004, 2.0
"""Sizes of log errors: none is smaller than repeats of a measurement differ, or of any use beyond."""

_COMMON_SIZES = 0.9
"""Share of the rows of devices left out whose error sizes are told apart. The largest, of a dtype or a source that few devices
have, made intervals of two orders of magnitude."""

_EXPONENTS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Scores:
    """Quantiles of conformal scores.

    Attributes:
        quantiles: At fixed probabilities, shape `(n_probabilities,)`.
        n: How many held-out rows they come from.
        exponent: The power of a case's error size that its scores are relative to: 1, or less where errors follow other laws
            than those the sizes were learned from, down to 0 for plain log errors.
        largest_size: Larger error sizes are taken for this one: of few held-out rows, they say little.
    """

    quantiles: Floats
    n: int
    exponent: float = 1.0
    largest_size: float = _MOST_SIZE

    @classmethod
    def sharpest(cls, errors: Floats, sizes: Floats) -> Scores:
        """The scores of errors with modelled sizes, shape `(n,)` each, whose intervals of 90 % have the least mean interval
        score: the width and 2 / 0.1 of what errors lie outside by (Gneiting & Raftery, JASA 2007, section 6.2), of log errors.
        """
        largest = float(np.quantile(sizes, _COMMON_SIZES))
        sizes = np.minimum(sizes, largest)
        tried = [replace(cls.of(errors / sizes**share), exponent=share, largest_size=largest) for share in _EXPONENTS]
        mean = []
        for scores in tried:
            low, high = np.multiply.outer(scores.bounds(0.9), sizes**scores.exponent)
            outside = np.maximum(low - errors, 0.0) + np.maximum(errors - high, 0.0)
            mean.append(float((high - low + 2.0 / 0.1 * outside).mean()))
        return tried[int(np.argmin(mean))]

    @classmethod
    def of(cls, scores: Floats, exponent: float = 1.0) -> Scores:
        """Quantiles of scores, shape `(n,)`, with the finite-sample shift of conformal prediction: the outer ends move
        out by `(n + 1) / n`.
        """
        n = len(scores)
        outward = 0.5 + (_PROBABILITIES - 0.5) * (n + 1) / n
        return cls(np.quantile(scores, np.clip(outward, 0.0, 1.0)), n, exponent)

    def widened(self, factor: float) -> Scores:
        """The same scores, `factor` times as large."""
        return replace(self, quantiles=self.quantiles * factor)

    def bounds(self, coverage: float) -> tuple[float, float]:
        """Lower (≤ 0) and upper (≥ 0) score of the central interval of that coverage.

        Raises:
            SpecError: coverage outside `COVERAGE_RANGE`.
        """
        check_coverage(coverage)
        low, high = np.interp([(1 - coverage) / 2, (1 + coverage) / 2], _PROBABILITIES, self.quantiles)
        return min(float(low), 0.0), max(float(high), 0.0)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        quantiles = [round(float(q), 6) for q in self.quantiles]
        largest = round(self.largest_size, 6)
        return {"quantiles": quantiles, "n": self.n, "exponent": self.exponent, "largest_size": largest}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Scores:
        """The scores `to_json` described."""
        quantiles = numbers(data["quantiles"], len(_PROBABILITIES))
        if (np.diff(quantiles) < 0).any():
            raise ValueError("quantiles of errors that do not ascend")
        exponent, largest = (
            finite(data.get("exponent", 1.0), 0.0, 1.0),
            finite(data.get("largest_size", _MOST_SIZE), 0.0, _MOST_SIZE),
        )
        return cls(quantiles, int(finite(data["n"], 0)), exponent, max(largest, _LEAST_SIZE))


def scores_to_json(scores: Mapping[str, Scores]) -> dict[str, Any]:
    """Plain data of scores by regime, compiler or target."""
    return {name: values.to_json() for name, values in scores.items()}


def scores_from_json(data: Mapping[str, Any]) -> dict[str, Scores]:
    """The scores `scores_to_json` described."""
    return {str(name): Scores.from_json(values) for name, values in data.items()}


def student_scores(standardised: Floats) -> Scores:
    """Scores of an adaptation's few rows: Student's t, as wide as their errors were when each was left out, shape `(n,)`.

    The fewer rows, the heavier the tails: n / 2 degrees of freedom, at least 3, since the scales were fitted to them too.
    Errors smaller than claimed narrow nothing below four fifths: with few rows that may be luck.
    """
    from scipy.stats import t

    n = len(standardised)
    size = max(float(np.sqrt((standardised**2).mean())), 0.8)
    return Scores(size * t.ppf(_PROBABILITIES, df=max(n / 2.0, 3.0)), n)


def check_coverage(coverage: float) -> float:
    """The coverage itself.

    Raises:
        SpecError: it is outside `COVERAGE_RANGE` or no number.
    """
    low, high = COVERAGE_RANGE
    if isinstance(coverage, bool) or not isinstance(coverage, int | float) or not low <= coverage <= high:
        raise SpecError(f"coverage must be between {low} and {high}, got {coverage!r}", field="coverage")
    return float(coverage)


def log_scale_target(errors: Floats) -> Floats:
    """What the scale model learns: ln of the error's size, floored where errors are below what clocks can tell."""
    floor = 0.002
    return np.log(np.abs(errors) + floor)


def scale_of(log_scale: Floats) -> Floats:
    """Scale from the scale model's answer, within limits so that one odd leaf cannot give an absurd interval."""
    return np.clip(np.exp(log_scale), _LEAST_SIZE, _MOST_SIZE)


@dataclass(frozen=True, slots=True, order=True, repr=False)
class Interval:
    """A predicted value and the interval around it, in the target's SI unit; lower ≤ value ≤ upper.

    Intervals are ordered by their value. What they are of is not known to them, nor how their errors are correlated, so that
    arithmetic takes the worst case: a sum has the sums of the ends, as if all errors were one; a difference and a ratio have
    those of opposite ends. Of whole answers more is known (`kernelcast.Answer`).

    Attributes:
        value: The prediction.
        lower: Lower end.
        upper: Upper end.
    """

    value: float
    lower: float
    upper: float

    def __repr__(self) -> str:
        return f"{self.value:.4g} ({self.lower:.4g} to {self.upper:.4g})"

    def __add__(self, other: Interval | float) -> Interval:
        if isinstance(other, Interval):
            return Interval(self.value + other.value, self.lower + other.lower, self.upper + other.upper)
        if isinstance(other, int | float):
            return Interval(self.value + other, self.lower + other, self.upper + other)
        return NotImplemented

    # `sum` starts from 0.
    __radd__ = __add__

    def __sub__(self, other: Interval | float) -> Interval:
        if isinstance(other, Interval):
            return Interval(self.value - other.value, self.lower - other.upper, self.upper - other.lower)
        return self + -other if isinstance(other, int | float) else NotImplemented

    def __format__(self, spec: str) -> str:
        # Such as `f"{latency:.2g}"`: each number so.
        return f"{self.value:{spec}} ({self.lower:{spec}} to {self.upper:{spec}})" if spec else repr(self)

    def __mul__(self, factor: float) -> Interval:
        return self.scaled(factor) if isinstance(factor, int | float) and factor >= 0 else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, other: Interval | float) -> Interval:
        if isinstance(other, Interval) and other.lower > 0:
            return Interval(self.value / other.value, self.lower / other.upper, self.upper / other.lower)
        return self.scaled(1 / other) if isinstance(other, int | float) and other > 0 else NotImplemented

    def __rtruediv__(self, amount: float) -> Interval:
        """An amount of 0 or more over what this one is of, such as operations over seconds: the upper end gives the lower."""
        return Interval(amount / self.value, amount / self.upper, amount / self.lower)

    def scaled(self, factor: float) -> Interval:
        """The interval of `factor` times what this one is of."""
        return Interval(self.value * factor, self.lower * factor, self.upper * factor)


@dataclass(frozen=True, slots=True)
class TargetColumns:
    """One target of `n` cases: columns of shape `(n,)`, NaN where the target is unknown.

    Attributes:
        value: Predicted values.
        lower: Lower ends of the intervals.
        upper: Upper ends of the intervals.
    """

    value: Floats
    lower: Floats
    upper: Floats

    @classmethod
    def joined(cls, parts: Sequence[TargetColumns]) -> TargetColumns:
        """The columns of all parts, one after the other."""
        return cls(*(np.concatenate([getattr(part, end) for part in parts]) for end in ("value", "lower", "upper")))

    def at(self, i: int) -> Interval | None:
        """The interval of case `i`, or None where the target is unknown."""
        if np.isnan(self.value[i]):
            return None
        return Interval(float(self.value[i]), float(self.lower[i]), float(self.upper[i]))


def score_row(
    scores: Mapping[str, Scores], regime: str, kind: str, coverage: float, has_kernels: bool, state_deviation: float
) -> Sequence[float]:
    """What intervals of a category take from the scores of its target: what `interval_ends` reads.

    `kind` is that of the device; `has_kernels` says whether the target is a time of kernels that libraries choose by size;
    `state_deviation` is that of the device's fact, 0 where it has none or the target does not follow it.
    """
    chosen = next(scores[name] for name in (scores_name(regime, kind), regime, "seen") if name in scores)
    duplicates = [scores[name] for name in (scores_name(NEAR_DUPLICATE, kind), NEAR_DUPLICATE) if name in scores]
    duplicate = duplicates[0] if duplicates else chosen.widened(_DUPLICATE_FACTOR)
    normal = NormalDist().inv_cdf((1.0 + coverage) / 2.0)
    # Beyond what was measured errors grow, small as they were inside; of devices never measured that is in the scores.
    growth, jump = (
        error * normal * (regime == "seen") for error in (_LOG_ERROR_OUTSIDE, _LOG_ERROR_ELSEWHERE * has_kernels)
    )
    bounds = [
        number for each in (chosen, duplicate)
        for number in (*each.bounds(coverage), each.exponent, math.log(each.largest_size))
    ]  # fmt: skip
    state = normal * state_deviation
    return *bounds, regime == "unseen_kind", regime == "unseen_device", regime == "adapted", growth, jump, state


ROW_NUMBERS = 14
"""Numbers of a `score_row`."""


def interval_rows(
    latency_s: Any, bound_s: Any, log_power: Any, limit_w: Any, idle_w: Any, ends: Sequence[tuple[Any, Any, Any, Any]],
    *, energy_is_product: bool = False,
) -> Any:  # fmt: skip
    """Value, lower and upper end of latency, and of power and energy where power is predicted, shape `(3, n)` or `(9, n)`.

    Args:
        latency_s: Predicted latency, shape `(n,)` like the rest.
        bound_s: Its lower bound.
        log_power: ln of the predicted share of the power limit; None where none is predicted.
        limit_w: Power limit, NaN where none is public.
        idle_w: Least power, likewise.
        ends: For each of `SCORED` that has scores, what `interval_ends` gives.
        energy_is_product: Whether latency and power were learned from different families.
    """
    latency = _between(latency_s, *ends[0][:2], bound_s)
    if log_power is None:
        return np.stack(latency)
    value = np.minimum(np.maximum(limit_w * np.exp(log_power), idle_w), limit_w)
    power = _between(value, *ends[1][:2], idle_w, limit_w)
    # No energy outside what the ends of latency and power give together.
    energy = _between(latency_s * value, *ends[2][:2], latency[1] * power[1], latency[2] * power[2])
    is_product = (ends[0][3] > 0) | (ends[1][3] > 0) | energy_is_product
    chosen = [np.where(is_product, *pair) for pair in zip(_product(latency, power), energy, strict=True)]
    # A kind of device whose power was never measured, or without a public limit, has no power.
    known = (ends[1][2] == 0) & ~np.isnan(value)
    return np.stack([*latency, *(np.where(known, row, np.nan) for row in (*power, *chosen))])


def interval_ends(
    scores: Any, log_scale: Any, factor: Any, near_duplicate: Any, deviation: Any
) -> tuple[Any, Any, Any, Any]:
    """Ends of an interval as multiples of the value, and whether its regime is unseen_kind and adapted, shape `(n,)` each.

    Args:
        scores: A `score_row`, shape `(ROW_NUMBERS, n)`.
        log_scale: What the scale model answers; None where there is none, and errors have size 1.
        factor: Widening outside the domain.
        near_duplicate: How far another edition of the chip was measured.
        deviation: The standard deviation that an adaptation claims, NaN where none does; None where no case has one.
    """
    low, high, exponent, largest, *duplicate, plain, unseen, adapted, growth, jump, state = scores
    duplicate_low, duplicate_high, duplicate_exponent, duplicate_largest = duplicate
    near = np.where(unseen > 0, near_duplicate, 0.0)
    log_size = 0.0 * factor if log_scale is None else np.maximum(log_scale, math.log(_LEAST_SIZE))
    size = np.exp(exponent * np.minimum(log_size, largest))
    if deviation is not None:
        size = np.where((adapted > 0) & ~np.isnan(deviation), deviation, size)
    duplicate_size = near * np.exp(duplicate_exponent * np.minimum(log_size, duplicate_largest))
    size = (1.0 - near) * size
    low, high = low * size + duplicate_low * duplicate_size, high * size + duplicate_high * duplicate_size
    factor = np.where(unseen > 0, np.sqrt(factor), factor)
    outside = growth * (factor - 1.0) + jump * np.minimum((factor - 1.0) / WIDENING_PER_STEP, 1.0)
    # What a shared machine does otherwise on another day has nothing to do with the model's errors.
    below, above = (np.sqrt(end * end * factor * factor + state * state) for end in (low, high))
    return np.exp(-below - outside), np.exp(np.minimum(above + outside, _MAX_LOG_WIDTH)), plain, adapted


def _between(value: Any, lower: Any, upper: Any, floor: Any, ceiling: Any = None) -> tuple[Any, Any, Any]:
    """Values with intervals whose ends are multiples of them, kept between `floor` and `ceiling`, shape `(n,)` each."""
    low, high = np.maximum(value * lower, floor), np.maximum(value * upper, value)
    if ceiling is None:
        return value, np.minimum(low, value), high
    return value, np.minimum(low, np.minimum(value, ceiling)), np.minimum(high, np.maximum(ceiling, value))


def _product(latency: Sequence[Any], power: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Energy from the other two, their errors taken as independent: half-widths add up in squares."""
    value = latency[0] * power[0]

    def both(high: int, low: int) -> Any:
        ours, other = (np.log(target[high] / target[low]) for target in (latency, power))
        return np.sqrt(ours * ours + other * other)

    return value, value * np.exp(-both(0, 1)), value * np.exp(both(2, 0))
