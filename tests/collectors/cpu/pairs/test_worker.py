"""Slots in which a kernel runs, by the real clock."""

from __future__ import annotations

import time

from kernelcast.collectors.cpu.pairs.worker import Slots, run_slots, warm_call_s


def work() -> int:
    return sum(range(20_000))


def test_a_kernel_runs_in_its_slots_alone() -> None:
    call_s = warm_call_s(work)
    slots = Slots(time.monotonic_ns() + 2_000_000, 20_000_000, 2_000_000, (True, False, True))
    seconds = run_slots(work, call_s, slots)
    assert time.monotonic_ns() >= slots.start_ns + 2 * slots.slot_ns
    assert seconds[1] is None
    assert all(value is not None and value > call_s / 4 for value in (seconds[0], seconds[2]))


def test_a_call_that_does_not_fit_a_slot_is_not_begun() -> None:
    slots = Slots(time.monotonic_ns(), 1_000_000, 0, (True, True))
    assert run_slots(work, 1.0, slots) == [None, None]
