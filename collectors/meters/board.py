"""Energy of a call on a board whose counter advances in steps: a window between two steps, in a steady loop.

    start | settle: the loop runs, nothing counts | step ... window ... step | ... window ... step | one more turn
                                                  edge                  edge                  edge

A sensor that updates ten times a second says nothing about a kernel of milliseconds, and an average over the last second
remembers what ran before (arXiv 2312.02741 found 39 % mean error in naive use, 5 % with repeats and long windows). So the
kernel runs on until power is steady, and the counter is read from one of its own steps to another, seconds later.

Measured once of a board, before the first case: its power at rest and how often its energy counter steps.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .protocol import SLOWDOWNS, Clock, Energy, EnergyRefusedError, SteadyLoop


class BoardReader(Protocol):
    """A board's sensors; None where one is missing, never an exception."""

    def energy_j(self) -> float | None:
        """A counter of energy drawn; only differences mean anything."""
        ...

    def power_w(self) -> float | None:
        """Power now, or its average over a short time."""
        ...

    def throttle(self) -> tuple[str, ...] | None:
        """Words for what limits the clocks."""
        ...


@dataclass(frozen=True, slots=True)
class EnergyRule:
    """How a loop is measured. Times in seconds, the rest are ratios.

    Attributes:
        settle_s: The loop runs so long before anything counts (more than the 1 s a power average remembers).
        window_s: Least length of a window;
        longest_s: it grows up to this where turns are so long
        edge: that its edges are not known to this share of it.
        agree: How far counter and power readings may lie apart.
        patience_s: How long the counter may not advance.
    """

    settle_s: float = 2.0
    window_s: float = 3.0
    longest_s: float = 10.0
    edge: float = 0.01
    agree: float = 0.05
    patience_s: float = 2.0


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at the sensors between two turns. `turned_s` is when the turn ended, `read_s` when the counter was read."""

    turned_s: float
    calls: int
    read_s: float
    energy_j: float
    power_w: float | None


@dataclass(frozen=True, slots=True)
class _Edge:
    """A step of the counter: when it happened, give or take `doubt_s`, and what it counts since; `look` saw it."""

    at_s: float
    doubt_s: float
    energy_j: float
    look: int


@dataclass(frozen=True, slots=True)
class BoardMeter:
    """Measures by the counter of a board.

    Attributes:
        name: Name of the sensor.
        reader: The board's sensors.
        rule: How a loop is measured.
        clock: What times are read from.
        idle_power_w: The board's power at rest; None where it was not measured.
        period_s: The counter's step; None where it was not measured.
    """

    name: str
    reader: BoardReader
    rule: EnergyRule = field(default_factory=EnergyRule)
    clock: Clock = field(default_factory=Clock)
    idle_power_w: float | None = None
    period_s: float | None = None

    def measure(self, loop: SteadyLoop, *, windows: int = 1) -> Energy | None:
        """Energy per call over `windows` windows in a row; None when the board has no counter.

        Raises:
            EnergyRefusedError: the counter went backwards, stood still or can no longer be read; it disagrees with the
                power readings; or the board slowed itself down for its temperature or its supply.
        """
        if self.reader.energy_j() is None:
            return None
        watch = _Watch(self.reader, self.clock, loop, self.rule.patience_s, self.period_s)
        watch.run(self.rule.settle_s)
        watch.words.clear()
        edges = [watch.next_edge()]
        for _ in range(windows):
            edges.append(self._window_end(watch, edges[-1]))
        watch.look()  # for the count of calls on both sides of the last edge
        powers = [self._check(watch, begin, end) for begin, end in itertools.pairwise(edges)]
        if slowed := SLOWDOWNS & set(watch.words):
            raise EnergyRefusedError(f"the board slowed itself down meanwhile ({', '.join(sorted(slowed))})")
        calls = [watch.calls_at(edge.at_s) for edge in edges]
        each = [(b.energy_j - a.energy_j) / (n - m) for (a, b), (m, n) in
                zip(itertools.pairwise(edges), itertools.pairwise(calls), strict=True)]  # fmt: skip
        seconds, done = edges[-1].at_s - edges[0].at_s, calls[-1] - calls[0]
        energy_j = (edges[-1].energy_j - edges[0].energy_j) / done
        known = [power for power in powers if power is not None]
        return Energy(
            energy_j=energy_j, power_w=energy_j * done / seconds, window_s=seconds, calls=done, windows=windows,
            idle_power_w=self.idle_power_w,
            net_energy_j=None if self.idle_power_w is None else energy_j - self.idle_power_w * seconds / done,
            power_integrated_w=statistics.mean(known) if len(known) == windows else None,
            spread=(max(each) - min(each)) / statistics.median(each) if windows > 1 else None,
        )  # fmt: skip

    def _window_end(self, watch: _Watch, begin: _Edge) -> _Edge:
        while True:
            edge = watch.next_edge()
            enough = max(self.rule.window_s, min((begin.doubt_s + edge.doubt_s) / self.rule.edge, self.rule.longest_s))
            if edge.at_s - begin.at_s >= enough:
                return edge

    def _check(self, watch: _Watch, begin: _Edge, end: _Edge) -> float | None:
        """Mean of the power readings between two edges, once it agrees with the counter; None where there are none."""
        integrated_w = _mean_power_w(watch.looks[begin.look : end.look + 1])
        if integrated_w is None:
            return None
        counted_w = (end.energy_j - begin.energy_j) / (end.at_s - begin.at_s)
        if abs(counted_w - integrated_w) > self.rule.agree * max(counted_w, integrated_w):
            raise EnergyRefusedError(
                f"the energy counter says {counted_w:.1f} W and the power readings {integrated_w:.1f} W, "
                f"more than {self.rule.agree:.0%} apart"
            )
        return integrated_w


class _Watch:
    """Turns a loop, looks at the sensors in between, and knows when the counter steps."""

    def __init__(
        self, reader: BoardReader, clock: Clock, loop: SteadyLoop, patience_s: float, period_s: float | None
    ) -> None:
        self._reader, self._clock, self._loop = reader, clock, loop
        self._patience_s, self._period_s = patience_s, period_s
        self.looks: list[_Look] = []
        self.words: dict[str, None] = {}  # an ordered set
        self._stepped_s = clock.now_s()

    def look(self) -> bool:
        """One turn and one look; True when the counter has stepped since the look before.

        Raises:
            EnergyRefusedError: the counter cannot be read, went backwards, or stands still.
        """
        calls = self._loop.turn()
        turned_s = self._clock.now_s()
        energy_j = self._reader.energy_j()
        # Reading takes time, milliseconds on some boards; the value is from somewhere in between.
        read_s = (turned_s + self._clock.now_s()) / 2
        if energy_j is None:
            raise EnergyRefusedError("the energy counter can no longer be read")
        last = self.looks[-1] if self.looks else None
        self.looks.append(_Look(turned_s, calls, read_s, energy_j, self._reader.power_w()))
        if last is None or energy_j == last.energy_j:
            if read_s - self._stepped_s > self._patience_s + (read_s - last.read_s if last else 0.0):
                raise EnergyRefusedError(
                    f"the energy counter stood still over {read_s - self._stepped_s:.2g} s of work"
                )
            return False
        if energy_j < last.energy_j:
            raise EnergyRefusedError(f"the energy counter went backwards, from {last.energy_j:.3f} to {energy_j:.3f} J")
        self._stepped_s = read_s
        self.words.update(dict.fromkeys(self._reader.throttle() or ()))
        return True

    def run(self, seconds: float) -> None:
        """Turn and look for at least `seconds`."""
        began_s = self._clock.now_s()
        while self._clock.now_s() - began_s < seconds:
            self.look()

    def next_edge(self) -> _Edge:
        """The counter's next step. It happened since the look before, and no longer ago than the counter's period."""
        while not self.look():
            continue
        before, seen = self.looks[-2], self.looks[-1]
        since_s = seen.read_s - before.read_s
        doubt_s = (since_s if self._period_s is None else min(since_s, self._period_s)) / 2
        return _Edge(seen.read_s - doubt_s, doubt_s, seen.energy_j, len(self.looks) - 1)

    def calls_at(self, moment_s: float) -> float:
        """Calls completed at a moment between two turns' ends, in proportion to time."""
        for before, after in itertools.pairwise(self.looks):
            if before.turned_s <= moment_s <= after.turned_s:
                share = (moment_s - before.turned_s) / (after.turned_s - before.turned_s)
                return before.calls + share * (after.calls - before.calls)
        raise EnergyRefusedError("the calls at an edge of the window are not known")


