"""Native MLIR parsers in a child process: started on first use, killed when a text makes it hang, replaced when it crashes."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any, Self

from ..features.mlir.native import NativeReading, installed
from .mlir_child import HEAD

DEADLINE_S = 5.0
"""Longest a text may take. The largest that are read at all take under a second."""

_START_S = 60.0
"""Longest start: importing a parser of some hundred megabytes from a cold disk."""

_FRESH_FACTOR = 2.0

_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL")
"""What the child gets of the environment: where programs and libraries are, no tokens or passwords."""


class NativeReader:
    """Asks the native parsers in a process of their own; give it to `features.mlir.reading.read` as `native`.

    Never raises for a text: one that crashes the parsers, or takes longer than `deadline_s`, counts as refused, and the refusal
    says what happened. Safe to use from several threads; texts are read one after the other. `starts` counts the processes
    started so far.
    """

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self.starts = 0
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_fresh = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __call__(self, text: str, names: Sequence[str] | None = None) -> NativeReading:
        """What the installed parsers, or those of `names`, make of `text`."""
        if not any(reader.takes(text) and (names is None or reader.name in names) for reader in installed()):
            return NativeReading(None, "")
        about = json.dumps({"names": None if names is None else list(names)}).encode()
        raw = text.encode()
        with self._lock:
            try:
                try:
                    return self._ask(HEAD.pack(len(about), len(raw)) + about + raw)
                except _ChildDoneError:  # it had grown too large and ended after the text before
                    return self._ask(HEAD.pack(len(about), len(raw)) + about + raw)
            except _ChildLostError as lost:
                return NativeReading(None, "", (("native", str(lost)),))

    def warm(self) -> None:
        """Start the process now, so that the first text does not wait for it; does nothing where no parser is installed."""
        if installed():
            # When it fails, the next text starts it again, and says so if that fails.
            with self._lock, contextlib.suppress(_ChildLostError):
                self._start()

    def close(self) -> None:
        """End the process, if there is one; the next text starts another."""
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self.starts += 1
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "kernelcast.api.mlir_child"],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
                    env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                    # Its own session: Ctrl-C ends the service, which then closes it. It ends by itself when its input does.
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise _ChildLostError(f"the parsers could not be started: {error.strerror}") from None
            for pipe in _pipes(self._process):
                os.set_blocking(pipe.fileno(), False)
            self._exchange(self._process, b"", _START_S)
            self._is_fresh = True
        return self._process

    def _ask(self, frame: bytes) -> NativeReading:
        process = self._start()
        # The first text may come while the child still imports parsers.
        deadline_s = self._deadline_s * (_FRESH_FACTOR if self._is_fresh else 1.0)
        about, generic = self._exchange(process, frame, deadline_s)
        self._is_fresh = False
        refusals = tuple((name, why) for name, why in about["refusals"])
        return NativeReading(generic.decode() if about["took"] else None, about["reader"], refusals)

    def _exchange(
        self, process: subprocess.Popen[bytes], frame: bytes, deadline_s: float
    ) -> tuple[dict[str, Any], bytes]:
        """Send a frame and wait for the one that comes back.

        Raises:
            _ChildLostError: there was none within `deadline_s`, or the process ended; it is gone then.
        """
        requests, replies = _pipes(process)
        until = time.monotonic() + deadline_s
        unsent, got, wanted = memoryview(frame), bytearray(), HEAD.size
        with selectors.DefaultSelector() as selector:
            selector.register(replies, selectors.EVENT_READ)
            if unsent:
                selector.register(requests, selectors.EVENT_WRITE)
            while len(got) < wanted:
                ready = selector.select(max(0.0, until - time.monotonic()))
                if not ready:
                    self._end()
                    raise _ChildLostError(f"the parsers took longer than {deadline_s:g} s")
                for key, _ in ready:
                    if key.fileobj is requests:
                        try:
                            unsent = unsent[os.write(requests.fileno(), unsent) :]
                        except BrokenPipeError:
                            raise self._lost(process) from None
                        if not unsent:
                            selector.unregister(requests)
                        continue
                    received = os.read(replies.fileno(), 1 << 20)
                    if not received:
                        raise self._lost(process)
                    got += received
                    if len(got) >= HEAD.size:
                        wanted = HEAD.size + sum(HEAD.unpack_from(got))
        middle = HEAD.size + HEAD.unpack_from(got)[0]
        return json.loads(got[HEAD.size : middle]), bytes(got[middle:])

    def _lost(self, process: subprocess.Popen[bytes]) -> _ChildLostError:
        try:
            code = process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            code = None
        self._end()
        if code == 0:
            return _ChildDoneError("the parsers ended")
        if code is None or code > 0:
            return _ChildLostError(f"the parsers ended with status {code}")
        return _ChildLostError(f"the parser ended with signal {-code} ({signal.Signals(-code).name})")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in _pipes(process):
            with contextlib.suppress(BrokenPipeError):  # what was not sent has no reader
                pipe.close()


class _ChildLostError(Exception):
    """The process is gone; the message says how it ended."""


class _ChildDoneError(_ChildLostError):
    """It ended by its own choice, between two texts."""


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process was started without pipes")
    return process.stdin, process.stdout
