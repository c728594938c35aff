"""The process that measures pairs of kernels on a GPU: each kernel is a graph, replayed without a pause on its own stream.

    parent -> child   {"pair": [{spec}, {spec}]}
    child  -> parent  {"slots": [[[seconds per call or null] * 4] * cycles] * 2} or {"status", "message", "is_broken"}

Both streams have a few replays ahead in their queues all the time, and an event after each replay says when it ended. A
replay together with the other kernel counts if it began and ended while the other stream was busy.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ....features.kernel import KernelSpec
from ....features.spec_io.rows import spec_from_row
from ....process import die_with_parent, private_stdout, send
from ...cpu.pairs.campaign import CYCLE
from ...runner import GpuRunner, UnsupportedCaseError, first_line, status_of
from .operands import make_operands
from .timing import GraphRule, sample
from .torch_gpu import Call, TorchGpu, TorchGraph
from .worker import GpuWorkerOptions, open_bench

LONGEST_CALL_S = 5e-3
"""Longest call alone: a slot holds a dozen."""

RULE = GraphRule(sample_s=1.5e-3, samples=6, gpu_s=0.0, half_width=0.05, case_s=0.03, warm_up_s=5e-3)
"""How the graph of a kernel is made: its exact time is measured in the slots."""

_AHEAD = 3
"""Replays in the queue of a stream: the host may be late by two of them, some 3 ms."""

_ALONE_REPLAYS, _ALONE_S = 8, 0.03
_BOTH_REPLAYS, _BOTH_S = 17, 0.03
"""Least replays and seconds of a slot; of the slower kernel where both run."""

_MOST_S, _FEWEST = 0.4, 5
"""Longest slot, and the fewest replays that must count in it."""

_PROBE_CALLS, _PROBE_REPLAYS = 16, 3
_LONGER, _FEWEST_CALLS = 4.0, 4
"""From this slowdown on a kernel has a shorter graph where both run, of which enough are over soon, but of some calls still."""

_PAIR_S, _FEWEST_CYCLES, _MOST_CYCLES = 0.6, 3, 5
"""How long the slots of a pair take, in how many cycles."""

_LATE_SHARE = 0.1
"""Most replays that may have found their stream's queue empty."""


class HostLateError(Exception):
    """The host did not keep the queues of the streams full, or too few replays were over in time."""


@dataclass(slots=True)
class Lane:
    """Replays of one graph on one stream, one right after the other.

    Attributes:
        api: torch's module of the device.
        stream: The stream.
        graph: The graph.
        events: One before the first replay and one after each.
        ended: How many of these the device has reached.
        late: How many replays found the queue empty.
    """

    api: Any
    stream: Any
    graph: TorchGraph
    events: list[Any] = field(default_factory=list)
    ended: int = 0
    late: int = 0

    def refill(self) -> None:
        """Enqueue a replay, unless there are enough in the queue."""
        while self.ended < len(self.events) and self.events[self.ended].query():
            self.ended += 1
        if len(self.events) - self.ended >= _AHEAD:
            return
        self.api.set_stream(self.stream)
        if not self.events:
            self._record()
        elif self.ended == len(self.events):
            self.late += 1
        self.graph.launch()
        self._record()

    def _record(self) -> None:
        event = self.api.Event(enable_timing=True)
        event.record()
        self.events.append(event)


def run(
    now_s: Callable[[], float], lanes: Sequence[Lane], replays: int, least_s: float
) -> list[npt.NDArray[np.float64]]:
    """Keep the queues of all lanes full until each has ended enough replays; of each lane the times of its events in seconds.

    Times are since the first lane's first event. It ends after `_MOST_S` in any case.
    """
    began = now_s()
    while (elapsed_s := now_s() - began) < _MOST_S and (
        elapsed_s < least_s or min(lane.ended for lane in lanes) <= replays
    ):
        for lane in lanes:
            lane.refill()
    for lane in lanes:
        lane.events[-1].synchronize()
    zero = lanes[0].events[0]
    return [np.array([zero.elapsed_time(event) for event in lane.events]) * 1e-3 for lane in lanes]


def inner_medians(ends: Sequence[npt.NDArray[np.float64]]) -> list[float]:
    """Median seconds of each lane's replays that lie within the time in which all lanes ran, without the first of these.

    Raises:
        HostLateError: there are too few.
    """
    begin, end = max(times[0] for times in ends), min(times[-1] for times in ends)
    medians = []
    for times in ends:
        counts = (times[:-1] >= begin) & (times[1:] <= end)
        inner = np.diff(times)[counts][1:]
        if len(inner) < _FEWEST:
            raise HostLateError(f"{len(inner)} replays count in a slot of {times[-1]:.2g} s, {_FEWEST} are needed")
        medians.append(float(np.median(inner)))
    return medians


@dataclass(frozen=True, slots=True)
class Side:
    """A kernel that is ready on a stream of its own.

    Attributes:
        stream: The stream.
        call: Enqueues it once.
        call_s: Seconds of a call alone.
        graph: Its graph.
        calls: Calls in that.
    """

    stream: Any
    call: Call
    call_s: float
    graph: TorchGraph
    calls: int


