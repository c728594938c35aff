"""Empties the caches, so that a cold case finds nothing of its operands there."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np


class CacheFlush:
    """Evicts the caches of `cores` cores by reading and writing a buffer of twice the last-level cache.

    Each core walks its own part from a thread pinned to it, since a victim last-level cache leaves the private caches
    of other cores alone. Read-modify-write, because a plain fill may bypass the caches with streaming stores.
    """

    def __init__(self, llc_b: int, cores: Sequence[int]) -> None:
        self._parts = np.array_split(np.ones(2 * llc_b // 8), max(1, len(cores)))
        self._pool: ThreadPoolExecutor | None = None
        if len(cores) > 1:
            barrier, todo = threading.Barrier(len(cores)), iter(cores)
            self._pool = ThreadPoolExecutor(len(cores), initializer=lambda: _pin(next(todo), barrier))

    def __call__(self) -> None:
        """Flush once."""
        if self._pool is None:
            _touch(self._parts[0])
        else:
            list(self._pool.map(_touch, self._parts))


def _pin(core: int, barrier: threading.Barrier) -> None:
    os.sched_setaffinity(0, {core})  # 0 is the calling thread
    # Every thread must exist before one takes work, or one idle thread would serve all parts.
    barrier.wait(timeout=10)


def _touch(part: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    np.add(part, 1.0, out=part)
