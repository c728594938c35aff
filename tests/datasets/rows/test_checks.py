from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from kernelcast.datasets.rows.checks import (
    Refusals,
    Refused,
    as_failed,
    catalogue_bounds,
    check_labels,
    check_measurements,
)
from kernelcast.features.cost.bounds import lower_bound_s
from kernelcast.features.device import Catalogue, catalogue
from kernelcast.features.kernel import KernelSpec


@pytest.mark.parametrize(
    ("changes", "column", "reason"),
    [
        ({"latency_s": None}, "latency_s", "missing though the status is ok"),
        ({"latency_s": 0.0}, "latency_s", "positive"),
        ({"latency_s": math.inf}, "latency_s", "positive"),
        ({"status": "crashed"}, "latency_s", "though the status is crashed"),
        ({"status": "failed", "latency_s": None, "power_w": 3.0}, "power_w", "though the status is failed"),
        ({"status": "odd", "latency_s": None}, "status", "it is one of ok"),
        ({"latency_q1_s": 2e-3}, "latency_q1_s", "above latency_s"),
        ({"latency_q3_s": 0.5e-3}, "latency_s", "above latency_q3_s"),
        ({"latency_min_s": 2e-3}, "latency_min_s", "above latency_s"),
        ({"latency_q1_s": 0.9e-3, "latency_min_s": 0.95e-3}, "latency_min_s", "above latency_q1_s"),
        ({"energy_j": 1.0}, "energy_source", "sensor"),
        ({"power_w": 0.0}, "power_w", "positive"),
        ({"power_w": -5.0}, "power_w", "positive"),
        ({"power_w": 400.0, "power_limit_w": 300.0}, "power_w", "1.3 times the limit"),
        ({"power_w": 100.0, "energy_j": 100.0, "energy_source": "rapl"}, "energy_j", "SI units"),
    ],
)
def test_rows_that_cannot_be_true(make, changes, column, reason):
    result = check_measurements([make(), make(m=2, **changes), make(m=3)])
    assert [(item.row, item.column) for item in result] == [(1, column)]
    assert reason in result[0].reason


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"latency_min_s": 1e-3, "latency_q1_s": 1e-3, "latency_q3_s": 1e-3},
        {"status": "unsupported", "latency_s": None, "message": "no fp8"},
        {"power_w": 389.0, "power_limit_w": 300.0},
        {"power_w": 100.0, "energy_j": 0.1, "energy_source": "nvml"},
        {"power_w": 100.0, "energy_j": 0.13, "energy_source": "nvml"},
    ],
)
def test_rows_that_can_be_true(make, changes):
    assert check_measurements([make(**changes)]) == []


def test_a_row_may_beat_its_bound_by_the_slack_only(make):
    def bounds(specs, devices):
        return np.array([1.01e-3, 1.05e-3, np.nan])

    result = check_measurements([make(m=1), make(m=2), make(m=3)], bounds)
    assert [item.row for item in result] == [1]
    assert "below the lower bound of 0.00105 s" in result[0].reason


def test_catalogue_bounds_agree_with_the_work_of_one_spec():
    spec = KernelSpec.of("gemm", "fp16", m=4096, n=4096, k=4096)
    bounds = catalogue_bounds([spec, spec, KernelSpec.of("softmax", "fp32", rows=9, cols=9)],
                              ["nvidia-t4", "nobody-knows", "nvidia-t4"])  # fmt: skip
    assert bounds[0] == pytest.approx(lower_bound_s(spec, catalogue().get("nvidia-t4")))
    assert np.isnan(bounds[1])
    assert bounds[2] > 0


def test_a_cpu_may_be_faster_than_on_the_day_its_peaks_were_measured():
    spec = KernelSpec.of("gemm", "fp32", m=512, n=512, k=512, threads=1)
    cpu = catalogue().get("amd-epyc-7003-vm-2c")
    assert cpu.measured
    (bound,) = catalogue_bounds([spec], [cpu.name])
    # Measured on a core of it: 84 GFLOP/s. No core of its kind has more than 2 x 8 lanes of multiply-adds at 4.1 GHz.
    assert 2 * 512**3 / 131e9 > bound > 2 * 512**3 / 1e12
    assert bound < 2 * 512**3 / 84e9


def test_a_device_of_ones_own_has_bounds_too():
    mine = replace(catalogue().get("nvidia-t4"), name="mine", aliases=())
    spec = KernelSpec.of("gemm", "fp16", m=4096, n=4096, k=4096)
    bounds = catalogue_bounds([spec], ["mine"], known=Catalogue(extra=(mine,)))
    assert bounds[0] == pytest.approx(lower_bound_s(spec, mine))


def test_columns_are_judged_without_the_others():
    refusals = Refusals(3)
    check_labels({"latency_s": np.array([1.0, np.nan, -1.0])}, refusals)
    assert [str(item) for item in refusals] == ["row 3: latency_s: must be a positive number, got -1"]


def test_the_first_reason_stays_and_parts_merge_at_their_rows():
    whole, part = Refusals(5), Refusals(2)
    part.add(np.array([False, True]), "m", "first")
    part.add(np.array([True, True]), "n", lambda i: f"second {i}")
    whole.merge(part, np.array([1, 4]))
    assert list(whole) == [Refused(1, "n", "second 0"), Refused(4, "m", "first")]
    assert whole.bad.tolist() == [False, True, False, False, True]
    assert len(whole) == 2


def test_a_refused_row_can_be_stored_as_failed(make):
    row = as_failed(make(latency_s=-1.0, power_w=3.0, latency_q1_s=1.0), "latency_s: nonsense")
    assert check_measurements([row]) == []
    assert row.status == "failed"
    assert row.message == "refused: latency_s: nonsense"
