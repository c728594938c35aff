"""A GPU described by a bench that plays one, and children that end in every way."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kernelcast.collectors.gpu.characterize.characterize import MOST_LOST, characterize, serve
from kernelcast.collectors.gpu.characterize.micro_kernels import (
    MICRO_SOURCE,
    Chain,
    SaturatingKernel,
    device_attributes,
)
from kernelcast.collectors.gpu.characterize.probes import (
    BANDWIDTH,
    LATENCY,
    LAUNCH,
    MATRIX,
    PROBES,
    SMALLEST,
    VECTOR,
    Latency,
    Power,
    ProbeError,
    Rate,
    SaturatedRate,
    SensorPeriod,
)
from kernelcast.collectors.gpu.runners.cupy import tile_of
from kernelcast.collectors.gpu.runners.triton import triton_binaries
from kernelcast.features.kernel import KernelSpec
from kernelcast.process import ChildStartError, JsonChild

SMALL, LARGE = (KernelSpec.of("gemm", "bf16", impl="torch", m=size, n=size, k=size) for size in (4096, 8192))
MATRIX_BF16 = Rate("matrix_bf16_torch_flops_per_s", SMALL, LARGE)


class OutOfMemoryError(Exception):
    """As torch's: no relation to MemoryError."""


@dataclass
class FakeMicro:
    """Throngs at `rate` work per second, chains at `chain` seconds and clocks per step."""

    rate: float = 1e12
    chain: tuple[float, float] = (2e-9, 4.0)
    query: list[Any] = field(default_factory=list)

    def chain_s(self, chain: Chain, steps: int) -> tuple[float, float]:
        self.query.append((chain.kernel, steps))
        seconds, clocks = self.chain
        return (seconds * (1.1 if steps == chain.steps else 1.0), clocks)

    def throng_s(self, saturating_kernel: SaturatingKernel, blocks: int, span_b: int) -> float:
        self.query.append((saturating_kernel.kernel, blocks, span_b))
        return saturating_kernel.work * saturating_kernel.steps * 256 * blocks / self.rate


@dataclass
class FakeBench:
    """Seconds by case; an exception in their place is raised."""

    seconds: Mapping[KernelSpec, float | Exception] = field(default_factory=dict)
    played: FakeMicro | Exception = field(default_factory=FakeMicro)
    power: Mapping[KernelSpec | None, float] = field(default_factory=dict)

    def graph_s(self, spec: KernelSpec) -> float:
        result = self.seconds.get(spec, 1e-3)
        if isinstance(result, Exception):
            raise result
        return result

    def host_s(self, spec: KernelSpec) -> float:
        return 5e-6

    def micro(self) -> FakeMicro:
        if isinstance(self.played, Exception):
            raise self.played
        return self.played

    def power_w(self, spec: KernelSpec | None) -> float:
        if spec not in self.power:
            raise ProbeError("no energy sensor: NVML is not there")
        return self.power[spec]

    def sensor_period_s(self) -> float:
        raise ProbeError("no energy sensor: NVML is not there")


def test_the_cases_are_fixed_and_every_peak_has_a_larger_one():
    names = [probe.name for probe in PROBES]
    assert len(names) == len(set(names))
    assert all(name.endswith(("_s", "_w", "_flops_per_s", "_b_per_s")) for name in names)
    for probe in (*MATRIX, *(item for item in BANDWIDTH if isinstance(item, Rate))):
        assert probe.work(probe.large) >= 2 * probe.work(probe.small), probe.name
    for probe in (*VECTOR, *(item for item in BANDWIDTH if isinstance(item, SaturatedRate))):
        assert probe.saturating_kernel.blocks[1] > probe.saturating_kernel.blocks[0], probe.name
        assert all(span & (span - 1) == 0 for span in probe.saturating_kernel.spans_b), probe.name
    dram = next(probe for probe in BANDWIDTH if probe.name == "bandwidth_dram_b_per_s")
    assert dram.work(dram.small) >= 2e9
    assert {f"launch_{where}_{label}_s" for where in ("graph", "host") for label in SMALLEST} == {
        p.name for p in LAUNCH
    }


def test_tiled_cases_have_configurations_their_kernels_take():
    for rate in (probe for probe in MATRIX if probe.small.impl == "triton"):
        assert triton_binaries(rate.small)
        assert triton_binaries(rate.large)
    assert triton_binaries(SMALLEST["triton_bf16"])
    assert tile_of(SMALLEST["cupy_fp32"]) == 16


def test_a_rate_is_work_over_time_of_the_better_size():
    reading = MATRIX_BF16.measure(FakeBench({SMALL: 2 * 4096**3 / 7e14, LARGE: 2 * 8192**3 / 7.1e14}))
    assert reading.value == pytest.approx(7.1e14)
    assert reading.note == str(LARGE)
    reading = MATRIX_BF16.measure(FakeBench({SMALL: 2 * 4096**3 / 7e14, LARGE: 2 * 8192**3 / 6e14}))
    assert reading.value == pytest.approx(7e14)
    assert reading.note == str(SMALL)


