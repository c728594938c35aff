"""Whether intervals hold what they promise: coverage asked for against coverage found, at several levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..features.cases import Floats
from .labelled import Labelled
from .prediction import TARGETS
from .predictor import ArtifactPredictor
from .scoring import canonical

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Coverages that are asked for, within what `models.intervals` can give."""

MOST_ROWS = 20_000
"""Rows of a table that are asked at every level: with as many, chance alone moves a share of 90 % by 0.4 points."""


@dataclass(frozen=True, slots=True)
class Level:
    """What asking for one coverage gave, in percent; `width_pct` is the median of (upper - lower) / value."""

    asked_pct: float
    covered_pct: float
    width_pct: float


@dataclass(frozen=True, slots=True)
class Reliability:
    """One target of one family on devices seen in training, or on others: a level per coverage asked for, `n` rows each."""

    family: str
    target: str
    seen: bool
    n: int
    levels: tuple[Level, ...]


def reliability(
    predictor: ArtifactPredictor, tables: Sequence[Labelled], levels: Sequence[float] = LEVELS
) -> list[Reliability]:
    """Coverage found at every level, for tables of one family; only targets that were measured and predicted.

    Raises:
        SpecError: see `Predictor.predict_cases`.
    """
    chosen = [canonical(_thinned(rows), predictor.devices) for rows in tables if len(rows)]
    if not chosen:
        return []
    family = chosen[0].cases.family.name
    trained = list(predictor.manifest["families"][family]["devices"])
    found: dict[tuple[str, bool], list[Level]] = {}
    counts: dict[tuple[str, bool], int] = {}
    seen = np.concatenate([np.isin(rows.cases.device, trained) for rows in chosen])
    for level in levels:
        answers = [predictor.predict_cases(rows.cases, coverage=level) for rows in chosen]
        for target in TARGETS:
            measured = np.concatenate([_measured(rows, target) for rows in chosen])
            value, lower, upper = (np.concatenate([getattr(one.targets[target], column) for one in answers])
                                   for column in ("value", "lower", "upper"))  # fmt: skip
            known = ~np.isnan(measured) & ~np.isnan(value)
            for regime in (True, False):
                rows = known & (seen == regime)
                if rows.any():
                    inside = (lower <= measured) & (measured <= upper)
                    counts[target, regime] = int(rows.sum())
                    found.setdefault((target, regime), []).append(
                        Level(round(level * 100, 3), _pct(inside[rows].mean()),
                              _pct(np.median((upper - lower)[rows] / value[rows])))
                    )  # fmt: skip
    return [Reliability(family, target, regime, counts[target, regime], tuple(here))
            for (target, regime), here in found.items()]  # fmt: skip


def _thinned(rows: Labelled) -> Labelled:
    """At most `MOST_ROWS` rows, spread evenly over the table."""
    n = len(rows)
    return rows if n <= MOST_ROWS else rows.take(np.linspace(0, n - 1, MOST_ROWS).round().astype(np.int64))


def _measured(rows: Labelled, target: str) -> Floats:
    columns = {"latency_s": rows.latency_s, "power_w": rows.power_w, "energy_j": rows.power_w * rows.latency_s}
    return columns[target]


def _pct(share: Any) -> float:
    return round(float(share) * 100, 3)
