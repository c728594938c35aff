"""What is measured of a board once, before the first case: its power at rest and how often its energy counter steps."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass

from .board import BoardReader
from .clock import Clock, MonotonicClock
from .protocol import SteadyLoop


@dataclass(frozen=True, slots=True)
class IdleRule:
    """When a board counts as resting. Times in seconds.

    At least `least_s`, since clocks stay up for seconds after the last kernel; then until the means of two successive
    `mean_s` lie within `agree` of each other, or `cap_s` have passed.
    """

    least_s: float = 5.0
    mean_s: float = 1.0
    agree: float = 0.02
    cap_s: float = 30.0
    poll_s: float = 0.02


def idle_power_w(reader: BoardReader, rule: IdleRule | None = None, clock: Clock | None = None) -> float | None:
    """The board's power while nothing runs on it; None when it does not tell its power.

    The caller's own context counts: a process that holds one keeps clocks, and power, up on many boards. Measure it as
    the loop will run, with the context open.
    """
    rule, clock = rule or IdleRule(), clock or MonotonicClock()
    began_s = clock.now_s()
    means: list[float] = []
    while True:
        readings: list[float] = []
        until_s = clock.now_s() + rule.mean_s
        while clock.now_s() < until_s:
            power_w = reader.power_w()
            if power_w is None:
                return None
            readings.append(power_w)
            clock.sleep(rule.poll_s)
        means.append(statistics.mean(readings))
        spent_s = clock.now_s() - began_s
        steady = len(means) > 1 and abs(means[-1] - means[-2]) <= rule.agree * means[-2]
        if spent_s >= rule.cap_s or (spent_s >= rule.least_s and steady):
            return means[-1]


def sensor_period_s(
    reader: BoardReader, clock: Clock | None = None, loop: SteadyLoop | None = None, seconds: float = 2.0
) -> float | None:
    """The time between two steps of the energy counter, the median over `seconds`; None when it steps under 3 times.

    Read every millisecond at rest, or between the turns of `loop`, which sees steps only as finely as its turns.
    """
    clock = clock or MonotonicClock()
    steps_s: list[float] = []
    last_j: float | None = None
    until_s = clock.now_s() + seconds
    while (now_s := clock.now_s()) < until_s:
        energy_j = reader.energy_j()
        if energy_j is None:
            return None
        if last_j is not None and energy_j != last_j:
            steps_s.append(now_s)
        last_j = energy_j
        if loop is None:
            clock.sleep(1e-3)
        else:
            loop.turn()
    if len(steps_s) < 3:
        return None
    return statistics.median(after - before for before, after in itertools.pairwise(steps_s))
