"""Child processes: started when first needed, asked over pipes with a deadline, killed with everything they started.

`JsonChild` exchanges JSON objects, one a line; `FrameChild` exchanges binary frames. The functions at the end are for the
program that runs in the child. A fresh interpreter with pipes rather than multiprocessing: the parent needs a deadline on
silence and a kill that no lock of a queue can block, and nothing crosses the pipe that could be unpickled into code.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, Literal, TypeVar

_EXIT_STATUS_S = 2.0
"""Longest wait for the exit status of a process that has closed its pipes; after it the process is killed."""

_KILL_S = 10.0
"""Longest wait for a killed process to end."""

_POLL_S = 0.02
_READ_B = 1 << 20
_LAST_LINE_CHARACTERS = 300
_SYSTEM_VARIABLES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL")
_PR_SET_PDEATHSIG = 1  # prctl(2)
_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


def core_count() -> int:
    """Cores that this process may use: of a container or under `taskset`, fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ChildLostError(Exception):
    """The process is gone. The message is a predicate to put behind its name, such as "took longer than 5 s"."""

    kind: Literal["timeout", "crashed"] = "crashed"


class ChildTimeoutError(ChildLostError):
    """There was no message within the deadline, and the process was killed."""

    kind = "timeout"


class ChildEndedError(ChildLostError):
    """The process ended before it answered.

    Attributes:
        code: Exit status; negative for the signal that ended it; None where it does not react to a kill.
    """

    def __init__(self, code: int | None, last_line: str = "") -> None:
        if code is None:
            what = "does not end"
        elif code < 0:
            what = f"ended with signal {-code} ({signal.Signals(-code).name})"
        else:
            what = f"ended with status {code}"
        super().__init__(what + (f": {last_line}" if last_line else ""))
        self.code = code


