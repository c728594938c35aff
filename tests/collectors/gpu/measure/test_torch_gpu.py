"""The real device's code over a torch that is played: what is enqueued, in which order, and what an error leaves behind."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from kernelcast.collectors.gpu.measure.operands import TORCH_DTYPES
from kernelcast.collectors.gpu.measure.torch_gpu import (
    ACCELERATORS,
    CUDA,
    MOST_FLUSHES,
    SPACER_CYCLES,
    TorchGpu,
    formats_of,
    identity,
    need_gpu,
)
from kernelcast.collectors.meters.protocol import GpuIdentity
from kernelcast.collectors.runner import UnsupportedCaseError


class Output:
    """What a call writes."""


class PlayedCuda:
    """`torch.cuda` as far as `TorchGpu` uses it: a log of what is enqueued, and errors where a test puts them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.capture_end_error: str | None = None
        self.synchronize_error: str | None = None
        self.free_b, self.total_b = 100, 150
        self.late = 0
        self.stream = SimpleNamespace(synchronize=lambda: self.log.append("sync"))
        cuda = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.enable_timing = enable_timing

            def record(self) -> None:
                cuda.log.append("event")

            def synchronize(self) -> None:
                cuda.log.append("wait")

            def query(self) -> bool:
                cuda.late -= 1
                return cuda.late >= 0

            def elapsed_time(self, other: Event) -> float:
                assert self.enable_timing
                assert other.enable_timing
                return 2.5

        class CUDAGraph:  # torch's name
            def capture_begin(self, capture_error_mode: str) -> None:
                assert capture_error_mode == "thread_local"
                cuda.log.append("begin")

            def capture_end(self) -> None:
                cuda.log.append("end")
                if cuda.capture_end_error:
                    raise RuntimeError(cuda.capture_end_error)

            def replay(self) -> None:
                cuda.log.append("replay")

        self.Event, self.CUDAGraph = Event, CUDAGraph

    def _sleep(self, cycles: int) -> None:
        self.log.append(f"sleep {cycles}")

    def set_device(self, index: int) -> None:
        self.index = index

    def Stream(self) -> Any:  # noqa: N802  torch's name
        return self.stream

    def set_stream(self, stream: Any) -> None:
        self.current = stream

    def current_stream(self) -> Any:
        return self.current

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(L2_cache_size=60, total_memory=150)

    def synchronize(self) -> None:
        if self.synchronize_error:
            raise RuntimeError(self.synchronize_error)

    def mem_get_info(self) -> tuple[int, int]:
        return self.free_b, self.total_b

    def empty_cache(self) -> None:
        self.log.append("empty_cache")


@pytest.fixture
def cuda() -> PlayedCuda:
    return PlayedCuda()


@pytest.fixture
def gpu(cuda: PlayedCuda) -> TorchGpu:
    flushed = SimpleNamespace(fill_=lambda value: cuda.log.append("flush"))
    opened = TorchGpu(SimpleNamespace(cuda=cuda, uint8="uint8", empty=lambda size, dtype, device: flushed))
    cuda.log.clear()
    return opened


def test_the_device_says_its_cache_and_memory(gpu: TorchGpu) -> None:
    assert (gpu.cache_b, gpu.memory_b) == (60.0, 150.0)
    assert gpu.broken() is None


def test_calls_are_captured_in_order_and_replayed_behind_a_spacer(gpu: TorchGpu, cuda: PlayedCuda) -> None:
    graph = gpu.graph([lambda: cuda.log.append("a"), lambda: cuda.log.append("b")])
    assert cuda.log == ["sync", "begin", "a", "b", "end"]
    cuda.log.clear()
    assert graph.replay_s() == 2.5e-3
    assert cuda.log == [f"sleep {SPACER_CYCLES}", "event", "replay", "event", "wait"]


def test_a_flush_stands_outside_the_events_and_needs_no_spacer(gpu: TorchGpu, cuda: PlayedCuda) -> None:
    graph = gpu.graph([lambda: None], gpu.flush)
    cuda.log.clear()
    graph.replay_s()
    assert cuda.log == ["flush", "event", "replay", "event", "wait"]


@pytest.mark.parametrize("cold", [True, False])
def test_outputs_of_cold_calls_live_as_long_as_their_graph(gpu: TorchGpu, cold: bool) -> None:
    written: list[weakref.ref[Output]] = []

    def call() -> Output:
        output = Output()
        written.append(weakref.ref(output))
        return output

    graph = gpu.graph([call] * 3, gpu.flush if cold else None)
    assert [output() is not None for output in written] == [cold] * 3
    del graph
    assert all(output() is None for output in written)


def failing() -> None:
    raise ValueError("not while capturing")


