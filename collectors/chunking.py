"""How a campaign is cut up: groups that share operands, chunks that are measured together, and for which worker."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ..features.kernel import KernelSpec, View, get_family


@dataclass(frozen=True, slots=True)
class Pace:
    """How a campaign is cut up: chunks (measured interleaved, in memory together) and blocks (stored together).

    Attributes:
        chunk_cases: Most cases of a chunk.
        chunk_b: Most bytes of operands of a chunk.
        block_cases: A block ends after so many cases,
        block_s: or after so many seconds.
        drift: How far a sentinel may move, as a ratio, before its block is measured again. One that varies more by itself
            may move as far as that.
        calibration: Readings of the sentinels at the start, which show how much they vary by themselves.
    """

    chunk_cases: int = 12
    chunk_b: float = 1.5e9
    block_cases: int = 50
    block_s: float = 30.0
    drift: float = 0.03
    calibration: int = 5


PACE = Pace()


def without_cache_state(spec: KernelSpec) -> KernelSpec:
    """What hot and cold cases of one kernel have in common."""
    return replace(spec, cache_state="hot")


def grouped(specs: Iterable[KernelSpec]) -> list[list[KernelSpec]]:
    """Cases that can share one preparation, groups in order of first appearance, hot before cold within one."""
    groups: dict[KernelSpec, list[KernelSpec]] = {}
    for spec in specs:
        groups.setdefault(without_cache_state(spec), []).append(spec)
    return [sorted(group, key=lambda spec: spec.cache_state != "hot") for group in groups.values()]


def chunks(
    specs: Iterable[KernelSpec], pace: Pace, key_of: Callable[[KernelSpec], tuple[str, int]] | None = None
) -> Iterator[list[KernelSpec]]:
    """Cases to measure together: one worker's each (`key_of`), bounded in number and memory, in order of filling."""
    filling: dict[tuple[str, int], list[KernelSpec]] = {}
    bytes_held: Counter[tuple[str, int]] = Counter()
    for group in grouped(specs):
        key, size_b = (key_of or worker_key)(group[0]), footprint_b(group[0])
        current = filling.setdefault(key, [])
        if current and (len(current) + len(group) > pace.chunk_cases or bytes_held[key] + size_b > pace.chunk_b):
            yield current
            current = filling[key] = []
            bytes_held[key] = 0
        current += group
        bytes_held[key] += int(size_b)
    yield from (current for current in filling.values() if current)


def worker_key(spec: KernelSpec) -> tuple[str, int]:
    """Library and thread count: what one worker process is for."""
    return spec.impl, spec.threads or os.cpu_count() or 1


def footprint_b(spec: KernelSpec) -> float:
    """Bytes of the case's operands."""
    return float(get_family(spec.family).footprint_b(View.of(spec)))
