"""What a prediction says: a value and an interval per target, how they follow from what graphs answer, how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ...features.batch.cases import Cases, Floats, Strings
from ...features.device import Catalogue, Device
from ...features.kernel import KernelSpec, get_family
from ..engine.program import Program
from ..family_model.artifact import FamilyModel
from ..family_model.device_correction import Adaptation
from ..family_model.intervals import (
    REGIMES,
    ROW_NUMBERS,
    SCORED,
    WIDENING_PER_STEP,
    interval_ends,
    interval_rows,
    score_row,
)
from ..family_model.intervals import Interval as Interval
from ..family_model.intervals import TargetColumns as TargetColumns

TARGETS = ("latency_s", "power_w", "energy_j")
"""What can be predicted; energy is always the product of the other two."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one case costs.

    Attributes:
        latency_s: Time of one run.
        power_w: Mean power; None where it is unknown.
        energy_j: Energy of one run; None likewise.
        coverage: Share of cases the intervals are built to contain.
        method: The regressor and any stand-in (`impl` read as its nearest version).
        in_domain: Whether the model was trained on cases like this one.
        notes: Why it is out of domain.
        bound: The limit that binds on paper.
        breakdown: Every limit in seconds.
        regime: The regime of its latency, one of `intervals.REGIMES`.
        timing: What the time contains, one of `kernel.TIMINGS`: the kernel alone, or a call of it.
    """

    latency_s: Interval
    power_w: Interval | None
    energy_j: Interval | None
    coverage: float
    method: str
    in_domain: bool
    notes: tuple[str, ...]
    bound: str
    breakdown: Mapping[str, float]
    regime: str
    timing: str = field(default="device", kw_only=True)


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions of `n` cases in columns; `rows` gives them one by one.

    Attributes:
        targets: Latency, power and energy by name (`TARGETS`).
        coverage: Share of cases the intervals are built to contain.
        method: How each came about, shape `(n,)` like the rest.
        in_domain: Whether the model was trained on cases like it.
        notes: Why it is out of domain.
        bound: The limit that binds on paper.
        breakdown: Every limit in seconds, by name.
        regimes: The regime of its latency.
        timings: What the time contains, one of `kernel.TIMINGS`.
    """

    targets: Mapping[str, TargetColumns]
    coverage: float
    method: Sequence[str]
    in_domain: np.ndarray[Any, np.dtype[np.bool_]]
    notes: Sequence[tuple[str, ...]]
    bound: Sequence[str]
    breakdown: Mapping[str, Floats]
    regimes: Sequence[str] | Strings
    timings: Sequence[str]

    @classmethod
    def joined(cls, parts: Sequence[Predictions]) -> Predictions:
        """Predictions of at least one part, one after the other."""
        first = parts[0]
        return cls(
            targets={name: TargetColumns.joined([part.targets[name] for part in parts]) for name in first.targets},
            coverage=first.coverage,
            method=[word for part in parts for word in part.method],
            in_domain=np.concatenate([part.in_domain for part in parts]),
            notes=[note for part in parts for note in part.notes],
            bound=[word for part in parts for word in part.bound],
            breakdown={name: np.concatenate([part.breakdown[name] for part in parts]) for name in first.breakdown},
            regimes=np.concatenate([np.asarray(part.regimes) for part in parts]),
            timings=[word for part in parts for word in part.timings],
        )

    @classmethod
    def from_rows(cls, rows: Sequence[Prediction]) -> Predictions:
        """The columns of predictions of one coverage, at least one."""
        unknown = Interval(math.nan, math.nan, math.nan)
        cells = {name: [getattr(row, name) or unknown for row in rows] for name in TARGETS}
        return cls(
            targets={
                name: TargetColumns(*(np.array([getattr(cell, end) for cell in column]) for end in ("value", "lower", "upper")))
                for name, column in cells.items()
            },
            coverage=rows[0].coverage,
            method=[row.method for row in rows],
            in_domain=np.array([row.in_domain for row in rows], dtype=np.bool_),
            notes=[row.notes for row in rows],
            bound=[row.bound for row in rows],
            breakdown={name: np.array([row.breakdown[name] for row in rows]) for name in rows[0].breakdown},
            regimes=[row.regime for row in rows],
            timings=[row.timing for row in rows],
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.method)

    def take(self, index: Any) -> Predictions:
        """The predictions at `index`, in that order."""
        targets = {
            name: TargetColumns(column.value[index], column.lower[index], column.upper[index])
            for name, column in self.targets.items()
        }
        method, notes, bound, regimes, timings = (
            [words[i] for i in index] for words in (self.method, self.notes, self.bound, self.regimes, self.timings)
        )
        limits = {name: column[index] for name, column in self.breakdown.items()}
        return Predictions(
            targets, self.coverage, method, self.in_domain[index], notes, bound, limits, regimes, timings
        )

    def row(self, i: int) -> Prediction:
        """The prediction of case `i`."""
        here = slice(i, i + 1) if i >= 0 else slice(i, i + 1 or None)
        targets = {name: TargetColumns(column.value[here], column.lower[here], column.upper[here])
                   for name, column in self.targets.items()}  # fmt: skip
        limits = {name: column[here] for name, column in self.breakdown.items()}
        single = Predictions(targets, self.coverage, self.method[here], self.in_domain[here], self.notes[here],
                             self.bound[here], limits, self.regimes[here], self.timings[here])  # fmt: skip
        return single.rows()[0]

    def rows(self) -> list[Prediction]:
        """The predictions one by one."""
        if np.isnan(self.targets["latency_s"].value).any():
            raise ValueError("a prediction always has a latency")
        latency, power, energy = (
            [None if value != value else Interval(value, lower, upper) for value, lower, upper in zip(
                columns.value.tolist(), columns.lower.tolist(), columns.upper.tolist(), strict=True)]
            for columns in (self.targets[name] for name in TARGETS)
        )  # fmt: skip
        names = tuple(self.breakdown)
        limits = zip(*(column.tolist() for column in self.breakdown.values()), strict=True)
        return [
            Prediction(seconds, watts, joules, self.coverage, method, inside, notes, bound,
                       dict(zip(names, limit_s, strict=True)), str(regime), timing=timing)
            for seconds, watts, joules, method, inside, notes, bound, limit_s, regime, timing in zip(
                latency, power, energy, self.method, self.in_domain.tolist(), self.notes, self.bound, limits, self.regimes,
                self.timings, strict=True)
        ]  # fmt: skip


