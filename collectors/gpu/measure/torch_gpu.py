"""The real device through torch: graphs and events of CUDA, ROCm or XPU, on one stream of the measuring process's own.

torch for ROCm calls its GPUs `cuda` and has the same functions. torch for XPU (Intel) has most of them under `torch.xpu`, but
no spacer, and graphs only in newer releases. What differs is in `ACCELERATORS`.

Also what every child process that uses torch on a GPU does first.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Protocol

from ....process import JsonChild, die_with_parent, private_stdout, python_command, send
from ...meters.protocol import GpuIdentity
from ...runner import UnsupportedCaseError, first_line
from .operands import TORCH_DTYPES

Call = Callable[[], Any]
"""Enqueues a kernel."""

_entered: list[Any] = []
"""The inference mode entered, kept alive: a guard that is garbage collected ends its mode at once."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """How torch runs the GPUs of one maker.

    Attributes:
        library: What torch is built with, by its name in `torch.version`.
        vendor: The maker, as device files write it.
        type: torch's word for such a device, and its module.
        graph: Name of the class of graphs there.
        capture: Arguments with which a capture begins.
        units: Name of the property that counts compute units as data sheets do.
        cache: Name of the property with the bytes of the last cache that torch knows of.
    """

    library: str
    vendor: str
    type: str
    graph: str
    capture: Mapping[str, str]
    units: str
    cache: str


_OWN_THREAD = MappingProxyType({"capture_error_mode": "thread_local"})

ACCELERATORS = (
    Accelerator("cuda", "nvidia", "cuda", "CUDAGraph", _OWN_THREAD, "multi_processor_count", "L2_cache_size"),
    Accelerator("hip", "amd", "cuda", "CUDAGraph", _OWN_THREAD, "multi_processor_count", "L2_cache_size"),
    # An Xe core is a subslice; `max_compute_units` counts its vector engines, eight or sixteen of them.
    Accelerator("xpu", "intel", "xpu", "XPUGraph", MappingProxyType({}), "gpu_subslice_count", "last_level_cache_size"),
)
"""The builds of torch that are measured with."""

CUDA = ACCELERATORS[0]


def need_gpu(torch: Any) -> Accelerator:
    """How this torch runs GPUs; ends this process with one sentence where it sees none."""
    for accelerator in ACCELERATORS:
        if getattr(torch.version, accelerator.library, None) and getattr(torch, accelerator.type).is_available():
            return accelerator
    sys.exit(
        f"torch {torch.__version__} sees no GPU; install the build for its maker (CUDA for NVIDIA, ROCm for AMD, XPU for "
        "Intel: pytorch.org/get-started), and check that nvidia-smi, amd-smi or xpu-smi runs"
    )


def need_cuda(torch: Any) -> None:
    """End this process with one sentence where torch sees no CUDA device."""
    if not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device; install a CUDA build of torch and check nvidia-smi")


def enter_inference(torch: Any) -> None:
    """Turn inference mode on for the life of the process: around every call it would cost more than a short kernel."""
    guard = torch.inference_mode()
    guard.__enter__()
    _entered.append(guard)


_AMD_FP8 = MappingProxyType({
    "gfx942": "float8_e4m3fnuz", "gfx950": "float8_e4m3fn", "gfx1200": "float8_e4m3fn", "gfx1201": "float8_e4m3fn",
})  # fmt: skip
"""The e4m3 format that an AMD GPU's matrix units multiply (ROCm documentation, "Data types and precision support")."""


def formats_of(accelerator: Accelerator, properties: Any) -> Mapping[str, str]:
    """Torch's name of every number format that it can measure on a GPU; another in its place would be another kernel.

    On AMD and Intel torch multiplies tf32 operands in fp32 without a word, and no Intel GPU has fp8 matrix units.
    """
    formats = dict(TORCH_DTYPES)
    if accelerator is CUDA:
        return formats
    del formats["tf32"], formats["fp8"]
    if (fp8 := _AMD_FP8.get(architecture_of(accelerator, properties) or "")) is not None:
        formats["fp8"] = fp8
    if not getattr(properties, "has_fp64", True):
        del formats["fp64"]
    return formats


