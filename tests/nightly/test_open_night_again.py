"""Nights after nights: what is reused, measured again, opened again, and removed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kernelcast.nightly.context import reserve_s
from kernelcast.nightly.record import folders
from kernelcast.nightly.record.folders import new_night, night_folders, remove_old, unfinished
from kernelcast.nightly.record.record import STAGES, Finding, NightRecord, StageRecord

UNTRAINED = {"challengers": []}


def a_record(folder: Path, outcome: str = "kept", **seconds: float) -> NightRecord:
    record = NightRecord(folder.name, folder.name[17:], "d", outcome, "2026-11-22T01:00:00+00:00", None, 60.0, "a", "b")  # type: ignore[arg-type]
    for name in STAGES:
        record = record.with_stage(StageRecord(name, "done", None, seconds.get(name, 1.0)))
    return record


def test_a_stage_can_be_done_again(home) -> None:
    assert home.run() == 0, home.err
    before = home.record()
    made = home.folders[-1] / "challengers" / "adapted.json"
    before_made_ns = made.stat().st_mtime_ns
    assert home.run("--from", "check") == 0, home.err
    again = home.record()
    assert made.stat().st_mtime_ns > before_made_ns, "challengers are made again, beside the model that serves now"
    assert len(home.folders) == 1
    assert again.stage("collect") == before.stage("collect")
    assert again.stage("gate").facts["champion"] == before.champion_after == again.champion_before


def test_names_are_never_used_twice(tmp_path: Path) -> None:
    now = datetime(2026, 11, 22, 23, 59, 59, 500, UTC)
    names = [new_night(tmp_path, "n", now).name for _ in range(3)]
    assert names == ["20261122T235959Z-n", "20261123T000000Z-n", "20261123T000001Z-n"]


def test_only_old_nights_that_ended_are_removed(tmp_path: Path) -> None:
    for day, outcome in (
        ("01", "kept"),
        ("02", "interrupted"),
        ("03", "promoted"),
        ("04", "failed"),
        ("05", "running"),
    ):
        folder = tmp_path / f"202611{day}T010000Z-n"
        a_record(folder, outcome).write(folder / "state.json")
    (tmp_path / "notes").mkdir()
    (tmp_path / "20261106T010000Z-n").mkdir()
    assert remove_old(tmp_path, 1) == ["20261103T010000Z-n", "20261101T010000Z-n"]
    assert [folder.name[6:8] for folder in night_folders(tmp_path)] == ["02", "04", "05", "06"]


@pytest.mark.parametrize(
    ("outcome", "found"), [("running", True), ("interrupted", True), ("kept", False), ("failed", False)]
)
def test_only_a_night_that_was_not_ended_is_gone_on_with(tmp_path: Path, outcome: str, found: bool) -> None:
    folder = tmp_path / "20261122T010000Z-n"
    a_record(folder, outcome).write(folder / "state.json")
    now = datetime(2026, 11, 22, 9, tzinfo=UTC)
    assert (unfinished(tmp_path, "n", now) == folder) is found
    assert unfinished(tmp_path, "other", now) is None
    (folder / "state.json").write_text("{")
    assert unfinished(tmp_path, "n", now) is None


def test_time_is_kept_back_by_what_earlier_nights_took(tmp_path: Path) -> None:
    folder = tmp_path / "20261122T010000Z-n"
    assert reserve_s(600.0, []) == 150.0
    assert reserve_s(600.0, [a_record(folder, train=96.0)]) == pytest.approx(150.0)
    assert reserve_s(600.0, [a_record(folder, train=900.0)]) == 360.0
    assert reserve_s(600.0, [a_record(folder, train=0.0)]) == pytest.approx(150.0)
    finding = Finding("budget", "warning", "adapted", "The challenger adapted was not made in time.")
    short = a_record(folder).with_stage(StageRecord("train", "failed", None, 0.3, findings=(finding,)))
    assert reserve_s(600.0, [short, a_record(folder, train=96.0)]) == pytest.approx(225.0)
    assert reserve_s(600.0, [short, short, a_record(folder, train=96.0)]) == pytest.approx(337.5)
    assert reserve_s(600.0, [a_record(folder), short]) == pytest.approx(150.0)


def test_the_setting_of_a_night_is_on_disk(home) -> None:
    assert home.run(train=UNTRAINED, minutes=0.4) == 0, home.err
    names: set[Any] = {path.name for path in home.folders[-1].iterdir()}
    assert names == {
        folders.STATE,
        folders.PLAN_JSON,
        folders.REPORT_JSON,
        folders.REPORT_HTML,
        folders.CHOSEN,
        folders.BLOCKS,
    }
    assert not list((home.path / "rehearsals").rglob("*.tmp"))
