"""Parameters that follow from public configurations are those their makers publish, of all architectures and of hybrids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from kernelcast.features.errors import SpecError
from kernelcast.workloads.architectures.config.reading import KNOWN, read_facts
from kernelcast.workloads.architectures.forward import forward
from kernelcast.workloads.architectures.layers.attention import Attention
from kernelcast.workloads.architectures.layers.feed_forward import Experts, Shared
from kernelcast.workloads.architectures.memory import memory
from kernelcast.workloads.architectures.plan import ParallelPlan
from kernelcast.workloads.architectures.step import Formats, Step

PUBLIC: Mapping[str, Mapping[str, Any]] = yaml.safe_load(Path(__file__).with_name("public_models.yaml").read_text())


def config_of(name: str) -> dict[str, Any]:
    config = dict(PUBLIC[name]["config"])
    if (hybrids := config.pop("hybrids", None)) is not None:
        config["layers_block_type"] = [
            "hybrid" if i in hybrids else "mamba" for i in range(config["num_hidden_layers"])
        ]
    return config


@pytest.mark.parametrize("name", PUBLIC)
def test_parameters_of_public_configurations(name: str) -> None:
    facts, published = read_facts(config_of(name), name), PUBLIC[name]
    assert facts.parameters / 1e9 == pytest.approx(published["billions"], rel=0.02)
    if "active" in published:
        # Some makers leave embeddings out.
        assert facts.active_parameters / 1e9 == pytest.approx(published["active"], rel=0.12)
    if facts.encoder is not None:
        facts = facts.with_source(64)
    length = facts.fixed_length or 64
    formats = Formats.of(facts.dtype)
    assert forward(facts, Step.prefill(2, length), formats).kernels
    if facts.generates:
        decode = Step.decode(2, 4096 if facts.max_length is None else min(4096, facts.max_length - 1))
        assert forward(facts, decode, formats, ParallelPlan(tp=1)).kernels
        assert memory(facts, decode, formats).cache_b > 0


def test_layers_of_hybrids() -> None:
    jamba = read_facts(config_of("ai21labs/Jamba-v0.1"), "m")
    assert {part.name: sum(count for count, other in jamba.parts if other.name == part.name) for _, part in jamba.parts} == {
        "state_space": 28, "attention": 4, "mlp": 16, "moe": 16,
    }  # fmt: skip
    assert not any(part.rotary for _, part in jamba.parts if isinstance(part, Attention))
    zamba = read_facts(config_of("Zyphra/Zamba2-7B"), "m")
    shared = [(count, part) for count, part in zamba.parts if isinstance(part, Shared)]
    # Two copies of attention and network serve thirteen layers, each with a cache of its own.
    assert [(count, round(part.share * count, 6), part.name) for count, part in shared] == [
        (13, 2, "attention"), (13, 2, "mlp"),
    ]  # fmt: skip
    assert shared[0][1].cache_b(100, Formats.of("bf16"), ParallelPlan()) == 2 * 100 * 32 * 224 * 2
    names = {kernel.name for kernel in forward(zamba, Step.prefill(1, 64), Formats.of("bf16")).kernels}
    assert {"layers.mlp_adapter.product_2", "layers.attention.qkv", "layers.state_space.scan"} <= names


def test_a_plan_splits_hybrids() -> None:
    formats, step = Formats.of("bf16"), Step.decode(4, 1000)
    for name in ("ai21labs/Jamba-v0.1", "Zyphra/Zamba2-7B", "LiquidAI/LFM2-8B-A1B", "tiiuae/Falcon-H1-34B"):
        facts = read_facts(config_of(name), name)
        whole, half = (memory(facts, step, formats, ParallelPlan(tp=tp)) for tp in (1, 2))
        assert half.weights_b == pytest.approx(whole.weights_b / 2, rel=0.03)
        assert forward(facts, step, formats, ParallelPlan(tp=2)).collectives
        with pytest.raises(SpecError, match="tp 7"):
            forward(facts, step, formats, ParallelPlan(tp=7))


def test_attention_within_chunks_is_a_window() -> None:
    facts = read_facts(config_of("meta-llama/Llama-4-Scout-17B-16E"), "m")
    windows = {part.window: count for count, part in facts.parts if isinstance(part, Attention)}
    assert windows == {8192: 36, 0: 12}
    assert any("chunks" in note for note in facts.notes)


def test_experts_behind_a_narrower_projection() -> None:
    """Nemotron 3's larger models: experts read and write a latent, of which each rank has the projections."""
    config = {
        "model_type": "nemotron_h", "hidden_size": 4096, "layers_block_type": ["moe"], "n_routed_experts": 512,
        "num_experts_per_tok": 22, "moe_intermediate_size": 2688, "moe_shared_expert_intermediate_size": 5376,
        "moe_latent_size": 1024,
    }  # fmt: skip
    facts = read_facts(config, "m")
    [(count, part)] = facts.parts
    assert isinstance(part, Experts)
    weights = part.weights(4096, ParallelPlan())
    assert (count, weights.experts) == (1, 512 * 2 * 1024 * 2688)
    assert weights.products == 2 * 4096 * (5376 + 1024)
    kernels = {
        item.name: dict(item.spec.dims) for item in forward(facts, Step.prefill(1, 8), Formats.of("bf16")).kernels
    }
    assert kernels["layers.moe.experts"]["hidden"] == kernels["layers.moe.latent_in"]["n"] == 1024


