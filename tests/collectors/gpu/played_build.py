"""The real GPU worker over a torch for ROCm or XPU that is played: no tensor is computed, and every event is 2 ms apart.

Started as `python played_build.py hip|xpu|xpu-without-graphs OPTIONS`. ROCm has a double of AMD SMI beside it. What it says of
itself is in the forms of torch 2.13 and amdsmi 7.0.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from kernelcast.collectors.gpu.measure import worker
from kernelcast.collectors.meters import find

PROPERTIES = {
    "hip": {
        "name": "AMD Instinct MI300X", "gcnArchName": "gfx942:sramecc+:xnack-", "major": 9, "minor": 4,
        "multi_processor_count": 304, "L2_cache_size": 4 * 2**20, "total_memory": 192 * 2**30,
    },
    "xpu": {
        "name": "Intel(R) Arc(TM) B580 Graphics", "max_compute_units": 160, "gpu_eu_count": 160, "gpu_subslice_count": 20,
        "last_level_cache_size": 18 * 2**20, "total_memory": 12 * 2**30, "has_fp64": True,
    },
}  # fmt: skip


class Tensor:
    """Whatever is done with it gives it back."""

    device, dtype, is_cuda = "played", "played", False

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: self


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing

    def record(self) -> None:
        """Nothing is enqueued."""

    synchronize = record

    def query(self) -> bool:
        return False

    def elapsed_time(self, end: Event) -> float:
        return 2.0


class XpuGraph:
    def capture_begin(self) -> None:
        """Nothing is captured."""

    capture_end = replay = capture_begin


class CudaGraph(XpuGraph):
    def capture_begin(self, capture_error_mode: str) -> None:
        """Nothing is captured."""


def played_torch(library: str, *, graphs: bool = True) -> ModuleType:
    stream = SimpleNamespace(synchronize=lambda: None)
    api = SimpleNamespace(
        is_available=lambda: True, set_device=lambda index: None, Stream=lambda: stream, set_stream=lambda stream: None,
        current_stream=lambda: stream, synchronize=lambda: None, mem_get_info=lambda: (9, 10), Event=Event,
        get_device_properties=lambda index: SimpleNamespace(**PROPERTIES[library]),
    )  # fmt: skip
    if library == "hip":
        api.CUDAGraph, api._sleep = CudaGraph, lambda cycles: None
    elif graphs:
        api.XPUGraph = XpuGraph
    none = SimpleNamespace(is_available=lambda: False)
    torch: Any = ModuleType("torch")
    torch.__version__ = "2.13.0+played"
    torch.version = SimpleNamespace(**{"cuda": None, "hip": None, "xpu": None, library: "7.0"})
    torch.cuda, torch.xpu = (api, none) if library == "hip" else (none, api)
    cudnn = SimpleNamespace(version=lambda: 3005000 if library == "hip" else None, conv=None)
    torch.backends = SimpleNamespace(cudnn=cudnn, cuda=SimpleNamespace(matmul=None))
    torch.inference_mode = lambda: SimpleNamespace(__enter__=lambda: None)
    torch.OutOfMemoryError = MemoryError
    for dtype in (
        "float64",
        "float32",
        "bfloat16",
        "float16",
        "int8",
        "int64",
        "uint8",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
    ):
        setattr(torch, dtype, dtype)
    for function in ("empty", "zeros", "ones", "empty_like", "Generator"):
        setattr(torch, function, lambda *given, **named: Tensor())
    return torch


def played_amdsmi() -> ModuleType:
    amdsmi: Any = ModuleType("amdsmi")
    amdsmi.AmdSmiException = type("AmdSmiException", (Exception,), {})
    amdsmi.AmdSmiClkType = SimpleNamespace(GFX="gfx", MEM="mem")
    amdsmi.amdsmi_init = lambda: None
    amdsmi.amdsmi_get_processor_handles = lambda: ["gpu0"]
    amdsmi.amdsmi_get_clock_info = lambda handle, kind: {"clk": {"gfx": 2100, "mem": 1300}[kind]}
    amdsmi.amdsmi_get_power_cap_info = lambda handle: {"power_cap": 750_000_000}
    return amdsmi


def main(build: str) -> None:
    library, _, without = build.partition("-")
    sys.modules["torch"] = played_torch(library, graphs=not without)
    if library == "hip":
        sys.modules["amdsmi"] = played_amdsmi()
    find.torch_library = lambda: library  # type: ignore[assignment]
    worker.main(sys.argv[1:])


if __name__ == "__main__":
    main(sys.argv[1])
