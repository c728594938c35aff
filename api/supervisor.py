"""Several workers behind one listening socket: started, watched, replaced when they die or hang, restarted one by one.

The supervisor opens the socket, never accepts from it, and serves nothing itself. The workers are programs of their own
(`worker.py`), started anew and not forked from a process with threads. Each has a socket to here: settings go in, "ready" comes
out once a second. Whichever end closes, the other knows: a dead worker is replaced, and without a supervisor a worker ends.

The listening socket is one and shared. With one socket per worker (SO_REUSEPORT) connections wait in the queue of a worker that
is stopped, hangs or has just died; here they wait for whichever worker is free. `docs/reliability.md` has the measurement.
"""

from __future__ import annotations

import contextlib
import json
import logging
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

from ..features.errors import SpecError
from .settings import Settings
from .worker import SHUTDOWN_S, encode_settings

HANG_S = 30.0
"""A worker that says nothing for so long is killed: its event loop stands still, so it answers no one either."""

STEADY_S = 30.0
"""A worker that lived so long after it was ready did not die of its start; the count of failures begins anew."""

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
"""The first death is answered by a start at once; each further one doubles the pause before it."""

_TRIES = 3
"""Deaths of every worker before the first is ready, or looks of every worker for a model, after which the start is given up."""

_DRAIN_S = SHUTDOWN_S + 5.0
_LOOK_S = 0.25
_log = logging.getLogger("kernelcast.api")


class _StoppedError(Exception):
    """A signal asks to stop."""


@dataclass(eq=False, slots=True)
class Worker:
    """One process. Times are of the monotonic clock; `ready_at` is None until it answers, `end_by` until it is told to end."""

    slot: int
    process: subprocess.Popen[bytes]
    link: socket.socket
    started_at: float
    heard_at: float
    ready_at: float | None = None
    end_by: float | None = None
    empty_looks: int = 0
    unread: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class Slot:
    """A place for one worker; `deaths` in a row decide when the next is started."""

    worker: Worker | None = None
    deaths: int = 0
    start_at: float = 0.0

    @property
    def failures(self) -> int:
        """Deaths, and looks for a model that found none."""
        return self.deaths + (self.worker.empty_looks if self.worker else 0)


