"""Energy windows on a simulated board whose true energy is known."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import replace

import pytest
from kernelcast.collectors.meters import board as board_module
from kernelcast.collectors.meters.board import BoardMeter, EnergyRule, idle_power_w, sensor_period_s
from kernelcast.collectors.meters.protocol import EnergyRefusedError

CALL_S = 1.7e-3
IDLE_W, BUSY_W = 80.0, 520.0


class Board:
    """A board, its clock, and a loop running on it.

    Power jumps between idle and busy, leaks a little more as the die warms, and every 100 ms the sensors take a sample: the
    counter adds what was drawn, the instant reading is the mean of the last 25 ms with noise, the average one of the last
    second. Reading costs time, turns are uneven.
    """

    STEP_S, TICK_S = 0.1, 1e-3

    def __init__(self, seed: int = 0, call_s: float = CALL_S, turn_s: float = 0.011, start_s: float = 3.456) -> None:
        self.random = random.Random(seed)
        self.call_s, self.turn_s = call_s, turn_s
        self.time_s, self.busy_s, self.true_j, self.die_c = start_s, 0.0, 0.0, 35.0
        self.next_step_s = start_s + 0.042
        self.recent_w: deque[float] = deque([IDLE_W] * 1000, maxlen=1000)
        self.counter_mj, self.instant_w, self.average_w = 10**9, IDLE_W, IDLE_W
        self.truth: list[tuple[float, float]] = []
        self.words: tuple[str, ...] | None = ("power_cap",)
        self.counter_gain = 1.0
        self.busy = False

    def _tick(self) -> None:
        power_w = (BUSY_W if self.busy else IDLE_W) * (1 + 1e-3 * (self.die_c - 35.0))
        self.die_c += (25.0 + 0.09 * power_w - self.die_c) * self.TICK_S / 20.0
        self.true_j += power_w * self.TICK_S
        self.busy_s += self.TICK_S if self.busy else 0.0
        self.recent_w.append(power_w)
        self.time_s += self.TICK_S
        self.truth.append((self.time_s, self.true_j))
        if self.time_s >= self.next_step_s:
            self.next_step_s += self.STEP_S
            self.counter_mj = 10**9 + int(self.true_j * 1000 * self.counter_gain)
            last = list(self.recent_w)
            self.instant_w = sum(last[-25:]) / 25 * self.random.gauss(1.0, 0.01)
            self.average_w = sum(last) / len(last)

    def _pass(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / self.TICK_S))):
            self._tick()

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.busy = False
        self._pass(seconds)

    def turn(self) -> int:
        self.busy = True
        calls = math.ceil((self.busy_s + self.turn_s * self.random.uniform(0.7, 1.3)) / self.call_s)
        self._pass(calls * self.call_s - self.busy_s)
        return calls

    def energy_j(self) -> float | None:
        return self.counter_mj * 1e-3

    def power_w(self) -> float | None:
        if self.random.random() < 0.3:
            self._tick()
        return self.instant_w

    def temperature_c(self) -> float | None:
        return float(int(self.die_c))

    def throttle(self) -> tuple[str, ...] | None:
        return self.words

    def true_power_w(self, begin_s: float, end_s: float) -> float:
        inside = [(at_s, joules) for at_s, joules in self.truth if begin_s <= at_s <= end_s]
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def meter(board: Board, **changes: object) -> BoardMeter:
    return replace(BoardMeter("simulated", board, clock=board), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("call_s", [1e-5, CALL_S, 0.04])
def test_a_window_is_within_one_percent_of_the_truth(seed: int, call_s: float) -> None:
    board = Board(seed, call_s=call_s, start_s=seed * 0.0371)
    measured = meter(board, period_s=0.1).measure(board)
    assert measured is not None
    true_w = board.true_power_w(board.time_s - measured.window_s, board.time_s)
    assert measured.energy_j == pytest.approx(true_w * call_s, rel=0.01)
    assert measured.power_w == pytest.approx(true_w, rel=0.01)
    assert measured.power_integrated_w == pytest.approx(true_w, rel=0.02)
    assert 3.0 <= measured.window_s < 4.8
    assert measured.calls == pytest.approx(measured.window_s / call_s, rel=1e-2)


@pytest.mark.parametrize("seed", range(4))
def test_reading_a_second_long_average_for_a_moment_is_wrong_by_a_third(seed: int) -> None:
    board = Board(seed)
    began_s = board.now_s()
    while board.now_s() - began_s < 0.3:
        board.turn()
    naive_w, true_w = board.average_w, board.true_power_w(began_s, board.now_s())
    assert naive_w < 0.67 * true_w


def test_two_readings_of_the_counter_around_a_short_run_miss_a_whole_step() -> None:
    errors = []
    for seed in range(12):
        board = Board(seed, start_s=seed * 0.0371)
        while board.now_s() < 2.0 + seed * 0.0371:
            board.turn()
        began_s, before_j = board.now_s(), board.energy_j()
        while board.now_s() - began_s < 0.25:
            board.turn()
        naive_w = (board.energy_j() - before_j) / (board.now_s() - began_s)  # type: ignore[operator]
        errors.append(abs(naive_w / board.true_power_w(began_s, board.now_s()) - 1))
    assert max(errors) > 0.15


def test_power_settles_before_anything_counts() -> None:
    board = Board()
    unsettled = meter(board, rule=EnergyRule(settle_s=0.0, window_s=0.2, agree=1.0)).measure(board)
    settled = meter(board).measure(board)
    assert unsettled is not None
    assert settled is not None
    assert settled.power_w > unsettled.power_w
    slow = Board()
    long_settled = meter(slow, rule=EnergyRule(settle_s=4.0)).measure(slow)
    assert long_settled is not None
    assert slow.busy_s - long_settled.window_s >= 4.0


def test_calls_are_counted_to_the_edges_between_uneven_turns() -> None:
    for seed in range(4):
        board = Board(seed, call_s=1e-5, turn_s=0.05)
        measured = meter(board, rule=EnergyRule(window_s=0.5, edge=1.0, agree=1.0), period_s=0.1).measure(board)
        assert measured is not None
        assert measured.calls == pytest.approx(measured.window_s / 1e-5, rel=2e-3)


def test_a_board_slow_to_read_and_quick_to_step_is_measured_too() -> None:
    class Slow(Board):
        STEP_S = 0.002

        def energy_j(self) -> float | None:
            self._pass(0.008)
            read_j = super().energy_j()
            self._pass(0.002)
            return read_j

    board = Slow(call_s=1e-5)
    measured = meter(board, period_s=0.002).measure(board)
    assert measured is not None
    assert measured.energy_j == pytest.approx(board.true_power_w(board.time_s - 3.0, board.time_s) * 1e-5, rel=0.01)


def test_a_call_longer_than_a_step_gets_a_longer_window() -> None:
    board = Board(call_s=0.23)
    measured = meter(board, period_s=0.1).measure(board)
    assert measured is not None
    assert 9.0 < measured.window_s < 11.0
    true_w = board.true_power_w(board.time_s - measured.window_s, board.time_s)
    assert measured.energy_j == pytest.approx(true_w * 0.23, rel=0.01)


def test_net_energy_lies_above_idling() -> None:
    board = Board()
    measured = meter(board, idle_power_w=80.0).measure(board)
    assert measured is not None
    assert measured.idle_power_w == 80.0
    assert measured.net_energy_j == pytest.approx(measured.energy_j * (1 - 80.0 / measured.power_w))
    unknown = meter(Board()).measure(board)
    assert unknown is not None
    assert (unknown.net_energy_j, unknown.idle_power_w) == (None, None)


def test_windows_in_a_row_give_a_spread() -> None:
    board = Board()
    measured = meter(board, period_s=0.1).measure(board, windows=3)
    assert measured is not None
    assert measured.windows == 3
    assert 9.0 <= measured.window_s < 10.0
    assert measured.spread is not None
    assert 0 < measured.spread < 0.03
    assert meter(board).measure(board).spread is None  # type: ignore[union-attr]


class After(Board):
    """A board to which something happens two seconds and a half into the loop."""

    @property
    def late(self) -> bool:
        return self.busy_s > 2.5


class Backwards(After):
    def energy_j(self) -> float | None:
        return 1.0 if self.late else super().energy_j()


class Stuck(After):
    def energy_j(self) -> float | None:
        self.last_j = getattr(self, "last_j", 0.0) if self.late else self.counter_mj * 1e-3
        return self.last_j


class NeverSteps(Board):
    def energy_j(self) -> float | None:
        return 5.0


class Denied(After):
    def energy_j(self) -> float | None:
        return None if self.late else super().energy_j()


class Thermal(After):
    def throttle(self) -> tuple[str, ...] | None:
        return ("power_cap", "thermal") if self.late else ()


class Braked(After):
    def throttle(self) -> tuple[str, ...] | None:
        return ("brake",)


class Overcounting(Board):
    def energy_j(self) -> float | None:
        self.counter_gain = 1.08
        return super().energy_j()


@pytest.mark.parametrize(
    ("board", "why"),
    [
        (Backwards(), "went backwards, from 1001"),
        (Stuck(), "stood still over 2"),
        (NeverSteps(), "stood still over 2"),
        (Denied(), "can no longer be read"),
        (Thermal(), r"slowed itself down meanwhile \(thermal\)"),
        (Braked(), r"slowed itself down meanwhile \(brake\)"),
        (Overcounting(), "more than 5% apart"),
    ],
)
def test_a_reading_not_to_be_trusted_is_refused(board: Board, why: str) -> None:
    with pytest.raises(EnergyRefusedError, match=why):
        meter(board).measure(board)


class NoPower(Board):
    def power_w(self) -> float | None:
        return None


class NoCounter(Board):
    def energy_j(self) -> float | None:
        return None


class Mute(Board):
    def temperature_c(self) -> float | None:
        return None

    def throttle(self) -> tuple[str, ...] | None:
        return None


def test_without_power_readings_there_is_no_cross_check_but_energy() -> None:
    board = NoPower()
    measured = meter(board).measure(board)
    assert measured is not None
    assert measured.power_integrated_w is None
    assert measured.power_w == pytest.approx(BUSY_W, rel=0.05)


def test_without_a_counter_there_is_no_energy_and_the_loop_is_not_run() -> None:
    board = NoCounter()
    assert meter(board).measure(board) is None
    assert board.busy_s == 0


def test_what_a_board_does_not_say_is_none() -> None:
    board = Mute()
    measured = meter(board).measure(board)
    assert measured is not None
    assert (measured.idle_power_w, measured.net_energy_j) == (None, None)


def test_the_step_of_the_counter_is_found_at_rest() -> None:
    board = Board()
    assert sensor_period_s(board, board) == pytest.approx(0.1, abs=0.005)
    assert sensor_period_s(NeverSteps(), board) is None
    assert sensor_period_s(NoCounter(), board) is None


def test_idle_power_is_read_once_the_board_has_come_to_rest() -> None:
    board = Board()
    for _ in range(200):
        board.turn()
    hot_w = board.instant_w
    idle_w = idle_power_w(board, board)
    assert idle_w == pytest.approx(board.true_power_w(board.time_s - 1.0, board.time_s), rel=0.02)
    assert idle_w < hot_w / 4  # type: ignore[operator]
    assert idle_power_w(NoPower(), board) is None


def test_a_board_that_never_rests_is_read_at_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    class Restless(Board):
        def power_w(self) -> float | None:
            return 100.0 * 1.05**self.time_s

    board = Restless()
    began_s = board.now_s()
    monkeypatch.setattr(board_module, "REST_CAP_S", 8.0)
    assert idle_power_w(board, board) is not None
    assert 8.0 <= board.now_s() - began_s < 10.0