def test_an_error_in_a_call_ends_the_capture_and_the_device_goes_on(gpu: TorchGpu, cuda: PlayedCuda) -> None:
    with pytest.raises(ValueError, match="not while capturing"):
        gpu.graph([failing])
    assert cuda.log[-1] == "end"
    assert gpu.broken() is None


@pytest.mark.parametrize("call", [failing, lambda: None])
def test_a_capture_that_does_not_end_breaks_the_process_for_good(gpu: TorchGpu, cuda: PlayedCuda, call: Any) -> None:
    cuda.capture_end_error = "CUDA error: operation failed due to a previous error during capture\nmore"
    with pytest.raises((ValueError, RuntimeError)) as raised:
        gpu.graph([call])
    # What the call raised says more than what its capture came to.
    assert isinstance(raised.value, ValueError) == (call is failing)
    cuda.capture_end_error = None
    why = str(gpu.broken())
    assert "a graph capture could not be ended: RuntimeError: CUDA error: operation failed" in why
    assert "more" not in why


def test_a_lost_context_is_found_by_waiting_for_the_device(gpu: TorchGpu, cuda: PlayedCuda) -> None:
    cuda.synchronize_error = "CUDA error: an illegal memory access was encountered\nmore"
    assert (
        gpu.broken() == "the device context is lost: RuntimeError: CUDA error: an illegal memory access was encountered"
    )


def test_a_steady_loop_counts_every_replay_that_has_ended(gpu: TorchGpu, cuda: PlayedCuda) -> None:
    loop = gpu.steady(gpu.graph([lambda: None] * 10), 10)
    cuda.log.clear()
    assert loop.turn() == 10
    assert cuda.log.count("replay") == 3
    # After a late look at a sensor both others have ended too, and three new ones are enqueued.
    cuda.late = 2
    assert loop.turn() == 40
    assert loop.turn() == 50
    assert cuda.log.count("replay") == 3 + 1 + 3


def test_memory_is_given_back_once_half_of_it_is_running(gpu: TorchGpu, cuda: PlayedCuda) -> None:
    gpu.release()
    assert "empty_cache" not in cuda.log
    cuda.free_b = 70
    gpu.release()
    assert cuda.log[-1] == "empty_cache"


def test_a_call_is_timed_from_an_idle_device_to_its_end(gpu: TorchGpu, cuda: PlayedCuda) -> None:
    gpu.call_s(lambda: cuda.log.append("call"))
    assert cuda.log == ["sync", "call", "sync"]


_, ROCM, XPU = ACCELERATORS


class PlayedXpu(PlayedCuda):
    """`torch.xpu`: no spacer; `graphs` says whether it has graphs, whose captures take no arguments."""

    _sleep = property()  # as if it were not there

    def __init__(self, graphs: bool) -> None:
        super().__init__()
        if graphs:

            class XPUGraph(self.CUDAGraph):  # type: ignore[misc,name-defined]  # torch's name
                def capture_begin(self) -> None:
                    super().capture_begin("thread_local")

            self.XPUGraph = XPUGraph

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(last_level_cache_size=60, total_memory=150, gpu_subslice_count=20, name="Intel Arc")


def xpu_gpu(graphs: bool) -> tuple[TorchGpu, PlayedXpu]:
    xpu = PlayedXpu(graphs)
    flushed = SimpleNamespace(fill_=lambda value: xpu.log.append("flush"))
    torch = SimpleNamespace(xpu=xpu, uint8="uint8", empty=lambda size, dtype, device: flushed)
    gpu = TorchGpu(torch, accelerator=XPU)
    xpu.log.clear()
    return gpu, xpu


def test_without_a_spacer_another_replay_goes_ahead() -> None:
    gpu, xpu = xpu_gpu(graphs=True)
    graph = gpu.graph([lambda: xpu.log.append("a")])
    assert xpu.log == ["sync", "begin", "a", "end"]
    xpu.log.clear()
    assert graph.replay_s() == 2.5e-3
    assert xpu.log == ["replay", "event", "replay", "event", "wait"]


def test_without_graphs_calls_are_enqueued_behind_flushes_and_the_cache_is_warm_again() -> None:
    gpu, xpu = xpu_gpu(graphs=False)
    queue = gpu.graph([lambda: xpu.log.append("a"), lambda: xpu.log.append("b")])
    assert queue.replay_s() == 2.5e-3
    assert xpu.log == ["flush", "a", "event", "a", "b", "event", "wait"]
    xpu.log.clear()
    cold = gpu.graph([lambda: xpu.log.append("a"), lambda: xpu.log.append("b")], gpu.flush)
    cold.replay_s()
    assert xpu.log == ["flush", "event", "a", "b", "event", "wait"]