def test_a_larger_case_that_is_much_better_is_said():
    reading = MATRIX_BF16.measure(FakeBench({SMALL: 2 * 4096**3 / 6e14, LARGE: 2 * 8192**3 / 6.6e14}))
    assert reading.value == pytest.approx(6.6e14)
    assert reading.note.endswith("10% above the smaller case, so the peak may lie higher still")


def test_a_large_case_out_of_memory_leaves_the_small_one():
    bench = FakeBench({SMALL: 2 * 4096**3 / 7e14, LARGE: OutOfMemoryError("CUDA out of memory.\nTried to allocate")})
    reading = MATRIX_BF16.measure(bench)
    assert reading.value == pytest.approx(7e14)
    assert reading.note == f"{SMALL}; {LARGE} not run: OutOfMemoryError: CUDA out of memory."
    both = FakeBench({SMALL: ProbeError("unsupported: no fp8"), LARGE: ProbeError("unsupported: no fp8")})
    with pytest.raises(ProbeError, match=r"unsupported: no fp8; .* not run: unsupported"):
        MATRIX_BF16.measure(both)


def test_bytes_are_counted_where_a_rate_is_of_bytes():
    copy = next(probe for probe in BANDWIDTH if probe.name == "bandwidth_dram_b_per_s")
    assert copy.measure(FakeBench({copy.small: 1.0, copy.large: 1.0})).value == 2 * 2 * 2**30


def test_throngs_count_threads_and_steps():
    probe = SaturatedRate("vector_fp32_cupy_flops_per_s", SaturatingKernel("fma_fp32", 16.0, 1024))
    assert probe.work(16384) == 16384 * 256 * 1024 * 8 * 2
    assert probe.measure(FakeBench(played=FakeMicro(rate=6e13))).value == pytest.approx(6e13)


def test_a_latency_is_that_of_the_better_of_two_lengths_with_its_clocks():
    micro = FakeMicro()
    reading = Latency("latency_ffma_s", Chain("chain_ffma", 64)).measure(FakeBench(played=micro))
    assert micro.query == [("chain_ffma", 64), ("chain_ffma", 128)]
    assert reading.value == 2e-9
    assert reading.note == "chain_ffma, 4.0 clocks at 2000 MHz"
    with pytest.raises(ProbeError, match="did not advance"):
        Latency("latency_ffma_s", Chain("chain_ffma", 64)).measure(FakeBench(played=FakeMicro(chain=(0.0, 4.0))))


def served(bench: FakeBench, names: list[str], broken: Callable[[], str | None] = lambda: None) -> list[dict[str, Any]]:
    replies = io.BytesIO()
    serve(bench, PROBES, {"gpu": "fake"}, broken, io.StringIO(json.dumps({"probes": names})), replies)
    return [json.loads(line) for line in replies.getvalue().splitlines()]


def test_the_child_sends_every_fact_and_the_reason_of_one_it_has_not():
    names = ["matrix_bf16_torch_flops_per_s", "latency_l2_s", "power_idle_w", "sensor_period_s"]
    bench = FakeBench(played=ProbeError("micro-kernels need CuPy (No module named 'cupy'); install cupy-cuda13x"))
    ready, *messages = served(bench, names)
    assert ready == {"ready": {"gpu": "fake"}}
    assert [message["at"] for message in messages if "at" in message] == names
    facts = {message["fact"]: message for message in messages if "fact" in message}
    assert facts["matrix_bf16_torch_flops_per_s"]["value"] == pytest.approx(2 * 8192**3 / 1e-3)
    assert facts["latency_l2_s"]["value"] is None
    assert "micro-kernels need CuPy" in facts["latency_l2_s"]["note"]
    assert facts["power_idle_w"]["note"] == "no energy sensor: NVML is not there"
    assert messages[-1] == {"done": True}


def test_every_probe_of_the_table_runs_on_a_bench():
    compute, bandwidth = (probe.spec for probe in PROBES if isinstance(probe, Power) and probe.spec is not None)
    bench = FakeBench(power={None: 80.0, compute: 690.0, bandwidth: 450.0})
    messages = served(bench, [probe.name for probe in PROBES])
    without = {message["fact"] for message in messages if "fact" in message and message["value"] is None}
    assert without == {SensorPeriod().name}


CHILD = """
import json, os, sys, time
def send(**message):
    print(json.dumps(message), flush=True)
send(ready={"gpu": "fake", "attributes": {}})
for line in sys.stdin:
    for name in json.loads(line)["probes"]:
        send(at=name)
        if name.startswith("hangs"):
            time.sleep(600)
        if name.startswith("crashes"):
            print("Bus error", file=sys.stderr, flush=True)
            os._exit(7)
        if name.startswith("poisons"):
            send(fact=name, value=None, note="illegal address")
            os._exit(70)
        send(fact=name, value=2.5, note="fake")
    send(done=True)
"""


