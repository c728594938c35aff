"""What a model would answer for each of its devices, had that device never been measured."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...features.batch.cases import Floats
from ...features.batch.category import measured_label
from ...features.device import Catalogue
from ...features.vector.schema import scale_free_columns
from ..engine.runtime import Runtime
from ..family_model.device_transfer import FamilyRegressor, transfer
from ..regressor import Problem, Regressor
from ..regressors.xgboost import QUICK
from .fitting import MIN_ROWS, Answers, Fit, TrainingTable, fit, log_errors

_OTHERS_ROWS, _OWN_ROWS, _FREE_ROWS = 12_000, 3_000, 40_000
"""Rows of the others a left-out device is predicted from, rows of it that are, and rows scale-free trees grow on: enough for
the errors, and quick."""

_SHIFTS = np.linspace(-0.5, 0.3, 81)
_SHIFT_TAKEN = 0.5
"""Half of the shift that is best for the devices left out is taken: a handful of them says little about the next one."""


@dataclass(frozen=True, slots=True)
class DeviceHoldout:
    """Answers for rows of devices left out in turn.

    Attributes:
        answers: NaN for rows of devices that were not left out.
        shift: What was added to the answers.
        twin: How nearly another device is a duplicate of the row's, from 0 to 1, shape `(n,)`.
    """

    answers: Answers
    shift: float
    twin: Floats


def measured_by_target(table: TrainingTable, rows: Any = slice(None)) -> dict[str, tuple[str, ...]]:
    """For each target the words of what was measured where (`impl_words.measured_label`), among `rows`."""
    labels = table.rows.cases.categories.labels(measured_label)
    return {
        target: tuple(sorted(labels.words[i] for i in np.unique(labels.code[rows][~np.isnan(column[rows])]).tolist()))
        for target, column in table.log_labels.items()
    }


def fit_scale_free(table: TrainingTable, rows: Any, n_inputs: int, seed: int) -> bytes:
    """Graph of boosted trees that answer ln(latency / lower bound) from scale-free features alone.

    `n_inputs` is how many columns the family's graphs read; all but the scale-free ones are hidden from the trees.
    """
    rows = np.random.default_rng(seed).permutation(np.arange(len(table))[rows])[:_FREE_ROWS]
    free = scale_free_columns(table.features.schema)
    x = np.full((len(rows), n_inputs), np.nan, dtype=np.float32)
    x[:, np.flatnonzero(free)] = table.features.values[rows][:, free]
    ratio = table.log_labels["latency"][rows] - table.log_bound[rows]
    return QUICK.fit(Problem(x, {"latency": ratio}, {}, seed))[0].onnx


def device_holdout_answers(
    table: TrainingTable, regressor: Regressor, seed: int, devices: Catalogue, pool: Executor
) -> DeviceHoldout | None:
    """Answers for devices left out in turn, or None where no two devices of a kind were measured."""
    cases = table.rows.cases
    kinds = np.array([devices.get(name).kind for name in cases.device.tolist()])
    rng = np.random.default_rng(seed)
    tasks = []
    for name in np.unique(cases.device).tolist():
        device_rows = cases.device == name
        others = ~device_rows & (kinds == devices.get(name).kind)
        if others.sum() >= MIN_ROWS:
            train_on = rng.permutation(np.flatnonzero(others))[:_OTHERS_ROWS]
            test_on = rng.permutation(np.flatnonzero(device_rows))[:_OWN_ROWS]
            tasks.append((test_on, pool.submit(_answers, table, regressor, train_on, test_on, seed, devices)))
    if not tasks:
        return None
    answers = {target: np.full(len(table), np.nan) for target in table.log_labels}
    twin = np.zeros(len(table))
    for test_on, task in tasks:
        left_out_answers, twin[test_on] = task.result()
        for target, column in left_out_answers.items():
            answers[target][test_on] = column
    shift = _best_shift(log_errors(table, "latency", answers)[twin < 0.5])
    answers["latency"] = np.maximum(answers["latency"] + shift * (1.0 - twin), table.log_bound)
    return DeviceHoldout(answers, shift, twin)


def _answers(
    table: TrainingTable, regressor: Regressor, train_on: Any, test_on: Any, seed: int, devices: Catalogue
) -> tuple[Mapping[str, Floats], Floats]:
    """Answers for `test_on` by a quick fit on `train_on`, and how much of a twin was found."""
    answers = fit(table, train_on, regressor.quick or regressor, seed)
    n_inputs = len(table.features.schema.names) + (answers.analytic is not None)
    graphs = [*(graph.onnx for graph in answers.graphs), fit_scale_free(table, train_on, n_inputs, seed)]
    learned = FamilyRegressor(
        schema=table.features.schema,
        runtime=Runtime(graphs),
        members=_members(answers),
        analytic=answers.analytic,
        free=len(graphs) - 1,
        measured=measured_by_target(table, train_on),
        devices=devices,
    )
    cases = table.rows.cases.take(test_on)
    categories = cases.categories
    query = learned.query(cases, learned.inputs_of(categories.distinct), categories.code)
    sources = [learned.sources_of(category) for category in query.categories.distinct]
    estimate = transfer(learned, query, sources, tuple(learned.members))
    return estimate.logs, estimate.near_duplicate


def _members(members: Fit) -> dict[str, tuple[tuple[int, int, float], ...]]:
    """Every graph's columns by target, equally weighed."""
    places: dict[str, list[tuple[int, int]]] = {}
    for i, graph in enumerate(members.graphs):
        for column, target in enumerate(graph.targets):
            places.setdefault(target, []).append((i, column))
    return {target: tuple((i, column, 1.0 / len(at)) for i, column in at) for target, at in places.items()}


def _best_shift(errors: Floats) -> float:
    """What to add to ln(answers) so that their mean relative error is least, halved.

    `errors` are ln(measured / answered); a relative error is |exp(shift - error) - 1|. It is below 1 however low an answer
    is, and has no limit above, so that the less is known the lower the best answer lies.
    """
    known = errors[~np.isnan(errors)]
    if not len(known):
        return 0.0
    mean_error = [np.minimum(np.abs(np.expm1(shift - known)), 10.0).mean() for shift in _SHIFTS.tolist()]
    return float(_SHIFT_TAKEN * _SHIFTS[int(np.argmin(mean_error))])
