"""How long kernels wait: launch and queue times out of a profiler's trace, and where a model stops waiting for the host.

    host   |--launch call--|
    GPU                       ...queue...  |== kernel ==|
           |<------------ launch + queue ->|

The total over the kernels of a pass is TKLQT, total kernel launch and queuing time, from the beginning of each launch call to
the beginning of its kernel (Vellaisamy et al., "Characterizing and Optimizing LLM Inference Workloads on CPU-GPU Coupled
Architectures", arXiv 2504.11750). While the host is what limits, kernels start as soon as they are launched and TKLQT does
not depend on the batch; once the GPU limits, kernels queue and TKLQT grows.

A trace is the Chrome trace JSON that torch.profiler exports: kernels and the runtime calls that launched them share a
correlation id.

`trace_launches` drives the child that profiles (`launch_worker.py`) and reads its traces.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ....datasets.records.launch_traces import KernelLaunch, LaunchSummary
from ....process import ChildLostError, JsonChild, python_command
from ...host import measured_fact, utc_now
from ..characterize.characterize import Facts

ANNOTATION = "kernelcast pass"
"""Name of the annotation around every traced pass."""

QUEUEING = 2.0
"""A batch is bound by the GPU when TKLQT is above this many times the least of any batch, for it and every larger one.

In the host-bound region TKLQT is flat to some tens of percent; past it, it grows with every kernel in the queue, so that
the batch found hardly depends on the factor."""

_US = 1e-6
_LAUNCHING = ("cuda_runtime", "cuda_driver")


class LaunchTraceError(Exception):
    """A trace says nothing of launches; the message says why."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A timed event of a trace, in seconds."""

    name: str
    start_s: float
    end_s: float
    thread: tuple[Any, Any]

    def holds(self, other: _Span) -> bool:
        """Whether `other` begins inside, on the same thread."""
        return self.thread == other.thread and self.start_s <= other.start_s <= self.end_s


def passes(trace: Mapping[str, Any], device: str, batch: int) -> list[tuple[list[KernelLaunch], int]]:
    """Launches of every annotated pass of a trace, in the order kernels ran, and how many kernels of it had no launch.

    Raises:
        LaunchTraceError: there are no kernels, or no annotated pass.
    """
    events = [event for event in trace.get("traceEvents", ()) if event.get("ph") == "X"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    if not kernels:
        raise LaunchTraceError(
            "the trace holds no kernels: the profiler cannot see this GPU (CUPTI is missing or refused)"
        )
    marked = sorted(_spans(events, ("user_annotation",), ANNOTATION), key=lambda span: span.start_s)
    if not marked:
        raise LaunchTraceError(f"the trace holds no pass annotated {ANNOTATION!r}")
    calls = {_correlation(event): event for event in events if event.get("cat") in _LAUNCHING}
    operators = _spans(events, ("cpu_op",))
    traced: list[tuple[list[KernelLaunch], int]] = []
    for span in marked:
        mine = [(event, calls[_correlation(event)]) for event in kernels
                if _correlation(event) in calls and span.holds(_span(calls[_correlation(event)]))]  # fmt: skip
        orphans = [event for event in kernels if _correlation(event) not in calls]
        unmatched = sum(span.start_s <= _span(event).start_s <= span.end_s for event in orphans)
        inside = [operator for operator in operators if span.holds(operator)]
        traced.append((_launches(mine, inside, device, batch), unmatched))
    return traced


def summarise(launches: Sequence[KernelLaunch], unmatched: int) -> LaunchSummary:
    """Totals of one pass; `bound` is empty, since one pass does not tell it.

    Raises:
        LaunchTraceError: the pass has no launch.
    """
    if not launches:
        raise LaunchTraceError(f"no kernel of the pass has a launch in the trace ({unmatched} have none)")
    launch_s, queue_s = sum(launch.launch_s for launch in launches), sum(launch.queue_s for launch in launches)
    return LaunchSummary(
        device=launches[0].device, batch=launches[0].batch, kernels=len(launches), launch_s=launch_s, queue_s=queue_s,
        tklqt_s=launch_s + queue_s, busy_s=sum(launch.duration_s for launch in launches),
        span_s=max(launch.start_s + launch.duration_s for launch in launches), unmatched=unmatched, bound="",
    )  # fmt: skip


def typical(traced: Sequence[tuple[list[KernelLaunch], int]]) -> tuple[list[KernelLaunch], LaunchSummary]:
    """The pass whose TKLQT is the median of all (the lower of two middle ones), and its totals.

    Raises:
        LaunchTraceError: a pass has no launch.
    """
    summaries = [summarise(launches, unmatched) for launches, unmatched in traced]
    middle = statistics.median_low(summary.tklqt_s for summary in summaries)
    chosen = next(i for i, summary in enumerate(summaries) if summary.tklqt_s == middle)
    return traced[chosen][0], summaries[chosen]


def gpu_bound_from(summaries: Iterable[LaunchSummary]) -> int | None:
    """The smallest batch from which on the GPU limits, by `QUEUEING`; None where the host limits at the largest one too."""
    ordered = sorted(summaries, key=lambda summary: summary.batch)
    limit_s = QUEUEING * min(summary.tklqt_s for summary in ordered)
    turned: int | None = None
    for summary in reversed(ordered):
        if summary.tklqt_s <= limit_s:
            break
        turned = summary.batch
    return turned


def with_bounds(summaries: Sequence[LaunchSummary]) -> list[LaunchSummary]:
    """The summaries of all batches, each with what limits it."""
    turned = gpu_bound_from(summaries)
    return [
        replace(summary, bound="gpu" if turned is not None and summary.batch >= turned else "host")
        for summary in summaries
    ]


def launch_facts(summaries: Sequence[LaunchSummary]) -> dict[str, float | None]:
    """What a device file keeps: means per kernel and TKLQT of the smallest batch, and the batch where the GPU takes over."""
    first = min(summaries, key=lambda summary: summary.batch)
    return {
        f"tklqt_batch{first.batch}_s": first.tklqt_s,
        "launch_mean_s": first.launch_s / first.kernels,
        "queue_mean_s": first.queue_s / first.kernels,
        "cpu_to_gpu_bound_batch": gpu_bound_from(summaries),
    }


def _launches(
    pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], operators: Sequence[_Span], device: str, batch: int
) -> list[KernelLaunch]:
    ordered = sorted(pairs, key=lambda pair: float(pair[0]["ts"]))
    began_s = min((_span(call).start_s for _, call in ordered), default=0.0)
    counted: set[Any] = set()
    launches: list[KernelLaunch] = []
    for index, (event, launching) in enumerate(ordered):
        kernel, call = _span(event), _span(launching)
        # Clocks of host and GPU agree to a microsecond or so: a kernel may seem to begin before its launch.
        launch_s = max(0.0, min(call.end_s, kernel.start_s) - call.start_s)
        around = [operator for operator in operators if operator.holds(call)]
        launches.append(KernelLaunch(
            device=device, batch=batch, index=index, kernel=kernel.name,
            operator=min(around, key=lambda operator: operator.start_s).name if around else "",
            inner=max(around, key=lambda operator: operator.start_s).name if around else "",
            start_s=kernel.start_s - began_s, queue_s=max(0.0, kernel.start_s - call.end_s),
            launch_s=0.0 if _correlation(event) in counted else launch_s, duration_s=kernel.end_s - kernel.start_s,
            graph="Graph" in call.name,
        ))  # fmt: skip
        counted.add(_correlation(event))
    return launches


