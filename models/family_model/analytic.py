"""A fitted analytic model: time as a weighted sum of the terms a kernel is made of on paper.

The logarithm of each weight is a family's shared one plus what each attribute of a case adds (its dtype, variant, impl, cache
state, threads, timing, maker, and combinations), all shrunk towards nothing, so that an attribute with few rows says little,
and one never seen nothing. Few weights, so the model extrapolates where trees cannot; a learned regressor has the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...features.batch.cases import Floats, Strings
from ...features.batch.categorical import Categorical, dense_codes
from ...features.batch.category import CaseCategories, CaseCategory, thread_label
from ...features.cost.bounds import TERMS
from .artifact_files import numbers

_SHRINKAGE = {"shared": 0.003, "single": 0.02, "combined": 0.15}
"""Strength of the pull of shared weights, offsets of one attribute, and offsets of combinations; in rows that err by one
`_HUBER_WIDTH`."""

_HUBER_WIDTH = 0.1
"""Errors above about 10 % count linearly, so that a few odd rows do not rule the fit."""

_MAX_FIT_ROWS, _STEPS = 60_000, 400
"""Most rows that are fitted, and most steps of the fit. Rows are drawn by the inverse root of how many share all attributes, or
one large table would decide for all: fp32 products of another lab on seven GPUs, mean error 67 % drawn evenly, 45 % so. Of
250,925 products, 8,000 rows leave large bf16 products of an H200 to the draw: 625 to 829 TFLOP/s with three seeds, 774 and 776
with two of 60,000 (docs/decisions/008-whole-models.md)."""
_AND, _TIMING = " & ", "timing="


@dataclass(frozen=True, slots=True)
class AnalyticModel:
    """Natural logarithms of the weights: `shared` of shape `(n_terms,)`, and what each attribute adds to it."""

    shared: Floats
    offsets: Mapping[str, Floats]

    @classmethod
    def fit(
        cls, terms: Floats, attributes: Attributes, latency_s: Floats, seed: int = 0, by_maker: bool = True
    ) -> AnalyticModel:
        """Weights that minimise a pseudo-Huber loss of ln(latency), by L-BFGS (Liu and Nocedal, 1989).

        Args:
            terms: seconds, shape `(n, n_terms)`.
            attributes: what each row is, from `attributes_of`.
            latency_s: measured seconds, shape `(n,)`.
            seed: chooses the rows when there are more than are needed.
            by_maker: whether weights depend on who made the processor. Of products they do not: few makers' were measured in
                any one library, and what is the library's would be taken for the maker's.
        """
        n_attributes = None if by_maker else -1
        # The smallest of exponential times with these rates are a draw without replacement (Efraimidis and Spirakis, 2006).
        times = np.random.default_rng(seed).exponential(size=len(latency_s))
        rows = np.argsort(times * np.sqrt(np.bincount(attributes.code)[attributes.code]), kind="stable")[:_MAX_FIT_ROWS]
        there, place = np.unique(attributes.code[rows], return_inverse=True)
        distinct = [attributes.distinct[i][:n_attributes] for i in there.tolist()]
        names: Strings = np.unique(distinct)
        code = np.searchsorted(names, distinct)[place]
        shared, offsets = _minimise(np.log(terms[rows]), code, np.log(latency_s[rows]), names)
        return cls(shared, dict(zip(names.tolist(), offsets, strict=True)))

    def log_weights(self, category: CaseCategory, impl: str) -> Floats:
        """Logarithms of the weights of a category whose impl is read as `impl`, shape `(n_terms,)`."""
        weights = self.shared.copy()
        for name in attributes(category, impl):
            weights += self.offsets.get(name, 0.0)
        return weights

    def log_latency(self, terms: Floats, attributes: Attributes) -> Floats:
        """Logarithm of the modelled seconds, shape `(n,)`."""
        return log_sum(self._log_parts(terms, attributes))[0]

    def shares(self, terms: Floats, attributes: Attributes) -> Floats:
        """Share of each term in the modelled seconds, shape `(n, n_terms)`: how ln(latency) follows ln of a weight."""
        return log_sum(self._log_parts(terms, attributes))[1]

    def _log_parts(self, terms: Floats, attributes: Attributes) -> Floats:
        nothing = np.zeros(len(self.shared))
        by_category = [
            sum((self.offsets.get(name, nothing) for name in names), self.shared) for names in attributes.distinct
        ]
        weights = np.stack(by_category)[attributes.code]
        return np.log(terms) + weights

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
        offsets = {str(name): numbers(weights, len(TERMS)) for name, weights in data["offsets"].items()}
        return cls(numbers(data["shared"], len(TERMS)), offsets)


@dataclass(frozen=True, slots=True)
class Attributes:
    """What cases are, as the analytic model knows them.

    Attributes:
        distinct: The names of the attributes of each distinct sort of case.
        code: Which of them each row is, shape `(n,)`.
    """

    distinct: tuple[tuple[str, ...], ...]
    code: npt.NDArray[np.intp]

    def take(self, rows: Any) -> Attributes:
        """The attributes of `rows`."""
        return Attributes(self.distinct, self.code[rows])


def attributes_of(categories: CaseCategories, impls: Categorical) -> Attributes:
    """The attributes of cases; `impls` is what each case's impl is read as."""
    first, code = dense_codes(categories.code * len(impls.words) + impls.code)
    distinct = (categories.distinct[categories.code[row]] for row in first)
    return Attributes(tuple(attributes(each, impls.at(row)) for each, row in zip(distinct, first, strict=True)), code)


