"""One family's part of a model, ready to answer: from cases to values with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np

from ..features.cases import Cases, Floats, Strings
from ..features.coded import Words
from ..features.device import Catalogue
from ..features.extract import Features, extract
from .artifact import FamilyModel
from .domain import widening
from .engine import Runtime, nowhere
from .intervals import REGIMES, Scores, scale_of, twin_factor
from .limits import power_limits_w
from .looking import Look, look_at
from .notes import Strangeness, methods, notes
from .prediction import TARGETS, Predictions, TargetColumns
from .regressor import Matrix
from .transfer import Learned, inputs

_STEPS_PER_UNKNOWN_WORD = 2.0
"""A dtype, variant or impl never measured widens like a case two typical spacings outside the domain: doubled."""

_LOG_ERROR_OUTSIDE = 0.06
"""Standard deviation of ln that every doubling of an interval outside the domain adds on measured devices: scales learned
inside say little there. Larger sizes of public tables err by 1.6–14 % where hidden shapes of trained sizes err by 1.2–5 %."""

_MOST_LOG_WIDTH = 50.0
"""Keeps an absurdly wide upper end finite."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """ln of each target's answer, its regimes, the standard deviation of adapted ones, and how much of a twin was found."""

    logs: Mapping[str, Floats]
    regimes: Mapping[str, Any]
    deviation: Mapping[str, Floats]
    twin: Floats


@dataclass(frozen=True, slots=True)
class _Call:
    """What the intervals of one call share: the graphs' outputs, the widening, the coverage asked, the answers."""

    outputs: Mapping[int, Floats]
    factor: Floats
    coverage: float
    answers: _Answers
    device: Strings


