"""Work that is done a few at a time: whoever would wait too long for a turn, or behind too many, is sent away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from .problems import ProblemError


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
