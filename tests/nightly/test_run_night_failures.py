"""Nights on which something goes wrong: what served before serves, and the report says what happened."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kernelcast.collectors.collector import ReplayCollector
from kernelcast.datasets.store.store import Store
from kernelcast.nightly import context
from kernelcast.nightly import open_night as begin
from kernelcast.nightly.record.folders import night_lock
from kernelcast.nightly.record.record import NightRecord

UNTRAINED = {"challengers": []}
"""For nights on which it does not matter, since training takes a process of its own."""


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
    assert "kernelcast serve models" in home.said("registry")
    assert "cannot be loaded" in home.said("registry")
    assert pointer.read_text() == before


def test_the_registry_is_down(home) -> None:
    before = home.served["version"]
    code = home.run(registry="postgresql://nobody@127.0.0.1:1/none")
    record = home.record()
    assert (code, record.outcome) == (0, "kept")
    assert record.stage("gate").facts["winner"].startswith("adapted")
    assert record.stage("promote").facts["registry"].startswith("unreachable")
    assert "127.0.0.1" in home.said("registry")
    home.still_serves(before)


def test_two_nights_at_once(home) -> None:
    with night_lock(home.path / "nights", "other"):
        assert home.run() == 3
    assert home.err.count("\n") == 1
    assert "a night of plan other has been running since" in home.err
    assert f"process {os.getpid()}" in home.err
    assert home.folders == []
    assert home.run("--dry-run") == 0


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
    assert "the plan has changed since (seed: 0 -> 4)" in home.said("stage")
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
    home.still_serves(before)
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
    assert "a fault of kernelcast itself: ZeroDivisionError" in home.said("gate").lower().replace(
        "zerodivisionerror", "ZeroDivisionError"
    )
    assert "by nobody" in (home.folders[-1] / "errors.log").read_text()
    assert record.stage("report").status == "done"
    home.still_serves(before)
