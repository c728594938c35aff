"""RAPL over a made-up powercap tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelcast.collectors.meters import NoMeter, RaplMeter, ReplayMeter, find_meter

RANGE_UJ = 262_143_328_850


def zone(root: Path, folder: str, name: str, energy_uj: int) -> Path:
    path = root / folder
    path.mkdir(parents=True)
    (path / "name").write_text(name + "\n")
    (path / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    return path


def test_packages_are_summed_and_their_parts_left_out(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 5_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 0)
    zone(tmp_path, "intel-rapl:2", "psys", 0)
    meter = find_meter(tmp_path)
    assert meter.name == "rapl"
    meter.start()
    (first / "energy_uj").write_text("3500000\n")
    (second / "energy_uj").write_text("6000000\n")
    assert meter.stop() == pytest.approx(3.5)


def test_a_counter_that_wraps_still_counts_up(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 1_000_000)
    meter = find_meter(tmp_path)
    meter.start()
    (path / "energy_uj").write_text("999999\n")
    assert meter.stop() == pytest.approx(2.0)


def test_a_counter_that_vanishes_gives_none(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    meter = RaplMeter([path])
    meter.start()
    (path / "energy_uj").unlink()
    assert meter.stop() is None
    meter.start()
    assert meter.stop() is None


def test_without_a_readable_sensor_energy_is_none_never_a_guess(tmp_path: Path) -> None:
    assert isinstance(find_meter(tmp_path / "absent"), NoMeter)
    unreadable = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    (unreadable / "energy_uj").write_text("")
    meter = find_meter(tmp_path)
    assert meter.name == "none"
    meter.start()
    assert meter.stop() is None


def test_a_replay_plays_its_windows_then_nothing() -> None:
    meter = ReplayMeter([1.5, None])
    assert [meter.stop() for _ in range(3)] == [1.5, None, None]
