"""What nights know of each other: readings that outlive their folders, software that changed, rows of which software teach."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.store.store import Store, StoreError
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.nightly.checks import device_check
from kernelcast.nightly.checks.device_drift import DeviceNight, write_readings
from kernelcast.nightly.record.plan_file import plan_of
from kernelcast.nightly.rows import TrainingRows, in_blocks

DEVICE = "amd-epyc-9005-vm-2c"
OLD, NEW = "kernel=6.1", "kernel=6.2"
NAMES = [f"case {i}" for i in range(14)]
FIRST = datetime(2026, 1, 1, 22, tzinfo=UTC)
SPECS = [KernelSpec.of("softmax", "fp32", impl="torch", threads=1, rows=64 + 16 * i, cols=512) for i in range(40)]


def night_id(number: int) -> str:
    return f"{FIRST + timedelta(days=number):%Y%m%dT%H%M%SZ}-n"


def readings(number: int, moved: float = 0.0) -> dict[str, float | None]:
    rng = np.random.default_rng(number)
    return {name: float(1e-3 * np.exp(moved + 0.005 * rng.normal())) for name in NAMES}


def a_night(number: int) -> Any:
    """What of a night these parts use."""
    return SimpleNamespace(record=SimpleNamespace(id=night_id(number)), plan=SimpleNamespace(rehearsal=False))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    return tmp_path


def test_a_slow_creep_is_found_though_no_folder_of_an_early_night_is_left() -> None:
    """0.05 % a night under 0.5 % of noise: a window of 60 nights would move along with it."""
    for number in range(120):
        night = DeviceNight(night_id(number), OLD, readings(number, 0.0005 * max(0, number - 30)))
        write_readings(DEVICE, night)
    findings, drift, history = device_check.check_device(a_night(120), DEVICE, OLD, readings(120, 0.0005 * 90))
    assert (len(history), drift["nights"], drift["state"]) == (120, 121, "drifted")
    assert "slower since the night" in findings[0].message


def test_new_software_is_a_warning_and_begins_a_new_reference() -> None:
    for number in range(20):
        write_readings(DEVICE, DeviceNight(night_id(number), OLD, readings(number)))
    findings, drift, history = device_check.check_device(a_night(20), DEVICE, NEW, readings(20, 0.3))
    assert [(item.kind, item.level) for item in findings] == [("software", "warning"), ("device-drift", "info")]
    assert "kernel 6.1 -> 6.2" in findings[0].message
    assert (history, drift["state"]) == ([], "not enough history")
    write_readings(DEVICE, DeviceNight(night_id(20), NEW, readings(20, 0.3)))
    findings, _, history = device_check.check_device(a_night(21), DEVICE, OLD, readings(21))
    assert findings[0].kind == "software"  # it came back, and is compared with its own nights
    assert len(history) == 20


def test_a_disk_that_is_full_costs_a_finding_not_the_night(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise StoreError("cannot write it: No space left on device")

    monkeypatch.setattr(device_check, "write_readings", full)
    (finding,) = device_check.record_readings(a_night(1), DEVICE, OLD, {"a": 1.0})
    assert (finding.kind, finding.level) == ("storage", "warning")
    assert "No space left" in finding.message


def stored(store: Store, software: str, block: str, specs: Sequence[KernelSpec], factor: float) -> None:
    rng = np.random.default_rng(len(block))
    rows = [
        Measurement(spec, DEVICE, "ok", block, float(1e-3 * factor * np.exp(0.004 * rng.normal()))) for spec in specs
    ]
    store.append(rows, Provenance(block, dict([software.split("=")])))


def test_a_library_that_moved_kernels_is_reported_and_its_plan_decides_which_rows_teach(tmp_path: Path) -> None:
    """Rows of before and after teach together unless the plan says otherwise; repeated cases tell how far kernels moved."""
    store = Store(tmp_path / "rows")
    stored(store, OLD, "before", SPECS, 1.0)
    stored(store, NEW, "tonight", SPECS[:12], 1.3)
    counts = {}
    for which in ("all", "current"):
        plan = plan_of({"train": {"software": which}})
        (rows,) = TrainingRows(store, plan, catalogue(), {DEVICE: NEW}).read([DEVICE], pa.compute.scalar(True))
        counts[which] = len(rows)
    assert counts == {"all": 52, "current": 12}
    unknown = TrainingRows(store, plan_of({"train": {"software": "current"}}), catalogue(), {DEVICE: ""})
    assert len(unknown.read([DEVICE], pa.compute.scalar(True))[0]) == 52
    night: Any = SimpleNamespace(
        store=store, record=SimpleNamespace(device=DEVICE), blocks=lambda: ["tonight"],
        measurer=SimpleNamespace(devices=(DEVICE,)),
        chosen=lambda: [SimpleNamespace(spec=spec, why="repeat") for spec in SPECS[:12]],
    )  # fmt: skip
    tables = {"softmax": store.read("softmax").filter(in_blocks(["tonight"]))}
    facts, (finding,) = device_check.check_repeats(night, tables)
    assert facts["repeats"] == 12
    assert facts["repeat_bias_pct"] == pytest.approx(100 * np.log(1.3), abs=1.0)
    assert "it or its software changed" in finding.message
