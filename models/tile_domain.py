"""Is a case with tuning knobs like those that were measured? Judged by impl, in the space of its work and its knobs.

The space of sizes alone does not tell: large products were measured, and so were tiles of 1 × 1, but never a large product
in tiles of 1 × 1, and what small products say of those tiles says nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..features.cases import Floats
from ..features.extract import Features

_POINTS = 512
_QUANTILE = 0.98
_LEAST_REACH = 1.0
"""A factor of two in one knob, or in the work, is never called far."""

_ABSENT = -4.0
"""Stands for a knob that is not set: four doublings from the smallest."""


@dataclass(frozen=True, slots=True)
class TileDomain:
    """Training rows with knobs, by impl: log2 of their work and knobs (`names`), and how far apart such rows lie."""

    names: tuple[str, ...]
    points: Mapping[str, Floats]
    reach: Mapping[str, float]

    @classmethod
    def fit(cls, features: Features, seed: int) -> TileDomain:
        """The domain of those training rows that have knobs; empty where none has."""
        names = tuple(name for name in features.schema.names if name == "log flops" or name.startswith("knob "))
        space, tiled = _space(features, names)
        points, reach = {}, {}
        for impl in sorted(features.read_as.words):
            own = space[tiled & features.read_as.is_word(impl)]
            if not len(own):
                continue
            own = own[np.random.default_rng(seed).permutation(len(own))[:_POINTS]]
            apart = _distances(own, own) + np.diag(np.full(len(own), np.inf))
            nearest = apart.min(axis=1) if len(own) > 1 else np.zeros(1)
            points[impl], reach[impl] = own, max(float(np.quantile(nearest, _QUANTILE)), _LEAST_REACH)
        return cls(names, points, reach)

    def excess(self, features: Features) -> Floats:
        """How far each case lies outside, in steps of its impl's reach, shape `(n,)`; 0 inside and without knobs."""
        found = np.zeros(len(features.values))
        if not self.points:
            return found
        if np.isnan(features.values[:, _knob_positions(features.schema.names)]).all():
            return found
        space, tiled = _space(features, self.names)
        for impl, points in self.points.items():
            rows = np.flatnonzero(tiled & features.read_as.is_word(impl))
            if len(rows):
                found[rows] = np.maximum(_distances(space[rows], points).min(axis=1) / self.reach[impl] - 1.0, 0.0)
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        points = {impl: np.round(found, 2).tolist() for impl, found in self.points.items()}
        return {"names": self.names, "points": points, "reach": dict(self.reach)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TileDomain:
        """The domain `to_json` described."""
        points = {impl: np.asarray(found, dtype=np.float64) for impl, found in data["points"].items()}
        return cls(tuple(data["names"]), points, dict(data["reach"]))


@lru_cache(maxsize=256)
def _knob_positions(names: tuple[str, ...]) -> list[int]:
    return [i for i, name in enumerate(names) if name.startswith("knob ")]


def _space(features: Features, names: tuple[str, ...]) -> tuple[Floats, Any]:
    """log2 of work and knobs, shape `(n, len(names))`, and which rows have a knob."""
    columns = features.values[:, [features.schema.names.index(name) for name in names]]
    knobs = np.array([name.startswith("knob ") for name in names])
    given = ~np.isnan(columns)
    logs = np.where(knobs, np.log2(np.maximum(np.where(given, columns, 1.0), 0.5)), columns)
    return np.where(given, logs, _ABSENT), given[:, knobs].any(axis=1)


def _distances(space: Floats, points: Floats) -> Floats:
    """Largest difference in any one column, shape `(n, n_points)`."""
    found = np.zeros((len(space), len(points)))
    for column in range(space.shape[1]):
        np.maximum(found, np.abs(space[:, column, None] - points[None, :, column]), out=found)
    return found
