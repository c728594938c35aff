"""How large errors are on rows that a model has not seen, and the intervals that follow from them.

Folds keep what belongs together on one side. Scores of intervals come from errors out of fold: how large they are, where,
and how they spread.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...datasets.rows.splits import shape_folds
from ...features.batch.cases import Floats
from ..engine.runtime import Runtime, mask_device_features
from ..family_model.intervals import NO_EVIDENCE_FACTOR, Scores, log_scale_target, near_duplicate_factor, scale_of
from ..regressor import Matrix
from .device_holdout import DeviceHoldout
from .fitting import Answers, TrainingTable, log_errors

Folds = npt.NDArray[np.int64]
"""The fold of each row, shape `(n,)`, from 0."""


def folds_of(names: Sequence[str], k: int, seed: int = 0) -> Folds:
    """The fold of each program, 0 to k - 1, by a hash of its name up to any `#`: what shares it is never on two sides."""
    drawn = [zlib.crc32(f"{seed}:{name.partition('#')[0]}".encode()) for name in names]
    # CRC of like texts differ little in their low bits; a multiplication by the golden ratio mixes them (Knuth, TAOCP 3, 6.4).
    mixed = (np.array(drawn, dtype=np.uint64) * np.uint64(11400714819323198485)) >> np.uint64(40)
    return (mixed % np.uint64(k)).astype(np.int64)


def held_out_parts(folds: Folds) -> Iterator[tuple[int, npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    """For each fold its number, its rows and all others; a fold of all rows is left out."""
    for number in np.unique(folds).tolist():
        others = np.flatnonzero(folds != number)
        if len(others):
            yield number, np.flatnonzero(folds == number), others


def held_out_error_sizes(
    x: Matrix, errors: Floats, halves: Folds, fit_on: npt.NDArray[np.intp], rows: npt.NDArray[np.intp], seed: int
) -> tuple[Floats, bytes]:
    """Modelled sizes of errors, each by a model that did not see the row's half, so that scores are not flattered.

    Args:
        x: what the model reads, shape `(n, n_inputs)`.
        errors: ln(measured / predicted), shape `(n,)`.
        halves: 0 or 1 for each row, shape `(n,)`.
        fit_on: rows to learn from.
        rows: rows whose sizes are wanted, shape `(m,)`.
        seed: of the fits.

    Returns:
        Sizes of shape `(m,)`, and the graph of the model that learned from both halves.
    """
    from ..regressors.xgboost import fit_scale

    y = log_scale_target(errors)
    sizes = np.empty(len(rows))
    for side in (0, 1):
        others = fit_on[halves[fit_on] != side]
        others = others if len(others) else fit_on
        mine = halves[rows] == side
        if mine.any():
            sizes[mine] = error_sizes(fit_scale(x[others], y[others], seed), x[rows[mine]])
    return sizes, fit_scale(x[fit_on], y[fit_on], seed)


def error_sizes(graph: bytes, x: Any) -> Floats:
    """Sizes of errors as a fitted graph has them, shape `(n,)`."""
    return scale_of(Runtime([graph]).run(x)[0][:, 0])


_SCALE_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class IntervalCalibration:
    """The calibration of one target's intervals.

    Attributes:
        scores: Conformal scores by regime.
        scale: Graph of the model of error sizes they are relative to.
    """

    scores: Mapping[str, Scores]
    scale: bytes


def calibrate_intervals(
    table: TrainingTable, x: Matrix, target: str, held_out: Answers, left_out: DeviceHoldout | None, seed: int
) -> IntervalCalibration:
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
    fit_on = np.random.default_rng(seed).permutation(rows)[:_SCALE_ROWS]
    # Halves by shape again, dealt differently than the folds the errors came from.
    halves = shape_folds(table.rows.cases, 2, seed=1)
    sizes, graph = held_out_error_sizes(x, errors, halves, fit_on, rows, seed)
    seen = Scores.of(errors[rows] / sizes)
    scores = {"seen": seen, "unseen_device": seen.widened(NO_EVIDENCE_FACTOR)}
    if left_out is not None:
        away = log_errors(table, target, left_out.answers)
        known = np.flatnonzero(~np.isnan(away))
        # Power known on one device only cannot be left out: the guess above stands.
        if len(known):
            away_sizes = error_sizes(
                graph, mask_device_features(x[known], table.features.schema)
            ) * near_duplicate_factor(left_out.twin[known])
            scores["unseen_device"] = Scores.of(away[known] / away_sizes)
    if target == "latency":
        ratio = table.log_labels["latency"] - table.log_bound
        scores["unseen_kind"] = Scores.of(ratio - np.median(ratio))
    return IntervalCalibration(scores, graph)
