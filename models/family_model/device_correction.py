"""What a model learned of one device from a handful of its rows, on top of its own answers.

A Gaussian process on what was left over there. It knows in which directions devices differ: along the shares of the analytic
model's terms (a device may be worse at launching or at streaming than its datasheet says) and along the differences between
the answers of measured devices (the new one may be like this one rather than that).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...features.batch.cases import Floats
from ...features.batch.categorical import Categorical
from ...features.batch.category import CaseCategories, CaseCategory, categorical, kv_pair, thread_label
from ...features.kernel import TIMINGS
from ...features.vector.extract import Features
from .analytic import attributes_of
from .artifact_files import finite, numbers
from .device_transfer import ANALYTIC, FREE
from .domain import Domain
from .family_regressor import FamilyRegressor, Query
from .gaussian_process import Points, Process
from .intervals import Scores, student_scores
from .nearby_rows import Method, NearbyRows
from .utilisation import SURE_POWER_S

_MOST_DOUBT = 4.0
"""How many times the noise of a long kernel's power that of the shortest has; see `utilisation.SURE_POWER_S`."""


_USUAL_LOG_S, _LOG_SPREAD_S = math.log(1e-4), 3.0
"""Centre and scale of ln(latency) where it is a direction: short kernels are off by other factors than long ones."""

_LEAST_DEVIATION = 0.01
"""Repeats of one case differ by about 1 % between processes (docs/measurement.md): no answer is surer than that."""

_STEPS = 4
"""Times that the weights of rows and of columns are found in turn."""

_TRUSTS, _CAUTIONS = (1.0, 0.75, 0.5, 0.25), (0.0, 0.5, 1.0)
"""What part of a process's mean may be taken, and how many of its variances taken off. A quarter of what 8 or 32 rows say was
no worse than nothing of it, whatever leaving these few out said."""

_TILING = ("log waves", "wave filling", "tile filling", "alignment", "log lower bound")
"""Features, by how their names begin, of which a latency's correction is a function beside the sizes."""

_MOST_CAUTIOUS = 0.4
"""Deviations of ln(latency) beyond this are no reason for a yet lower value."""


_SHRINKAGES = (0.5, 2.0, 8.0)
"""Rows that pull each weight of what all families share towards nothing; the best with each row
left out is taken, or none of it."""

_HUBER = 1.5
"""Errors beyond so many standard deviations count linearly there."""


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """What all families' rows say of a device together: weights, by name, of the columns of `shared_columns`.

    How much slower the device is than answered, along the shares of the analytic model's terms, for each implementation and
    dtype, and for each thread count and cache state: a device that streams slowly does so in every family.

    Attributes:
        weights: By the column's name.
        terms: Number of the analytic model's terms.
        family: The family that it answers for.
    """

    weights: Mapping[str, float]
    terms: int
    family: str

    def at(self, points: Points) -> Floats:
        """What to add to ln(answers) at points, shape `(n,)`."""
        names, columns = shared_columns(points, self.terms, self.family)
        result: Floats = columns @ np.array([self.weights.get(name, 0.0) for name in names])
        return result


def shared_columns(points: Points, terms: int, family: str) -> tuple[list[str], Floats]:
    """Names and values `(n, c)` of what is learned across families; the first `terms` directions are shares of time,
    the last three what the analytic model and the scale-free trees answer beside the mean of all answers, and its length.
    """
    shares = np.column_stack([np.ones(len(points)), points.direction[:, :terms], points.direction[:, -3:]])
    names, columns = [family], [np.ones((len(points), 1))]
    labels = {"": np.ones(len(points), dtype=np.bool_)}
    labels |= {
        label: column == label for column in (points.group, points.context) for label in np.unique(column).tolist()
    }
    for label, mask in labels.items():
        names += [f"{label}|{term}" for term in range(shares.shape[1])]
        columns.append(shares * mask[:, None])
    return names, np.column_stack(columns)


