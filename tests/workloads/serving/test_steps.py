"""Times of steps with the shipped model: parts, plans, padding, caching, energy."""

from __future__ import annotations

import kernelcast
import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.architectures.plan import ParallelPlan
from kernelcast.workloads.architectures.step import Sequences, Step
from kernelcast.workloads.serving.steps import PARTS, StepTimes

STEPS = (Step.decode(30, 2048), Step.prefill(1, 2048), Step((Sequences(1, 512, 1024), Sequences(31, 1, 2000))))


@pytest.fixture(scope="module")
def predictor() -> ArtifactPredictor:
    return kernelcast.load()


def times(predictor: ArtifactPredictor, tp: int = 1, engine: str = "vllm", model: str = "llama-3.1-8b") -> StepTimes:
    return StepTimes(predictor, model_facts(model), "h100-sxm", ParallelPlan(tp=tp), engine=engine)


def test_the_parts_add_up_and_the_interval_holds_the_time(predictor: ArtifactPredictor) -> None:
    item = times(predictor, tp=2)
    value, lower, upper = item.seconds(STEPS)
    parts = item.parts(STEPS)
    assert tuple(parts) == PARTS
    assert sum(parts.values()) == pytest.approx(value)
    assert all((part >= 0).all() for part in parts.values())
    assert (parts["collectives"] > 0).all()
    assert (lower < value).all()
    assert (value < upper).all()


def test_ranks_share_the_work_and_send_each_other_results(predictor: ArtifactPredictor) -> None:
    one, two = times(predictor).seconds(STEPS)[0], times(predictor, tp=2).seconds(STEPS)[0]
    assert (0.5 * one < two).all()
    assert (two < 0.85 * one).all()
    assert times(predictor).parts(STEPS)["collectives"] == pytest.approx(0)


def test_decode_steps_are_padded_and_mixed_ones_are_not(predictor: ArtifactPredictor) -> None:
    item = times(predictor)
    thirty, full, single = item.seconds([Step.decode(30, 2048), Step.decode(32, 1920), Step.decode(32, 2048)])[0]
    assert thirty == pytest.approx(full)
    assert thirty < single


def test_groups_of_decoding_sequences_read_as_much_as_one(predictor: ArtifactPredictor) -> None:
    groups = Step((Sequences(16, 1, 1024), Sequences(16, 1, 3072)))
    assert times(predictor).seconds([groups])[0] == pytest.approx(times(predictor).seconds([Step.decode(32, 2048)])[0])


def test_steps_of_one_form_are_computed_once(predictor: ArtifactPredictor) -> None:
    item = times(predictor)
    many = [Step.decode(30, 2048 + shift % 40) for shift in range(2000)]
    value = item.seconds(many)[0]
    assert value.shape == (2000,)
    assert len(np.unique(value)) <= 3


def test_the_host_rules_prompts_of_experts(predictor: ArtifactPredictor) -> None:
    item = times(predictor, model="Qwen/Qwen3.6-35B-A3B", tp=2)
    steps = [Step.prefill(1, 100), Step.prefill(1, 600), Step.prefill(1, 8000)]
    host = item.parts(steps)["host"]
    assert host[1] > 2 * host[0] > 0
    assert host[2] < 0.1 * item.seconds(steps)[0][2]


def test_energy_is_that_of_kernels_and_of_waiting(predictor: ArtifactPredictor) -> None:
    item = times(predictor, tp=2)
    mean_w = item.energy_j(STEPS) / item.seconds(STEPS)[0]
    assert (mean_w > 2 * 100).all()
    assert (mean_w < 2 * 700).all()


def test_an_engine_or_plan_that_cannot_be_is_refused(predictor: ArtifactPredictor) -> None:
    with pytest.raises(SpecError, match="no engine 'tgi'"):
        times(predictor, engine="tgi")
    with pytest.raises(SpecError, match="tp 3"):
        times(predictor, tp=3)
