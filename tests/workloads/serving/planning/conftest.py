"""A planner on the shipped model, whose steps its tests share."""

from __future__ import annotations

from typing import Any, Protocol

import pytest
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.serving.planning.question import PlanQuestion, plan_question
from kernelcast.workloads.serving.predict import ServingPredictor


class Ask(Protocol):
    """Makes questions of a small model on two H100s."""

    def __call__(self, model: str = ..., devices: tuple[str, ...] = ..., **others: Any) -> PlanQuestion:
        """A question; `others` are fields of `PlanQuestion`."""


@pytest.fixture(scope="package")
def service() -> ServingPredictor:
    return ServingPredictor(load_predictor(default_model_dir()))


@pytest.fixture
def ask(service: ServingPredictor) -> Ask:
    def make(
        model: str = "meta-llama/Llama-3.1-8B", devices: tuple[str, ...] = ("h100-sxm",), **others: Any
    ) -> PlanQuestion:
        plain = {"gpus": 2, "input_tokens": 512, "output_tokens": 64, "engines": ["vllm"]}
        return plan_question(model_facts(model), devices, service.predictor.devices, **(plain | others))

    return make
