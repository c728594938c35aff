"""One real trace read by the meter of boards.

`energy_trace.json` is what NVML said of an H200 over 6.6 s of GELU on 1024 x 4096 fp16 values, turn by turn; the
board comes from lighter work. Of eight kernels recorded this one draws its power most evenly (0.03 % over windows of a
second).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from kernelcast.collectors.gpu.campaign import SETTLE_S, WINDOW_S
from kernelcast.collectors.meters.board import BoardMeter, EnergyRule, sensor_period_s

TRACE = Path(__file__).with_name("energy_trace.json")


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


def read_trace(path: Path) -> list[Sample]:
    """The samples of a trace: one JSON object of `about` and the columns of `Sample`."""
    trace = json.loads(path.read_text())
    columns = [trace[field.name] for field in fields(Sample)]
    return [Sample(*values) for values in zip(*columns, strict=True)]


class TraceEndedError(Exception):
    """A meter wants more of a trace than was recorded."""


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

    def throttle(self) -> tuple[str, ...] | None:
        """Not part of a trace."""
        return None


def ours(samples: list[Sample], rule: EnergyRule | None = None, period_s: float | None = None) -> Any:
    player = TracePlayer(samples)
    return BoardMeter("trace", player, rule or EnergyRule(), player, period_s=period_s).measure(player)


def steps_s(samples: list[Sample]) -> float:
    player = TracePlayer(samples)
    period_s = sensor_period_s(player, player)
    assert period_s is not None
    return period_s


def test_what_the_board_drew_is_what_the_trace_says() -> None:
    samples = read_trace(TRACE)
    last = samples[-1]
    settled = next(sample for sample in samples if sample.time_s > 1.0)
    drawn_j = (last.counter_mj - settled.counter_mj) * 1e-3
    measured = ours(samples)
    # Both ends of the plain difference may miss a step of 0.1 s, of 5.6 s.
    assert measured.power_w == pytest.approx(drawn_j / (last.time_s - settled.time_s), rel=0.02)
    assert measured.energy_j == pytest.approx(drawn_j / (last.calls - settled.calls), rel=0.02)
    assert measured.power_w == pytest.approx(measured.power_integrated_w, rel=0.005)
    assert measured.window_s / measured.calls == pytest.approx(5.61e-6, rel=0.005)


def test_the_counter_of_an_h200_steps_every_tenth_of_a_second() -> None:
    assert steps_s(read_trace(TRACE)) == pytest.approx(0.1, abs=0.006)


def test_the_shorter_windows_of_a_campaign_read_the_same_wherever_they_lie() -> None:
    samples = read_trace(TRACE)
    rule = EnergyRule(SETTLE_S, WINDOW_S)
    long = ours(samples, period_s=0.1)
    for skipped in range(0, 400, 40):
        short = ours(samples[skipped:], rule, period_s=0.1)
        assert short.energy_j == pytest.approx(long.energy_j, rel=2e-3)
        assert short.power_w == pytest.approx(long.power_w, rel=3e-3)
        assert 0.9 < short.window_s < 1.7 < long.window_s


def test_the_first_power_readings_of_a_loop_are_those_of_what_ran_before() -> None:
    samples = read_trace(TRACE)
    settled_w = ours(samples).power_w
    for sample in samples[:5]:
        assert sample.power_instant_w is not None
        assert sample.power_instant_w < 0.75 * settled_w
    half_a_second_on = next(sample for sample in samples if sample.time_s > SETTLE_S)
    assert half_a_second_on.power_instant_w == pytest.approx(settled_w, rel=0.02)


def test_a_trace_that_ends_too_soon_says_so() -> None:
    with pytest.raises(TraceEndedError, match="record a longer one"):
        ours(read_trace(TRACE)[:100])