def _spans(events: Iterable[Mapping[str, Any]], categories: Sequence[str], name: str | None = None) -> list[_Span]:
    return [_span(event) for event in events if event.get("cat") in categories and name in (None, event["name"])]


def _span(event: Mapping[str, Any]) -> _Span:
    start, length = float(event["ts"]), float(event.get("dur", 0.0))
    return _Span(str(event["name"]), start * _US, (start + length) * _US, (event.get("pid"), event.get("tid")))


def _correlation(event: Mapping[str, Any]) -> Any:
    """The id a launch shares with its kernels; of an event without one, something no other has."""
    correlation = (event.get("args") or {}).get("correlation")
    return correlation if correlation not in (None, 0) else ("none", id(event))


BATCHES = tuple(2**power for power in range(9))
"""Batch sizes traced: 1 to 256."""

SILENCE_S = 60.0
FACT_NAMES = ("tklqt_batch1_s", "launch_mean_s", "queue_mean_s", "cpu_to_gpu_bound_batch")


@dataclass(frozen=True, slots=True)
class Traced:
    """What tracing gave.

    Attributes:
        launches: Launches of one pass per batch.
        summaries: Their totals, one per batch.
        failed: Why other batches have none.
        facts: What the device says of itself.
    """

    launches: Sequence[KernelLaunch]
    summaries: Sequence[LaunchSummary]
    failed: Mapping[int, str]
    facts: Mapping[str, Any]


def trace_child(index: int) -> JsonChild:
    """The child for GPU `index`."""
    return JsonChild("GPU", python_command("kernelcast.collectors.gpu.profiling.launch_worker", str(index)), {})


def trace_launches(
    device: str = "",
    batches: Sequence[int] = BATCHES,
    *,
    index: int = 0,
    child: JsonChild | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    silence_s: float = SILENCE_S,
) -> Traced:
    """Trace passes of a small transformer over batch sizes; half a minute.

    Args:
        device: The name records carry.
        batches: Batch sizes, traced one after the other.
        index: Number of the GPU, in CUDA's order.
        child: The process that traces; None starts one.
        progress: Called with what is being done, batches done, and batches in all.
        silence_s: Longest silence of the child before it is killed, in seconds.

    Raises:
        ChildStartError: no child starts; torch or its CUDA device is missing, say.
        LaunchTraceError: no batch has a trace with launches; the message says why.
    """
    child = trace_child(index) if child is None else child
    launches: list[KernelLaunch] = []
    summaries: list[LaunchSummary] = []
    failed: dict[int, str] = {}
    at = batches[0]
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        try:
            child.start()
            child.write({"batches": list(batches), "folder": folder})
            while "done" not in (message := child.read(silence_s)):
                at = message.get("at", at)
                if "at" in message and progress is not None:
                    progress(f"batch {at}", len(summaries) + len(failed), len(batches))
                elif "failed" in message:
                    failed[message["batch"]] = message["failed"]
                elif "trace" in message:
                    batch = int(message["batch"])
                    try:
                        batch_launches, summary = typical(
                            passes(json.loads(Path(message["trace"]).read_text()), device, batch)
                        )
                    except LaunchTraceError as error:
                        failed[batch] = str(error)
                        continue
                    launches += batch_launches
                    summaries.append(summary)
        except ChildLostError as lost:
            failed[at] = f"the worker {lost}"
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
