"""Asks the process that reads measured rows: started at the first question, replaced when it dies, gone when idle."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import IO, Self

import msgspec

from .measured_wire import HEAD, Question, Refused

DEADLINE_S = 20.0
"""Longest a question may take. Those about the shipped rows take some hundredths of a second; a large store that has changed is
read anew first."""

IDLE_S = 300.0
"""Seconds without a question after which the process ends itself and gives its memory back."""

_START_S = 60.0
"""Longest start: importing Arrow and reading a large store from a cold disk."""

_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL", "HOME", "KERNELCAST_HOME")
"""What the child gets of the environment: where programs, libraries and the store are, no tokens or passwords."""


class MeasuredError(Exception):
    """A question that was refused (`status` 422, with the `field` at fault) or that could not be answered (500, 503)."""

    def __init__(self, status: int, field: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.field = field
        self.detail = detail


class MeasuredReader:
    """Answers questions about measured rows from a process of its own.

    Safe to use from several threads; questions are answered one after the other. `starts` counts the processes started so far.
    """

    def __init__(self, deadline_s: float = DEADLINE_S, idle_s: float = IDLE_S) -> None:
        self.starts = 0
        self._deadline_s = deadline_s
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, question: Question) -> bytes:
        """The JSON of the answer.

        Raises:
            MeasuredError: the question is refused, or the process failed; the next question gets a new one.
        """
        raw = msgspec.json.encode(question)
        frame = HEAD.pack(0, len(raw)) + raw
        with self._lock:
            try:
                status, reply = self._exchange(self._running(), frame, self._deadline_s)
            except _ChildEndedError as first:
                if self._closing:
                    raise _lost(str(first)) from None
                # Idle for long, or killed by the system for its memory: questions change nothing, so it is asked again, once.
                try:
                    status, reply = self._exchange(self._running(), frame, self._deadline_s)
                except _ChildEndedError as ended:
                    raise _lost(str(ended)) from None
        if status != 200:
            refused = msgspec.json.decode(reply, type=Refused)
            raise MeasuredError(status, refused.field, refused.detail)
        return reply

    def close(self) -> None:
        """End the process, if there is one, over a question too; the next question starts another."""
        self._closing = True
        if (process := self._process) is not None:
            # Without waiting for whoever asks: a service that ends has no time for a question that takes long.
            _kill(process)
        with self._lock:
            self._end()
            self._closing = False

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self.starts += 1
            try:
                self._process = subprocess.Popen(  # noqa: S603 - this Python and a module of ours, no text of a request
                    [sys.executable, "-P", "-m", "kernelcast.api.measured_child", str(self._idle_s)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                    env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                    # Its own session: Ctrl-C ends the service, which then closes it. It ends by itself when its input does.
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise _lost(f"could not be started: {error.strerror}") from None
            self._exchange(self._process, b"", _START_S)
        return self._process

    def _exchange(self, process: subprocess.Popen[bytes], frame: bytes, deadline_s: float) -> tuple[int, bytes]:
        """Send a frame and wait for the one that comes back: its status and what it holds.

        Raises:
            MeasuredError: there was none within `deadline_s`; the process is gone then.
            _ChildEndedError: the process has ended.
        """
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the process was started without pipes")
        until = time.monotonic() + deadline_s
        try:
            # Questions are shorter than what a pipe holds, so writing never waits.
            process.stdin.write(frame)
        except BrokenPipeError:
            raise _ChildEndedError(_ending(self._end())) from None
        got, wanted, status = bytearray(), HEAD.size, 0
        while len(got) < wanted:
            if not _readable(process.stdout, until - time.monotonic()):
                self._end()
                raise _lost(f"took longer than {deadline_s:g} s")
            received = os.read(process.stdout.fileno(), 1 << 20)
            if not received:
                raise _ChildEndedError(_ending(self._end()))
            got += received
            if wanted == HEAD.size and len(got) >= HEAD.size:
                status, length = HEAD.unpack_from(got)
                wanted += length
        return status, bytes(got[HEAD.size :])

    def _end(self) -> int:
        """Its exit status; negative for the signal that ended it."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(subprocess.TimeoutExpired):
            # One whose output ended is ending; its own status says more than that it was killed.
            process.wait(0.2 if _output_ended(process) else 0)
        if process.poll() is None:
            _kill(process)
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what was not sent has no reader
                    pipe.close()
        return code


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.killpg(process.pid, signal.SIGKILL)


class _ChildEndedError(Exception):
    """The process has ended; the message says how."""


def _output_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process closed its output; takes what it wrote last, which nobody waits for any more."""
    return process.stdout is not None and _readable(process.stdout, 0.0) and not os.read(process.stdout.fileno(), 1)


def _readable(pipe: IO[bytes], timeout_s: float) -> bool:
    """Whether there is something to read within the time, or the end."""
    # No `select`: it knows only the first 1024 handles, and a server may have more connections than that.
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def _lost(what: str) -> MeasuredError:
    return MeasuredError(503, "", f"the process that reads measured rows {what}; try again")


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}; the server's log says why"
    return f"ended with signal {-code} ({signal.Signals(-code).name})"
