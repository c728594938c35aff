"""Is a case like what the model was trained on? Outside, its interval widens, and answers for larger sizes are extrapolated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from ...features.batch.cases import Cases, Floats, Indices
from ...features.batch.categorical import Categorical
from ...features.batch.category import CaseCategory, place_label
from ...features.vector.extract import Features
from .artifact_files import finite, numbers
from .products import ALIGNMENTS, COMMON, alignment

_CORE_POINTS, _FAR_POINTS = 640, 64
"""Rows drawn, and most of those added that lie beyond the reach of all others: a campaign's few rows beside thousands of public
ones may all be."""

_TYPICAL_QUANTILE = 0.995


@dataclass(frozen=True, slots=True)
class Domain:
    """A sample of the training rows in the space of sizes and work, and how far apart such rows lie.

    Attributes:
        names: The features that span the space.
        points: The sample's log2 features, shape `(n_points, len(names))`.
        reach: Distance to the nearest point that `_TYPICAL_QUANTILE` of the training rows stay within.
        low: Least of each feature in training, shape `(len(names),)`.
        high: Largest of each feature in training, likewise.
        tiles: Judges cases with tuning knobs.
    """

    names: tuple[str, ...]
    points: Floats
    reach: float
    low: Floats
    high: Floats
    tiles: TileDomain
    _columns: Any = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Single precision: distances are compared with a reach of a doubling or so.
        object.__setattr__(self, "_columns", np.ascontiguousarray(self.points.T.astype(np.float32)))

    @classmethod
    def fit(cls, features: Features, places: Categorical, seed: int) -> Domain:
        """The domain of training rows; `places` says where each was measured, so that the many of one hide no other's few."""
        family_sizes = tuple(name for name in features.schema.names if name in _size_names(features))
        space = _columns(features, family_sizes)
        order = _by_turns(np.random.default_rng(seed).permutation(len(space)), places)
        points, rest = space[order[:_CORE_POINTS]], space[order[_CORE_POINTS : 5 * _CORE_POINTS]]
        if len(rest):
            distance = _nearest(rest.T, points.T.astype(np.float32))
        else:
            apart = np.abs(space[:, None] - space[None]).max(axis=2) + np.diag(np.full(len(space), np.inf))
            distance = apart.min(axis=1) if len(space) > 1 else np.zeros(1)
        finite = distance[np.isfinite(distance)]
        reach = max(float(np.quantile(finite, _TYPICAL_QUANTILE)) if len(finite) else 0.0, 1.0)
        points = _reaching(points, space, reach)
        tiles = TileDomain.fit(features, seed)
        return cls(family_sizes, points, reach, space.min(axis=0), space.max(axis=0), tiles)

    def excess(self, features: Features) -> tuple[Floats, Floats]:
        """How far each case lies outside, in steps of `reach`, shape `(n,)`, 0 inside: by anything, and by its knobs alone."""
        space = features.sized[_positions(features.schema.sized_names, self.names)]
        beyond_range = np.maximum(np.maximum(self.low[:, None] - space, space - self.high[:, None]), 0.0).max(axis=0)
        far = np.maximum(_nearest(space, self._columns, self.reach) / self.reach - (1.0 + _ROUNDING), 0.0)
        sizes: Floats = np.maximum(far, np.where(beyond_range > 0.05, beyond_range, 0.0))
        if not (self.tiles.points and features.knobs):
            return sizes, np.zeros(len(sizes))
        tiles = self.tiles.excess(features)
        return np.maximum(sizes, tiles), tiles

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
        names = tuple(data["names"])
        return cls(
            names=names,
            points=numbers(data["points"], None, len(names)),
            low=numbers(data["low"], len(names)),
            high=numbers(data["high"], len(names)),
            reach=finite(data["reach"], 0.0),
            tiles=TileDomain.from_json(data["tiles"]),
        )


