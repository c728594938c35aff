"""The child process that measures: one per library and thread count, driven by JSON lines over its pipes.

A fresh interpreter with pipes rather than multiprocessing: the parent needs a deadline on silence and a kill that
cannot be blocked by a queue's lock, nothing crosses the pipe that could be unpickled into code, and the child's
start-up is one visible command (`python -P -m kernelcast.collectors.worker OPTIONS`).

    parent -> child   {"specs": [...]}
    child  -> parent  {"ready": {...}}  once;  {"at": case_id}  before every step;  {"rows": [...]}  per request
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from dataclasses import asdict, dataclass

from ..datasets.schema import spec_of, to_row
from .child import die_with_parent, private_stdout, send
from .flush import CacheFlush
from .interleave import Bench, measure_chunk
from .meters.find import find_meter
from .runner import Runner, runners
from .timing import COLD, HOT, StoppingRule

_NICE = -10


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker runs: library, threads, the cores it may use, and its limits in bytes.

    `cores` pins the process (a one-thread worker gets one core), empty leaves it to the scheduler; `flush_cores` are
    those whose caches a cold case must find empty; `memory_cap_b` limits its address space, so that a case too large
    is a MemoryError in its row rather than the kernel killing something else.
    """

    runner: str
    threads: int
    device: str
    cores: tuple[int, ...] = ()
    flush_cores: tuple[int, ...] = ()
    llc_b: int = 32 * 2**20
    memory_cap_b: int | None = None

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerOptions:
        """The options `to_json` wrote."""
        given = json.loads(text)
        return cls(**given | {"cores": tuple(given["cores"]), "flush_cores": tuple(given["flush_cores"])})


def main(argv: list[str]) -> None:
    """Serve the runner that the options in `argv[1]` name, until the parent closes the pipe."""
    options = WorkerOptions.from_json(argv[1])
    serve(runners()[options.runner], options)


def serve(runner: Runner, options: WorkerOptions, *, hot: StoppingRule = HOT, cold: StoppingRule = COLD) -> None:
    """Measure what standard input asks for with `runner`, by these rules, until it closes."""
    requests, replies = sys.stdin, private_stdout()
    confine(options)
    runner.use_threads(options.threads)
    flush = CacheFlush(options.llc_b, options.flush_cores)
    bench = Bench(runner, options.device, flush, hot, cold, find_meter())
    send(replies, {"ready": {
        "versions": dict(runner.versions()), "threads": options.threads, "energy_source": bench.meter.name,
        "cores": sorted(os.sched_getaffinity(0)), "nice": os.getpriority(os.PRIO_PROCESS, 0),
    }})  # fmt: skip
    for line in requests:
        specs = [spec_of(row) for row in json.loads(line)["specs"]]
        rows = measure_chunk(specs, bench, beat=lambda spec: send(replies, {"at": spec.case_id}))
        send(replies, {"rows": [to_row(row) for row in rows]})


def confine(options: WorkerOptions) -> None:
    """Die with the parent, stay on the given cores, go before other processes, never take more memory than allowed."""
    die_with_parent()
    if options.cores:
        os.sched_setaffinity(0, options.cores)
    # Where allowed (root): a process that others seldom preempt gets clean samples of long kernels too.
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    if options.memory_cap_b is not None:
        resource.setrlimit(resource.RLIMIT_AS, (options.memory_cap_b, options.memory_cap_b))


if __name__ == "__main__":
    main(sys.argv)
