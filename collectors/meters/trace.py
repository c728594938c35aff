"""What a board's sensors said while a loop ran, sample by sample: recorded once, read again by any meter.

A trace is one JSON object: `about` (what and where), and the columns of `Sample`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .board import BoardReader
from .protocol import Clock, MonotonicClock, SteadyLoop


class TraceEndedError(Exception):
    """A meter wants more of a trace than was recorded."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of the sensors.

    Attributes:
        time_s: When the counter was read.
        counter_mj: What it said.
        power_instant_w: Power at that time.
        calls: Calls completed so far.
    """

    time_s: float
    counter_mj: int
    power_instant_w: float | None
    calls: int


def record_trace(reader: BoardReader, loop: SteadyLoop, seconds: float, clock: Clock | None = None) -> list[Sample]:
    """Turn `loop` for `seconds` and look at the sensors after every turn; times begin at 0.

    Raises:
        ValueError: the board has no energy counter.
    """
    clock = clock or MonotonicClock()
    began_s = clock.now_s()
    samples: list[Sample] = []
    while clock.now_s() - began_s < seconds:
        calls = loop.turn()
        turned_s = clock.now_s()
        energy_j = reader.energy_j()
        read_s = (turned_s + clock.now_s()) / 2
        if energy_j is None:
            raise ValueError("a trace needs an energy counter, and this board has none")
        samples.append(Sample(round(read_s - began_s, 6), round(energy_j * 1e3), reader.power_w(), calls))
    return samples


def write_trace(path: Path, samples: Sequence[Sample], about: Mapping[str, Any]) -> None:
    """Write a trace; `about` is plain JSON."""
    columns = {field.name: [getattr(sample, field.name) for sample in samples] for field in fields(Sample)}
    path.write_text(json.dumps({"about": dict(about)} | columns) + "\n")


def read_trace(path: Path) -> list[Sample]:
    """The samples `write_trace` wrote."""
    trace = json.loads(path.read_text())
    columns = [trace[field.name] for field in fields(Sample)]
    return [Sample(*values) for values in zip(*columns, strict=True)]


class TracePlayer:
    """A trace as clock, loop and board in one: a turn goes to the next sample, and all else says what it holds."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._rest: Iterator[Sample] = iter(samples)
        self.sample = next(self._rest)

    def turn(self) -> int:
        """Go to the next sample.

        Raises:
            TraceEndedError: there is none.
        """
        following = next(self._rest, None)
        if following is None:
            raise TraceEndedError(f"the trace ends after {self.sample.time_s:.3g} s; record a longer one")
        self.sample = following
        return following.calls

    def now_s(self) -> float:
        """Time of the sample."""
        return self.sample.time_s

    def sleep(self, seconds: float) -> None:
        """Go on to the first sample at least `seconds` later."""
        until_s = self.sample.time_s + seconds
        while self.sample.time_s < until_s:
            self.turn()

    def energy_j(self) -> float | None:
        """The sample's counter."""
        return self.sample.counter_mj * 1e-3

    def power_w(self) -> float | None:
        """The sample's power."""
        return self.sample.power_instant_w

    def temperature_c(self) -> float | None:
        """Not part of a trace."""
        return None

    def throttle(self) -> tuple[str, ...] | None:
        """Not part of a trace."""
        return None