def test_what_a_nested_configuration_leaves_out_is_its_class_and_said() -> None:
    facts = read_facts(config_of("google/gemma-3-4b-it"), "m")
    assert (facts.vocabulary, facts.max_length) == (262208, 131072)
    [note] = [note for note in facts.notes if "leaves out" in note]
    assert "gemma3_text has by default: " in note
    assert "num_attention_heads 8" in note
    # A file's own fields have no default: any JSON would be a model.
    with pytest.raises(SpecError, match="lacks hidden_size"):
        read_facts({"model_type": "llama"}, "m")
    with pytest.raises(SpecError, match="lacks num_hidden_layers"):
        read_facts({"model_type": "bamba", "hidden_size": 4096}, "m")


def test_the_page_names_every_architecture() -> None:
    page = (Path(__file__).parents[4] / "docs" / "models-from-configs.md").read_text()
    words = set(re.findall(r"[a-z][\w-]*", page[page.index("## Architectures") : page.index("## How far")]))
    # Parts of models of images are named as the model.
    assert {kind for kind in KNOWN if not kind.endswith(("_text", "_text_model"))} <= words


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("rwkv", "position by position.*nearest: mamba2"), ("detr", "ResNet.*nearest: vit"),
        ("wavlm2", "nearest: wavlm"),
    ],
)  # fmt: skip
def test_other_architectures_are_refused_with_why_and_what_to_do(kind: str, why: str) -> None:
    with pytest.raises(SpecError, match=rf"{why}.*predict model.*estimate FILE") as refused:
        read_facts({"model_type": kind, "hidden_size": 64, "num_hidden_layers": 2}, "m")
    assert refused.value.field == "model_type"


def kernels_of(name: str, step: Step) -> dict[str, dict[str, Any]]:
    facts = read_facts(config_of(name), name)
    listed = forward(facts.with_source(4096) if facts.encoder else facts, step, Formats.of("bf16"))
    return {item.name: {**dict(item.spec.dims), "count": item.count} for item in listed.kernels}