class Predictor(Protocol):
    """Anything that predicts: a trained artifact, a registry's champion, a fake in tests.

    Attributes:
        devices: The devices known.
    """

    devices: Catalogue

    def predict(
        self, specs: Sequence[KernelSpec], devices: Sequence[str], *, coverage: float = 0.9
    ) -> list[Prediction]:
        """Predictions in the order given; any mix of families; `devices` names one device per spec.

        Raises:
            SpecError: unknown device, a family the model was not trained on, or a coverage outside what is possible.
        """

    def impls(self, family: str) -> Sequence[str]:
        """The implementations with measured rows of a family, on whatever device.

        Raises:
            SpecError: the model was not trained on the family.
        """

    def predict_cases(self, cases: Cases, *, coverage: float = 0.9) -> Predictions:
        """Predictions of cases of one family, in columns."""

    def in_long_loops(self) -> Predictor:
        """The same for kernels that run among others for seconds, as those of programs and services do."""


_STEPS_PER_UNKNOWN_LABEL = 2.0
"""A dtype, variant or impl never measured widens like a case two typical spacings outside the domain: doubled."""


HOST_S = 60e-6
"""Most time of a call beside its kernel's: hosts of public tables take 25 to 58 us for a launch."""

MOST_PASSES: Mapping[str, float] = {"copy": 2.0, "elementwise": 3.0, "softmax": 4.0}
"""Families of which memory bounds from above what a GPU never measured takes: `HOST_S` and so many times what its bytes take at
the peak. Of 7 GPUs' elementwise kernels over 99.9 % take no longer, of their softmaxes 99.0; norms of few long rows do."""


