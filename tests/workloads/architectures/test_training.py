"""Training steps: gradients, the optimiser, memory, what is refused."""

from __future__ import annotations

from collections import Counter

import kernelcast
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import View, get_family
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.architectures.estimate import estimate, formats_of
from kernelcast.workloads.architectures.forward import Forward, forward
from kernelcast.workloads.architectures.memory import memory
from kernelcast.workloads.architectures.plan import ParallelPlan
from kernelcast.workloads.architectures.step import Step
from kernelcast.workloads.architectures.training import OPTIMIZER_B, training_step

STEP = Step.prefill(4, 512)


@pytest.fixture(scope="module")
def predictor() -> ArtifactPredictor:
    return kernelcast.load()


def product_flops(run: Forward) -> float:
    return sum(
        kernel.count * float(get_family("gemm").flops(View.of(kernel.spec)))
        for kernel in run.kernels
        if kernel.spec.family == "gemm"
    )


@pytest.mark.parametrize("name", ["llama-3.1-8b", "openai-community/gpt2", "google-bert/bert-base-uncased"])
def test_gradients_of_products_are_twice_their_arithmetic(name: str) -> None:
    facts = model_facts(name)
    formats = formats_of(facts)
    whole = forward(facts, STEP, formats, training=True)
    trained = training_step(facts, STEP, formats)
    assert product_flops(trained) == pytest.approx(3 * product_flops(whole))
    # Six operations for each parameter and token (Kaplan et al., arXiv 2001.08361), without embeddings that are only read.
    looked_up = 0 if facts.tied_embeddings else (facts.vocabulary + facts.positions) * facts.hidden
    if facts.generates:
        assert product_flops(trained) == pytest.approx(6 * (facts.parameters - looked_up) * STEP.tokens, rel=0.02)


def test_every_forward_kernel_has_a_gradient_and_the_optimiser_moves_every_parameter() -> None:
    facts = model_facts("llama-3.1-8b")
    run = training_step(facts, STEP, formats_of(facts))
    names = Counter(kernel.name for kernel in run.kernels)
    for name in [name for name in names if not name.startswith(("backward.", "optimizer"))]:
        assert any(other.startswith(f"backward.{name}") for other in names), name
    assert not any("cache_write" in name or "sampling" in name for name in names)
    (optimizer,) = [kernel for kernel in run.kernels if kernel.name == "optimizer"]
    sizes = dict(optimizer.spec.dims)
    assert optimizer.count * sizes["rows"] * sizes["cols"] * 8 == pytest.approx(
        OPTIMIZER_B * facts.parameters, rel=1e-3
    )


def test_a_training_step_takes_about_three_forwards_and_its_optimiser(predictor: ArtifactPredictor) -> None:
    facts = model_facts("llama-3.1-8b")
    trained = estimate(predictor, facts, STEP, "h200", training=True)
    once = estimate(predictor, facts, STEP, "h200")
    optimizer_s = sum(part.latency_s for part in trained.whole.parts if part.kernel.name == "optimizer")
    assert 2.7 < (trained.whole.latency_s.value - optimizer_s) / once.whole.latency_s.value < 3.6
    assert 28 * facts.parameters / 4.8e12 < optimizer_s < 2 * 28 * facts.parameters / 4.8e12
    assert trained.whole.latency_s.lower < trained.whole.latency_s.value < trained.whole.latency_s.upper
    assert trained.training


def test_memory_is_sixteen_bytes_a_parameter_and_what_gradients_need() -> None:
    facts = model_facts("openai-community/gpt2")
    for dtype in ("bf16", "fp32"):
        formats = formats_of(facts, dtype=dtype)
        item = memory(facts, STEP, formats, training=True)
        assert item.weights_b + item.gradients_b + item.optimizer_b == pytest.approx(16 * facts.parameters)
        # 34 · tokens · hidden for each layer (Korthikanti et al.), of which 2 are masks of dropout, in half precision.
        layers_b = 12 * STEP.tokens * facts.hidden * (32 * formats.itemsize_b / 2 + 2)
        logits_b = STEP.tokens * facts.vocabulary * (formats.itemsize_b + 8)
        assert item.activations_b == pytest.approx(layers_b + logits_b)
        assert item.total_b > memory(facts, STEP, formats).total_b


