"""The child process that measures on a GPU: the only one that touches it, driven by JSON lines over its pipes.

    parent -> child   {"specs": [...], "energy": {case_id: windows}}
    child  -> parent  {"ready": {...}}  once;  {"at": case_id}, {"row": {...}}  for every case;  {"rows": []}  at the end

A fault on the device (an illegal address, say) leaves a process's context unusable: the case's row is sent, and the
process ends, for the parent to start another.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import IO, Any

from ...datasets.schema import spec_of, to_row
from ...datasets.store import FINAL_STATUSES
from ..child import die_with_parent, private_stdout, send
from ..meters.board import EnergyRule
from ..meters.none import NoMeter
from ..meters.protocol import EnergyMeter
from ..runner import UnsupportedCaseError
from .bench import GpuBench
from .cuda_start import enter_inference, need_cuda
from .runner import GpuRunner

POISONED = 70
"""Exit status of a worker whose device context is lost (EX_SOFTWARE of sysexits.h)."""


@dataclass(frozen=True, slots=True)
class GpuWorkerOptions:
    """How a GPU worker runs: the name its rows carry, which GPU, whether it will be asked for energy, and how long it then
    settles and measures, in seconds.
    """

    device: str
    index: int = 0
    energy: bool = False
    settle_s: float = 2.0
    window_s: float = 3.0

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> GpuWorkerOptions:
        """The options `to_json` wrote."""
        return cls(**json.loads(text))


def main(argv: list[str]) -> None:
    """Serve the GPU that the options in `argv[1]` name, until the parent closes the pipe."""
    die_with_parent()
    replies = private_stdout()
    bench, facts, broken = open_bench(GpuWorkerOptions.from_json(argv[1]))
    serve(bench, facts, broken, sys.stdin, replies)


def serve(
    bench: GpuBench, facts: Mapping[str, Any], broken: Callable[[], str | None], requests: IO[str], replies: IO[str]
) -> None:
    """Measure what `requests` asks for, a row as soon as it is known.

    `broken` says why the device context can no longer be used, None while it can; it is asked after every row that is
    not ok.
    """
    send(replies, {"ready": dict(facts)})
    for line in requests:
        request = json.loads(line)
        for given in request["specs"]:
            spec = spec_of(given)
            send(replies, {"at": spec.case_id})
            row = bench.measure(spec, int(request.get("energy", {}).get(spec.case_id, 0)))
            reason = None if row.status == "ok" else broken()
            if reason is not None:
                # What cannot run stays so; anything else may have been the broken context's doing, and is tried again.
                status = row.status if row.status in FINAL_STATUSES else "crashed"
                row = replace(row, status=status, message=row.message or reason)
            send(replies, {"row": to_row(row)})
            if reason is not None:
                # Tearing down a broken context may hang; nothing here is worth waiting for.
                replies.flush()
                os._exit(POISONED)
        send(replies, {"rows": []})


def open_bench(options: GpuWorkerOptions) -> tuple[GpuBench, dict[str, Any], Callable[[], str | None]]:
    """The bench on a real CUDA device, what to record about it, and what tells whether its context is broken."""
    import torch

    from ..meters.find import find_gpu_meter
    from .cuda import CudaGpu
    from .nvml import gpu_state, open_nvml
    from .runner import gpu_runners

    need_cuda(torch)
    enter_inference(torch)
    gpu = CudaGpu(torch, options.index)
    properties = torch.cuda.get_device_properties(options.index)
    # NVML counts boards by their place on the bus, CUDA by default by their speed: the name of the very board joins them.
    uuid = f"GPU-{properties.uuid}"
    reader = open_nvml(options.index, uuid=uuid)
    meter: EnergyMeter
    meter, why = NoMeter(), "energy was not asked for"
    if options.energy:
        meter, why = find_gpu_meter(options.index, rule=EnergyRule(options.settle_s, options.window_s), uuid=uuid)
    facts = {
        "gpu": properties.name, "compute_capability": f"{properties.major}.{properties.minor}",
        "compute_units": properties.multi_processor_count, "l2_b": properties.L2_cache_size,
        "versions": _versions(gpu_runners().values()),
        "energy_source": meter.name, "energy_source_reason": why,
        # Both as the board showed them before the first case: what it draws doing nothing, how often its counter steps.
        "idle_power_w": getattr(meter, "idle_power_w", None), "sensor_period_s": getattr(meter, "period_s", None),
        "settle_s": options.settle_s, "window_s": options.window_s,
    }  # fmt: skip
    bench = GpuBench(
        options.device, gpu, gpu_runners(), state=lambda: {} if reader is None else gpu_state(reader), meter=meter
    )
    return bench, facts, gpu.broken


def _versions(runners: Iterable[GpuRunner]) -> dict[str, dict[str, str] | str]:
    """What would run, by runner; a library that is not there says so, and its cases become `unsupported` rows."""
    found: dict[str, dict[str, str] | str] = {}
    for runner in runners:
        try:
            found[runner.name] = dict(runner.versions())
        except (ImportError, UnsupportedCaseError) as error:
            found[runner.name] = f"not available: {error}"
    return found


if __name__ == "__main__":
    main(sys.argv)
