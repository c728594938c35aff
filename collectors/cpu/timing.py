"""Timing of one zero-argument call on a CPU that is shared with others: clean samples, separated blocks, one summary.

A sample is the wall time of one call, or of k calls in a row where one is too short to time. It counts only when no
thread of this process was preempted during it (`ru_nivcsw`, involuntary context switches, unchanged): on a shared
2-core machine that brought the run-to-run variation of the median from some 40 % to under 2 %. A long sample is seldom
left alone entirely, so it also counts when the scheduler's own account says that what it waited is next to nothing.
Samples come in blocks separated in time; a case is settled when enough block medians agree.

    prepare | first call | warm up | block 1 ... other cases ... block 2 ... other cases ... block 3 | extra blocks
"""

from __future__ import annotations

import gc
import math
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from ...datasets.rows.schema import message_of
from ..meters.protocol import EnergyMeter, EnergyRefusedError


class NoCleanSampleError(Exception):
    """Every sample of a case was preempted: the machine is too busy to measure it."""


class Clock:
    """Time and preemptions: `perf_counter_ns`, and the kernel's accounts of this process, which cover every thread.

    `ru_nivcsw` of getrusage(2) with RUSAGE_SELF, and the second number of /proc/PID/task/TID/schedstat.
    """

    def now_ns(self) -> int:
        """Monotonic time in nanoseconds."""
        return time.perf_counter_ns()

    def preemptions(self) -> int:
        """Involuntary context switches so far of all threads of this process."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw

    def waited_ns(self) -> int | None:
        """Time so far that threads of this process were ready but not running."""
        try:
            accounts = [(task / "schedstat").read_text() for task in Path("/proc/self/task").iterdir()]
        except OSError:  # no such account, or a thread that just ended
            return None
        return sum(int(account.split()[1]) for account in accounts)


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """When a case has been measured well enough. Times in seconds.

    Attributes:
        blocks: Blocks whose medians must agree.
        samples_per_block: Clean samples of a block.
        fewest_per_block: Clean samples of a block of a long kernel, which holds fewer so that it stays near `block_s`.
        extra_blocks: Blocks taken at most beyond `blocks` while the medians do not agree.
        disagreement: How far apart the medians of blocks may lie, as a ratio.
        warm_up_s: Least time of running before the first block.
        warm_up_calls: Least calls before the first block, the first call included.
        rewarm_s: Least time of running before each later block, since other cases ran in between.
        rewarm_calls: Least calls before each later block.
        sample_s: Shortest sample.
        block_s: About how long a block lasts.
        case_s: No extra block is begun once sampling has taken this long.
        attempts: Tries per clean sample.
        long_s: A preempted sample of at least this length still counts
        waiting: where it waited for less than this share of its time.
    """

    blocks: int = 3
    samples_per_block: int = 10
    fewest_per_block: int = 3
    extra_blocks: int = 3
    disagreement: float = 0.03
    warm_up_s: float = 0.025
    warm_up_calls: int = 3
    rewarm_s: float = 0.004
    rewarm_calls: int = 2
    sample_s: float = 20e-6
    block_s: float = 0.04
    case_s: float = 0.6
    attempts: int = 4
    long_s: float = 1e-3
    waiting: float = 0.005

    def samples_for(self, call_s: float) -> int:
        """Clean samples in one block of a call that takes `call_s`."""
        return max(self.fewest_per_block, min(self.samples_per_block, int(self.block_s / max(call_s, 1e-9))))

    def calls_for(self, call_s: float) -> int:
        """Calls in one sample, so that it lasts `sample_s`."""
        return max(1, math.ceil(self.sample_s / max(call_s, 1e-9)))

    def settled(self, medians: Sequence[float]) -> bool:
        """Whether `blocks` of the block medians agree."""
        if len(medians) < self.blocks:
            return False
        chosen = [medians[i] for i in self.agreeing(medians)]
        return max(chosen) - min(chosen) <= self.disagreement * min(chosen)

    def agreeing(self, medians: Sequence[float]) -> list[int]:
        """Indices of the `blocks` blocks whose medians lie closest together; all where there are no more."""
        order = sorted(range(len(medians)), key=medians.__getitem__)
        if len(order) <= self.blocks:
            return order
        starts = range(len(order) - self.blocks + 1)
        best = min(starts, key=lambda i: medians[order[i + self.blocks - 1]] / medians[order[i]])
        return order[best : best + self.blocks]


HOT = StoppingRule()
# A cold sample is one call however short (the next would find its operands in cache), and pays for a flush, so the
# budget buys fewer; re-warming between blocks would be undone by the flush, but one call brings the code back.
COLD = StoppingRule(samples_per_block=8, warm_up_s=0.005, rewarm_s=0.0, sample_s=0.0, block_s=0.06, case_s=0.5)


@dataclass(frozen=True, slots=True)
class Summary:
    """What sampling a case gave; times in seconds per call.

    Attributes:
        median_s: Median.
        q1_s: Lower quartile.
        q3_s: Upper quartile.
        min_s: Least.
        n: Number of samples.
        rejected: Samples left out: preempted ones, and those of blocks that did not agree with the rest.
        converged: Whether enough blocks agreed.
        noisy: Whether the case counts as noisy.
    """

    median_s: float
    q1_s: float
    q3_s: float
    min_s: float
    n: int
    rejected: int
    converged: bool
    noisy: bool

    def columns(self) -> dict[str, Any]:
        """What a row keeps of it."""
        return {
            "latency_s": self.median_s, "latency_q1_s": self.q1_s, "latency_q3_s": self.q3_s, "latency_min_s": self.min_s,
            "n_samples": self.n, "rejected_samples": self.rejected, "converged": self.converged, "noisy": self.noisy,
        }  # fmt: skip


@contextmanager
def quiet_interpreter() -> Iterator[None]:
    """No garbage collection inside; what was on before is on again after."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(slots=True)