class Supervisor:
    """Keeps `settings.workers` workers answering on `listener`."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._slots = [Slot() for _ in range(settings.workers)]
        self._workers: list[Worker] = []
        self._selector = selectors.DefaultSelector()
        self._stop_signal: int | None = None
        self._is_roll_asked = False
        self._is_ending = False
        self._problem = ""

    def run(self, ready: Callable[[], None]) -> None:
        """Start the workers, call `ready` once one answers, and keep them until SIGTERM or SIGINT; SIGHUP restarts them.

        Raises:
            SpecError: no worker answers within `settings.start_s`.
            KeyboardInterrupt: stopped by SIGINT, after open requests were answered.
        """
        if sys.platform == "win32":
            raise SpecError("several workers need a POSIX system; serve with one here", field="workers")
        with _signals_to(self._signalled, self._selector):
            try:
                self._come_up()
                ready()
                while True:
                    self._look()
                    if self._is_roll_asked:
                        self._is_roll_asked = False
                        self._roll()
            except _StoppedError:
                pass
            finally:
                self._end_all()
        if self._stop_signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self._stop_signal is not None:
            # As a program without a handler would: whoever started it sees what ended it.
            signal.raise_signal(self._stop_signal)

    def _come_up(self) -> None:
        give_up_at = time.monotonic() + self._settings.start_s
        while not any(worker.ready_at for worker in self._workers):
            self._look()
            late = time.monotonic() > give_up_at
            if late or all(slot.failures >= _TRIES for slot in self._slots):
                how = f"within {self._settings.start_s:g} s" if late else f"in {_TRIES} tries each"
                why = self._problem or "they did not say why; their messages are above"
                raise SpecError(f"none of {len(self._slots)} workers could answer {how}: {why}", field="workers")

    def _look(self) -> None:
        """Hear the workers for a moment, bury the dead, end the stuck, start what is missing.

        Raises:
            _StoppedError: a signal asks to stop.
        """
        for key, _ in self._selector.select(_LOOK_S):
            if isinstance(key.data, Worker):
                self._hear(key.data)
            else:
                with contextlib.suppress(BlockingIOError):
                    key.data.recv(4096)
        if self._stop_signal is not None and not self._is_ending:
            raise _StoppedError
        self._care()

    def _care(self) -> None:
        now = time.monotonic()
        for worker in list(self._workers):
            if (code := worker.process.poll()) is not None:
                self._bury(worker, code, now)
            elif worker.end_by is not None and now > worker.end_by:
                worker.process.kill()
            elif worker.end_by is None and now - worker.heard_at > self._longest_silence_s(worker):
                _log.error("worker %d said nothing for %.0f s and is killed", worker.process.pid, now - worker.heard_at)
                worker.process.kill()
        if not self._is_ending:
            for number, slot in enumerate(self._slots):
                if slot.worker is None and now >= slot.start_at:
                    slot.worker = self._start(number)

    def _start(self, number: int) -> Worker:
        here, there = socket.socketpair()
        with there:
            process = subprocess.Popen(  # noqa: S603 - this program, with numbers for arguments
                [sys.executable, "-P", "-m", "kernelcast.api.worker", str(self._listener.fileno()), str(there.fileno())],
                pass_fds=(self._listener.fileno(), there.fileno()), stdin=subprocess.DEVNULL,
                # Its own session: Ctrl-C in a terminal is for the supervisor, which then ends the workers in order.
                start_new_session=True,
            )  # fmt: skip
        with contextlib.suppress(OSError):  # it died at once; `_care` finds it
            here.sendall(encode_settings(self._settings))
        here.setblocking(False)
        now = time.monotonic()
        worker = Worker(number, process, here, now, now)
        self._workers.append(worker)
        self._selector.register(here, selectors.EVENT_READ, worker)
        return worker

    def _longest_silence_s(self, worker: Worker) -> float:
        return max(HANG_S, self._settings.start_s) if worker.ready_at is None else HANG_S

    def _hear(self, worker: Worker) -> None:
        try:
            said = worker.link.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            # It has ended or is about to: `_care` sees how.
            self._selector.unregister(worker.link)
            return
        worker.heard_at = time.monotonic()
        *lines, rest = (worker.unread + said).split(b"\n")
        worker.unread = bytearray(rest)
        for line in lines:
            report = json.loads(line)
            if worker.ready_at is None:
                worker.ready_at = worker.heard_at if report["ready"] else None
                worker.empty_looks += not report["ready"]
            if report["problem"]:
                self._problem = str(report["problem"])

    def _bury(self, worker: Worker, code: int, now: float) -> None:
        self._workers.remove(worker)
        with contextlib.suppress(KeyError):  # its end of the socket was seen to close before
            self._selector.unregister(worker.link)
        worker.link.close()
        slot = self._slots[worker.slot]
        if slot.worker is not worker:
            return  # it was told to go, and another has its place
        slot.worker = None
        was_steady = worker.ready_at is not None and now - worker.ready_at > STEADY_S
        slot.deaths = 1 if was_steady else slot.deaths + 1
        pause_s = 0.0 if slot.deaths == 1 else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(slot.deaths - 2, 10))
        slot.start_at = now + pause_s
        if not self._is_ending:
            how = signal.Signals(-code).name if code < 0 else f"status {code}"
            _log.error("worker %d ended with %s; another starts in %g s", worker.process.pid, how, pause_s)

    def _roll(self) -> None:
        """Restart the workers one at a time: each goes once its successor answers, and ends when its requests are answered."""
        for number, slot in enumerate(self._slots):
            successor = self._start(number)
            give_up_at = successor.started_at + self._settings.start_s
            while successor in self._workers and successor.ready_at is None:
                if time.monotonic() > give_up_at:
                    successor.process.kill()
                self._look()
            if successor not in self._workers:
                why = f": {self._problem}" if self._problem else ""
                _log.error(
                    "the restart stops at worker %d of %d, the others go on%s", number + 1, len(self._slots), why
                )
                return
            old, slot.worker, slot.deaths = slot.worker, successor, 0
            if old is not None:
                self._end(old)
                while old in self._workers:
                    self._look()

    def _end(self, worker: Worker) -> None:
        worker.end_by = time.monotonic() + _DRAIN_S
        worker.process.terminate()

    def _end_all(self) -> None:
        """Have every worker answer what it was asked, then end; those that do not within `_DRAIN_S` are killed."""
        self._is_ending = True
        self._listener.close()
        for worker in self._workers:
            self._end(worker)
        while self._workers:
            self._look()
        self._selector.close()

    def _signalled(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._is_roll_asked = True
        elif number != signal.SIGCHLD:
            if self._stop_signal is not None:  # asked twice: whoever asks does not want to wait
                for worker in self._workers:
                    worker.process.kill()
            self._stop_signal = number


@contextlib.contextmanager
def _signals_to(handler: Callable[[int, FrameType | None], None], selector: selectors.BaseSelector) -> Iterator[None]:
    """Signals call `handler` and wake `selector`; as they were before, afterwards."""
    here, there = socket.socketpair()
    for end in (here, there):
        end.setblocking(False)
    selector.register(here, selectors.EVENT_READ, here)
    before = {number: signal.signal(number, handler)
              for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)}  # fmt: skip
    wake = signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wake)
        for number, handled in before.items():
            signal.signal(number, handled)
        here.close()
        there.close()
