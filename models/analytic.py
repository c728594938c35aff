"""A fitted analytic model: time as a weighted sum of the terms a kernel is made of on paper.

The logarithm of each weight is a family's shared one plus what each attribute of a case adds (its dtype, variant, impl, cache
state, threads, and combinations of them), all shrunk towards nothing, so that an attribute with few rows says little and one
never seen says nothing. Few weights, so the model extrapolates where trees cannot; what it misses is left to a learned
regressor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..features.cases import Cases, Floats, Strings
from ..features.coded import Words, dense_codes
from ..features.kinds import Kind
from ..features.terms import TERMS
from ..features.words import thread_word

_SHRINKAGE = {"shared": 0.003, "single": 0.02, "combined": 0.15}
"""Strength of the pull of shared weights, offsets of one attribute, and offsets of combinations; in rows that err by one
`_HUBER_WIDTH`."""

_HUBER_WIDTH = 0.1
"""Errors above about 10 % count linearly, so that a few odd rows do not rule the fit."""

_MAX_FIT_ROWS = 8_000
_AND = " & "


@dataclass(frozen=True, slots=True)
class AnalyticModel:
    """Natural logarithms of the weights: `shared` of shape `(n_terms,)`, and what each attribute adds to it."""

    shared: Floats
    offsets: Mapping[str, Floats]

    @classmethod
    def fit(cls, terms: Floats, attributes: Attributes, latency_s: Floats, seed: int = 0) -> AnalyticModel:
        """Weights that minimise a pseudo-Huber loss of ln(latency), by L-BFGS (Liu and Nocedal, 1989).

        Args:
            terms: seconds, shape `(n, n_terms)`.
            attributes: what each row is, from `attributes_of`.
            latency_s: measured seconds, shape `(n,)`.
            seed: chooses the rows when there are more than are needed.
        """
        rows = np.random.default_rng(seed).permutation(len(latency_s))[:_MAX_FIT_ROWS]
        there, kind = np.unique(attributes.code[rows], return_inverse=True)
        by_kind = [attributes.kinds[i] for i in there.tolist()]
        names: Strings = np.unique(by_kind)
        code = np.searchsorted(names, by_kind)[kind]
        shared, offsets = _minimise(np.log(terms[rows]), code, np.log(latency_s[rows]), names)
        return cls(shared, dict(zip(names.tolist(), offsets, strict=True)))

    def log_weights(self, kind: Kind, impl: str) -> Floats:
        """Logarithms of the weights of a kind whose impl is read as `impl`, shape `(n_terms,)`."""
        found = self.shared.copy()
        for name in attributes(kind, impl):
            found += self.offsets.get(name, 0.0)
        return found

    def log_latency(self, terms: Floats, attributes: Attributes) -> Floats:
        """Logarithm of the modelled seconds, shape `(n,)`."""
        return log_sum(self._log_parts(terms, attributes))[0]

    def shares(self, terms: Floats, attributes: Attributes) -> Floats:
        """Share of each term in the modelled seconds, shape `(n, n_terms)`: how ln(latency) follows ln of a weight."""
        return log_sum(self._log_parts(terms, attributes))[1]

    def _log_parts(self, terms: Floats, attributes: Attributes) -> Floats:
        nothing = np.zeros(len(self.shared))
        by_kind = [sum((self.offsets.get(name, nothing) for name in kind), self.shared) for kind in attributes.kinds]
        weights = np.stack(by_kind)[attributes.code]
        parts: Floats = np.log(terms) + weights
        return parts

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        offsets = {name: [round(float(w), 4) for w in weights] for name, weights in self.offsets.items()}
        return {"terms": list(TERMS), "shared": [round(float(w), 4) for w in self.shared], "offsets": offsets}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AnalyticModel:
        """The model `to_json` described.

        Raises:
            ValueError: it was fitted on other terms.
        """
        if tuple(data["terms"]) != TERMS:
            raise ValueError(f"fitted on the terms {data['terms']}, this version has {TERMS}")
        offsets = {str(name): np.asarray(weights, dtype=np.float64) for name, weights in data["offsets"].items()}
        return cls(np.asarray(data["shared"], dtype=np.float64), offsets)


@dataclass(frozen=True, slots=True)
class Attributes:
    """What cases are: the distinct kinds of case, each as its attributes' names, and which kind each row is, shape `(n,)`."""

    kinds: tuple[tuple[str, ...], ...]
    code: npt.NDArray[np.intp]

    def take(self, rows: Any) -> Attributes:
        """Those of `rows`."""
        return Attributes(self.kinds, self.code[rows])


def attributes_of(cases: Cases, impls: Words) -> Attributes:
    """The attributes of cases; `impls` is what each case's impl is read as."""
    kinds = cases.kinds()
    first, code = dense_codes(kinds.code * len(impls.words) + impls.code)
    return Attributes(tuple(attributes(kinds.kinds[kinds.code[row]], impls.at(row)) for row in first), code)


def attributes(kind: Kind, impl: str) -> tuple[str, ...]:
    """The attributes of a kind whose impl is read as `impl`."""
    dtype, of_impl, variant = f"dtype={kind.dtype}", f"impl={impl}", f"variant={kind.variant}"
    single = (dtype, f"kv_dtype={kind.kv_dtype}", variant, of_impl, f"cache={kind.cache_state}",
              f"threads={thread_word(kind)}")  # fmt: skip
    return (*single, _AND.join([dtype, variant]), _AND.join([dtype, of_impl]), _AND.join(single))


def log_sum(z: Floats) -> tuple[Floats, Floats]:
    """Logarithm of the sum of exponentials along each row, shape `(n,)`, and each entry's share, shape `(n, n_terms)`."""
    top = z.max(axis=1, keepdims=True)
    parts = np.exp(z - top)
    total = parts.sum(axis=1, keepdims=True)
    return (top + np.log(total))[:, 0], parts / total


def _minimise(log_terms: Floats, code: npt.NDArray[np.intp], y: Floats, names: Strings) -> tuple[Floats, Floats]:
    """Shared weights and the offsets of `names`; `code` of shape `(n, n_attributes)` says which of them each row has."""
    from scipy.optimize import minimize

    n, n_terms = log_terms.shape
    combined = np.char.find(names, _AND) >= 0
    pull = np.where(combined, _SHRINKAGE["combined"], _SHRINKAGE["single"])[:, None] / _HUBER_WIDTH**2
    pull_shared = _SHRINKAGE["shared"] / _HUBER_WIDTH**2

    def loss(packed: Floats) -> tuple[float, Floats]:
        shared, offsets = packed[:n_terms], packed[n_terms:].reshape(len(names), n_terms)
        answer, share = log_sum(log_terms + shared + offsets[code].sum(axis=1))
        error = (answer - y) / _HUBER_WIDTH
        root = np.sqrt(1.0 + error**2)
        gradient = (error / root / _HUBER_WIDTH)[:, None] * share
        by_name = np.zeros((len(names), n_terms))
        for column in code.T:
            for j in range(n_terms):
                by_name[:, j] += np.bincount(column, gradient[:, j], minlength=len(names))
        value = (root - 1.0).sum() + 0.5 * (pull * offsets**2).sum() + 0.5 * pull_shared * (shared**2).sum()
        slope = np.concatenate([gradient.sum(axis=0) + pull_shared * shared, (by_name + pull * offsets).ravel()])
        return value / n, slope / n

    start = np.zeros(n_terms * (1 + len(names)))
    packed = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 250, "maxfun": 300}).x
    return packed[:n_terms], packed[n_terms:].reshape(len(names), n_terms)