def architecture_of(accelerator: Accelerator, properties: Any) -> str | None:
    """As device files write it: `9.0` of NVIDIA, `gfx942` of AMD; None of Intel."""
    if accelerator.library == "hip":
        # Flags of its memory follow: gfx942:sramecc+:xnack-
        return str(properties.gcnArchName).split(":")[0]
    return f"{properties.major}.{properties.minor}" if accelerator is CUDA else None


_AHEAD = 3
"""Replays enqueued ahead in a steady loop: the host may be late by one of them without the device falling idle."""

SPACER_CYCLES = 60_000
"""Clock cycles the device waits ahead of a hot replay, some 30 µs at 2 GHz: several times what launching a graph takes."""

MOST_FLUSHES = 1024
"""Most flushes ahead of calls without a graph: a tenth of a second of work, in which the host enqueues thousands of calls."""


class TorchGraph:
    """A captured graph with events around its replay; `before` is enqueued ahead of them."""

    def __init__(self, api: Any, graph: Any, before: Call | None, keep: list[Any]) -> None:
        self._api, self._graph, self._before = api, graph, before
        self._start, self._end = (api.Event(enable_timing=True) for _ in range(2))
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
        elif hasattr(self._api, "_sleep"):
            self._api._sleep(SPACER_CYCLES)
        else:
            # torch.xpu has no such spacer; another replay touches what is in the cache anyway.
            self._graph.replay()
        self._start.record()
        self._graph.replay()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e-3

    def launch(self) -> None:
        """Enqueue one replay; does not wait."""
        self._graph.replay()


class CallQueue(TorchGraph):
    """Calls enqueued one by one, where torch has no graphs: device time too, as long as all are in the queue before the first
    event fires. So as many flushes go ahead as that takes, and the event is asked whether they were enough.
    """

    def __init__(self, api: Any, calls: Sequence[Call], flush: Call, *, cold: bool) -> None:
        super().__init__(api, None, flush, [])
        self._calls, self._flush, self._cold, self._flushes = calls, flush, cold, 1

    def replay_s(self) -> float:
        """Seconds the GPU takes for the calls; waits for them.

        Raises:
            UnsupportedCaseError: the host enqueues too slowly for the GPU never to wait for it.
        """
        while self._flushes <= MOST_FLUSHES:
            for _ in range(self._flushes):
                self._flush()
            if not self._cold:
                self._calls[0]()  # brings back what the flushes drove out of the cache
            self._start.record()
            self.launch()
            self._end.record()
            is_late = self._start.query()
            self._end.synchronize()
            if not is_late:
                return float(self._start.elapsed_time(self._end)) * 1e-3
            self._flushes *= 2
        raise UnsupportedCaseError(
            f"the host does not enqueue {len(self._calls)} calls while the GPU flushes its cache {MOST_FLUSHES} times, and "
            "this torch has no graphs for it; install torch 2.13 or newer"
        )

    def launch(self) -> None:
        """Enqueue the calls once; does not wait."""
        self._keep.clear()
        for call in self._calls:
            output = call()
            if self._cold:
                self._keep.append(output)