def fit_shared(
    points: Mapping[str, Points], residuals: Mapping[str, Floats], terms: int
) -> dict[str, tuple[SharedWeights, Floats]]:
    """By family the shared weights, and by how much each row's error grows were it left out of them, shape `(n,)`.

    Ridge regression with Huber's weights; `points` and `residuals` are of one device, by family.
    """
    parts = {family: shared_columns(each, terms, family) for family, each in points.items()}
    names = list(dict.fromkeys(name for part, _ in parts.values() for name in part))
    place = {name: i for i, name in enumerate(names)}
    y = np.concatenate([residuals[family] for family in parts])
    x, start = np.zeros((len(y), len(names))), 0
    for part, columns in parts.values():
        x[start : start + len(columns), [place[name] for name in part]] = columns
        start += len(columns)
    best = (float(np.abs(np.expm1(-y)).mean()), np.zeros(len(names)), np.ones(len(y)))
    for shrinkage in _SHRINKAGES:
        weights, trust = np.zeros(len(names)), np.ones(len(y))
        for _ in range(_STEPS):
            inverse = np.linalg.inv((x * trust[:, None]).T @ x + shrinkage * np.eye(len(names)))
            weights = inverse @ (x.T @ (trust * y))
            error = y - x @ weights
            scale = max(1.4826 * float(np.median(np.abs(error))), _LEAST_DEVIATION)
            leverage = np.minimum(trust * np.einsum("ij,jk,ik->i", x, inverse, x), 0.9)
            trust = np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(error), 1e-12))
        growth = 1.0 / (1.0 - leverage)
        loss = float(np.abs(np.expm1(-error * growth)).mean())
        best = min(best, (loss, weights, growth), key=lambda entry: entry[0])
    named = dict(zip(names, best[1].tolist(), strict=True))
    ends = np.cumsum([len(columns) for _, columns in parts.values()])[:-1]
    return {
        family: (SharedWeights({name: named[name] for name in parts[family][0] if named[name]}, terms, family), growth)
        for family, growth in zip(parts, np.split(best[2], ends), strict=True)
    }


