"""What is chosen: other cases every night, those that users ask for first; and what stands in the way."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest
from kernelcast.api.telemetry.usage_log import UsageLog
from kernelcast.datasets.store.store import Store
from kernelcast.nightly.measuring.replay import recorded_rows

UNTRAINED = {"challengers": []}
"""For nights on which it does not matter, since training takes a process of its own."""


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
    assert "No space left" in home.said("storage")
    assert not (home.folders[-1] / ".ballast").exists()
    home.still_serves(before)


def test_the_usage_log_is_damaged(home) -> None:
    usage = home.path / "usage"
    usage.mkdir()
    (usage / "2026-11-22-1-0123abcd.jsonl").write_bytes(b"\xff\x00{]\nnot json\n")
    assert home.run(train=UNTRAINED) == 0, home.err
    assert "could not be read and were skipped" in home.said("usage")


def test_a_second_night_measures_other_cases_and_some_again(home) -> None:
    assert home.run(train=UNTRAINED, minutes=0.4, choose={"repeats": 0.2}) == 0, home.err
    first = home.record().stage("choose").facts
    assert "repeat" not in first["why"]  # nothing was measured before
    assert home.run(train=UNTRAINED, minutes=0.4, choose={"repeats": 0.2}) == 0, home.err
    facts, checked = home.record().stage("choose").facts, home.record().stage("check").facts
    assert facts["why"]["repeat"] > 0
    assert checked["repeats"] == facts["why"]["repeat"]
    assert checked["repeat_median_pct"] == 0.0  # a recording repeats itself
    ids = Store(home.path / "rehearsals").read("softmax", columns=["case_id"])["case_id"].to_pylist()
    assert len(ids) - len(set(ids)) == facts["why"]["repeat"]


def test_what_users_ask_for_is_measured_first(home) -> None:
    spec = recorded_rows(home.recorded, None)[5].spec
    plan = {"usage": 0.5, "space_filling": 0.0, "repeats": 0}
    usage = home.path / "usage"
    usage.mkdir()
    log = UsageLog(usage)
    log.specs([spec] * 50, ["amd-epyc-9005-vm-2c"] * 50)
    log.write()
    assert home.run(train=UNTRAINED, choose=plan) == 0, home.err
    chosen = [json.loads(line) for line in (home.folders[-1] / "chosen.jsonl").read_text().splitlines()]
    assert any(item["why"] == "usage" for item in chosen)
