"""Boosted trees on the numbers of a whole program: what they are shown, and how they are fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ....features.batch.cases import Floats
from ....models.regressor import Matrix
from .analytic_base import KIND_CLASSES, AnalyticBase, classes_of
from .ragged_batch import RaggedBatch


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
    by_class = np.stack([np.bincount(place, column, minlength=n * n_kinds) for column in bases.parts.T], axis=1)
    by_class = by_class.reshape(n, n_kinds, n_settings).transpose(0, 2, 1)
    in_all = by_class.sum(axis=2) + bases.whole
    shares = by_class / in_all[:, :, None]
    # In nanoseconds, so that what takes no time is 0.
    of_program = np.concatenate([programs.totals, programs.bigrams, np.log2(1e9 * in_all)], axis=1)
    of_program = np.concatenate([of_program, _dearest(programs, bases.parts)], axis=1)
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


def fit_trees(x: Matrix, y: Floats, weight: Floats, seed: int, *, rounds: int = 500, leaves: int = 32) -> Any:
    """A booster of XGBoost (Chen and Guestrin, KDD 2016); many columns say the same, so each tree sees a third of
    them.
    """
    import xgboost

    settings = {
        "tree_method": "hist", "grow_policy": "lossguide", "max_leaves": leaves, "max_depth": 0, "max_bin": 128, "eta": 0.05,
        "subsample": 0.7, "colsample_bytree": 0.25, "min_child_weight": 3.0, "lambda": 2.0, "objective": "reg:pseudohubererror",
        "huber_slope": 0.3, "base_score": float(np.average(y, weights=weight)), "seed": seed, "nthread": 1, "verbosity": 0,
    }  # fmt: skip
    return xgboost.train(settings, xgboost.DMatrix(x, y, weight=weight), num_boost_round=rounds)


def tree_graph(boosters: Sequence[Any], n_features: int) -> bytes:
    """The mean of boosters as one ONNX graph."""
    from ....models.engine.onnx_writer import tree_ensemble
    from ....models.regressors.xgboost import base_score, trees_of

    share = 1.0 / len(boosters)
    trees = [replace(tree, leaf=tree.leaf * np.float32(share)) for booster in boosters for tree in trees_of(booster)]
    base = share * sum(base_score(booster) for booster in boosters)
    return tree_ensemble(trees, base=[base], comparison="<", n_features=n_features)


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
