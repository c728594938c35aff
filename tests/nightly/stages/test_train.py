"""Which challengers are made, and what becomes of one that takes too long."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import Any

import pytest
from kernelcast.nightly.gate.model_ledger import Ledger


def test_training_that_takes_too_long_is_ended(home, in_a_process, monkeypatch: pytest.MonkeyPatch) -> None:
    before = home.served["version"]
    from kernelcast.nightly.stages import train

    run, times = train._run_process, []

    def run_shortly(night: Any, process: str, names: Any, seconds: float) -> None:
        times.append(seconds)
        run(night, process, names, 0.5)

    monkeypatch.setattr(train, "_command", lambda folder, name: [sys.executable, "-c", "import time; time.sleep(600)"])
    monkeypatch.setattr(train, "_run_process", run_shortly)
    assert home.run() == 1
    assert "ended when its time was over" in home.said("budget")
    assert 0 < times[0] < 60
    home.still_serves(before)


def test_the_model_before_and_the_newest_of_tonights_software_challenge_again(home) -> None:
    plan: dict[str, Any] = {"minutes": 0.5}
    assert home.run(**plan) == 0, home.err
    before, first = Ledger().entries()
    # Two more that were kept, of the software of a recording, which is none.
    old, new = (replace(first, version=f"{i}" * 12, night=f"2026110{i}T000000Z-n", sha256=f"{i}" * 64) for i in (1, 2))
    with Ledger().path.open("a") as file:
        for item in (old, new):
            file.write(json.dumps({"event": "kept", **{k: v for k, v in asdict(item).items() if k != "errors"}}) + "\n")
    again = {"regressors": ["analytic"], "with_shipped": False, "challengers": ["past"]}
    assert home.run("--new", seed=3, train=again, **plan) == 0, home.err
    made = [item["name"] for item in home.record().stage("train").facts["challengers"]]
    assert made == [f"past-{before.version}"]


def test_it_is_retrained_once_its_devices_have_rows_enough(home) -> None:
    train: dict[str, Any] = {"regressors": ["analytic"], "with_shipped": False, "challengers": ["retrained"]}
    assert home.run(minutes=0.5, train=train) in (0, 1)
    facts = home.record().stage("train").facts
    assert facts.get("challengers", []) == []
    assert "from 1500 on" in facts["not_retrained"]
    assert home.run("--new", seed=3, minutes=0.5, train={**train, "retrain_rows": 50}) == 0, home.err
    facts = home.record().stage("train").facts
    assert [item["name"] for item in facts["challengers"]] == ["retrained"]
    assert facts["rows_retrained_by"] >= 50
