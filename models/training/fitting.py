"""Fitting a regressor to one family's rows, and what the fit answers for rows it did not see."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...datasets.rows.splits import shape_folds
from ...features.batch.cases import Floats
from ...features.device import Catalogue
from ...features.vector.extract import Features, extract
from ...features.vector.schema import FeatureSchema
from ..engine.runtime import Runtime, append_log_base
from ..family_model.analytic import AnalyticModel, Attributes, attributes_of
from ..family_model.utilisation import SURE_POWER_S, power_limits_w
from ..regressor import Graph, Problem, Regressor
from .labelled_cases import LabelledCases

_LARGE_TABLE = 5_000
_SMALL, _LARGE = (5, 3), (10, 1)
"""(folds, how many of them are held out in turn): a tenth of a large table is enough to learn the errors from."""

MIN_ROWS = 20
"""Fewer rows of a family than this cannot be held out in folds and teach nothing."""

_LEAST_POWER_WEIGHT = 0.1
"""Weight of the power of the shortest kernels: they are many, and the sensor caught little of them, but not nothing."""

Answers = Mapping[str, Floats]
"""Logarithm of each target's answer (s; share of the power limit), shape `(n,)`, NaN where a row has none."""

MemberAnswers = Mapping[str, Mapping[str, Floats]]
"""For each target the answers of every member of a fit, by the member's name."""


@dataclass(frozen=True, slots=True)
class TrainingTable:
    """One family's rows in all the forms that fitting needs; every column has shape `(n, …)`.

    Attributes:
        rows: The measured rows.
        features: What regressors read.
        terms: Seconds of each term of the analytic model.
        attributes: What the analytic model's weights depend on.
        log_bound: ln of the lower bound in seconds.
        log_labels: `latency` (ln s) and, where there is enough of it, `power` (ln of the share of the limit); NaN where a
            row has no label.
    """

    rows: LabelledCases
    features: Features
    terms: Floats
    attributes: Attributes
    log_bound: Floats
    log_labels: Mapping[str, Floats]

    @classmethod
    def of(cls, rows: LabelledCases, devices: Catalogue) -> TrainingTable:
        """The table of measured rows.

        Raises:
            SpecError: a device the catalogue does not know, or without a peak for a dtype.
        """
        rows = replace(rows, cases=rows.cases.with_catalogue_names(devices).with_core_counts(devices))
        features = extract(rows.cases, FeatureSchema.fit(rows.cases), devices)
        limit_w, _ = power_limits_w(rows.cases, devices)
        labels = {"latency": np.log(rows.latency_s)}
        power = np.log(rows.power_w / limit_w)
        if (~np.isnan(power)).sum() >= MIN_ROWS:
            labels["power"] = power
        return cls(
            rows=rows,
            features=features,
            terms=features.terms.T,
            attributes=attributes_of(rows.cases.categories, rows.cases.coded("impl")),
            log_bound=np.log(features.work.lower_bound_s),
            log_labels=labels,
        )

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted regressor.

    Attributes:
        graphs: Its graphs.
        analytic: The analytic model; None where latency is not learned as a ratio to it.
    """

    graphs: tuple[Graph, ...]
    analytic: AnalyticModel | None

    def inputs(self, table: TrainingTable) -> tuple[Any, Floats]:
        """What graphs read, float32 `(n, n_inputs)`, and ln of what latency is a ratio to, shape `(n,)`."""
        if self.analytic is None:
            return append_log_base(table.features.values, None), table.log_bound
        log_base = self.analytic.log_latency(table.terms, table.attributes)
        return append_log_base(table.features.values, log_base), log_base

    def answers(self, table: TrainingTable, rows: Any) -> MemberAnswers:
        """Every member's answers for `rows` of the table, NaN elsewhere; as fitted, not yet held above the bound."""
        x, log_base = self.inputs(table)
        outputs = Runtime([graph.onnx for graph in self.graphs]).run(x[rows])
        answers: dict[str, dict[str, Floats]] = {}
        for i, graph in enumerate(self.graphs):
            for column, target in enumerate(graph.targets):
                answer = np.full(len(table), np.nan)
                answer[rows] = outputs[i][:, column] + (log_base[rows] if target == "latency" else 0.0)
                answers.setdefault(target, {})[graph.member] = answer
        return answers


