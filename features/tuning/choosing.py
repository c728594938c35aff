"""Which configurations of a large grid are worth a model's time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def spread(groups: NDArray[np.int64], expected: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Positions of at most `most` configurations, ascending: the best of every group before the second of any.

    Args:
        groups: rows `(n, columns)`; equal rows are one group, such as a register tile: formulas know blocks better than those.
        expected: what a formula expects of each `(n,)`, less being better.
        most: how many are wanted.
    """
    own = np.unique(groups, axis=0, return_inverse=True)[1].ravel()
    order = np.lexsort((np.arange(len(own)), expected, own))
    starts = np.searchsorted(own[order], np.arange(own.max(initial=-1) + 1))
    place = np.empty(len(own), dtype=np.int64)
    place[order] = np.arange(len(own)) - starts[own[order]]
    return np.sort(np.lexsort((expected, place))[:most])


def near(inner: Any, block: Any, size: int) -> Any:
    """The multiple of `inner` nearest below `block`, at least one, no larger than the first that covers `size`.

    Sizes or columns `(n,)` of them.
    """
    return inner * np.minimum(np.maximum(block // inner, 1), -(-size // inner))
