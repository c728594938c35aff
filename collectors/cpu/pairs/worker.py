"""One of the two processes that run a pair of kernels, pinned to a core of its own: it runs one kernel when it is told to.

    parent -> child   {"prepare": {spec}}                                child -> parent  {"call_s": …} or {"status": …, "message": …}
    parent -> child   {"start_ns", "from_ns", "until_ns", "end_ns"}      child -> parent  {"call_s": …, "turns": …}

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
from ....process import private_stdout, send
from ...runner import first_line, runners, status_of
from ..timing import quiet_interpreter
from ..worker import WorkerOptions, confine

TURN_S = 50e-6
"""Shortest turn, of one call or of as many as it takes: reading the clock then costs a thousandth."""

_WARM_UP_S, _WARM_UP_CALLS = 0.02, 4


@dataclass(frozen=True, slots=True)
class Window:
    """When a kernel runs, and of what part of it counts; all in nanoseconds of the monotonic clock.

    Attributes:
        start_ns: First call.
        from_ns: Turns that begin from here on count,
        until_ns: and up to here.
        end_ns: No turn begins after it. Until then the other kernel has its neighbour.
    """

    start_ns: int
    from_ns: int
    until_ns: int
    end_ns: int

    def message(self) -> dict[str, int]:
        """As the parent sends it."""
        return asdict(self)


def run_window(call: Callable[[], Any], call_s: float, window: Window) -> list[float]:
    """Run a call over a window; seconds per call of the turns that count, at least one."""
    calls = max(1, math.ceil(TURN_S / call_s))
    now, turns = time.monotonic_ns, []
    while now() < window.start_ns:
        pass
    began = now()
    while began < window.end_ns or not turns:
        for _ in repeat(None, calls):
            call()
        ended = now()
        if began >= window.from_ns and (began < window.until_ns or not turns):
            turns.append((ended - began) * 1e-9 / calls)
        began = ended
    return turns


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
    requests, replies = sys.stdin, private_stdout()
    confine(options)
    runner = runners()[options.runner]
    runner.use_threads(options.threads)
    send(replies, {"ready": {"versions": dict(runner.versions()), "cores": list(options.cores)}})
    call: Callable[[], Any] = time.monotonic_ns
    call_s = math.nan
    with quiet_interpreter():
        for line in requests:
            message = json.loads(line)
            if "prepare" not in message:
                turns = run_window(call, call_s, Window(**message))
                send(replies, {"call_s": statistics.median(turns), "turns": len(turns)})
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


if __name__ == "__main__":
    main(sys.argv)
