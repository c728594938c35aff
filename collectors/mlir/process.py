"""The parent's side of a module worker: start it, hand it chunks, and go on without the module that it was lost over."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ...datasets.modules import ModuleRun
from ...datasets.schema import Status
from ..environment import STEADY_MEMORY, utc_now
from ..pipe import ChildProcess
from .bench import Measured
from .runner import Job
from .worker import ModuleWorkerOptions, job_row, measured_of

SILENCE_S = 30.0
"""A worker reports before every step of every module; one that is silent for longer hangs and is killed."""


class ModuleCollector(Protocol):
    """Something that turns jobs into rows."""

    def collect(self, jobs: Sequence[Job]) -> list[Measured]:
        """One row per job, in any order.

        Raises:
            WorkerStartError: no process can be started.
        """
        ...

    def facts(self) -> Mapping[str, Any]:
        """What to record about it: versions, threads, cores."""
        ...

    def close(self) -> None:
        """End it, at once."""
        ...


def worker_command(options: ModuleWorkerOptions) -> list[str]:
    """The command line of a worker; -P keeps the working directory's folders from shadowing packages."""
    return [sys.executable, "-P", "-m", "kernelcast.collectors.mlir.worker", options.to_json()]


class ModuleWorker:
    """One persistent worker; started on first use and again after it was lost."""

    def __init__(
        self, options: ModuleWorkerOptions, *, silence_s: float = SILENCE_S,
        command: Callable[[ModuleWorkerOptions], list[str]] = worker_command,
    ) -> None:  # fmt: skip
        self._options, self._silence_s = options, silence_s
        threads = {} if options.threads is None else {"OMP_NUM_THREADS": str(options.threads)}
        self._child = ChildProcess(options.compiler, command(options), STEADY_MEMORY | threads)

    def facts(self) -> Mapping[str, Any]:
        """What the worker said of itself when it started."""
        return self._child.ready

    def collect(self, jobs: Sequence[Job]) -> list[Measured]:
        """One row per job, in any order; a module that the worker is lost over gets a row that says so.

        Raises:
            WorkerStartError: it does not start.
        """
        found: list[Measured] = []
        left = list(jobs)
        while left:
            measured, guilty = self._attempt(left)
            found += measured
            left = [job for job in left if guilty is not None and job.module.module_id != guilty]
        return found

    def close(self) -> None:
        """Kill the worker, if there is one."""
        self._child.close()

    def _attempt(self, jobs: Sequence[Job]) -> tuple[list[Measured], str | None]:
        """The rows; where the worker was lost only that of the module it was lost over, and that module's id."""
        self._child.start()
        at = jobs[0].module.module_id
        status: Status
        try:
            self._child.write({"jobs": [job_row(job) for job in jobs]})
            while "measured" not in (message := self._child.read(self._silence_s)):
                at = message["at"]
            return [measured_of(row) for row in message["measured"]], None
        except TimeoutError:
            self._child.close()
            status, said = "timeout", f"no sign of life for {self._silence_s:g} s"
        except (EOFError, BrokenPipeError):
            status, said = "crashed", self._child.last_words()
        lost = ModuleRun(at, self._options.compiler, self._options.device, self._options.threads, status, "",
                         message=said[:300], measured_at=utc_now())  # fmt: skip
        return [Measured(lost)], at
