"""Boosted trees of XGBoost (Chen and Guestrin, KDD 2016).

Those of groups give every group a logarithm of a factor on its analytic time. They are fitted to the times of whole programs,
the sums over their groups: a group's gradient is the program's times the group's share of its time, and so is its curvature.
With the square of the share, the curvature of a group that moves alone, all groups together would overshoot. Those of whole
programs say further targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ....features.batch.cases import Floats
from ....models.regressor import Matrix
from .analytic_base import KIND_CLASSES, MOST_LOG_FACTOR, AnalyticBase, classes_of
from .ragged_batch import Codes, RaggedBatch

GROUP_TREES = "group trees"
"""What they are called among the members of a blend; a graph is of one compiler, whose name follows."""

_LEAF_DIGITS = 5
"""Decimals of a stored leaf: a seventh less to store; 1,600 of them together are exact to 1e-4 of a logarithm."""

_LOSS_WIDTH = 0.15
"""Log error up to which errors count by their square."""


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Groups of programs in settings of one compiler, setting by setting.

    Attributes:
        x: What trees read, shape `(n_rows, n_inputs)`.
        group_s: Analytic seconds, shape `(n_rows,)`.
        call: Which call each row is part of, likewise.
        call_s: Analytic seconds of each call itself, shape `(n_calls,)`: a program in a setting.
    """

    x: Matrix
    group_s: Floats
    call: Codes
    call_s: Floats

    @classmethod
    def of(cls, programs: RaggedBatch, base: AnalyticBase, settings: Sequence[int]) -> GroupRows:
        """The groups of programs in settings, given as columns of `base`."""
        times = base.of(programs)
        group_s, call_s = (column[:, list(settings)].T for column in (times.groups, times.whole))
        shared = _shared_inputs(programs)
        x = [
            np.concatenate([shared, _timed_inputs(programs, group_s[place], call_s[place], place)], axis=1)
            for place in range(len(settings))
        ]
        calls = [programs.group_program + place * len(programs) for place in range(len(settings))]
        return cls(np.concatenate(x), group_s.ravel(), np.concatenate(calls), call_s.ravel())

    def of_calls(self, chosen: npt.NDArray[np.bool_]) -> GroupRows:
        """Those of some calls; `chosen` has shape `(n_calls,)`."""
        here = chosen[self.call]
        number = np.cumsum(chosen) - 1
        return GroupRows(self.x[here], self.group_s[here], number[self.call[here]], self.call_s[chosen])

    def seconds(self, log_factors: Any) -> tuple[Floats, Floats]:
        """Seconds of the groups, shape `(n_rows,)`, and of the calls, shape `(n_calls,)`."""
        factors = np.exp(np.clip(np.asarray(log_factors, dtype=np.float64), -MOST_LOG_FACTOR, MOST_LOG_FACTOR))
        group_s = self.group_s * factors
        return group_s, np.bincount(self.call, group_s, minlength=len(self.call_s)) + self.call_s

    def log_latency(self, predict: Callable[[Matrix], Floats], n_settings: int) -> Floats:
        """Logarithms of seconds, shape `(n_programs, n_settings)`; `predict` gives factors of rows, equal ones once."""
        if not len(self.x):
            return np.log(self.call_s).reshape(n_settings, -1).T
        as_bytes = np.ascontiguousarray(self.x).view(f"V{self.x.shape[1] * self.x.itemsize}")[:, 0]
        _, first, which = np.unique(as_bytes, return_index=True, return_inverse=True)
        return np.log(self.seconds(predict(self.x[first])[which])[1]).reshape(n_settings, -1).T


def _shared_inputs(programs: RaggedBatch) -> Matrix:
    """Numbers of each group, of its operations in the mean and of the program around it: the same in every setting."""
    n = len(programs.groups)
    ops = np.zeros((n, programs.ops.shape[1]))
    np.add.at(ops, programs.op_group, programs.ops[programs.op_row])
    n_ops = np.maximum(np.bincount(programs.op_group, minlength=n), 1)
    columns = [
        programs.groups, (classes_of(programs) % len(KIND_CLASSES))[:, None], programs.shapes[:, None],
        np.log2(1.0 + 1e9 * programs.terms), ops / n_ops[:, None], programs.totals[programs.group_program],
    ]  # fmt: skip
    return np.concatenate(columns, axis=1).astype(np.float32)


def _timed_inputs(programs: RaggedBatch, group_s: Floats, call_s: Floats, setting: int) -> Matrix:
    """Analytic times of each group, of its program and of the group it reads from, and which setting it is."""
    total = (np.bincount(programs.group_program, group_s, minlength=len(programs)) + call_s)[programs.group_program]
    log_group = np.log2(1.0 + 1e9 * group_s)
    columns = [
        log_group, group_s / total, np.log2(1e9 * total), log_group[programs.sources], np.full(len(group_s), float(setting)),
    ]  # fmt: skip
    return np.column_stack(columns).astype(np.float32)