def _mean_power_w(looks: Sequence[_Look]) -> float | None:
    """Time-weighted mean of the power readings; None when one is missing."""
    total_j = 0.0
    for before, after in itertools.pairwise(looks):
        if after.power_w is None:
            return None
        total_j += after.power_w * (after.read_s - before.read_s)
    seconds = looks[-1].read_s - looks[0].read_s
    return total_j / seconds if seconds > 0 else None


_REST_S = 5.0
"""Least wait for a board to rest, since clocks stay up for seconds after the last kernel."""

_REST_MEAN_S, _REST_AGREE, REST_CAP_S = 1.0, 0.02, 30.0
"""It rests once the means of two successive spans of this length lie within this ratio, or after so many seconds."""

_REST_POLL_S = 0.02
"""Seconds between two readings of power while the board comes to rest."""
_PERIOD_READ_S = 2.0
"""Seconds for which the counter's steps are timed."""


def idle_power_w(reader: BoardReader, clock: Clock | None = None) -> float | None:
    """The board's power while nothing runs on it; None when it does not tell its power.

    The caller's own context counts: a process that holds one keeps clocks, and power, up on many boards. Measure it as
    the loop will run, with the context open.
    """
    clock = clock or Clock()
    began_s = clock.now_s()
    means: list[float] = []
    while True:
        readings: list[float] = []
        until_s = clock.now_s() + _REST_MEAN_S
        while clock.now_s() < until_s:
            power_w = reader.power_w()
            if power_w is None:
                return None
            readings.append(power_w)
            clock.sleep(_REST_POLL_S)
        means.append(statistics.mean(readings))
        spent_s = clock.now_s() - began_s
        steady = len(means) > 1 and abs(means[-1] - means[-2]) <= _REST_AGREE * means[-2]
        if spent_s >= REST_CAP_S or (spent_s >= _REST_S and steady):
            return means[-1]


def sensor_period_s(reader: BoardReader, clock: Clock | None = None) -> float | None:
    """The time between two steps of the energy counter, the median over two seconds; None when it steps under 3 times.

    Read every millisecond.
    """
    clock = clock or Clock()
    steps_s: list[float] = []
    last_j: float | None = None
    until_s = clock.now_s() + _PERIOD_READ_S
    while (now_s := clock.now_s()) < until_s:
        energy_j = reader.energy_j()
        if energy_j is None:
            return None
        if last_j is not None and energy_j != last_j:
            steps_s.append(now_s)
        last_j = energy_j
        clock.sleep(1e-3)
    if len(steps_s) < 3:
        return None
    return statistics.median(after - before for before, after in itertools.pairwise(steps_s))
