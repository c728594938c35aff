"""Answers for devices on which no program was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.mlir.program import Program
from kernelcast.features.mlir.vectors.program_vector import extract
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.workloads.mlir.learned.measured_programs import MeasuredPrograms
from kernelcast.workloads.mlir.learned.program_model import ProgramEngine, ProgramModel, load_models, save_models
from kernelcast.workloads.mlir.learned.ragged_batch import to_ragged_batch
from kernelcast.workloads.mlir.learned.training import scores_elsewhere
from kernelcast.workloads.mlir.predictor import ModulePredictor

FACTOR = 1.7


@pytest.fixture
def other(measured: MeasuredPrograms) -> MeasuredPrograms:
    """The programs on a device that takes longer, with two of the settings, the other way round."""
    slower = measured.log_latency[:, [2, 0]] + np.log(FACTOR)
    return replace(measured, device="other", settings=(("xla", 1), ("iree", 1)), log_latency=slower, characteristics={})


def test_the_factor_between_devices_is_taken_both_ways(trained: ProgramModel, other: MeasuredPrograms) -> None:
    scores = scores_elsewhere(trained, [other])
    assert set(scores) == {"iree", "xla"}
    log_latency, sizes = ProgramEngine(trained).of_batch(other.programs)
    for compiler, item in scores.items():
        here, there = trained.settings.index((compiler, 1)), other.settings.index((compiler, 1))
        low, high = np.multiply.outer(item.bounds(0.9), sizes[:, here])
        for factor in (FACTOR, 1 / FACTOR):
            times = other.log_latency[:, there] + np.log(factor / FACTOR)
            known = ~np.isnan(times)
            inside = (log_latency[:, here] + low <= times) & (times <= log_latency[:, here] + high)
            assert np.mean(inside[known]) >= 0.85


def test_too_few_rows_of_other_devices_say_nothing(trained: ProgramModel, other: MeasuredPrograms) -> None:
    assert scores_elsewhere(trained, []) == {}
    assert scores_elsewhere(trained, [other.take(np.arange(39))]) == {}


def test_many_programs_are_answered_as_one_by_one(trained: ProgramModel, program: Program) -> None:
    vectors = extract(program, catalogue().get(trained.device))
    engine = ProgramEngine(trained)
    values, _ = engine.of_batch(to_ragged_batch([vectors] * 40))
    alone = [engine.answer(vectors, setting, 0.9).latency_s.value for setting in trained.settings]
    assert np.exp(values) == pytest.approx(np.tile(alone, (40, 1)), rel=2e-3)


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
    trained: ProgramModel, other: MeasuredPrograms, tmp_path: Path
) -> None:
    model = replace(trained, elsewhere=scores_elsewhere(trained, [other]))
    save_models({model.device: model}, {"rows": 1}, tmp_path / "model")
    (again,) = load_models(tmp_path / "model").values()
    assert again.elsewhere["xla"].bounds(0.9) == pytest.approx(model.elsewhere["xla"].bounds(0.9), abs=1e-5)


def test_a_model_of_a_device_that_the_catalogue_lacks_is_left_alone(trained: ProgramModel, program: Program) -> None:
    model = replace(trained, device="nobody-knows", elsewhere=trained.scores)
    result = predictor_of(model).predict(program, "amd-epyc-7763", threads=1)
    assert result.method == "composition"
    assert any("no model of whole programs on amd-epyc-7763" in note for note in result.notes)
