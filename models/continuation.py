"""Sizes larger than any measured: the answer is continued along a line in work, as a device that is already busy takes it.

Beyond the trained sizes a network says what it said at their edge or worse. A device that is full, though, takes time in
proportion to further work. So a case is shrunk to two sizes inside, the line through their answers is followed to the work of
the case, and the geometric mean of that and of the model's own answer is taken: on larger sizes of public fp32 tables either
errs by 6.5–15 % (softmax 14.4 and 12.3, layernorm 6.5 and 6.4, gemm 15.1 and 14.3), the mean by 12.9, 5.2 and 14.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..features.cases import Cases, Floats
from ..features.kinds import Kind
from ..features.work import Work

_BULK = ("batch", "m", "n", "k", "rows", "cols", "tokens")
"""Sizes that only say how much there is, and can be shrunk without the others: a convolution's image must hold its kernel, keys
must be as many as queries."""

_INNER = (0.7, 0.2)
"""The two sizes inside, as shares of the largest measured: below the thinly measured edge, and far enough apart for a slope."""

_FADE_DOUBLINGS = 0.5
"""From the largest measured size on, the line's say grows up to half within this many doublings, so that nothing jumps."""

_ALIGNED = 256.0

Largest = Mapping[str, Mapping[str, float]]
"""The largest of each size that was measured, by device and variant (`place_of`)."""


def place_of(kind: Kind) -> str:
    """Device and variant of a kind, the words that `Largest` goes by."""
    return f"{kind.device} {kind.variant}"


def largest_sizes(cases: Cases) -> dict[str, dict[str, float]]:
    """The largest of each size among cases, by device and variant."""
    words = cases.kinds().words(place_of)
    return {
        place: {name: float(column[words.is_word(place)].max()) for name, column in cases.sizes.items()}
        for place in words.words
    }


def limits_of(kind: Kind, largest: Largest, names: Iterable[str]) -> Floats:
    """The largest of each size measured where a kind runs, shape `(n_sizes,)`; infinite where nothing was."""
    there = largest.get(place_of(kind), {})
    return np.array([there.get(name, np.inf) for name in names])


def beyond(cases: Cases, limits: Floats) -> Floats:
    """How many times each case's sizes are doubled beyond the largest measured there, shape `(n,)`; 0 inside.

    `limits` of shape `(n, n_sizes)` are those largest sizes (`limits_of` each kind).
    """
    sizes = np.array(list(cases.sizes.values()))
    ratios = np.maximum(sizes, 1.0) / np.maximum(limits.T, 1.0)
    found: Floats = np.log2(np.maximum(ratios.max(axis=0), 1.0))
    return found


def continued(
    log_latency: Floats,
    cases: Cases,
    paper: Work,
    limits: Floats,
    answer: Callable[[Cases], tuple[Floats, Work]],
    wanted: Any,
) -> Floats:
    """`log_latency` of shape `(n,)`, continued where a case among `wanted` is larger than any measured there.

    `limits` are those of `beyond`. `answer` gives ln(latency in s) and the work of cases that lie inside.
    """
    bulk = {name: limits[:, place] for place, name in enumerate(cases.sizes) if name in _BULK}
    larger = np.any([cases.sizes[name] > limit for name, limit in bulk.items()], axis=0)
    rows = np.flatnonzero(larger & wanted)
    if not len(rows):
        return log_latency
    part = cases.take(rows)
    inside = [answer(_shrunk(part, {name: limit[rows] for name, limit in bulk.items()}, share)) for share in _INNER]
    (upper, upper_work), (lower, lower_work) = inside
    w, w0, w1 = _busy_s(paper)[rows], _busy_s(upper_work), _busy_s(lower_work)
    steps = np.where(w0 > w1, (w - w0) / np.where(w0 > w1, w0 - w1, 1.0), 0.0)
    line = np.exp(upper) + np.maximum(np.exp(upper) - np.exp(lower), 0.0) * steps
    say = 0.5 * np.minimum(beyond(part, limits[rows]) / _FADE_DOUBLINGS, 1.0)
    good = (steps > 0.0) & np.isfinite(line)
    found = log_latency.copy()
    found[rows] += np.where(good, say * (np.log(np.where(good, line, 1.0)) - log_latency[rows]), 0.0)
    return found


def _shrunk(cases: Cases, limits: Mapping[str, Floats], share: float) -> Cases:
    """The cases with what is beyond its limit shrunk to that share of it, as divisible by powers of two as it was: libraries
    run sizes that are not in slower code.
    """
    sizes = dict(cases.sizes)
    for name, limit in limits.items():
        column = sizes[name]
        whole = column.astype(np.int64)
        step = np.minimum((whole & -whole).astype(np.float64), _ALIGNED)
        inner = np.maximum(np.round(limit * share / step) * step, np.minimum(step, limit))
        sizes[name] = np.where(column > limit, inner, column)
    return replace(cases, sizes=sizes)


def _busy_s(paper: Work) -> Floats:
    """Seconds of work on paper, without any launch."""
    return np.maximum(paper.flops / paper.peak_flops_per_s, paper.dram_all_s)
