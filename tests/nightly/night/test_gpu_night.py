"""A night on a GPU that is played by a worker process: latency of what was chosen, then energy of a share of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kernelcast.collectors.campaign import CampaignError
from kernelcast.collectors.gpu.process import GpuCollector
from kernelcast.collectors.gpu.worker import GpuWorkerOptions
from kernelcast.datasets.store import Store
from kernelcast.features.device import catalogue
from kernelcast.nightly.begin import Setting, open_night
from kernelcast.nightly.measuring import gpu as measuring_gpu
from kernelcast.nightly.measuring.gpu import GpuMeasurer
from kernelcast.nightly.night import run_night
from kernelcast.nightly.plan_file import plan_of

PLAYED = Path(__file__).parents[2] / "collectors" / "gpu" / "played_worker.py"
H100 = catalogue().get("h100-sxm")


def played(energy: Mapping[str, int], until: float | None) -> GpuCollector:
    return GpuCollector(
        GpuWorkerOptions(H100.name, energy=bool(energy)), energy=energy, until=until,
        command=lambda options: [sys.executable, "-P", str(PLAYED), options.to_json()],
    )  # fmt: skip


def setting(**changes: Any) -> Setting:
    plan = plan_of({
        "name": "gpu", "minutes": 0.5, "collector": "gpu", "families": ["softmax", "copy"], "energy_minutes": 0.05,
        "train": {"challengers": []}, **changes,
    })  # fmt: skip
    return Setting(plan, GpuMeasurer(plan, H100, None, collector=played), catalogue())


def quiet(what: str, done: int, total: int) -> None:
    """Shows no progress."""


def test_a_night_on_a_gpu(home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring_gpu, "SECONDS_PER_ENERGY_CASE", 0.5)
    record = run_night(open_night(setting(), quiet))
    assert [(stage.name, stage.said) for stage in record.stages if stage.status == "failed"] == []
    looked = record.stage("sentinels").facts
    assert len(looked["readings"]) >= 2
    rows = record.stage("collect").facts["rows"]
    assert rows["ok"] > 50
    stored = [row for table in Store().read_all([H100.name]).values() for row in table.to_pylist()]
    assert any(row["energy_j"] for row in stored)
    assert record.stage("check").facts["regime"] == "r1"
    assert (home.path / "regimes" / f"{H100.name}.json").exists()


def test_a_worker_that_does_not_start_is_said(home) -> None:
    def broken(energy: Mapping[str, int], until: float | None) -> GpuCollector:
        return GpuCollector(
            GpuWorkerOptions(H100.name), command=lambda _: [sys.executable, "-c", "raise SystemExit(3)"]
        )

    plan = setting().plan
    measurer = GpuMeasurer(plan, H100, None, collector=broken)
    with pytest.raises(CampaignError, match="Nothing was measured"):
        measurer.look({H100.name: []}, 1)
    record = run_night(open_night(Setting(plan, measurer, catalogue()), quiet))
    assert record.outcome == "failed"
    assert record.stage("collect").status == "failed"
    assert any(one.kind == "device" and one.level == "needs-person" for one in record.findings)
    assert record.stage("report").status == "done"
