"""The fitted analytic composition: a program's time as a weighted sum of what its groups cost on paper.

Weights are positive, one per term and class of group, for each setting (a compiler with so many threads) by itself.
They are few, so the sum extrapolates where trees and networks cannot; what it misses is left to those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...features.cases import Floats
from ...features.mlir.group_columns import GROUP_NUMBERS, TERMS, TRAFFIC_TERMS
from ...features.mlir.program import KINDS
from .packing import Codes, Packed

BASE = "analytic"
"""What the composition is called among the members of a blend."""

_CLASS_OF_KIND = {
    "contraction": 0, "convolution": 1, "attention": 2, "normalization": 3, "softmax": 4, "reduction": 5, "elementwise": 6,
    "movement": 7, "gather": 8, "sort": 9, "random": 10,
}  # fmt: skip
KIND_CLASSES = (*_CLASS_OF_KIND, "other", "thin contraction", "grouped convolution", "inner reduction", "window reduction",
                "integer contraction", "line convolution")  # fmt: skip
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
    6: ("convolution", "line convolution"),
}  # fmt: skip
"""By position in `extract.SHAPES`: the class it makes of which."""

_N_TRAFFIC = len(TRAFFIC_TERMS)

_HUBER_WIDTH = 0.2
_PULL = {"shared": 0.002, "own": 0.02}
"""Strength of the pull of shared weights to 1, and of a class's own to the shared; in rows that err by one
`_HUBER_WIDTH`."""


@dataclass(frozen=True, slots=True)
class Bases:
    """Seconds on paper of parts, shape `(n_parts, n_settings)`, and of calling whole programs, `(n_programs,
    n_settings)`.
    """

    parts: Floats
    whole: Floats


@dataclass(frozen=True, slots=True)
class PaperBase:
    """Weights of shape `(n_settings, N_CLASSES, len(TERMS))`; seconds of a call and the weight of copying what passes
    through, shape `(n_settings,)`.
    """

    weights: Floats
    call_s: Floats
    copy: Floats

    @classmethod
    def fit(cls, programs: Packed, log_latency: Floats, weight: Floats) -> PaperBase:
        """Weights that minimise a pseudo-Huber loss of ln(latency), by L-BFGS (Liu and Nocedal, 1989), setting by
        setting.

        Args:
            programs: `n` programs.
            log_latency: logarithms of measured seconds, shape `(n, n_settings)`, NaN where nothing was measured.
            weight: how much each row counts, likewise.
        """
        table = _by_program(programs)
        found = []
        for setting in range(log_latency.shape[1]):
            known = ~np.isnan(log_latency[:, setting])
            found.append(_minimise(table[known], log_latency[known, setting], weight[known, setting]))
        weights, calls, copies = zip(*found, strict=True)
        return cls(np.stack(weights), np.array(calls), np.array(copies))

    def of(self, programs: Packed, parts: str = "groups") -> Bases:
        """Seconds on paper of every part of programs: `groups`, or `ops`, which share their group's evenly."""
        own = self.weights[:, classes_of(programs)]
        by_group = np.einsum("sgt,gt->gs", own, programs.terms)
        whole = self.call_s + programs.passed_s[:, None] * self.copy
        if parts == "groups":
            return Bases(by_group, whole)
        n_ops = np.bincount(programs.op_group, minlength=len(by_group))
        return Bases((by_group / np.maximum(n_ops, 1)[:, None])[programs.op_group], whole)

    def log_latency(self, programs: Packed) -> Floats:
        """Logarithms of the modelled seconds, shape `(n, n_settings)`."""
        bases = self.of(programs)
        columns = [np.bincount(programs.group_program, column, minlength=len(programs)) for column in bases.parts.T]
        return np.log(np.stack(columns, axis=1) + bases.whole)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        rounded = [[[float(f"{w:.4g}") for w in row] for row in one] for one in self.weights]
        return {"terms": list(TERMS), "weights": rounded, "call_s": [float(f"{s:.4g}") for s in self.call_s],
                "copy": [float(f"{s:.4g}") for s in self.copy]}  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PaperBase:
        """The base `to_json` described.

        Raises:
            ValueError: it was fitted on other terms.
        """
        if tuple(data["terms"]) != TERMS:
            raise ValueError(f"fitted on the terms {data['terms']}, this version has {TERMS}")
        return cls(*(np.asarray(data[name], dtype=np.float64) for name in ("weights", "call_s", "copy")))


