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
from ..child import die_with_parent, private_stdout
from ..meters.board import EnergyRule
from ..meters.none import NoMeter
from ..meters.protocol import EnergyMeter
from ..runner import UnsupportedCaseError
from .bench import GpuBench
from .runner import GpuRunner

_inference: list[Any] = []
"""The inference mode entered by `open_bench`, kept alive for the life of the process."""

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
    _send(replies, {"ready": dict(facts)})
    for line in requests:
        request = json.loads(line)
        for given in request["specs"]:
            spec = spec_of(given)
            _send(replies, {"at": spec.case_id})
            row = bench.measure(spec, int(request.get("energy", {}).get(spec.case_id, 0)))
            reason = None if row.status == "ok" else broken()
            if reason is not None:
                row = replace(row, status="crashed", message=row.message or reason)
            _send(replies, {"row": to_row(row)})
            if reason is not None:
                # Tearing down a broken context may hang; nothing here is worth waiting for.
                replies.flush()
                os._exit(POISONED)
        _send(replies, {"rows": []})


def open_bench(options: GpuWorkerOptions) -> tuple[GpuBench, dict[str, Any], Callable[[], str | None]]:
    """The bench on a real CUDA device, what to record about it, and what tells whether its context is broken."""
    import torch

    from ..meters.find import find_gpu_meter
    from .cuda import CudaGpu
    from .nvml import gpu_state, open_nvml
    from .runner import gpu_runners

    if not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device; install a CUDA build of torch and check nvidia-smi")
    # Entered for good: around every call it would cost more than a short kernel.
    _inference.append(torch.inference_mode())
    _inference[0].__enter__()
    gpu = CudaGpu(torch, options.index)
    reader = open_nvml(options.index)
    meter: EnergyMeter
    meter, why = NoMeter(), "energy was not asked for"
    if options.energy:
        meter, why = find_gpu_meter(options.index, rule=EnergyRule(options.settle_s, options.window_s))
    properties = torch.cuda.get_device_properties(options.index)
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

    def broken() -> str | None:
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            return f"the device context is lost: {str(error).splitlines()[0]}"
        return None

    return bench, facts, broken


def _versions(runners: Iterable[GpuRunner]) -> dict[str, dict[str, str] | str]:
    """What would run, by runner; a library that is not there says so, and its cases become `unsupported` rows."""
    found: dict[str, dict[str, str] | str] = {}
    for runner in runners:
        try:
            found[runner.name] = dict(runner.versions())
        except (ImportError, UnsupportedCaseError) as error:
            found[runner.name] = f"not available: {error}"
    return found


def _send(replies: IO[str], message: Mapping[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


if __name__ == "__main__":
    main(sys.argv)