def test_models_with_dropout_drop_behind_the_embedding_and_each_part() -> None:
    facts = model_facts("openai-community/gpt2")
    run = training_step(facts, STEP, formats_of(facts), fused_attention=False)
    drops = {kernel.name: kernel for kernel in run.kernels if kernel.name.endswith("dropout")}
    assert {name: kernel.count for name, kernel in drops.items() if not name.startswith("backward.")} == {
        "dropout": 1, "layers.residual.dropout": 24, "layers.attention.dropout": 12,
    }  # fmt: skip
    scores = dict(drops["layers.attention.dropout"].spec.dims)
    assert (scores["rows"], scores["cols"]) == (4 * 12 * 512, 512)
    assert not any("dropout" in kernel.name for kernel in forward(facts, STEP, formats_of(facts)).kernels)
    llama = model_facts("llama-3.1-8b")
    assert not any("dropout" in kernel.name for kernel in training_step(llama, STEP, formats_of(llama)).kernels)


def test_recomputing_layers_takes_a_forward_more_and_keeps_their_inputs_alone(predictor: ArtifactPredictor) -> None:
    facts = model_facts("llama-3.1-8b")
    formats = formats_of(facts)
    plan = ParallelPlan(tp=2)
    kept, again = (training_step(facts, STEP, formats, plan, recompute=recompute) for recompute in (False, True))
    logits = 2 * STEP.tokens * facts.hidden * facts.vocabulary / 2
    once = product_flops(forward(facts, STEP, formats, plan, training=True))
    assert product_flops(again) - product_flops(kept) == pytest.approx(once - logits)
    assert len(again.collectives) > len(kept.collectives)
    layers_b = facts.layers * STEP.tokens * facts.hidden * 2
    memories = [memory(facts, STEP, formats, training=True, recompute=recompute) for recompute in (False, True)]
    logits_b = STEP.tokens * facts.vocabulary * (2 + 8)
    assert layers_b < memories[1].activations_b - logits_b < memories[0].activations_b / 4
    item = estimate(predictor, facts, STEP, "h200", training=True, recompute=True)
    assert item.recompute
    assert item.whole.latency_s.value > estimate(predictor, facts, STEP, "h200", training=True).whole.latency_s.value
    with pytest.raises(SpecError, match="with train") as raised:
        estimate(predictor, facts, STEP, "h200", recompute=True)
    assert raised.value.field == "recompute"


def test_replicas_add_up_gradients() -> None:
    facts = model_facts("llama-3.1-8b")
    run = training_step(facts, Step.prefill(8, 512), formats_of(facts), ParallelPlan(dp=4, tp=2))
    (gradients,) = [item for item in run.collectives if item.name == "gradients"]
    assert (gradients.kind, gradients.ranks) == ("all_reduce", 4)
    assert gradients.size_b == pytest.approx(facts.parameters, rel=0.01)  # two bytes each, over two ranks
    counts = Counter(item.name.removeprefix("backward.") for item in run.collectives)
    assert counts["layers.attention.output"] == 2


def test_what_cannot_be_trained_says_what_to_do() -> None:
    facts = model_facts("deepseek-ai/DeepSeek-V3")
    with pytest.raises(SpecError, match="weights bf16") as raised:
        training_step(facts, STEP, formats_of(facts))
    assert raised.value.field == "weights"
    training_step(facts, STEP, formats_of(facts, weights="bf16"))
    facts = model_facts("llama-3.1-8b")
    with pytest.raises(SpecError, match="no cached positions") as raised:
        training_step(facts, Step.decode(4, 128), formats_of(facts))
    assert raised.value.field == "context"
