"""Nights on which something goes wrong: what served before serves, and the report says what happened."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kernelcast.collectors.collector import ReplayCollector
from kernelcast.datasets.store.store import Store
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.nightly import context
from kernelcast.nightly import open_night as begin
from kernelcast.nightly.record.folders import night_lock
from kernelcast.nightly.record.record import NightRecord
from kernelcast.process import ChildStartError

UNTRAINED = {"challengers": []}
"""For nights on which it does not matter, since training takes a process of its own."""


def said(record: NightRecord, kind: str) -> str:
    """What the findings of a kind say."""
    return " | ".join(one.message for one in record.findings if one.kind == kind)


def still_serves(home: Any, version: str) -> None:
    """The state before the night serves, and loads."""
    assert home.served["version"] == version
    load_predictor(default_model_dir()).load_all()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 kB, where this user may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12k", "tmpfs", str(place)], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted: {done.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_no_space_for_rows(home, small_disk: Path) -> None:
    before = home.served["version"]
    assert home.run(store=str(small_disk / "rows")) == 1
    record = home.record()
    assert record.outcome == "failed"
    assert record.stage("collect").status == "failed"
    assert "the disk is full" in said(record, "storage")
    assert record.stage("train").status == "skipped"
    assert record.stage("report").status == "done"
    still_serves(home, before)


def test_no_space_in_the_night_s_own_folder(home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the ballast's room is left for the report."""
    before = home.served["version"]
    from kernelcast.nightly.stages import choose

    def full(self: Any, cases: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(self.folder))

    monkeypatch.setattr(choose.Night, "write_chosen", full)
    assert home.run() == 1
    record = home.record()
    assert record.stage("choose").status == "failed"
    assert "No space left" in said(record, "storage")
    assert not (home.folders[-1] / ".ballast").exists()
    still_serves(home, before)


def test_the_sensor_is_gone_midway(home) -> None:
    """The recording has power for its first half, in the order it is measured."""
    calls = 0
    original = ReplayCollector._row

    def row(self: ReplayCollector, spec: Any) -> Any:

        nonlocal calls
        calls += 1
        found = original(self, spec)
        watts = 40.0 if calls < 30 else None
        return replace(
            found,
            power_w=watts,
            energy_j=None if watts is None else watts * found.latency_s,
            energy_source=None if watts is None else "rapl",
            energy_mode="steady_loop",
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplayCollector, "_row", row)
        assert home.run(train=UNTRAINED) == 0, home.err
    record = home.record()
    assert record.stage("collect").facts["rows"]["ok"] > 60
    assert "then none for the last" in said(record, "sensor")
    assert next(one for one in record.findings if one.kind == "sensor").level == "needs-person"


