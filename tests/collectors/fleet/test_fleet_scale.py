"""The simulation of large fleets against what can be worked out by hand."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from fleet_scale import Costs, Failures, Plan, campaigns, duration, resume_s, simulate

FREE = Costs(row_s=0, file_s=0, block_s=0, call_s=0, put_s=0)
NEVER = Failures(lost_per_s=0, hang_per_row=0)


@pytest.mark.parametrize(("devices", "drivers"), [(1, 1), (10, 1), (10, 2), (250, 5)])
def test_without_failures_and_costs_time_is_rows_times_pace_over_devices(devices: int, drivers: int) -> None:
    plan = Plan(devices, rows=55_000.0 * devices, drivers=drivers)
    done = simulate(plan, FREE, NEVER)
    assert done.seconds == pytest.approx(plan.rows * plan.pace_s / devices, rel=1e-9)
    assert (done.busy, done.driver, done.lost, done.hangs, done.finished) == (pytest.approx(1.0), 0.0, 0, 0, True)


def test_a_saturated_driver_serves_one_block_after_the_other() -> None:
    plan, costs = Plan(5000, rows=1.1e6), Costs()
    done = simulate(plan, costs, NEVER)
    each = costs.driver_s(plan.rows_per_block, plan.files_per_block, plan.calls)
    assert done.seconds == pytest.approx(20_000 * each, rel=0.06)
    assert done.driver > 0.94
    halved = simulate(replace(plan, drivers=2), costs, NEVER)
    assert halved.seconds == pytest.approx(done.seconds / 2, rel=0.1)


def test_a_device_waits_for_its_files() -> None:
    costs = replace(FREE, put_s=0.1)
    done = simulate(Plan(1, rows=5500, files_per_block=8.3), costs, NEVER)
    assert done.seconds == pytest.approx(100 * (55 * 0.069 + 8.3 * 0.1))


def test_hangs_cost_their_deadline_and_lost_devices_their_share() -> None:
    plan = Plan(20, rows=1e6)
    hanging = simulate(plan, FREE, Failures(lost_per_s=0, hang_per_row=1e-3), seed=1)
    assert hanging.hangs == pytest.approx(1000, rel=0.15)
    assert hanging.seconds == pytest.approx((1e6 * 0.069 + hanging.hangs * 80) / 20, rel=0.03)
    losing = simulate(plan, FREE, Failures(lost_per_s=1 / 6900, hang_per_row=0), seed=1)
    assert 0 < losing.lost < 20
    assert losing.seconds > 1.2 * plan.rows * plan.pace_s / 20
    assert losing.finished
    none_left = simulate(plan, FREE, Failures(lost_per_s=1 / 60, hang_per_row=0), seed=1)
    assert (none_left.lost, none_left.finished) == (20, False)


def test_equal_seeds_give_equal_results_and_others_do_not() -> None:
    plan, failures = Plan(50, rows=2e5), Failures(hang_per_row=1e-3)
    assert simulate(plan, Costs(), failures, 4) == simulate(plan, Costs(), failures, 4)
    assert simulate(plan, Costs(), failures, 4) != simulate(plan, Costs(), failures, 5)


def test_what_a_resume_costs() -> None:
    parts = resume_s(1_000_500, Costs(list_page_s=0.1, get_s=0.5e-3, read_file_s=1e-3))
    assert parts == {"LIST": pytest.approx(100.1), "GET": pytest.approx(1000.5), "processor": pytest.approx(1000.5)}


def test_all_that_the_page_compares_runs() -> None:
    done = [simulate(plan, Costs(), Failures()) for plan in campaigns(2e5)]
    assert all(item.finished for item in done)
    assert [duration(value) for value in (0.5, 90, 7200, 864000)] == ["0.5 s", "1.5 min", "2 h", "10 days"]
