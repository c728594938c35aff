"""A measuring campaign: hands chunks to workers, watches the machine, stores blocks, and survives what goes wrong.

    sentinel | chunk chunk chunk ... up to 50 cases or 30 s | sentinel | store | chunk ...

The block between two sentinel readings that drifted apart is measured once more before it is stored. What is stored is
never touched again; a campaign stopped at any point goes on with `skip`, the ids already stored.

Sentinels are two fixed cases read between blocks: when they move, the machine did, not the kernels. Ctrl-C and SIGTERM both end
a campaign in order, and neither comes between storing rows and forgetting them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from ..datasets.rows.checks import as_failed
from ..datasets.rows.schema import Measurement, Provenance
from ..datasets.store.store import RowsRefused, Store, StoreError
from ..features.kernel import KernelSpec
from ..process import ChildStartError
from .campaign import (
    Campaign,
    CampaignError,
    CampaignSummary,
    Progress,
    new_block_name,
    signals_held,
    terminate_as_interrupt,
    why_not_stored,
)
from .collector import PACE, Collector, Pace, WorkerLostError, chunks, worker_key
from .cpu.worker import local_workers
from .host import machine_facts, state_facts
from .runner import row_without_result

SENTINEL_CASES = (
    KernelSpec.of("gemm", "fp32", impl="torch", threads=1, m=384, n=384, k=384),
    KernelSpec.of("copy", "fp32", impl="torch", threads=1, rows=2048, cols=4096),
)
"""One bound by arithmetic, one by memory (32 MB in and out), one thread; a few tenths of a second together."""

Reading = Mapping[str, float | None]
"""Latency in seconds by sentinel; None where it could not be measured."""

Sink = Callable[[list[Measurement], Provenance], Sequence[Measurement] | None]
"""Stores one block, for good, or raises OSError or StoreError. Gives the rows as stored, or None: as they were given."""


def run_campaign(
    specs: Sequence[KernelSpec],
    *,
    device: str,
    sink: Sink,
    skip: AbstractSet[str] = frozenset(),
    progress: Progress | None = None,
    collector_for: Callable[[str, int], Collector] | None = None,
    pace: Pace = PACE,
    sentinels: Sequence[KernelSpec] = SENTINEL_CASES,
    note: Mapping[str, Any] | None = None,
    key_of: Callable[[KernelSpec], tuple[str, int]] = worker_key,
    state: Callable[[], Mapping[str, Any]] = state_facts,
    until: float | None = None,
) -> CampaignSummary:
    """Measure `specs` on this machine and store every row, good or bad, through `sink`.

    Args:
        specs: what to measure, in order; those whose `case_id` is in `skip` are left out.
        device: the name rows carry.
        sink: stores a block.
        skip: ids stored already.
        progress: told after every chunk.
        collector_for: gives the collector of an impl and thread count; default: worker processes on this machine.
        pace: sizes of chunks and blocks.
        sentinels: cases read between blocks to see the machine drift; empty for none.
        note: facts added to every block's provenance.
        key_of: which worker a case is for; default: its impl and thread count.
        state: the machine's state, recorded before and after every block.
        until: a time of `time.monotonic()` after which no further chunk is begun.

    Returns:
        What was done. Ctrl-C and SIGTERM also end here: what is measured is stored, workers are killed.

    Raises:
        CampaignError: the sink cannot store (disk full), or a worker cannot start. Blocks stored before stay.
    """
    todo = [spec for spec in specs if spec.case_id not in skip]
    campaign = _KernelCampaign(
        device=device, sink=sink, collector_for=collector_for or local_workers(device), pace=pace, sentinels=tuple(sentinels),
        machine=machine_facts(device) | dict(note or {}), key_of=key_of, state=state, until=until,
    )  # fmt: skip
    interrupted = False
    try:
        with terminate_as_interrupt():
            campaign.run(todo, progress)
    except KeyboardInterrupt:
        interrupted = True
    except ChildStartError as error:
        raise CampaignError(
            f"{error}. What was measured is stored; fix this and run the same command again."
        ) from error
    finally:
        # However it ended, by a fault of ours even: what is still in hand was measured all the same.
        try:
            campaign.store({"interrupted": True})
        finally:
            campaign.close()
    return campaign.summary(wanted=len(specs), todo=len(todo), interrupted=interrupted)


def store_sink(store: Store) -> Sink:
    """A sink into `store`; rows that its checks refuse are stored as failed, with the reason."""

    def sink(rows: list[Measurement], provenance: Provenance) -> Sequence[Measurement]:
        try:
            store.append(rows, provenance)
        except RowsRefused as refusal:
            reasons = {refused.row: f"{refused.column}: {refused.reason}" for refused in refusal.refused}
            rows = [as_failed(row, reasons[i]) if i in reasons else row for i, row in enumerate(rows)]
            store.append(rows, provenance)
        return rows

    return sink


@dataclass(slots=True, kw_only=True)
class _KernelCampaign(Campaign[tuple[str, int], Collector]):
    """A campaign over kernels under way, and the block being filled."""

    sink: Sink
    collector_for: Callable[[str, int], Collector]
    pace: Pace
    sentinels: tuple[KernelSpec, ...]
    machine: Mapping[str, Any]
    key_of: Callable[[KernelSpec], tuple[str, int]]
    state: Callable[[], Mapping[str, Any]]
    block: list[list[Measurement]] = field(default_factory=list)
    before: Mapping[str, Any] = field(default_factory=dict)
    reading: Reading = field(default_factory=dict)
    allowed: Mapping[str, float] = field(default_factory=dict)

    def run(self, specs: Sequence[KernelSpec], progress: Progress | None) -> None:
        """Measure and store all of `specs`."""
        if not specs:
            return
        done, block_began = 0, time.monotonic()
        readings = [self._read_sentinels() for _ in range(self.pace.calibration)]
        self.allowed = {name: max(self.pace.drift, spread) for name, spread in own_spread(readings).items()}
        self.reading, self.before = readings[-1], self.state()
        for chunk in chunks(specs, self.pace, self.key_of):
            if self.out_of_time():
                break
            try:
                rows = self._measured(chunk)
            except ChildStartError as error:
                self.block.append(list(error.rows))
                raise
            self.block.append(rows)
            done += len(rows)
            if progress is not None:
                progress(done, len(specs))
            cases = sum(map(len, self.block))
            if cases >= self.pace.block_cases or time.monotonic() - block_began >= self.pace.block_s:
                self._close_block()
                block_began = time.monotonic()
        self._close_block()

    def store(self, facts: Mapping[str, Any]) -> None:
        """Hand the block to the sink, with `facts` added to its provenance, and begin another."""
        rows = [row for chunk in self.block for row in chunk]
        if not rows:
            return
        name = new_block_name()
        workers = {f"{impl}/{threads}": dict(c.facts()) for (impl, threads), c in self.collectors.items()}
        provenance = Provenance(name, {
            **self.machine, "workers": workers, "before": self.before, "after": self.state(), **facts,
        })  # fmt: skip
        # Storing and forgetting are one step: an interrupt between them would store the block twice.
        with signals_held():
            try:
                stored_rows = self.sink([replace(row, block=name) for row in rows], provenance)
            except (OSError, StoreError) as error:
                # Let go of: the end of the campaign would only fail at it again.
                self.block = []
                raise CampaignError(
                    f"{why_not_stored(error)}. {sum(self.stored.values())} rows in {self.blocks} blocks are stored and stay; "
                    f"the last {len(rows)} rows are not. Run the same command again to go on where this stopped.",
                    kind="storage",
                ) from error
            self.stored.update(row.status for row in (rows if stored_rows is None else stored_rows))
            self.blocks += 1
            self.block, self.before = [], self.state()

    def _close_block(self) -> None:
        """Read the sentinels; when they drifted over the block, measure it once more; then store it."""
        if not self.block:
            return
        start, end = self.reading, self._read_sentinels()
        moved = drift(start, end)
        facts: dict[str, Any] = {"sentinel_before_s": start, "sentinel_after_s": end, "sentinel_drift": moved,
                                 "sentinel_drift_allowed": self.allowed}  # fmt: skip
        drifted = any(change > self.allowed.get(name, self.pace.drift) for name, change in moved.items())
        if drifted and not self.out_of_time():
            # The first try stays in hand until the second is complete: nothing that happens in between may lose it.
            second_try = [self._measured([row.spec for row in chunk]) for chunk in self.block if chunk]
            if sum(map(len, second_try)) == sum(map(len, self.block)):
                self.block = second_try
                start, end = end, self._read_sentinels()
                self.remeasured += 1
                facts |= {"remeasured": True, "sentinel_before_s": start, "sentinel_after_s": end,
                          "sentinel_drift": drift(start, end), "sentinel_drift_first_try": moved}  # fmt: skip
        self.reading = end
        self.store(facts)

    def _read_sentinels(self) -> Reading:
        return {str(row.spec): row.latency_s for row in (self._measured(self.sentinels) if self.sentinels else [])}

    def _measured(self, chunk: Sequence[KernelSpec]) -> list[Measurement]:
        """Rows of a chunk; if its worker is lost, of each case alone, one that loses it again with that status."""
        collector = self._collector(chunk[0])
        try:
            return collector.collect(chunk)
        except WorkerLostError:
            return [self._measured_alone(collector, spec) for spec in chunk]

    def _measured_alone(self, collector: Collector, spec: KernelSpec) -> Measurement:
        try:
            return collector.collect([spec])[0]
        except WorkerLostError as lost:
            return row_without_result(spec, self.device, lost.status, str(lost))

    def _collector(self, spec: KernelSpec) -> Collector:
        key = self.key_of(spec)
        if key not in self.collectors:
            self.collectors[key] = self.collector_for(*key)
        return self.collectors[key]


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