def answer_programs(model: FamilyModel, n_logs: int, scale_graphs: Sequence[int | None]) -> Mapping[bool, Program]:
    """From logs, error sizes and what else `predict` gives to `interval_rows`; True: with deviations of an adaptation."""
    n_scores = len(scale_graphs)
    n_scales = sum(graph is not None for graph in scale_graphs)
    utilisation = model.utilisation and (model.steady or model.utilisation)
    n_single = 3 if utilisation is None else 5
    passes = MOST_PASSES.get(model.schema.family, 0.0)

    def formula(logs: Any, scales: Any, single: Any, deviation: Any, numbers: Any, scores: Any) -> Any:
        (bound_s, excess, near_duplicate, *peaks_s), (learned, novelty, limit_w, idle_w, host_s) = single, numbers
        # Off the device kinds it was trained on, what was learned means nothing: the median ratio stands in.
        scaled = bound_s * np.exp(model.median_log_ratio)
        latency_s = np.maximum(np.where(learned > 0, np.exp(logs[0]), scaled), bound_s)
        factor = 1.0 + WIDENING_PER_STEP * (excess + _STEPS_PER_UNKNOWN_LABEL * novelty)
        left, ends = iter(scales), []
        for i, graph in enumerate(scale_graphs):
            score, scale = scores[i * ROW_NUMBERS : (i + 1) * ROW_NUMBERS], None if graph is None else next(left)
            claimed = deviation[i] if len(deviation) else None
            ends.append(interval_ends(score, scale, factor, near_duplicate, claimed))
        if passes and peaks_s:
            low, high, *regime = ends[0]
            most = np.maximum((host_s + passes * peaks_s[1]) / latency_s, 1.0)
            ends[0] = (low, np.minimum(high, most), *regime)
        log_power = logs[1] if n_logs > 1 else utilisation and utilisation.log_share(latency_s, *peaks_s)
        return interval_rows(
            latency_s, bound_s, log_power, limit_w, idle_w, ends, energy_is_product=utilisation is not None
        )

    return {
        adapted: Program(formula, (n_logs, n_scales, n_single, n_scores * adapted), (5, n_scores * ROW_NUMBERS))
        for adapted in (False, True)
    }


_MAX_COVERAGES = 64
"""Coverages of which a category's scores are kept; callers ask for few."""


class ScoreRows(dict[float, Floats]):
    """What answers of a category take from its support, its device and the scores of its regimes, by coverage.

    Each is computed when a coverage is first looked up: whether a learned model applies, labels never seen, power limit, least
    power, `HOST_S` where memory bounds the interval from above, and a `score_row` for each target.
    """

    def __init__(
        self,
        model: FamilyModel,
        regimes: Mapping[str, str],
        adaptations: Mapping[str, Adaptation],
        device: Device,
        numbers: Sequence[float],
    ) -> None:
        super().__init__()
        self._numbers = tuple(numbers)
        self._model = model
        self._regimes = dict(regimes)
        if "power" in regimes:
            # Energy is as novel as the more novel of the two it is made of.
            self._regimes["energy"] = max(regimes["latency"], regimes["power"], key=REGIMES.index)
        self._adaptations = adaptations
        self._kind = device.kind
        state = device.measured.get("state_deviation")
        self._state_deviation = 0.0 if state is None else state.value
        family = get_family(model.schema.family)
        self._has_kernels = family.by_row or family.tiles is not None

    def __missing__(self, coverage: float) -> Floats:
        numbers = [*self._numbers]
        for target in (name for name in SCORED if name in self._regimes):
            regime, scores = self._regimes[target], self._model.targets[target].scores
            # Energy on an adapted device is put together from the other two afterwards.
            if regime == "adapted" and target in self._adaptations:
                scores = {regime: self._adaptations[target].scores}
            has_kernels, measured = self._has_kernels and target != "power", regime in ("seen", "adapted")
            deviation = self._state_deviation if measured and target != "power" else 0.0
            numbers += score_row(scores, regime, self._kind, coverage, has_kernels, deviation)
        if len(self) >= _MAX_COVERAGES:
            self.clear()
        return self.setdefault(coverage, np.array(numbers, dtype=np.float64))
