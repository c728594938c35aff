"""Fitting a regressor to one family's rows, and what the fit answers for rows it did not see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..datasets.splits import shape_folds
from ..features.cases import Floats, Strings
from ..features.device import Catalogue
from ..features.extract import Features, FeatureSchema, extract
from .analytic import AnalyticModel, attributes_of
from .engine import Runtime, with_base
from .labelled import Labelled
from .limits import power_limits_w
from .regressor import Graph, Problem, Regressor

FOLDS = 5
_ALL_FOLDS_BELOW_ROWS = 20_000
"""Below this every fold is held out in turn; above it one fold gives errors enough and training stays within minutes."""

_LEFT_OUT_ROWS = 6_000
"""Rows of the other devices a left-out device is predicted from: enough for its errors, and quick."""

MIN_ROWS = 20
"""Fewer rows of a family than this cannot be held out in folds and teach nothing."""

Answers = Mapping[str, Floats]
"""Logarithm of each target's answer (s; share of the power limit), shape `(n,)`, NaN where a row has none."""

MemberAnswers = Mapping[str, Mapping[str, Floats]]
"""For each target the answers of every member of a fit, by the member's name."""


@dataclass(frozen=True, slots=True)
class TrainingTable:
    """One family's rows in all the forms that fitting needs; every column has shape `(n, …)`.

    `log_labels` maps `latency` (ln s) and, where there is enough of it, `power` (ln of the share of the limit) to
    columns, NaN where a row has no label. `terms` and `attributes` feed the analytic model; `fold` deals rows by shape;
    `threads` is how many threads a fit may use.
    """

    rows: Labelled
    features: Features
    terms: Floats
    attributes: Strings
    log_bound: Floats
    log_labels: Mapping[str, Floats]
    fold: Any
    threads: int = 1

    @classmethod
    def of(cls, rows: Labelled, devices: Catalogue, threads: int = 1) -> TrainingTable:
        """The table of measured rows.

        Raises:
            SpecError: a device the catalogue does not know, or without a peak for a dtype.
        """
        features = extract(rows.cases, FeatureSchema.fit(rows.cases), devices)
        limit_w, _ = power_limits_w(rows.cases, devices)
        labels = {"latency": np.log(rows.latency_s)}
        power = np.log(rows.power_w / limit_w)
        if (~np.isnan(power)).sum() >= MIN_ROWS:
            labels["power"] = power
        return cls(
            rows=rows,
            features=features,
            terms=features.terms,
            attributes=attributes_of(rows.cases, rows.cases.impl),
            log_bound=np.log(features.work.lower_bound_s),
            log_labels=labels,
            fold=shape_folds(rows.cases, FOLDS),
            threads=threads,
        )

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted regressor: its graphs and, where latency is learned as a ratio to it, the analytic model."""

    graphs: tuple[Graph, ...]
    analytic: AnalyticModel | None

    def inputs(self, table: TrainingTable) -> tuple[Any, Floats]:
        """What graphs read, float32 `(n, n_inputs)`, and ln of what latency is a ratio to, shape `(n,)`."""
        if self.analytic is None:
            return with_base(table.features.values, None), table.log_bound
        log_base = self.analytic.log_latency(table.terms, table.attributes)
        return with_base(table.features.values, log_base), log_base

    def answers(self, table: TrainingTable, rows: Any) -> MemberAnswers:
        """Every member's answers for `rows` of the table, NaN elsewhere; as fitted, not yet held above the bound."""
        x, log_base = self.inputs(table)
        outputs = Runtime([graph.onnx for graph in self.graphs]).run(x[rows])
        found: dict[str, dict[str, Floats]] = {}
        for graph, output in zip(self.graphs, outputs, strict=True):
            for column, target in enumerate(graph.targets):
                answer = np.full(len(table), np.nan)
                answer[rows] = output[:, column] + (log_base[rows] if target == "latency" else 0.0)
                found.setdefault(target, {})[graph.member] = answer
        return found


def fit(table: TrainingTable, rows: Any, regressor: Regressor, seed: int) -> Fit:
    """The regressor fitted on `rows` (indices or a slice) of the table."""
    analytic = None
    if regressor.on_analytic:
        analytic = AnalyticModel.fit(table.terms[rows], table.attributes[rows], table.rows.latency_s[rows], seed)
    blank = Fit((), analytic)
    x, log_base = blank.inputs(table)
    targets = {name: column[rows] for name, column in table.log_labels.items()}
    targets["latency"] = targets["latency"] - log_base[rows]
    known = {name: column for name, column in targets.items() if not np.isnan(column).all()}
    problem = Problem(x[rows], known, np.ones(len(x[rows])), seed, table.threads)
    return Fit(tuple(regressor.fit(problem)), analytic)


def held_out_answers(table: TrainingTable, regressor: Regressor, seed: int) -> MemberAnswers:
    """Every member's answers for rows held out by shape; NaN where a row was never held out."""
    answers: dict[str, dict[str, Floats]] = {}
    for k in range(FOLDS) if len(table) < _ALL_FOLDS_BELOW_ROWS else range(1):
        out = table.fold == k
        if out.any() and (~out).sum() >= MIN_ROWS // 2:
            _fill(answers, table, regressor, np.flatnonzero(~out), np.flatnonzero(out), seed)
    return answers


def left_out_answers(table: TrainingTable, regressor: Regressor, seed: int) -> MemberAnswers | None:
    """Every member's answers for devices left out in turn, or None where there is only one device."""
    names = np.unique(table.rows.cases.device).tolist()
    if len(names) < 2:
        return None
    answers: dict[str, dict[str, Floats]] = {}
    rng = np.random.default_rng(seed)
    for name in names:
        out = table.rows.cases.device == name
        others = rng.permutation(np.flatnonzero(~out))[:_LEFT_OUT_ROWS]
        own = rng.permutation(np.flatnonzero(out))[:_LEFT_OUT_ROWS]
        _fill(answers, table, regressor, others, own, seed)
    return answers


def log_errors(table: TrainingTable, target: str, answers: Answers) -> Floats:
    """ln(measured / answered), shape `(n,)`, NaN where there is no answer or no label; energy is latency times power."""
    if target == "energy":
        return log_errors(table, "latency", answers) + log_errors(table, "power", answers)
    return table.log_labels[target] - answers[target]


def _fill(
    answers: dict[str, dict[str, Floats]],
    table: TrainingTable,
    regressor: Regressor,
    train_on: Any,
    test_on: Any,
    seed: int,
) -> None:
    for target, members in fit(table, train_on, regressor, seed).answers(table, test_on).items():
        for member, column in members.items():
            nothing = np.full(len(table), np.nan)
            answers.setdefault(target, {}).setdefault(member, nothing)[test_on] = column[test_on]
