"""What a model learned of one device from a handful of its rows, on top of its own answers.

A Gaussian process on what was left over there. It knows in which directions devices differ: along the shares of the analytic
model's terms (a device may be worse at launching or at streaming than its datasheet says) and along the differences between
the answers of measured devices (the new one may be like this one rather than that).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...features.batch.cases import Floats
from ...features.batch.categorical import Categorical
from ...features.batch.category import kv_pair
from ...features.vector.extract import Features
from .analytic import attributes_of
from .artifact_files import finite, numbers
from .device_transfer import ANALYTIC, FREE
from .domain import Domain
from .family_regressor import FamilyRegressor, Query
from .gaussian_process import Points, Process
from .intervals import SURE_POWER_S, Scores, student_scores

_MOST_DOUBT = 4.0
"""How many times the noise of a long kernel's power that of the shortest has; see `intervals.SURE_POWER_S`."""


_LEAST_DEVIATION = 0.01
"""Repeats of one case differ by about 1 % between processes (docs/measurement.md): no answer is surer than that."""

_TRUSTS = (1.0, 0.75, 0.5, 0.25, 0.0)
"""What part of a process's mean may be taken."""


@dataclass(frozen=True, slots=True)
class Adaptation:
    """One target's process on one device. `left_over` are ln(measured / answered) of its points, shape `(n,)`; `scores` are
    what its errors are in the standard deviations it claims. `trust` is the share of its mean that is taken.
    """

    process: Process
    left_over: Floats
    scores: Scores
    trust: float

    @classmethod
    def fit(cls, points: Points, left_over: Floats, size: float = 1.0) -> Adaptation:
        """What the rows at `points` teach.

        Where their errors, each left out in turn, say that the process does harm, less of its mean is taken: a few rows of a
        device that follows laws of its own may be worse than none. `size` is that of `Process.fit`.
        """
        process = Process.fit(points, left_over, size)
        means = left_over - process.left_out_errors()
        wrong = [np.abs(np.expm1(trust * means - left_over)).mean() for trust in _TRUSTS]
        trust = _TRUSTS[int(np.argmin(wrong))]
        # What is not corrected stays in the error.
        scores = (left_over - trust * means) / np.maximum(process.left_out_deviations(), _LEAST_DEVIATION)
        return cls(process, left_over, student_scores(scores), trust)

    def left_out_errors(self) -> Floats:
        """ln(measured / answered) of each of its rows, had that one been left out, shape `(n,)`."""
        return self.left_over - self.trust * (self.left_over - self.process.left_out_errors())

    def at(self, points: Points) -> tuple[Floats, Floats]:
        """What to add to ln(answers) at points, and the standard deviation that is then left; each `(n,)`."""
        mean, deviation = self.process.at(points)
        return self.trust * mean, np.maximum(deviation, _LEAST_DEVIATION)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        points = self.process.points
        return {
            "scales": {name: float(value) for name, value in self.process.scales.items()},
            "group": points.group.tolist(), "variant": points.variant.tolist(),
            "place": np.round(points.place, 5).tolist(), "direction": np.round(points.direction, 5).tolist(),
            "doubt": np.round(points.doubt, 4).tolist(),
            "left_over": np.round(self.left_over, 6).tolist(), "trust": self.trust,
            "scores": self.scores.to_json(),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Adaptation:
        """The adaptation `to_json` described."""
        left_over = numbers(data["left_over"], None)
        n = len(left_over)
        group, variant = (np.array(data[name], dtype=np.str_) for name in ("group", "variant"))
        if group.shape != (n,) or variant.shape != (n,):
            raise ValueError(f"groups and variants of {len(group)} and {len(variant)} rows, {n} were measured")
        place, direction = (numbers(data[name], n, None) for name in ("place", "direction"))
        points = Points(group, variant, place, direction, numbers(data["doubt"], n))
        scales = {str(name): finite(scale, 0.0) for name, scale in data["scales"].items()}
        return cls(
            Process.from_scales(points, left_over, scales),
            left_over,
            Scores.from_json(data["scores"]),
            finite(data["trust"], 0.0, 1.0),
        )


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
    columns = [regressor.schema.names.index(name) for name in domain.names]
    spread = np.maximum(domain.points.std(axis=0), 0.5)
    place = np.clip((features.values[:, columns] - domain.points.mean(axis=0)) / spread, -4.0, 4.0)
    directions = []
    if inputs.utilisation is not None:
        directions.append(inputs.utilisation)
    elif regressor.analytic is not None:
        directions.append(
            regressor.analytic.shares(features.terms.T, attributes_of(query.categories, features.read_as))
        )
    for name in (*regressor.schema.devices, ANALYTIC, FREE):
        part = inputs.parts.get(name)
        apart = np.zeros(n) if part is None else np.nan_to_num(part - inputs.answers)
        directions.append(np.clip(apart, -2.0, 2.0)[:, None])
    group = Categorical.joined([features.read_as, query.categories.labels(kv_pair)], "{} {}".format).strings()
    doubt = np.ones(n)
    if inputs.latency_s is not None:
        doubt = np.clip(SURE_POWER_S / inputs.latency_s, 1.0, _MOST_DOUBT)
    return Points(group, query.cases.variant, place, np.column_stack(directions), doubt)


def utilisation(features: Features, latency_s: Floats) -> Floats:
    """Shares of the compute and of the memory peak that cases reach in `latency_s`, shape `(n, 2)`: what power follows."""
    compute = features.work.flops / features.work.peak_flops_per_s / latency_s
    memory = features.work.dram_all_s / latency_s
    return np.clip(np.stack([compute, memory], axis=1), 0.0, 1.5)
