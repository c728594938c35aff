"""One of the two processes that run a pair of kernels, pinned to a core of its own: it runs one kernel in the slots of a plan.

    parent -> child   {"prepare": {spec}}                             child -> parent  {"call_s": …} or {"status", "message"}
    parent -> child   {"start_ns", "slot_ns", "lead_ns", "active"}    child -> parent  {"slots": [seconds per call or null, …]}

Times are of the machine's monotonic clock, which both processes read.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import Any

from ....features.spec_io.rows import spec_from_row
from ....process import private_stdout, python_command, send
from ...runner import Runner, first_line, runners, status_of
from ..timing import quiet_interpreter
from ..worker import WorkerOptions, confine

TURN_S = 50e-6
"""Shortest turn, of one call or of as many as it takes: reading the clock then costs a thousandth."""

_WARM_UP_S, _WARM_UP_CALLS = 0.02, 4


@dataclass(frozen=True, slots=True)
class Slots:
    """When a kernel runs: slots of equal length, one after the other.

    Attributes:
        start_ns: When the first one begins, by the monotonic clock.
        slot_ns: Length of a slot.
        lead_ns: Turns that begin earlier in a slot do not count: caches still hold what ran before.
        active: Whether the kernel runs in each slot; in the others its core is idle.
    """

    start_ns: int
    slot_ns: int
    lead_ns: int
    active: tuple[bool, ...]

    def message(self) -> dict[str, Any]:
        """As the parent sends it."""
        return asdict(self)


def run_slots(call: Callable[[], Any], call_s: float, slots: Slots) -> list[float | None]:
    """Run a call over slots; of each the median seconds per call, None where it was idle or no turn counts.

    Seconds are of the processor, so that what preempts a turn does not count. No turn begins that would not end in its slot.
    """
    calls = max(1, math.ceil(TURN_S / call_s))
    turn_ns = calls * call_s * 1e9
    medians: list[float | None] = []
    for i, is_active in enumerate(slots.active):
        begin_ns = slots.start_ns + i * slots.slot_ns
        end_ns = begin_ns + slots.slot_ns
        _sleep_until(begin_ns)
        samples: list[float] = []
        while is_active and (at := time.monotonic_ns()) + turn_ns < end_ns:
            began = time.process_time_ns()
            for _ in repeat(None, calls):
                call()
            if at >= begin_ns + slots.lead_ns:
                samples.append((time.process_time_ns() - began) * 1e-9 / calls)
        medians.append(statistics.median(samples) if samples else None)
    return medians


def _sleep_until(at_ns: int) -> None:
    """Leave the core idle until a time: a loop would take from the other core what the two share."""
    while (left_ns := at_ns - time.monotonic_ns()) > 0:
        time.sleep(left_ns * 1e-9)


def warm_call_s(call: Callable[[], Any]) -> float:
    """Seconds of a call once it is warm: the least of the later half of some calls."""
    times: list[float] = []
    while len(times) < _WARM_UP_CALLS or sum(times) < _WARM_UP_S:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return max(min(times[len(times) // 2 :]), 1e-9)


def main(argv: list[str]) -> None:
    """Serve the runner that the options in `argv[1]` name, until the parent closes the pipe."""
    options = WorkerOptions.from_json(argv[1])
    serve(runners()[options.runner], options)


def serve(runner: Runner, options: WorkerOptions) -> None:
    """Ready and run what standard input asks for with `runner`, until it closes."""
    requests, replies = sys.stdin, private_stdout()
    confine(options)
    runner.use_threads(options.threads)
    send(replies, {"ready": {"versions": dict(runner.versions()), "cores": list(options.cores)}})
    call: Callable[[], Any] = time.monotonic_ns
    call_s = math.nan
    with quiet_interpreter():
        for line in requests:
            message = json.loads(line)
            if "prepare" not in message:
                send(replies, {"slots": run_slots(call, call_s, Slots(**message))})
                continue
            # The operands of the case before go first, so that two never have to fit.
            call = time.monotonic_ns
            try:
                call = runner.prepare(spec_from_row(message["prepare"])).call
                call_s = warm_call_s(call)
            except Exception as error:  # noqa: BLE001  whatever a library raises is this case's result
                send(replies, {"status": status_of(error), "message": first_line(error)})
            else:
                send(replies, {"call_s": call_s})


def pair_command(options: WorkerOptions) -> list[str]:
    """The command line of a process."""
    return python_command("kernelcast.collectors.cpu.pairs.worker", options.to_json())


if __name__ == "__main__":
    main(sys.argv)
