"""One case from spec to row, with a device and runners that are played."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kernelcast.collectors.gpu.measure.bench import (
    MAX_ENERGY_CALLS,
    Clocks,
    GpuBench,
    expected_attention,
)
from kernelcast.collectors.meters.protocol import Energy, EnergyRefusedError
from kernelcast.collectors.runner import GpuRunner, Launch, UnsupportedCaseError, status_of
from kernelcast.features.kernel import KernelSpec

torch = pytest.importorskip("torch")

HOT = KernelSpec.of("copy", "fp32", impl="played", rows=64, cols=64)
COLD = KernelSpec.of("copy", "fp32", impl="played", rows=64, cols=64, cache_state="cold")


class CpuTorch(SimpleNamespace):
    """torch with its generators and tensors on the CPU, whatever device is named."""

    def __init__(self) -> None:
        super().__init__(**{name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64", "int8",
                                                                   "float8_e4m3fn")})  # fmt: skip

    def Generator(self, device: str) -> Any:  # noqa: N802  torch's name
        return torch.Generator()

    def empty(self, shape: Any, dtype: Any, device: str) -> Any:
        return torch.empty(shape, dtype=dtype)


def bench_of(fake_gpu: Any, launch: Any, **more: Any) -> GpuBench:
    gpu = fake_gpu()
    gpu.torch = CpuTorch()
    runner = GpuRunner("played", ("played",), launch, dict)
    return GpuBench("a-gpu", gpu, {"played": runner}, clocks=Clocks(pause=gpu.pause), **more)


def taking(seconds: float):
    return lambda spec, operands: Launch(lambda: seconds)


def test_row_holds_what_was_measured_and_the_state_under_load(fake_gpu) -> None:
    state = {"sm_clock_hz": 1.9e9, "temperature_c": 41.0, "power_limit_w": 700.0, "throttle": ["power_cap"]}
    row = bench_of(fake_gpu, taking(2e-5), state=lambda: state).measure(HOT)
    assert (row.status, row.device, row.energy_j, row.power_w) == ("ok", "a-gpu", None, None)
    assert row.latency_s == pytest.approx(2e-5)
    assert row.latency_min_s <= row.latency_q1_s <= row.latency_s <= row.latency_q3_s
    assert (row.sm_clock_hz, row.temperature_c, row.power_limit_w, row.throttle) == (1.9e9, 41.0, 700.0, "power_cap")
    assert row.converged


def test_cold_calls_run_on_operands_of_their_own(fake_gpu) -> None:
    seen: list[int] = []

    def launch(spec: KernelSpec, operands: tuple[Any, ...]) -> Launch:
        seen.append(operands[0].data_ptr())
        return Launch(lambda: 1e-5 * len(operands))

    bench = bench_of(fake_gpu, launch)
    row = bench.measure(COLD)
    assert row.status == "ok"
    assert len(set(seen)) == len(seen) == max(bench.gpu.captured)
    assert bench.gpu.flushes == bench.gpu.replays


def test_a_second_attempt_uses_the_operands_of_the_first_and_holds_no_graph_of_it(fake_gpu) -> None:
    seen: list[int] = []

    def launch(spec: KernelSpec, operands: tuple[Any, ...]) -> Launch:
        seen.append(operands[0].data_ptr())
        return Launch(lambda: 1e-5 * len(operands))

    states = iter([{"throttle": ["thermal"]}, {"throttle": []}])
    bench = bench_of(fake_gpu, launch, state=lambda: next(states))
    row = bench.measure(COLD)
    assert (row.status, row.rejected_samples > 0) == ("ok", True)
    assert len(bench.gpu.captured) == 4
    assert len(set(seen)) == len(seen) == max(bench.gpu.captured)
    assert bench.gpu.alive == [0, 1, 0, 1]


def test_a_cold_graph_has_no_more_calls_than_memory_has_sets_for(fake_gpu) -> None:
    bench = bench_of(fake_gpu, taking(1e-5))
    bench.gpu.memory_b = 8 * 20 * (2 * 4 * 64 * 64)
    row = bench.measure(COLD)
    assert row.status == "ok"
    assert max(bench.gpu.captured) == 20


def test_hot_calls_share_operands(fake_gpu) -> None:
    seen: list[int] = []

    def launch(spec: KernelSpec, operands: tuple[Any, ...]) -> Launch:
        seen.append(operands[0].data_ptr())
        return Launch(lambda: 1e-5)

    bench = bench_of(fake_gpu, launch)
    bench.measure(HOT)
    assert len(seen) == 1
    assert bench.gpu.flushes == 0


def test_a_wrong_result_is_a_failed_row(fake_gpu) -> None:
    right, wrong = torch.ones(4), torch.tensor([1.0, 1.0, 1.0, 1.5])
    launch = lambda spec, operands: Launch(lambda: wrong, expected=lambda: right, tolerance=0.01)  # noqa: E731
    row = bench_of(fake_gpu, launch).measure(HOT)
    assert row.status == "failed"
    assert row.latency_s is None
    assert "0.25 off the reference" in str(row.message)


@pytest.mark.parametrize(("kv_len", "compared"), [(4096, True), (8192, True), (8320, False)])
def test_attention_with_a_mask_is_compared_only_while_its_scores_fit(kv_len: int, compared: bool) -> None:
    tiles = {"tile_m": 16, "tile_n": 16, "warps": 4, "stages": 2}
    sizes = {"batch": 1, "heads": 2, "kv_heads": 2, "q_len": 4096, "head_dim": 64, "window": 0}
    spec = KernelSpec.of("attention", "bf16", impl="triton", config=tiles, kv_len=kv_len, **sizes)  # type: ignore[arg-type]
    assert (expected_attention(spec, None, None, None) is not None) == compared


def lacking_memory() -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 41 GiB")


def test_a_reference_without_memory_leaves_the_row_unchecked_and_says_so(fake_gpu) -> None:
    # The result of a call is a tensor where it is checked, a time where it is measured.
    results = iter([1e-5, torch.ones(4)])
    row = bench_of(
        fake_gpu, lambda spec, operands: Launch(lambda: next(results, 1e-5), expected=lacking_memory)
    ).measure(HOT)
    assert row.status == "ok"
    assert row.latency_s == pytest.approx(1e-5)
    assert str(row.message).startswith("result not checked, the reference needs too much memory")


def test_what_else_a_reference_raises_is_a_failed_row(fake_gpu) -> None:
    def reference() -> Any:
        raise RuntimeError("a reference that is wrong")

    launch = lambda spec, operands: Launch(lambda: torch.ones(4), expected=reference)  # noqa: E731
    assert bench_of(fake_gpu, launch).measure(HOT).status == "failed"


def test_a_kernel_without_memory_is_not_taken_for_its_reference(fake_gpu) -> None:
    calls = iter([lambda: 1e-5])
    launch = lambda spec, operands: Launch(lambda: next(calls, lacking_memory)(), expected=lambda: torch.ones(4))  # noqa: E731
    assert bench_of(fake_gpu, launch).measure(HOT).status == "out_of_memory"


def test_nan_is_a_wrong_result(fake_gpu) -> None:
    launch = lambda spec, operands: Launch(lambda: torch.full((4,), torch.nan), expected=lambda: torch.ones(4))  # noqa: E731
    assert bench_of(fake_gpu, launch).measure(HOT).status == "failed"


@pytest.mark.parametrize("words", [["thermal"], ["brake", "power_cap"]])
def test_thermal_and_brake_slowdown_are_measured_again_and_then_given_up(fake_gpu, words: list[str]) -> None:
    looks: list[int] = []

    def state() -> dict[str, Any]:
        looks.append(1)
        return {"throttle": words}

    row = bench_of(fake_gpu, taking(1e-5), state=state).measure(HOT)
    assert row.status == "failed"
    assert words[0] in str(row.message)
    assert len(looks) == 2


def test_a_slowdown_that_passes_costs_only_time(fake_gpu) -> None:
    states = iter([{"throttle": ["thermal"]}, {"throttle": []}])
    row = bench_of(fake_gpu, taking(1e-5), state=lambda: next(states)).measure(HOT)
    assert (row.status, row.throttle) == ("ok", "")


def test_a_clock_left_low_by_another_case_is_waited_for(fake_gpu) -> None:
    clocks = iter([1.98e9, 1.38e9, 1.98e9])
    bench = bench_of(fake_gpu, taking(1e-5), state=lambda: {"sm_clock_hz": next(clocks), "throttle": []})
    bench.measure(HOT)
    row = bench.measure(HOT)
    assert row.sm_clock_hz == 1.98e9
    assert row.rejected_samples > 0
    assert bench.gpu.paused_s == pytest.approx(0.2)


def test_a_clock_that_the_case_itself_pulls_down_is_part_of_its_time(fake_gpu) -> None:
    clocks = iter([1.98e9, 1.4e9, 1.4e9])
    bench = bench_of(fake_gpu, taking(1e-5), state=lambda: {"sm_clock_hz": next(clocks), "throttle": ["power_cap"]})
    bench.measure(HOT)
    row = bench.measure(HOT)
    assert (row.status, row.sm_clock_hz, row.throttle) == ("ok", 1.4e9, "power_cap")


class PlayedMeter:
    name = "played"

    def __init__(self, gives: Energy | Exception | None) -> None:
        self.gives, self.loops = gives, []

    def measure(self, loop: Any, *, windows: int = 1) -> Energy | None:
        self.loops.append((loop, windows))
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives


def test_energy_is_measured_only_where_asked_and_hot(fake_gpu) -> None:
    meter = PlayedMeter(Energy(energy_j=4e-3, power_w=400.0, window_s=3.0, calls=1000, windows=3, spread=0.01,
                               idle_power_w=80.0, net_energy_j=3e-3, power_integrated_w=398.0))  # fmt: skip
    bench = bench_of(fake_gpu, taking(1e-5), meter=meter)
    assert bench.measure(HOT).energy_j is None
    assert bench.measure(COLD, 1).energy_j is None
    row = bench.measure(HOT, 3)
    assert (row.energy_j, row.power_w, row.energy_source, row.energy_windows) == (4e-3, 400.0, "played", 3)
    assert (row.net_energy_j, row.idle_power_w, row.power_integrated_w) == (3e-3, 80.0, 398.0)
    assert row.energy_mode == "steady_loop"
    (_, _, calls), windows = meter.loops[0]
    assert calls == pytest.approx(10e-3 / 1e-5, rel=0.01)
    assert windows == 3


def test_graphs_for_energy_of_the_shortest_calls_are_bounded(fake_gpu) -> None:
    meter = PlayedMeter(None)
    bench_of(fake_gpu, taking(0.8e-6), meter=meter).measure(HOT, 1)
    (_, graph, calls), _ = meter.loops[0]
    assert len(graph.calls) == calls == MAX_ENERGY_CALLS


def test_a_refused_reading_costs_energy_not_latency(fake_gpu) -> None:
    meter = PlayedMeter(EnergyRefusedError("the counter went backwards"))
    row = bench_of(fake_gpu, taking(1e-5), meter=meter).measure(HOT, 1)
    assert (row.status, row.energy_j, row.energy_source) == ("ok", None, None)
    assert row.message == "no energy: the counter went backwards"


def raising(error: Exception):
    def launch(spec: KernelSpec, operands: tuple[Any, ...]) -> Launch:
        raise error

    return launch


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnsupportedCaseError("no"), "unsupported"),
        (NotImplementedError("no"), "unsupported"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 200 GiB"), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (RuntimeError("CUDA error: an illegal memory access was encountered\nmore"), "failed"),
    ],
)
def test_what_a_library_raises_becomes_a_row(fake_gpu, error: Exception, status: str) -> None:
    bench = bench_of(fake_gpu, raising(error))
    row = bench.measure(HOT)
    assert row.status == status == status_of(error)
    assert row.latency_s is None
    assert "more" not in str(row.message)
    assert bench.gpu.released == 1


def test_a_lost_context_does_not_take_the_row_with_it(fake_gpu) -> None:
    bench = bench_of(fake_gpu, raising(RuntimeError("CUDA error: an illegal memory access was encountered")))

    def release() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    bench.gpu.release = release
    row = bench.measure(HOT)
    assert (row.status, row.spec) == ("failed", HOT)
    assert "illegal memory access" in str(row.message)


def test_an_impl_without_a_runner_says_which_there_are(fake_gpu) -> None:
    spec = KernelSpec.of("copy", "fp32", impl="elsewhere", rows=8, cols=8)
    row = bench_of(fake_gpu, taking(1e-5)).measure(spec)
    assert row.status == "unsupported"
    assert "played" in str(row.message)


def test_first_call_is_timed_apart_from_everything_later(fake_gpu) -> None:
    took = iter([0.7, *[1e-5] * 10_000])
    launch = lambda spec, operands: Launch(lambda: next(took))  # noqa: E731

    row = bench_of(fake_gpu, launch).measure(HOT)
    assert row.first_call_s == pytest.approx(0.7)
    assert row.latency_s == pytest.approx(1e-5)


def test_the_time_of_a_call_is_not_measured(fake_gpu) -> None:
    row = bench_of(fake_gpu, taking(1e-5)).measure(replace(HOT, timing="call"))
    assert row.status == "unsupported"
    assert row.message is not None
    assert "times of calls are not measured" in row.message
