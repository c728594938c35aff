"""The fitted analytic composition: a program's time as a weighted sum of the analytic times of its groups.

Weights are positive, one per term and class of group, for each setting (a compiler with so many threads) by itself.
They are few, so the sum extrapolates where trees and networks cannot; what it misses is left to those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....features.batch.cases import Floats
from ....features.mlir.program import KINDS
from ....features.mlir.vectors.group_columns import GROUP_NUMBERS, TERMS, TRAFFIC_TERMS
from ....models.family_model.artifact_files import numbers
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

MOST_LOG_FACTOR = 8.0
"""A learned factor on an analytic time stays within e to the ± this."""

_HUBER_WIDTH = 0.2
_PULL = {"shared": 0.002, "own": 0.02}
"""Strength of the pull of shared weights to 1, and of a class's own to the shared; in rows that err by one
`_HUBER_WIDTH`."""


@dataclass(frozen=True, slots=True)
class AnalyticTimes:
    """Analytic seconds.

    Attributes:
        groups: Of every group, shape `(n_groups, n_settings)`.
        whole: Of calling whole programs, shape `(n_programs, n_settings)`.
    """

    groups: Floats
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

    def of(self, programs: RaggedBatch) -> AnalyticTimes:
        """Analytic seconds of the groups of programs, and of calling them."""
        group_weights = self.weights[:, classes_of(programs)]
        by_group = np.einsum("sgt,gt->gs", group_weights, programs.terms)
        return AnalyticTimes(by_group, self.call_s + programs.passed_s[:, None] * self.copy)

    def log_latency(self, programs: RaggedBatch) -> Floats:
        """Logarithms of the modelled seconds, shape `(n, n_settings)`."""
        bases = self.of(programs)
        columns = [np.bincount(programs.group_program, column, minlength=len(programs)) for column in bases.groups.T]
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
