"""What is known of cases before any adaptation: own answers, answers carried over, and where the cases lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..features.cases import Cases, Floats
from ..features.device import Catalogue
from ..features.extract import Features
from ..features.work import Work
from .adapted import Beside, points_of, utilisation
from .artifact import FamilyModel
from .continuation import continued
from .engine import answered
from .gaussian_process import Points
from .regressor import Matrix
from .standing import Standing, StandingTable
from .transfer import Learned, carry_over


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of cases before any adaptation: ln of each target's answer (s; share of the power limit), regimes, where
    they lie for an adaptation's process, how much of a twin was found, and the power limit; `(n,)`.
    """

    logs: Mapping[str, Floats]
    regimes: Mapping[str, Any]
    points: Mapping[str, Points]
    twin: Floats
    limit_w: Floats


@dataclass(frozen=True, slots=True)
class Asked:
    """Cases as a model meets them: features, the standing of their kinds, what the graphs read, and `Learned.log_base`."""

    cases: Cases
    features: Features
    standing: Sequence[Standing]
    x: Matrix
    base: Floats

    @classmethod
    def of(cls, learned: Learned, standing: StandingTable, cases: Cases, devices: Catalogue) -> Asked:
        """The cases, their devices under catalogue names.

        Raises:
            SpecError: unknown device, or a dtype it has no peak for.
        """
        features = learned.extract(cases, devices)
        base = learned.log_base(cases, features, devices)
        return cls(cases, features, standing.of(cases.kinds()), learned.inputs(features, base), base)


def look_at(model: FamilyModel, learned: Learned, asked: Asked, devices: Catalogue, *, adapted: Any) -> Look:
    """Own answers where a case's like was measured on its device, else what is carried over from others.

    `adapted` says, shape `(n,)`, of which cases an adaptation wants points.
    """
    cases, features, standing, kinds = asked.cases, asked.features, asked.standing, asked.cases.kinds()
    logs = _own_logs(learned, asked)
    regimes = {target: kinds.column([one.own[target] for one in standing]) for target in logs}
    limits = kinds.column([one.largest for one in standing])
    logs["latency"] = continued(
        logs["latency"], cases, features.work, limits, lambda part: _own_latency(learned, part, devices),
        regimes["latency"] == "seen",
    )  # fmt: skip
    parts: dict[str, dict[str, Floats]] = {target: {} for target in logs}
    twin = np.zeros(len(cases))
    for targets in dict.fromkeys(one.carried for one in standing if one.carried):
        away = np.flatnonzero(kinds.column([one.carried == targets for one in standing]))
        if len(away) == len(cases):
            carried = carry_over(learned, cases, features, devices, sorted(targets), asked.x, asked.base)
        else:
            part = cases.take(away)
            carried = carry_over(learned, part, learned.extract(part, devices), devices, sorted(targets))
        for target, column in carried.logs.items():
            logs[target][away] = column
            for name, answer in carried.parts[target].items():
                parts[target].setdefault(name, np.full(len(cases), np.nan))[away] = answer
        twin[away] = carried.twin
    points: dict[str, Points] = {}
    if adapted.any():
        latency_s = np.exp(logs["latency"])
        used = utilisation(features, latency_s)
        for target, column in logs.items():
            own_kind = (None, None) if target == "latency" else (used, latency_s)
            beside = Beside(column, parts[target], *own_kind)
            points[target] = points_of(learned, model.domain, cases, features, beside)
    return Look(logs, regimes, points, twin, kinds.column([one.limit_w for one in standing]))


def _own_logs(learned: Learned, asked: Asked) -> dict[str, Floats]:
    """The model's own answers, zero where others answer for all cases: running its graphs would be in vain."""
    own = [
        target for target in learned.members
        if any(target not in one.carried and one.own[target] != "unseen_kind" for one in asked.standing)
    ]  # fmt: skip
    outputs = learned.runtime.run(
        asked.x, only=sorted({graph for target in own for graph, _, _ in learned.members[target]})
    )
    logs = {
        target: answered(outputs, triples) if target in own else np.zeros(len(asked.cases))
        for target, triples in learned.members.items()
    }
    logs["latency"] = logs["latency"] + asked.base
    return logs


def _own_latency(learned: Learned, cases: Cases, devices: Catalogue) -> tuple[Floats, Work]:
    """The logarithm of the seconds the model answers for cases on measured devices, shape `(n,)`, and their work."""
    features = learned.extract(cases, devices)
    base, triples = learned.log_base(cases, features, devices), learned.members["latency"]
    outputs = learned.runtime.run(learned.inputs(features, base), only=[graph for graph, _, _ in triples])
    return answered(outputs, triples) + base, features.work
