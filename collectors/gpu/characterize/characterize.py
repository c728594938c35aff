"""What a GPU can do, measured in about a minute: peaks, the bandwidth and latency ladder, launch floors, power.

A child process measures and sends every fact as soon as it is known; the parent imports no GPU library. A child that hangs or
crashes costs the fact it was at: another goes on with the rest. The cases are in `probes`, the same for every GPU.

Lines between the two are JSON objects. The parent sends `{"probes": [names]}`; the child sends `{"ready": {...}}` once,
`{"at": name}` and `{"fact": name, "value": ..., "note": ...}` for every probe, and `{"done": true}`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from ....process import (
    ChildLostError,
    ChildStartError,
    JsonChild,
    die_with_parent,
    private_stdout,
    python_command,
    send,
)
from ...host import measured_fact
from ..measure.worker import POISONED, GpuWorkerOptions, open_bench
from .micro_kernels import ProbeBench, device_attributes
from .probes import PROBES, Probe, reason

SILENCE_S = 60.0
"""Longest any one probe may take: the energy ones settle and read for some ten seconds, compiling takes a few."""

LIMIT_S = 300.0
"""Longest the whole may take; what is not measured by then is left."""

MOST_LOST = 4
"""Children lost before what is left is given up."""

Facts = dict[str, dict[str, Any]]
"""Flat names to `{"value": number or None, "source": when and by what, or why not}`, SI units."""


@dataclass(frozen=True, slots=True)
class Characterised:
    """What characterising gave.

    Attributes:
        facts: The facts by name.
        device: What the device says of itself (name, attributes, versions).
    """

    facts: Facts
    device: Mapping[str, Any]


def probe_child(index: int) -> JsonChild:
    """The child for GPU `index`."""
    return JsonChild("GPU", python_command("kernelcast.collectors.gpu.characterize.characterize", str(index)), {})


def characterize(
    names: Sequence[str] | None = None,
    *,
    index: int = 0,
    child: JsonChild | None = None,
    silence_s: float = SILENCE_S,
    limit_s: float = LIMIT_S,
    progress: Callable[[str, int, int], None] | None = None,
) -> Characterised:
    """Measure GPU `index`; nothing is stored.

    Args:
        names: facts wanted, in order; default: all of `probe_table.PROBES`.
        index: which GPU, as CUDA counts.
        child: what measures; default: a process of its own.
        silence_s: longest for one fact.
        limit_s: longest for all.
        progress: called with the fact being measured, facts done, facts in all.

    Raises:
        ChildStartError: no child starts; torch or its CUDA device is missing, say.
    """
    names = [probe.name for probe in PROBES] if names is None else names
    child = probe_child(index) if child is None else child
    facts: Facts = {}
    device: dict[str, Any] = {}
    lost, until_s = 0, time.monotonic() + limit_s
    try:
        while left := [name for name in names if name not in facts]:
            if lost == MOST_LOST or time.monotonic() >= until_s:
                why = f"given up after {lost} lost processes" if lost == MOST_LOST else f"the {limit_s:g} s are over"
                facts |= missing_facts(left, why)
                break
            try:
                child.start()
            except ChildStartError as error:
                if not facts:
                    raise
                facts |= missing_facts(left, str(error))
                break
            device = device or dict(child.ready)
            lost += _until_lost(child, left, facts, silence_s, until_s, progress)
    finally:
        child.close()
    return Characterised({name: facts[name] for name in names}, device)


def _until_lost(
    child: JsonChild, left: Sequence[str], facts: Facts, silence_s: float, until_s: float,
    progress: Callable[[str, int, int], None] | None,
) -> int:  # fmt: skip
    """Fill `facts` with `left`; 1 when the child was lost on the way, and then the fact it was at is None there."""
    done, at = len(facts), left[0]
    try:
        child.write({"probes": list(left)})
        while "done" not in (message := child.read(max(0.0, min(silence_s, until_s - time.monotonic())))):
            if "at" in message:
                at = message["at"]
                if progress is not None:
                    progress(at, len(facts), len(left) + done)
            else:
                facts[message["fact"]] = measured_fact(message["value"], message["note"])
        return 0
    except ChildLostError as lost:
        is_over = lost.kind == "timeout" and time.monotonic() >= until_s
        why = "the time for all facts was over" if is_over else f"the worker {lost}"
    # A child that saw its context break sent the guilty fact itself, and then ended.
    facts |= missing_facts([at] if at not in facts else [], why)
    return 1


def missing_facts(names: Iterable[str], why: str) -> Facts:
    """Facts that could not be measured, and why."""
    return {name: measured_fact(None, why) for name in names}


def main(argv: list[str]) -> None:
    """Characterise the GPU whose number is `argv[1]`, until the parent closes the pipe."""
    die_with_parent()
    replies = private_stdout()
    bench, facts, broken = open_probe_bench(int(argv[1]))
    serve(bench, PROBES, facts, broken, sys.stdin, replies)


def serve(
    bench: ProbeBench, probes: Sequence[Probe], facts: Mapping[str, Any], broken: Callable[[], str | None],
    requests: IO[str], replies: IO[bytes],
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

    from ...meters.find import find_gpu_meter
    from ..measure.torch_gpu import CUDA, need_gpu

    if (accelerator := need_gpu(torch)) is not CUDA:
        sys.exit(
            f"characterising runs micro-kernels in CUDA, and this GPU is {accelerator.vendor}'s: give a device file written by "
            "hand with --device-file (docs/devices.md), or --cpu for this machine's CPU"
        )
    bench, facts, broken = open_bench(GpuWorkerOptions(device="", index=index))
    meter, _ = find_gpu_meter(index, calibrate=False, uuid=f"GPU-{torch.cuda.get_device_properties(index).uuid}")
    return ProbeBench(bench, meter, index), {**facts, "attributes": device_attributes(index)}, broken


if __name__ == "__main__":
    main(sys.argv)