class TorchGpu:
    """A GPU through torch. Everything runs on one side stream, since the default stream cannot be captured.

    `l3_b` is the size of a cache behind the one that torch tells of, such as AMD's Infinity Cache.
    """

    def __init__(self, torch: Any, index: int = 0, accelerator: Accelerator = CUDA, l3_b: float = 0.0) -> None:
        self.torch, self.index, self.accelerator = torch, index, accelerator
        self._api = getattr(torch, accelerator.type)
        self._api.set_device(index)
        self._api.set_stream(self._api.Stream())
        properties = self._api.get_device_properties(index)
        if not hasattr(properties, accelerator.cache):
            sys.exit(
                f"torch {torch.__version__} does not tell the size of this GPU's cache; install torch 2.13 or newer"
            )
        self.cache_b = max(l3_b, float(getattr(properties, accelerator.cache)))
        self.memory_b = float(properties.total_memory)
        self.formats = formats_of(accelerator, properties)
        self.has_graphs = hasattr(self._api, accelerator.graph)
        self.broken_reason: str | None = None
        self._flushed = torch.empty(int(2 * self.cache_b), dtype=torch.uint8, device=accelerator.type)
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
        self._api.current_stream().synchronize()
        began = self.now_s()
        call()
        self._api.current_stream().synchronize()
        return self.now_s() - began

    def graph(self, calls: Sequence[Call], before: Call | None = None) -> TorchGraph:
        """Capture `calls` in order.

        `torch.cuda.graph` would also empty the allocator's cache, tens of milliseconds for every case; capturing by hand
        does not.

        Raises:
            RuntimeError: a call cannot be captured, or the capture cannot be ended, which `broken` says from then on.
        """
        if not self.has_graphs:
            return CallQueue(self._api, calls, self.flush, cold=before is not None)
        captured = getattr(self._api, self.accelerator.graph)()
        self._api.current_stream().synchronize()
        outputs: list[Any] = []
        captured.capture_begin(**self.accelerator.capture)
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
        return TorchGraph(self._api, captured, before, outputs)

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
            self._api.synchronize()
        except RuntimeError as error:
            return f"the device context is lost: {first_line(error)}"
        return None

    def steady(self, graph: TorchGraph, calls: int) -> GraphLoop:
        """A loop over a graph of `calls` calls, for energy."""
        return GraphLoop(self._api, graph, calls)

    def release(self) -> None:
        """Give memory back once much of it is held, between cases."""
        free, total = self._api.mem_get_info()
        if free < total / 2:
            self._api.empty_cache()


class Launched(Protocol):
    """Calls that are enqueued together: a graph's, say."""

    def launch(self) -> None:
        """Enqueue them once; does not wait."""
        ...


class GraphLoop:
    """A graph replayed without a pause, a few replays ahead of the device: a `SteadyLoop`."""

    def __init__(self, api: Any, graph: Launched, calls: int) -> None:
        self._api, self._graph, self._calls = api, graph, calls
        self._ends: deque[Any] = deque()
        self._completed = 0

    def turn(self) -> int:
        """Keep the device busy for about one replay; calls completed so far."""
        while len(self._ends) < _AHEAD:
            self._graph.launch()
            end = self._api.Event()
            end.record()
            self._ends.append(end)
        self._ends.popleft().synchronize()
        self._completed += self._calls
        # After a slow look at a sensor more than one has ended.
        while self._ends and self._ends[0].query():
            self._ends.popleft()
            self._completed += self._calls
        return self._completed


def identity_by_torch(index: int) -> GpuIdentity:
    """What torch calls GPU `index`, asked in a process of its own: this one starts no GPU.

    Raises:
        ChildStartError: torch sees no GPU, or not so many.
    """
    child = JsonChild("GPU", python_command("kernelcast.collectors.gpu.measure.torch_gpu", str(index)), {})
    try:
        child.start()
        return GpuIdentity(**child.ready)
    finally:
        child.close()


def main(argv: list[str]) -> None:
    """Say what GPU `argv[1]` is."""
    die_with_parent()
    replies = private_stdout()
    import torch

    send(replies, {"ready": asdict(identity(torch, int(argv[1])))})


def identity(torch: Any, index: int) -> GpuIdentity:
    """What torch calls a GPU."""
    accelerator = need_gpu(torch)
    properties = getattr(torch, accelerator.type).get_device_properties(index)
    units = getattr(properties, accelerator.units)
    return GpuIdentity(properties.name, architecture_of(accelerator, properties), units)


if __name__ == "__main__":
    main(sys.argv)
