"""The fitted analytic composition: a program's time as a weighted sum of the analytic times of its groups.

Weights are positive, one per term and class of group, for each setting (a compiler with so many threads) by itself.
They are few, so the sum extrapolates where trees and networks cannot; what it misses is left to those. Boosted trees see the
numbers of the whole program and the modelled times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....features.batch.cases import Floats
from ....features.mlir.program import KINDS
from ....features.mlir.vectors.group_columns import GROUP_NUMBERS, TERMS, TRAFFIC_TERMS
from ....models.family_model.artifact_files import numbers
from ....models.regressor import Matrix
from .ragged_batch import Codes, RaggedBatch

BASE = "analytic"
"""What the composition is called among the members of a blend."""

_CLASS_OF_KIND = {
    "contraction": 0, "convolution": 1, "attention": 2, "normalization": 3, "softmax": 4, "reduction": 5, "elementwise": 6,
    "movement": 7, "gather": 8, "sort": 9, "random": 10,
}  # fmt: skip
KIND_CLASSES = (*_CLASS_OF_KIND, "other", "thin contraction", "grouped convolution", "inner reduction", "window reduction",
                "integer contraction", "line convolution", "pointwise convolution")  # fmt: skip
"""Classes of groups by kind, some told apart further by shape."""

_OTHER = KIND_CLASSES.index("other")
_HALF = ("bf16", "fp16")
"""Formats that CPUs' compilers mostly compute in fp32, with conversions around it."""

N_CLASSES = 2 * len(KIND_CLASSES)
"""Every class in fp32 and the like, and again in half precision."""

_HALF_COLUMNS = [GROUP_NUMBERS.index(name) for name in _HALF]
_CLASSES = np.array([_CLASS_OF_KIND.get(kind, _OTHER) for kind in KINDS], dtype=np.int64)
_BY_SHAPE = {
    1: ("contraction", "thin contraction"), 2: ("convolution", "grouped convolution"), 3: ("reduction", "inner reduction"),
    4: ("reduction", "window reduction"), 5: ("contraction", "integer contraction"),
    6: ("convolution", "line convolution"), 7: ("convolution", "pointwise convolution"),
}  # fmt: skip
"""By position in `group_columns.SHAPES`: the class it makes of which."""

_N_TRAFFIC = len(TRAFFIC_TERMS)

_HUBER_WIDTH = 0.2
_PULL = {"shared": 0.002, "own": 0.02}
"""Strength of the pull of shared weights to 1, and of a class's own to the shared; in rows that err by one
`_HUBER_WIDTH`."""


@dataclass(frozen=True, slots=True)
class AnalyticTimes:
    """Analytic seconds.

    Attributes:
        parts: Of every part, shape `(n_parts, n_settings)`.
        whole: Of calling whole programs, shape `(n_programs, n_settings)`.
    """

    parts: Floats
    whole: Floats


@dataclass(frozen=True, slots=True)
class AnalyticBase:
    """The fitted weights of the analytic composition.

    Attributes:
        weights: Shape `(n_settings, N_CLASSES, len(TERMS))`.
        call_s: Seconds of a call, shape `(n_settings,)`.
        copy: Weight of copying what passes through, shape `(n_settings,)`.
    """

    weights: Floats
    call_s: Floats
    copy: Floats

    @classmethod
    def fit(cls, programs: RaggedBatch, log_latency: Floats, weight: Floats) -> AnalyticBase:
        """Weights that minimise a pseudo-Huber loss of ln(latency), by L-BFGS (Liu and Nocedal, 1989), setting by
        setting.

        Args:
            programs: `n` programs.
            log_latency: logarithms of measured seconds, shape `(n, n_settings)`, NaN where nothing was measured.
            weight: how much each row counts, likewise.
        """
        table = _program_table(programs)
        fits = []
        for setting in range(log_latency.shape[1]):
            known = ~np.isnan(log_latency[:, setting])
            fits.append(_minimise(table[known], log_latency[known, setting], weight[known, setting]))
        weights, calls, copies = zip(*fits, strict=True)
        return cls(np.stack(weights), np.array(calls), np.array(copies))

    def of(self, programs: RaggedBatch, parts: str = "groups") -> AnalyticTimes:
        """Analytic seconds of every part of programs: `groups`, or `ops`, which share their group's evenly."""
        group_weights = self.weights[:, classes_of(programs)]
        by_group = np.einsum("sgt,gt->gs", group_weights, programs.terms)
        whole = self.call_s + programs.passed_s[:, None] * self.copy
        if parts == "groups":
            return AnalyticTimes(by_group, whole)
        n_ops = np.bincount(programs.op_group, minlength=len(by_group))
        return AnalyticTimes((by_group / np.maximum(n_ops, 1)[:, None])[programs.op_group], whole)

    def log_latency(self, programs: RaggedBatch) -> Floats:
        """Logarithms of the modelled seconds, shape `(n, n_settings)`."""
        bases = self.of(programs)
        columns = [np.bincount(programs.group_program, column, minlength=len(programs)) for column in bases.parts.T]
        return np.log(np.stack(columns, axis=1) + bases.whole)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        rounded = [[[float(f"{w:.4g}") for w in row] for row in weight] for weight in self.weights]
        return {"terms": list(TERMS), "weights": rounded, "call_s": [float(f"{s:.4g}") for s in self.call_s],
                "copy": [float(f"{s:.4g}") for s in self.copy]}  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AnalyticBase:
        """The base `to_json` described.

        Raises:
            ValueError: it was fitted on other terms.
        """
        if tuple(data["terms"]) != TERMS:
            raise ValueError(f"fitted on the terms {data['terms']}, this version has {TERMS}")
        weights = numbers(data["weights"], None, N_CLASSES, len(TERMS))
        call_s, copy = (numbers(data[name], len(weights)) for name in ("call_s", "copy"))
        return cls(weights, call_s, copy)


