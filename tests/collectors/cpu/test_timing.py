"""Sampling with a clock that tells what it is told to."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator

import pytest
from kernelcast.collectors.cpu.timing import (
    COLD,
    HOT,
    Clock,
    NoCleanSampleError,
    Sampler,
    StoppingRule,
    quiet_interpreter,
)

RULE = StoppingRule(warm_up_s=0.0, rewarm_s=0.0)


class FakeClock:
    """Time moves only when the kernel runs; so do preemptions and waiting."""

    def __init__(self) -> None:
        self.time_ns = 0
        self.switches = 0
        self.waited: int | None = None

    def now_ns(self) -> int:
        return self.time_ns

    def preemptions(self) -> int:
        return self.switches

    def waited_ns(self) -> int | None:
        return self.waited


def sampler(
    clock: FakeClock, duration_s: Callable[[int], float], preempted: Callable[[int], bool] = lambda i: False,
    rule: StoppingRule = RULE, wait_s: float | None = None,
) -> Sampler:  # fmt: skip
    """A sampler of a kernel whose i-th call takes `duration_s(i)` and is preempted, waiting `wait_s`, when told so."""
    calls: Iterator[int] = iter(range(10**9))
    clock.waited = None if wait_s is None else 0

    def call() -> None:
        i = next(calls)
        clock.time_ns += round(duration_s(i) * 1e9)
        if preempted(i):
            clock.switches += 1
            if wait_s is not None and clock.waited is not None:
                clock.waited += round(wait_s * 1e9)

    return Sampler(rule, clock, call=call)


def run(case: Sampler) -> Sampler:
    while not case.done:
        case.take_block()
    return case


def test_a_quiet_kernel_takes_three_blocks_of_ten() -> None:
    summary = run(sampler(FakeClock(), lambda i: 1e-4)).summary()
    assert (summary.median_s, summary.n, summary.rejected) == (pytest.approx(1e-4), 30, 0)
    assert summary.converged
    assert not summary.noisy


def test_preempted_samples_never_enter_the_median() -> None:
    # Every third call is preempted and ten times as slow; without rejection the mean would triple.
    slow = lambda i: i % 3 == 0  # noqa: E731
    summary = run(sampler(FakeClock(), lambda i: 1e-3 if slow(i) else 1e-4, slow)).summary()
    assert summary.median_s == pytest.approx(1e-4)
    assert summary.q3_s == pytest.approx(1e-4)
    assert summary.n == 30
    assert summary.rejected > 0


def test_a_long_sample_that_hardly_waited_counts_though_preempted() -> None:
    remaining = run(sampler(FakeClock(), lambda i: 1e-2, lambda i: True, wait_s=1e-6)).summary()
    assert remaining.converged
    assert remaining.rejected == 0
    waiting = sampler(FakeClock(), lambda i: 1e-2, lambda i: True, wait_s=1e-3)
    with pytest.raises(NoCleanSampleError, match="too busy"):
        run(waiting).summary()


def test_a_short_sample_never_counts_when_preempted() -> None:
    short = sampler(FakeClock(), lambda i: 1e-4, lambda i: True, wait_s=0.0)
    with pytest.raises(NoCleanSampleError, match="samples were preempted"):
        run(short).summary()


def test_blocks_that_disagree_are_followed_by_more_and_left_out() -> None:
    clock = FakeClock()
    case = sampler(clock, lambda i: 1e-4)
    fast, slow = case.call, case.call
    durations = iter([1.0, 1.4, 1.0, 1.0])

    def slower(factor: float) -> Callable[[], None]:
        def call() -> None:
            before = clock.time_ns
            slow()
            clock.time_ns = before + round((clock.time_ns - before) * factor)

        return call

    while not case.done:
        factor = next(durations)
        case.call = fast if factor == 1.0 else slower(factor)
        case.take_block()
    summary = case.summary()
    assert len(case.blocks) == 4
    assert summary.median_s == pytest.approx(1e-4)
    assert (summary.n, summary.rejected, summary.noisy) == (30, 10, False)


def test_a_case_that_never_settles_is_noisy_and_stops() -> None:
    clock = FakeClock()
    case = sampler(clock, lambda i: 1e-4)
    for factor in (1.0, 1.2, 1.5, 1.9, 2.5, 3.3):
        assert not case.done
        case.call_s = 1e-4 * factor
        base = case.call

        def call(base: Callable[[], object] = base, factor: float = factor) -> None:
            before = clock.time_ns
            base()
            clock.time_ns = before + round(1e5 * factor)

        case.call = call
        case.take_block()
    assert case.done
    assert case.summary().noisy
    assert not case.summary().converged


@pytest.mark.parametrize(
    ("call_s", "samples", "calls"), [(1.01e-6, 10, 20), (15e-6, 10, 2), (1e-3, 10, 1), (0.1, 3, 1)]
)
def test_samples_and_calls_follow_the_length_of_the_kernel(call_s: float, samples: int, calls: int) -> None:
    assert (HOT.samples_for(call_s), HOT.calls_for(call_s)) == (samples, calls)


def test_a_cold_sample_is_one_call_after_one_flush() -> None:
    clock, flushes = FakeClock(), []
    case = sampler(clock, lambda i: 1e-6, rule=COLD)
    case.flush = lambda: flushes.append(clock.time_ns)
    run(case)
    assert COLD.calls_for(1e-9) == 1
    assert len(flushes) == 3 * COLD.samples_per_block


def test_warm_up_is_at_least_25_ms_and_3_calls_and_keeps_the_first_apart() -> None:
    clock = FakeClock()
    case = sampler(clock, lambda i: 0.5 if i == 0 else 1e-3, rule=StoppingRule())
    case.warm_up()
    assert case.first_call_s == pytest.approx(0.5)
    assert case.call_s == pytest.approx(1e-3)
    quick = sampler(FakeClock(), lambda i: 1e-3, rule=StoppingRule())
    quick.warm_up()
    assert quick.clock.now_ns() >= 25e6


def test_the_tightest_blocks_are_chosen() -> None:
    assert sorted(HOT.agreeing([1.0, 5.0, 1.01, 2.0, 1.02])) == [0, 2, 4]
    assert HOT.settled([1.0, 1.01, 1.02])
    assert not HOT.settled([1.0, 1.01])
    assert not HOT.settled([1.0, 1.01, 1.2])


def test_garbage_collection_is_off_inside_and_on_after() -> None:
    with quiet_interpreter():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_system_clock_counts() -> None:
    clock = Clock()
    times = [clock.now_ns() for _ in range(100)]
    assert times == sorted(times)
    assert clock.preemptions() >= 0
    assert statistics.median(times) > 0
