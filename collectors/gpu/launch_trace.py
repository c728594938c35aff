"""Tracing a model's launches on this machine's GPU: drives the child that profiles and reads its traces."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...datasets.traces import KernelLaunch, LaunchSummary
from ..environment import utc_now
from ..pipe import ChildProcess
from .characterize import Facts, ProbeChild, measured_fact
from .launches import LaunchTraceError, launch_facts, passes, typical, with_bounds

BATCHES = tuple(2**power for power in range(9))
"""Batch sizes traced: 1 to 256."""

SILENCE_S = 60.0
FACT_NAMES = ("tklqt_batch1_s", "launch_mean_s", "queue_mean_s", "cpu_to_gpu_bound_batch")


@dataclass(frozen=True, slots=True)
class Traced:
    """Launches of one pass per batch, their totals, why other batches have none, and what the device says of itself."""

    launches: Sequence[KernelLaunch]
    summaries: Sequence[LaunchSummary]
    failed: Mapping[int, str]
    facts: Mapping[str, Any]


def trace_child(index: int) -> ChildProcess:
    """The child for GPU `index`; -P keeps the working directory's folders from shadowing packages."""
    return ChildProcess("GPU", [sys.executable, "-P", "-m", "kernelcast.collectors.gpu.launch_worker", str(index)], {})


def trace_launches(
    device: str = "",
    batches: Sequence[int] = BATCHES,
    *,
    index: int = 0,
    child: ProbeChild | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    silence_s: float = SILENCE_S,
) -> Traced:
    """Trace passes of a small transformer over batch sizes; half a minute.

    Raises:
        WorkerStartError: no child starts; torch or its CUDA device is missing, say.
        LaunchTraceError: no batch has a trace with launches; the message says why.
    """
    child = trace_child(index) if child is None else child
    launches: list[KernelLaunch] = []
    summaries: list[LaunchSummary] = []
    failed: dict[int, str] = {}
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        try:
            child.start()
            child.write({"batches": list(batches), "folder": folder})
            for message in _messages(child, silence_s, failed, batches[0]):
                if "at" in message and progress is not None:
                    progress(f"batch {message['at']}", len(summaries) + len(failed), len(batches))
                elif "failed" in message:
                    failed[message["batch"]] = message["failed"]
                elif "trace" in message:
                    batch = int(message["batch"])
                    try:
                        one, summary = typical(passes(json.loads(Path(message["trace"]).read_text()), device, batch))
                    except LaunchTraceError as error:
                        failed[batch] = str(error)
                        continue
                    launches += one
                    summaries.append(summary)
        finally:
            child.close()
    if not summaries:
        raise LaunchTraceError("; ".join(dict.fromkeys(failed.values())) or "nothing was traced")
    facts = {**child.ready, "utc": utc_now(), "failed": {str(batch): why for batch, why in failed.items()}}
    return Traced(launches, with_bounds(summaries), failed, facts)


def traced_facts(traced: Traced) -> Facts:
    """The facts for a device file, each with its source."""
    note = f"GPT-2-like blocks, batch {traced.summaries[0].batch} to {traced.summaries[-1].batch}, under torch.profiler"
    never = f"the host limits at every batch up to {traced.summaries[-1].batch}"
    return {name: measured_fact(value, never if value is None else note)
            for name, value in launch_facts(traced.summaries).items()}  # fmt: skip


def missing_facts(why: str) -> Facts:
    """The same facts where nothing could be traced."""
    return {name: measured_fact(None, why) for name in FACT_NAMES}


def _messages(child: ProbeChild, silence_s: float, failed: dict[int, str], first: int) -> Any:
    """The child's messages until it is done; a batch at which it is lost is put into `failed`, and ends them."""
    at = first
    try:
        while "done" not in (message := child.read(silence_s)):
            at = message.get("at", at)
            yield message
    except TimeoutError:
        failed[at] = f"no sign of life for {silence_s:g} s"
    except (EOFError, BrokenPipeError):
        failed[at] = child.last_words()