def attributes(category: CaseCategory, impl: str) -> tuple[str, ...]:
    """The attributes of a category whose impl is read as `impl`; last is who made the processor, the first word of its name."""
    dtype, of_impl, variant = f"dtype={category.dtype}", f"impl={impl}", f"variant={category.variant}"
    single = (dtype, f"kv_dtype={category.kv_dtype}", variant, of_impl, f"cache={category.cache_state}",
              f"threads={thread_label(category)}")  # fmt: skip
    timing = f"{_TIMING}{'call' if category.timing == 'call' else 'device'}"
    maker = f"maker={category.device.partition('-')[0] if category.threads is None else 'cpu'}"
    return (*single, timing, _AND.join([dtype, variant]), _AND.join([dtype, of_impl]), _AND.join(single), maker)


def log_sum(z: Floats) -> tuple[Floats, Floats]:
    """Logarithm of the sum of exponentials along each row, shape `(n,)`, and each entry's share, shape `(n, n_terms)`."""
    top = z.max(axis=1, keepdims=True)
    parts = np.exp(z - top)
    total = parts.sum(axis=1, keepdims=True)
    return (top + np.log(total))[:, 0], parts / total


def _minimise(log_terms: Floats, code: npt.NDArray[np.intp], y: Floats, names: Strings) -> tuple[Floats, Floats]:
    """Shared weights and the offsets of `names`; `code` of shape `(n, n_attributes)` says which of them each row has."""
    from scipy.optimize import minimize
    from scipy.sparse import csr_array
    from threadpoolctl import threadpool_limits

    n, n_terms = log_terms.shape
    has_name = csr_array(
        (np.ones(code.size), (np.arange(n).repeat(code.shape[1]), code.ravel())), shape=(n, len(names))
    )
    combined = np.char.find(names, _AND) >= 0
    pull = np.where(combined, _SHRINKAGE["combined"], _SHRINKAGE["single"])[:, None] / _HUBER_WIDTH**2
    pull_shared = _SHRINKAGE["shared"] / _HUBER_WIDTH**2
    # Who times a kernel changes its launch alone.
    free = np.where(np.char.startswith(names, _TIMING)[:, None], np.array(TERMS) == "launch", True)

    def loss(packed: Floats) -> tuple[float, Floats]:
        shared, offsets = packed[:n_terms], packed[n_terms:].reshape(len(names), n_terms)
        answer, share = log_sum(log_terms + shared + has_name @ offsets)
        error = (answer - y) / _HUBER_WIDTH
        root = np.sqrt(1.0 + error**2)
        gradient = (error / root / _HUBER_WIDTH)[:, None] * share
        value = (root - 1.0).sum() + 0.5 * (pull * offsets**2).sum() + 0.5 * pull_shared * (shared**2).sum()
        by_name = np.where(free, has_name.T @ gradient + pull * offsets, 0.0)
        slope = np.concatenate([gradient.sum(axis=0) + pull_shared * shared, by_name.ravel()])
        return value / n, slope / n

    start = np.zeros(n_terms * (1 + len(names)))
    # Vectors this short only lose by being split among threads, and a machine that is busy waits for all of them.
    with threadpool_limits(1):
        packed = minimize(
            loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS, "maxfun": 5 * _STEPS // 4}
        ).x
    return packed[:n_terms], packed[n_terms:].reshape(len(names), n_terms)
