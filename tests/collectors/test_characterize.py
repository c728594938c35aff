"""A CPU described by rows that are played back."""

from __future__ import annotations

import shutil

import pytest
from kernelcast.collectors.characterize import characterize, probes
from kernelcast.collectors.memory_levels import MemoryLevel, NoMemoryLevelsError, memory_levels
from kernelcast.collectors.replay import ReplayCollector
from kernelcast.datasets.schema import Measurement
from kernelcast.features.kernel import KernelSpec

CACHES = {"l1": 48 * 2**10, "l2": 2**20, "l3": 32 * 2**20}
LAUNCH_S = 2e-6
LAUNCH = KernelSpec.of("elementwise", "fp32", variant="addu", impl="torch", threads=1, rows=1, cols=1)


def recorded(rate: float, better: float) -> ReplayCollector:
    """Every probe's first case at `rate` work per second beside dispatch, its second at `better`."""
    rows = [Measurement(LAUNCH, "cpu", "ok", "", latency_s=LAUNCH_S)]
    for probe in probes(CACHES, 2):
        for spec, reached in zip(probe.cases, (rate, better), strict=True):
            rows.append(Measurement(spec, "cpu", "ok", "", latency_s=LAUNCH_S + probe.work(spec) / reached))
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
