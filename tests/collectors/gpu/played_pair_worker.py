"""The worker of pairs without a GPU: the real protocol over streams that are played, where neighbours take 1.5 times as long.

What a kernel of impl `played` does is its number of rows, as in `played_worker.py`; 6 is one of long calls. Those of the real
impls take as long as there. Started as `python played_pair_worker.py OPTIONS`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import played_worker
from kernelcast.collectors.gpu.measure.pair_worker import serve
from kernelcast.collectors.runner import GpuRunner, Launch, gpu_runners
from kernelcast.features.kernel import KernelSpec
from kernelcast.process import die_with_parent, private_stdout
from played_streams import StreamGpu


def launch(spec: KernelSpec, operands: tuple[Any, ...]) -> Launch:
    if spec["rows"] == 6:
        return Launch(lambda: 0.02)
    seconds = 1e-6 * spec["cols"]
    played_worker.launch(spec, operands)
    return Launch(lambda: seconds)


def main() -> None:
    die_with_parent()
    replies = private_stdout()
    runners = dict.fromkeys(gpu_runners(), GpuRunner("quick", (), played_worker.launch_quickly, dict))
    runners["played"] = GpuRunner("played", ("played",), launch, dict)
    broken = played_worker.broken
    gpu: Any = StreamGpu(1.5)
    serve(gpu, runners, {"gpu": "played"}, lambda: broken[0] if broken else None, sys.stdin, replies)


if __name__ == "__main__":
    main()