def classes_of(programs: RaggedBatch) -> Codes:
    """Class of each group, shape `(n_groups,)`."""
    classes = _CLASSES[programs.group_codes].copy()
    for shape, (plain, other) in _BY_SHAPE.items():
        classes[(programs.shapes == shape) & (classes == KIND_CLASSES.index(plain))] = KIND_CLASSES.index(other)
    half = programs.groups[:, _HALF_COLUMNS].any(axis=1)
    return classes + half * len(KIND_CLASSES)


def _program_table(programs: RaggedBatch) -> Floats:
    """Seconds of every term in every class and, last, of passing through; shape `(n, N_CLASSES * n_terms + 1)`."""
    n, n_terms = len(programs), len(TERMS)
    place = programs.group_program * N_CLASSES + classes_of(programs)
    columns = [np.bincount(place, term, minlength=n * N_CLASSES) for term in programs.terms.T]
    return np.column_stack([np.stack(columns, axis=1).reshape(n, N_CLASSES * n_terms), programs.passed_s])


def _slots() -> Codes:
    """Which own parameter each class has for each term, shape `(N_CLASSES, n_terms)`: one of its own for traffic;
    what an element of an operator costs is the same wherever it is fused into, but for half precision.
    """
    slots = np.empty((N_CLASSES, len(TERMS)), dtype=np.int64)
    slots[:, :_N_TRAFFIC] = np.arange(N_CLASSES * _N_TRAFFIC).reshape(N_CLASSES, _N_TRAFFIC)
    per_format = np.arange(2 * (len(TERMS) - _N_TRAFFIC)).reshape(2, -1) + N_CLASSES * _N_TRAFFIC
    slots[:, _N_TRAFFIC:] = np.repeat(per_format, len(KIND_CLASSES), axis=0)
    return slots


def _minimise(table: Floats, y: Floats, counts: Floats) -> tuple[Floats, float, float]:
    from scipy.optimize import minimize

    n_terms, slots = len(TERMS), _slots()
    n_own = int(slots.max()) + 1
    counts = counts / counts.mean()

    def parts_of(parameters: Floats) -> Floats:
        shared, by_class = parameters[2 : 2 + n_terms], parameters[2 + n_terms :]
        weights: Floats = np.exp(np.append((shared + by_class[slots]).ravel(), parameters[1]))
        return weights

    def loss(parameters: Floats) -> tuple[float, Floats]:
        weights, call = parts_of(parameters), np.exp(parameters[0])
        total = table @ weights + call
        error = (np.log(total) - y) / _HUBER_WIDTH
        root = np.sqrt(1.0 + error**2)
        slope = counts * error / root / _HUBER_WIDTH / total
        *by_weight, by_copy = (slope @ table) * weights
        own_slope = np.bincount(slots.ravel(), by_weight, minlength=n_own)
        shared, by_class = parameters[2 : 2 + n_terms], parameters[2 + n_terms :]
        pull, pull_own = _PULL["shared"] / _HUBER_WIDTH**2, _PULL["own"] / _HUBER_WIDTH**2
        value = (
            (counts * (root - 1.0)).sum()
            + 0.5 * pull * (shared @ shared + parameters[1] ** 2)
            + 0.5 * pull_own * by_class @ by_class
        )
        gradient = np.concatenate([
            [slope.sum() * call, by_copy + pull * parameters[1]],
            np.array(by_weight).reshape(N_CLASSES, n_terms).sum(axis=0) + pull * shared, own_slope + pull_own * by_class,
        ])  # fmt: skip
        return value / len(y), gradient / len(y)

    start = np.zeros(2 + n_terms + n_own)
    # The quickest programs do little but be called.
    start[0] = np.quantile(y, 0.02) if len(y) else np.log(1e-5)
    parameters = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 300, "maxfun": 400}).x
    *weights, copy = parts_of(parameters)
    return np.array(weights).reshape(N_CLASSES, n_terms), float(np.exp(parameters[0])), float(copy)


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

    Args:
        x: Inputs, shape `(n, n_inputs)`.
        y: ln(latency / analytic time), shape `(n,)`.
        weight: Weights of the rows, shape `(n,)`.
        seed: Seed of rows and columns drawn.
        rounds: Number of trees.
        leaves: Most leaves of a tree.
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
