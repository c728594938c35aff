"""What measuring does when the disk, the sensor or the device gives out."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelcast.collectors.collector import ReplayCollector
from kernelcast.datasets.store.store import Store
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.nightly import context
from kernelcast.process import ChildStartError

UNTRAINED = {"challengers": []}
"""For nights on which it does not matter, since training takes a process of its own."""


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
    assert "the disk is full" in home.said("storage")
    assert record.stage("train").status == "skipped"
    assert record.stage("report").status == "done"
    home.still_serves(before)


def test_the_sensor_is_gone_midway(home) -> None:
    """The recording has power for its first half, in the order it is measured."""
    calls = 0
    original = ReplayCollector._row

    def row(self: ReplayCollector, spec: Any) -> Any:

        nonlocal calls
        calls += 1
        result = original(self, spec)
        watts = 40.0 if calls < 30 else None
        return replace(
            result,
            power_w=watts,
            energy_j=None if watts is None else watts * result.latency_s,
            energy_source=None if watts is None else "rapl",
            energy_mode="steady_loop",
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplayCollector, "_row", row)
        assert home.run(train=UNTRAINED) == 0, home.err
    record = home.record()
    assert record.stage("collect").facts["rows"]["ok"] > 60
    assert "then none for the last" in home.said("sensor")
    assert next(item for item in record.findings if item.kind == "sensor").level == "needs-person"


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
    assert "does not start" in home.said("device")
    assert record.stage("collect").facts["rows"] == {"ok": 72}
    assert record.stage("collect").facts["left"] > 0
    # What was measured before is trained on and judged all the same.
    assert record.stage("gate").status == "done"
    assert (code, record.outcome) in [(1, "failed"), (0, "promoted")]
    assert record.champion_before == before
    load_predictor(default_model_dir()).load_all()


def test_the_device_is_measured_by_something_else(home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "LOCKED", ("replay",))
    store = Store(home.path / "rehearsals")
    with store.lock("amd-epyc-9005-vm-2c"):
        assert home.run() == 1
    record = home.record()
    assert "is being measured by" in home.said("lock")
    assert record.stage("collect").status == "failed"