def classes_of(programs: Packed) -> Codes:
    """Class of each group, shape `(n_groups,)`."""
    found = _CLASSES[programs.group_codes].copy()
    for shape, (one, other) in _BY_SHAPE.items():
        found[(programs.shapes == shape) & (found == KIND_CLASSES.index(one))] = KIND_CLASSES.index(other)
    half = programs.groups[:, _HALF_COLUMNS].any(axis=1)
    of_all: Codes = found + half * len(KIND_CLASSES)
    return of_all


def _by_program(programs: Packed) -> Floats:
    """Seconds of every term in every class and, last, of passing through; shape `(n, N_CLASSES * n_terms + 1)`."""
    n, n_terms = len(programs), len(TERMS)
    place = programs.group_program * N_CLASSES + classes_of(programs)
    columns = [np.bincount(place, term, minlength=n * N_CLASSES) for term in programs.terms.T]
    return np.column_stack([np.stack(columns, axis=1).reshape(n, N_CLASSES * n_terms), programs.passed_s])


def _slots() -> Codes:
    """Which own parameter each class has for each term, shape `(N_CLASSES, n_terms)`: one of its own for traffic;
    what an element of an operator costs is the same wherever it is fused into, but for half precision.
    """
    found = np.empty((N_CLASSES, len(TERMS)), dtype=np.int64)
    found[:, :_N_TRAFFIC] = np.arange(N_CLASSES * _N_TRAFFIC).reshape(N_CLASSES, _N_TRAFFIC)
    per_format = np.arange(2 * (len(TERMS) - _N_TRAFFIC)).reshape(2, -1) + N_CLASSES * _N_TRAFFIC
    found[:, _N_TRAFFIC:] = np.repeat(per_format, len(KIND_CLASSES), axis=0)
    return found


def _minimise(table: Floats, y: Floats, counts: Floats) -> tuple[Floats, float, float]:
    from scipy.optimize import minimize

    n_terms, slots = len(TERMS), _slots()
    n_own = int(slots.max()) + 1
    counts = counts / counts.mean()

    def parts_of(packed: Floats) -> Floats:
        shared, own = packed[2 : 2 + n_terms], packed[2 + n_terms :]
        weights: Floats = np.exp(np.append((shared + own[slots]).ravel(), packed[1]))
        return weights

    def loss(packed: Floats) -> tuple[float, Floats]:
        weights, call = parts_of(packed), np.exp(packed[0])
        total = table @ weights + call
        error = (np.log(total) - y) / _HUBER_WIDTH
        root = np.sqrt(1.0 + error**2)
        slope = counts * error / root / _HUBER_WIDTH / total
        *by_weight, by_copy = (slope @ table) * weights
        own_slope = np.bincount(slots.ravel(), by_weight, minlength=n_own)
        shared, own = packed[2 : 2 + n_terms], packed[2 + n_terms :]
        pull, pull_own = _PULL["shared"] / _HUBER_WIDTH**2, _PULL["own"] / _HUBER_WIDTH**2
        value = (
            (counts * (root - 1.0)).sum() + 0.5 * pull * (shared @ shared + packed[1] ** 2) + 0.5 * pull_own * own @ own
        )
        gradient = np.concatenate([
            [slope.sum() * call, by_copy + pull * packed[1]],
            np.array(by_weight).reshape(N_CLASSES, n_terms).sum(axis=0) + pull * shared, own_slope + pull_own * own,
        ])  # fmt: skip
        return value / len(y), gradient / len(y)

    start = np.zeros(2 + n_terms + n_own)
    # The quickest programs do little but be called.
    start[0] = np.quantile(y, 0.02) if len(y) else np.log(1e-5)
    packed = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 300, "maxfun": 400}).x
    *weights, copy = parts_of(packed)
    return np.array(weights).reshape(N_CLASSES, n_terms), float(np.exp(packed[0])), float(copy)
