"""One family's part of a model, ready to answer: from cases to values with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np

from ..features.cases import Cases, Floats
from ..features.device import Catalogue
from ..features.kinds import Kinds
from .artifact import FamilyModel
from .domain import widening
from .engine import Runtime, nowhere
from .intervals import REGIMES, Scores, scale_of, twin_factor
from .looking import Asked, Look, look_at
from .notes import Strangeness, method_column, notes, regime_column
from .prediction import TARGETS, Predictions, TargetColumns
from .regressor import Matrix
from .standing import Standing, StandingTable
from .transfer import Learned

_STEPS_PER_UNKNOWN_WORD = 2.0
"""A dtype, variant or impl never measured widens like a case two typical spacings outside the domain: doubled."""

_LOG_ERROR_OUTSIDE = 0.06
"""Standard deviation of ln that every doubling of an interval outside the domain adds on measured devices: scales learned
inside say little there. Larger sizes of public tables err by 1.6–14 % where hidden shapes of trained sizes err by 1.2–5 %."""

_MOST_ENDS = 1024
"""Ends of intervals that are remembered; callers ask for few coverages."""

_MOST_LOG_WIDTH = 50.0
"""Keeps an absurdly wide upper end finite."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """ln of each target's answer, the standard deviation of adapted ones, and how much of a twin was found."""

    logs: Mapping[str, Floats]
    deviation: Mapping[str, Floats]
    twin: Floats


@dataclass(frozen=True, slots=True)
class _Call:
    """What the intervals of one call share: graphs' outputs, the widening, the coverage asked, the answers, and the kinds with
    their standing.
    """

    outputs: Mapping[int, Floats]
    factor: Floats
    coverage: float
    answers: _Answers
    kinds: Kinds
    standing: Sequence[Standing]


