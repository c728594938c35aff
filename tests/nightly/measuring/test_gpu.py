"""A night on a GPU that is played by a worker process: latency of what was chosen, then energy of a share of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelcast.collectors.campaign import CampaignError
from kernelcast.collectors.gpu.measure.worker import GpuCollector, GpuWorkerOptions
from kernelcast.datasets.store.store import Store
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.nightly.measuring.gpu import GpuMeasurer
from kernelcast.nightly.open_night import NightSetup, open_night
from kernelcast.nightly.record.plan_file import plan_of
from kernelcast.nightly.run_night import run_night
from kernelcast.nightly.stages import choose

PLAYED = Path(__file__).parents[2] / "collectors" / "gpu" / "played_worker.py"
H100 = catalogue().get("h100-sxm")


def played(energy: Mapping[str, int], until: float | None) -> GpuCollector:
    return GpuCollector(
        GpuWorkerOptions(H100.name, energy=bool(energy)), energy=energy, until=until,
        command=lambda options: [sys.executable, "-P", str(PLAYED), options.to_json()],
    )  # fmt: skip


def setup(**changes: Any) -> NightSetup:
    plan = plan_of({
        "name": "gpu", "minutes": 1, "collector": "gpu", "families": ["softmax", "copy"], "energy_minutes": 0.3,
        "train": {"challengers": []}, **changes,
    })  # fmt: skip
    return NightSetup(plan, GpuMeasurer(plan, H100, None, collector=played), catalogue())


def quiet(what: str, done: int, total: int) -> None:
    """Shows no progress."""


def test_a_night_on_a_gpu(home, monkeypatch: pytest.MonkeyPatch) -> None:
    # It ends with its cases and not with its minutes, however slow the machine is.
    monkeypatch.setattr(choose, "_MOST", 80)
    record = run_night(open_night(setup(minutes=5, energy_minutes=1), quiet))
    assert [(stage.name, stage.summary) for stage in record.stages if stage.status == "failed"] == []
    checked = record.stage("sentinels").facts
    assert len(checked["readings"]) >= 2
    rows = record.stage("collect").facts["rows"]
    assert rows["ok"] > 50
    stored = [row for table in Store().read_all([H100.name]).values() for row in table.to_pylist()]
    assert any(row["energy_j"] for row in stored)
    assert H100.name in record.stage("check").facts["software"]
    assert (home.path / "regimes" / f"{H100.name}.anchors.jsonl").exists()


def test_a_worker_that_does_not_start_is_said(home) -> None:
    def broken(energy: Mapping[str, int], until: float | None) -> GpuCollector:
        return GpuCollector(
            GpuWorkerOptions(H100.name), command=lambda _: [sys.executable, "-c", "raise SystemExit(3)"]
        )

    plan = setup().plan
    measurer = GpuMeasurer(plan, H100, None, collector=broken)
    with pytest.raises(CampaignError, match="Nothing was measured"):
        measurer.look({H100.name: []}, 1)
    record = run_night(open_night(NightSetup(plan, measurer, catalogue()), quiet))
    assert record.outcome == "failed"
    assert record.stage("collect").status == "failed"
    assert any(item.kind == "device" and item.level == "needs-person" for item in record.findings)
    assert record.stage("report").status == "done"


def test_the_time_of_a_call_is_not_measured() -> None:
    spec = KernelSpec.of("copy", "fp32", rows=64, cols=64, impl="torch")
    measurer = setup().measurer
    assert [measurer.can(H100.name, replace(spec, timing=timing)) for timing in ("", "device", "call")] == [
        True,
        True,
        False,
    ]


def test_a_gpu_without_cuda_is_not_characterised_and_measures_what_its_torch_runs() -> None:
    plan = setup(families=["gemm"]).plan
    measurer = GpuMeasurer(plan, catalogue().get("mi300x"), None)
    assert measurer.characterise() is None
    product = KernelSpec.of("gemm", "fp32", m=64, n=64, k=64)
    able = {impl: measurer.can("amd-mi300x", replace(product, impl=impl)) for impl in ("torch", "triton", "cupy-tiled")}
    assert able == {"torch": True, "triton": True, "cupy-tiled": False}