class ChildStartError(Exception):
    """A child process could not start at all, for example because a library is missing. The message has its last line.

    Attributes:
        rows: Results of the same request from child processes before it.
    """

    def __init__(self, message: str, rows: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.rows = rows


def python_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of ours; -P keeps the working directory's folders from shadowing packages."""
    return [sys.executable, "-P", "-m", module, *arguments]


def small_environment(*names: str) -> dict[str, str]:
    """The variables of `names` and those that say where programs and libraries are; no tokens or passwords."""
    return {name: os.environ[name] for name in (*_SYSTEM_VARIABLES, *names) if name in os.environ}


class ChildProcess(ABC):
    """One persistent child process, in a session of its own; a lost one is replaced at the next start.

    For one thread at a time, except `kill`.

    Attributes:
        process: The running process; None before the first start and after a loss.
        starts: How many processes were started so far.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, start_s: float = 180.0,
        stderr: Literal["quote", "inherit", "discard"] = "quote",
    ) -> None:  # fmt: skip
        """Args:
        command: Program and arguments.
        environment: All variables the child gets.
        start_s: Longest start-up; importing a large library from a cold disk takes minutes.
        stderr: Where standard error goes: its last line into `ChildEndedError`, to this process's own, or nowhere.
        """
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self._command, self._environment = list(command), dict(environment)
        self._start_s, self._stderr = start_s, stderr
        self._errors: IO[bytes] | None = None
        self._unsent, self._unread = bytearray(), bytearray()

    @abstractmethod
    def _message_b(self, received: bytearray) -> int:
        """Length in bytes of the first message of `received`; 0 while it is not complete."""

    def kill(self) -> None:
        """Kill the process and what it started, without waiting; from any thread. A pending read sees that it ended."""
        if (process := self.process) is not None:
            with contextlib.suppress(ProcessLookupError):  # all of them have ended
                os.killpg(process.pid, signal.SIGKILL)  # its own session makes it the leader of its group

    def close(self) -> None:
        """Kill the process, if it runs, and what it started."""
        if self.process is not None:
            self.kill()
            self._release(_KILL_S)

    def _launch(self) -> bytes | None:
        """Start the process unless it runs; its first message, None where it ran already.

        Raises:
            ChildLostError: It could not be started, ended, or sent nothing within `start_s`.
        """
        if self.process is not None:
            return None
        self.starts += 1
        targets: dict[str, int | None] = {"inherit": None, "discard": subprocess.DEVNULL}
        if self._stderr == "quote":
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the child, closed by _release()
            targets["quote"] = self._errors.fileno()
        try:
            self.process = subprocess.Popen(  # noqa: S603  our own interpreter and module
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=targets[self._stderr], bufsize=0,
                # Its own session, so that Ctrl-C reaches the parent alone, which then decides what happens.
                env=self._environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            if self._errors is not None:
                self._errors.close()
            raise ChildLostError(f"could not be started: {error.strerror}") from None
        for pipe in _pipes(self.process):
            os.set_blocking(pipe.fileno(), False)
        return self._receive(self._start_s)

    def _receive(self, deadline_s: float) -> bytes:
        """Send what is unsent; the next message.

        Raises:
            ChildLostError: The process ended, or sent no message within `deadline_s`; it is killed then.
        """
        if self.process is None:
            raise RuntimeError("the child process does not run; start it first")
        requests, replies = _pipes(self.process)
        until = time.monotonic() + deadline_s
        # Not `select`, which knows the first 1024 handles only, where a server may have more connections; nor one that takes
        # a handle of its own, which such a server may have none left for.
        with selectors.PollSelector() as selector:
            selector.register(replies, selectors.EVENT_READ)
            if self._unsent:
                selector.register(requests, selectors.EVENT_WRITE)
            while not (size := self._message_b(self._unread)):
                ready = selector.select(max(0.0, until - time.monotonic()))
                if not ready:
                    self.close()
                    raise ChildTimeoutError(f"took longer than {deadline_s:g} s")
                for key, _ in ready:
                    if key.fileobj is requests:
                        self._send(requests)
                        if not self._unsent:
                            selector.unregister(requests)
                        continue
                    received = os.read(replies.fileno(), _READ_B)
                    if not received:
                        raise self._ended()
                    self._unread += received
        message = bytes(self._unread[:size])
        del self._unread[:size]
        return message

    def _send(self, requests: IO[bytes]) -> None:
        try:
            sent = os.write(requests.fileno(), self._unsent)
        except BrokenPipeError:
            raise self._ended() from None
        del self._unsent[:sent]

    def _ended(self) -> ChildEndedError:
        """Release a process that closed its pipes; says how it ended."""
        lines: list[str] = []
        process, errors = self.process, self._errors
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_STATUS_S)
        if errors is not None:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
        self.kill()
        return ChildEndedError(self._release(_KILL_S), lines[-1][:_LAST_LINE_CHARACTERS] if lines else "")

    def _release(self, wait_s: float) -> int | None:
        """Forget the process, which was killed or has ended; its exit status."""
        process, self.process = self.process, None
        if process is None:
            return None
        # A process stuck in a driver takes no signal until it comes back: it is abandoned, and ends then.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=wait_s)
        for pipe in (*_pipes(process), self._errors):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what was not sent has no reader
                    pipe.close()
        self._errors, self._unsent, self._unread = None, bytearray(), bytearray()
        return process.returncode


class JsonChild(ChildProcess):
    """A child that exchanges JSON objects, one a line; its first one is `{"ready": facts}`.

    Attributes:
        ready: Facts the child sent at its start; empty before.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """`environment` is added to this process's; `name` is for messages."""
        super().__init__(command, os.environ | dict(environment))
        self.ready: Mapping[str, Any] = {}
        self._name = name

    def start(self) -> None:
        """Start it, unless it runs.

        Raises:
            ChildStartError: It ends or stays silent before it is ready.
        """
        try:
            first = self._launch()
        except ChildLostError as lost:
            raise ChildStartError(f"the {self._name} worker did not start: it {lost}") from None
        if first is not None:
            self.ready = json.loads(first)["ready"]

    def write(self, message: Mapping[str, Any], *, at_once: bool = False) -> None:
        """Queue one message, which the next read sends; `at_once`: as far as the pipe takes it now."""
        self._unsent += json.dumps(message).encode() + b"\n"
        if at_once and self.process is not None:
            self._send(_pipes(self.process)[0])

    def read(self, deadline_s: float) -> dict[str, Any]:
        """The next message.

        Raises:
            ChildLostError: The process ended, or sent no message within `deadline_s`; it is killed then.
        """
        message: dict[str, Any] = json.loads(self._receive(deadline_s))
        return message

    def _message_b(self, received: bytearray) -> int:
        return received.find(b"\n") + 1


class ChildPool:
    """Several children that do one job at a time each, in the background; a context manager, at whose end they are killed.

    A child starts with its first job, and is replaced after one that it was lost over.
    """

    def __init__(self, children: Sequence[JsonChild]) -> None:
        self._children = children
        self._free: queue.SimpleQueue[JsonChild] = queue.SimpleQueue()
        for child in children:
            self._free.put(child)
        self._threads = ThreadPoolExecutor(max(1, len(children)))
        self._futures: list[Future[Any]] = []

    def __enter__(self) -> ChildPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        # A thread that waits for a child sees it end, and ends too; one may be about to start its child.
        while any(future.running() for future in self._futures):
            for child in self._children:
                child.kill()
            time.sleep(_POLL_S)
        for child in self._children:
            child.close()

    def map(self, work: Callable[[JsonChild, _Job], _Result], jobs: Iterable[_Job]) -> Iterator[_Result]:
        """Begin `work` on each of `jobs`, with a child that is free; the results in order, as they get ready."""
        futures = [self._threads.submit(self._on_a_child, work, job) for job in jobs]
        self._futures += futures
        return (future.result() for future in futures)

    def _on_a_child(self, work: Callable[[JsonChild, _Job], _Result], job: _Job) -> _Result:
        child = self._free.get()
        try:
            return work(child, job)
        finally:
            self._free.put(child)


class FrameChild(ChildProcess):
    """A child that exchanges frames: a head of fixed size, which says how long its body is, and the body.

    The child sends a first frame when it is ready.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], head: struct.Struct,
        body_b: Callable[[tuple[int, ...]], int], *, stderr: Literal["inherit", "discard"], start_s: float = 60.0,
    ) -> None:  # fmt: skip
        """`body_b` gives the bytes that follow an unpacked head; for the others see `ChildProcess`."""
        super().__init__(command, environment, start_s=start_s, stderr=stderr)
        self._head, self._body_b = head, body_b

    def start(self) -> bool:
        """Start the process and wait until it is ready; False where it ran already.

        Raises:
            ChildLostError: It could not be started, ended, or was not ready within `start_s`.
        """
        return self._launch() is not None

    def ask(self, frame: bytes, deadline_s: float) -> tuple[tuple[int, ...], bytes]:
        """Send a frame to the process, starting it where it does not run; head and body of the answer.

        Raises:
            ChildEndedError: The process ended before it answered.
            ChildLostError: It could not be started, or there was no answer within `deadline_s`; it is killed then.
        """
        self.start()
        self._unsent += frame
        answer = self._receive(deadline_s)
        return self._head.unpack_from(answer), answer[self._head.size :]

    def _message_b(self, received: bytearray) -> int:
        size = self._head.size
        if len(received) >= size:
            size += self._body_b(self._head.unpack_from(received))
        return size if len(received) >= size else 0


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process was started without pipes")
    return process.stdin, process.stdout


def die_with_parent() -> None:
    """In a child: be killed when the parent ends, however it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def first_diagnostic(stderr: str, status: int) -> str:
    """What a compiler's child says first, at most 240 characters, and the signal that ended it.

    Args:
        stderr: What it printed.
        status: Its return code; a negative one names a signal, as when the compiler aborted.
    """
    lines = [line for line in stderr.splitlines() if line.strip()]
    first_error = next((line for line in lines if "error:" in line), lines[0] if lines else "no diagnostic")
    return first_error.rpartition("error: ")[2].strip()[:240] + (f" (killed by signal {-status})" if status < 0 else "")


def private_stdout() -> IO[bytes]:
    """In a child: the pipe to the parent; standard output now goes to standard error, where a library may print."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def send(replies: IO[bytes], message: Mapping[str, Any]) -> None:
    """In a child: one JSON message to the parent, at once."""
    replies.write(json.dumps(message).encode() + b"\n")
    replies.flush()
