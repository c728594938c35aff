"""What a prediction says: a value and an interval per target, how it came about, and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ...features.batch.cases import Cases, Floats, Strings
from ...features.device import Catalogue
from ...features.kernel import KernelSpec
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
