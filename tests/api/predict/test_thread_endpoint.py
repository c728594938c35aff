"""Large answers are worked out a few at a time."""

from __future__ import annotations

import time
from threading import Lock

import anyio
from kernelcast.api.predict.thread_endpoint import LARGE_AT_ONCE, on_thread


def test_no_more_large_answers_are_in_work_than_memory_is_meant_for() -> None:
    working, most, lock = 0, 0, Lock()

    def work(i: int) -> int:
        nonlocal working, most
        with lock:
            working += 1
            most = max(most, working)
        time.sleep(0.02)
        with lock:
            working -= 1
        return i

    async def many() -> list[int]:
        result: list[int] = []

        async def one(i: int) -> None:
            result.append(await on_thread(work, i))

        async with anyio.create_task_group() as tasks:
            for i in range(3 * LARGE_AT_ONCE):
                tasks.start_soon(one, i)
        return result

    for _ in range(2):  # a second event loop has a limit of its own
        assert sorted(anyio.run(many)) == list(range(3 * LARGE_AT_ONCE))
    assert most == LARGE_AT_ONCE
