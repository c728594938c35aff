"""What nights know of each other: readings that outlive their folders, bridges that go on where the last one ended, sensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kernelcast.datasets.schema import Measurement, Provenance
from kernelcast.datasets.store import Store, StoreError
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.nightly import watching
from kernelcast.nightly.drift.ledger import Ledger, Regime, Shift, Span, read_ledger, write_ledger
from kernelcast.nightly.drift.sensors import SensorNight
from kernelcast.nightly.drift.watched import Watched, note_night, of_one_regime, watched_nights, watched_path
from kernelcast.nightly.fresh import fresh_tables
from kernelcast.nightly.regimes import bridging, decide

DEVICE = "amd-epyc-9005-vm-2c"
OLD, NEW = "kernel=6.1", "kernel=6.2"
NAMES = [f"case {i}" for i in range(14)]
FIRST = datetime(2026, 1, 1, 22, tzinfo=UTC)
SPECS = [KernelSpec.of("softmax", "fp32", impl="torch", threads=1, rows=64 + 16 * i, cols=512) for i in range(40)]


def night_id(number: int) -> str:
    return f"{FIRST + timedelta(days=number):%Y%m%dT%H%M%SZ}-n"


def at(number: int) -> str:
    return (FIRST + timedelta(days=number, hours=1)).isoformat()


def readings(number: int, moved: float = 0.0) -> dict[str, float | None]:
    rng = np.random.default_rng(number)
    return {name: float(1e-3 * np.exp(moved + 0.005 * rng.normal())) for name in NAMES}


def a_night(number: int, store: Store | None = None, blocks: Sequence[str] = (), **sentinels: Any) -> Any:
    """What of a night these parts use."""
    facts: Mapping[str, Any] = {"sentinels": sentinels}
    return SimpleNamespace(
        record=SimpleNamespace(id=night_id(number), began=(FIRST + timedelta(days=number)).isoformat()), rehearsal=False,
        store=store, devices=catalogue(), blocks=lambda: list(blocks), facts=lambda name: facts.get(name, {}), seed=number,
        measurer=SimpleNamespace(can=lambda device, spec: True, devices=(DEVICE,)),
    )  # fmt: skip


def rows_of(
    store: Store, software: str, block: str, number: int, specs: Sequence[KernelSpec], factor: float = 1.0
) -> None:
    rng = np.random.default_rng(number)
    rows = [
        Measurement(spec, DEVICE, "ok", block, float(1e-3 * factor * np.exp(0.004 * rng.normal())), noisy=False,
                    measured_at=at(number))
        for spec in specs
    ]  # fmt: skip
    store.append(rows, Provenance(block, dict([software.split("=")])))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "rows")


def test_a_slow_creep_is_found_though_no_folder_of_an_early_night_is_left() -> None:
    """0.05 % a night under 0.5 % of noise: a window of 60 nights moves along with it."""
    for number in range(120):
        note_night(DEVICE, night_id(number), OLD, readings=readings(number, 0.0005 * max(0, number - 30)))
    findings, drift, history = watching.judged_anchors(
        a_night(120), DEVICE, Ledger(DEVICE), OLD, readings(120, 0.0005 * 90)
    )
    assert (len(history), drift["nights"], drift["state"]) == (120, 121, "drifted")
    assert "slower since the night" in findings[0].said


def test_lines_of_a_night_add_up_and_damaged_ones_are_passed_over() -> None:
    note_night(DEVICE, "1", OLD, readings={"a": 1.0})
    path = watched_path(DEVICE)
    with path.open("a") as file:
        file.write(
            '[]\n{"night": 3}\n{"night": "4", "software": "s", "readings": {"a": "fast"}}\n{"night": "2", "softw'
        )
    note_night(DEVICE, "1", OLD, sensors=SensorNight("1", {"clock_hz": 2e9}))
    note_night(DEVICE, "0", NEW, readings={"a": None})
    nights, damaged = watched_nights(DEVICE)
    assert damaged == 4
    assert [one.night for one in nights] == ["0", "1"]
    assert nights[1].readings == {"a": 1.0}
    assert nights[1].sensors == SensorNight("1", {"clock_hz": 2e9})
    findings, _, _ = watching.judged_anchors(a_night(1), DEVICE, Ledger(DEVICE), OLD, {"a": 1.0})
    assert "4 lines of" in findings[-1].said


def test_a_disk_that_is_full_costs_a_finding_not_the_night(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **named: Any) -> None:
        raise StoreError("cannot write it: No space left on device")

    monkeypatch.setattr(watching, "note_night", full)
    (finding,) = watching.note(a_night(1), DEVICE, OLD, readings={"a": 1.0})
    assert (finding.kind, finding.level) == ("storage", "warning")
    assert "No space left" in finding.said


def test_nights_that_waited_belong_to_the_regime_decided_later() -> None:
    nights = [Watched(night_id(i), NEW, {"a": 1.0}) for i in range(3)]
    last = Watched(night_id(3), NEW)
    assert len(of_one_regime(nights, Ledger(DEVICE), last)) == 3  # nobody decided: by software
    ledger = Ledger(DEVICE, (Regime("r1", "", OLD, "x"), Regime("r2", "", NEW, "x", "r1")),
                    (Span("", OLD, "r1"), Span(night_id(0), NEW, "r2")))  # fmt: skip
    assert len(of_one_regime(nights, ledger, last)) == 3
    assert of_one_regime(nights, ledger, Watched(night_id(3), OLD)) == []


def test_a_bridge_goes_on_with_the_rows_of_the_nights_that_waited(store: Store) -> None:
    rows_of(store, OLD, "old", 0, SPECS)
    write_ledger(Ledger(DEVICE, (Regime("r1", "", OLD, "x"),), (Span("", OLD, "r1"),)))
    states = []
    for number, specs in ((1, SPECS[:2]), (2, SPECS[2:4]), (3, SPECS[4:12])):
        block = f"b{number}"
        rows_of(store, NEW, block, number, specs, factor=1.2)
        night = a_night(number, store, [block], software=NEW)
        facts, findings, regime = decide(night, DEVICE, fresh_tables(night))
        states.append((facts["state"], regime))
    assert states == [("undecided", None), ("undecided", None), ("opened", "r2")]
    assert "moved" in findings[0].said
    ledger, _ = read_ledger(DEVICE)
    assert ledger.current is not None
    assert ledger.current.shifts["softmax/torch"].n == 12
    assert ledger.regime_of(NEW, at(1)) == "r2"


def test_software_that_came_back_is_not_compared_with_itself(store: Store) -> None:
    """Rows of the old software from before another came are what those of tonight are held against."""
    rows_of(store, OLD, "old", 0, SPECS)
    rows_of(store, NEW, "new", 5, SPECS, factor=1.2)
    shift = {"softmax/torch": Shift(0.18, 0.17, 0.19, 40, "shifted")}
    write_ledger(Ledger(DEVICE, (Regime("r1", "", OLD, "x"), Regime("r2", at(5), NEW, "bridge", "r1", shift)),
                        (Span("", OLD, "r1"), Span(at(5), NEW, "r2"))))  # fmt: skip
    rows_of(store, OLD, "tonight", 9, SPECS[:12], factor=1.5)
    night = a_night(9, store, ["tonight"], software=OLD)
    facts, _, regime = decide(night, DEVICE, fresh_tables(night))
    assert (facts["state"], regime) == ("opened", "r3")


def test_a_drift_opens_a_regime_from_the_night_it_began(store: Store) -> None:
    rows_of(store, OLD, "old", 0, SPECS)
    rows_of(store, OLD, "slow", 6, SPECS[:3], factor=1.2)
    write_ledger(Ledger(DEVICE, (Regime("r1", "", OLD, "x"),), (Span("", OLD, "r1"),)))
    rows_of(store, OLD, "tonight", 9, SPECS[3:12], factor=1.2)
    drift = {"state": "drifted", "since": night_id(5), "confirmed_nights": 4}
    night = a_night(9, store, ["tonight"], software=OLD, drifted=True, drift=drift, noise=0.004)
    facts, findings, regime = decide(night, DEVICE, fresh_tables(night))
    assert (facts["state"], regime) == ("opened", "r2")
    ledger, _ = read_ledger(DEVICE)
    assert ledger.regimes[-1].since == "2026-01-06T22:00:00+00:00"
    assert (ledger.regime_of(OLD, at(4)), ledger.regime_of(OLD, at(6))) == ("r1", "r2")
    assert ledger.regimes[-1].shifts["softmax/torch"].n == 12  # also those of the third night before
    assert findings[-1].level == "needs-person"


def test_a_ledger_that_begins_settles_what_is_stored(store: Store) -> None:
    rows_of(store, OLD, "old", 0, SPECS)
    rows_of(store, NEW, "other", 1, SPECS[:12], factor=1.2)
    rows_of(store, OLD, "tonight", 9, SPECS[:2])
    night = a_night(9, store, ["tonight"], software=OLD)
    facts, findings, regime = decide(night, DEVICE, fresh_tables(night))
    assert (facts["state"], regime) == ("known", "r1")
    assert read_ledger(DEVICE)[0].regime_of(NEW) == "r2"
    assert "has stored rows of 1 other softwares" in findings[0].said


def test_another_night_draws_other_bridge_cases(store: Store) -> None:
    rows_of(store, OLD, "old", 0, SPECS)
    write_ledger(Ledger(DEVICE, (Regime("r1", "", OLD, "x"),), (Span("", OLD, "r1"),)))
    drawn = [
        [case.spec for case in bridging(a_night(number, store, software=NEW), DEVICE, 4.0)] for number in (1, 1, 2)
    ]
    assert 0 < len(drawn[0]) < len(SPECS)
    assert drawn[0] == drawn[1]
    assert set(drawn[0]) != set(drawn[2])


def test_a_device_that_cannot_be_looked_at_is_bridged_by_what_was_noted_of_it_last(store: Store) -> None:
    rows_of(store, OLD, "old", 0, SPECS)
    write_ledger(Ledger(DEVICE, (Regime("r1", "", OLD, "x"),), (Span("", OLD, "r1"),)))
    assert bridging(a_night(2, store), DEVICE, 4.0) == []
    note_night(DEVICE, night_id(1), NEW, readings={"a": 1.0})
    assert bridging(a_night(2, store), DEVICE, 4.0)


def test_sensors_are_held_against_the_nights_before() -> None:
    for number in range(14):
        hot = 71.0 + 0.01 * number if number >= 11 else 60.0 + 0.1 * number
        note_night(DEVICE, night_id(number), OLD, sensors=SensorNight(night_id(number), {"temperature_c": hot}))
    tables = {"softmax": pa.table({"temperature_c": pa.array([72.0, 73.0, 74.0])})}
    findings, tonight, drift = watching.judged_sensors(a_night(14), DEVICE, Ledger(DEVICE), OLD, tables)
    assert tonight["values"]["temperature_c"] == 73.0
    assert drift["temperature_c"]["state"] == "drifted"
    assert [one.kind for one in findings] == ["sensor"]
    assert watched_nights(DEVICE)[0][-1].sensors == SensorNight.from_json(tonight)
