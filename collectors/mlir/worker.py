"""The child process that measures modules: one per compiler and thread count, driven by JSON lines over its pipes.

parent -> child   {"jobs": [{"text": ..., "program": ..., "source": ..., "dialect": ..., "binary": ...}]}
child  -> parent  {"ready": {...}}  once;  {"at": module_id}  before every step;  {"measured": [...]}  per request
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...datasets.modules import ModuleRun, ModuleText
from ..child import die_with_parent, private_stdout, send
from ..meters.find import find_meter
from ..timing import StoppingRule, SystemClock
from ..worker import WorkerOptions, confine
from .bench import RULE, HandoffClock, Measured, ModuleBench, measure_modules
from .results import Sample
from .runner import Job, ModuleRunner, module_runners


@dataclass(frozen=True, slots=True)
class ModuleWorkerOptions:
    """How a worker runs.

    `target` is `cpu` or `cuda`, `threads` None on a GPU, `cores` those it may use (empty leaves it to the scheduler), `dump` a
    folder for machine code, and `memory_cap_b` a limit on its address space in bytes.
    """

    compiler: str
    target: str
    threads: int | None
    device: str
    cores: tuple[int, ...]
    dump: str
    memory_cap_b: int | None = None

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ModuleWorkerOptions:
        """The options `to_json` wrote."""
        given = json.loads(text)
        return cls(**given | {"cores": tuple(given["cores"])})


def main(argv: list[str]) -> None:
    """Serve the compiler that the options in `argv[1]` name, until the parent closes the pipe."""
    options = ModuleWorkerOptions.from_json(argv[1])
    serve(module_runners()[options.compiler], options)


def serve(runner: ModuleRunner, options: ModuleWorkerOptions, *, rule: StoppingRule = RULE) -> None:
    """Measure what standard input asks for with `runner`, by `rule`, until it closes."""
    requests, replies = sys.stdin, private_stdout()
    die_with_parent()
    confine(
        WorkerOptions(
            runner.name, options.threads or 1, options.device, options.cores, memory_cap_b=options.memory_cap_b
        )
    )
    runner.start(options.target, options.threads, Path(options.dump))
    clock = SystemClock() if options.threads == 1 else HandoffClock()
    bench = ModuleBench(runner, options.device, rule, find_meter(), clock)
    send(replies, {"ready": {
        "versions": dict(runner.versions()), "target": options.target, "threads": options.threads,
        "energy_source": bench.meter.name, "cores": sorted(os.sched_getaffinity(0)), "nice": os.getpriority(os.PRIO_PROCESS, 0),
    }})  # fmt: skip
    for line in requests:
        jobs = [job_of(row, options) for row in json.loads(line)["jobs"]]
        measured = measure_modules(jobs, bench, lambda module_id: send(replies, {"at": module_id}))
        send(replies, {"measured": [asdict(one) for one in measured]})


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


if __name__ == "__main__":
    main(sys.argv)
