"""Pairs on a GPU: which are drawn, what two streams say, and real worker processes over streams that are played."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.collectors.cpu.pairs.campaign import row_of_slots
from kernelcast.collectors.gpu.measure.pair_worker import HostLateError, PairGpu, inner_medians
from kernelcast.collectors.gpu.measure.pairs import KERNELS, LIMITS, LONG_CALL_S, GpuPairBench, gpu_pairs, gpu_pool
from kernelcast.collectors.gpu.plan.strata import estimates
from kernelcast.collectors.gpu.plan.sweeps import SWEEPS
from kernelcast.collectors.runner import GpuRunner, Launch
from kernelcast.datasets.records.kernel_pairs import read_pairs, write_pairs
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from played_streams import StreamGpu

H200 = catalogue().get("h200")
PLAYED = Path(__file__).parents[1] / "played_pair_worker.py"


def case(rows: int, cols: int = 8) -> KernelSpec:
    return KernelSpec.of("copy", "fp32", impl="played", rows=rows, cols=cols)


def played(gpu: StreamGpu, calls: dict[KernelSpec, Callable[[], float]]) -> PairGpu:
    given: Any = gpu
    return PairGpu(given, {"played": GpuRunner("played", ("played",), lambda spec, _: Launch(calls[spec]), dict)})


def test_a_pool_has_small_kernels_and_such_that_memory_the_cache_and_arithmetic_limit() -> None:
    kernels = gpu_pool(H200, seed=3)
    assert kernels == gpu_pool(H200, seed=3) != gpu_pool(H200, seed=4)
    assert len(kernels) == len(set(kernels)) == sum(KERNELS.values())
    assert {(spec.impl, spec.cache_state) for spec in kernels} == {("torch", "hot")}
    assert {spec.family for spec in kernels} == set(SWEEPS)
    estimated = estimates(kernels, H200)
    assert estimated.within(LIMITS).all()
    regimes = Counter(stratum.regime for stratum in estimated.strata)
    assert regimes == {"launch": 12, "memory": 44, "compute": 24}
    small = (estimated.memory_b <= H200.last_level_cache_b).tolist()
    assert sum(is_small and s.regime == "memory" for is_small, s in zip(small, estimated.strata, strict=True)) == 20


def test_two_of_three_pairs_are_of_long_calls() -> None:
    kernels = gpu_pool(H200)
    seconds = dict(zip(kernels, estimates(kernels, H200).call_s.tolist(), strict=True))
    drawn = list(itertools.islice(gpu_pairs(kernels, H200, 1), 120))
    assert len({frozenset(pair) for pair in drawn}) == 120
    assert drawn == list(itertools.islice(gpu_pairs(kernels, H200, 1), 120))
    long = sum(min(seconds[a], seconds[b]) >= LONG_CALL_S for a, b in drawn)
    assert 0.55 < long / 120 < 0.8


@pytest.mark.parametrize(("a_s", "b_s"), [(3e-6, 4e-6), (4e-6, 3e-3), (2e-4, 4.5e-3), (4e-3, 5e-3)])
def test_the_slowdown_of_two_kernels_is_what_the_device_does(a_s: float, b_s: float) -> None:
    a, b = case(1, 8), case(1, 9)
    gpu = StreamGpu(1.7)
    slots = played(gpu, {a: lambda: a_s, b: lambda: b_s}).measure([a, b])
    row = row_of_slots(a, b, "h200", [np.array(rows, dtype=np.float64) for rows in slots])
    assert (row.a_alone_s, row.b_alone_s) == pytest.approx((a_s, b_s), rel=1e-6)
    assert (row.a_slowdown, row.b_slowdown) == pytest.approx((1.7, 1.7), rel=1e-6)
    assert (row.status, row.a_error) == ("ok", pytest.approx(0, abs=1e-9))
    assert row.cycles is not None
    assert 3 <= row.cycles <= 5
    assert gpu.device.clock_s < 1.6
    # What runs next, such as operands, is on the first stream again.
    assert gpu.device.current is gpu.device.streams[0]


def test_a_kernel_that_waits_for_long_calls_gets_a_shorter_graph_beside_them() -> None:
    a, b = case(1, 8), case(1, 9)

    def short() -> float:
        return 4e-6

    short.beside = 400.0  # type: ignore[attr-defined]
    gpu = StreamGpu(1.0)
    slots = played(gpu, {a: short, b: lambda: 1.6e-3}).measure([a, b])
    row = row_of_slots(a, b, "h200", [np.array(rows, dtype=np.float64) for rows in slots])
    assert (row.a_alone_s, row.a_slowdown) == pytest.approx((4e-6, 400.0), rel=1e-6)
    assert row.b_slowdown == pytest.approx(1.0, rel=1e-6)
    assert max(gpu.captured) == 375
    assert gpu.captured[-1] == 4
    assert gpu.device.clock_s < 2


def test_a_host_that_is_too_slow_is_noticed() -> None:
    a, b = case(1, 8), case(1, 9)
    gpu = StreamGpu(1.0, host_s=2e-3)
    with pytest.raises(HostLateError, match="found the queue of their stream empty"):
        played(gpu, {a: lambda: 1e-4, b: lambda: 1e-4}).measure([a, b])


def test_replays_count_while_both_run() -> None:
    # The last replay of the fast one ends at 13; the one of the slow one that began before is over at 13.75.
    fast, slow = np.arange(0.0, 14.0), np.arange(2.5, 40.0, 1.5)
    slow[8:] += 0.25
    assert inner_medians([fast, slow]) == [1.0, 1.5]
    with pytest.raises(HostLateError, match="4 replays count"):
        inner_medians([fast[:-2], slow])


@pytest.fixture
def bench() -> Iterator[GpuPairBench]:
    with GpuPairBench(H200, command=lambda options: [sys.executable, "-P", str(PLAYED), options.to_json()]) as it:
        yield it


def test_a_pair_is_measured_by_a_worker_and_kept_in_a_file(bench: GpuPairBench, tmp_path: Path) -> None:
    row = bench.measure(case(1, 16), case(1, 500))
    assert row.status == "ok", row.message
    assert (row.a_alone_s, row.b_alone_s) == pytest.approx((16e-6, 5e-4))
    assert row.a_slowdown == pytest.approx(1.5)
    assert bench.facts() == {"worker": {"gpu": "played"}}
    path = tmp_path / "pairs.parquet"
    write_pairs(path, [row], {"block": {}})
    assert read_pairs(path)[0] == [row]


@pytest.mark.parametrize(
    ("rows", "status", "words"),
    [
        (2, "crashed", "the worker ended with status 139: segmentation fault"),
        (4, "failed", "an illegal memory access was encountered"),
        (5, "out_of_memory", "MemoryError"),
        (6, "unsupported", "a call takes 0.02 s, 0.005 s are allowed"),
    ],
)
def test_a_pair_without_times_is_a_row_and_spoils_nothing_else(
    bench: GpuPairBench, rows: int, status: str, words: str
) -> None:
    row = bench.measure(case(1), case(rows))
    assert row.status == status
    assert words in (row.message or "")
    assert row.a_slowdown is None
    assert bench.measure(case(1), case(1, 9)).status == "ok"
