"""What is known of cases before any adaptation: own answers, answers carried over, and where the cases lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..features.cases import Cases, Floats
from ..features.device import Catalogue
from ..features.extract import Features, extract
from ..features.words import measured_words
from ..features.work import Work
from .adapted import Beside, points_of, utilisation
from .artifact import FamilyModel
from .continuation import continued
from .engine import answered
from .gaussian_process import Points
from .limits import power_limits_w
from .transfer import Learned, carry_over, inputs, log_base


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


def look_at(
    model: FamilyModel,
    learned: Learned,
    cases: Cases,
    features: Features,
    outputs: Mapping[int, Floats],
    devices: Catalogue,
    *,
    adapted: Any,
) -> Look:
    """Own answers where a case's like was measured on its device, else what is carried over from others.

    `outputs` are the graphs' answers for the cases; `adapted` says, shape `(n,)`, of which cases an adaptation wants points.
    """
    base = log_base(learned, cases, features)
    logs = {target: answered(outputs, triples) for target, triples in learned.members.items()}
    logs["latency"] = logs["latency"] + base
    regimes = {target: _regimes(model, cases, target, devices) for target in logs}
    logs["latency"] = continued(
        logs["latency"], cases, features.work, model.largest, lambda part: _own_latency(learned, part, devices),
        regimes["latency"] == "seen",
    )  # fmt: skip
    parts: dict[str, dict[str, Floats]] = {target: {} for target in logs}
    twin = np.zeros(len(cases))
    for away, targets in _to_carry(model, cases, regimes):
        part = cases.take(away)
        own = features if len(away) == len(cases) else extract(part, model.schema, devices)
        carried = carry_over(learned, part, own, devices, targets)
        for target, column in carried.logs.items():
            unseen = regimes[target][away] == "unseen_device"
            logs[target][away[unseen]] = column[unseen]
            for name, answer in carried.parts[target].items():
                whole = parts[target].setdefault(name, np.full(len(cases), np.nan))
                whole[away[unseen]] = answer[unseen]
        twin[away] = carried.twin
    points: dict[str, Points] = {}
    if adapted.any():
        latency_s = np.exp(logs["latency"])
        used = utilisation(features, latency_s)
        for target, column in logs.items():
            own_kind = (None, None) if target == "latency" else (used, latency_s)
            beside = Beside(column, parts[target], *own_kind)
            points[target] = points_of(learned, model.domain, cases, features, beside)
    return Look(logs, regimes, points, twin, power_limits_w(cases, devices)[0])


def _own_latency(learned: Learned, cases: Cases, devices: Catalogue) -> tuple[Floats, Work]:
    """The logarithm of the seconds the model answers for cases on measured devices, shape `(n,)`, and their work."""
    features = extract(cases, learned.schema, devices)
    triples = learned.members["latency"]
    outputs = learned.runtime.run(inputs(learned, cases, features), only=[graph for graph, _, _ in triples])
    return answered(outputs, triples) + log_base(learned, cases, features), features.work


def _to_carry(model: FamilyModel, cases: Cases, regimes: Mapping[str, Any]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Rows that others must answer for, and for which targets.

    Where only a device's power is unknown, and was measured there in another dtype or variant, its own answer stands.
    """
    latency = regimes["latency"] == "unseen_device"
    if latency.any():
        yield np.flatnonzero(latency), tuple(regimes)
    if "power" in regimes:
        known = {word.split(" ")[0] for word in model.measured["power"]}
        power = (regimes["power"] == "unseen_device") & ~latency & ~cases.coded("device").among(known)
        if power.any():
            yield np.flatnonzero(power), ("power",)


def _regimes(model: FamilyModel, cases: Cases, target: str, devices: Catalogue) -> Any:
    regimes = np.where(measured_words(cases).among(model.measured[target]), "seen", "unseen_device")
    for index, (name,) in cases.groups("device"):
        if devices.get(name).kind not in model.kinds:
            regimes[index] = "unseen_kind"
    return regimes
