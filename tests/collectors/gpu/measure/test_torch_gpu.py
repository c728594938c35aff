"""The real device's code over a torch that is played: what is enqueued, in which order, and what an error leaves behind."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from kernelcast.collectors.gpu.measure.torch_gpu import SPACER_CYCLES, TorchGpu


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
