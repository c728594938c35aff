"""A GPU worker process without a GPU: the real protocol and bench over a device that is played.

What a case of impl `played` does is its number of rows: 1 runs, 2 kills the process, 3 hangs, 4 breaks the device context, 5
needs too much memory. On a broken context even giving memory back fails. Cases of the real impls take four times their lower
bound on an H200, and draw 400 W.
Started as `python played_worker.py OPTIONS`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from conftest import FakeGpu
from kernelcast.collectors.child import die_with_parent, private_stdout
from kernelcast.collectors.gpu.bench import GpuBench
from kernelcast.collectors.gpu.runner import GpuRunner, Launch, gpu_runners
from kernelcast.collectors.gpu.worker import GpuWorkerOptions, serve
from kernelcast.collectors.meters.none import NoMeter
from kernelcast.collectors.meters.protocol import Energy
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.work import lower_bound_s
from test_bench import CpuTorch

broken: list[str] = []


class TinyTorch(CpuTorch):
    """Operands of one element, whatever is asked for: nothing is computed from them."""

    def empty(self, shape: Any, dtype: Any, device: str) -> Any:
        return super().empty([1], dtype, device)


class BreakableGpu(FakeGpu):
    def release(self) -> None:
        if broken:
            raise RuntimeError(f"CUDA error: {broken[0]}")
        super().release()


class PlayedMeter:
    name = "played"

    def measure(self, loop: Any, *, windows: int = 1) -> Energy:
        _, graph, _ = loop
        seconds = graph.calls[0]()
        return Energy(400.0 * seconds, 400.0, 1.0 * windows, windows / seconds, windows, 100.0, 300.0 * seconds)


def launch_quickly(spec: KernelSpec, operands: tuple[Any, ...]) -> Launch:
    seconds = 4 * lower_bound_s(spec, catalogue().get("h200"))
    return Launch(lambda: seconds)


def launch(spec: KernelSpec, operands: tuple[Any, ...]) -> Launch:
    rows = spec["rows"]
    if rows == 2:
        print("segmentation fault", file=sys.stderr, flush=True)
        os._exit(139)
    if rows == 3:
        time.sleep(60)
    if rows == 4:
        broken.append("an illegal memory access was encountered")
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if rows == 5:
        raise MemoryError
    return Launch(lambda: 1e-5)


def main(sensor: str = "played") -> None:
    die_with_parent()
    replies = private_stdout()
    options = GpuWorkerOptions.from_json(sys.argv[1])
    gpu = BreakableGpu()
    gpu.torch = TinyTorch()
    runners = dict.fromkeys(gpu_runners(), GpuRunner("quick", (), launch_quickly, dict))
    runners["played"] = GpuRunner("played", ("played",), launch, dict)
    meter = PlayedMeter() if options.energy and sensor == "played" else NoMeter()
    bench = GpuBench(options.device, gpu, runners, meter=meter)
    facts = {"gpu": "played", "compute_units": 132, "energy_source": meter.name,
             "energy_source_reason": "no sensor was asked for"}  # fmt: skip
    serve(bench, facts, lambda: broken[0] if broken else None, sys.stdin, replies)


if __name__ == "__main__":
    main()
