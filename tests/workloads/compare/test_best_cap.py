"""The most efficient setting: least energy among accepted settings, servers under a budget, and what is refused."""

from __future__ import annotations

import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.models.predict.power_law import PowerSetting
from kernelcast.models.predict.prediction import Interval
from kernelcast.workloads.compare.best_cap import Budget, RunCost, best_cap, measured_cost, steps

A40 = catalogue().get("nvidia-a40")


def test_the_best_of_any_slowdown_takes_least_energy():
    result = best_cap(measured_cost(10.0, 240.0, A40), A40)
    least = min(point.energy for point in (*result.limits, *result.clocks))
    assert least <= result.best.energy <= 1.005 * least
    assert result.best.power_limit_w is not None
    assert 0.7 < result.best.energy < 0.85
    assert result.usual.latency_s == Interval(10.0, 10.0, 10.0)
    assert result.limits[-1].power_limit_w == 300.0
    assert (result.limits[-1].time, result.clocks[-1].time) == (1.0, 1.0)


def test_a_slowdown_that_is_accepted_bounds_the_time():
    cost = measured_cost(10.0, 240.0, A40)
    tight, loose = best_cap(cost, A40, slowdown=0.03), best_cap(cost, A40, slowdown=0.1)
    assert 1.0 < tight.best.time <= 1.03
    assert tight.best.time < loose.best.time <= 1.1
    assert tight.best.energy > loose.best.energy
    assert best_cap(cost, A40, slowdown=0.0).best.time == 1.0


def test_where_nothing_saves_the_default_is_best():
    run = RunCost(Interval(1.0, 1.0, 1.0), Interval(90.0, 90.0, 90.0), Interval(90.0, 90.0, 90.0))
    result = best_cap(lambda setting: run, A40)
    assert result.best == result.usual
    assert result.best.power_limit_w is result.best.clock_hz is None


def test_a_clock_is_best_where_no_limit_binds():
    light, usual = (RunCost(Interval(1.0, 1.0, 1.0), Interval(w, w, w), Interval(w, w, w)) for w in (70.0, 90.0))
    result = best_cap(lambda setting: light if setting and setting.clock_hz else usual, A40)
    assert result.best.power_limit_w is None
    assert result.best.clock_hz is not None


def test_lower_limits_make_room_for_more_servers():
    result = best_cap(measured_cost(10.0, 280.0, A40), A40, budget=Budget(10_000.0, gpus=8, host_w=400.0))
    servers = [point.servers for point in result.limits]
    assert servers == sorted(servers, reverse=True)
    assert servers[-1] == 3
    assert result.limits[-1].throughput == 1.0
    assert result.best.throughput == max(point.throughput for point in result.limits)
    assert result.best.throughput > 1.2
    assert result.clocks == ()


def test_a_measured_program_is_the_law_of_programs_and_exact_by_default():
    cost = measured_cost(312.0, 241.0, A40)
    assert cost(None) == cost(PowerSetting(300.0)) == cost(PowerSetting(None, 1.74e9))
    limited = cost(PowerSetting(200.0))
    assert limited.latency_s.lower < 312.0 * 1.07 < limited.latency_s.upper
    assert limited.energy_j.value == pytest.approx(limited.latency_s.value * limited.power_w.value)


@pytest.mark.parametrize(
    ("low", "high", "nice", "first", "second"),
    [(83.3, 300.0, (1.0, 2.0, 5.0, 10.0), 85.0, 90.0), (55.0, 72.0, (1.0, 2.0), 55.0, 56.0)],
)
def test_settings_are_round_numbers_up_to_the_own_limit(low, high, nice, first, second):
    values = steps(low, high, nice)
    assert (values[0], values[1], values[-1]) == (first, second, high)
    assert values == sorted(set(values))


def test_what_cannot_be_answered_is_refused():
    cost = measured_cost(10.0, 240.0, A40)
    with pytest.raises(SpecError, match=r"slowdown must be at least 0, such as 0\.05 or 5%"):
        best_cap(cost, A40, slowdown=-0.1)
    with pytest.raises(SpecError, match="budget_w is 500, too little for a server"):
        best_cap(cost, A40, budget=Budget(500.0))
    with pytest.raises(SpecError, match="gpus must be at least 1"):
        Budget(500.0, gpus=0)
    blind = RunCost(Interval(1.0, 1.0, 1.0), None, None)
    with pytest.raises(SpecError, match="the power of this run on nvidia-a40 is unknown"):
        best_cap(lambda setting: blind, A40)
    with pytest.raises(SpecError, match="power_w is 900 W, above the 300 W"):
        measured_cost(1.0, 900.0, A40)
    with pytest.raises(SpecError, match="is a CPU"):
        measured_cost(1.0, 90.0, catalogue().get("amd-epyc-9654"))
