"""Nights of careless typists and damaged disks: one sentence, no trace, and what served before still serves."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kernelcast import cli
from kernelcast.nightly import challenger_process as making
from kernelcast.nightly import open_night as begin
from kernelcast.nightly.record.folders import is_running, new_night, night_lock, records, remove_old, unfinished
from kernelcast.nightly.record.plan import Plan, differences
from kernelcast.nightly.record.record import NightRecord, RecordError, StageRecord
from kernelcast.nightly.report_page import report_page
from kernelcast.nightly.run_night import RUN


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"store": "memory://x"}, "store: memory://x is gone when a process ends"),
        ({"store": "nosuch://x/y"}, "nosuch://x"),
        ({"train": {"data": ["/nope.parquet"]}}, "train.data: there is no file /nope.parquet"),
        ({"impls": "foo"}, "no recorded row is of the plan's families, dtypes, threads and impls"),
        ({"threads": 77}, "no recorded row is of the plan's"),
        ({"collector": "cpu", "replay": {}, "impls": "triton"}, "impls: a CPU's nights measure torch"),
        ({"collector": "cpu", "replay": {}, "threads": 4096}, "threads: 4096 are more than the"),
    ],
)
def test_what_would_fail_in_the_morning_is_refused_in_the_evening(
    home, options: list[str], changes: Any, words: str
) -> None:
    before = home.served
    assert home.run("--json", *options, **changes) == 2
    assert words in home.err
    assert home.out == ""
    assert home.served == before
    assert not (home.path / "nights").exists() or home.folders == []


def test_a_challenger_whose_night_was_killed_while_it_started_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "die_with_parent", lambda: None)
    assert making.main(["making", str(tmp_path), "adapted", str(os.getpid())]) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", [["--resume", "last"], ["--from", "train"]])
def test_a_dry_run_of_a_night_by_name_is_refused(home, option: list[str]) -> None:
    assert home.run("--dry-run", *option) == 2
    assert "leave out --resume and --from" in home.err


def test_a_night_that_cannot_be_written_down_leaves_nothing(home, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr(begin, "reserve_report_space", full)
    assert home.run() == 2
    assert "No space left on device" in home.err
    assert home.folders == []


def stopped(home: Any, monkeypatch: pytest.MonkeyPatch, at: str = "train") -> Path:
    """The folder of a night that was stopped in a stage."""

    def stop(night: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("kernelcast.nightly.run_night.RUN", {**RUN, at: stop})
        patch.setattr("kernelcast.nightly.run_night.run_night.__defaults__", ({**RUN, at: stop},))
        assert home.run("--json") == 130
    return Path(home.folders[-1])


def test_json_of_a_stopped_night(home, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stopped(home, monkeypatch)
    messages = json.loads(home.out)
    assert (messages["id"], messages["outcome"]) == (folder.name, "interrupted")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, "null", '{"format_version": 99}', "\x00" * 100],
)
def test_a_damaged_state_begins_a_new_night(home, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    folder = stopped(home, monkeypatch, "choose")
    (folder / "state.json").write_text(text)
    with pytest.raises(RecordError):
        NightRecord.read(folder / "state.json")
    assert home.run("--resume", folder.name) == 2
    assert "state.json" in home.err
    assert cli.main(["nights", "--json"]) == 0
    assert json.loads(home.capsys.readouterr().out) == []


def test_a_damaged_plan_is_said_to_be_one(home, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stopped(home, monkeypatch, "choose")
    (folder / "plan.json").write_text("{")
    assert home.run("--resume", "last") == 2
    assert "plan.json cannot be read" in home.err
    assert home.run("--dry-run") == 0
    assert "a new one begins" in home.out
    assert home.run() in (0, 1)
    assert home.record().findings[0].message.endswith("its rows stay in the store.")
    assert "its plan.json cannot be read" in home.record().findings[0].message


def a_night(nights: Path, began: datetime, outcome: str = "kept", plan: str = "p", **facts: Any) -> Path:
    folder = new_night(nights, plan, began)
    record = NightRecord(folder.name, plan, "d", outcome, began.isoformat(), None, 60.0, "shipped", "shipped")  # type: ignore[arg-type]
    record.with_stage(StageRecord("collect", "done", facts=facts)).write(folder / "state.json")
    return folder


NOW = datetime(2026, 11, 22, 22, tzinfo=UTC)


def test_a_clock_set_back_does_not_remove_the_night_that_runs(tmp_path: Path) -> None:
    later = [a_night(tmp_path, NOW + timedelta(days=days)) for days in (1, 2)]
    own = a_night(tmp_path, NOW)
    assert remove_old(tmp_path, 2, own) == [later[0].name]
    assert own.exists()
    assert remove_old(tmp_path, 1, own) == [later[1].name]
    assert own.exists()


@pytest.mark.parametrize("began", ["tonight", "2026-11-22T22:00:00", ""])
def test_a_begin_that_is_no_time_is_passed_over(tmp_path: Path, began: str) -> None:
    good = a_night(tmp_path, NOW, "interrupted")
    bad = a_night(tmp_path, NOW + timedelta(seconds=9), "interrupted")
    path = bad / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "began": began}))
    assert unfinished(tmp_path, "p", NOW + timedelta(hours=1)) == good


def test_nights_lists_what_hostile_files_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    nights = tmp_path / "nights"
    a_night(nights, NOW, rows=[1, 2])
    a_night(nights, NOW + timedelta(hours=1), rows={"ok": "many", "failed": 1e300})
    a_night(nights, NOW + timedelta(hours=2), "running", "q", rows={"ok": 7})
    assert cli.main(["nights", "--json"]) == 0
    assert [item["rows"] for item in json.loads(capsys.readouterr().out)] == [7, 0, 0]
    assert cli.main(["nights"]) == 0
    assert "killed" in capsys.readouterr().out
    with night_lock(nights, "q"):
        assert is_running(nights)
        assert cli.main(["nights", "--plan", "q"]) == 0
        messages = capsys.readouterr().out
    assert "running" in messages
    assert "-p" not in messages
    assert not is_running(nights)


def test_only_nights_of_the_plan_are_read(tmp_path: Path) -> None:
    a_night(tmp_path, NOW, plan="p-x")
    mine = a_night(tmp_path, NOW, plan="p")
    (tmp_path / "20200101T000000Z-x").mkdir()
    assert [folder for folder, _ in records(tmp_path, "p")] == [mine]


def test_passwords_are_not_told() -> None:
    item = Plan(registry="mysql://me:secret@host/db").to_json()
    assert "secret" not in str(differences(item, Plan().to_json()))


def test_a_report_that_cannot_be_written_is_no_good_night(home, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kernelcast.nightly.stages.report.write_reports", full)
    assert home.run() == 1
    assert "No space left on device" in home.err


def test_hostile_names_are_text_in_the_report(home, tmp_path: Path) -> None:
    place = tmp_path / "<script>alert(1)<" / "script>"
    place.parent.mkdir()
    shutil.copytree(home.recorded.parent, place)
    home.run(store=str(tmp_path / "<img src=x onerror=alert(1)>"), replay={"rows": str(place / "softmax.parquet")})
    page = (home.folders[-1] / "report.html").read_text()
    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_a_night_without_a_winner_does_not_call_a_challenger_passed(home) -> None:
    home.run(train={"regressors": ["analytic"], "with_shipped": False, "challengers": ["adapted"]})
    record = home.record()
    gate = record.stage("gate")
    verdicts = [{**verdict, "better": False} for verdict in gate.facts["verdicts"]]
    facts = {**gate.facts, "winner": None, "changes": None, "verdicts": verdicts}
    page = report_page(record.with_stage(StageRecord("gate", "done", facts=facts)))
    assert "not better beyond noise, and not promoted" in page
    assert "changes no prediction of the service" in page
    assert "not better beyond noise, and not promoted" not in report_page(record)
