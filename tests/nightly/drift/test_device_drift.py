"""Device drift: planted steps and creeps are found, one noisy case or night and short histories say nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.nightly.drift.anchors import anchor_cases
from kernelcast.nightly.drift.device import AnchorNight, device_drift, judge_device, logs_of
from kernelcast.nightly.drift.nights import Watch, sums_over_nights

DEVICE = "nvidia-h200-sxm-141gb"
CASES = 14


def _logs(nights: int, seed: int, noise: float = 0.006, offset: float = 0.003) -> np.ndarray:
    rng = np.random.default_rng(seed)
    base = np.log(10.0 ** rng.uniform(-5, -3, CASES))
    return base + noise * rng.standard_t(4, (nights, CASES)) + offset * rng.standard_t(4, (nights, 1))


def _nights(logs: np.ndarray) -> list[AnchorNight]:
    return [
        AnchorNight(f"2026{1 + i // 28:02d}{1 + i % 28:02d}T220000Z-night",
                    {f"case {j:02d}": math.exp(x) for j, x in enumerate(row)})
        for i, row in enumerate(logs)
    ]  # fmt: skip


@pytest.mark.parametrize(("step", "within"), [(0.02, 10), (0.05, 5), (-0.05, 5), (0.10, 5)])
def test_a_step_is_found_within_days_and_its_size_is_told(step: float, within: int) -> None:
    logs = _logs(60 + within, seed=1)
    logs[60:] += step
    drift = judge_device(_nights(logs))
    assert drift.state == "drifted"
    assert drift.log_ratio == pytest.approx(step, abs=0.006)
    assert drift.since in {night.night for night in _nights(logs)[56:63]}
    assert judge_device(_nights(logs[:60])).state == "quiet"


def test_a_slow_creep_is_found_since_the_reference_does_not_move_along() -> None:
    logs = _logs(160, seed=2)
    logs[40:] += 0.01 / 30 * np.arange(1, 121)[:, None]
    found = [n for n in range(45, 161, 5) if judge_device(_nights(logs[:n])).state == "drifted"]
    assert found
    assert found[0] <= 105
    assert found[-1] == 160


def test_one_noisy_case_does_not_alarm() -> None:
    logs = _logs(120, seed=3)
    logs[:, 4] += np.random.default_rng(0).choice([0.0, 0.12], 120)
    drift = judge_device(_nights(logs))
    assert (drift.state, drift.cases) == ("quiet", {})


@pytest.mark.parametrize("size", [0.05, 0.5, -0.5])
def test_one_noisy_night_does_not_alarm(size: float) -> None:
    logs = _logs(80, seed=4)
    for n in range(60, 80):
        logs[60] += size if n == 60 else 0.0
        assert judge_device(_nights(logs[: n + 1])).state == "quiet"


def test_one_case_that_moved_for_good_is_told_apart_from_the_device() -> None:
    logs = _logs(90, seed=5)
    logs[60:, 7] += 0.08
    findings, facts = device_drift(DEVICE, _nights(logs))
    assert facts["state"] == "quiet"
    assert facts["cases"]["case 07"] == pytest.approx(0.08, abs=0.01)
    assert "case 07 runs 8" in findings[0].said
    assert "not the device" in findings[0].said


@pytest.mark.parametrize("nights", [0, 1, 5, 10])
def test_a_short_history_says_so(nights: int) -> None:
    logs = _logs(nights, seed=6)
    logs[nights // 2 :] += 0.3
    findings, facts = device_drift(DEVICE, _nights(logs))
    assert facts["state"] == "not enough history"
    assert "Not enough history" in findings[0].said
    assert "of the 11 nights that are needed" in findings[0].said


def test_a_drift_confirmed_for_some_nights_needs_a_person_and_one_that_is_over_is_forgotten() -> None:
    logs = _logs(120, seed=7)
    logs[60:90] += 0.05
    early, _ = device_drift(DEVICE, _nights(logs[:65]))
    late, facts = device_drift(DEVICE, _nights(logs[:75]))
    assert [one.level for one in early] == ["warning"]
    assert [one.level for one in late] == ["needs-person"]
    assert facts["confirmed_nights"] >= Watch().confirm_nights
    assert "5." in late[0].said
    assert "slower" in late[0].said
    assert judge_device(_nights(logs)).state == "quiet"


def test_missing_and_nonsense_readings_are_no_readings() -> None:
    logs = _logs(40, seed=8)
    nights = _nights(logs)
    broken = {"case 00": None, "case 01": float("nan"), "case 02": 0.0, "case 03": -1.0}
    nights = [replace(night, readings={**night.readings, **broken}) for night in nights]
    names, table = logs_of(nights)
    assert np.isnan(table[:, :4]).all()
    assert len(names) == CASES
    assert judge_device(nights).state == "quiet"
    # Most of a night's cases missing: the night says nothing.
    empty = [replace(night, readings={"case 05": 1.0}) for night in nights[-5:]]
    assert judge_device([*nights[:-5], *empty]).state == "quiet"


def test_a_night_without_any_reading_at_all() -> None:
    assert judge_device([AnchorNight(str(i), {}) for i in range(40)]).state == "not enough history"
    assert judge_device([AnchorNight(str(i), {"a": None}) for i in range(40)]).state == "not enough history"


def test_sums_of_many_histories_are_those_of_each() -> None:
    logs = np.stack([_logs(50, seed) for seed in range(3)])
    together = sums_over_nights(logs, Watch())
    for i in range(3):
        alone = sums_over_nights(logs[i : i + 1], Watch())
        np.testing.assert_allclose(together.slower[i], alone.slower[0])
        np.testing.assert_allclose(together.case_faster[i], alone.case_faster[0])


def test_a_sum_uses_no_night_after_it() -> None:
    logs = _logs(60, seed=9)[None]
    changed = logs.copy()
    changed[:, 45:] += 1.0
    np.testing.assert_array_equal(
        sums_over_nights(logs, Watch()).slower[:, :45], sums_over_nights(changed, Watch()).slower[:, :45]
    )


def test_quiet_years_rarely_alarm() -> None:
    """The stated 5 % a year, on 200 years; `benchmarks/drift.py` simulates more, from noise that was measured."""
    rng = np.random.default_rng(11)
    logs = 0.01 * rng.standard_t(3, (200, 365, CASES)) + 0.01 * rng.standard_t(3, (200, 365, 1))
    sums, watch = sums_over_nights(logs, Watch()), Watch()
    assert (np.fmax(sums.slower, sums.faster) > watch.limit).any(axis=1).mean() <= 0.08
    assert (np.fmax(sums.case_slower, sums.case_faster) > watch.case_limit).any(axis=(1, 2)).mean() <= 0.08


def test_nights_that_hang_together_are_reckoned_with() -> None:
    """Offsets of neighbours correlate by a half: sums wander, and alarms would be several times as frequent."""
    rng = np.random.default_rng(12)
    offsets = rng.standard_normal((120, 365))
    for night in range(1, 365):
        offsets[:, night] = 0.5 * offsets[:, night - 1] + np.sqrt(0.75) * offsets[:, night]
    logs = 0.01 * rng.standard_t(4, (120, 365, CASES)) + 0.01 * offsets[..., None]

    def alarms(watch: Watch) -> float:
        sums = sums_over_nights(logs, watch)
        return float((np.fmax(sums.slower, sums.faster) > watch.limit).any(axis=1).mean())

    assert alarms(Watch()) < 0.6 * alarms(Watch(most_correlation=0.0))


@pytest.mark.parametrize("device", ["nvidia-h200-sxm-141gb", "nvidia-v100-pcie-32gb", "amd-epyc-9005-vm-2c"])
def test_anchor_cases_are_fourteen_over_all_families(device: str) -> None:
    cases = anchor_cases(catalogue().get(device))
    assert len(cases) == len({spec.case_id for spec in cases}) == 14
    assert len({spec.family for spec in cases}) == 9
    assert [spec.family for spec in anchor_cases(catalogue().get(device), ["softmax"])] == ["softmax"]
    with pytest.raises(SpecError, match="no anchor case of 'gem'"):
        anchor_cases(catalogue().get(device), ["gem"])
