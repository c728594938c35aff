"""Asks the process that reads measured rows: started at the first question, replaced when it dies, gone when idle."""

from __future__ import annotations

import threading
from operator import itemgetter
from types import TracebackType
from typing import Self

import msgspec

from .child_process import Child, ChildEndedError, ChildLostError, Program
from .measured_wire import HEAD, Question, Refused

DEADLINE_S = 20.0
"""Longest a question may take. Those about the shipped rows take some hundredths of a second; a large store that has changed is
read anew first."""

IDLE_S = 300.0
"""Seconds without a question after which the process ends itself and gives its memory back."""

_STORE = ("HOME", "KERNELCAST_HOME")
"""Where the user's own store is found."""


class MeasuredError(Exception):
    """A question that was refused (`status` 422, with the `field` at fault) or that could not be answered (500, 503)."""

    def __init__(self, status: int, field: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.field = field
        self.detail = detail


class MeasuredReader:
    """Answers questions about measured rows from a process of its own.

    Safe to use from several threads; questions are answered one after the other.
    """

    def __init__(self, deadline_s: float = DEADLINE_S, idle_s: float = IDLE_S) -> None:
        self.child = Child(
            Program("kernelcast.api.measured_child", HEAD, itemgetter(1), arguments=(str(idle_s),), environment=_STORE)
        )
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
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
                try:
                    head, reply = self.child.ask(frame, self._deadline_s)
                except ChildEndedError:
                    if self._closing:
                        raise
                    # Idle for long, or killed by the system for its memory: questions change nothing, so it is asked once more.
                    head, reply = self.child.ask(frame, self._deadline_s)
            except ChildLostError as lost:
                raise _lost(lost) from None
        if head[0] != 200:
            refused = msgspec.json.decode(reply, type=Refused)
            raise MeasuredError(head[0], refused.field, refused.detail)
        return reply

    def close(self) -> None:
        """End the process, if there is one, over a question too; the next question starts another."""
        self._closing = True
        # Without waiting for whoever asks: a service that ends has no time for a question that takes long.
        self.child.kill()
        with self._lock:
            self.child.end()
            self._closing = False


def _lost(lost: ChildLostError) -> MeasuredError:
    why = "; the server's log says why" if isinstance(lost, ChildEndedError) and lost.code >= 0 else ""
    return MeasuredError(503, "", f"the process that reads measured rows {lost}{why}; try again")
