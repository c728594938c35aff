"""Estimates with the shipped model: sums, stand-ins, formats a device lacks, notes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import kernelcast
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.workloads.architectures.config.catalogue import facts_of, model_facts
from kernelcast.workloads.architectures.estimate import Estimate, estimate, estimate_steps, formats_of
from kernelcast.workloads.architectures.forward import forward
from kernelcast.workloads.architectures.plan import ParallelPlan
from kernelcast.workloads.architectures.step import Step


@pytest.fixture(scope="module")
def predictor() -> ArtifactPredictor:
    return kernelcast.load()


def decoded(
    predictor: ArtifactPredictor, name: str = "llama-3.1-8b", device: str = "h100-sxm", **options: Any
) -> Estimate:
    return estimate(predictor, model_facts(name), Step.decode(32, 4096), device, **options)


def test_the_parts_add_up(predictor: ArtifactPredictor) -> None:
    item = decoded(predictor)
    whole = item.whole
    assert whole.latency_s.value == pytest.approx(sum(part.latency_s for part in whole.parts))
    assert whole.latency_s.lower < whole.latency_s.value < whole.latency_s.upper
    # Weights and cache are read once: no step is faster.
    read_b = item.memory.weights_b + item.memory.cache_b - item.facts.vocabulary * item.facts.hidden * 2
    assert whole.latency_s.value > read_b / 3.35e12
    assert whole.latency_s.value < 2 * read_b / 3.35e12
    assert item.tokens_per_s.value == pytest.approx(32 / whole.latency_s.value)
    assert whole.energy_j is not None
    assert item.energy_per_token_j is not None
    assert item.energy_per_token_j.value == pytest.approx(whole.energy_j.value / 32)


def test_identical_kernels_are_predicted_once(predictor: ArtifactPredictor, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    predict = ArtifactPredictor.predict

    def count(self: ArtifactPredictor, specs: Any, *args: Any, **options: Any) -> Any:
        asked.append(len(specs))
        assert len(set(specs)) == len(specs)
        return predict(self, specs, *args, **options)

    monkeypatch.setattr(ArtifactPredictor, "predict", count)
    item = decoded(predictor)
    assert asked == [len({part.kernel.spec for part in item.whole.parts})]
    assert asked[0] < len(item.whole.parts)


def test_several_steps_share_their_kernels(predictor: ArtifactPredictor) -> None:
    facts, steps = model_facts("llama-3.1-8b"), [Step.decode(8, context) for context in (100, 200, 100)]
    together = estimate_steps(predictor, facts, steps, "h100-sxm")
    alone = [estimate(predictor, facts, step, "h100-sxm") for step in steps]
    assert [item.whole.latency_s.value for item in together] == pytest.approx(
        [item.whole.latency_s.value for item in alone]
    )
    assert together[0].whole == together[2].whole
    assert estimate_steps(predictor, facts, [], "h100-sxm") == []


def test_a_stand_in_has_a_wider_interval_and_says_so(predictor: ArtifactPredictor) -> None:
    facts = model_facts("llama-3.1-8b")
    step, formats = Step.decode(8, 100), formats_of(facts, weights="int4")
    item = estimate(predictor, facts, step, "h100-sxm", formats=formats)
    name = "layers.mlp.down"
    part = next(part for part in item.whole.parts if part.kernel.name == name)
    alone = predictor.predict([part.kernel.spec], ["nvidia-h100-sxm-80gb"])[0]
    stand_in = forward(facts, step, formats, device=catalogue().get("h100-sxm")).stand_ins[name]
    assert part.prediction.latency_s.value == alone.latency_s.value
    assert part.prediction.latency_s.upper == pytest.approx(stand_in.factor * alone.latency_s.upper)
    assert part.prediction.latency_s.lower == pytest.approx(alone.latency_s.lower / stand_in.factor)
    assert stand_in.reason in part.prediction.notes
    assert any(note.startswith(stand_in.reason) for note in item.notes)


def test_collectives_and_the_host_are_said_to_be_missing(predictor: ArtifactPredictor) -> None:
    alone, split = decoded(predictor), decoded(predictor, plan=ParallelPlan(tp=4))
    assert not any("collectives" in note for note in alone.notes)
    assert any("collectives are not included" in note for note in split.notes)
    assert all(any("host" in note for note in item.notes) for item in (alone, split))
    assert split.whole.latency_s.value < alone.whole.latency_s.value / 2


def test_the_energy_of_all_devices(predictor: ArtifactPredictor) -> None:
    split = decoded(predictor, plan=ParallelPlan(tp=4))
    assert split.whole.energy_j is not None
    assert split.energy_per_token_j is not None
    assert split.energy_per_token_j.value == pytest.approx(4 * split.whole.energy_j.value / 32)


def test_quantised_weights_are_read_faster(predictor: ArtifactPredictor) -> None:
    facts = model_facts("llama-3.1-8b")
    usual = decoded(predictor)
    quantised = decoded(predictor, formats=formats_of(facts, weights="fp8", kv="fp8"))
    assert quantised.whole.latency_s.value < usual.whole.latency_s.value
    assert quantised.memory.weights_b < 0.6 * usual.memory.weights_b


def test_weights_the_device_does_not_multiply_are_unpacked(predictor: ArtifactPredictor) -> None:
    facts = model_facts("llama-3.1-8b")
    usual, packed = decoded(predictor), decoded(predictor, formats=formats_of(facts, weights="int4"))
    assert 1.25 < usual.whole.latency_s.value / packed.whole.latency_s.value < 4
    assert packed.memory.weights_b < 0.4 * usual.memory.weights_b
    assert any("unpack quantised weights" in note for note in packed.notes)
    # Where arithmetic takes the time, reading less saves nothing.
    step = Step.prefill(8, 2048)
    usual, packed = (
        estimate(predictor, facts, step, "h100-sxm", formats=formats_of(facts, weights=weights))
        for weights in (None, "int4")
    )
    assert packed.whole.latency_s.value == pytest.approx(usual.whole.latency_s.value, rel=0.05)


def test_experts_in_mxfp4_run_as_the_device_can(predictor: ArtifactPredictor) -> None:
    for device, dtype in (("b200", "nvfp4"), ("h100-sxm", "bf16")):
        parts = decoded(predictor, "gpt-oss-20b", device).whole.parts
        [experts] = [part.kernel.spec for part in parts if part.kernel.spec.family == "moe"]
        assert experts.dtype == dtype
        assert (experts["inter"] < 2880) is (dtype == "bf16")


def test_sequences_beyond_what_a_model_is_made_for_are_noted(predictor: ArtifactPredictor) -> None:
    item = decoded(predictor, "llama-2-7b")
    assert any("longer than the 4096 the model is made for" in note for note in item.notes)


def test_threads_are_those_of_a_cpu(predictor: ArtifactPredictor) -> None:
    with pytest.raises(SpecError, match="is a GPU"):
        decoded(predictor, threads=2)
    facts, step = model_facts("gpt2"), Step.prefill(1, 128)
    one, two = (estimate(predictor, facts, step, "amd-epyc-9005-vm-2c", threads=threads) for threads in (1, 2))
    assert two.whole.latency_s.value < one.whole.latency_s.value
    assert two.whole.power_w is None


def test_a_step_of_a_large_model_is_quick(predictor: ArtifactPredictor) -> None:
    facts = model_facts("llama-3.1-8b")
    estimate(predictor, facts, Step.prefill(8, 2048), "h100-sxm")
    start = time.process_time()
    estimate(predictor, facts, Step.prefill(8, 2049), "h100-sxm")
    assert time.process_time() - start < 1


def test_from_python() -> None:
    item = kernelcast.estimate_model("meta-llama/Llama-3.1-8B", "h100-sxm", batch=8, prefill=2048, weights="fp8")
    assert (item.step.tokens, item.formats.weights, item.device) == (16384, "fp8", "nvidia-h100-sxm-80gb")
    config = {"model_type": "vit", "hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3,
              "intermediate_size": 768, "image_size": 224, "patch_size": 16}  # fmt: skip
    assert kernelcast.estimate_model(config, "h100-sxm").step == Step.prefill(1, 197)
    facts = replace(model_facts("gpt2"), name="mine")
    mixed = kernelcast.estimate_model(facts, "h100-sxm", step=Step.decode(1, 3), plan=ParallelPlan(tp=2))
    assert (mixed.facts.name, mixed.plan.tp) == ("mine", 2)
    with pytest.raises(SpecError, match="say what runs"):
        kernelcast.estimate_model("gpt2", "h100-sxm")


def test_fp8_that_a_library_has_slower_than_bf16_is_taken_as_unpacked(predictor: ArtifactPredictor) -> None:
    facts = model_facts("llama-3.1-8b")
    step = Step.decode(1, 1024)
    for device in ("b200", "b300"):
        plain = estimate(predictor, facts, step, device)
        fp8 = estimate(predictor, facts, step, device, formats=formats_of(facts, weights="fp8"))
        assert fp8.whole.latency_s.value < plain.whole.latency_s.value
        assert any("taken as unpacked" in note for note in fp8.notes), device
        assert not any("quantise" in part.kernel.name for part in fp8.whole.parts)
        assert fp8.memory.weights_b < 0.6 * plain.memory.weights_b
    # Where the measured library is faster in fp8, and where one is named, its products are what runs.
    for device, impl in (("h200", ""), ("b200", "vllm")):
        fp8 = estimate(predictor, facts, step, device, formats=formats_of(facts, weights="fp8"), impl=impl)
        assert not any("taken as unpacked" in note for note in fp8.notes)
        assert "fp8" in {part.kernel.spec.dtype for part in fp8.whole.parts}


def test_an_encoder_runs_with_a_prompt_and_alone_and_not_in_decoding(predictor: ArtifactPredictor) -> None:
    facts = model_facts("openai/whisper-large-v3")
    prompt, token = (estimate(predictor, facts, step, "h200") for step in (Step.prefill(4, 4), Step.decode(4, 100)))
    alone = estimate(predictor, facts.encoder_alone(), Step.prefill(4, 1500), "h200")
    assert any("convolutions" in note for note in prompt.notes)
    assert any("convolutions" in note for note in alone.notes)
    assert not any("convolutions" in note for note in token.notes)
    encoder_s = sum(part.latency_s for part in prompt.whole.parts if part.kernel.name.startswith("encoder."))
    assert alone.whole.latency_s.value == pytest.approx(encoder_s, rel=0.02)
    assert 0.6e9 < alone.facts.parameters < 0.7e9
    assert alone.memory.cache_b == 0
    with pytest.raises(SpecError, match="no encoder"):
        model_facts("llama-3.1-8b").encoder_alone()


def test_the_cost_of_a_million_tokens(predictor: ArtifactPredictor) -> None:
    item = decoded(predictor, plan=ParallelPlan(tp=2))
    cost = item.cost_per_million_tokens(3.6)
    assert cost.value == pytest.approx(1e6 / item.tokens_per_s.value * 2 * 3.6 / 3600)
    assert cost.lower < cost.value < cost.upper
    assert item.cost_per_million_tokens(0).upper == 0
    for price in (-1, float("nan"), float("inf"), "3", True, None):
        with pytest.raises(SpecError, match="a price is a number from 0 to") as refused:
            item.cost_per_million_tokens(price)  # type: ignore[arg-type]
        assert refused.value.field == "price_per_hour"


def test_hybrids_cost_at_least_the_bytes_they_read(predictor: ArtifactPredictor) -> None:
    falcon = {
        "model_type": "falcon_h1", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 4096, "mamba_d_ssm": 3072, "mamba_n_heads": 48,
        "mamba_d_head": 64, "vocab_size": 65536,
    }  # fmt: skip
    jamba = {"model_type": "jamba", "hidden_size": 2048, "num_hidden_layers": 16, "num_experts": 4}
    for config, note in ((falcon, "leaves out"), (jamba, "a step of Mamba's state")):
        item = estimate(predictor, facts_of(config), Step.decode(32, 4096), "h100-sxm")
        read_b = item.memory.weights_b + item.memory.cache_b - item.facts.vocabulary * item.facts.hidden * 2
        assert read_b / 3.35e12 < item.whole.latency_s.value < 6 * read_b / 3.35e12
        assert any(note in words for words in item.notes)