def test_calls_that_the_device_waited_for_are_timed_again_behind_more_flushes() -> None:
    gpu, xpu = xpu_gpu(graphs=False)
    queue = gpu.graph([lambda: xpu.log.append("a")])
    # The first event had fired twice before everything was enqueued.
    xpu.late = 2
    queue.replay_s()
    assert xpu.log.count("flush") == 1 + 2 + 4
    xpu.late, xpu.log = 0, []
    queue.replay_s()
    assert xpu.log.count("flush") == 4
    xpu.late = 100
    with pytest.raises(UnsupportedCaseError, match=f"flushes its cache {MOST_FLUSHES} times.*install torch 2.13"):
        queue.replay_s()


def test_a_steady_loop_runs_without_graphs_too() -> None:
    gpu, xpu = xpu_gpu(graphs=False)
    loop = gpu.steady(gpu.graph([lambda: xpu.log.append("a")] * 2), 2)
    assert loop.turn() == 2
    assert xpu.log.count("a") == 6


def test_a_cache_behind_the_one_torch_knows_is_flushed_too(cuda: PlayedCuda) -> None:
    sizes: list[int] = []
    torch = SimpleNamespace(cuda=cuda, uint8="uint8", empty=lambda size, dtype, device: sizes.append(size))
    assert TorchGpu(torch, l3_b=1000.0).cache_b == 1000.0
    assert sizes == [2000]


def test_a_torch_that_tells_no_cache_size_is_refused() -> None:
    xpu = PlayedXpu(graphs=False)
    xpu.get_device_properties = lambda index: SimpleNamespace(total_memory=150)  # type: ignore[method-assign]
    with pytest.raises(SystemExit, match=r"torch 2\.6 does not tell the size of this GPU's cache; install torch 2\.13"):
        TorchGpu(SimpleNamespace(xpu=xpu, __version__="2.6"), accelerator=XPU)


def played(library: str | None, properties: Any = None) -> Any:
    there = SimpleNamespace(is_available=lambda: library is not None, get_device_properties=lambda index: properties)
    version = {"cuda": None, "hip": None, "xpu": None} | ({library: "1"} if library else {})
    return SimpleNamespace(version=SimpleNamespace(**version), cuda=there, xpu=there, __version__="2.13.0")


def test_the_build_of_torch_says_whose_gpus_it_runs() -> None:
    assert [need_gpu(played(accelerator.library)) for accelerator in ACCELERATORS] == list(ACCELERATORS)
    with pytest.raises(SystemExit, match=r"torch 2\.13\.0 sees no GPU; install the build .*NVIDIA.*AMD.*Intel"):
        need_gpu(played(None))


@pytest.mark.parametrize(
    ("library", "properties", "said"),
    [
        ("hip", {"name": "AMD Instinct MI300X", "gcnArchName": "gfx942:sramecc+", "multi_processor_count": 304},
         GpuIdentity("AMD Instinct MI300X", "gfx942", 304)),
        ("xpu", {"name": "Intel(R) Arc(TM) B580 Graphics", "gpu_subslice_count": 20},
         GpuIdentity("Intel(R) Arc(TM) B580 Graphics", None, 20)),
        ("cuda", {"name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132},
         GpuIdentity("NVIDIA H200", "9.0", 132)),
    ],
)  # fmt: skip
def test_torch_says_what_a_gpu_is(library: str, properties: dict[str, Any], said: GpuIdentity) -> None:
    assert identity(played(library, SimpleNamespace(**properties)), 0) == said


@pytest.mark.parametrize(
    ("architecture", "fp8"),
    [("gfx942:sramecc+:xnack-", "float8_e4m3fnuz"), ("gfx950", "float8_e4m3fn"), ("gfx1201", "float8_e4m3fn"),
     ("gfx90a", None), ("gfx1100", None)],
)  # fmt: skip
def test_an_amd_gpu_has_the_fp8_format_of_its_architecture_or_none(architecture: str, fp8: str | None) -> None:
    formats = formats_of(ROCM, SimpleNamespace(gcnArchName=architecture))
    assert formats.get("fp8") == fp8
    assert "tf32" not in formats
    assert {"fp64", "bf16", "int8"} < set(formats)


def test_an_intel_gpu_has_no_fp8_and_perhaps_no_fp64() -> None:
    assert set(TORCH_DTYPES) - set(formats_of(XPU, SimpleNamespace(has_fp64=False))) == {"fp64", "tf32", "fp8"}
    assert set(TORCH_DTYPES) - set(formats_of(XPU, SimpleNamespace(has_fp64=True))) == {"tf32", "fp8"}
    assert formats_of(CUDA, SimpleNamespace()) == TORCH_DTYPES
