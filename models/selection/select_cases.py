"""What to measure tonight: cases picked for a number of seconds of measuring, by what they teach for what they cost.

The first rows of anything new fill the space; from then on the size of a model's errors says where a row is worth most. Either
way a case is worth by how far it lowers the expected squared error of ln(latency) over all candidates, per second of
measuring it, and candidates near what people ask for count more. `suggest` does the same for calibrating a model
to a device by a few rows; here whole nights are chosen, and the model is trained again afterwards.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...features.batch.cases import Floats, Indices
from ...features.device import Catalogue, catalogue
from ...features.errors import SpecError
from ...features.kernel import KernelSpec
from ..predict.predictor import ArtifactPredictor
from ..regressor import Progress, no_progress
from .case_space import Gains, Space
from .offers import DeviceEstimates, Offer, usage_weights

Stratum = tuple[str, str, str]
"""Family, implementation and dtype."""

Why = Literal["space-filling", "informative", "usage", "repeat"]

FIRST_ROWS = 3
"""Rows that an implementation and dtype of common size gets before anything else; a rare one gets fewer, one at least."""

TRUSTED_ROWS = 20
"""Rows of an implementation and dtype from which on a model's word on it is taken, as many as `fitting.MIN_ROWS`."""

SURE_ROWS = 200
"""Rows of an implementation and dtype from which half of what a model says of single cases' errors is believed; of fewer less,
the rest being the mean over its cases: widths learned from few rows are noise (decision 014)."""

USAGE_SHARE = 0.5
"""What part of all weight lies on what people ask for, where that is known; the rest lies evenly on all candidates."""

REPEAT_SHARE = 0.05
"""What part of the seconds goes to measuring again what was measured, so that drift is seen."""

_NOISE = 0.3
"""Noise of a measurement beside the deviation of what is unknown: what neighbours cannot tell, steps of libraries above all."""

_UNKNOWN_ERROR = 0.5
"""Size of ln errors of what no model knows."""

_SMALLEST, _LARGEST = 0.2, 5.0
"""An error's size counts as at least and at most so many times its family's median: a few odd leaves must not take a night."""

_STEPS = 300
"""Updates of what is known that a batch is chosen in; a long batch takes several cases at a time."""

_ALIKE = 0.3
"""Cases taken at a time are not more alike than this."""

_ASKED_FOR = 2.0
"""A case whose weight is so many times the mean was chosen for usage."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How cases are compared; the defaults are the rule, other values its ablations in `benchmarks/choosing.py`.

    Attributes:
        cost_power: A gain is divided by seconds to this power.
        size_power: The size of a model's errors counts to this power (0: all alike).
        by: `gain`, or `width` for the case's own interval alone.
        updated: False lets what is taken already say nothing of the others.
        first_rows: Rows that an implementation and dtype gets before anything else.
    """

    cost_power: float = 1.0
    size_power: float = 0.5
    by: Literal["gain", "width"] = "gain"
    updated: bool = True
    first_rows: int = FIRST_ROWS


RULE = Rule()


@dataclass(frozen=True, slots=True)
class SelectedCase:
    """A case to measure.

    Attributes:
        spec: The case.
        why: What it was selected for.
        latency_s: What it is predicted to take.
        measuring_s: What measuring it costs, in seconds.
        worth: By how much it lowers the weighted mean of the expected squared error of ln(latency), per second of measuring;
            0 for a repeat.
    """

    spec: KernelSpec
    why: Why
    latency_s: float
    measuring_s: float
    worth: float


