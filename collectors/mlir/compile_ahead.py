"""Compiling modules while others are measured: threads that run one compiler each, a bounded number ahead."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .compiler import Job
from .compilers.iree import Compiled

AHEAD = 600
"""Modules that may be compiled and not yet measured; their binaries lie in a temporary folder, some 20 kB each."""

NICENESS = 5
"""Niceness of the compilers: measuring processes go first."""

Compile = Callable[[Job, Path], Compiled]


def give_way() -> None:
    """From now on the calling thread runs behind processes that measure."""
    thread = threading.get_native_id()
    # Only root may go forward again, so a thread that is further behind stays there.
    os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


class CompileAhead:
    """Compiles `jobs` in order in the background, into `folder`; a context manager.

    One compiler at a time runs on each of the `spare` cores, and one on the `measuring` core for as long as nothing is measured
    there: see `measuring_now`.
    """

    def __init__(
        self, jobs: Sequence[Job], compile_: Compile, folder: Path, *, spare: Sequence[int], measuring: int, ahead: int = AHEAD,
    ) -> None:  # fmt: skip
        self._jobs, self._left = jobs, len(jobs)
        self._compile, self._folder = compile_, folder
        self._room = threading.Semaphore(ahead)
        self._done: queue.SimpleQueue[tuple[Job, Compiled] | Exception] = queue.SimpleQueue()
        self._measuring, self._cores = measuring, frozenset({*spare, measuring})
        self._turn = threading.Condition()
        self._busy: Counter[int] = Counter()
        self._reserved: frozenset[int] = frozenset()
        self._stopped = False
        self._threads = ThreadPoolExecutor(len(self._cores))

    def __enter__(self) -> CompileAhead:
        numbered = iter(enumerate(self._jobs))
        for core in self._cores:
            self._threads.submit(self._serve, core, numbered)
        return self

    def __exit__(self, *_: object) -> None:
        with self._turn:
            self._stopped = True
            self._turn.notify_all()
        self._room.release(len(self._cores))
        self._threads.shutdown()

    @property
    def left(self) -> int:
        """Jobs not yet handed out."""
        return self._left

    @property
    def ready(self) -> int:
        """Jobs compiled and not yet handed out."""
        return self._done.qsize()

    def take(self, most: int, wait_s: float) -> list[tuple[Job, Compiled]]:
        """Up to `most` jobs in the order they were compiled; waits up to `wait_s` for the first where none is ready."""
        taken: list[tuple[Job, Compiled]] = []
        while len(taken) < most and self._left:
            try:
                outcome = self._done.get_nowait() if taken else self._done.get(timeout=wait_s)
            except queue.Empty:
                break
            if isinstance(outcome, Exception):
                raise outcome
            taken.append(outcome)
            self._left -= 1
            self._room.release()
        return taken

    @contextlib.contextmanager
    def measuring_now(self, *, all_cores: bool) -> Iterator[None]:
        """No compiler runs on the measuring core inside, or on any core."""
        reserved = self._cores if all_cores else frozenset({self._measuring})
        with self._turn:
            self._reserved = reserved
            self._turn.wait_for(lambda: not any(self._busy[core] for core in reserved))
        try:
            yield
        finally:
            with self._turn:
                self._reserved = frozenset()
                self._turn.notify_all()

    def _serve(self, core: int, jobs: Iterator[tuple[int, Job]]) -> None:
        # Both are a thread's own on Linux, and what it starts inherits them.
        give_way()
        os.sched_setaffinity(0, {core})
        try:
            for number, job in jobs:
                self._room.acquire()
                if not self._begin(core):
                    return
                try:
                    self._done.put((job, self._compile(job, self._folder / f"{number}.vmfb")))
                finally:
                    self._end(core)
        except Exception as error:  # noqa: BLE001  handed to whoever takes next
            self._done.put(error)

    def _begin(self, core: int) -> bool:
        """Wait until the core is free to compile on; False when there is nothing more to do."""
        with self._turn:
            self._turn.wait_for(lambda: self._stopped or core not in self._reserved)
            self._busy[core] += not self._stopped
            return not self._stopped

    def _end(self, core: int) -> None:
        with self._turn:
            self._busy[core] -= 1
            self._turn.notify_all()