class FamilyEngine:
    """One family's graphs, ready to run. Safe to share between threads."""

    def __init__(self, model: FamilyModel, regressor: str) -> None:
        self.model = model
        self.regressor = regressor

    @cached_property
    def _runtime(self) -> Runtime:
        return Runtime(self.model.graphs)

    @cached_property
    def _learned(self) -> Learned:
        members = {name: target.members for name, target in self.model.targets.items() if target.members}
        return Learned(self.model.schema, self._runtime, members, self.model.analytic, self.model.free,
                       self.model.measured, self.model.shift)  # fmt: skip

    @cached_property
    def _graphs(self) -> list[int]:
        """The graphs every answer needs; the scale-free trees answer only for devices never measured."""
        return [i for i in range(len(self.model.graphs)) if i != self.model.free and i not in self._scales]

    @cached_property
    def _scales(self) -> list[int]:
        """The graphs of error sizes."""
        return [target.scale_graph for target in self.model.targets.values() if target.scale_graph is not None]

    def load(self) -> None:
        """Create the graphs' sessions now.

        Raises:
            GraphError: a graph is not valid.
        """
        width = len(self.model.schema.names) + (self.model.analytic is not None)
        self._runtime.run(np.zeros((1, width), dtype=np.float32))

    def predict(self, cases: Cases, coverage: float, devices: Catalogue) -> Predictions:
        """Predictions of cases of this family, see `Predictor.predict_cases`."""
        cases = cases.with_catalogue_names(devices).with_core_counts(devices)
        features = extract(cases, self.model.schema, devices)
        x = inputs(self._learned, cases, features)
        outputs = self._runtime.run(x, only=self._graphs)
        answers = self._answers(cases, features, outputs, devices)
        outputs |= self._runtime.run(self._nowhere(x, answers.regimes), only=self._scales)
        regimes = answers.regimes["latency"]
        known_kind = regimes != "unseen_kind"
        strangeness = Strangeness.of(self.model, cases, features, known_kind)
        factor = widening(strangeness.excess + _STEPS_PER_UNKNOWN_WORD * strangeness.words)
        call = _Call(outputs, factor, coverage, answers, cases.device)
        bound = features.work.lower_bound_s
        # Off the device kinds it was trained on, what was learned means nothing: the family's median ratio stands in.
        scaled = bound * np.exp(self.model.median_log_ratio)
        value = np.maximum(np.where(known_kind, np.exp(answers.logs["latency"]), scaled), bound)
        latency = self._interval("latency", value, regimes, call, floor=bound)
        power, energy = self._power_and_energy(latency, call, *power_limits_w(cases, devices))
        said = notes(self.model, cases, features, regimes, strangeness, devices)
        return Predictions(
            targets=dict(zip(TARGETS, (latency, power, energy), strict=True)),
            coverage=coverage,
            method=methods(self.regressor, cases, features.read_as, Words.of(regimes)),
            in_domain=np.array([not note for note in said]),
            notes=said,
            bound=features.work.binding(),
            breakdown=features.work.bounds_s,
            regimes=regimes,
        )

    def _nowhere(self, x: Matrix, regimes: Mapping[str, Any]) -> Matrix:
        """The inputs, with no word of where a case ran for those whose like was never measured there, as in calibrating."""
        away = np.any([words == "unseen_device" for words in regimes.values()], axis=0)
        return np.where(away[:, None], nowhere(x, self.model.schema), x) if away.any() else x

    def look(self, cases: Cases, devices: Catalogue) -> Look:
        """What is known of cases before any adaptation, and where they lie for one.

        Raises:
            SpecError: unknown device, or a dtype it has no peak for.
        """
        cases = cases.with_catalogue_names(devices).with_core_counts(devices)
        features = extract(cases, self.model.schema, devices)
        outputs = self._runtime.run(inputs(self._learned, cases, features), only=self._graphs)
        return look_at(
            self.model, self._learned, cases, features, outputs, devices, adapted=np.ones(len(cases), dtype=np.bool_)
        )

    def _answers(self, cases: Cases, features: Features, outputs: Mapping[int, Floats], devices: Catalogue) -> _Answers:
        """The answers, corrected where the model was adapted to a case's device."""
        wanted = cases.coded("device").among(self.model.adaptations)
        looked = look_at(self.model, self._learned, cases, features, outputs, devices, adapted=wanted)
        logs, regimes = dict(looked.logs), dict(looked.regimes)
        deviation = {target: np.zeros(len(cases)) for target in logs}
        for device, own in self.model.adaptations.items():
            rows = np.flatnonzero(cases.coded("device").is_word(device))
            if not len(rows):
                continue
            for target, adaptation in own.items():
                mean, size = adaptation.at(looked.points[target].take(rows))
                logs[target][rows] += mean
                deviation[target][rows] = size
                regimes[target][rows] = "adapted"
        return _Answers(logs, regimes, deviation, looked.twin)

    def _interval(
        self, target: str, value: Floats, regimes: Any, call: _Call, *, floor: Floats, ceiling: Floats | None = None
    ) -> TargetColumns:
        """Values with their intervals, held between `floor` and `ceiling`; all of shape `(n,)`."""
        model = self.model.targets[target]
        scale = np.ones(len(value)) if model.scale_graph is None else scale_of(call.outputs[model.scale_graph][:, 0])
        low, high = np.empty(len(value)), np.empty(len(value))
        for regime in np.unique(regimes).tolist():
            rows = regimes == regime
            for device in np.unique(call.device[rows]).tolist() if regime == "adapted" else [""]:
                some = rows & (call.device == device) if device else rows
                low[some], high[some] = self._scores(target, regime, device).bounds(call.coverage)
        # This regime's scores are plain log errors.
        spread = np.where(regimes == "unseen_kind", 1.0, scale)
        spread = np.where(regimes == "unseen_device", spread * twin_factor(call.answers.twin), spread)
        spread = np.where(regimes == "adapted", call.answers.deviation.get(target, scale), spread)
        spread = spread * call.factor
        # Beyond what was measured errors grow, small as they were inside; of devices never measured that is in the scores.
        normal = NormalDist().inv_cdf((1.0 + call.coverage) / 2.0)
        outside = np.where(regimes == "seen", _LOG_ERROR_OUTSIDE * normal * (call.factor - 1.0), 0.0)
        top = np.full(len(value), np.inf) if ceiling is None else ceiling
        lower = np.clip(value * np.exp(low * spread - outside), floor, np.minimum(value, top))
        upper = np.clip(
            value * np.exp(np.minimum(high * spread + outside, _MOST_LOG_WIDTH)), value, np.maximum(top, value)
        )
        return TargetColumns(value, lower, upper)

    def _scores(self, target: str, regime: str, device: str) -> Scores:
        model = self.model.targets[target]
        if regime == "adapted":
            own = self.model.adaptations[device]
            # Energy on an adapted device is put together from the other two afterwards.
            return own[target].scores if target in own else model.scores["seen"]
        return model.scores[regime if regime in model.scores else "seen"]

    def _power_and_energy(
        self, latency: TargetColumns, call: _Call, limit_w: Floats, idle_w: Floats
    ) -> tuple[TargetColumns, TargetColumns]:
        n, answers = len(limit_w), call.answers
        if "power" not in answers.logs:
            return TargetColumns.unknown(n), TargetColumns.unknown(n)
        value = np.clip(limit_w * np.exp(answers.logs["power"]), idle_w, limit_w)
        regimes = answers.regimes["power"]
        power = self._interval("power", value, regimes, call, floor=idle_w, ceiling=limit_w)
        # Energy is as strange as the stranger of the two it is made of.
        order = np.array(REGIMES)
        both = [[REGIMES.index(word) for word in words.tolist()] for words in (regimes, answers.regimes["latency"])]
        worst = order[np.max(both, axis=0)]
        # No energy outside what the ends of latency and power give together.
        energy = self._interval("energy", latency.value * value, worst, call, floor=latency.lower * power.lower,
                                ceiling=latency.upper * power.upper)  # fmt: skip
        energy = _where_else(
            (answers.regimes["latency"] == "adapted") | (regimes == "adapted"), _product(latency, power), energy
        )
        # A kind of device whose power was never measured, or without a public limit, has none to tell.
        known = (regimes != "unseen_kind") & ~np.isnan(value)
        return _where(known, power), _where(known, energy)


def _product(latency: TargetColumns, power: TargetColumns) -> TargetColumns:
    """Energy from the other two, their errors taken as independent: half-widths add up in squares."""
    value = latency.value * power.value
    down = np.hypot(np.log(latency.value / latency.lower), np.log(power.value / power.lower))
    up = np.hypot(np.log(latency.upper / latency.value), np.log(power.upper / power.value))
    return TargetColumns(value, value * np.exp(-down), value * np.exp(up))


def _where_else(here: Any, columns: TargetColumns, others: TargetColumns) -> TargetColumns:
    return TargetColumns(
        *(np.where(here, getattr(columns, end), getattr(others, end)) for end in ("value", "lower", "upper"))
    )


def _where(known: Any, columns: TargetColumns) -> TargetColumns:
    return TargetColumns(*(np.where(known, column, np.nan) for column in (columns.value, columns.lower, columns.upper)))
