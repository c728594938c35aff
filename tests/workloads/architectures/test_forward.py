"""The kernels of a step: their arithmetic is the model's, however it is split."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import View, get_family
from kernelcast.workloads.architectures.config.catalogue import model_facts, model_names
from kernelcast.workloads.architectures.facts import ModelFacts
from kernelcast.workloads.architectures.forward import forward
from kernelcast.workloads.architectures.kernel_list import Weights
from kernelcast.workloads.architectures.layers.attention import Attention
from kernelcast.workloads.architectures.plan import ONE_DEVICE, ParallelPlan
from kernelcast.workloads.architectures.step import Formats, Sequences, Step
from kernelcast.workloads.whole_model import Kernel

BF16 = Formats.of("bf16")


def flops(kernels: Iterable[Kernel], *families: str, variants: tuple[str, ...] | None = None) -> float:
    """Operations of all runs of the kernels of some families."""
    return sum(
        kernel.count * get_family(kernel.spec.family).flops(View.of(kernel.spec))
        for kernel in kernels
        if kernel.spec.family in families and (variants is None or kernel.spec.variant in variants)
    )


def listed(facts: ModelFacts, step: Step, plan: ParallelPlan = ONE_DEVICE, **options: Any) -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in forward(facts, step, BF16, plan, **options).kernels}


def matrices(facts: ModelFacts) -> Weights:
    total = Weights()
    for block in facts.blocks:
        for part in block.parts:
            total = total + part.weights(facts.hidden, ONE_DEVICE).times(block.count)
    return total


DENSE = ("llama-3.1-8b", "qwen3-32b", "gemma-2-9b", "phi-2", "gpt2-large", "opt-6.7b", "gpt-neox-20b", "nemotron-h-8b",
         "mamba-codestral-7b")  # fmt: skip


@pytest.mark.parametrize("name", DENSE)
def test_every_matrix_is_met_once_by_every_token(name: str) -> None:
    facts = model_facts(name)
    layers = [
        kernel for kernel in forward(facts, Step.decode(3, 50), BF16).kernels if kernel.name.startswith("layers.")
    ]
    assert flops(layers, "gemm", variants=("",)) == pytest.approx(2 * 3 * matrices(facts).products)


def test_routed_experts_are_met_by_the_tokens_that_choose_them() -> None:
    facts = model_facts("qwen3-30b-a3b")
    kernels = forward(facts, Step.prefill(1, 64), BF16).kernels
    assert flops(kernels, "moe") == pytest.approx(2 * 64 * matrices(facts).experts * 8 / 128)


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "qwen3-next-80b-a3b", "deepseek-v2-lite", "nemotron-h-8b", "mixtral-8x7b"]
)
def test_ranks_share_the_work(name: str) -> None:
    facts, step = model_facts(name), Step((Sequences(2, 128), Sequences(4, 1, 300)))
    whole, part = (forward(facts, step, BF16, ParallelPlan(tp=tp)).kernels for tp in (1, 2))
    for family in ("attention", "moe", "linear_attention"):
        assert 2 * flops(part, family) == pytest.approx(flops(whole, family), rel=0.02)
    # Routers and projections into latents run on every rank.
    assert flops(whole, "gemm") <= 2 * flops(part, "gemm") < 1.2 * flops(whole, "gemm")


def test_groups_of_ranks_share_the_sequences_and_hand_tokens_to_all_experts() -> None:
    facts = model_facts("deepseek-v3")
    step = Step.decode(256, 1000)
    alone = listed(facts, step)
    spread = listed(facts, step, ParallelPlan(dp=8, ep=8))
    assert spread["layers.attention.decode"].spec["batch"] == 32
    assert dict(spread["layers.moe.experts"].spec.dims) == dict(alone["layers.moe.experts"].spec.dims) | {"ep": 8}


def test_attention_of_each_group_of_sequences() -> None:
    facts = model_facts("llama-3.1-8b")
    steps = forward(facts, Step((Sequences(2, 512, 100), Sequences(30, 1, 4000))), BF16).kernels
    attention = {kernel.name: dict(kernel.spec.dims) for kernel in steps if kernel.spec.family == "attention"}
    shared = {"heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0}
    assert attention == {
        "layers.attention.prefill": {"batch": 2, "q_len": 512, "kv_len": 612, **shared},
        "layers.attention.decode": {"batch": 30, "q_len": 1, "kv_len": 4001, **shared},
    }


def test_layers_with_and_without_a_window() -> None:
    steps = forward(model_facts("gemma-3-1b"), Step.decode(1, 5000), BF16).kernels
    windows = {kernel.spec["window"]: kernel.count for kernel in steps if kernel.spec.family == "attention"}
    assert windows == {512: 22, 0: 4}


def test_latent_attention_reads_its_cache_once_for_the_operations_of_the_paper() -> None:
    facts, length = model_facts("deepseek-v3"), 4096
    kernels = listed(facts, Step.decode(16, length - 1))
    decode = kernels["layers.attention.decode"].spec
    family = get_family("latent_attention")
    cache_b = 16 * length * (512 + 64) * 2
    part = next(part for _, part in facts.parts if part.name == "attention")
    weights = part.weights(facts.hidden, ParallelPlan()).products
    of_weights = 2 * 16 * weights
    assert family.bytes_moved(View.of(decode)) == pytest.approx(cache_b + 2 * weights, rel=0.01)
    pairs = 2 * 16 * 128 * length * (512 + 64 + 512)
    assert family.flops(View.of(decode)) == pytest.approx(pairs + of_weights)
    prompt = listed(facts, Step.prefill(1, length))["layers.attention.prefill"].spec
    pairs = 2 * 128 * (192 + 128) * length * (length + 1) / 2
    assert family.flops(View.of(prompt)) == pytest.approx(pairs + 2 * length * weights)


def test_sequences_that_decode_share_one_pass_over_the_projections_of_latent_attention() -> None:
    step = Step((Sequences(1, 256), Sequences(3, 1, 99), Sequences(1, 1, 499)))
    steps = forward(model_facts("deepseek-v2-lite"), step, BF16).kernels
    parts = [kernel.spec for kernel in steps if kernel.spec.family == "latent_attention"]
    assert [(spec.variant, spec["batch"], spec["kv_len"]) for spec in parts] == [
        ("prefill", 1, 256),
        ("decode", 4, 200),
    ]
    packed = forward(
        model_facts("deepseek-v2-lite"), step, Formats.of("bf16", weights="int4"), device=catalogue().get("h100-sxm")
    )
    assert packed.stand_ins["layers.attention.decode"].factor == 2.0


def test_encoders_see_all_positions() -> None:
    steps = forward(model_facts("bert-large"), Step.prefill(4, 512), Formats.of("fp32"))
    pairs = flops(steps.kernels, "attention") / (24 * 4 * 4 * 16 * 64)
    assert pairs == pytest.approx(512 * 512, rel=0.01)
    assert not steps.stand_ins.keys() & {"layers.attention.prefill"}
    assert not any(kernel.name in ("logits", "layers.attention.cache_write") for kernel in steps.kernels)


def test_unfused_attention_lists_its_products_and_its_softmax() -> None:
    facts = model_facts("bert-large")
    kernels = listed(facts, Step.prefill(2, 128), fused_attention=False, impl="torch")
    assert dict(kernels["layers.attention.scores"].spec.dims) == {"batch": 32, "m": 128, "n": 128, "k": 64}
    assert dict(kernels["layers.attention.softmax"].spec.dims) == {"rows": 2 * 16 * 128, "cols": 128}
    assert kernels["layers.attention.query"].spec.variant == "bias"
    assert not any(kernel.spec.family == "attention" for kernel in kernels.values())


def test_an_encoder_runs_for_the_sequences_that_start() -> None:
    facts = model_facts("whisper-large-v3")
    first, later = listed(facts, Step.prefill(2, 4)), listed(facts, Step.decode(2, 100))
    assert first["encoder.attention.qkv"].spec["m"] == 3000
    assert first["layers.cross_attention.key_value"].spec["m"] == 3000
    assert not any(name.startswith("encoder") or name.endswith("key_value") for name in later)
    assert later["layers.cross_attention.decode"].spec["kv_len"] == 1500


def test_scans_that_decode_move_their_state() -> None:
    kernels = listed(model_facts("qwen3.6-35b-a3b"), Step.decode(8, 100))
    rule = kernels["layers.linear_attention.rule"]
    assert (rule.spec.variant, rule.spec.dtype, rule.spec.kv_dtype, rule.count) == (
        "gated_delta_step",
        "bf16",
        "fp32",
        30,
    )
    state_b = 8 * 32 * 128 * 128 * 4
    assert get_family("linear_attention").bytes_moved(View.of(rule.spec)) == pytest.approx(2 * state_b, rel=0.02)
    convolution = kernels["layers.linear_attention.convolution"].spec
    assert (convolution.variant, convolution["channels"], convolution["width"]) == ("step", 8192, 4)
    mixed = forward(
        model_facts("qwen3.6-35b-a3b"),
        Step((Sequences(1, 300), Sequences(1, 100), Sequences(3, 1, 9), Sequences(2, 1, 7))),
        BF16,
    )
    scans = {kernel.spec.variant: kernel.spec for kernel in mixed.kernels if kernel.spec.family == "linear_attention"}
    assert [(scans[name]["batch"], scans[name]["q_len"]) for name in ("gated_delta", "gated_delta_step")] == [
        (2, 200),
        (5, 1),
    ]
    prompt = listed(model_facts("mamba-codestral-7b"), Step.prefill(2, 100))["layers.state_space.scan"].spec
    assert (prompt.variant, prompt["q_len"], prompt["key_dim"], prompt["value_dim"]) == ("mamba2", 100, 128, 64)


def test_quantised_weights_leave_routers_and_logits_alone() -> None:
    facts = model_facts("qwen3-30b-a3b")
    steps = forward(facts, Step.decode(4, 10), Formats.of("bf16", weights="fp8"))
    dtypes = {kernel.name: kernel.spec.dtype for kernel in steps.kernels}
    assert dtypes["layers.attention.qkv"] == dtypes["layers.moe.experts"] == "fp8"
    assert dtypes["layers.moe.router"] == dtypes["logits"] == "bf16"
    quantised = [kernel.spec for kernel in steps.kernels if kernel.name.startswith("layers.attention.qkv.")]
    assert [(spec.family, spec.dtype, spec.variant) for spec in quantised] == [
        ("quantize", "fp8", ""), ("quantize", "fp8", "scale")]  # fmt: skip


def test_unpacked_weights_read_their_own_bytes() -> None:
    facts, device = model_facts("llama-3.1-8b"), catalogue().get("h100-sxm")
    steps = forward(facts, Step.decode(1, 10), Formats.of("bf16", weights="int4"), device=device)
    kernels = {kernel.name: kernel.spec for kernel in steps.kernels}
    product = kernels["layers.mlp.gate_up"]
    assert (product.dtype, product["k"]) == ("bf16", 4096)
    assert product["n"] == pytest.approx(2 * 14336 * (0.5 + 2.5 / 128) / 2, rel=0.01)
    assert product["n"] % 64 == 0
    assert "layers.mlp.gate_up" in steps.stand_ins
    assert "layers.mlp.gate_up.quantise" not in kernels
    with pytest.raises(SpecError, match="depends on the device"):
        forward(facts, Step.decode(1, 10), Formats.of("bf16", weights="int4"))


def test_collectives_are_listed_by_bytes() -> None:
    facts, step = model_facts("qwen3-30b-a3b"), Step.decode(16, 10)
    assert not forward(facts, step, BF16).collectives
    split = forward(facts, step, BF16, ParallelPlan(tp=4)).collectives
    reduced = [item for item in split if item.kind == "all_reduce" and item.name.startswith("layers")]
    assert sum(item.count for item in reduced) == 2 * 48
    assert {item.size_b for item in reduced} == {16 * 2048 * 2}
    # Ranks of one group have the same tokens, whichever experts they hold.
    together = forward(facts, step, BF16, ParallelPlan(tp=4, ep=4)).collectives
    assert {item.kind for item in together} == {"all_reduce", "all_gather"}
    # Routed and shared experts are summed over ranks together.
    shared = forward(model_facts("qwen3.6-35b-a3b"), step, BF16, ParallelPlan(tp=2)).collectives
    assert sum(item.count for item in shared if item.kind == "all_reduce" and item.name.startswith("layers")) == 2 * 40
    kinds = {item.kind for item in forward(facts, step, BF16, ParallelPlan(tp=2, ep=4, dp=2, pp=2)).collectives}
    assert kinds == {"all_reduce", "all_to_all", "all_gather", "send"}


@pytest.mark.parametrize(
    ("model", "step", "field"),
    [
        ("gpt2", Step.decode(1, 1024), "step"),
        ("bert-base", Step.decode(1, 5), "context"),
        ("vit-base", Step.prefill(1, 196), "prefill"),
    ],
)
def test_steps_a_model_cannot_run_are_refused(model: str, step: Step, field: str) -> None:
    with pytest.raises(SpecError) as refused:
        forward(model_facts(model), step, BF16)
    assert refused.value.field == field


def test_no_kernel_is_listed_twice_and_every_stand_in_is_one_of_them() -> None:
    for name in model_names():
        facts = model_facts(name)
        steps = forward(facts, Step.prefill(2, facts.fixed_length or 100), Formats.of(facts.dtype))
        lines = [(kernel.name, kernel.spec) for kernel in steps.kernels]
        assert len(set(lines)) == len(lines)
        assert set(steps.stand_ins) <= {kernel.name for kernel in steps.kernels}


def test_ranks_beyond_the_key_heads_keep_copies() -> None:
    part = Attention(64, 8, 128)
    one, sixteen = (part.weights(8192, ParallelPlan(tp=tp)).products for tp in (8, 16))
    assert one - 2 * 8192 * 128 == 2 * (sixteen - 2 * 8192 * 128)