@dataclass(frozen=True, slots=True)
class Adaptation:
    """What one target's rows on one device taught.

    Attributes:
        process: What corrects the answers.
        residuals: ln(measured / answered) of its points less the `shared` part, shape `(n,)`.
        scores: What its errors are in the standard deviations it claims.
        trust: The share of the process's mean that is taken.
        caution: How many of the variances claimed are taken off ln(answers): of what may as well be a factor more as a factor
            less, the lower value has the smaller expected percentage error.
        shared: What all families' rows say together; None for nothing.
    """

    process: Process | NearbyRows
    residuals: Floats
    scores: Scores
    trust: float
    caution: float = 0.0
    shared: SharedWeights | None = None

    def timings(self, category: CaseCategory, impl: str) -> list[str]:
        """The timings of the points that run and are run as a category whose impl is read as `impl`."""
        points, group = self.process.points, _group(impl, kv_pair(category))
        contexts = set(points.context[points.group == group].tolist())
        return [timing for timing in TIMINGS if _context(category, timing) in contexts]

    def impls(self) -> set[str]:
        """The implementations of the points, as they were read."""
        return {group.partition(" ")[0] for group in set(self.process.points.group.tolist())}

    @classmethod
    def fit(
        cls, points: Points, residuals: Floats, size: float = 1.0, shared: tuple[SharedWeights, Floats] | None = None,
        method: Method = "process",
    ) -> Adaptation:  # fmt: skip
        """What the rows at `points` teach.

        Where their errors, each left out in turn, say that the process does harm, less of its mean is taken: a few rows of a
        device that follows laws of its own may be worse than none. `size` is that of `Process.fit`, `shared` what `fit_shared`
        gives.
        """
        weights, growth = shared or (None, 1.0)
        rest = residuals if weights is None else residuals - weights.at(points)
        process = Process.fit(points, rest, size) if method == "process" else NearbyRows.fit(points, rest, method)
        # A row to come has the usual noise, not that of an outlier.
        deviation = process.left_out_deviations(points.doubt)
        cautions = _CAUTIONS if method == "process" else _CAUTIONS[:1]
        unscored = student_scores(np.ones(1))
        tried = [cls(process, rest, unscored, *pair, weights) for pair in itertools.product(_TRUSTS, cautions)]
        best = min(tried, key=lambda each: float(np.abs(np.expm1(-growth * each._errors(deviation))).mean()))
        # What is not corrected stays in the error.
        scores = growth * best._errors(deviation) / np.maximum(deviation, _LEAST_DEVIATION)
        return replace(best, scores=student_scores(scores))

    def left_out_errors(self) -> Floats:
        """ln(measured / answered) of each of its rows, had that one been left out, shape `(n,)`."""
        return self._errors(self.process.left_out_deviations(np.ones(len(self.residuals))))

    def _errors(self, deviation: Floats) -> Floats:
        means = self.residuals - self.process.left_out_errors()
        return self.residuals - self.trust * means + self._off(deviation)

    def _off(self, deviation: Floats) -> Floats:
        return self.caution * np.minimum(deviation, _MOST_CAUTIOUS) ** 2

    def at(self, points: Points) -> tuple[Floats, Floats]:
        """What to add to ln(answers) at points, and the standard deviation that is then left; each `(n,)`."""
        mean, deviation = self.process.at(points)
        # Beside a row that is off by fifty times the mean goes on rising: no case is corrected by more than any row was off.
        mean = np.clip(mean, min(self.residuals.min(), 0.0), max(self.residuals.max(), 0.0))
        mean = self.trust * mean - self._off(deviation)
        if self.shared is not None:
            mean = mean + self.shared.at(points)
        return mean, np.maximum(deviation, _LEAST_DEVIATION)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        points, shared = self.process.points, self.shared
        more: dict[str, Any] = {} if shared is None else {"shared": {
            "weights": {name: round(weight, 5) for name, weight in shared.weights.items()},
            "terms": shared.terms, "family": shared.family,
        }}  # fmt: skip
        if isinstance(self.process, Process) and self.process.lengths is not None:
            more |= {"lengths": self.process.lengths.tolist(), "tiling": np.round(points.tiling, 4).tolist()}
        return {
            "scales": {name: float(value) for name, value in self.process.scales.items()},
            "group": points.group.tolist(), "variant": points.variant.tolist(), "context": points.context.tolist(),
            "place": np.round(points.place, 5).tolist(), "direction": np.round(points.direction, 5).tolist(),
            "doubt": np.round(points.doubt, 4).tolist(),
            "left_over": np.round(self.residuals, 6).tolist(), "trust": self.trust, "caution": self.caution,
            "scores": self.scores.to_json(), **more,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Adaptation:
        """The adaptation `to_json` described; those of earlier versions have no `context` and no `shared`."""
        residuals = numbers(data["left_over"], None)
        n = len(residuals)
        words = {name: np.array(data.get(name, [""] * n), dtype=np.str_) for name in ("group", "variant", "context")}
        if any(column.shape != (n,) for column in words.values()):
            raise ValueError(f"groups, variants and contexts of other numbers of rows than the {n} that were measured")
        place, direction = (numbers(data[name], n, None) for name in ("place", "direction"))
        tiling = numbers(data["tiling"], n, None) if "tiling" in data else np.zeros((n, 0))
        doubt = numbers(data["doubt"], n)
        points = Points(words["group"], words["variant"], words["context"], place, direction, doubt, tiling)
        scales = {str(name): finite(scale, 0.0) for name, scale in data["scales"].items()}
        # Variants shared half the variance of groups once, and nothing was known of contexts.
        scales = {"context": 0.0, "variant": math.sqrt(0.5) * scales.get("group", 0.0), "kind": 0.0, **scales}
        lengths = numbers(data["lengths"], place.shape[1] + tiling.shape[1]) if "lengths" in data else None
        process = (
            NearbyRows.from_scales(points, residuals, scales) if "width" in scales
            else Process.from_scales(points, residuals, scales, lengths)
        )  # fmt: skip
        shared = None
        if "shared" in data:
            weights = {str(name): finite(weight) for name, weight in data["shared"]["weights"].items()}
            shared = SharedWeights(weights, int(data["shared"]["terms"]), str(data["shared"]["family"]))
        trust, caution = finite(data["trust"], 0.0, 1.0), finite(data.get("caution", 0.0), 0.0, 1.0)
        return cls(process, residuals, Scores.from_json(data["scores"]), trust, caution, shared)


@dataclass(frozen=True, slots=True)
class PointInputs:
    """What a target's points are made of, beside the cases.

    Attributes:
        answers: ln of the model's own answers, shape `(n,)`.
        parts: What these were averaged from; empty where the device was measured before.
        utilisation: For power, shares of the peaks that cases reach, shape `(n, k)`.
        latency_s: For power, how long kernels take, shape `(n,)`.
    """

    answers: Floats
    parts: Mapping[str, Floats]
    utilisation: Floats | None = None
    latency_s: Floats | None = None


def points_by_target(
    learned: FamilyRegressor,
    domain: Domain,
    query: Query,
    logs: Mapping[str, Floats],
    parts: Mapping[str, Mapping[str, Floats]],
) -> dict[str, Points]:
    """By target, where cases lie for a correction.

    Args:
        learned: What was learned of their family.
        domain: What was measured of it.
        query: The cases.
        logs: ln of the answers by target, shape `(n,)`.
        parts: By target, the answers that were averaged, if any.
    """
    latency_s = np.exp(logs["latency"])
    used = utilisation(query.features, latency_s)
    points: dict[str, Points] = {}
    for target, column in logs.items():
        power = (None, None) if target == "latency" else (used, latency_s)
        points[target] = points_of(learned, domain, query, PointInputs(column, parts[target], *power))
    return points


def points_of(regressor: FamilyRegressor, domain: Domain, query: Query, inputs: PointInputs) -> Points:
    """The points of cases: where they lie among the sizes, and in which directions a device may differ there."""
    features, n = query.features, len(query.x)
    read = CaseCategories(tuple(each.features.read for each in query.inputs), query.categories.code)
    columns = [regressor.schema.names.index(name) for name in domain.names]
    spread = np.maximum(domain.points.std(axis=0), 0.5)
    place = np.clip((features.values[:, columns] - domain.points.mean(axis=0)) / spread, -4.0, 4.0)
    directions = []
    if inputs.utilisation is not None:
        directions.append(inputs.utilisation)
    elif regressor.analytic is not None:
        directions.append(regressor.analytic.shares(features.terms.T, attributes_of(read, features.read_as)))
    for name in (*regressor.schema.devices, ANALYTIC, FREE):
        part = inputs.parts.get(name)
        apart = np.zeros(n) if part is None else np.nan_to_num(part - inputs.answers)
        directions.append(np.clip(apart, -2.0, 2.0)[:, None])
    # Last what earlier versions did not have, so that their points still compare.
    length = np.zeros(n) if inputs.utilisation is not None else (inputs.answers - _USUAL_LOG_S) / _LOG_SPREAD_S
    directions.append(np.clip(length, -2.0, 2.0)[:, None])
    group = Categorical.joined([features.read_as, read.labels(kv_pair)], _group).strings()
    contexts = [_context(each.features.category, each.features.read.timing) for each in query.inputs]
    context = categorical(contexts, query.categories.code).strings()
    doubt = np.ones(n)
    if inputs.latency_s is not None:
        doubt = np.clip(SURE_POWER_S / inputs.latency_s, 1.0, _MOST_DOUBT)
    of_tiling = [i for i, name in enumerate(regressor.schema.names) if name.startswith(_TILING)]
    tiling = np.zeros((n, 0)) if inputs.utilisation is not None else np.nan_to_num(features.values[:, of_tiling])
    return Points(group, query.cases.variant, context, place, np.column_stack(directions), doubt, tiling)


def _group(impl: str, kv_pair: str) -> str:
    """What a case runs: its implementation and its dtypes."""
    return f"{impl} {kv_pair}"


def _context(category: CaseCategory, timing: str) -> str:
    """How a case is run and timed; earlier versions knew no calls."""
    return f"{thread_label(category)} {category.cache_state}{' call' if timing == 'call' else ''}"


def utilisation(features: Features, latency_s: Floats) -> Floats:
    """Shares of the compute and of the memory peak that cases reach in `latency_s`, shape `(n, 2)`: what power follows."""
    compute = features.work.flops / features.work.peak_flops_per_s / latency_s
    memory = features.work.dram_all_s / latency_s
    return np.clip(np.stack([compute, memory], axis=1), 0.0, 1.5)
