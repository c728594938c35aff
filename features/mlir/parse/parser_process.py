"""Native MLIR parsers in a child process: started on first use, killed when a text makes it hang, replaced when it crashes.

`NativeReader` is the one side; `main`, run by `python -m`, the other: it gets one text at a time on standard input and answers
on standard output. A frame is a head, the lengths of what follows, and that: a JSON object (in answers only) and a text.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import struct
import threading
from types import TracebackType
from typing import IO, Self

from ....process import ChildEndedError, ChildLostError, FrameChild, private_stdout, python_command, small_environment
from .native_parsers import NativeReading, ReaderRefusal, installed, read_native

DEADLINE_S = 5.0
"""Longest a text may take. The largest that are read at all take under a second."""

_FRESH_FACTOR = 2.0
"""The first text of a process may take longer by this: it may come while the process still imports parsers."""


class NativeReader:
    """Asks the native parsers in a process of their own; give it to `features.mlir.understanding.read` as `native`.

    Never raises for a text: one that crashes the parsers, or takes longer than `deadline_s`, counts as refused, and the refusal
    says what happened. Safe to use from several threads; texts are read one after the other.
    """

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        # What parsers print is about a user's text: the refusal carries it, and the log does not.
        command = python_command("kernelcast.features.mlir.parse.parser_process")
        self.child = FrameChild(command, small_environment(), HEAD, body_b=sum, stderr="discard")
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._is_fresh = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __call__(self, text: str) -> NativeReading:
        """What the installed parsers make of `text`."""
        if not any(reader.takes(text) for reader in installed()):
            return NativeReading(None, "")
        raw = text.encode()
        frame = HEAD.pack(0, len(raw)) + raw
        with self._lock:
            try:
                try:
                    return self._ask(frame)
                except ChildEndedError as ended:
                    if ended.code != 0:
                        raise
                    return self._ask(frame)  # it had grown too large and ended after the text before
            except ChildLostError as lost:
                return NativeReading(None, "", (("native", f"the parsers {lost}"),))

    def warm(self) -> None:
        """Start the process now, so that the first text does not wait for it; does nothing where no parser is installed."""
        if installed():
            # When it fails, the next text starts it again, and says so if that fails.
            with self._lock, contextlib.suppress(ChildLostError):
                self._start()

    def close(self) -> None:
        """End the process, if there is one; the next text starts another."""
        with self._lock:
            self.child.close()

    def _start(self) -> None:
        if self.child.start():
            self._is_fresh = True

    def _ask(self, frame: bytes) -> NativeReading:
        self._start()
        head, body = self.child.ask(frame, self._deadline_s * (_FRESH_FACTOR if self._is_fresh else 1.0))
        self._is_fresh = False
        about, generic = json.loads(body[: head[0]]), body[head[0] :]
        refusals = tuple((name, why) for name, why in about["refusals"])
        return NativeReading(generic.decode() if about["took"] else None, about["reader"], refusals)


HEAD = struct.Struct(">II")
"""Bytes of JSON and bytes of text that follow."""

_MEMORY_B = 2 << 30
"""Most address space. The parsers and their contexts take about half of it; a text that wants more is refused by a crash."""

_RESIDENT_B = 1 << 30
"""Memory in use after which it ends between two texts, for another to take its place."""

_LONGEST_S = 20
"""It ends by itself when a text takes longer, should its parent no longer be there to end it."""

_FILE_B = 64 << 20

_SMALLEST = "module {}"


def main() -> None:
    """Answer texts until standard input ends."""
    for limit, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, _FILE_B), (resource.RLIMIT_AS, _MEMORY_B)):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard < 0 else min(most, hard), hard))
    requests = os.fdopen(os.dup(0), "rb")
    replies = private_stdout()
    _answer(_SMALLEST, replies)  # imports the first parser
    for reader in installed():  # the others while nobody waits; what nobody left time for is imported when it is needed
        if select.select([requests], [], [], 0)[0]:
            break
        with contextlib.suppress(ReaderRefusal):
            reader.to_generic(_SMALLEST)
    while head := requests.read(HEAD.size):
        text = requests.read(HEAD.unpack(head)[1]).decode()
        signal.alarm(_LONGEST_S)
        _answer(text, replies)
        signal.alarm(0)
        if _resident_b() > _RESIDENT_B:
            return


def _answer(text: str, replies: IO[bytes]) -> None:
    reading = read_native(text)
    about = json.dumps({
        "reader": reading.reader, "refusals": reading.refusals, "took": reading.generic is not None,
    }).encode()  # fmt: skip
    generic = (reading.generic or "").encode()
    replies.write(HEAD.pack(len(about), len(generic)) + about + generic)
    replies.flush()


def _resident_b() -> int:
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  the file is one of the kernel's
        return int(file.read().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main()
