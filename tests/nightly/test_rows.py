"""What nights read and how often, what one keeps for the next, and which kept models challenge again."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.store.store import Store
from kernelcast.features.kernel import KernelSpec
from kernelcast.nightly import run_night as nights
from kernelcast.nightly.context import Night
from kernelcast.nightly.gate import model_ledger as outcome
from kernelcast.nightly.rows import measured_cases
from kernelcast.nightly.stages import check

DEVICE = "amd-epyc-9005-vm-2c"
UNTRAINED = {"challengers": []}


def test_models_and_stores_are_read_once(home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each family of tonight's rows is gone through once by the check, and the serving model is read once in all."""
    outcome._read.cache_clear()
    loaded: list[Path] = []
    scanned: list[str] = []
    read, scan = outcome.load_predictor, Store.scan

    def load(path: Path, devices: Any = None) -> Any:
        loaded.append(path)
        return read(path, devices)

    def scans(self: Store, family: str, *given: Any, **named: Any) -> Any:
        scanned.append(family)
        return scan(self, family, *given, **named)

    monkeypatch.setattr(outcome, "load_predictor", load)

    def checked(night: Any) -> Any:
        scanned.clear()
        did = check.check(night)
        scanned.append("after")
        monkeypatch.setattr(Store, "scan", scan)
        return did

    monkeypatch.setattr(Store, "scan", scans)
    stages = MappingProxyType({**nights.RUN, "check": checked})
    monkeypatch.setattr(nights.run_night, "__defaults__", (stages,))
    assert home.run(train=UNTRAINED) == 0, home.err
    assert home.record().stage("check").facts["model_drift"]
    assert scanned == ["softmax", "after"]
    assert len(loaded) == 1


def test_a_night_keeps_its_readings_for_the_next(home, write, rows, tmp_path: Path) -> None:
    anchor = KernelSpec.of("softmax", "fp32", impl="torch", threads=1, rows=512, cols=1024)
    sensed = rows(200)
    recorded = write([*sensed, replace(sensed[0], spec=anchor)], tmp_path / "sensed.parquet")
    plan: dict[str, Any] = {
        "train": UNTRAINED,
        "replay": {"rows": str(recorded)},
        "minutes": 0.3,
    }
    assert home.run(**plan) == 0, home.err
    # The folder goes, as those of old nights do; its name, an earlier one here, stays in what was noted.
    (remaining,) = (home.path / "regimes").rglob("*.jsonl")
    remaining.write_text(remaining.read_text().replace(home.folders[-1].name, "20260101T220000Z-rehearsal"))
    shutil.rmtree(home.folders[-1])
    assert home.run("--new", seed=2, **plan) == 0, home.err
    seen = home.record().stage("sentinels").facts
    assert seen["expected"].keys() == seen["readings"].keys() == {str(anchor)}
    assert seen["drift"]["nights"] == 2
    # A recording says nothing of the device, and is kept apart.
    assert [path.name for path in (home.path / "regimes").rglob("*.jsonl")] == [f"{DEVICE}.anchors.jsonl"]
    assert not (home.path / "regimes" / f"{DEVICE}.anchors.jsonl").exists()


def test_other_nights_draw_other_cases_at_the_same_time_of_day() -> None:
    def seed(name: str) -> int:
        given = SimpleNamespace(plan=SimpleNamespace(seed=3), record=SimpleNamespace(id=name))
        return int(Night.seed.fget(given))  # type: ignore[attr-defined]

    assert len({seed(f"202611{day:02}T220000Z-n") for day in range(1, 29)}) == 28
    assert seed("20261101T220000Z-n") == seed("20261101T220000Z-n")


def test_measured_cases_have_their_timing(tmp_path: Path) -> None:
    spec = KernelSpec.of("copy", "fp32", rows=64, cols=64, impl="torch", timing="call")
    store = Store(tmp_path / "store")
    store.append([Measurement(spec, "my-machine", "ok", "b1", latency_s=1e-3)], Provenance("b1", {"host": "test"}))
    assert measured_cases(store, "my-machine", shipped=False).stored == (spec,)
