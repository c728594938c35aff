"""Sensors: a run of nights beyond all before is told, with the false alarms that the rank rule allows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from kernelcast.nightly.drift.sensors import (
    SensorNight,
    SensorWatch,
    false_alarms_per_regime,
    sensor_drift,
    sensor_night,
    unlike_all_before,
)

DEVICE = "nvidia-h200-sxm-141gb"
READS = {
    "clock_hz": 1.98e9,
    "temperature_c": 50.0,
    "idle_power_w": 76.0,
    "throttled_share": 0.1,
    "power_limit_w": 700.0,
}


def _nights(n: int = 40, seed: int = 0) -> list[dict[str, float]]:
    rng = np.random.default_rng(seed)
    scatter = {
        "clock_hz": 1e7,
        "temperature_c": 1.0,
        "idle_power_w": 1.0,
        "throttled_share": 0.02,
        "power_limit_w": 0.0,
    }
    return [{name: value + scatter[name] * rng.standard_normal() for name, value in READS.items()} for _ in range(n)]


def _told(nights: list[dict[str, float]]) -> tuple[list[str], list[str]]:
    history = [SensorNight(str(i), one) for i, one in enumerate(nights)]
    findings, facts = sensor_drift(DEVICE, history)
    return [one.said for one in findings], sorted(name for name, one in facts.items() if one.get("state") == "drifted")


@pytest.mark.parametrize(
    ("name", "factor", "words"),
    [
        ("clock_hz", 0.93, "SM clock of nvidia-h200-sxm-141gb has been 18"),
        ("temperature_c", 1.2, "58.6 °C over the last 4 nights"),
        ("idle_power_w", 1.5, "Look for another program"),
        ("throttled_share", 4.0, "%"),
    ],
)
def test_what_moved_is_told_after_four_nights(name: str, factor: float, words: str) -> None:
    nights = _nights()
    for one in nights[-4:]:
        one[name] *= factor
    said, drifted = _told(nights)
    assert drifted == [name]
    assert words in said[0]
    # Three nights, or four with a quiet one among them, are not enough.
    nights[-4][name] = nights[0][name]
    assert _told(nights) == ([], [])


def test_quiet_short_and_missing_sensors_say_nothing() -> None:
    assert _told(_nights()) == ([], [])
    short = _nights(8)
    for one in short[-4:]:
        one["clock_hz"] *= 0.5
    assert _told(short) == ([], [])
    findings, facts = sensor_drift(DEVICE, [SensorNight(str(i), {"clock_hz": None}) for i in range(30)])
    assert (findings, facts) == ([], {})
    assert sensor_drift(DEVICE, []) == ([], {})


def test_a_move_too_small_to_matter_is_not_told() -> None:
    nights = _nights()
    for one in nights:
        one["clock_hz"] = 1.98e9
    for one in nights[-4:]:
        one["clock_hz"] = 1.97e9
    assert _told(nights) == ([], [])


def test_a_power_limit_is_a_setting_and_told_at_once() -> None:
    nights = _nights(2)
    nights[-1]["power_limit_w"] = 500.0
    said, _ = _told(nights)
    assert "500 W tonight and was 700 W" in said[0]
    findings, _ = sensor_drift(DEVICE, [SensorNight(str(i), one) for i, one in enumerate(nights)])
    assert findings[0].level == "needs-person"


def test_a_reason_for_throttling_never_given_before_is_told() -> None:
    nights = [SensorNight("1", {}, ("power_cap",)), SensorNight("2", {}, ("power_cap", "hw_thermal"))]
    findings, facts = sensor_drift(DEVICE, nights)
    assert "hw_thermal" in findings[0].said
    assert facts["throttle"] == ["hw_thermal", "power_cap"]
    assert sensor_drift(DEVICE, nights[:1])[0] == []


def test_a_night_s_sensors_come_from_its_rows() -> None:
    table = pa.table({"sm_clock_hz": [1.98e9, 1.90e9, None, 1.95e9], "temperature_c": [50.0, None, None, None],
                      "idle_power_w": pa.nulls(4), "throttle": ["", "power_cap,hw_thermal", None, "power_cap"]})  # fmt: skip
    night = sensor_night("n", {"gemm": table, "copy": table.slice(0, 0)})
    assert night.values["clock_hz"] == 1.95e9
    assert (night.values["temperature_c"], night.values["idle_power_w"], night.values["power_limit_w"]) == (
        50.0,
        None,
        None,
    )
    assert night.values["throttled_share"] == pytest.approx(2 / 3)
    assert night.throttle == ("hw_thermal", "power_cap")
    assert SensorNight.from_json(night.to_json()) == night
    assert sensor_night("n", {}).values["clock_hz"] is None


def test_the_bound_on_false_alarms_holds_for_any_law() -> None:
    watch = SensorWatch(least_nights=4, run=2)
    bound = false_alarms_per_regime(watch)
    assert bound == pytest.approx(2 * sum(2 / ((n + 1) * (n + 2)) for n in range(4, 100_000)), rel=1e-3)
    rng = np.random.default_rng(0)
    alarmed = sum(
        any(unlike_all_before(history[:n].tolist(), watch) for n in range(1, 40))
        for history in rng.standard_cauchy((400, 40))
    )
    assert alarmed / 400 <= bound + 3 * (bound / 400) ** 0.5
    assert alarmed > 0
    assert false_alarms_per_regime(SensorWatch()) < 0.01
