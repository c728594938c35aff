"""The standing campaign from plan to store, over a real worker process whose GPU is played."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelcast.collectors.campaign import CampaignError
from kernelcast.collectors.gpu.campaign import (
    GpuBudget,
    GpuCampaignSummary,
    energy_plan,
    energy_windows,
    latency_plan,
    measured_specs,
    run_gpu_campaign,
)
from kernelcast.collectors.gpu.measure.worker import GpuCollector, GpuWorkerOptions
from kernelcast.collectors.host import utc_now
from kernelcast.datasets.rows.schema import Measurement, to_table
from kernelcast.datasets.store.parquet_files import provenance_of
from kernelcast.datasets.store.store import Store
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec

PLAYED = Path(__file__).parent / "played_worker.py"
# A device without shipped rows, so that what is measured is what the test measured.
GH200 = catalogue().get("nvidia-gh200-96gb")


def collector(energy: Mapping[str, int]) -> GpuCollector:
    return GpuCollector(
        GpuWorkerOptions(GH200.name, energy=bool(energy)),
        energy=energy,
        command=lambda options: [sys.executable, "-P", str(PLAYED), options.to_json()],
    )


# Of every kind of law; all families are planned where there is no sensor.
FEW = ["gemm", "softmax", "copy"]


def run(store: Store, budget: GpuBudget) -> GpuCampaignSummary:
    return run_gpu_campaign(store, GH200, None, budget, collector=collector, processes=0, families=FEW)


def all_rows(store: Store) -> list[dict[str, Any]]:
    return [row for family in store.families() for row in store.read(family).to_pylist()]


def test_short_runs_add_up_and_measure_nothing_twice(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = run(store, GpuBudget(60.0, 0.0, 25))
    assert first.latency is not None
    assert first.energy is None
    assert sum(first.latency.stored.values()) == 25
    assert first.latency.stored["ok"] > 20
    second = run(store, GpuBudget(60.0, 0.0, 25))
    assert second.latency is not None
    rows = all_rows(store)
    assert len(rows) == sum(first.latency.stored.values()) + sum(second.latency.stored.values())
    assert max(Counter(row["case_id"] for row in rows).values()) == 1


def test_blocks_say_which_worker_measured_and_how_steady_the_machine_was(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run(store, GpuBudget(60.0, 0.0, 25))
    table = store.read("gemm")
    facts = provenance_of(table)[table["block"][0].as_py()]
    assert facts["workers"]["gpu/0"]["gpu"] == "played"
    assert facts["campaign_seed"] == 0
    assert len(facts["sentinel_before_s"]) == 2


def test_energy_goes_to_a_stratified_share_of_what_was_measured(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run(store, GpuBudget(60.0, 0.0, 60))
    done = run(store, GpuBudget(60.0, 60.0, 12))
    assert done.latency is None
    assert done.energy is not None
    assert done.energy.stored["ok"] > 0
    rows = [row for row in all_rows(store) if row["energy_j"] is not None]
    assert len(rows) == done.energy.stored["ok"]
    assert {row["energy_source"] for row in rows} == {"played"}
    assert {row["cache_state"] for row in rows} == {"hot"}
    for row in rows:
        assert row["energy_j"] == pytest.approx(row["power_w"] * row["steady_latency_s"])
        assert row["energy_windows"] == (3 if int(row["case_id"], 16) % 10 == 0 else 1)
    again = measured_specs(store, GH200.name)
    assert {spec.case_id for spec in again.with_energy} == {row["case_id"] for row in rows}
    left = energy_plan(again.possible, again.with_energy, GH200, 0)
    assert not {spec.case_id for spec in left} & {row["case_id"] for row in rows}


@pytest.mark.slow
def test_ten_runs_of_one_seed_find_as_much_to_do_as_the_first() -> None:
    measured: list[KernelSpec] = []
    for _ in range(10):
        planned = latency_plan(60.0, 0, measured, GH200)
        assert (
            len({spec.case_id for spec in planned} - {spec.case_id for spec in measured}) == len(planned) >= 0.9 * 1200
        )
        assert sum(spec.impl in ("triton", "cutlass", "cupy-tiled") for spec in planned) >= 0.2 * len(planned)
        measured += planned
    assert latency_plan(60.0, 0, measured, GH200) == latency_plan(60.0, 0, measured, GH200)


def row_of(spec: KernelSpec, status: str = "ok", **more: Any) -> Measurement:
    latency = {"latency_s": 1e-5, "latency_q1_s": 1e-5, "latency_q3_s": 1e-5, "latency_min_s": 1e-5, "n_samples": 10}
    return Measurement(
        spec, GH200.name, status, "b", measured_at=utc_now(), **(latency if status == "ok" else {}), **more
    )  # type: ignore[arg-type]


def test_cases_are_known_by_what_can_still_be_had_of_them() -> None:
    copies = [KernelSpec.of("copy", "fp32", impl="torch", rows=64 + i, cols=64) for i in range(8)]
    energy = {"energy_j": 4e-3, "power_w": 400.0, "energy_source": "played", "energy_mode": "steady_loop", "energy_windows": 1,
              "steady_latency_s": 1e-5}  # fmt: skip
    rows = [
        row_of(copies[0]), row_of(copies[1]), row_of(copies[2], "unsupported"), row_of(copies[3], "out_of_memory"),
        row_of(copies[4], "timeout"), row_of(copies[5]), row_of(copies[6], "failed"), row_of(copies[7], **energy),
        # Tried for energy later.
        row_of(copies[1], **energy), row_of(copies[5], message="no energy: the counter stood still"),
    ]  # fmt: skip
    store = SimpleNamespace(families=lambda: ["copy"], read=lambda family, devices: to_table(rows, "copy"))
    known = measured_specs(store, GH200.name)  # type: ignore[arg-type]
    assert known.without == [copies[0]]
    assert known.with_energy == [copies[1], copies[7]]
    assert known.impossible == copies[2:6]
    assert set(known.all) == {*copies[:6], copies[7]}
    assert len(known.all) == 7
    assert known.possible == [copies[1], copies[7], copies[0]]


def test_energy_plan_covers_every_family_and_dtype() -> None:
    planned = latency_plan(100.0, 0, [], GH200)
    chosen = energy_plan(planned, [], GH200, 0)
    hot = {(spec.family, spec.dtype) for spec in planned if spec.cache_state == "hot"}
    assert {(spec.family, spec.dtype) for spec in chosen} == hot
    assert 0.05 < len(chosen) / len(planned) < 0.25
    assert set(energy_windows(chosen).values()) == {1, 3}


def test_families_asked_for_are_the_only_ones_planned() -> None:
    planned = latency_plan(20.0, 0, [], GH200, ["softmax", "copy"])
    assert {spec.family for spec in planned} == {"softmax", "copy"}
    assert len(planned) == 400


BLOCKED = ("xgboost", "mlflow", "starlette", "msgspec", "pandas", "scipy", "sklearn", "onnxruntime", "onnx", "uvicorn", "iree",
           "prometheus_client", "httptools", "sqlalchemy", "joblib")  # fmt: skip


def test_a_gpu_machine_needs_only_what_the_makefile_says() -> None:
    """The command line, the plan and the worker's modules run where every other library is missing."""
    script = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f'no {{name}} on this machine', name=name)
