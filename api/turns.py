"""Work that is done a few at a time: whoever would wait too long for a turn, or behind too many, is sent away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar, TypeVarTuple, Unpack

import anyio
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync

from .problems import ProblemError

LARGE_AT_ONCE = 4
"""Large answers worked out at the same time in one process. The interpreter works on one at a time whatever their number, and a
hundred thousand rows in columns take some 90 MB while they are worked on."""

_Parts = TypeVarTuple("_Parts")
_Answer = TypeVar("_Answer")
_large: RunVar[anyio.CapacityLimiter] = RunVar("kernelcast large answers")


async def on_thread(work: Callable[[Unpack[_Parts]], _Answer], *parts: *_Parts) -> _Answer:
    """The result of `work(*parts)`, which may be large, from a thread; at most `LARGE_AT_ONCE` run at a time."""
    try:
        limiter = _large.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(LARGE_AT_ONCE)
        _large.set(limiter)
    return await run_sync(work, *parts, limiter=limiter)


@asynccontextmanager
async def turn(turns: anyio.Semaphore, most_waiting: int, wait_s: float, busy: ProblemError) -> AsyncIterator[None]:
    """One of the `turns`, for as long as the context lasts.

    Raises:
        ProblemError: `busy`, where `most_waiting` others wait already, or no turn came within `wait_s`.
    """
    if turns.statistics().tasks_waiting >= most_waiting:
        raise busy
    with anyio.move_on_after(wait_s) as wait:
        await turns.acquire()
    if wait.cancelled_caught:
        raise busy
    try:
        yield
    finally:
        turns.release()
