"""The real device: CUDA graphs and events through torch, on one stream of the measuring process's own.

Also what every child process that uses torch on a GPU does first, and what the CUDA driver says of a GPU, read through ctypes.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...runner import first_line

Call = Callable[[], Any]
"""Enqueues a kernel."""

_entered: list[Any] = []
"""The inference mode entered, kept alive: a guard that is garbage collected ends its mode at once."""


def need_cuda(torch: Any) -> None:
    """End this process with one sentence where torch sees no CUDA device."""
    if not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device; install a CUDA build of torch and check nvidia-smi")


def enter_inference(torch: Any) -> None:
    """Turn inference mode on for the life of the process: around every call it would cost more than a short kernel."""
    guard = torch.inference_mode()
    guard.__enter__()
    _entered.append(guard)


_AHEAD = 3
"""Replays enqueued ahead in a steady loop: the host may be late by one of them without the device falling idle."""

SPACER_CYCLES = 60_000
"""Clock cycles the device waits ahead of a hot replay, some 30 µs at 2 GHz: several times what launching a graph takes."""


class CudaGraph:
    """A captured graph with events around its replay."""

    def __init__(self, torch: Any, graph: Any, before: Call | None, keep: list[Any]) -> None:
        self._torch, self._graph, self._before = torch, graph, before
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # Outputs of cold calls: alive, so that each call writes to memory of its own.
        self._keep = keep

    def replay_s(self) -> float:
        """Seconds the GPU takes for one replay; waits for it.

        On an idle stream the first event would fire at once, and the GPU then wait 5-10 µs for the host to launch the graph:
        up to 0.5 % of a sample, several percent of a probe. So the GPU is kept busy until the launch is there, by what
        comes `before` (a flush takes long enough) or by a spacer that touches no memory.
        """
        if self._before is not None:
            self._before()
        else:
            self._torch.cuda._sleep(SPACER_CYCLES)
        self._start.record()
        self._graph.replay()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e-3

    def launch(self) -> None:
        """Enqueue one replay; does not wait."""
        self._graph.replay()


class CudaGpu:
    """A CUDA device through torch. Everything runs on one side stream, since the default stream cannot be captured."""

    def __init__(self, torch: Any, index: int = 0) -> None:
        self.torch, self.index = torch, index
        torch.cuda.set_device(index)
        torch.cuda.set_stream(torch.cuda.Stream())
        properties = torch.cuda.get_device_properties(index)
        self.cache_b = float(properties.L2_cache_size)
        self.memory_b = float(properties.total_memory)
        self.broken_reason: str | None = None
        self._flushed = torch.empty(int(2 * self.cache_b), dtype=torch.uint8, device="cuda")
        self._flushes = 0

    def now_s(self) -> float:
        """Monotonic wall time."""
        return time.monotonic()

    def flush(self) -> None:
        """Empty the last-level cache: write twice its size."""
        self._flushes = (self._flushes + 1) % 255
        self._flushed.fill_(self._flushes)

    def call_s(self, call: Call) -> float:
        """Wall seconds from enqueuing one call to its end."""
        self.torch.cuda.current_stream().synchronize()
        began = self.now_s()
        call()
        self.torch.cuda.current_stream().synchronize()
        return self.now_s() - began

    def graph(self, calls: Sequence[Call], before: Call | None = None) -> CudaGraph:
        """Capture `calls` in order.

        `torch.cuda.graph` would also empty the allocator's cache, tens of milliseconds for every case; capturing by hand
        does not.

        Raises:
            RuntimeError: a call cannot be captured, or CUDA cannot end the capture, which `broken` says from then on.
        """
        captured = self.torch.cuda.CUDAGraph()
        self.torch.cuda.current_stream().synchronize()
        outputs: list[Any] = []
        captured.capture_begin(capture_error_mode="thread_local")
        try:
            for call in calls:
                result = call()
                if before is not None:
                    outputs.append(result)
        except BaseException:
            # The capture must end before anything else can run; that it is invalid is already being reported.
            with contextlib.suppress(RuntimeError):
                self._end(captured)
            raise
        self._end(captured)
        return CudaGraph(self.torch, captured, before, outputs)

    def _end(self, captured: Any) -> None:
        try:
            captured.capture_end()
        except RuntimeError as error:
            # torch 2.11 raises before its allocator hears that the capture is over; from then on giving memory back fails
            # with an internal assertion, and only another process is rid of that.
            self.broken_reason = f"a graph capture could not be ended: {first_line(error)}"
            raise

    def broken(self) -> str | None:
        """Why this process can no longer measure on the device, None while it can; waits for the device."""
        if self.broken_reason is not None:
            return self.broken_reason
        try:
            self.torch.cuda.synchronize()
        except RuntimeError as error:
            return f"the device context is lost: {first_line(error)}"
        return None

    def steady(self, graph: CudaGraph, calls: int) -> GraphLoop:
        """A loop over a graph of `calls` calls, for energy."""
        return GraphLoop(self.torch, graph, calls)

    def release(self) -> None:
        """Give memory back once much of it is held, between cases."""
        free, total = self.torch.cuda.mem_get_info()
        if free < total / 2:
            self.torch.cuda.empty_cache()


class GraphLoop:
    """A graph replayed without a pause, a few replays ahead of the device: a `SteadyLoop`."""

    def __init__(self, torch: Any, graph: CudaGraph, calls: int) -> None:
        self._torch, self._graph, self._calls = torch, graph, calls
        self._ends: deque[Any] = deque()
        self._completed = 0

    def turn(self) -> int:
        """Keep the device busy for about one replay; calls completed so far."""
        while len(self._ends) < _AHEAD:
            self._graph.launch()
            end = self._torch.cuda.Event()
            end.record()
            self._ends.append(end)
        self._ends.popleft().synchronize()
        self._completed += self._calls
        # After a slow look at a sensor more than one has ended.
        while self._ends and self._ends[0].query():
            self._ends.popleft()
            self._completed += self._calls
        return self._completed


_LIBRARY = "libcuda.so.1"


_ATTRIBUTES: Mapping[str, tuple[int, float]] = {
    "compute_units": (16, 1.0),
    "boost_clock_hz": (13, 1e3),
    "memory_clock_hz": (36, 1e3),
    "memory_bus_b": (37, 1 / 8),
    "l2_b": (38, 1.0),
    "shared_memory_per_unit_b": (81, 1.0),
    "registers_per_unit_b": (82, 4.0),
}
"""Number of a `CUdevice_attribute` in cuda.h, and what its value is multiplied by to be in SI units."""


def device_attributes(index: int = 0, load: Callable[[str], Any] = ctypes.CDLL) -> dict[str, float | None]:
    """Attributes of CUDA device `index` by name, in SI units; None for one the driver does not tell, empty without a driver.

    `memory_bus_b` is the width of the memory bus in bytes; memory moves that much twice per clock.
    """
    try:
        driver = load(_LIBRARY)
    except OSError:
        return {}
    device = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(device), index) != 0:
        return {}
    attributes: dict[str, float | None] = {}
    for name, (number, scale) in _ATTRIBUTES.items():
        value = ctypes.c_int()
        known = driver.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0 and value.value > 0
        attributes[name] = value.value * scale if known else None
    size = ctypes.c_size_t()
    attributes["memory_b"] = float(size.value) if driver.cuDeviceTotalMem_v2(ctypes.byref(size), device) == 0 else None
    return attributes