NO_FIT = Fit((), None)
"""Nothing to go on from."""


def fit(
    table: TrainingTable,
    rows: Any,
    regressor: Regressor,
    seed: int,
    earlier: Fit = NO_FIT,
    unneeded: frozenset[tuple[str, str]] = frozenset(),
) -> Fit:
    """The regressor fitted on `rows` (indices or a slice) of the table.

    What can goes on from an `earlier` fit to most of them, whose analytic model is taken as it is, if it has one. Graphs of the
    `unneeded` members and targets may be missing.
    """
    analytic = earlier.analytic
    if regressor.on_analytic and analytic is None:
        analytic = fit_analytic(table, rows, seed)
    x, log_base = Fit((), analytic).inputs(table)
    targets = {name: column[rows] for name, column in table.log_labels.items()}
    targets["latency"] = targets["latency"] - log_base[rows]
    known = {name: column for name, column in targets.items() if not np.isnan(column).all()}
    sure = np.clip(table.rows.latency_s[rows] / SURE_POWER_S, _LEAST_POWER_WEIGHT, 1.0)
    problem = Problem(x[rows], known, {"power": sure}, seed, unneeded=unneeded, earlier=earlier.graphs)
    return Fit(tuple(regressor.fit(problem)), analytic)


def fit_analytic(table: TrainingTable, rows: Any, seed: int) -> AnalyticModel:
    """The analytic model of `rows` (indices or a slice) of the table."""
    by_maker = table.rows.cases.family.tiles is None
    return AnalyticModel.fit(
        table.terms[rows], table.attributes.take(rows), table.rows.latency_s[rows], seed, by_maker=by_maker
    )


def hold_out(table: TrainingTable, regressor: Regressor, seed: int, pool: Executor) -> tuple[MemberAnswers, Fit]:
    """Every member's answers for rows held out by shape, NaN where a row never was, and a fit to most rows of a large table,
    whose analytic model is that of all rows; `NO_FIT` for a small one.

    Args:
        table: The training table of a family.
        regressor: What is fitted.
        seed: Seed of folds and fits.
        pool: Runs the fits.
    """
    large = len(table) >= _LARGE_TABLE
    count, n_held_out = _LARGE if large else _SMALL
    folds = shape_folds(table.rows.cases, count)
    start = Fit((), fit_analytic(table, slice(None), seed)) if large and regressor.on_analytic else NO_FIT
    parts: list[tuple[Any, Future[Fit]]] = []
    judged = dict.fromkeys(table.log_labels, 0)
    for k in range(count):
        # Shapes are dealt by hash: as many folds as hold some rows of every target.
        if len(parts) >= n_held_out and min(judged.values()) >= MIN_ROWS:
            break
        out = folds == k
        if out.any() and (~out).sum() >= MIN_ROWS // 2:
            future = pool.submit(fit, table, np.flatnonzero(~out), regressor, seed + k, start)
            parts.append((np.flatnonzero(out), future))
            judged = {name: n + int((~np.isnan(table.log_labels[name][out])).sum()) for name, n in judged.items()}
    answers: dict[str, dict[str, Floats]] = {}
    for rows, future in parts:
        for target, members in future.result().answers(table, rows).items():
            for member, column in members.items():
                answers.setdefault(target, {}).setdefault(member, np.full(len(table), np.nan))[rows] = column[rows]
    return answers, parts[0][1].result() if large and parts else NO_FIT


def log_errors(table: TrainingTable, target: str, answers: Answers) -> Floats:
    """ln(measured / answered), shape `(n,)`, NaN where there is no answer or no label; energy is latency times power."""
    if target == "energy":
        return log_errors(table, "latency", answers) + log_errors(table, "power", answers)
    return table.log_labels[target] - answers[target]
