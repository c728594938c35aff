"""Campaigns over fake and replayed collectors: resume, interrupts, full disks, drifting machines."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from kernelcast.collectors.campaign import CampaignError
from kernelcast.collectors.collector import Collector, Pace, ReplayCollector, chunks
from kernelcast.collectors.kernel_campaign import drift, own_spread, run_campaign, store_sink
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.store.store import Store
from kernelcast.features.kernel import KernelSpec
from kernelcast.process import ChildStartError

DEVICE = "test-cpu"
PACE = Pace(chunk_cases=4, block_cases=8, calibration=2)
SENTINEL = KernelSpec.of("copy", "fp32", impl="torch", threads=1, rows=9999, cols=1)


def case(rows: int, threads: int = 1, dtype: str = "fp32", cache_state: str = "hot") -> KernelSpec:
    return KernelSpec.of("copy", dtype, impl="torch", threads=threads, rows=rows, cols=64, cache_state=cache_state)


CASES = [case(rows) for rows in range(1, 31)]


def measured(spec: KernelSpec, latency_s: float = 1e-3) -> Measurement:
    return Measurement(spec, DEVICE, "ok", block="", latency_s=latency_s, latency_q1_s=latency_s, latency_q3_s=latency_s,
                       latency_min_s=latency_s, n_samples=30, converged=True, noisy=False)  # fmt: skip


class Memory:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.rows: list[Measurement] = []
        self.provenance: list[Provenance] = []

    def __call__(self, rows: list[Measurement], provenance: Provenance) -> None:
        self.rows += rows
        self.provenance.append(provenance)

    @property
    def ids(self) -> set[str]:
        return {row.case_id for row in self.rows}


class Scripted:
    """A collector that measures instantly, and calls `before` with the number of chunks so far."""

    def __init__(self, before: Callable[[int], None] = lambda count: None, sentinel_s: Iterable[float] = ()) -> None:
        self.before, self.count, self.closed = before, 0, False
        self.sentinel_s = iter(sentinel_s)

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        if specs[0] == SENTINEL:
            return [measured(SENTINEL, next(self.sentinel_s))]
        self.count += 1
        self.before(self.count)
        return [measured(spec) for spec in specs]

    def facts(self) -> Mapping[str, Any]:
        return {"versions": {"fake": "1"}}

    def close(self) -> None:
        self.closed = True

    def __call__(self, impl: str, threads: int) -> Collector:
        return self


def replay() -> ReplayCollector:
    return ReplayCollector([measured(spec) for spec in CASES], DEVICE)


def test_every_case_is_stored_once_with_its_block_and_provenance() -> None:
    sink, seen = Memory(), []
    summary = run_campaign(CASES, device=DEVICE, sink=sink, collector_for=replay(), pace=PACE, sentinels=(),
                           progress=lambda done, total: seen.append((done, total)), note={"plan_seed": 3})  # fmt: skip
    assert sorted(row.case_id for row in sink.rows) == sorted(spec.case_id for spec in CASES)
    assert summary.stored == {"ok": 30}
    assert (summary.left, summary.interrupted, summary.blocks) == (0, False, 4)
    assert seen[-1] == (30, 30)
    facts = {provenance.block: provenance.facts for provenance in sink.provenance}
    assert {row.block for row in sink.rows} == set(facts)
    first = next(iter(facts.values()))
    for name in ("device", "cpu_model", "cores", "kernel", "python", "versions", "collector_version", "source_hash",
                 "input_distribution", "workers", "before", "after", "plan_seed"):  # fmt: skip
        assert name in first
    assert first["input_distribution"] == "seeded standard normal"


def test_a_case_without_a_recording_is_a_row_with_a_status() -> None:
    sink = Memory()
    run_campaign([case(999)], device=DEVICE, sink=sink, collector_for=replay(), sentinels=())
    assert (sink.rows[0].status, sink.rows[0].message) == ("failed", "no recorded row to replay")


def test_a_resumed_campaign_measures_only_what_is_missing() -> None:
    sink = Memory()
    skip = {spec.case_id for spec in CASES[:25]}
    summary = run_campaign(CASES, device=DEVICE, sink=sink, skip=skip, collector_for=replay(), sentinels=())
    assert sink.ids == {spec.case_id for spec in CASES[25:]}
    assert summary.skipped == 25
    again = run_campaign(CASES, device=DEVICE, sink=sink, skip=skip | sink.ids, collector_for=replay(), sentinels=())
    assert (again.stored, again.left) == ({}, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stores_what_is_measured_and_says_how_to_go_on(number: signal.Signals) -> None:
    sink, collector = Memory(), Scripted(lambda count: signal.raise_signal(number) if count == 4 else None)
    before = signal.getsignal(signal.SIGTERM)
    summary = run_campaign(CASES, device=DEVICE, sink=sink, collector_for=collector, pace=PACE, sentinels=())
    assert summary.interrupted
    assert len(sink.ids) == len(sink.rows) == 12  # one block of two chunks, and the third chunk
    assert summary.left == 18
    assert "18 left, run the same command again" in str(summary)
    assert collector.closed
    assert signal.getsignal(signal.SIGTERM) == before
    run_campaign(CASES, device=DEVICE, sink=sink, skip=sink.ids, collector_for=replay(), pace=PACE, sentinels=())
    assert len(sink.ids) == len(sink.rows) == 30


def test_an_interrupt_while_storing_stores_the_block_once() -> None:
    sink = Memory()

    def interrupted(rows: list[Measurement], provenance: Provenance) -> None:
        sink(rows, provenance)
        signal.raise_signal(signal.SIGINT)

    summary = run_campaign(CASES, device=DEVICE, sink=interrupted, collector_for=replay(), pace=PACE, sentinels=())
    assert summary.interrupted
    assert len(sink.ids) == len(sink.rows) == 8


def test_a_full_disk_ends_with_what_to_do_and_keeps_what_was_stored() -> None:
    sink, collector = Memory(), Scripted()

    def full(rows: list[Measurement], provenance: Provenance) -> None:
        if sink.rows:
            raise OSError(errno.ENOSPC, "No space left on device")
        sink(rows, provenance)

    with pytest.raises(CampaignError, match=r"disk is full.*8 rows in 1 blocks are stored.*Run the same command again"):
        run_campaign(CASES, device=DEVICE, sink=full, collector_for=collector, pace=PACE, sentinels=())
    assert len(sink.rows) == 8
    assert collector.closed


def test_a_worker_that_cannot_start_ends_the_campaign_after_storing_the_rest() -> None:
    def missing(count: int) -> None:
        if count == 2:
            raise ChildStartError("the iree worker did not start: No module named 'iree'")

    sink = Memory()
    with pytest.raises(CampaignError, match=r"No module named 'iree'.*run the same command again"):
        run_campaign(CASES, device=DEVICE, sink=sink, collector_for=Scripted(missing), pace=PACE, sentinels=())
    assert len(sink.rows) == 4


def test_a_fault_on_the_way_stores_what_is_in_hand() -> None:
    sink = Memory()

    def gone(done: int, total: int) -> None:
        if done > PACE.block_cases:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run_campaign(CASES, device=DEVICE, sink=sink, collector_for=replay(), pace=PACE, sentinels=(), progress=gone)
    assert len(sink.ids) == len(sink.rows) == 12


def test_a_drifting_block_is_measured_once_more_and_says_so() -> None:
    sink = Memory()
    # Calibration twice, after block 1, then block 2 drifts by 10 %, its second try is quiet, the rest too.
    collector = Scripted(sentinel_s=[1e-3, 1.001e-3, 1.0e-3, 1.1e-3, 1.1e-3, 1.1e-3, 1.1e-3])
    summary = run_campaign(CASES, device=DEVICE, sink=sink, collector_for=collector, pace=PACE, sentinels=(SENTINEL,))
    assert summary.remeasured == 1
    assert len(sink.ids) == len(sink.rows) == 30
    assert [bool(provenance.facts.get("remeasured")) for provenance in sink.provenance] == [False, True, False, False]
    facts = sink.provenance[1].facts
    assert facts["sentinel_drift_first_try"][str(SENTINEL)] == pytest.approx(0.1)
    assert facts["sentinel_drift"][str(SENTINEL)] == pytest.approx(0.0)


def test_a_sentinel_that_varies_by_itself_may_move_as_far() -> None:
    readings = [{"gemm": 1.0, "copy": 1.0}, {"gemm": 1.01, "copy": 1.2}, {"gemm": 1.0, "copy": None}]
    assert own_spread(readings) == pytest.approx({"gemm": 0.01, "copy": 0.2 / 1.1})
    assert drift(readings[0], readings[2]) == {"gemm": 0.0}
    sink, collector = Memory(), Scripted(sentinel_s=[1.0, 1.2, *[1.05] * 9])
    summary = run_campaign(CASES, device=DEVICE, sink=sink, collector_for=collector, pace=PACE, sentinels=(SENTINEL,))
    assert summary.remeasured == 0


def test_an_interrupt_during_the_second_try_keeps_the_first() -> None:
    def second_try(count: int) -> None:
        if count == 3:
            raise KeyboardInterrupt

    sink, collector = Memory(), Scripted(second_try, sentinel_s=[1e-3, 1e-3, 2e-3])
    run_campaign(CASES, device=DEVICE, sink=sink, collector_for=collector, pace=PACE, sentinels=(SENTINEL,))
    assert len(sink.ids) == len(sink.rows) == 8


def test_a_worker_that_cannot_start_for_the_second_try_keeps_the_first() -> None:
    def second_try(count: int) -> None:
        if count == 4:
            raise ChildStartError("the GPU worker did not start: no driver", [measured(CASES[0])])

    sink, collector = Memory(), Scripted(second_try, sentinel_s=[1e-3, 1e-3, 2e-3])
    with pytest.raises(CampaignError, match="no driver"):
        run_campaign(CASES, device=DEVICE, sink=sink, collector_for=collector, pace=PACE, sentinels=(SENTINEL,))
    assert [row.spec for row in sink.rows] == CASES[:8]


class Short(Scripted):
    """Gives the first `rows[i]` rows of its chunk number i, as a collector whose time ran out."""

    def __init__(self, rows: Mapping[int, int], sentinel_s: Iterable[float] = ()) -> None:
        super().__init__(sentinel_s=sentinel_s)
        self.rows = rows

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        result = super().collect(specs)
        return result if specs[0] == SENTINEL else result[: self.rows.get(self.count, len(result))]


def test_cases_a_collector_had_no_time_for_are_left() -> None:
    sink, seen = Memory(), []
    summary = run_campaign(CASES[:12], device=DEVICE, sink=sink, collector_for=Short({2: 1, 3: 0}), pace=PACE,
                           sentinels=(), progress=lambda done, total: seen.append(done))  # fmt: skip
    assert [row.spec for row in sink.rows] == CASES[:5]
    assert (summary.stored, summary.left) == ({"ok": 5}, 7)
    assert seen == [4, 5, 5]


def test_a_second_try_that_had_no_time_for_all_leaves_the_first() -> None:
    sink, collector = Memory(), Short({1: 3, 2: 0, 3: 1}, sentinel_s=[1e-3, 1e-3, 2e-3])
    summary = run_campaign(
        CASES[:8], device=DEVICE, sink=sink, collector_for=collector, pace=PACE, sentinels=(SENTINEL,)
    )
    assert [row.spec for row in sink.rows] == CASES[:3]
    assert (summary.remeasured, summary.left) == (0, 5)
    assert "remeasured" not in sink.provenance[0].facts


def test_chunks_are_of_one_worker_and_bounded_and_keep_twins_together() -> None:
    specs = [case(rows, threads, cache_state=state) for rows in range(1, 11) for threads in (1, 2)
             for state in ("hot", "cold")]  # fmt: skip
    result = list(chunks(specs, PACE))
    assert sorted(spec.case_id for chunk in result for spec in chunk) == sorted(spec.case_id for spec in specs)
    for chunk in result:
        assert len(chunk) <= PACE.chunk_cases
        assert len({spec.threads for spec in chunk}) == 1
        assert sum(spec.cache_state == "hot" for spec in chunk) == len(chunk) / 2
    large = [case(rows, dtype="fp32") for rows in (10**6, 10**6 + 1, 10**6 + 2)]
    assert [len(chunk) for chunk in chunks(large, Pace(chunk_b=1.1e9))] == [2, 1]


def test_into_a_real_store_and_on_from_it(tmp_path: Path) -> None:
    store = Store(tmp_path, lower_bounds=lambda specs, devices: np.full(len(specs), 1e-7))
    rows = [measured(spec) for spec in CASES[:10]] + [measured(CASES[10], 1e-18)]
    first = run_campaign(CASES[:11], device=DEVICE, sink=store_sink(store), pace=PACE, sentinels=(),
                         collector_for=ReplayCollector(rows, DEVICE))  # fmt: skip
    assert first.stored == {"ok": 10, "failed": 1}
    assert store.case_ids(DEVICE) == {spec.case_id for spec in CASES[:10]}
    (refused,) = store.read("copy").filter(pc.field("status") == "failed").to_pylist()
    assert refused["message"].startswith("refused: latency_s: is 1e-18 s, below the lower bound")
    summary = run_campaign(CASES[:11], device=DEVICE, sink=store_sink(store), skip=store.case_ids(DEVICE),
                           collector_for=replay(), pace=PACE, sentinels=())  # fmt: skip
    assert summary.skipped == 10
    assert store.case_ids(DEVICE) == {spec.case_id for spec in CASES[:11]}