def _by_turns(order: Indices, places: Categorical) -> Indices:
    """The rows in `order`, taken from every place in turn."""
    code = places.code[order]
    position = np.empty(len(order), dtype=np.intp)
    for place in range(len(places.words)):
        rows = np.flatnonzero(code == place)
        position[rows] = np.arange(len(rows))
    return order[np.argsort(position, kind="stable")]


def _size_names(features: Features) -> frozenset[str]:
    from ...features.kernel import get_family

    family = get_family(features.schema.family)
    return frozenset({*(f"log {name}" for name in family.dim_names), "log flops", "log bytes"})


def _columns(features: Features, names: tuple[str, ...]) -> Floats:
    return features.values[:, _positions(features.schema.names, names)]


@lru_cache(maxsize=256)
def _positions(columns: tuple[str, ...], names: tuple[str, ...]) -> list[int]:
    return [columns.index(name) for name in names]


def _reaching(points: Floats, space: Floats, reach: float) -> Floats:
    """The points and, one after the other, the row farthest from all of them, as long as one is beyond reach."""
    distance = _nearest(space.T, points.T.astype(np.float32), reach)
    far, distance = space[distance > reach], distance[distance > reach]
    added = list[Floats]()
    while len(added) < _FAR_POINTS and (distance > reach).any():
        added.append(far[distance.argmax()])
        distance = np.minimum(distance, np.abs(far - added[-1]).max(axis=1))
    return np.concatenate([points, added]) if added else points


def _nearest(space: Floats, known: Any, enough: float = -1.0) -> Floats:
    """Largest difference in any one log2 feature to the nearest point, shape `(n,)`.

    Args:
        space: The cases, shape `(n_features, n)`.
        known: The points, float32 `(n_features, n_points)`.
        enough: A case is done with once a point is as near.
    """
    columns, n = space.astype(np.float32), space.shape[1]
    if n <= _FEW:
        # One comparison of all costs less than the loop's steps.
        distance: Floats = np.abs(known[:, :, None] - columns[:, None, :]).max(axis=0).min(axis=0).astype(np.float64)
        return distance
    out = np.full(n, np.inf, dtype=np.float32)
    left = np.arange(n)
    for start in range(0, known.shape[1], _SLICE):
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


_FEW = 8
"""Cases up to which all points are compared at once."""

_ROUNDING = 1e-6
"""A case exactly as far away as the reach is inside, whichever way single precision rounds."""

_SLICE = 32
"""Points compared with all cases at once: most cases lie near one of the first few, and what is compared stays in the cache."""


_POINTS = 512
_QUANTILE = 0.98
_LEAST_REACH = 1.0
"""A factor of two in one knob, or in the work, is never called far."""

_ABSENT = -4.0
"""Stands for a knob that is not set: four doublings from the smallest."""


