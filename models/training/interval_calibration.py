"""How large errors are on rows that a model has not seen, and the intervals that follow from them.

Folds keep what belongs together on one side. Scores of intervals come from errors out of fold: how large they are, where,
and how they spread. For devices never measured they come from what the model would answer had each of its own not been.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...datasets.rows.splits import shape_folds
from ...features.batch.cases import Floats
from ...features.batch.category import measured_label
from ...features.device import Catalogue
from ...features.vector.schema import scale_free_columns
from ..engine.runtime import Runtime, mask_device_features
from ..family_model.device_transfer import TransferEstimate, transfer
from ..family_model.family_regressor import FamilyRegressor, distance, near_duplicate
from ..family_model.intervals import NEAR_DUPLICATE, NO_EVIDENCE_FACTOR, Scores, log_scale_target, scale_of, scores_name
from ..regressor import Matrix, Problem, Regressor
from ..regressors.xgboost import QUICK, fit_scale
from .fitting import MIN_ROWS, Answers, Fit, TrainingTable, fit, log_errors

Folds = npt.NDArray[np.int64]
"""The fold of each row, shape `(n,)`, from 0."""


def folds_of(names: Iterable[str], k: int, seed: int = 0) -> Folds:
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


_NEAR = 0.5
"""A device left out counts as another edition of one that stays from here on, see `family_regressor.near_duplicate`."""

_SCALE_ROWS = 20_000
"""Most rows that the size of errors is learned from."""


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
            sizes = error_sizes(graph, mask_device_features(x[known], table.features.schema))
            is_near = left_out.same_duplicate[known] >= _NEAR
            devices = table.rows.cases.device[known]
            scores |= _left_out_scores(away[known], sizes, is_near, devices, left_out.kind[known])
    if target == "latency":
        ratio = table.log_labels["latency"] - table.log_bound
        scores["unseen_kind"] = Scores.of(ratio - np.median(ratio), exponent=0.0)
    return IntervalCalibration(scores, graph)


def _left_out_scores(errors: Floats, sizes: Floats, is_near: Any, devices: Any, kinds: Any) -> dict[str, Scores]:
    """Scores of devices left out: of all, and of each kind of device where there are two, by their names.

    Args:
        errors: ln(measured / answered), shape `(n,)` like the rest.
        sizes: Modelled sizes of the errors.
        is_near: Whether another edition of the device stayed.
        devices: The device of each row.
        kinds: Its kind.
    """
    scores: dict[str, Scores] = {}
    for regime, of_regime in (("unseen_device", ~is_near), (NEAR_DUPLICATE, is_near)):
        names = {regime: of_regime}
        if len(of_kind := np.unique(kinds[of_regime]).tolist()) > 1:
            names |= {scores_name(regime, kind): of_regime & (kinds == kind) for kind in of_kind}
        for name, rows in names.items():
            if rows.sum() >= MIN_ROWS:
                few = _for_few(len(np.unique(devices[rows]))) if regime == NEAR_DUPLICATE else 1.0
                scores[name] = Scores.sharpest(errors[rows], sizes[rows]).widened(few)
    return scores


def _for_few(devices: int) -> float:
    """How much wider intervals are whose errors come from few devices, each with an error of its own beside those of its rows.

    Student's t over the normal quantile would hold if the rows of a device erred alike; its root is a choice between that and
    none. Norms of an A100 80 GB, known from its 40 GB edition: 57 % inside without it, 95 % with it.
    """
    from scipy.stats import norm, t

    return float(np.sqrt(t.ppf(0.95, max(devices - 1, 1)) / norm.ppf(0.95)))


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
        same_duplicate: How nearly another device, measured with the same impl, is a duplicate of the row's, from 0 to 1, shape
            `(n,)`.
        kind: The kind of each row's device, shape `(n,)`.
    """

    answers: Answers
    shift: float
    same_duplicate: Floats
    kind: npt.NDArray[np.str_]


def measured_by_target(table: TrainingTable, rows: Any = slice(None)) -> dict[str, dict[str, int]]:
    """For each target, of what was measured where (`category.measured_label`) how many of `rows` there are, sorted."""
    labels = table.rows.cases.categories.labels(lambda category: measured_label(category, category.impl))
    counts = {
        target: np.bincount(labels.code[rows][~np.isnan(column[rows])], minlength=len(labels.words)).tolist()
        for target, column in table.log_labels.items()
    }
    return {
        target: {word: n for word, n in sorted(zip(labels.words, numbers, strict=True)) if n}
        for target, numbers in counts.items()
    }


