"""A CPU described by rows that are played back."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from kernelcast.collectors.collector import ReplayCollector
from kernelcast.collectors.cpu.characterize import (
    MemoryLevel,
    NoMemoryLevelsError,
    characterize,
    memory_levels,
    probes,
)
from kernelcast.collectors.meters.protocol import Energy, NoMeter
from kernelcast.datasets.rows.schema import Measurement
from kernelcast.features.kernel import KernelSpec

CACHES = {"l1": 48 * 2**10, "l2": 2**20, "l3": 32 * 2**20}
LAUNCH_S = 2e-6
LAUNCH = KernelSpec.of("elementwise", "fp32", variant="addu", impl="torch", threads=1, rows=1, cols=1)


def recorded(rate: float, better: float, power_w: float | None = None) -> ReplayCollector:
    """Every probe's first case at `rate` work per second beside dispatch, its second at `better`."""
    rows = [Measurement(LAUNCH, "cpu", "ok", "", latency_s=LAUNCH_S)]
    for dtype, seconds in (("fp32", 3e-6), ("bf16", 5e-6)):
        spec = KernelSpec.of("gemm", dtype, impl="torch", threads=1, m=16, n=16, k=16)
        rows.append(Measurement(spec, "cpu", "ok", "", latency_s=seconds))
    for probe in probes(CACHES, 2):
        for spec, reached in zip(probe.cases, (rate, better), strict=True):
            seconds = LAUNCH_S + probe.work(spec) / reached
            rows.append(Measurement(spec, "cpu", "ok", "", latency_s=seconds, power_w=power_w))
    return ReplayCollector(rows, "cpu")


def levels(sizes_b: object, core: int) -> list[MemoryLevel]:
    return [MemoryLevel(1e-9, 3e11), MemoryLevel(4e-9, 2e11), MemoryLevel(1.2e-8, 1e11), MemoryLevel(1e-7, None)]


def test_the_better_of_two_sizes_is_kept_and_dispatch_taken_off() -> None:
    facts = characterize("cpu", collector_for=recorded(1e10, 3e10), caches_b=CACHES, threads=2, levels=levels)
    assert facts["launch_torch_s"]["value"] == LAUNCH_S
    assert facts["matrix_bf16_flops_per_s_1t"]["value"] == pytest.approx(3e10)
    assert facts["bandwidth_dram_b_per_s"]["value"] == pytest.approx(3e10)
    assert facts["latency_dram_s"]["value"] == 1e-7
    assert facts["bandwidth_l1_b_per_s_1t"]["value"] == 3e11
    assert "bandwidth_dram_b_per_s_1t" in facts
    assert facts["launch_torch_s"]["source"].startswith("measured 2")
    assert ", kernelcast " in facts["launch_torch_s"]["source"]


def test_a_larger_case_that_is_much_better_is_said() -> None:
    facts = characterize("cpu", collector_for=recorded(1e10, 1.2e10), caches_b=CACHES, threads=2, levels=levels)
    assert facts["matrix_bf16_flops_per_s"]["source"].endswith(
        "20% above the smaller case, so the peak may lie higher still"
    )
    facts = characterize("cpu", collector_for=recorded(1e10, 1.04e10), caches_b=CACHES, threads=2, levels=levels)
    assert "higher still" not in facts["matrix_bf16_flops_per_s"]["source"]


def test_launch_floors_per_dtype_and_power() -> None:
    meter = SimpleNamespace(measure=lambda loop: Energy(energy_j=0.2, power_w=21.0, window_s=0.3, calls=30))
    facts = characterize(
        "cpu", collector_for=recorded(1e10, 3e10, 95.0), caches_b=CACHES, threads=2, levels=levels, meter=meter
    )
    assert (facts["launch_torch_fp32_s"]["value"], facts["launch_torch_bf16_s"]["value"]) == (3e-6, 5e-6)
    assert [facts[f"power_{what}_w"]["value"] for what in ("idle", "compute", "bandwidth")] == [21.0, 95.0, 95.0]
    facts = characterize(
        "cpu", collector_for=recorded(1e10, 3e10), caches_b=CACHES, threads=2, levels=levels, meter=NoMeter()
    )
    assert [facts[f"power_{what}_w"]["value"] for what in ("idle", "compute", "bandwidth")] == [None] * 3
    assert facts["power_idle_w"]["source"].startswith("not measured: no energy sensor")


def test_what_cannot_be_measured_is_none_with_the_reason() -> None:
    def no_compiler(sizes_b: object, core: int) -> list[MemoryLevel]:
        raise NoMemoryLevelsError("no C compiler (cc)")

    facts = characterize(
        "cpu", collector_for=ReplayCollector([], "cpu"), caches_b=CACHES, threads=2, levels=no_compiler
    )
    assert facts["latency_l1_s"] == {"value": None, "source": "not measured: no C compiler (cc)"}
    assert facts["matrix_fp32_flops_per_s"]["value"] is None
    assert set(facts) == set(characterize("cpu", collector_for=recorded(1e9, 1e9), caches_b=CACHES, threads=2,
                                          levels=levels))  # fmt: skip


def test_a_compiler_that_fails_says_so() -> None:
    with pytest.raises(NoMemoryLevelsError, match="false failed"):
        memory_levels([2**14], 0, compiler=shutil.which("false"))


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc)")
def test_the_c_program_orders_the_levels() -> None:
    import os

    near, far = memory_levels([16 * 2**10, 64 * 2**20], max(os.sched_getaffinity(0)))
    if near.latency_s is None or far.latency_s is None:
        pytest.skip("the machine is too busy for a clean repeat")
    assert 1e-10 < near.latency_s < far.latency_s < 1e-5


def test_what_gave_no_clean_sample_is_measured_again() -> None:
    inner, asked = recorded(1e10, 3e10), []

    class Busy:
        """Gives no time for any case at first."""

        def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
            rows = inner.collect(specs)
            again = [spec in asked for spec in specs]
            asked.extend(specs)
            return [row if seen else replace(row, latency_s=None) for row, seen in zip(rows, again, strict=True)]

        def close(self) -> None:
            """Nothing to end."""

    facts = characterize("cpu", collector_for=lambda *_: Busy(), caches_b=CACHES, threads=2, levels=levels)
    assert facts["matrix_bf16_flops_per_s_1t"]["value"] == pytest.approx(3e10)
    assert facts["bandwidth_dram_b_per_s"]["value"] == pytest.approx(3e10)