class Sampler:
    """One case being measured: set `call`, take blocks until `done`, then `summary()`. The first block warms it up.

    Attributes:
        rule: When to stop.
        clock: What times are read from.
        flush: Called before every sample of a cold case; None for a hot one.
        call: The kernel; an equal one on other operands may replace it between blocks.
        first_call_s: Seconds of the first call.
        call_s: Estimated seconds of one call.
        blocks: Samples by block, in seconds per call.
        preempted: Samples left out because another process ran meanwhile.
        spent_s: Seconds of sampling so far.
    """

    rule: StoppingRule
    clock: Clock = field(default_factory=Clock)
    flush: Callable[[], None] | None = None
    call: Callable[[], Any] = lambda: None
    first_call_s: float = math.nan
    call_s: float = math.nan
    blocks: list[list[float]] = field(default_factory=list)
    preempted: int = 0
    spent_s: float = 0.0

    def warm_up(self) -> None:
        """The first call, timed apart, then calls until the rule's warm-up is met; estimates the time of one call."""
        times = [self._timed(1)[0]]
        self.first_call_s = times[0]
        while len(times) < self.rule.warm_up_calls or sum(times) < self.rule.warm_up_s:
            times.append(self._timed(1)[0])
        # The later half: early calls still fault pages in. Its minimum, since preemption only ever adds.
        self.call_s = min(times[len(times) // 2 :])

    @property
    def done(self) -> bool:
        """Whether another block would serve nothing: settled, out of budget, or out of extra blocks."""
        if len(self.blocks) < self.rule.blocks:
            return False
        if len(self.blocks) >= self.rule.blocks + self.rule.extra_blocks or self.spent_s >= self.rule.case_s:
            return True
        return self._complete and self.rule.settled(self._medians)

    def take_block(self) -> None:
        """One block of clean samples; fewer than wanted where the machine keeps preempting."""
        began = self.clock.now_ns()
        if self.blocks:
            self._rewarm()
        else:
            self.warm_up()
        wanted, calls = self.rule.samples_for(self.call_s), self.rule.calls_for(self.call_s)
        clean: list[float] = []
        for _ in range(self.rule.attempts * wanted):
            if self.flush is not None:
                self.flush()
            seconds, is_clean = self._timed(calls)
            if not is_clean:
                self.preempted += 1
                continue
            clean.append(seconds)
            if len(clean) == wanted:
                break
        self.blocks.append(clean)
        self.spent_s += (self.clock.now_ns() - began) * 1e-9

    def summary(self) -> Summary:
        """Median and quartiles over the clean samples of the blocks that agree best.

        Raises:
            NoCleanSampleError: there is none.
        """
        filled = [block for block in self.blocks if block]
        if not filled:
            raise NoCleanSampleError(f"all {self.preempted} samples were preempted: the machine is too busy")
        chosen = self.rule.agreeing([statistics.median(block) for block in filled])
        accepted = np.array([sample for i in chosen for sample in filled[i]])
        q1, median, q3 = np.percentile(accepted, (25, 50, 75))
        agree = self.rule.settled(self._medians)
        taken = sum(map(len, filled)) + self.preempted
        return Summary(
            median_s=float(median), q1_s=float(q1), q3_s=float(q3), min_s=float(accepted.min()), n=len(accepted),
            rejected=taken - len(accepted), converged=agree and self._complete, noisy=not agree,
        )  # fmt: skip

    @property
    def _medians(self) -> list[float]:
        return [statistics.median(block) for block in self.blocks if block]

    @property
    def _complete(self) -> bool:
        wanted = self.rule.blocks * self.rule.samples_for(self.call_s)
        return sum(map(len, self.blocks)) >= wanted

    def _rewarm(self) -> None:
        until = self.clock.now_ns() + int(self.rule.rewarm_s * 1e9)
        for _ in repeat(None, self.rule.rewarm_calls):
            self.call()
        while self.clock.now_ns() < until:
            self.call()

    def _timed(self, calls: int) -> tuple[float, bool]:
        """Seconds per call over `calls` calls, and whether nothing else took time from this process meanwhile."""
        call, clock = self.call, self.clock
        # Read for long samples only: it costs tens of microseconds, and evicts a little of the cache.
        waited = clock.waited_ns() if calls * self.call_s >= self.rule.long_s else None
        switches = clock.preemptions()
        began = clock.now_ns()
        for _ in repeat(None, calls):
            call()
        spent = clock.now_ns() - began
        clean = clock.preemptions() == switches
        if not clean and waited is not None and (waited_since := clock.waited_ns()) is not None:
            clean = waited_since - waited < self.rule.waiting * spent
        return spent * 1e-9 / calls, clean


TURN_S = 5e-3
"""Length of a turn of the loop whose energy is measured: reading the clock between turns then costs nothing."""


@dataclass(slots=True)
class _Loop:
    """A `SteadyLoop` of a call that returns when its result is complete."""

    call: Callable[[], Any]
    calls_per_turn: int
    done: int = 0

    def turn(self) -> int:
        for _ in repeat(None, self.calls_per_turn):
            self.call()
        self.done += self.calls_per_turn
        return self.done


def steady_energy(call: Callable[[], Any], call_s: float, meter: EnergyMeter) -> tuple[dict[str, Any], str | None]:
    """Columns of what a call of `call_s` seconds costs in a steady loop, and why there are none where a reading was refused."""
    loop = _Loop(call, max(1, round(TURN_S / call_s)))
    try:
        energy = meter.measure(loop)
    except EnergyRefusedError as refused:
        return {}, message_of("no energy", str(refused))
    if energy is None:
        return {}, None
    return {"power_w": energy.power_w, "energy_j": energy.energy_j, "energy_source": meter.name}, None
