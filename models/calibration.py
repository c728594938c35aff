"""Calibrating intervals: how large held-out errors are, where, and how they spread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..datasets.splits import shape_folds
from ..features.cases import Floats
from .engine import Runtime, nowhere
from .fitting import Answers, TrainingTable, log_errors
from .intervals import NO_EVIDENCE_FACTOR, Scores, log_scale_target, scale_of, twin_factor
from .left_out import LeftOut
from .regressor import Matrix

_SCALE_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Calibration:
    """One target's scores by regime, and the graph of the model of error sizes they are relative to."""

    scores: Mapping[str, Scores]
    scale: bytes


def calibrate(
    table: TrainingTable, x: Matrix, target: str, held_out: Answers, left_out: LeftOut | None, seed: int
) -> Calibration:
    """The calibration of `target` from answers to rows held out by shape and, where there are, by device.

    Args:
        table: all rows.
        x: what graphs read, shape `(n, n_inputs)`.
        target: `latency`, `power` or `energy`.
        held_out: answers for rows held out by shape.
        left_out: answers for rows of devices left out, None where no two devices of a kind were measured.
        seed: chooses rows where there are more than are needed.
    """
    errors = log_errors(table, target, held_out)
    rows = np.flatnonzero(~np.isnan(errors))
    own_scale, graph = _error_sizes(table, x, errors, rows, seed)
    seen = Scores.of(errors[rows] / own_scale)
    scores = {"seen": seen, "unseen_device": seen.widened(NO_EVIDENCE_FACTOR)}
    if left_out is not None:
        away = log_errors(table, target, left_out.answers)
        known = np.flatnonzero(~np.isnan(away))
        # Power known on one device only cannot be left out: the guess above stands.
        if len(known):
            sizes = _sizes(graph, nowhere(x[known], table.features.schema)) * twin_factor(left_out.twin[known])
            scores["unseen_device"] = Scores.of(away[known] / sizes)
    if target == "latency":
        ratio = table.log_labels["latency"] - table.log_bound
        scores["unseen_kind"] = Scores.of(ratio - np.median(ratio))
    return Calibration(scores, graph)


def _error_sizes(table: TrainingTable, x: Matrix, errors: Floats, rows: Any, seed: int) -> tuple[Floats, bytes]:
    """Modelled error sizes of `rows`, and the graph of the model.

    Each row's size comes from a model that did not see the row's shape, so that scores are not flattered.
    """
    from .regressors.xgboost import fit_scale

    y = log_scale_target(errors)
    fit_on = np.random.default_rng(seed).permutation(rows)[:_SCALE_ROWS]
    # Halves by shape again, dealt differently than the folds the errors came from.
    half = shape_folds(table.rows.cases, 2, seed=1)
    sizes = np.empty(len(rows))
    for side in (0, 1):
        others = fit_on[half[fit_on] != side]
        others = others if len(others) else fit_on
        own = half[rows] == side
        if own.any():
            sizes[own] = _sizes(fit_scale(x[others], y[others], seed), x[rows[own]])
    return sizes, fit_scale(x[fit_on], y[fit_on], seed)


def _sizes(graph: bytes, x: Matrix) -> Floats:
    return scale_of(Runtime([graph]).run(x)[0][:, 0])