def scale_free_graphs(table: TrainingTable, rows: Any, fitted: Fit, seed: int) -> tuple[bytes, ...]:
    """The graph of boosted trees that answer ln(latency / lower bound) from scale-free features alone; none for a family
    without products, whose analytic model says more of other devices (elementwise of six GPUs left out: 19.0 % with the trees,
    13.8 without).

    Args:
        table: The training table of a family.
        rows: Rows to fit on, indices or a slice.
        fitted: The fit beside which it stands: it reads as many columns, all but the scale-free ones hidden.
        seed: Seed of everything random.
    """
    if fitted.analytic is not None and table.rows.cases.family.tiles is None:
        return ()
    rows = np.random.default_rng(seed).permutation(np.arange(len(table))[rows])[:_FREE_ROWS]
    free = scale_free_columns(table.features.schema)
    n_inputs = len(table.features.schema.names) + (fitted.analytic is not None)
    x = np.full((len(rows), n_inputs), np.nan, dtype=np.float32)
    x[:, np.flatnonzero(free)] = table.features.values[rows][:, free]
    ratio = table.log_labels["latency"][rows] - table.log_bound[rows]
    return (QUICK.fit(Problem(x, {"latency": ratio}, {}, seed))[0].onnx,)


def device_holdout_answers(
    table: TrainingTable, regressor: Regressor, seed: int, devices: Catalogue, pool: Executor
) -> DeviceHoldout | None:
    """Answers for devices left out in turn, or None where no two devices of a kind were measured.

    Args:
        table: The training table of a family.
        regressor: What is fitted without each device.
        seed: Seed of everything random.
        devices: The devices known.
        pool: Runs the fits.
    """
    cases = table.rows.cases
    kinds = np.array([devices.get(name).kind for name in cases.device.tolist()])
    rng = np.random.default_rng(seed)
    tasks = []
    for name in np.unique(cases.device).tolist():
        device_rows = cases.device == name
        others = ~device_rows & (kinds == devices.get(name).kind)
        if others.sum() >= MIN_ROWS:
            near = [other for other in np.unique(cases.device[others]).tolist()
                    if near_duplicate(distance(devices.get(name), devices.get(other))) >= _NEAR]  # fmt: skip
            drawn = rng.permutation(np.flatnonzero(others))
            is_near = np.isin(cases.device[drawn], near)
            editions = drawn[is_near][: max(_OTHERS_ROWS // 2, _OTHERS_ROWS - int((~is_near).sum()))]
            train_on = np.concatenate([editions, drawn[~is_near][: _OTHERS_ROWS - len(editions)]])
            test_on = rng.permutation(np.flatnonzero(device_rows))[:_OWN_ROWS]
            tasks.append((test_on, pool.submit(_answers, table, regressor, train_on, test_on, seed, devices)))
    if not tasks:
        return None
    answers = {target: np.full(len(table), np.nan) for target in table.log_labels}
    alone, same = np.zeros(len(table)), np.zeros(len(table))
    for test_on, task in tasks:
        estimate = task.result()
        alone[test_on], same[test_on] = estimate.alone, estimate.same_duplicate
        for target, column in estimate.logs.items():
            answers[target][test_on] = column
    shift = _best_shift(log_errors(table, "latency", answers)[alone < _NEAR])
    answers["latency"] = np.maximum(answers["latency"] + shift * (1.0 - alone), table.log_bound)
    if "power" in answers:
        answers["power"] = np.minimum(answers["power"], 0.0)
    return DeviceHoldout(answers, shift, same, kinds)


def _answers(
    table: TrainingTable, regressor: Regressor, train_on: Any, test_on: Any, seed: int, devices: Catalogue
) -> TransferEstimate:
    """Answers for `test_on` by a quick fit on `train_on`."""
    answers = fit(table, train_on, regressor.quick or regressor, seed)
    free = scale_free_graphs(table, train_on, answers, seed)
    graphs = [*(graph.onnx for graph in answers.graphs), *free]
    learned = FamilyRegressor(
        schema=table.features.schema,
        runtime=Runtime(graphs),
        members=_members(answers),
        analytic=answers.analytic,
        free=len(answers.graphs) if free else None,
        measured=measured_by_target(table, train_on),
        devices=devices,
    )
    cases = table.rows.cases.take(test_on)
    categories = cases.categories
    query = learned.query(cases, learned.inputs_of(categories.distinct), categories.code)
    sources = [learned.sources_of(category) for category in query.categories.distinct]
    return transfer(learned, query, sources, tuple(learned.members))


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