@dataclass(frozen=True, slots=True)
class TileDomain:
    """Training rows with knobs, by impl.

    Attributes:
        names: The features compared: work and knobs.
        points: log2 of them by impl, shape `(n_points, len(names))`.
        reach: By impl, how far apart such rows lie.
    """

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
            members = space[tiled & features.read_as.is_word(impl)]
            if not len(members):
                continue
            members = members[np.random.default_rng(seed).permutation(len(members))[:_POINTS]]
            apart = _distances(members, members) + np.diag(np.full(len(members), np.inf))
            nearest = apart.min(axis=1) if len(members) > 1 else np.zeros(1)
            points[impl], reach[impl] = members, max(float(np.quantile(nearest, _QUANTILE)), _LEAST_REACH)
        return cls(names, points, reach)

    def excess(self, features: Features) -> Floats:
        """How far each case lies outside, in steps of its impl's reach, shape `(n,)`; 0 inside and without knobs."""
        excess = np.zeros(len(features.values))
        space, tiled = _space(features, self.names)
        for impl, points in self.points.items():
            rows = np.flatnonzero(tiled & features.read_as.is_word(impl))
            if len(rows):
                excess[rows] = np.maximum(_distances(space[rows], points).min(axis=1) / self.reach[impl] - 1.0, 0.0)
        return excess

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        points = {impl: np.round(sample, 2).tolist() for impl, sample in self.points.items()}
        return {"names": self.names, "points": points, "reach": dict(self.reach)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TileDomain:
        """The domain `to_json` described."""
        names = tuple(data["names"])
        points = {impl: numbers(sample, None, len(names)) for impl, sample in data["points"].items()}
        return cls(names, points, {impl: finite(reach, 0.0) for impl, reach in data["reach"].items()})


def _space(features: Features, names: tuple[str, ...]) -> tuple[Floats, Any]:
    """log2 of work and knobs, shape `(n, len(names))`, and which rows have a knob."""
    columns = features.values[:, [features.schema.names.index(name) for name in names]]
    knobs = np.array([name.startswith("knob ") for name in names])
    present = ~np.isnan(columns)
    logs = np.where(knobs, np.log2(np.maximum(np.where(present, columns, 1.0), 0.5)), columns)
    return np.where(present, logs, _ABSENT), present[:, knobs].any(axis=1)


def _distances(space: Floats, points: Floats) -> Floats:
    """Largest difference in any one column, shape `(n, n_points)`."""
    distances = np.zeros((len(space), len(points)))
    for column in range(space.shape[1]):
        np.maximum(distances, np.abs(space[:, column, None] - points[None, :, column]), out=distances)
    return distances


_BULK = ("batch", "m", "n", "k", "rows", "cols", "tokens")
"""Sizes that only say how much there is, and can be shrunk without the others: a convolution's image must hold its kernel, keys
must be as many as queries."""

_INNER = (0.7, 0.2)
"""The two sizes inside, as shares of the largest measured: below the thinly measured edge, and far enough apart for a slope."""

_LINE_WEIGHT, _FADE_DOUBLINGS = 0.75, 0.5
"""Of the line, grown within so many doublings from the largest measured size on, so that nothing jumps."""

_ALIGNED = 256.0
"""A scaled-down size is a multiple of the largest power of two that divides the real one, up to this."""

Largest = Mapping[str, Mapping[str, float]]
"""The largest of each size that was measured, and of products `ALIGNMENTS`, by device and variant (`place_label`)."""


def largest_sizes(cases: Cases) -> dict[str, dict[str, float]]:
    """The largest of each size among cases, and of products `ALIGNMENTS`, by device and variant."""
    places, levels = cases.categories.labels(place_label), alignment(cases.sizes)
    largest = {}
    for place in places.words:
        here = places.is_word(place)
        largest[place] = {name: float(column[here].max()) for name, column in cases.sizes.items()}
        if levels is not None:
            largest[place] |= dict(zip(ALIGNMENTS, np.quantile(levels[here], COMMON).tolist(), strict=True))
    return largest


def size_limits(category: CaseCategory, largest: Largest, names: Iterable[str]) -> Floats:
    """The largest of each size measured where a category runs, shape `(n_sizes,)`; infinite where nothing was."""
    there = largest.get(place_label(category), {})
    return np.array([there.get(name, np.inf) for name in names])


def log2_excess(sizes: Mapping[str, Floats], limits: Floats) -> Floats:
    """How many times each case's sizes are doubled beyond the largest measured there, shape `(n,)`; 0 inside.

    `limits` of shape `(n_sizes, n)` or `(n_sizes, 1)` are those largest sizes (`size_limits` of each category).
    """
    ratios = np.maximum(np.array(list(sizes.values())), 1.0) / np.maximum(limits, 1.0)
    doublings: Floats = np.log2(np.maximum(ratios.max(axis=0), 1.0))
    return doublings


def extrapolate(
    log_latency: Floats,
    log_error: Floats,
    cases: Cases,
    log_base: Floats,
    limits: Floats,
    answer: Callable[[Cases, Indices], tuple[Floats, Floats]],
    wanted: Any,
) -> Floats:
    """`log_latency` of shape `(n,)`, extrapolated where a case among `wanted` is larger than any measured there.

    Beyond the trained sizes a network answers what it did at their edge or worse. A device that is full, though, takes time
    in proportion to further work. So a case is shrunk to two sizes inside, the line through their answers is followed to what
    the case costs on paper, and a weighed geometric mean of that and of the model's own answer is taken: on larger sizes of
    public fp32 tables the model alone errs by 11.1 % (softmax), 10.6 % (layernorm) and 14.2 % (gemm), the line by 8.6, 6.9 and
    13.5, the mean by 8.9, 5.9 and 13.4. How far the mean lies from the line is an error of its own: with it 91 % of larger
    softmaxes lie in their intervals, without it 84 %.

    Args:
        log_latency: The model's own answers, ln(s).
        log_error: ln of the size of their errors, shape `(n,)`; grows in place.
        cases: The cases.
        log_base: ln of what latency is learned as a ratio to, in seconds, shape `(n,)`.
        limits: Those of `log2_excess`.
        answer: Gives ln(latency in s) and `log_base` of cases that lie inside, and that stand for the given ones.
        wanted: Which cases may be extrapolated, a mask.
    """
    bulk = {name: np.broadcast_to(limit, log_latency.shape) for name, limit in zip(cases.sizes, limits, strict=True)
            if name in _BULK}  # fmt: skip
    larger = np.any([cases.sizes[name] > limit for name, limit in bulk.items()], axis=0)
    rows = np.flatnonzero(larger & wanted)
    if not len(rows):
        return log_latency
    n, twice = len(rows), np.concatenate([rows, rows])
    share = np.repeat(_INNER, n)
    logs, inner_base = answer(
        _shrunk(cases.take(twice), {name: limit[twice] for name, limit in bulk.items()}, share), twice
    )
    base = np.exp(inner_base)
    (upper, lower), (w0, w1), w = (logs[:n], logs[n:]), (base[:n], base[n:]), np.exp(log_base[rows])
    steps = np.where(w0 > w1, (w - w0) / np.where(w0 > w1, w0 - w1, 1.0), 0.0)
    # Two launches that differ by noise have a slope too: time grows no faster than what it costs on paper.
    line = np.exp(upper) + np.maximum(np.exp(upper) - np.exp(lower), 0.0) * steps
    line = np.minimum(line, np.exp(upper) * np.where(w0 > 0.0, w / np.where(w0 > 0.0, w0, 1.0), 1.0))
    doublings = log2_excess({name: column[rows] for name, column in cases.sizes.items()},
                            limits[:, rows] if limits.shape[1] > 1 else limits)  # fmt: skip
    weight = _LINE_WEIGHT * np.minimum(doublings / _FADE_DOUBLINGS, 1.0)
    good = (steps > 0.0) & np.isfinite(line)
    apart = np.where(good, np.log(np.where(good, line, 1.0)) - log_latency[rows], 0.0)
    log_error[rows] = np.log(np.hypot(np.exp(log_error[rows]), (1.0 - _LINE_WEIGHT) * apart))
    extrapolated = log_latency.copy()
    extrapolated[rows] += weight * apart
    return extrapolated


def _shrunk(cases: Cases, limits: Mapping[str, Floats], share: Floats) -> Cases:
    """The cases with what is beyond its limit shrunk to that share of it, as divisible by powers of two as it was: libraries
    run sizes that are not in slower code.
    """
    sizes = dict(cases.sizes)
    for name, limit in limits.items():
        column = sizes[name]
        whole = column.astype(np.int64)
        step = np.minimum((whole & -whole).astype(np.float64), _ALIGNED)
        inner = np.maximum(np.round(limit * share / step) * step, np.minimum(step, limit))
        sizes[name] = np.where(column > limit, inner, column)
    return cases.resized(sizes)
