"""Measures a chunk of cases together: block 1 of each, block 2 of each, and so on, every block on fresh operands.

Interleaving separates a case's blocks in time at no cost, so a burst of load from outside spoils one block of many
cases rather than all blocks of one. Fresh operands, allocated in another order each round, move in physical memory:
where pages happen to lie shifts a kernel that lives in L2 or L3 by up to 40 %, and its label must not be one draw of
that. A hot and a cold case of one kernel share operands.

`CacheFlush` empties the caches for cold cases.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...datasets.rows.schema import Measurement
from ...features.kernel import KernelSpec
from ..collector import grouped
from ..host import utc_now
from ..meters.protocol import EnergyMeter, NoMeter
from ..runner import Prepared, Runner, row_of_error
from .timing import COLD, HOT, Clock, Sampler, StoppingRule, quiet_interpreter, steady_energy


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


KEEP_OVER_S = 0.15
"""A case that takes longer to prepare (it is compiled, or huge) keeps its operands over all blocks."""

Beat = Callable[[KernelSpec], None]


@dataclass(frozen=True, slots=True)
class Bench:
    """What one process measures with.

    Attributes:
        runner: The library that runs the kernels.
        device: The name rows carry.
        flush: Empties the caches, for cold cases.
        hot: Stopping rule of hot cases.
        cold: Stopping rule of cold cases.
        meter: The energy sensor.
        clock: What times are read from.
    """

    runner: Runner
    device: str
    flush: Callable[[], None]
    hot: StoppingRule = HOT
    cold: StoppingRule = COLD
    meter: EnergyMeter = field(default_factory=NoMeter)
    clock: Clock = field(default_factory=Clock)

    def sampler(self, spec: KernelSpec) -> Sampler:
        """What measures `spec`, before it is warmed up."""
        if spec.cache_state == "cold":
            return Sampler(self.cold, self.clock, self.flush)
        return Sampler(self.hot, self.clock)


def measure_chunk(specs: Sequence[KernelSpec], bench: Bench, beat: Beat | None = None) -> list[Measurement]:
    """Measure `specs` interleaved; every one becomes a row, whatever happens to it.

    `beat` is called with the case about to be worked on before every step, so that a supervisor can tell which one
    hangs.
    """
    groups = [
        _Group(bench, beat or _unheard, {spec: bench.sampler(spec) for spec in group}) for group in grouped(specs)
    ]
    # Seeded: which order operands are allocated in should differ between rounds, not between runs.
    order = random.Random(0)  # noqa: S311
    with quiet_interpreter():
        while live := [group for group in groups if group.live]:
            for group in order.sample(live, len(live)):
                group.prepare()
            for group in live:
                group.take_blocks()
            for group in live:
                group.release()
    rows = {spec: row for group in groups for spec, row in group.rows.items()}
    return [rows[spec] for spec in specs]


@dataclass(slots=True)
class _Group:
    """Cases of one kernel that share operands; a case leaves `live` when its row is known."""

    bench: Bench
    beat: Beat
    live: dict[KernelSpec, Sampler]
    rows: dict[KernelSpec, Measurement] = field(default_factory=dict)
    prepared: Prepared | None = None
    prepare_s: float = 0.0

    def prepare(self) -> None:
        """Allocate operands, unless kept from the round before."""
        if self.prepared is not None:
            return
        first = next(iter(self.live))
        began = time.perf_counter()
        if not self._guarded(first, lambda: self._set(self.bench.runner.prepare(first))):
            for spec in list(self.live):
                self._end(spec, replace(self.rows[first], spec=spec))
        self.prepare_s = time.perf_counter() - began

    def take_blocks(self) -> None:
        """One block of every live case, its warm-up before the first; rows of those that need no more."""
        if self.prepared is None:
            return
        for spec, sampler in list(self.live.items()):
            sampler.call = self.prepared.call
            if self._guarded(spec, sampler.take_block) and sampler.done:
                self._guarded(spec, lambda spec=spec, sampler=sampler: self._finish(spec, sampler))  # type: ignore[misc]

    def release(self) -> None:
        """Let operands go, unless preparing them again would cost too much."""
        if self.prepare_s < KEEP_OVER_S or not self.live:
            self._set(None)

    def _set(self, prepared: Prepared | None) -> None:
        self.prepared = prepared
        if prepared is None:
            for sampler in self.live.values():
                sampler.call = _nothing

    def _end(self, spec: KernelSpec, row: Measurement) -> None:
        self.rows[spec] = row
        self.live.pop(spec, None)

    def _guarded(self, spec: KernelSpec, step: Callable[[], Any]) -> bool:
        """Run one step of one case; an error becomes the case's row. True when it went well."""
        self.beat(spec)
        try:
            step()
        except Exception as error:  # noqa: BLE001  whatever a library raises is this case's result, not the campaign's end
            self._end(spec, row_of_error(spec, self.bench.device, error))
            return False
        return True

    def _finish(self, spec: KernelSpec, sampler: Sampler) -> None:
        summary = sampler.summary()
        cold = spec.cache_state == "cold"
        energy, message = ({}, None) if cold else steady_energy(sampler.call, sampler.call_s, self.bench.meter)
        setup_s = self.prepared.setup_s if self.prepared else 0.0
        self._end(spec, Measurement(
            spec=spec, device=self.bench.device, status="ok", block="", **summary.columns(), **energy,
            # After its hot twin a cold case finds everything set up already: its first call is not a first call.
            first_call_s=None if cold else setup_s + sampler.first_call_s, message=message, measured_at=utc_now(),
        ))  # fmt: skip


def _unheard(spec: KernelSpec) -> None:
    """A beat without a supervisor."""


def _nothing() -> None:
    """What a sampler calls between preparations: nothing, so that operands are not kept alive."""