def child(code: str = CHILD) -> JsonChild:
    return JsonChild("GPU", [sys.executable, "-c", code], {})


def test_a_hang_and_a_crash_cost_one_fact_each():
    names = ["a_s", "hangs_s", "b_s", "crashes_s", "poisons_s", "c_s"]
    seen: list[tuple[str, int, int]] = []
    done = characterize(names, child=child(), silence_s=3.0, progress=lambda *step: seen.append(step))
    assert list(done.facts) == names
    assert done.device["gpu"] == "fake"
    assert [name for name, fact in done.facts.items() if fact["value"] == 2.5] == ["a_s", "b_s", "c_s"]
    assert done.facts["a_s"]["source"].startswith("measured 2")
    assert done.facts["a_s"]["source"].endswith(": fake")
    assert done.facts["hangs_s"] == {"value": None, "source": "not measured: the worker took longer than 3 s"}
    assert done.facts["crashes_s"]["source"] == "not measured: the worker ended with status 7: Bus error"
    assert done.facts["poisons_s"]["source"] == "not measured: illegal address"
    assert seen[-1] == ("c_s", 5, 6)


def test_a_machine_that_loses_every_child_is_given_up():
    names = [*(f"crashes_{i}_s" for i in range(MOST_LOST + 2)), "a_s"]
    facts = characterize(names, child=child()).facts
    assert facts[f"crashes_{MOST_LOST - 1}_s"]["source"].endswith("Bus error")
    assert facts["a_s"] == {"value": None, "source": f"not measured: given up after {MOST_LOST} lost processes"}


def test_facts_measured_before_the_time_is_over_are_kept():
    facts = characterize(["a_s", "hangs_s", "b_s"], child=child(), limit_s=5.0).facts
    assert facts["a_s"]["value"] == 2.5
    assert facts["hangs_s"]["source"] == "not measured: the time for all facts was over"
    assert facts["b_s"]["source"] == "not measured: the 5 s are over"


def test_a_child_that_does_not_start_is_an_error():
    with pytest.raises(ChildStartError, match="torch sees no CUDA device"):
        characterize(["a_s"], child=child("import sys; sys.exit('torch sees no CUDA device')"))


def test_the_driver_tells_attributes_in_si_units():
    values = {13: 1980000, 36: 3201000, 37: 6144, 16: 132, 38: 62914560}

    class Driver:
        def cuInit(self, flags: int) -> int:  # noqa: N802  the driver's name
            return 0

        def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
            return 0

        def cuDeviceGetAttribute(self, value: Any, number: int, device: Any) -> int:  # noqa: N802
            value._obj.value = values.get(number, 0)
            return 0 if number in values else 1

        def cuDeviceTotalMem_v2(self, size: Any, device: Any) -> int:  # noqa: N802
            size._obj.value = 150_000_000_000
            return 0

    result = device_attributes(0, lambda name: Driver())
    assert result["boost_clock_hz"] == 1.98e9
    assert 2 * result["memory_clock_hz"] * result["memory_bus_b"] == pytest.approx(4.917e12, rel=1e-3)
    assert result["shared_memory_per_unit_b"] is None
    assert result["memory_b"] == 1.5e11

    def missing(name: str) -> Any:
        raise OSError(name)

    assert device_attributes(0, missing) == {}


def test_every_micro_kernel_of_the_table_is_in_the_source():
    source = MICRO_SOURCE.read_text()
    for probe in (*VECTOR, *LATENCY, *(item for item in BANDWIDTH if isinstance(item, SaturatedRate))):
        kernel = probe.chain.kernel if isinstance(probe, Latency) else probe.saturating_kernel.kernel
        assert f"({kernel}," in source or f" {kernel}(" in source, kernel


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no CUDA compiler (nvcc)")
def test_the_source_compiles_for_hopper(tmp_path):
    made = subprocess.run(
        ["nvcc", "-std=c++17", "-arch=sm_90", "-cubin", "-Xptxas", "-v", "-o", "micro.cubin", MICRO_SOURCE],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "bytes spill stores" in made.stderr
    assert all("0 bytes spill stores" in line for line in made.stderr.splitlines() if "spill" in line)


@pytest.mark.parametrize("build", ["hip", "xpu"])
def test_a_gpu_that_runs_no_cuda_is_refused_in_one_sentence(build):
    played = Path(__file__).parents[1] / "played_build.py"
    script = (f"import sys; sys.path.insert(0, {str(played.parent)!r}); import played_build; sys.modules['torch'] = "
              f"played_build.played_torch({build!r}); from kernelcast.collectors.gpu.characterize import characterize as c; "
              "c.open_probe_bench(0)")  # fmt: skip
    with pytest.raises(
        ChildStartError, match=r"micro-kernels in CUDA, and this GPU is (amd|intel)'s: give a device file"
    ):
        characterize(["a_s"], child=child(script))