def choose(
    model: Path | ArtifactPredictor | None,
    device: str,
    candidates: Sequence[KernelSpec],
    *,
    seconds: float,
    measured: Sequence[KernelSpec] = (),
    usage: Mapping[KernelSpec, float] | None = None,
    devices: Catalogue | None = None,
    repeats: float = REPEAT_SHARE,
    first_call_s: Mapping[tuple[str, str], float] | None = None,
    rule: Rule = RULE,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[SelectedCase]:
    """Cases to measure for about `seconds` of measuring, the most useful first, then repeats.

    Never a measured case (other than as a repeat), none twice, none predicted to take more than `LONGEST_S` or more memory
    than the device has, none in a dtype the device has no peak for. What is predicted to be spent ends at most one case over
    `seconds`. Equal arguments give equal choices.

    Args:
        model: the artifact in use, or what was read of it; None: none. A family or device it does not know is chosen by
            filling the space.
        device: catalogue name or alias.
        candidates: what a collector could measure there, of any families.
        seconds: of measuring, by `measuring_cost`.
        measured: what was measured on the device already.
        usage: how often people asked for a kernel; sizes count, and as far as they say it dtype and variant.
        devices: the catalogue, default the shipped one.
        repeats: the share of `seconds` for measuring again, from 0 to 1, as far as anything was measured.
        first_call_s: seconds a first call takes by family and impl, where that is known.
        rule: how cases are compared.
        seed: of the order among equals and of the repeats.
        progress: called family by family with what is being looked at.

    Raises:
        SpecError: a device the catalogue does not know, or a number that is none, negative, or a share above 1.
        ArtifactError: the model is damaged.
    """
    _check("seconds", seconds)
    _check("repeats", repeats, most=1.0)
    known = devices or catalogue()
    estimates = DeviceEstimates.of(model, device, known, first_call_s or {})
    steps = progress or no_progress
    had, offered = estimates.by_family(measured), estimates.by_family(candidates)
    again = _repeated(estimates, had, seconds * repeats, seed)
    offers: dict[str, Offer] = {}
    for i, (name, specs) in enumerate(offered.items()):
        steps(f"looking at {name}", i, len(offered))
        if fresh := [spec for spec in specs if spec not in had.get(name, {})]:
            offers[name] = estimates.offer(fresh)
    offers = {name: offer for name, offer in offers.items() if len(offer)}
    valid_usage = {spec: count for spec, count in (usage or {}).items() if math.isfinite(count) and count > 0}
    weights = usage_weights(offers, valid_usage, estimates, USAGE_SHARE)
    steps("choosing", len(offered), len(offered))
    families = [
        _Family(estimates, offer, list(had.get(name, {})), weights[name], rule, seed) for name, offer in offers.items()
    ]
    return [*_batch(families, seconds - sum(case.measuring_s for case in again)), *again]


def _check(name: str, value: float, most: float = math.inf) -> None:
    if not 0.0 <= value <= most or not math.isfinite(value):
        wanted = "0 or more" if math.isinf(most) else f"between 0 and {most:g}"
        raise SpecError(f"{name} must be {wanted}, got {value!r}", field=name)


def _batch(families: Sequence[_Family], seconds: float) -> list[SelectedCase]:
    """Cases of all families, the most useful first, until the seconds are spent."""
    chosen: list[SelectedCase] = []
    left = seconds
    if not families:
        return chosen
    typical = float(np.median(np.concatenate([family.offer.seconds for family in families])))
    at_a_time = max(1, math.ceil(seconds / typical / _STEPS))
    best = {i: family.best() for i, family in enumerate(families)}
    while left > 0 and best:
        i = max(best, key=lambda place: best[place])
        for case in families[i].take(at_a_time):
            if left > 0:
                chosen.append(case)
                left -= case.measuring_s
        if families[i].free.any():
            best[i] = families[i].best()
        else:
            del best[i]
    return chosen


def _repeated(
    estimates: DeviceEstimates, had: Mapping[str, Mapping[KernelSpec, None]], seconds: float, seed: int
) -> list[SelectedCase]:
    """Measured cases for at most `seconds`, from every family, implementation and dtype in turn."""
    rng = np.random.default_rng(seed)
    waiting: dict[Stratum, list[SelectedCase]] = {}
    if seconds > 0:
        for specs in had.values():
            offer = estimates.offer(list(specs))
            for i in rng.permutation(len(offer)).tolist():
                spec = offer.specs[i]
                repeat = SelectedCase(spec, "repeat", float(offer.latency_s[i]), float(offer.seconds[i]), 0.0)
                waiting.setdefault(_stratum(spec), []).append(repeat)
    repeated: list[SelectedCase] = []
    left = seconds
    queues = [waiting[stratum] for stratum in sorted(waiting)]
    for place in rng.permutation(len(queues)).tolist() * max(map(len, queues), default=0):
        if queues[place] and queues[place][-1].measuring_s <= left:
            repeated.append(queues[place].pop())
            left -= repeated[-1].measuring_s
    return repeated


class _Family:
    """Choosing among one family's candidates.

    Strata are implementations and dtypes. One that has fewer than its first rows, those chosen so far included, comes
    before all others; of one that has fewer than `TRUSTED_ROWS` no model's word is taken.
    """

    def __init__(
        self,
        estimates: DeviceEstimates,
        offer: Offer,
        measured: Sequence[KernelSpec],
        weights: Floats,
        rule: Rule,
        seed: int,
    ) -> None:
        n = len(offer)
        self.offer, self.rule, self.weights = offer, rule, weights
        rows = Counter(_stratum(spec) for spec in measured)
        strata = list(dict.fromkeys(map(_stratum, offer.specs)))
        numbers = {stratum: number for number, stratum in enumerate(strata)}
        self.stratum = np.array([numbers[_stratum(spec)] for spec in offer.specs], dtype=np.intp)
        self.rows = np.array([rows[stratum] for stratum in strata], dtype=np.intp)
        common = np.bincount(self.stratum) * len(strata) / n
        self.first = np.clip(np.ceil(rule.first_rows * common), 1, rule.first_rows)
        both = [*offer.specs, *measured]
        enough = np.array([rows[_stratum(spec)] >= TRUSTED_ROWS for spec in both], dtype=np.bool_)
        self.predicted = enough[:n] & ~np.isnan(offer.size)
        self.size = _sizes(offer.size, self.predicted, self.stratum, self.rows)
        there = estimates.answers(estimates.cases(measured))[0] if measured else np.zeros(0)
        answered = np.where(enough, np.concatenate([offer.latency_s, there]), np.nan)
        self.places, left_out = Space.of(estimates.cases(both), estimates.devices, np.arange(n), answered).directions()
        self.free = np.ones(n, dtype=np.bool_)
        # Among equals the order of the candidates decides nothing: a factor too small for anything else.
        self.chance = 1.0 + 1e-9 * np.random.default_rng(seed).random(n)
        noise = np.sqrt(_NOISE**2 + left_out)
        matter = weights * self.size ** (2.0 * rule.size_power)
        self.gains = Gains(
            _posterior_covariance(self.places[n:], noise[n:]), noise[:n], places=self.places[:n], weights=matter
        )
        self.places = self.places[:n]
        self._first = self.gains.gain()

    def _worth(self) -> Floats:
        """What each candidate is worth per second, shape `(n,)`; -inf for those taken."""
        gain = self.gains.gain() if self.rule.updated else self._first
        value = gain if self.rule.by == "gain" else self.size
        return np.where(self.free, value / self.offer.seconds**self.rule.cost_power * self.chance, -np.inf)

    def _lacking(self) -> npt.NDArray[np.bool_]:
        """Whether each candidate is free and of a stratum with too few rows, shape `(n,)`."""
        return (self.rows < self.first)[self.stratum] & self.free

    def best(self) -> tuple[bool, float]:
        """Whether strata lack rows, and the worth of the best candidate: what families are compared by."""
        lacking, worth = self._lacking(), self._worth()
        return bool(lacking.any()), float(worth[lacking].max() if lacking.any() else worth.max())

    def take(self, most: int) -> list[SelectedCase]:
        """The best candidate, and up to `most` that are good and unlike each other."""
        lacking, worth = self._lacking(), self._worth()
        filling = bool(lacking.any())
        order = np.argsort(-np.where(lacking, worth, -np.inf) if filling else -worth, kind="stable")[: 8 * most]
        order = order[lacking[order] if filling else self.free[order]]
        alike = np.abs(self.places[order] @ self.places[order].T) > _ALIKE
        picked: list[int] = []
        for i in range(len(order)):
            if len(picked) < (1 if filling else most) and not alike[i, picked].any():
                picked.append(i)
        index = [int(order[i]) for i in picked]
        chosen = [self._chosen(i, float(worth[i])) for i in index]
        self.free[index] = False
        np.add.at(self.rows, self.stratum[index], 1)
        self.gains.take(index)
        return chosen

    def _chosen(self, i: int, worth: float) -> SelectedCase:
        asked_for = self.weights[i] >= _ASKED_FOR * float(np.mean(self.weights))
        why: Why = "usage" if asked_for else "informative" if self.predicted[i] else "space-filling"
        return SelectedCase(
            self.offer.specs[i], why, float(self.offer.latency_s[i]), float(self.offer.seconds[i]), worth
        )


def _posterior_covariance(places: Floats, noise: Floats) -> Floats:
    """Covariance of the weights of directions once cases at `places` `(m, r)` are measured, `(r, r)`."""
    r = places.shape[1]
    inverse = np.eye(r) + places.T @ (places / (noise**2)[:, None])
    known: Floats = np.linalg.inv(inverse).astype(np.float64)
    return (known + known.T) / 2.0


def _stratum(spec: KernelSpec) -> Stratum:
    return spec.family, spec.impl, spec.dtype


def _sizes(claimed: Floats, trusted: npt.NDArray[np.bool_], stratum: Indices, rows: Indices) -> Floats:
    """Deviations of ln(latency), shape `(n,)`: those claimed, drawn towards the mean of their stratum the fewer rows it has.

    The family's median stands where a claim is not taken; where there is none, what the unknown may be off by.
    """
    known = ~np.isnan(claimed)
    if not known.any():
        return np.full(len(claimed), _UNKNOWN_ERROR)
    middle = float(np.median(claimed[trusted if trusted.any() else known]))
    sizes = np.where(known, middle, max(_UNKNOWN_ERROR, middle))
    for number, count in enumerate(rows.tolist()):
        members = np.flatnonzero(trusted & (stratum == number))
        if len(members):
            logs = np.log(np.clip(claimed[members], _SMALLEST * middle, _LARGEST * middle))
            sizes[members] = np.exp(logs.mean() + count / (count + SURE_ROWS) * (logs - logs.mean()))
    return sizes
