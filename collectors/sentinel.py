"""Sentinels: two fixed cases read between blocks; when they move, the machine did, not the kernels."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ..features.kernel import KernelSpec

SENTINEL_CASES = (
    KernelSpec.of("gemm", "fp32", impl="torch", threads=1, m=384, n=384, k=384),
    KernelSpec.of("copy", "fp32", impl="torch", threads=1, rows=2048, cols=4096),
)
"""One bound by arithmetic, one by memory (32 MB in and out), one thread; a few tenths of a second together."""

Reading = Mapping[str, float | None]
"""Latency in seconds by sentinel; None where it could not be measured."""


def own_spread(readings: Sequence[Reading]) -> dict[str, float]:
    """By how much each sentinel varies by itself: (largest - smallest) / median of readings taken in a row.

    On a machine whose memory is shared with others a copy moves by more than a few percent all the time; only a drift
    beyond that says something about a block.
    """
    names = {name for reading in readings for name in reading}
    times = {name: [value for reading in readings if (value := reading.get(name))] for name in sorted(names)}
    return {name: (max(seen) - min(seen)) / statistics.median(seen) for name, seen in times.items() if seen}


def drift(before: Reading, after: Reading) -> dict[str, float]:
    """Relative change of every sentinel that both readings have."""
    return {name: abs(new / old - 1.0) for name, old in before.items() if old and (new := after.get(name))}
