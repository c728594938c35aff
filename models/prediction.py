"""What a prediction says: a value and an interval per target, how it came about, and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..features.cases import Floats, Strings

TARGETS = ("latency_s", "power_w", "energy_j")
"""What can be predicted; energy is always the product of the other two."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A predicted value and the interval around it, in the target's SI unit; lower ≤ value ≤ upper."""

    value: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one case costs. `power_w` and `energy_j` are None where the model never saw power.

    `coverage` is the share of cases the intervals are built to contain. `method` names the regressor and any stand-in
    (`impl` read as its nearest version); `notes` says why a case is out of domain. `bound` is the limit that binds on
    paper and `breakdown` every limit in seconds. `regime` is the regime of its latency, one of `intervals.REGIMES`.
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


@dataclass(frozen=True, slots=True)
class TargetColumns:
    """One target of `n` cases: three columns of shape `(n,)`, NaN where the target is unknown."""

    value: Floats
    lower: Floats
    upper: Floats

    @classmethod
    def unknown(cls, n: int) -> TargetColumns:
        """`n` cases of which nothing is known."""
        return cls(*(np.full(n, np.nan) for _ in range(3)))

    @classmethod
    def joined(cls, parts: Sequence[TargetColumns]) -> TargetColumns:
        """The columns of all parts, one after the other."""
        return cls(*(np.concatenate([getattr(part, end) for part in parts]) for end in ("value", "lower", "upper")))

    def at(self, i: int) -> Interval | None:
        """The interval of case `i`, or None where the target is unknown."""
        if np.isnan(self.value[i]):
            return None
        return Interval(float(self.value[i]), float(self.lower[i]), float(self.upper[i]))


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions of `n` cases in columns; `row(i)` gives one of them."""

    targets: Mapping[str, TargetColumns]
    coverage: float
    method: Sequence[str]
    in_domain: np.ndarray[Any, np.dtype[np.bool_]]
    notes: Sequence[tuple[str, ...]]
    bound: Sequence[str]
    breakdown: Mapping[str, Floats]
    regimes: Sequence[str] | Strings

    @classmethod
    def joined(cls, parts: Sequence[Predictions]) -> Predictions:
        """Predictions of at least one part, one after the other."""
        first = parts[0]
        return cls(
            targets={name: TargetColumns.joined([part.targets[name] for part in parts]) for name in first.targets},
            coverage=first.coverage,
            method=[word for part in parts for word in part.method],
            in_domain=np.concatenate([part.in_domain for part in parts]),
            notes=[said for part in parts for said in part.notes],
            bound=[word for part in parts for word in part.bound],
            breakdown={name: np.concatenate([part.breakdown[name] for part in parts]) for name in first.breakdown},
            regimes=np.concatenate([np.asarray(part.regimes) for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.method)

    def row(self, i: int) -> Prediction:
        """The prediction of case `i`."""
        latency = self.targets["latency_s"].at(i)
        if latency is None:
            raise ValueError("a prediction always has a latency")
        return Prediction(
            latency_s=latency,
            power_w=self.targets["power_w"].at(i),
            energy_j=self.targets["energy_j"].at(i),
            coverage=self.coverage,
            method=self.method[i],
            in_domain=bool(self.in_domain[i]),
            notes=self.notes[i],
            bound=self.bound[i],
            breakdown={name: float(column[i]) for name, column in self.breakdown.items()},
            regime=str(self.regimes[i]),
        )