class FamilyEngine:
    """One family's graphs, ready to run. Safe to share between threads."""

    def __init__(self, model: FamilyModel, regressor: str) -> None:
        self.model = model
        self.regressor = regressor
        self._tables: dict[Catalogue, StandingTable] = {}
        self._ends: dict[tuple[str, str, str, float], tuple[float, float]] = {}

    @cached_property
    def _runtime(self) -> Runtime:
        return Runtime(self.model.graphs)

    @cached_property
    def _learned(self) -> Learned:
        members = {name: target.members for name, target in self.model.targets.items() if target.members}
        return Learned(self.model.schema, self._runtime, members, self.model.analytic, self.model.free,
                       self.model.measured, self.model.shift)  # fmt: skip

    @cached_property
    def _scales(self) -> list[int]:
        """The graphs of error sizes."""
        return [target.scale_graph for target in self.model.targets.values() if target.scale_graph is not None]

    def _scores_at(self, target: str, regime: str, device: str, coverage: float) -> tuple[float, float]:
        """Ends of the scores of a target in a regime on a device at a coverage; the last few coverages are remembered."""
        key = (target, regime, device, coverage)
        if key not in self._ends:
            if len(self._ends) >= _MOST_ENDS:
                self._ends.clear()
            self._ends[key] = self._scores(target, regime, device).bounds(coverage)
        return self._ends[key]

    def load(self) -> None:
        """Create the graphs' sessions now.

        Raises:
            GraphError: a graph is not valid.
        """
        width = len(self.model.schema.names) + (self.model.analytic is not None)
        self._runtime.run(np.zeros((1, width), dtype=np.float32))

    def predict(self, cases: Cases, coverage: float, devices: Catalogue) -> Predictions:
        """Predictions of cases of this family, see `Predictor.predict_cases`."""
        asked = self._asked(cases, devices)
        cases, features, standing = asked.cases, asked.features, asked.standing
        kinds = cases.kinds()
        answers = self._answers(asked, devices)
        outputs = self._runtime.run(self._nowhere(asked), only=self._scales)
        strangeness = Strangeness.of(self.model, cases, features, standing)
        factor = widening(strangeness.excess + _STEPS_PER_UNKNOWN_WORD * strangeness.words)
        call = _Call(outputs, factor, coverage, answers, kinds, standing)
        bound = features.work.lower_bound_s
        regimes = regime_column(cases, standing, "latency")
        # Off the device kinds it was trained on, what was learned means nothing: the family's median ratio stands in.
        scaled = bound * np.exp(self.model.median_log_ratio)
        value = np.maximum(np.where(regimes != "unseen_kind", np.exp(answers.logs["latency"]), scaled), bound)
        latency = self._interval("latency", value, [one.regimes["latency"] for one in standing], call, floor=bound)
        power, energy = self._power_and_energy(latency, call)
        said = notes(self.model, cases, features, strangeness, standing)
        return Predictions(
            targets=dict(zip(TARGETS, (latency, power, energy), strict=True)),
            coverage=coverage,
            method=method_column(cases, standing),
            in_domain=np.array([not note for note in said]),
            notes=said,
            bound=features.work.binding(),
            breakdown=features.work.bounds_s,
            regimes=regimes,
        )

    def _asked(self, cases: Cases, devices: Catalogue) -> Asked:
        cases = cases.with_catalogue_names(devices).with_core_counts(devices)
        if (table := self._tables.get(devices)) is None:
            features = self._learned.table(devices).features
            table = self._tables.setdefault(devices, StandingTable(self.model, self.regressor, features, devices))
        return Asked.of(self._learned, table, cases, devices)

    def _nowhere(self, asked: Asked) -> Matrix:
        """The inputs, with no word of where a case ran for those whose like was never measured there, as in calibrating."""
        away = ["unseen_device" in one.regimes.values() for one in asked.standing]
        if not any(away):
            return asked.x
        there: Matrix = nowhere(asked.x, self.model.schema)
        if not all(away):
            there = np.where(asked.cases.kinds().column(away)[:, None], there, asked.x)
        return there

    def look(self, cases: Cases, devices: Catalogue) -> Look:
        """What is known of cases before any adaptation, and where they lie for one.

        Raises:
            SpecError: unknown device, or a dtype it has no peak for.
        """
        asked = self._asked(cases, devices)
        everywhere = np.ones(len(cases), dtype=np.bool_)
        return look_at(self.model, self._learned, asked, devices, adapted=everywhere)

    def _answers(self, asked: Asked, devices: Catalogue) -> _Answers:
        """The answers, corrected where the model was adapted to a case's device."""
        cases = asked.cases
        wanted = cases.coded("device").among(self.model.adaptations)
        looked = look_at(self.model, self._learned, asked, devices, adapted=wanted)
        logs = dict(looked.logs)
        deviation = {target: np.zeros(len(cases)) for target in logs}
        for device, own in self.model.adaptations.items():
            rows = np.flatnonzero(cases.coded("device").is_word(device))
            if not len(rows):
                continue
            for target, adaptation in own.items():
                mean, size = adaptation.at(looked.points[target].take(rows))
                logs[target][rows] += mean
                deviation[target][rows] = size
        return _Answers(logs, deviation, looked.twin)

    def _interval(
        self,
        target: str,
        value: Floats,
        regimes: Sequence[str],
        call: _Call,
        *,
        floor: Floats,
        ceiling: Floats | None = None,
    ) -> TargetColumns:
        """Values with their intervals, held between `floor` and `ceiling`, `(n,)`; `regimes` are those of the kinds."""
        model = self.model.targets[target]
        normal = NormalDist().inv_cdf((1.0 + call.coverage) / 2.0)
        # By kind: ends of the scores, what their size is (1, a twin's, an adaptation's deviation), and what is added outside.
        # Beyond what was measured errors grow, small as they were inside; of devices never measured that is in the scores.
        by_kind = [
            (
                *self._scores_at(target, regime, kind.device if regime == "adapted" else "", call.coverage),
                regime == "unseen_kind", regime == "unseen_device", regime == "adapted",
                _LOG_ERROR_OUTSIDE * normal if regime == "seen" else 0.0,
            )
            for kind, regime in zip(call.kinds.kinds, regimes, strict=True)
        ]  # fmt: skip
        low, high, plain, unseen, adapted, growth = call.kinds.column(by_kind).T
        scale = np.ones(len(value)) if model.scale_graph is None else scale_of(call.outputs[model.scale_graph][:, 0])
        if any(row[2] for row in by_kind):
            # This regime's scores are plain log errors.
            scale = np.where(plain > 0, 1.0, scale)
        if any(row[3] for row in by_kind):
            scale = np.where(unseen > 0, scale * twin_factor(call.answers.twin), scale)
        if any(row[4] for row in by_kind):
            scale = np.where(adapted > 0, call.answers.deviation.get(target, scale), scale)
        spread = scale * call.factor
        outside = growth * (call.factor - 1.0)
        top = np.inf if ceiling is None else ceiling
        lower = np.minimum(np.maximum(value * np.exp(low * spread - outside), floor), np.minimum(value, top))
        upper = value * np.exp(np.minimum(high * spread + outside, _MOST_LOG_WIDTH))
        upper = np.minimum(np.maximum(upper, value), np.maximum(top, value))
        return TargetColumns(value, lower, upper)

    def _scores(self, target: str, regime: str, device: str) -> Scores:
        model = self.model.targets[target]
        if regime == "adapted":
            own = self.model.adaptations[device]
            # Energy on an adapted device is put together from the other two afterwards.
            return own[target].scores if target in own else model.scores["seen"]
        return model.scores[regime if regime in model.scores else "seen"]

    def _power_and_energy(self, latency: TargetColumns, call: _Call) -> tuple[TargetColumns, TargetColumns]:
        n, answers, kinds = len(latency.value), call.answers, call.kinds
        if "power" not in answers.logs:
            return TargetColumns.unknown(n), TargetColumns.unknown(n)
        limit_w, idle_w = kinds.column([(one.limit_w, one.idle_w) for one in call.standing]).T
        value = np.minimum(np.maximum(limit_w * np.exp(answers.logs["power"]), idle_w), limit_w)
        regimes = [one.regimes["power"] for one in call.standing]
        power = self._interval("power", value, regimes, call, floor=idle_w, ceiling=limit_w)
        # Energy is as strange as the stranger of the two it is made of.
        both = [(regime, one.regimes["latency"]) for regime, one in zip(regimes, call.standing, strict=True)]
        worst = [max(pair, key=REGIMES.index) for pair in both]
        # No energy outside what the ends of latency and power give together.
        energy = self._interval("energy", latency.value * value, worst, call, floor=latency.lower * power.lower,
                                ceiling=latency.upper * power.upper)  # fmt: skip
        adapted = ["adapted" in pair for pair in both]
        if any(adapted):
            energy = _where_else(kinds.column(adapted), _product(latency, power), energy)
        # A kind of device whose power was never measured, or without a public limit, has none to tell.
        known = kinds.column([regime != "unseen_kind" for regime in regimes]) & ~np.isnan(value)
        return (power, energy) if known.all() else (_where(known, power), _where(known, energy))


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
