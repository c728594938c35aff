"""The parent's side of a worker: start it, hand it chunks, and notice when it crashes or falls silent."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from ..datasets.schema import Measurement, from_row
from ..features.kernel import KernelSpec
from .environment import STEADY_MEMORY, cache_sizes_b, memory_b
from .pipe import ChildProcess, WorkerStartError
from .worker import WorkerOptions

__all__ = ["Collector", "WorkerLostError", "WorkerProcess", "WorkerStartError", "local_workers", "spec_row",
           "worker_command"]  # fmt: skip


class WorkerLostError(Exception):
    """The worker is gone: it crashed, or was killed for its silence. `case_id` is what it was working on."""

    def __init__(self, status: Literal["timeout", "crashed"], case_id: str | None, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.case_id = case_id


class Collector(Protocol):
    """Something that turns specs into rows: a worker process, or a replay of recorded rows."""

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        """One row per spec, in order; fewer where its time ran out.

        Raises:
            WorkerLostError: the process that measured them is gone; the next call starts another.
            WorkerStartError: no process can be started; it carries the rows measured before.
        """
        ...

    def facts(self) -> Mapping[str, Any]:
        """What to record about it beside the machine: library versions, threads, cores. Empty before the first use."""
        ...

    def close(self) -> None:
        """End it, at once."""
        ...


def worker_command(options: WorkerOptions) -> list[str]:
    """The command line of a worker; -P keeps the working directory's folders from shadowing packages."""
    return [sys.executable, "-P", "-m", "kernelcast.collectors.worker", options.to_json()]


def spec_row(spec: KernelSpec) -> dict[str, Any]:
    """The spec as the flat mapping that `datasets.schema.spec_of` reads."""
    return {
        "family": spec.family, "dtype": spec.dtype, "variant": spec.variant, "impl": spec.impl,
        "kv_dtype": spec.kv_dtype, "threads": spec.threads, "cache_state": spec.cache_state,
        **dict(spec.dims), **dict(spec.config),
    }  # fmt: skip


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
        self._child = ChildProcess(
            options.runner, command(options), STEADY_MEMORY | {"OMP_NUM_THREADS": str(options.threads)}
        )

    def facts(self) -> Mapping[str, Any]:
        """What the worker said of itself when it started."""
        return self._child.ready

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        """One row per spec, in order.

        Raises:
            WorkerLostError: it crashed, or was silent for longer than the deadline and has been killed.
            WorkerStartError: it does not start.
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
        except TimeoutError:
            self._child.close()
            raise WorkerLostError("timeout", at, f"no sign of life for {self._silence_s:g} s") from None
        except (EOFError, BrokenPipeError):
            raise WorkerLostError("crashed", at, self._child.last_words()) from None

    def close(self) -> None:
        """Kill the worker, if there is one."""
        self._child.close()
