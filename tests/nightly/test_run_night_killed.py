"""A night killed by SIGKILL in any stage goes on where it was, measures no case twice, and ends as if nothing had been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kernelcast.datasets.store.store import Store
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.nightly.record.record import STAGES

Kill = Callable[[dict[str, str]], int]

QUICK = [("collect", "midway"), ("train", "after"), ("promote", "before")]
_REST = [case for case in (*((stage, "after") for stage in STAGES), ("collect", "before")) if case not in QUICK]
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in _REST)]


@pytest.fixture(scope="module")
def kill() -> Iterator[Kill]:
    """Runs a night that is killed; the number of the signal that ended it."""
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("killed_nights.py"))], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def ask(request: dict[str, str]) -> int:
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        return int(stdout.readline())

    yield ask
    process.communicate(timeout=120)


def outcome(home: Any) -> tuple[Any, ...]:
    """What a night came to, whenever and however often it was run."""
    record = home.record()
    assert [stage.status for stage in record.stages] == ["skipped", *["done"] * 8]
    rows = Store(home.path / "rehearsals").read("softmax")["case_id"].to_pylist()
    assert len(rows) == len(set(rows)) == record.stage("choose").facts["cases"]
    load_predictor(default_model_dir()).load_all()
    assert home.served["version"] == record.champion_after == record.stage("promote").facts["version"]
    verdict = record.stage("gate").facts["verdicts"][0]
    return record.outcome, record.champion_before, record.stage("promote").facts["previous"], verdict["passed"]


@pytest.mark.parametrize(("stage", "when"), CASES)
def test_a_killed_night_goes_on(home, kill: Kill, stage: str, when: str) -> None:
    before = home.served["version"]
    plan = home.plan(replay={"rows": str(home.recorded)})
    assert kill({"plan": str(plan), "home": str(home.path), "stage": stage, "when": when}) == signal.SIGKILL
    assert len(home.folders) == 1
    if STAGES.index(stage) < STAGES.index("promote") or when == "before":
        # Until it promotes, a night touches nothing that serves.
        assert home.served["version"] == before
    load_predictor(default_model_dir()).load_all()
    assert home.run() == 0, home.err
    assert len(home.folders) == 1
    assert outcome(home) == ("promoted", before, before, True)
