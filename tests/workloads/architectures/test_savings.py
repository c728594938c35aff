"""Where time of a step could be won, on devices where it can and where it cannot."""

from __future__ import annotations

import kernelcast
import pytest
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.architectures.estimate import estimate, formats_of
from kernelcast.workloads.architectures.savings import savings
from kernelcast.workloads.architectures.step import Step

LLAMA = model_facts("llama-3.1-8b")


@pytest.fixture(scope="module")
def predictor() -> ArtifactPredictor:
    return kernelcast.load()


def test_fp8_and_a_larger_batch_save_what_estimates_say(predictor: ArtifactPredictor) -> None:
    item = estimate(predictor, LLAMA, Step.decode(1, 4096), "h100-sxm")
    by_kind = {saving.kind: saving for saving in savings(predictor, item)}
    fp8 = estimate(predictor, LLAMA, Step.decode(1, 4096), "h100-sxm", formats=formats_of(LLAMA, weights="fp8"))
    assert by_kind["weights"].saved_s.value == pytest.approx(item.whole.latency_s.value - fp8.whole.latency_s.value)
    assert 0 < by_kind["weights"].saved_s.lower < by_kind["weights"].saved_s.value
    count = int(by_kind["batch"].change.split()[0])
    larger = estimate(predictor, LLAMA, Step.decode(count, 4096), "h100-sxm")
    assert by_kind["batch"].saved_s.value == pytest.approx(
        item.whole.latency_s.value - larger.whole.latency_s.value / count
    )
    assert larger.memory.fits


def test_a_step_that_fills_the_device_wins_nothing_by_a_larger_batch(predictor: ArtifactPredictor) -> None:
    item = estimate(predictor, LLAMA, Step.prefill(8, 2048), "h100-sxm")
    assert "batch" not in {saving.kind for saving in savings(predictor, item)}


def test_devices_without_fp8_and_quantised_models_are_not_told_of_it(predictor: ArtifactPredictor) -> None:
    on_ampere = estimate(predictor, LLAMA, Step.prefill(8, 2048), "a100-sxm-80gb")
    quantised = estimate(predictor, LLAMA, Step.prefill(8, 2048), "h100-sxm", formats=formats_of(LLAMA, weights="fp8"))
    for item in (on_ampere, quantised):
        assert "weights" not in {saving.kind for saving in savings(predictor, item)}


def test_short_steps_wait_for_launches(predictor: ArtifactPredictor) -> None:
    small = model_facts("openai-community/gpt2")
    decoded = estimate(predictor, small, Step.decode(1, 128), "h100-sxm")
    kinds = {saving.kind: saving for saving in savings(predictor, decoded)}
    assert kinds["launches"].saved_s.value == pytest.approx(
        22e-6 * decoded.whole.launches - decoded.whole.latency_s.value
    )
    filled = estimate(predictor, LLAMA, Step.prefill(8, 2048), "h100-sxm")
    assert "launches" not in {saving.kind for saving in savings(predictor, filled)}
