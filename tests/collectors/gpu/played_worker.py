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

from fake_gpu import FakeGpu
from kernelcast.collectors.gpu.measure.bench import GpuBench
from kernelcast.collectors.gpu.measure.worker import GpuWorkerOptions, serve
from kernelcast.collectors.meters.protocol import Energy, NoMeter
from kernelcast.collectors.runner import GpuRunner, Launch, gpu_runners
from kernelcast.features.cost.bounds import lower_bound_s
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.process import die_with_parent, private_stdout

broken: list[str] = []


class PlayedTensor:
    """A tensor that nothing is computed from: whatever is done with it gives it back."""

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: self


class PlayedTorch:
    """As much of torch as operands are made with; importing the real one takes longer than a whole campaign here."""

    float32, float64, float16, bfloat16, int8, float8_e4m3fn = "fp32", "fp64", "fp16", "bf16", "int8", "fp8"

    def Generator(self, device: str) -> PlayedTensor:  # noqa: N802  torch's name
        return PlayedTensor()

    def empty(self, shape: Any, dtype: Any, device: str) -> PlayedTensor:
        return PlayedTensor()

    zeros = empty


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
        time.sleep(600)
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
    gpu.torch = PlayedTorch()
    runners = dict.fromkeys(gpu_runners(), GpuRunner("quick", (), launch_quickly, dict))
    runners["played"] = GpuRunner("played", ("played",), launch, dict)
    meter = PlayedMeter() if options.energy and sensor == "played" else NoMeter()
    bench = GpuBench(options.device, gpu, runners, meter=meter)
    facts = {"gpu": "played", "compute_units": 132, "energy_source": meter.name,
             "energy_source_reason": "no sensor was asked for"}  # fmt: skip
    serve(bench, facts, lambda: broken[0] if broken else None, sys.stdin, replies)


if __name__ == "__main__":
    main()