def fit_group_trees(
    programs: RaggedBatch,
    base: AnalyticBase,
    log_latency: Floats,
    weight: Floats,
    settings: Sequence[int],
    seeds: Sequence[int],
    rounds: int,
) -> list[Any]:
    """A booster by seed, of what was measured in settings of one compiler; none where nothing was.

    Args:
        programs: `n` programs.
        base: Their analytic times.
        log_latency: Logarithms of measured seconds, shape `(n, n_settings)`, NaN where nothing was measured.
        weight: How much each row counts, likewise.
        settings: Columns of the compiler's settings.
        seeds: Seeds of rows and columns drawn.
        rounds: Number of trees of a booster.
    """
    import xgboost

    chosen = list(settings)
    known = ~np.isnan(log_latency[:, chosen]).T
    y, counts = (column[:, chosen].T[known] for column in (log_latency, weight))
    rows = GroupRows.of(programs, base, chosen).of_calls(known.ravel())
    if not len(rows.x):
        return []

    def objective(log_factors: Any, _: Any) -> tuple[Floats, Floats]:
        group_s, total = rows.seconds(log_factors)
        errors = np.log(total) - y
        share = group_s / total[rows.call]
        curvature = (counts / counts.mean() / np.sqrt(1.0 + (errors / _LOSS_WIDTH) ** 2))[rows.call] * share
        return curvature * errors[rows.call], np.maximum(curvature, 1e-6)

    # Many columns say the same, so each tree sees a quarter of them.
    recipe = {
        "tree_method": "hist", "grow_policy": "lossguide", "max_leaves": 32, "max_depth": 0, "max_bin": 128, "eta": 0.15,
        "subsample": 0.7, "colsample_bytree": 0.25, "min_child_weight": 2.0, "lambda": 10.0, "base_score": 0.0, "nthread": 1,
        "verbosity": 0, "disable_default_eval_metric": 1,
    }  # fmt: skip
    table = xgboost.DMatrix(rows.x)
    return [xgboost.train(recipe | {"seed": seed}, table, num_boost_round=rounds, obj=objective) for seed in seeds]


def mean_of(boosters: Sequence[Any], x: Matrix) -> Floats:
    """The mean of the boosters' logarithms of factors, shape `(n_rows,)`; 0 without any."""
    import xgboost

    table = xgboost.DMatrix(x)
    mean: Floats = sum((booster.predict(table) for booster in boosters), np.zeros(len(x))) / max(len(boosters), 1)
    return mean


def tree_inputs(programs: RaggedBatch, base: AnalyticBase) -> Matrix:
    """A row per program and setting: its numbers, the modelled time of every setting and in its own of every class of
    groups, and which setting it is.

    Args:
        programs: `n` programs.
        base: the fitted analytic composition.

    Returns:
        Shape `(n * n_settings, n_inputs)`, settings of one program next to each other.
    """
    n, n_settings = len(programs), len(base.call_s)
    bases = base.of(programs)
    n_kinds = len(KIND_CLASSES)
    place = programs.group_program * n_kinds + classes_of(programs) % n_kinds
    by_class = np.stack([np.bincount(place, column, minlength=n * n_kinds) for column in bases.groups.T], axis=1)
    by_class = by_class.reshape(n, n_kinds, n_settings).transpose(0, 2, 1)
    in_all = by_class.sum(axis=2) + bases.whole
    shares = by_class / in_all[:, :, None]
    # In nanoseconds, so that what takes no time is 0.
    of_program = np.concatenate([programs.totals, programs.bigrams, np.log2(1e9 * in_all)], axis=1)
    of_program = np.concatenate([of_program, _dearest(programs, bases.groups)], axis=1)
    parts = np.concatenate([np.log2(1.0 + 1e9 * by_class), shares, np.log2(1e9 * in_all)[:, :, None]], axis=2)
    which = np.tile(np.eye(n_settings), (n, 1))
    rows = [np.repeat(of_program, n_settings, axis=0), parts.reshape(n * n_settings, -1), which]
    return np.concatenate(rows, axis=1).astype(np.float32)


def _dearest(programs: RaggedBatch, parts: Floats) -> Floats:
    """Numbers of the groups of each program that take most analytic time: of the first, the second, and the mean of
    all by their share; shape `(n, 3 * n_group_numbers)`.
    """
    n, n_groups = len(programs), len(programs.groups)
    cost = parts.mean(axis=1)
    order = np.lexsort((-cost, programs.group_program))
    counts = np.bincount(programs.group_program, minlength=n)
    first = np.cumsum(counts) - counts
    rows = np.concatenate([programs.groups, np.zeros((1, programs.groups.shape[1]))])
    # A program with fewer groups has zeros in their place: the row after the last.
    places = [
        np.where(counts > i, np.append(order, n_groups)[np.minimum(first + i, n_groups)], n_groups) for i in (0, 1)
    ]
    total = np.bincount(programs.group_program, cost, minlength=n)
    share = cost / np.maximum(total, 1e-30)[programs.group_program]
    mean = np.zeros((n, programs.groups.shape[1]))
    np.add.at(mean, programs.group_program, programs.groups * share[:, None])
    return np.concatenate([rows[places[0]], rows[places[1]], mean], axis=1)


def tree_graph(boosters: Sequence[Any], n_features: int) -> bytes:
    """The mean of boosters as one ONNX graph."""
    from ....models.engine.onnx_writer import tree_ensemble
    from ....models.regressors.xgboost import base_score, trees_of

    share = 1.0 / len(boosters)
    trees = [
        replace(tree, leaf=np.round(tree.leaf * np.float32(share), _LEAF_DIGITS))
        for booster in boosters
        for tree in trees_of(booster)
    ]
    base = share * sum(base_score(booster) for booster in boosters)
    return tree_ensemble(trees, base=[base], n_features=n_features)


def fit_characteristic(x: Matrix, y: Floats, seed: int) -> bytes:
    """Graph of a small booster for a further target, such as the size of machine code."""
    import xgboost

    settings = {
        "tree_method": "hist", "max_depth": 5, "eta": 0.12, "subsample": 0.8, "colsample_bytree": 0.5, "max_bin": 64,
        "min_child_weight": 3.0, "objective": "reg:squarederror", "base_score": float(np.mean(y)), "seed": seed, "nthread": 1,
        "verbosity": 0,
    }  # fmt: skip
    booster = xgboost.train(settings, xgboost.DMatrix(x, y), num_boost_round=100)
    return tree_graph([booster], x.shape[1])