def test_linear_attention_that_decays_keeps_a_state_of_each_head() -> None:
    """MiniMax-01 scans in 70 of 80 layers; xLSTM has gates of each position, and keeps the sum of its keys too."""
    name, formats = "MiniMaxAI/MiniMax-Text-01-hf", Formats.of("bf16")
    kernels = kernels_of(name, Step.prefill(1, 512))
    scan = kernels["layers.linear_attention.sums"]
    assert {key: scan[key] for key in ("heads", "key_heads", "key_dim", "value_dim", "count")} == {
        "heads": 64, "key_heads": 64, "key_dim": 128, "value_dim": 128, "count": 70,
    }  # fmt: skip
    assert kernels["layers.attention.prefill"]["count"] == 10
    caches = [memory(read_facts(config_of(name), name), Step.decode(1, n), formats).cache_b for n in (1000, 2000)]
    assert caches[1] - caches[0] == 1000 * 10 * 2 * 8 * 128 * 2
    assert 2 * caches[0] - caches[1] == pytest.approx(70 * 64 * 128 * 128 * 4, rel=0.01)
    kernels = kernels_of("NX-AI/xLSTM-7b", Step.decode(4, 100))
    assert kernels["layers.linear_attention.gates"]["n"] == 16
    assert (kernels["layers.linear_attention.sums"]["key_dim"], kernels["layers.mlp.down"]["k"]) == (256, 10944)


def test_layers_that_look_at_an_image_read_all_its_positions_once() -> None:
    """Llama 3.2 has eight of them: keys of an image are made with the first tokens, and read by every later one."""
    name = "meta-llama/Llama-3.2-11B-Vision"
    starts, goes_on = (kernels_of(name, step) for step in (Step.prefill(2, 64), Step.decode(2, 64)))
    assert starts["layers.cross_attention.key_value"]["m"] == 2 * 4 * 1601
    assert "layers.cross_attention.key_value" not in goes_on
    assert goes_on["layers.cross_attention.decode"]["kv_len"] == 6404
    assert (starts["layers.cross_attention.output"]["count"], starts["layers.attention.output"]["count"]) == (8, 32)
    config = {key: value for key, value in config_of(name).items() if key != "vision_config"}
    with pytest.raises(SpecError, match="lacks vision_config"):
        read_facts(config, "m")


def test_layers_that_read_keys_of_others_keep_none() -> None:
    """Gemma 3n has fifteen such layers of 35, each fifth of all without a window."""
    name = "google/gemma-3n-E4B-it"
    kernels = kernels_of(name, Step.prefill(1, 256))
    assert (kernels["layers.attention.qkv"]["count"], kernels["layers.attention.query"]["count"]) == (20, 15)
    assert kernels["layer_embeddings"]["cols"] == 35 * 256
    facts, formats = read_facts(config_of(name), name), Formats.of("bf16")
    caches = [memory(facts, Step.decode(1, length), formats).cache_b for length in (1000, 2000)]
    assert caches[1] - caches[0] == 1000 * 4 * 2 * 2 * 256 * 2


def test_encoders_with_gated_continuous_and_global_biases() -> None:
    wavlm = kernels_of("microsoft/wavlm-base-plus", Step.prefill(2, 100))
    assert wavlm["layers.attention.bias_gates"]["m"] == 2 * 12 * 100
    assert (wavlm["layers.attention.gather_biases"]["count"], wavlm["layers.attention.biases"]["count"]) == (1, 11)
    swin = kernels_of("microsoft/swinv2-tiny-patch4-window8-256", Step.prefill(1, 64))
    assert swin["layers.attention.biases.up"]["m"] == 15**2
    segformer = kernels_of("nvidia/mit-b0", Step.prefill(2, 49))
    assert (segformer["layers.attention.merge"]["m"], segformer["layers.attention.prefill"]["kv_len"]) == (2 * 49, 49)
    sam = read_facts(config_of("facebook/sam-vit-base"), "m")
    ran = forward(sam, Step.prefill(1, 4096), Formats.of("bf16")).kernels
    sizes = {
        (item.spec["batch"], item.spec["q_len"]): item.count for item in ran if item.name.endswith("attention.prefill")
    }
    assert sizes == {(1, 4096): 4, (25, 196): 8}
    local, of_blocks = (
        kernels_of(name, Step.prefill(1, 8)) for name in ("google/long-t5-local-base", "google/long-t5-tglobal-large")
    )
    assert local["encoder.attention.prefill"]["window"] == 384
    assert of_blocks["encoder.attention.prefill"]["window"] == 384 + 4096 // 16
    assert of_blocks["encoder.attention.global_key_value"]["m"] == 4096 // 16
