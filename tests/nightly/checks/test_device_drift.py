"""Device drift: planted steps and creeps are found, one noisy case or night and short histories say nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.nightly.checks.device_drift import (
    DeviceNight,
    DriftRule,
    anchor_cases,
    cusum,
    device_drift,
    read_readings,
    readings_path,
    software_change,
    write_readings,
)

DEVICE = "nvidia-h200-sxm-141gb"
CASES = 14


def _logs(nights: int, seed: int, noise: float = 0.006, offset: float = 0.003) -> np.ndarray:
    rng = np.random.default_rng(seed)
    base = np.log(10.0 ** rng.uniform(-5, -3, CASES))
    return base + noise * rng.standard_t(4, (nights, CASES)) + offset * rng.standard_t(4, (nights, 1))


def _nights(logs: np.ndarray) -> list[DeviceNight]:
    return [
        DeviceNight(f"2026{1 + i // 28:02d}{1 + i % 28:02d}T220000Z-night", "driver=1",
                    {f"case {j:02d}": math.exp(x) for j, x in enumerate(row)})
        for i, row in enumerate(logs)
    ]  # fmt: skip


def facts_of(nights: list[DeviceNight]) -> dict[str, Any]:
    return device_drift(DEVICE, nights)[1]


@pytest.mark.parametrize(("step", "within"), [(0.02, 10), (0.05, 6), (-0.05, 6), (0.10, 6)])
def test_a_step_is_found_within_days_and_its_size_is_told(step: float, within: int) -> None:
    logs = _logs(60 + within, seed=1)
    logs[60:] += step
    facts = facts_of(_nights(logs))
    assert facts["state"] == "drifted"
    assert facts["log_ratio"] == pytest.approx(step, abs=0.006)
    assert facts["since"] in {night.night for night in _nights(logs)[56:63]}
    assert facts_of(_nights(logs[:60]))["state"] == "quiet"


def test_a_slow_creep_is_found_since_the_reference_does_not_move_along() -> None:
    logs = _logs(160, seed=2)
    logs[40:] += 0.01 / 30 * np.arange(1, 121)[:, None]
    late = [n for n in range(45, 161, 5) if facts_of(_nights(logs[:n]))["state"] == "drifted"]
    assert late
    assert late[0] <= 110
    assert late[-1] == 160


def test_one_noisy_case_does_not_alarm() -> None:
    logs = _logs(120, seed=3)
    logs[:, 4] += np.random.default_rng(0).choice([0.0, 0.12], 120)
    assert facts_of(_nights(logs))["state"] == "quiet"


@pytest.mark.parametrize("size", [0.05, 0.5, -0.5])
def test_one_noisy_night_does_not_alarm(size: float) -> None:
    logs = _logs(80, seed=4)
    logs[60] += size
    for n in range(60, 80):
        assert facts_of(_nights(logs[: n + 1]))["state"] == "quiet"


@pytest.mark.parametrize("nights", [1, 5, 10])
def test_a_short_history_says_so(nights: int) -> None:
    logs = _logs(nights, seed=6)
    logs[nights // 2 :] += 0.3
    findings, facts = device_drift(DEVICE, _nights(logs))
    assert facts["state"] == "not enough history"
    assert "Not enough history" in findings[0].message
    assert "of the 11 nights that are needed" in findings[0].message


def test_a_drift_that_lasts_needs_a_person_and_one_that_is_over_is_forgotten() -> None:
    logs = _logs(120, seed=7)
    logs[60:90] += 0.05
    first = next(n for n in range(60, 90) if facts_of(_nights(logs[:n]))["state"] == "drifted")
    early, _ = device_drift(DEVICE, _nights(logs[:first]))
    late, facts = device_drift(DEVICE, _nights(logs[:75]))
    assert [item.level for item in early] == ["warning"]
    assert [item.level for item in late] == ["needs-person"]
    assert facts["confirmed_nights"] >= DriftRule().confirm_nights
    assert "slower" in late[0].message
    assert facts_of(_nights(logs))["state"] == "quiet"


def test_missing_and_nonsense_readings_are_no_readings() -> None:
    nights = _nights(_logs(40, seed=8))
    broken = {"case 00": None, "case 01": float("nan"), "case 02": 0.0, "case 03": -1.0}
    nights = [replace(night, readings={**night.readings, **broken}) for night in nights]
    assert facts_of(nights)["state"] == "quiet"


def test_nights_without_any_reading_say_nothing() -> None:
    for readings in ({}, {"a": None}):
        findings, facts = device_drift(DEVICE, [DeviceNight(str(i), "", readings) for i in range(40)])
        assert (findings, facts["state"], facts["nights"]) == ([], "not enough history", 0)


def test_a_sum_uses_no_night_after_it_and_histories_are_apart() -> None:
    logs = np.stack([_logs(60, seed) for seed in range(3)])
    changed = logs.copy()
    changed[:, 45:] += 1.0
    together = cusum(logs, DriftRule())
    np.testing.assert_array_equal(together.slower[:, :45], cusum(changed, DriftRule()).slower[:, :45])
    for i in range(3):
        np.testing.assert_allclose(together.faster[i], cusum(logs[i : i + 1], DriftRule()).faster[0])


def test_quiet_years_rarely_alarm() -> None:
    """`benchmarks/drift.py` simulates more years, from noise that was measured."""
    rng = np.random.default_rng(11)
    logs = 0.01 * rng.standard_t(3, (200, 365, CASES)) + 0.01 * rng.standard_t(3, (200, 365, 1))
    sums, rule = cusum(logs, DriftRule()), DriftRule()
    assert (np.fmax(sums.slower, sums.faster) > rule.limit).any(axis=1).mean() <= 0.08


def test_changed_software_is_told_by_its_versions() -> None:
    finding = software_change(DEVICE, "driver=550; torch=2.9", "driver=560; torch=2.9", "20261101T220000Z-n")
    assert (finding.kind, finding.level) == ("software", "warning")
    assert "changed since the night 20261101T220000Z-n: driver 550 -> 560. Rows of before" in finding.message
    assert "Decide whether" in finding.message
    assert "in no known version" in software_change(DEVICE, "", "", "n").message


def test_lines_of_a_night_add_up_and_damaged_ones_are_left_out(tmp_path: Path) -> None:
    write_readings(DEVICE, DeviceNight("1", "s", {"a": 1.0}), tmp_path)
    with readings_path(DEVICE, tmp_path).open("a") as file:
        file.write('[]\n{"night": 3}\n{"night": "4", "software": "s", "readings": {"a": "fast"}}\n')
        file.write('{"night": "1", "software": "s", "sensors": {"night": "1"}}\n{"night": "2", "softw')
    write_readings(DEVICE, DeviceNight("1", "s", {"b": 2.0}), tmp_path)
    write_readings(DEVICE, DeviceNight("0", "t", {"a": None}), tmp_path)
    nights, damaged = read_readings(DEVICE, tmp_path)
    assert damaged == 4
    assert nights == [DeviceNight("0", "t", {"a": None}), DeviceNight("1", "s", {"a": 1.0, "b": 2.0})]
    with pytest.raises(SpecError, match="cannot name a file"):
        read_readings("../x")


@pytest.mark.parametrize("device", ["nvidia-h200-sxm-141gb", "nvidia-v100-pcie-32gb", "amd-epyc-9005-vm-2c"])
def test_anchor_cases_are_fourteen_over_all_families(device: str) -> None:
    cases = anchor_cases(catalogue().get(device))
    assert len(cases) == len({spec.case_id for spec in cases}) == 14
    assert len({spec.family for spec in cases}) == 9
