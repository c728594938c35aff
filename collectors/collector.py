"""What a campaign hands its cases to (a worker process, a device elsewhere, a replay of recorded rows), and in which portions.

Groups of cases share operands, chunks are measured together by one worker.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol, Self

from ..datasets.rows.schema import Measurement
from ..features.kernel import KernelSpec, View, get_family
from ..process import core_count


@dataclass(frozen=True, slots=True)
class JsonOptions:
    """Options of a worker process, which gets them on its command line."""

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The options `to_json` wrote."""
        raw = json.loads(text)
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()})


class WorkerLostError(Exception):
    """The worker is gone: it crashed, or was killed for its silence. `case_id` is what it was working on."""

    def __init__(self, status: Literal["timeout", "crashed"], case_id: str | None, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.case_id = case_id


class Collector(Protocol):
    """Something that turns specs into rows: a worker process, or a replay of recorded rows."""

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        """One row per spec, in order; fewer where its time ran out.

        Raises:
            WorkerLostError: the process that measured them is gone; the next call starts another.
            ChildStartError: no process can be started; it carries the rows measured before.
        """
        ...

    def facts(self) -> Mapping[str, Any]:
        """What to record about it beside the machine: library versions, threads, cores. Empty before the first use."""
        ...

    def close(self) -> None:
        """End it, at once."""
        ...


class ReplayCollector:
    """Gives the recorded row of each case; a case without one is a failed row that says so."""

    def __init__(self, rows: Iterable[Measurement], device: str) -> None:
        self._rows = {row.case_id: row for row in rows}
        self._device = device

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        """One row per spec, in order, named after this collector's device."""
        return [self._row(spec) for spec in specs]

    def facts(self) -> Mapping[str, Any]:
        """Says that rows were replayed, so that they are never taken for fresh ones."""
        return {"replayed_rows": len(self._rows)}

    def close(self) -> None:
        """Nothing to end."""

    def __call__(self, impl: str, threads: int) -> Collector:  # noqa: ARG002  one recording serves all
        """Itself, as `run_campaign`'s `collector_for`."""
        return self

    def _row(self, spec: KernelSpec) -> Measurement:
        recorded = self._rows.get(spec.case_id)
        if recorded is None:
            return Measurement(spec, self._device, "failed", block="", message="no recorded row to replay")
        return replace(recorded, device=self._device, block="")


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
    return spec.impl, spec.threads or core_count()


def footprint_b(spec: KernelSpec) -> float:
    """Bytes of the case's operands."""
    return float(get_family(spec.family).footprint_b(View.of(spec)))
