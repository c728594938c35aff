"""The child process that characterises a GPU: one fact per line as soon as it is measured, so that a crash loses one.

Lines are JSON objects. The parent asks `{"probes": [names]}`; the child sends `{"ready": {...}}` once, `{"at": name}` and
`{"fact": name, "value": ..., "note": ...}` for every probe, and `{"done": true}`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from ..child import die_with_parent, private_stdout, send
from .probe_table import PROBES
from .probes import Probe, ProbeBench, reason
from .worker import POISONED, GpuWorkerOptions, open_bench


def main(argv: list[str]) -> None:
    """Characterise the GPU whose number is `argv[1]`, until the parent closes the pipe."""
    die_with_parent()
    replies = private_stdout()
    bench, facts, broken = open_probe_bench(int(argv[1]))
    serve(bench, PROBES, facts, broken, sys.stdin, replies)


def serve(
    bench: ProbeBench, probes: Sequence[Probe], facts: Mapping[str, Any], broken: Callable[[], str | None],
    requests: IO[str], replies: IO[str],
) -> None:  # fmt: skip
    """Measure the probes that `requests` names. `broken` says why the device can no longer be used, None while it can."""
    by_name = {probe.name: probe for probe in probes}
    send(replies, {"ready": dict(facts)})
    for line in requests:
        for name in json.loads(line)["probes"]:
            send(replies, {"at": name})
            try:
                reading = by_name[name].measure(bench)
            except Exception as error:  # noqa: BLE001  whatever a library raises costs this fact alone
                lost = broken()
                send(replies, {"fact": name, "value": None, "note": reason(error)})
                if lost is not None:
                    # Tearing down a broken context may hang; nothing here is worth waiting for.
                    os._exit(POISONED)
            else:
                send(replies, {"fact": name, "value": reading.value, "note": reading.note})
        send(replies, {"done": True})


def open_probe_bench(index: int) -> tuple[ProbeBench, dict[str, Any], Callable[[], str | None]]:
    """The bench on a real GPU, what it says of itself, and what tells whether its context is broken."""
    import torch

    from ..meters.find import find_gpu_meter
    from .driver import device_attributes
    from .probe_bench import CudaProbeBench

    bench, facts, broken = open_bench(GpuWorkerOptions(device="", index=index))
    meter, _ = find_gpu_meter(index, calibrate=False, uuid=f"GPU-{torch.cuda.get_device_properties(index).uuid}")
    return CudaProbeBench(bench, meter, index), {**facts, "attributes": device_attributes(index)}, broken


if __name__ == "__main__":
    main(sys.argv)
