"""Answers for what was never measured on a device, carried over from devices on which it was.

Three answers are made and averaged: that of measured devices, times the ratio of the fitted analytic model between
the two; the analytic model's own; and that of trees which see scale-free features only. The nearer a measured device, the
more its answer says; of two editions of one chip it says all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..features.cases import Cases, Floats
from ..features.device import Catalogue
from ..features.errors import SpecError
from ..features.extract import Features, FeatureSchema, extract
from ..features.words import measured_words
from .analytic import AnalyticModel, attributes_of
from .engine import Runtime, answered, with_base
from .similarity import REACH, distance, twinness

ANALYTIC, FREE = "analytic", "scale-free"

Members = Mapping[str, tuple[tuple[int, int, float], ...]]


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned of one family, as far as carrying over needs it.

    `members` are each target's (graph, column, weight) triples in `runtime`; `free` is the graph of the scale-free trees,
    which answer ln(latency / lower bound). `measured` holds for each target the words of what was measured where
    (`features.words.measured_words`). `shift` is added to ln(latency) of devices that are nobody's twin.
    """

    schema: FeatureSchema
    runtime: Runtime
    members: Members
    analytic: AnalyticModel | None
    free: int | None
    measured: Mapping[str, tuple[str, ...]]
    shift: float = 0.0


@dataclass(frozen=True, slots=True)
class Carried:
    """ln of each target's answer (s; share of the power limit), and how much of a twin was found, 0 to 1; shape `(n,)`.

    `parts` holds, by target, every answer that was averaged, by the source's name or `ANALYTIC` or `FREE`. NaN where nothing
    can be carried over.
    """

    logs: Mapping[str, Floats]
    parts: Mapping[str, Mapping[str, Floats]]
    twin: Floats


def log_base(learned: Learned, cases: Cases, features: Features) -> Floats:
    """Ln of what latency is learned as a ratio to, in seconds, shape `(n,)`."""
    if learned.analytic is None:
        return np.log(features.work.lower_bound_s)
    return learned.analytic.log_latency(features.terms, attributes_of(cases, features.read_as))


def inputs(learned: Learned, cases: Cases, features: Features) -> Any:
    """What the graphs read, float32 `(n, n_inputs)`."""
    return with_base(features.values, None if learned.analytic is None else log_base(learned, cases, features))


def carry_over(
    learned: Learned, cases: Cases, features: Features, devices: Catalogue, targets: Sequence[str] = ()
) -> Carried:
    """Answers for cases from what was measured on other devices of their kind; of some `targets`, or of all.

    Raises:
        SpecError: unknown device.
    """
    n = len(cases)
    base = log_base(learned, cases, features)
    members = {target: triples for target, triples in learned.members.items() if target in targets or not targets}
    parts: dict[str, dict[str, Floats]] = {target: {} for target in members}
    near = {source: _nearness(cases, source, devices) for source in learned.schema.devices}
    twin = np.zeros(n)
    used = sorted({graph for triples in members.values() for graph, _, _ in triples})
    measured = [word for target in members for word in learned.measured[target]]
    for source in learned.schema.devices:
        there_was = [word for word in measured if word.startswith(f"{source} ")]
        if not there_was or not near[source].any():
            continue
        rows, moved = _moved(there_was, cases, source, devices, near[source] > 0)
        if not len(rows):
            continue
        there = extract(moved, learned.schema, devices)
        outputs = learned.runtime.run(inputs(learned, moved, there), only=used)
        words = measured_words(moved)
        for target, triples in members.items():
            answer = np.full(n, np.nan)
            ratio = answered(outputs, triples) + (base[rows] if target == "latency" else 0.0)
            answer[rows] = np.where(words.among(learned.measured[target]), ratio, np.nan)
            parts[target][source] = answer
        twin[rows] = np.maximum(twin[rows], _twinness(moved, cases.take(rows), devices))
    logs = {target: _weighed(answers, near, n) for target, answers in parts.items()}
    if "latency" not in members:
        return Carried(logs, parts, twin)
    general: dict[str, Floats] = {}
    if learned.analytic is not None:
        general[ANALYTIC] = base
    if learned.free is not None:
        ratio = learned.runtime.run(inputs(learned, cases, features), only=[learned.free])[learned.free][:, 0]
        general[FREE] = np.log(features.work.lower_bound_s) + ratio
    logs["latency"] = _averaged(logs["latency"], general, features, twin, learned.shift)
    parts["latency"] |= general
    return Carried(logs, parts, twin)


def _weighed(answers: Mapping[str, Floats], near: Mapping[str, Floats], n: int) -> Floats:
    """The mean of the sources' answers, the nearer the heavier, shape `(n,)`; NaN where there is none."""
    total, weight = np.zeros(n), np.zeros(n)
    for source, answer in answers.items():
        known = ~np.isnan(answer)
        total[known] += (near[source] * answer)[known]
        weight[known] += near[source][known]
    return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), np.nan)


def _averaged(carried: Floats, general: Mapping[str, Floats], features: Features, twin: Floats, shift: float) -> Floats:
    """The mean of the answers there are, or the carried one alone as far as it comes from a twin."""
    stacked = np.stack([carried, *general.values()])
    there = ~np.isnan(stacked)
    # With no source at all and nothing general either, the lower bound is what is left.
    bound = np.log(features.work.lower_bound_s)
    mean = np.where(there.any(axis=0), np.nansum(stacked, axis=0) / np.maximum(there.sum(axis=0), 1), bound)
    own = np.where(np.isnan(carried), 0.0, twin)
    result: Floats = own * np.nan_to_num(carried) + (1.0 - own) * (mean + shift)
    return result


def _nearness(cases: Cases, source: str, devices: Catalogue) -> Floats:
    """Weight of a source for each case, shape `(n,)`; 0 for another kind of device and for the source itself."""
    found, origin = np.zeros(len(cases)), devices.get(source)
    for index, (name,) in cases.groups("device"):
        device = devices.get(name)
        if device.kind == origin.kind and device.name != origin.name:
            found[index] = np.exp(-distance(device, origin) / REACH)
    return found


def _twinness(moved: Cases, cases: Cases, devices: Catalogue) -> Floats:
    found = np.zeros(len(cases))
    for index, (name,) in cases.groups("device"):
        found[index] = twinness(distance(devices.get(name), devices.get(str(moved.device[0]))))
    return found


def _moved(measured: Sequence[str], cases: Cases, source: str, devices: Catalogue, wanted: Any) -> tuple[Any, Cases]:
    """The rows among `wanted` whose like was measured on `source`, and their cases there."""
    there = replace(cases, device=np.full(len(cases), source))
    good = wanted & measured_words(there).among(measured)
    for index, (dtype,) in there.groups("dtype"):
        try:
            devices.get(source).peak_flops_per_s(dtype, cases.family.unit)
        except SpecError:
            # Measured under a catalogue that knew a peak for it; without one it has no features here.
            good[index] = False
    rows = np.flatnonzero(good)
    return rows, there.take(rows)
