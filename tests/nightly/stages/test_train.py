"""Which challengers are made, and what becomes of one that takes too long."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import Any

import pytest
from kernelcast.nightly.gate.model_ledger import Ledger, RecentError

DEVICE = "amd-epyc-9005-vm-2c"


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
    assert "ended when its time was over" in home.said("budget")
    assert 0 < times[0] < 60
    home.still_serves(before)


def test_the_best_past_model_challenges_as_it_is_and_adapted(home) -> None:
    plan: dict[str, Any] = {"minutes": 0.5}
    challengers = {"regressors": ["analytic"], "with_shipped": False, "challengers": ["past"]}
    assert home.run(**plan) == 0, home.err
    first = home.served["version"]
    entry = Ledger().entries()[0]
    night = home.folders[-1].name
    # Two more that were kept: one nearer in time, one with smaller errors.
    near, good = (
        replace(entry, version=f"{i}" * 12, night=f"2026110{i}T000000Z-n", sha256=f"{i}" * 64) for i in (2, 1)
    )
    with Ledger().path.open("a") as file:
        for item in (near, good):
            file.write(json.dumps({"event": "kept", **{k: v for k, v in asdict(item).items() if k != "errors"}}) + "\n")
    for version, error in ((near.version, 50.0), (good.version, 1.0)):
        Ledger().record_errors(version, [RecentError(night, DEVICE, "softmax", 500, error)])
    assert home.run("--new", seed=3, train=challengers, **plan) == 0, home.err
    facts = home.record().stage("train").facts
    assert facts["past"] == good.version
    made = {item["name"]: item["kind"] for item in facts["challengers"]}
    assert made == {
        f"adapted-past-{good.version}": "adapted", f"past-{good.version}": "past",
    }  # fmt: skip
    assert first not in " ".join(made)
