"""A process of ours that is asked frame by frame, so that what goes wrong in it goes wrong there alone.

A frame is a head of fixed size, which says how long its body is, and the body. `mlir_reader.py` and `measured_reader.py` say
what is asked of which process, and what becomes of a question whose process ended.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

START_S = 60.0
"""Longest start: importing some hundred megabytes of libraries from a cold disk, and reading a large store."""

_ENDING_S = 1.0
"""Longest wait for the status of a process that has closed its pipes; after it the process is killed."""

_READ_B = 1 << 20
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL")


class ChildLostError(Exception):
    """The process is gone; the message says how, and stands behind its name: "took longer than 5 s"."""


class ChildEndedError(ChildLostError):
    """It ended before it answered, with status `code`; a negative one is the signal that ended it."""

    def __init__(self, code: int) -> None:
        super().__init__(
            f"ended with status {code}" if code >= 0 else f"ended with signal {-code} ({signal.Signals(-code).name})"
        )
        self.code = code


@dataclass(frozen=True, slots=True)
class Program:
    """What runs in the process and how frames from it are read: `body_b` gives the bytes that follow an unpacked head."""

    module: str
    head: struct.Struct
    body_b: Callable[[tuple[int, ...]], int]
    arguments: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    """Variables it gets beside those that say where programs and libraries are; no tokens or passwords."""
    is_logged: bool = True
    """Whether what it writes to standard error goes where this process's own goes."""


class Child:
    """A process that runs a `Program`, started by the first question and again by the next one after it was lost.

    For one thread at a time, but for `kill`. `starts` counts the processes started so far, and `process` is the one that runs.
    """

    def __init__(self, program: Program) -> None:
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._program = program

    def start(self) -> bool:
        """Start the process and wait until it says that it is ready; False where it ran already.

        Raises:
            ChildLostError: it could not be started, was not ready within `START_S`, or ended.
        """
        before = self.starts
        self._running()
        return self.starts > before

    def ask(self, frame: bytes, deadline_s: float) -> tuple[tuple[int, ...], bytes]:
        """Send a frame to the process, which runs by then or is started; the head and the body of the one that comes back.

        Raises:
            ChildEndedError: the process ended before it answered.
            ChildLostError: it could not be started, or there was no answer within `deadline_s`; it is gone then.
        """
        return self._exchange(self._running(), frame, deadline_s)

    def kill(self) -> None:
        """Kill the process, if there is one; from any thread, without waiting for it: whoever asks it finds that it ended."""
        if (process := self.process) is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)

    def end(self, grace_s: float = 0.0) -> int:
        """End the process, if there is one, after up to `grace_s` in which it may end by itself.

        Its status, as in `ChildEndedError`; 0 where there is none.
        """
        process = self.process
        if process is None:
            return 0
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        if process.returncode is None:
            self.kill()
        self.process = None
        code = process.wait()
        for pipe in _pipes(process):
            with contextlib.suppress(BrokenPipeError):  # what was not sent has no reader
                pipe.close()
        return code

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is not None:
            return self.process
        self.starts += 1
        program = self._program
        names = (*_ENVIRONMENT, *program.environment)
        try:
            self.process = subprocess.Popen(  # noqa: S603 - this Python and a module of ours, no text of a request
                [sys.executable, "-P", "-m", program.module, *program.arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                stderr=None if program.is_logged else subprocess.DEVNULL,
                env={name: os.environ[name] for name in names if name in os.environ},
                # Its own session: Ctrl-C ends the service, which then closes it. It ends by itself when its input does.
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ChildLostError(f"could not be started: {error.strerror}") from None
        for pipe in _pipes(self.process):
            os.set_blocking(pipe.fileno(), False)
        self._exchange(self.process, b"", START_S)
        return self.process

    def _exchange(
        self, process: subprocess.Popen[bytes], frame: bytes, deadline_s: float
    ) -> tuple[tuple[int, ...], bytes]:
        requests, replies = _pipes(process)
        head = self._program.head
        until = time.monotonic() + deadline_s
        unsent, got, wanted = memoryview(frame), bytearray(), head.size
        # Not `select`, which knows the first 1024 handles only, where a server may have more connections; nor one that takes a
        # handle of its own, which such a server may have none left for.
        with selectors.PollSelector() as selector:
            selector.register(replies, selectors.EVENT_READ)
            if unsent:
                selector.register(requests, selectors.EVENT_WRITE)
            while len(got) < wanted:
                ready = selector.select(max(0.0, until - time.monotonic()))
                if not ready:
                    self.end()
                    raise ChildLostError(f"took longer than {deadline_s:g} s")
                for key, _ in ready:
                    if key.fileobj is requests:
                        unsent = unsent[self._sent_b(requests, unsent) :]
                        if not unsent:
                            selector.unregister(requests)
                        continue
                    received = os.read(replies.fileno(), _READ_B)
                    if not received:
                        raise ChildEndedError(self.end(_ENDING_S))
                    got += received
                    if len(got) >= head.size:
                        wanted = head.size + self._program.body_b(head.unpack_from(got))
        return head.unpack_from(got), bytes(got[head.size :])

    def _sent_b(self, requests: IO[bytes], unsent: memoryview) -> int:
        try:
            return os.write(requests.fileno(), unsent)
        except BrokenPipeError:
            raise ChildEndedError(self.end(_ENDING_S)) from None


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process was started without pipes")
    return process.stdin, process.stdout
