"""The parent's side of a worker: start it, hand it chunks, and notice when it crashes or falls silent."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Literal, Protocol

from ..datasets.schema import Measurement, from_row
from ..features.kernel import KernelSpec
from .environment import STEADY_MEMORY, cache_sizes_b, memory_b
from .worker import WorkerOptions

_START_S = 180.0
"""Longest start-up: importing a large library from a cold disk."""


class WorkerLostError(Exception):
    """The worker is gone: it crashed, or was killed for its silence. `case_id` is what it was working on."""

    def __init__(self, status: Literal["timeout", "crashed"], case_id: str | None, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.case_id = case_id


class WorkerStartError(Exception):
    """A worker could not start at all (its library is missing, say); the message has its last words."""


class Collector(Protocol):
    """Something that turns specs into rows: a worker process, or a replay of recorded rows."""

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        """One row per spec, in order.

        Raises:
            WorkerLostError: the process that measured them is gone; the next call starts another.
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
        self._options, self._silence_s, self._command = options, silence_s, command
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._unread = b""
        self._ready: Mapping[str, Any] = {}

    def facts(self) -> Mapping[str, Any]:
        """What the worker said of itself when it started."""
        return self._ready

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        """One row per spec, in order.

        Raises:
            WorkerLostError: it crashed, or was silent for longer than the deadline and has been killed.
            WorkerStartError: it does not start.
        """
        process = self._running()
        at: str | None = None
        try:
            self._write(process, {"specs": [spec_row(spec) for spec in specs]})
            while True:
                message = self._read(process, self._silence_s)
                if "rows" in message:
                    return [from_row(row) for row in message["rows"]]
                at = message["at"]
        except TimeoutError:
            self.close()
            raise WorkerLostError("timeout", at, f"no sign of life for {self._silence_s:g} s") from None
        except (EOFError, BrokenPipeError):
            raise WorkerLostError("crashed", at, self._last_words()) from None

    def close(self) -> None:
        """Kill the worker, if there is one."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what is still buffered for a dead child has no reader
                    pipe.close()
        self._process, self._errors, self._unread = None, None, b""

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the worker, closed by close()
        env = os.environ | STEADY_MEMORY | {"OMP_NUM_THREADS": str(self._options.threads)}
        self._process = subprocess.Popen(  # noqa: S603  our own interpreter and module
            self._command(self._options), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0,
            # Its own session, so that Ctrl-C reaches the parent alone, which then decides what happens.
            env=env, start_new_session=True,
        )  # fmt: skip
        try:
            self._ready = self._read(self._process, _START_S)["ready"]
        except (EOFError, TimeoutError):
            raise WorkerStartError(f"the {self._options.runner} worker did not start: {self._last_words()}") from None
        return self._process

    def _last_words(self) -> str:
        """Why the worker ended, then closes it: its exit status and the last line it wrote to standard error."""
        process, errors = self._process, self._errors
        if process is None or errors is None:
            return "no worker"
        try:
            code: int | str = process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = "none, it was killed"
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
        self.close()
        return f"worker ended with status {code}" + (f": {lines[-1][:300]}" if lines else "")

    @staticmethod
    def _write(process: subprocess.Popen[bytes], message: Mapping[str, Any]) -> None:
        if process.stdin is None:
            raise BrokenPipeError
        unsent = memoryview((json.dumps(message) + "\n").encode())
        while unsent:  # an unbuffered pipe may take less than all of it
            unsent = unsent[process.stdin.write(unsent) or 0 :]

    def _read(self, process: subprocess.Popen[bytes], deadline_s: float) -> dict[str, Any]:
        """The next message, or TimeoutError after `deadline_s`, or EOFError."""
        if process.stdout is None:
            raise EOFError
        until = time.monotonic() + deadline_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise TimeoutError
                received = os.read(process.stdout.fileno(), 1 << 16)
                if not received:
                    raise EOFError
                self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message