sys.meta_path.insert(0, Missing())
import kernelcast.collectors.gpu.measure.bench, kernelcast.collectors.gpu.measure.torch_gpu
import kernelcast.collectors.gpu.measure.worker, kernelcast.collectors.gpu.characterize.characterize
import kernelcast.collectors.gpu.profiling.launch_worker
from kernelcast.collectors.runner import gpu_runners
assert 'triton' in gpu_runners()
from kernelcast.cli import main
sys.exit(main(['collect-gpu', '--dry-run', '--device', 'h100-sxm', '--minutes', '0.5', '--json']))
"""
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout)
    assert {row["family"] for row in planned} > {"gemm", "attention", "moe"}


def test_energy_is_measured_only_of_the_families_asked_for(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run(store, GpuBudget(60.0, 0.0, 60))
    budget = GpuBudget(60.0, 60.0, 4)
    run_gpu_campaign(store, GH200, None, budget, collector=collector, processes=0, families=["gemm"])
    assert {row["family"] for row in all_rows(store) if row["energy_j"] is not None} == {"gemm"}


def without_sensor(energy: Mapping[str, int]) -> GpuCollector:
    script = f"import sys; sys.path.insert(0, {str(PLAYED.parent)!r}); import played_worker"
    return GpuCollector(
        GpuWorkerOptions(GH200.name, energy=bool(energy)),
        energy=energy,
        command=lambda options: [
            sys.executable,
            "-P",
            "-c",
            f"{script}; played_worker.main('none')",
            options.to_json(),
        ],
    )


def test_without_an_energy_sensor_the_phase_is_left_out_and_says_why(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run(store, GpuBudget(60.0, 0.0, 10))
    before = len(all_rows(store))
    budget = GpuBudget(60.0, 60.0, 5)
    done = run_gpu_campaign(store, GH200, None, budget, collector=without_sensor, processes=0)
    assert done.energy is None
    assert done.no_energy == "no sensor was asked for"
    assert "no sensor" in str(done)
    assert len(all_rows(store)) == before


def test_another_gpu_than_the_one_named_is_refused(tmp_path: Path) -> None:
    a100 = catalogue().get("a100-sxm-80gb")

    def h100s(energy: Mapping[str, int]) -> GpuCollector:
        return GpuCollector(
            GpuWorkerOptions(a100.name),
            energy=energy,
            command=lambda options: [sys.executable, "-P", str(PLAYED), options.to_json()],
        )

    with pytest.raises(CampaignError, match="132 compute units, nvidia-a100-sxm-80gb has 108"):
        run_gpu_campaign(Store(tmp_path), a100, None, GpuBudget(30.0, 0.0, 5), collector=h100s, processes=0)


@pytest.mark.parametrize(
    ("name", "impls"),
    [("mi300x", {"torch", "triton"}), ("arc-b580", {"torch"}), ("h100-sxm", {"torch", "triton", "cupy-tiled"})],
)
def test_a_gpu_is_planned_what_runs_on_its_maker_s(name: str, impls: set[str]) -> None:
    planned = latency_plan(60.0, 0, (), catalogue().get(name), ["gemm"])
    assert {spec.impl for spec in planned} == impls