class PairGpu:
    """A GPU with two streams."""

    def __init__(self, gpu: TorchGpu, runners: Mapping[str, GpuRunner]) -> None:
        self._gpu, self._runners = gpu, runners
        self._api = getattr(gpu.torch, gpu.accelerator.type)
        self._streams = [self._api.current_stream(), self._api.Stream()]

    def measure(self, specs: Sequence[KernelSpec]) -> list[list[list[float | None]]]:
        """Of each of two kernels the seconds per call in the slots of each cycle, None where it was idle.

        Raises:
            UnsupportedCaseError: a kernel does not run here, or its calls are too long.
            HostLateError: the queues were not full.
        """
        try:
            sides = [self._ready(spec, stream) for spec, stream in zip(specs, self._streams, strict=True)]
            beside = self._graphs_beside(sides)
            slots: list[list[list[float | None]]] = [[], []]
            began, cycles = self._gpu.now_s(), _FEWEST_CYCLES
            while len(slots[0]) < cycles:
                for rows in slots:
                    rows.append([])
                for word in CYCLE:
                    self._slot(word, sides, beside, slots)
                if len(slots[0]) == 1:
                    cycles = round(_PAIR_S / (self._gpu.now_s() - began))
                    cycles = min(max(_FEWEST_CYCLES, cycles), _MOST_CYCLES)
            return slots
        finally:
            self._api.set_stream(self._streams[0])

    def _ready(self, spec: KernelSpec, stream: Any) -> Side:
        """The kernel with operands, warm and captured on its stream: libraries keep a workspace for each stream."""
        self._api.set_stream(stream)
        runner = self._runners.get(spec.impl)
        if runner is None:
            raise UnsupportedCaseError(f"no runner on this GPU for impl {spec.impl!r}")
        operands = make_operands(self._gpu.torch, spec, self._gpu.accelerator.type, self._gpu.formats)
        call = runner.launch(spec, operands).call
        sampled = sample(self._gpu, lambda n: [call] * n, RULE)
        if sampled.median_s > LONGEST_CALL_S:
            raise UnsupportedCaseError(
                f"{spec}: a call takes {sampled.median_s:.2g} s, {LONGEST_CALL_S:g} s are allowed"
            )
        return Side(stream, call, sampled.median_s, sampled.graph, sampled.calls)

    def _graphs_beside(self, sides: Sequence[Side]) -> list[tuple[TorchGraph, int]]:
        """The graphs that run together, and their calls: shorter ones where a call waits for many times its own length.

        A short kernel may get on the device only between the calls of a long one.
        """
        calls = [min(side.calls, _PROBE_CALLS) for side in sides]
        lanes = [Lane(self._api, side.stream, self._captured(side, n)) for side, n in zip(sides, calls, strict=True)]
        graphs = []
        for side, times, n in zip(sides, run(self._gpu.now_s, lanes, _PROBE_REPLAYS, 0.0), calls, strict=True):
            call_s = float(np.diff(times).mean()) / n
            fewer = max(_FEWEST_CALLS, RULE.calls_for(call_s))
            is_slow = call_s > _LONGER * side.call_s and fewer < side.calls
            graphs.append((self._captured(side, fewer), fewer) if is_slow else (side.graph, side.calls))
        return graphs

    def _captured(self, side: Side, calls: int) -> TorchGraph:
        self._api.set_stream(side.stream)
        return self._gpu.graph([side.call] * calls)

    def _slot(
        self, word: str, sides: Sequence[Side], beside: Sequence[tuple[TorchGraph, int]],
        slots: Sequence[list[list[float | None]]],
    ) -> None:  # fmt: skip
        """Run one slot of a cycle, and add each kernel's time per call to its last row."""
        active = ["ab".index(name) for name in word]
        graphs = beside if len(active) == 2 else [(side.graph, side.calls) for side in sides]
        lanes = [Lane(self._api, sides[i].stream, graphs[i][0]) for i in active]
        least = (_BOTH_REPLAYS, _BOTH_S) if len(active) == 2 else (_ALONE_REPLAYS, _ALONE_S)
        medians = inner_medians(run(self._gpu.now_s, lanes, *least))
        for lane in lanes:
            if lane.late > _LATE_SHARE * len(lane.events):
                raise HostLateError(
                    f"{lane.late} of {len(lane.events) - 1} replays found the queue of their stream empty"
                )
        for i, rows in enumerate(slots):
            rows[-1].append(medians[active.index(i)] / graphs[i][1] if i in active else None)


def main(argv: list[str]) -> None:
    """Serve the GPU that the options in `argv[1]` name, until the parent closes the pipe."""
    die_with_parent()
    replies = private_stdout()
    bench, facts, broken = open_bench(GpuWorkerOptions.from_json(argv[1]))
    serve(bench.gpu, bench.runners, facts, broken, sys.stdin, replies)


def serve(
    gpu: TorchGpu, runners: Mapping[str, GpuRunner], facts: Mapping[str, Any], broken: Callable[[], str | None],
    requests: IO[str], replies: IO[bytes],
) -> None:  # fmt: skip
    """Measure the pairs that `requests` asks for; `broken` says why the context can no longer be used, None while it can."""
    pair_gpu = PairGpu(gpu, runners)
    send(replies, {"ready": dict(facts)})
    # Looking for garbage among all that torch has imported takes longer than the queues last.
    gc.freeze()
    for line in requests:
        reason = None
        try:
            specs = [spec_from_row(raw) for raw in json.loads(line)["pair"]]
            answer: dict[str, Any] = {"slots": pair_gpu.measure(specs)}
        except Exception as error:  # noqa: BLE001  whatever a library raises is this pair's result
            reason = broken()
            message = first_line(error) if reason is None else f"{first_line(error)}; {reason}"
            answer = {"status": status_of(error), "message": message, "is_broken": reason is not None}
        if reason is None:
            gpu.release()
        send(replies, answer)


if __name__ == "__main__":
    main(sys.argv)