def test_the_device_is_lost_for_good(home, monkeypatch: pytest.MonkeyPatch) -> None:
    before = home.served["version"]
    calls = 0
    original = ReplayCollector.collect

    def collect(self: ReplayCollector, specs: Sequence[Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls > 6:
            raise ChildStartError("the worker of torch does not start: no such device")
        return original(self, specs)

    monkeypatch.setattr(ReplayCollector, "collect", collect)
    code = home.run()
    record = home.record()
    assert record.stage("collect").status == "failed"
    assert "does not start" in said(record, "device")
    assert record.stage("collect").facts["rows"] == {"ok": 72}
    assert record.stage("collect").facts["left"] > 0
    # What was measured before is trained on and judged all the same.
    assert record.stage("gate").status == "done"
    assert (code, record.outcome) in [(1, "failed"), (0, "promoted")]
    assert record.champion_before == before
    load_predictor(default_model_dir()).load_all()


def test_damaged_rows_in_the_store(home) -> None:
    assert home.run(train=UNTRAINED) == 0, home.err
    place = home.path / "rehearsals"
    stored = Store(place).files()
    stored[0].write_bytes(stored[0].read_bytes()[:-200] + b"\0" * 200)
    assert home.run("--new", seed=5, train=UNTRAINED) == 0, home.err
    record = home.record()
    facts = record.stage("check").facts
    assert len(facts["damaged_files"]) == 1
    assert "moved out of the way" in said(record, "storage")
    assert stored[0] not in Store(place).files()
    load_predictor(default_model_dir()).load_all()


@pytest.mark.parametrize("damage", ["pointer", "files", "gone"])
def test_a_champion_that_cannot_be_loaded(home, damage: str) -> None:
    pointer = home.path / "champion.json"
    model = Path(home.served["artifact"])
    if damage == "pointer":
        pointer.write_text("{")
    elif damage == "files":
        next(model.glob("*.gz")).write_bytes(b"no graph")
    else:
        model.rename(model.with_name("elsewhere"))
    before = pointer.read_text()
    assert home.run() == 1, (
        home.err
    )  # rows were measured and nothing was touched, but nothing serves that can be loaded
    record = home.record()
    assert record.outcome == "failed"
    assert "cannot be loaded; a person has to act" in home.err
    assert record.stage("collect").facts["rows"]["ok"] > 0
    assert record.stage("train").status == "skipped"
    assert "kernelcast models" in said(record, "registry")
    assert "cannot be loaded" in said(record, "registry")
    assert pointer.read_text() == before


def test_the_registry_is_down(home) -> None:
    before = home.served["version"]
    code = home.run(registry="postgresql://nobody@127.0.0.1:1/none")
    record = home.record()
    assert (code, record.outcome) == (0, "kept")
    assert record.stage("gate").facts["winner"] == "adapted"
    assert record.stage("promote").facts["registry"].startswith("unreachable")
    assert "127.0.0.1" in said(record, "registry")
    still_serves(home, before)


def test_two_nights_at_once(home) -> None:
    with night_lock(home.path / "nights", "other"):
        assert home.run() == 3
    assert home.err.count("\n") == 1
    assert "a night of plan other has been running since" in home.err
    assert f"process {os.getpid()}" in home.err
    assert home.folders == []
    assert home.run("--dry-run") == 0


def test_the_device_is_measured_by_something_else(home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "LOCKED", ("replay",))
    store = Store(home.path / "rehearsals")
    with store.lock("amd-epyc-9005-vm-2c"):
        assert home.run() == 1
    record = home.record()
    assert "is being measured by" in said(record, "lock")
    assert record.stage("collect").status == "failed"


def test_the_usage_log_is_damaged(home) -> None:
    usage = home.path / "usage"
    usage.mkdir()
    (usage / "2026-11-22-1-0123abcd.jsonl").write_bytes(b"\xff\x00{]\nnot json\n")
    assert home.run(train=UNTRAINED) == 0, home.err
    assert "could not be read and were skipped" in said(home.record(), "usage")


def test_the_plan_changed_between_crash_and_resume(home, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: ReplayCollector, specs: Sequence[Any]) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ReplayCollector, "collect", stop)
        assert home.run(train=UNTRAINED) == 130
    first = home.folders[-1]
    assert NightRecord.read(first / "state.json").outcome == "interrupted"
    assert home.run("--resume", "last", seed=4, train=UNTRAINED) == 2
    assert "seed: 0 -> 4" in home.err
    assert home.run(seed=4, train=UNTRAINED) == 0, home.err
    assert len(home.folders) == 2
    record = home.record()
    assert "the plan has changed since (seed: 0 -> 4)" in said(record, "stage")
    assert NightRecord.read(first / "state.json").outcome == "interrupted"


def test_ctrl_c_stores_what_was_measured_and_the_same_command_goes_on(home, monkeypatch: pytest.MonkeyPatch) -> None:
    before = home.served["version"]
    original = ReplayCollector.collect
    calls = 0

    def collect(self: ReplayCollector, specs: Sequence[Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return original(self, specs)

    monkeypatch.setattr(ReplayCollector, "collect", collect)
    assert home.run() == 130
    assert "run the same command to continue night" in home.err
    assert home.record().outcome == "interrupted"
    still_serves(home, before)
    assert home.run() == 0, home.err
    assert len(home.folders) == 1
    record = home.record()
    assert record.outcome == "promoted"
    table = Store(home.path / "rehearsals").read("softmax")
    ids = table["case_id"].to_pylist()
    assert len(ids) == len(set(ids)) == record.stage("choose").facts["cases"]


def test_a_clock_that_goes_backwards(home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second night at an earlier time gets a name of its own, and budgets do not follow the clock."""
    assert home.run(train=UNTRAINED) == 0, home.err
    first = home.folders[-1].name

    class Earlier(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.strptime(first[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)

    monkeypatch.setattr(begin, "datetime", Earlier)
    assert home.run("--new", seed=3, train=UNTRAINED) == 0, home.err
    assert len(home.folders) == 2
    assert home.folders[0].name == first
    ticks = iter([100.0, 40.0, 40.0])
    spent = context.Budget(60.0, 0.0, 20.0, clock=lambda: next(ticks))
    assert spent.left_s == 120.0
    assert spent.measuring_s == 100.0


def test_a_night_of_yesterday_is_left_alone(home, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: ReplayCollector, specs: Sequence[Any]) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ReplayCollector, "collect", stop)
        assert home.run(train=UNTRAINED) == 130
    state = home.folders[-1] / "state.json"
    content = json.loads(state.read_text())
    content["began"] = (datetime.now(UTC) - timedelta(hours=25)).isoformat()
    state.write_text(json.dumps(content))
    assert home.run(train=UNTRAINED) == 0, home.err
    assert len(home.folders) == 2


def test_a_fault_of_ours_is_one_stage_s_and_leaves_a_trace(home, monkeypatch: pytest.MonkeyPatch) -> None:
    before = home.served["version"]
    from kernelcast.nightly.stages import gate

    def fault(*given: Any, **named: Any) -> Any:
        raise ZeroDivisionError("by nobody")

    monkeypatch.setattr(gate, "judge", fault)
    assert home.run() == 1
    record = home.record()
    assert record.stage("gate").status == "failed"
    assert "a fault of kernelcast itself: ZeroDivisionError" in said(record, "gate").lower().replace(
        "zerodivisionerror", "ZeroDivisionError"
    )
    assert "by nobody" in (home.folders[-1] / "errors.log").read_text()
    assert record.stage("report").status == "done"
    still_serves(home, before)


def test_training_that_takes_too_long_is_ended(home, in_a_process, monkeypatch: pytest.MonkeyPatch) -> None:
    before = home.served["version"]
    from kernelcast.nightly.stages import train

    run, times = train._run_process, []

    def run_shortly(night: Any, name: str, seconds: float) -> Any:
        times.append(seconds)
        return run(night, name, 0.5)

    monkeypatch.setattr(train, "_command", lambda folder, name: [sys.executable, "-c", "import time; time.sleep(600)"])
    monkeypatch.setattr(train, "_run_process", run_shortly)
    assert home.run() == 1
    record = home.record()
    assert "ended when its time was over" in said(record, "budget")
    assert 0 < times[0] < 60
    still_serves(home, before)
