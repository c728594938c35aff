"""Times of the steps of a service where they differ from its engine's."""

from __future__ import annotations

import kernelcast
import numpy as np
import pytest
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.architectures.step import Formats, Step
from kernelcast.workloads.serving.request import Load, ServingRequest
from kernelcast.workloads.serving.service_steps import service_steps

STEPS = [Step.decode(16, 1024), Step.decode(16, 2048), Step.prefill(1, 1024)]


@pytest.fixture(scope="module")
def predictor() -> ArtifactPredictor:
    return kernelcast.load()


def test_a_cache_in_a_format_that_the_device_lacks_is_converted(predictor: ArtifactPredictor) -> None:
    def slower_s(device: str, version: str) -> np.ndarray:
        question = ServingRequest(
            model_facts("llama-3.1-8b"),
            device,
            Load("static", 16, 1024, 64),
            Formats.of("fp16", kv="fp8"),
            engine_version=version,
        )
        times = service_steps(predictor, question)
        return times.seconds(STEPS)[0] - times.times.seconds(STEPS)[0]

    more_s = slower_s("a100-sxm-80gb", "0.5")
    # 65,536 numbers a position, 3.2 clocks of one of 108 multiprocessors at 1.41 GHz each.
    assert more_s[1] == pytest.approx(16 * 2048 * 65536 * 3.2 / (108 * 1.41e9), rel=0.01)
    assert more_s[0] == pytest.approx(more_s[1] / 2, rel=0.01)
    assert more_s[2] == 0
    assert np.all(slower_s("h100-sxm", "0.5") == 0)
    assert np.all(slower_s("a100-sxm-80gb", "0.17.0") == 0)
