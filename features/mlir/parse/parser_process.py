"""Native MLIR parsers in a child process: started on first use, killed when a text makes it hang, replaced when it crashes."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from ....process import ChildEndedError, ChildLostError, FrameChild, python_command, small_environment
from .native_parsers import NativeReading, installed
from .parser_child import HEAD

DEADLINE_S = 5.0
"""Longest a text may take. The largest that are read at all take under a second."""

_FRESH_FACTOR = 2.0
"""The first text of a process may take longer by this: it may come while the process still imports parsers."""


class NativeReader:
    """Asks the native parsers in a process of their own; give it to `features.mlir.reading.read` as `native`.

    Never raises for a text: one that crashes the parsers, or takes longer than `deadline_s`, counts as refused, and the refusal
    says what happened. Safe to use from several threads; texts are read one after the other.
    """

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        # What parsers print is about a user's text: the refusal carries it, and the log does not.
        command = python_command("kernelcast.features.mlir.parse.parser_child")
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

    def __call__(self, text: str, names: Sequence[str] | None = None) -> NativeReading:
        """What the installed parsers, or those of `names`, make of `text`."""
        if not any(reader.takes(text) and (names is None or reader.name in names) for reader in installed()):
            return NativeReading(None, "")
        about = json.dumps({"names": None if names is None else list(names)}).encode()
        raw = text.encode()
        frame = HEAD.pack(len(about), len(raw)) + about + raw
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
