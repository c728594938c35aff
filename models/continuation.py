"""Sizes larger than any measured: the answer is continued along a line in work, as a device that is already busy takes it.

Beyond the trained sizes a network says what it said at their edge or worse. A device that is full, though, takes time in
proportion to further work. So a case is shrunk to two sizes inside, the line through their answers is followed to the work of
the case, and the geometric mean of that and of the model's own answer is taken: on larger sizes of public fp32 tables either
errs by 6.5–15 % (softmax 14.4 and 12.3, layernorm 6.5 and 6.4, gemm 15.1 and 14.3), the mean by 12.9, 5.2 and 14.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..features.cases import Cases, Floats
from ..features.work import Work

_BULK = ("batch", "m", "n", "k", "rows", "cols", "tokens", "q_len", "kv_len", "height", "width")
"""Sizes that only say how much there is; others (a kernel's side, the heads, the experts) say what kind of thing it is."""

_INNER = (0.7, 0.2)
"""The two sizes inside, as shares of the largest measured: below the thinly measured edge, and far enough apart for a slope."""

Largest = Mapping[str, Mapping[str, float]]
"""The largest of each size that was measured, by variant."""


def largest_sizes(cases: Cases) -> dict[str, dict[str, float]]:
    """The largest of each size among cases, by variant."""
    words = cases.coded("variant")
    return {
        variant: {name: float(column[words.is_word(variant)].max()) for name, column in cases.sizes.items()}
        for variant in words.words
    }


def continued(
    log_latency: Floats,
    cases: Cases,
    paper: Work,
    largest: Largest,
    answer: Callable[[Cases], tuple[Floats, Work]],
    wanted: Any,
) -> Floats:
    """`log_latency` of shape `(n,)`, continued where a case among `wanted` is larger than any measured of its variant.

    `answer` gives ln(latency in s) and the work of cases that lie inside.
    """
    beyond = np.zeros(len(cases), dtype=np.bool_)
    limits = {name: np.full(len(cases), np.inf) for name in cases.sizes if name in _BULK}
    words = cases.coded("variant")
    for variant, sizes in largest.items():
        rows = words.is_word(variant)
        for name, limit in limits.items():
            limit[rows] = sizes[name]
            beyond |= rows & (cases.sizes[name] > sizes[name])
    rows = np.flatnonzero(beyond & wanted)
    if not len(rows):
        return log_latency
    part = cases.take(rows)
    inside = [answer(_shrunk(part, {name: limit[rows] for name, limit in limits.items()}, share)) for share in _INNER]
    (upper, upper_work), (lower, lower_work) = inside
    w, w0, w1 = _busy_s(paper)[rows], _busy_s(upper_work), _busy_s(lower_work)
    steps = np.where(w0 > w1, (w - w0) / np.where(w0 > w1, w0 - w1, 1.0), 0.0)
    line = np.exp(upper) + np.maximum(np.exp(upper) - np.exp(lower), 0.0) * steps
    found = log_latency.copy()
    found[rows] = np.where(steps > 0.0, 0.5 * (log_latency[rows] + np.log(line)), log_latency[rows])
    return found


def _shrunk(cases: Cases, limits: Mapping[str, Floats], share: float) -> Cases:
    sizes = {
        name: np.where(column > limits[name], np.maximum(np.round(limits[name] * share), 1.0), column)
        if name in limits
        else column
        for name, column in cases.sizes.items()
    }
    return replace(cases, sizes=sizes)


def _busy_s(paper: Work) -> Floats:
    """Seconds of work on paper, without any launch."""
    return np.maximum(paper.flops / paper.peak_flops_per_s, paper.dram_all_s)
