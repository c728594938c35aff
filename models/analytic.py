"""A fitted analytic model: time as a weighted sum of the terms a kernel is made of on paper.

Weights are shared by a family and adjusted per group of cases (dtype, variant, impl, cache state, threads), shrunk to the
shared ones where a group has few rows; a group never seen has the shared weights. Few weights, so it extrapolates where
trees cannot; what it misses is left to a learned regressor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..features.cases import Cases, Floats, Strings
from ..features.terms import TERMS

_GROUP_SHRINKAGE = 0.3
_SHARED_SHRINKAGE = 0.01
_HUBER_WIDTH = 0.1
"""Errors above about 10 % count linearly, so that a few odd rows do not rule the fit."""

_MAX_FIT_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class AnalyticModel:
    """Natural logarithms of the weights: `shared` of shape `(n_terms,)`, and what each group adds to it."""

    shared: Floats
    groups: Mapping[str, Floats]

    @classmethod
    def fit(cls, terms: Floats, groups: Strings, latency_s: Floats, seed: int = 0) -> AnalyticModel:
        """Weights that minimise a pseudo-Huber loss of ln(latency), by L-BFGS (Liu and Nocedal, 1989).

        Args:
            terms: seconds, shape `(n, n_terms)`.
            groups: each row's group, shape `(n,)`.
            latency_s: measured seconds, shape `(n,)`.
            seed: chooses the rows when there are more than are needed.
        """
        rows = np.random.default_rng(seed).permutation(len(latency_s))[:_MAX_FIT_ROWS]
        names, code = np.unique(groups[rows], return_inverse=True)
        shared, offsets = _minimise(np.log(terms[rows]), code, np.log(latency_s[rows]), len(names))
        return cls(shared, dict(zip(names.tolist(), offsets, strict=True)))

    def log_latency(self, terms: Floats, groups: Strings) -> Floats:
        """Logarithm of the modelled seconds, shape `(n,)`."""
        names, code = np.unique(groups, return_inverse=True)
        nothing = np.zeros(len(self.shared))
        weights = self.shared + np.stack([self.groups.get(name, nothing) for name in names.tolist()])
        return _log_sum(np.log(terms) + weights[code])[0]

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        groups = {name: [round(float(w), 5) for w in weights] for name, weights in self.groups.items()}
        return {"terms": list(TERMS), "shared": [round(float(w), 5) for w in self.shared], "groups": groups}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AnalyticModel:
        """The model `to_json` described.

        Raises:
            ValueError: it was fitted on other terms.
        """
        if tuple(data["terms"]) != TERMS:
            raise ValueError(f"fitted on the terms {data['terms']}, this version has {TERMS}")
        groups = {str(name): np.asarray(weights, dtype=np.float64) for name, weights in data["groups"].items()}
        return cls(np.asarray(data["shared"], dtype=np.float64), groups)


def group_names(cases: Cases, impls: Strings) -> Strings:
    """The group of each case, shape `(n,)`; `impls` is what each case's impl is read as."""
    parts = [cases.dtype, cases.kv_dtype, cases.variant, impls, cases.cache_state, np.char.mod("%g", cases.threads)]
    joined = parts[0]
    for part in parts[1:]:
        joined = np.char.add(np.char.add(joined, "|"), part)
    return joined


def _log_sum(z: Floats) -> tuple[Floats, Floats]:
    """Logarithm of the sum of exponentials along each row, shape `(n,)`, and each entry's share, shape `(n, n_terms)`."""
    top = z.max(axis=1, keepdims=True)
    parts = np.exp(z - top)
    total = parts.sum(axis=1, keepdims=True)
    return (top + np.log(total))[:, 0], parts / total


def _minimise(log_terms: Floats, code: npt.NDArray[np.intp], y: Floats, n_groups: int) -> tuple[Floats, Floats]:
    from scipy.optimize import minimize

    n, n_terms = log_terms.shape

    def loss(packed: Floats) -> tuple[float, Floats]:
        shared, offsets = packed[:n_terms], packed[n_terms:].reshape(n_groups, n_terms)
        answer, share = _log_sum(log_terms + shared + offsets[code])
        error = (answer - y) / _HUBER_WIDTH
        root = np.sqrt(1.0 + error**2)
        gradient = (error / root / _HUBER_WIDTH)[:, None] * share
        by_group = np.stack([np.bincount(code, gradient[:, j], minlength=n_groups) for j in range(n_terms)], axis=1)
        value = (root - 1.0).sum() + 0.5 * (_GROUP_SHRINKAGE * offsets**2).sum() / _HUBER_WIDTH
        value += 0.5 * (_SHARED_SHRINKAGE * shared**2).sum() / _HUBER_WIDTH**2
        slope = np.concatenate([
            by_group.sum(axis=0) + _SHARED_SHRINKAGE * shared / _HUBER_WIDTH**2,
            (by_group + _GROUP_SHRINKAGE * offsets / _HUBER_WIDTH).ravel(),
        ])  # fmt: skip
        return value / n, slope / n

    start = np.zeros(n_terms * (1 + n_groups))
    packed = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 500, "maxfun": 700}).x
    return packed[:n_terms], packed[n_terms:].reshape(n_groups, n_terms)
