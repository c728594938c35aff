"""What campaigns over kernels and over modules share: their state, how signals end them, progress, and what they report."""

from __future__ import annotations

import contextlib
import errno
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Generic, Literal, Protocol, TypeVar

from .host import utc_now


class CampaignError(Exception):
    """The campaign cannot go on; the message says what is stored and how to resume.

    Attributes:
        kind: `storage` where rows could not be stored, `device` where they could not be measured.
    """

    def __init__(self, message: str, kind: Literal["device", "storage"] = "device") -> None:
        """Raised by campaigns of every kind of device."""
        super().__init__(message)
        self.kind = kind


def why_not_stored(error: Exception) -> str:
    """Why rows could not be stored, and what to do about a full disk."""
    cause = error if isinstance(error, OSError) else error.__cause__
    full = isinstance(cause, OSError) and cause.errno == errno.ENOSPC
    return "the disk is full, free some space" if full else f"cannot store: {error}"


@dataclass(frozen=True, slots=True)
class CampaignSummary:
    """What a campaign did.

    Attributes:
        device: What was measured on.
        stored: Rows stored, by status.
        skipped: Cases that were stored before.
        left: Cases still to do.
        blocks: Blocks stored.
        remeasured: Blocks that were measured twice, because the machine drifted meanwhile.
        interrupted: Whether Ctrl-C or SIGTERM ended it.
        seconds: How long it took.
    """

    device: str
    stored: Mapping[str, int]
    skipped: int
    left: int
    blocks: int
    remeasured: int
    interrupted: bool
    seconds: float

    def __str__(self) -> str:
        rows, blocks = rows_text(self.stored, "measured"), "1 block" if self.blocks == 1 else f"{self.blocks} blocks"
        text = f"{self.device}: {rows} in {blocks}, {self.seconds:.0f} s; {self.skipped} skipped as already stored"
        return text + (f"; {self.left} left, run the same command again to resume" if self.left else "")


class Closable(Protocol):
    """A worker that can be ended."""

    def close(self) -> None:
        """End it, at once."""
        ...


_Key = TypeVar("_Key", bound=Hashable)
_Worker = TypeVar("_Worker", bound=Closable)


@dataclass(slots=True, kw_only=True)
class Campaign(Generic[_Key, _Worker]):
    """The state of a campaign under way.

    Attributes:
        device: The name rows carry.
        until: A time of `time.monotonic()` after which no further chunk is begun; None: as long as it takes.
        collectors: What measures, by what it is for.
        stored: Rows stored, by status.
        blocks: Blocks stored.
        remeasured: Blocks or chunks that were measured twice.
        began: When it began, as a time of `time.monotonic()`.
    """

    device: str
    until: float | None
    collectors: dict[_Key, _Worker] = field(default_factory=dict)
    stored: Counter[str] = field(default_factory=Counter)
    blocks: int = 0
    remeasured: int = 0
    began: float = field(default_factory=time.monotonic)

    def close(self) -> None:
        """Kill every worker."""
        for collector in self.collectors.values():
            collector.close()

    def out_of_time(self) -> bool:
        """Whether no further chunk may be begun."""
        return self.until is not None and time.monotonic() >= self.until

    def summary(self, *, wanted: int, todo: int, interrupted: bool) -> CampaignSummary:
        """What it did, of `wanted` cases of which `todo` were not stored before."""
        left = todo - sum(self.stored.values())
        return CampaignSummary(self.device, dict(self.stored), wanted - todo, left, self.blocks, self.remeasured, interrupted,
                               time.monotonic() - self.began)  # fmt: skip


def new_block_name() -> str:
    """The name of a block: the time, and something random."""
    return f"{utc_now().replace(':', '').replace('+0000', 'Z')}-{secrets.token_hex(3)}"


def rows_text(stored: Mapping[str, int], verb: str) -> str:
    """Rows by status in words: "4 rows measured (3 ok, 1 failed)"."""
    count = sum(stored.values())
    statuses = ", ".join(f"{rows} {status}" for status, rows in sorted(stored.items()))
    return ("1 row" if count == 1 else f"{count} rows") + f" {verb}" + (f" ({statuses})" if statuses else "")


Progress = Callable[[int, int], None]
"""Called with cases finished and cases in all."""


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt inside, as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"signal {number} in {frame}")

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread: whoever runs us there handles signals itself
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """SIGINT and SIGTERM that arrive inside take effect after."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
