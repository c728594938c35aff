"""The worker process that measures modules, one per compiler and thread count: both ends of its pipes.

parent -> child   {"jobs": [{"text": ..., "program": ..., "source": ..., "dialect": ..., "binary": ...}]}
child  -> parent  {"ready": {...}}  once;  {"at": module_id}  before every step;  {"measured": [...]}  per request

`ModuleWorker` is the parent's side.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ....datasets.records.mlir_modules import ModuleRun, ModuleText
from ....process import ChildLostError, JsonChild, die_with_parent, private_stdout, python_command, send
from ...collector import JsonOptions
from ...cpu.timing import Clock, StoppingRule
from ...cpu.worker import WorkerOptions, confine
from ...host import STEADY_MEMORY, utc_now
from ..compiler import Job, ModuleRunner, module_runners
from .bench import RULE, HandoffClock, Measured, ModuleBench, Sample, measure_modules


@dataclass(frozen=True, slots=True)
class ModuleWorkerOptions(JsonOptions):
    """How a worker runs.

    Attributes:
        compiler: Name of the compiler.
        target: `cpu` or `cuda`.
        threads: Thread count; None on a GPU.
        device: The name rows carry.
        cores: Cores it may use; empty leaves it to the scheduler.
        dump: Folder for machine code.
        memory_cap_b: Limit of its address space.
    """

    compiler: str
    target: str
    threads: int | None
    device: str
    cores: tuple[int, ...]
    dump: str
    memory_cap_b: int | None = None


def main(argv: list[str]) -> None:
    """Serve the compiler that the options in `argv[1]` name, until the parent closes the pipe."""
    options = ModuleWorkerOptions.from_json(argv[1])
    serve(module_runners()[options.compiler], options)


def serve(runner: ModuleRunner, options: ModuleWorkerOptions, *, rule: StoppingRule = RULE) -> None:
    """Measure what standard input asks for with `runner`, by `rule`, until it closes."""
    from ...meters.find import find_meter

    requests, replies = sys.stdin, private_stdout()
    die_with_parent()
    confine(
        WorkerOptions(
            runner.name, options.threads or 1, options.device, options.cores, memory_cap_b=options.memory_cap_b
        )
    )
    runner.start(options.target, options.threads, Path(options.dump))
    clock = Clock() if options.threads == 1 else HandoffClock()
    bench = ModuleBench(runner, options.device, rule, find_meter(), clock)
    send(replies, {"ready": {
        "versions": dict(runner.versions()), "target": options.target, "threads": options.threads,
        "energy_source": bench.meter.name, "cores": sorted(os.sched_getaffinity(0)), "nice": os.getpriority(os.PRIO_PROCESS, 0),
    }})  # fmt: skip
    for line in requests:
        jobs = [job_of(row, options) for row in json.loads(line)["jobs"]]
        measured = measure_modules(jobs, bench, lambda module_id: send(replies, {"at": module_id}))
        send(replies, {"measured": [asdict(module) for module in measured]})


def job_row(job: Job) -> dict[str, Any]:
    """A job as JSON for a worker, which knows its own compiler and threads."""
    return asdict(job.module) | {"binary": None if job.binary is None else str(job.binary)}


def job_of(row: Mapping[str, Any], options: ModuleWorkerOptions) -> Job:
    """The job that `job_row` wrote."""
    module = ModuleText(row["text"], row["program"], row["source"], row["dialect"])
    return Job(module, options.compiler, options.threads, Path(row["binary"]) if row["binary"] else None)


def measured_of(row: Mapping[str, Any]) -> Measured:
    """What a worker sent of one module."""
    seen = row["sample"]
    sample = None if seen is None else Sample(tuple(seen["values"]), seen["finite"])
    return Measured(ModuleRun(**row["row"]), sample, tuple(row["objects"]))


SILENCE_S = 30.0
"""A worker reports before every step of every module; one that is silent for longer hangs and is killed."""


def worker_command(options: ModuleWorkerOptions) -> list[str]:
    """The command line of a worker."""
    return python_command("kernelcast.collectors.mlir.measure.worker", options.to_json())


class ModuleWorker:
    """One persistent worker; started on first use and again after it was lost."""

    def __init__(
        self, options: ModuleWorkerOptions, *, silence_s: float = SILENCE_S,
        command: Callable[[ModuleWorkerOptions], list[str]] = worker_command,
    ) -> None:  # fmt: skip
        self._options, self._silence_s = options, silence_s
        threads = {} if options.threads is None else {"OMP_NUM_THREADS": str(options.threads)}
        self._child = JsonChild(options.compiler, command(options), STEADY_MEMORY | threads)

    def facts(self) -> Mapping[str, Any]:
        """What the worker said of itself when it started."""
        return self._child.ready

    def collect(self, jobs: Sequence[Job]) -> list[Measured]:
        """One row per job, in any order; a module that the worker is lost over gets a row that says so.

        Raises:
            ChildStartError: it does not start.
        """
        results: list[Measured] = []
        left = list(jobs)
        while left:
            measured, guilty = self._attempt(left)
            results += measured
            left = [job for job in left if guilty is not None and job.module.module_id != guilty]
        return results

    def close(self) -> None:
        """Kill the worker, if there is one."""
        self._child.close()

    def _attempt(self, jobs: Sequence[Job]) -> tuple[list[Measured], str | None]:
        """The rows; where the worker was lost only that of the module it was lost over, and that module's id."""
        self._child.start()
        at = jobs[0].module.module_id
        try:
            self._child.write({"jobs": [job_row(job) for job in jobs]})
            while "measured" not in (message := self._child.read(self._silence_s)):
                at = message["at"]
            return [measured_of(row) for row in message["measured"]], None
        except ChildLostError as error:
            row = ModuleRun(at, self._options.compiler, self._options.device, self._options.threads, error.kind, "",
                            message=f"the worker {error}", measured_at=utc_now())  # fmt: skip
            return [Measured(row)], at


if __name__ == "__main__":
    main(sys.argv)
