"""A child process that answers JSON lines: started on first use, watched for silence, killed without mercy."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..datasets.schema import Measurement

_START_S = 180.0
"""Longest start-up: importing a large library from a cold disk."""

_END_S = 10.0
"""Longest wait for a killed process to end."""


class WorkerStartError(Exception):
    """A worker could not start at all (its library is missing, say); the message has its last words.

    `rows` are those that a worker before it had measured of the same request.
    """

    def __init__(self, message: str, rows: Sequence[Measurement] = ()) -> None:
        super().__init__(message)
        self.rows = rows


class ChildProcess:
    """One persistent child; started on first use and again after it was closed.

    Its first message is `{"ready": facts}`. `env` is added to this process's environment; `name` is for messages.
    """

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._name, self._command, self._env = name, list(command), dict(env)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._unread = b""
        self.ready: Mapping[str, Any] = {}

    def start(self) -> None:
        """Start it, unless it runs.

        Raises:
            WorkerStartError: it ends or stays silent before it is ready.
        """
        if self._process is not None:
            return
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the child, closed by close()
        self._process = subprocess.Popen(  # noqa: S603  our own interpreter and module
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0,
            # Its own session, so that Ctrl-C reaches the parent alone, which then decides what happens.
            env=os.environ | self._env, start_new_session=True,
        )  # fmt: skip
        try:
            self.ready = self.read(_START_S)["ready"]
        except (EOFError, TimeoutError):
            raise WorkerStartError(f"the {self._name} worker did not start: {self.last_words()}") from None

    def close(self) -> None:
        """Kill it, if it runs, and what it started (nvcc, ptxas)."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # all of them have ended
            os.killpg(self._process.pid, signal.SIGKILL)  # its own session makes it the leader of its group
        # A process stuck in the driver takes no signal until it comes back: it is abandoned, and ends then.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_S)
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what is still buffered for a dead child has no reader
                    pipe.close()
        self._process, self._errors, self._unread = None, None, b""

    def last_words(self) -> str:
        """Why it ended, then closes it: its exit status and the last line it wrote to standard error."""
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

    def write(self, message: Mapping[str, Any]) -> None:
        """Send one message.

        Raises:
            BrokenPipeError: it is gone.
        """
        if self._process is None or self._process.stdin is None:
            raise BrokenPipeError
        unsent = memoryview((json.dumps(message) + "\n").encode())
        while unsent:  # an unbuffered pipe may take less than all of it
            unsent = unsent[self._process.stdin.write(unsent) or 0 :]

    def read(self, deadline_s: float) -> dict[str, Any]:
        """The next message.

        Raises:
            TimeoutError: none came within `deadline_s`.
            EOFError: it is gone.
        """
        if self._process is None or self._process.stdout is None:
            raise EOFError
        until = time.monotonic() + deadline_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise TimeoutError
                received = os.read(self._process.stdout.fileno(), 1 << 16)
                if not received:
                    raise EOFError
                self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message
