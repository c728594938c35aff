"""The worker process that measures on a CPU, one per library and thread count: both ends of its pipes.

    parent -> child   {"specs": [...]}
    child  -> parent  {"ready": {...}}  once;  {"at": case_id}  before every step;  {"rows": [...]}  per request

`python -P -m kernelcast.collectors.cpu.worker OPTIONS` is the child; `WorkerProcess` is the parent's side.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...datasets.rows.schema import Measurement, from_row, to_row
from ...features.kernel import KernelSpec
from ...features.spec_io.rows import spec_from_row, spec_row
from ...process import ChildLostError, JsonChild, die_with_parent, private_stdout, python_command, send
from ..collector import Collector, JsonOptions, WorkerLostError
from ..host import STEADY_MEMORY, cache_sizes_b, memory_b
from ..runner import Runner, runners
from .bench import Bench, CacheFlush, measure_chunk
from .timing import COLD, HOT, StoppingRule

_NICE = -10


@dataclass(frozen=True, slots=True)
class WorkerOptions(JsonOptions):
    """How a worker runs.

    Attributes:
        runner: The library.
        threads: Its thread count.
        device: The name rows carry.
        cores: Cores the process is pinned to (a one-thread worker gets one core); empty leaves it to the scheduler.
        flush_cores: Cores whose caches a cold case must find empty.
        llc_b: Bytes of the last-level cache.
        memory_cap_b: Limit of the address space, so that a case too large is a MemoryError in its row rather than the
            system killing a process.
    """

    runner: str
    threads: int
    device: str
    cores: tuple[int, ...] = ()
    flush_cores: tuple[int, ...] = ()
    llc_b: int = 32 * 2**20
    memory_cap_b: int | None = None


def main(argv: list[str]) -> None:
    """Serve the runner that the options in `argv[1]` name, until the parent closes the pipe."""
    options = WorkerOptions.from_json(argv[1])
    serve(runners()[options.runner], options)


def serve(runner: Runner, options: WorkerOptions, *, hot: StoppingRule = HOT, cold: StoppingRule = COLD) -> None:
    """Measure what standard input asks for with `runner`, by these rules, until it closes."""
    from ..meters.find import find_meter

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
        specs = [spec_from_row(row) for row in json.loads(line)["specs"]]
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


def worker_command(options: WorkerOptions) -> list[str]:
    """The command line of a worker."""
    return python_command("kernelcast.collectors.cpu.worker", options.to_json())


def local_workers(device: str, core: int | None = None) -> Callable[[str, int], Collector]:
    """Worker processes on this machine: one-thread ones pinned to `core` (default: the last), others unpinned."""
    cores = sorted(os.sched_getaffinity(0))
    pinned = cores[-1] if core is None else core
    memory = memory_b()

    def collector(impl: str, threads: int) -> Collector:
        return WorkerProcess(WorkerOptions(
            runner=impl, threads=threads, device=device, cores=(pinned,) if threads == 1 else (),
            flush_cores=(pinned,) if threads == 1 else tuple(cores[-threads:]),
            llc_b=max(cache_sizes_b().values(), default=32 * 2**20),
            # Half: two kinds of worker may be alive, and the page cache and the parent need some too.
            memory_cap_b=None if memory is None else memory // 2,
        ))  # fmt: skip

    return collector


class WorkerProcess:
    """One persistent worker; started on first use and again after it was lost.

    `silence_s` is the hard deadline: a worker reports before every step of every case, so longer silence means that the
    case it last named hangs.
    """

    def __init__(
        self, options: WorkerOptions, *, silence_s: float = 30.0,
        command: Callable[[WorkerOptions], list[str]] = worker_command,
    ) -> None:  # fmt: skip
        self._silence_s = silence_s
        self._child = JsonChild(
            options.runner, command(options), STEADY_MEMORY | {"OMP_NUM_THREADS": str(options.threads)}
        )

    def facts(self) -> Mapping[str, Any]:
        """What the worker said of itself when it started."""
        return self._child.ready

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        """One row per spec, in order.

        Raises:
            WorkerLostError: it crashed, or was silent for longer than the deadline and has been killed.
            ChildStartError: it does not start.
        """
        self._child.start()
        at: str | None = None
        try:
            self._child.write({"specs": [spec_row(spec) for spec in specs]})
            while True:
                message = self._child.read(self._silence_s)
                if "rows" in message:
                    return [from_row(row) for row in message["rows"]]
                at = message["at"]
        except ChildLostError as lost:
            raise WorkerLostError(lost.kind, at, f"the worker {lost}") from None

    def close(self) -> None:
        """Kill the worker, if there is one."""
        self._child.close()


if __name__ == "__main__":
    main(sys.argv)
