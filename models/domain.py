"""Is a case like what the model was trained on? Outside, the answer says so and its interval widens by construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..features.cases import Floats, Indices
from ..features.coded import Words
from ..features.extract import Features
from .tile_domain import TileDomain

_CORE_POINTS = 640
_TYPICAL_QUANTILE = 0.995
_WIDENING_PER_STEP = 0.5
"""Half-widths grow by half for every step (typical spacing) a case lies beyond the training points' own spacing."""


@dataclass(frozen=True, slots=True)
class Domain:
    """A sample of the training rows in the space of sizes and work, and how far apart such rows lie.

    `points` of shape `(n_points, len(names))` are log2 features; `reach` is the distance to the nearest point that
    `_TYPICAL_QUANTILE` of the training rows stay within; `low` and `high` are the training range of each feature. `tiles`
    judges cases with tuning knobs.
    """

    names: tuple[str, ...]
    points: Floats
    reach: float
    low: Floats
    high: Floats
    tiles: TileDomain

    @classmethod
    def fit(cls, features: Features, places: Words, seed: int) -> Domain:
        """The domain of training rows; `places` says where each was measured, so that the many of one hide no other's few."""
        family_sizes = tuple(name for name in features.schema.names if name in _size_names(features))
        space = _columns(features, family_sizes)
        order = _by_turns(np.random.default_rng(seed).permutation(len(space)), places)
        points, rest = space[order[:_CORE_POINTS]], space[order[_CORE_POINTS : 5 * _CORE_POINTS]]
        if len(rest):
            distance = _nearest(rest, points)
        else:
            apart = np.abs(space[:, None] - space[None]).max(axis=2) + np.diag(np.full(len(space), np.inf))
            distance = apart.min(axis=1) if len(space) > 1 else np.zeros(1)
        finite = distance[np.isfinite(distance)]
        reach = max(float(np.quantile(finite, _TYPICAL_QUANTILE)) if len(finite) else 0.0, 1.0)
        tiles = TileDomain.fit(features, seed)
        return cls(family_sizes, points, reach, space.min(axis=0), space.max(axis=0), tiles)

    def excess(self, features: Features) -> Floats:
        """How far each case lies outside, in steps of `reach`, shape `(n,)`; 0 inside."""
        return np.maximum(self.sizes_excess(features), self.tiles.excess(features))

    def sizes_excess(self, features: Features) -> Floats:
        """The same by sizes alone, whatever the tuning knobs."""
        space = _columns(features, self.names)
        beyond_range = np.maximum(np.maximum(self.low - space, space - self.high), 0.0).max(axis=1)
        far = np.maximum(_nearest(space, self.points, self.reach) / self.reach - (1.0 + _ROUNDING), 0.0)
        sizes: Floats = np.maximum(far, np.where(beyond_range > 0.05, beyond_range, 0.0))
        return sizes

    def farthest(self, features: Features, i: int, tiles_excess: float) -> str:
        """What is unusual about case `i`, in words; `tiles_excess` is its entry in the excess of `tiles`."""
        row = features.values[i, _positions(features.schema.names, self.names)]
        beyond = np.maximum(self.low - row, row - self.high)
        worst = int(np.argmax(beyond))
        if beyond[worst] > 0.05:
            name = self.names[worst].removeprefix("log ")
            return f"{name} {2 ** row[worst]:.3g} is outside the trained {2 ** self.low[worst]:.3g}–{2 ** self.high[worst]:.3g}"
        if tiles_excess > 0:
            return f"no {features.read_as.at(i)} case with knobs like these was measured on that much work"
        return "no measured case has sizes like these together"

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        return {"names": self.names, "points": np.round(self.points, 3).tolist(), "reach": self.reach,
                "low": self.low.tolist(), "high": self.high.tolist(), "tiles": self.tiles.to_json()}  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Domain:
        """The domain `to_json` described."""
        arrays = {name: np.asarray(data[name], dtype=np.float64) for name in ("points", "low", "high")}
        tiles = TileDomain.from_json(data["tiles"])
        return cls(names=tuple(data["names"]), reach=float(data["reach"]), tiles=tiles, **arrays)


def _by_turns(order: Indices, places: Words) -> Indices:
    """The rows in `order`, taken from every place in turn."""
    code = places.code[order]
    turn = np.empty(len(order), dtype=np.intp)
    for place in range(len(places.words)):
        own = np.flatnonzero(code == place)
        turn[own] = np.arange(len(own))
    return order[np.argsort(turn, kind="stable")]


def widening(excess: Floats) -> Floats:
    """Factor on the interval's half-width, shape `(n,)`: 1 inside the domain, growing with the distance outside."""
    return 1.0 + _WIDENING_PER_STEP * excess


def _size_names(features: Features) -> frozenset[str]:
    from ..features.kernel import get_family

    family = get_family(features.schema.family)
    return frozenset({*(f"log {name}" for name in family.dim_names), "log flops", "log bytes"})


def _columns(features: Features, names: tuple[str, ...]) -> Floats:
    return features.values[:, _positions(features.schema.names, names)]


@lru_cache(maxsize=256)
def _positions(columns: tuple[str, ...], names: tuple[str, ...]) -> list[int]:
    return [columns.index(name) for name in names]


def _nearest(space: Floats, points: Floats, enough: float = -1.0) -> Floats:
    """Largest difference in any one log2 feature to the nearest point, shape `(n,)`.

    A case is done with once a point is as near as `enough`.
    """
    # Single precision: distances are compared with a reach of a doubling or so.
    columns, known = space.T.astype(np.float32), points.T.astype(np.float32)
    out = np.full(len(space), np.inf, dtype=np.float32)
    left = np.arange(len(space))
    for start in range(0, len(points), _SLICE):
        some = known[:, start : start + _SLICE, None]
        farthest = np.abs(some[0] - columns[0])
        for coordinate, column in zip(some[1:], columns[1:], strict=True):
            np.maximum(farthest, np.abs(coordinate - column), out=farthest)
        out[left] = np.minimum(out[left], farthest.min(axis=0))
        going_on = out[left] > enough
        if not going_on.all():
            left, columns = left[going_on], columns[:, going_on]
        if not len(left):
            break
    return out.astype(np.float64)


_ROUNDING = 1e-6
"""A case exactly as far away as the reach is inside, whichever way single precision rounds."""

_SLICE = 32
"""Points compared with all cases at once: most cases lie near one of the first few, and what is compared stays in the cache."""
