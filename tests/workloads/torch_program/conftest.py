"""The shipped model, loaded once, and recordings of small programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kernelcast
import pytest
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.torch import estimate
from kernelcast.workloads.torch_program.operation import Operation
from kernelcast.workloads.torch_program.run import Run


@pytest.fixture(scope="session")
def predictor() -> ArtifactPredictor:
    return kernelcast.load()


@pytest.fixture
def recorded(predictor: ArtifactPredictor) -> Callable[..., Run]:
    """Runs a program for an H200, or the devices named."""

    def run_program(program: Callable[[], Any], *devices: str, **options: Any) -> Run:
        with estimate(*(devices or ("h200",)), model=predictor, **options) as run:
            program()
        return run

    return run_program


@pytest.fixture
def operations(recorded: Callable[..., Run]) -> Callable[..., list[Operation]]:
    """The operators of a program, without those that make its inputs."""

    def run_program(program: Callable[[], Any], *devices: str) -> list[Operation]:
        inputs = ("aten.randn", "aten.ones_like", "aten.randint")
        return [item for item in recorded(program, *devices).recording.operations if item.name not in inputs]

    return run_program
