"""Times of programs that were measured on another device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.features.mlir.program import Program
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.workloads.mlir.learned.measured_programs import MeasuredPrograms
from kernelcast.workloads.mlir.learned.network_training import Schedule
from kernelcast.workloads.mlir.learned.other_devices import LEAST_SHARED, with_other_devices
from kernelcast.workloads.mlir.learned.program_model import ProgramEngine, ProgramModel, load_models, save_models
from kernelcast.workloads.mlir.learned.training import TrainingConfig, train_programs
from kernelcast.workloads.mlir.predictor import ModulePredictor

FACTOR = 1.7
QUICK = TrainingConfig(folds=2, networks={"group network": Schedule(epochs=2)}, tree_rounds=40)


@pytest.fixture
def other(measured: MeasuredPrograms) -> MeasuredPrograms:
    """The programs on a device that takes longer, two of its settings the other way round and one missing."""
    swapped = measured.log_latency[:, [2, 0, 1]] + np.log(FACTOR)
    return replace(
        measured, device="other", texts=measured.names, settings=tuple(measured.settings[i] for i in (2, 0, 1)),
        log_latency=swapped, weight=np.ones_like(swapped), characteristics={},
    )  # fmt: skip


def test_times_are_carried_over_by_what_was_measured_on_both(
    measured: MeasuredPrograms, other: MeasuredPrograms
) -> None:
    few = replace(measured, texts=measured.names).take(np.arange(60))
    both = with_other_devices(few, [other])
    assert (len(both), both.here.sum(), both.device) == (60 + len(other), 60, few.device)
    assert both.here[:60].all()
    assert np.isnan(both.log_latency[60:, 3]).all()
    carried = both.log_latency[60:, :3] - measured.log_latency[:, :3]
    known = ~np.isnan(measured.log_latency[:, :3])
    assert np.isnan(carried[~known]).all()
    assert carried[known] == pytest.approx(0.0, abs=0.05)
    assert all(np.isnan(column[60:]).all() for column in both.characteristics.values())
    assert both.programs.take(np.arange(60, 160)).groups == pytest.approx(measured.programs.take(np.arange(100)).groups)


def test_too_few_programs_on_both_carry_nothing_over(measured: MeasuredPrograms, other: MeasuredPrograms) -> None:
    few = replace(measured, texts=measured.names).take(np.arange(60))
    assert with_other_devices(few, [other.take(np.arange(LEAST_SHARED - 1))]) is few
    assert with_other_devices(few, [replace(other, texts=("",) * len(other))]) is few
    assert with_other_devices(few, []) is few


@pytest.fixture
def program(maker: type[Any]) -> Program:
    make = maker()
    return make.program(make.elementwise(make.product(make.argument(64, 128), 64, 128, 96), 64, 96, ("exp",)))  # type: ignore[no-any-return]


def predictor_of(model: ProgramModel) -> ModulePredictor:
    return ModulePredictor(load_predictor(default_model_dir()), {model.device: ProgramEngine(model)})


def test_a_cpu_without_programs_is_answered_by_another_one_s_model(trained: ProgramModel, program: Program) -> None:
    wide = {name: scores.widened(3.0) for name, scores in trained.scores.items()}
    predictor = predictor_of(replace(trained, elsewhere=wide))
    result = predictor.predict(program, "amd-epyc-7763", compiler="xla", threads=1)
    assert result.method.startswith("learned on whole programs of amd-epyc-9005-vm-2c")
    assert not result.in_domain
    assert not result.characteristics
    (note,) = (note for note in result.notes if "amd-epyc-7763" in note)
    assert "no program was measured on amd-epyc-7763" in note
    there = predictor.predict(program, trained.device, compiler="xla", threads=1)
    assert there.method.startswith("learned on whole programs:")
    assert there.in_domain
    width, width_there = (answer.latency_s.upper / answer.latency_s.lower for answer in (result, there))
    assert width > width_there**1.5
    # Its own rates, not the other's: an EPYC 7763 is slower.
    assert result.latency_s.value != pytest.approx(there.latency_s.value, rel=1e-3)


@pytest.mark.parametrize(("device", "threads"), [("nvidia-h100-sxm-80gb", None), ("amd-epyc-7763", None)])
def test_gpus_and_thread_counts_never_measured_add_up_kernels(
    trained: ProgramModel, program: Program, device: str, threads: int | None
) -> None:
    predictor = predictor_of(replace(trained, elsewhere=trained.scores))
    assert predictor.predict(program, device, compiler="xla", threads=threads).method == "composition"


def test_a_model_that_no_other_cpu_has_judged_answers_for_its_own_device_alone(
    trained: ProgramModel, program: Program
) -> None:
    assert not trained.elsewhere
    assert predictor_of(trained).predict(program, "amd-epyc-7763", threads=1).method == "composition"


def test_what_other_devices_said_of_errors_is_stored(
    measured: MeasuredPrograms, other: MeasuredPrograms, tmp_path: Path
) -> None:
    few = replace(measured, texts=measured.names).take(np.arange(60))
    model = train_programs(with_other_devices(few, [other]), QUICK)
    assert set(model.elsewhere) == {"iree", "xla"}
    assert model.n_rows == int((~np.isnan(few.log_latency)).sum())
    assert model.metrics["blend"]["all"]["n"] == model.n_rows
    low, high = model.elsewhere["xla"].bounds(0.9)
    here = model.scores["xla"].bounds(0.9)
    assert low < here[0] < here[1] < high
    save_models({model.device: model}, {"rows": 1}, tmp_path / "model")
    (again,) = load_models(tmp_path / "model").values()
    assert again.elsewhere["xla"].bounds(0.9) == pytest.approx((low, high), abs=1e-5)
