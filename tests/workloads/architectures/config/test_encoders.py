"""Encoders beside decoders, relative positions, images in stages, sound: shapes of kernels, caches, and operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import View, get_family
from kernelcast.workloads.architectures.config.reading import read_facts
from kernelcast.workloads.architectures.facts import ModelFacts
from kernelcast.workloads.architectures.forward import forward
from kernelcast.workloads.architectures.layers.attention import WindowAttention
from kernelcast.workloads.architectures.memory import memory
from kernelcast.workloads.architectures.plan import ParallelPlan
from kernelcast.workloads.architectures.step import Formats, Step
from kernelcast.workloads.whole_model import Kernel

PUBLIC = yaml.safe_load(Path(__file__).with_name("public_models.yaml").read_text())
BF16 = Formats.of("bf16")


def public(name: str) -> ModelFacts:
    return read_facts(PUBLIC[name]["config"], name)


def listed(facts: ModelFacts, step: Step, **options: Any) -> dict[str, list[Kernel]]:
    kernels: dict[str, list[Kernel]] = {}
    for kernel in forward(facts, step, BF16, **options).kernels:
        kernels.setdefault(kernel.name, []).append(kernel)
    return kernels


def sizes(kernels: list[Kernel]) -> list[dict[str, int]]:
    return [dict(kernel.spec.dims) for kernel in kernels]


def operations(facts: ModelFacts, step: Step, *, training: bool = True) -> float:
    """Of products, attention and convolutions; a step that trains has logits of every position, as one of transformers."""
    kernels = forward(facts, step, BF16, training=training).kernels
    products = sum(
        kernel.count * get_family(kernel.spec.family).flops(View.of(kernel.spec))
        for kernel in kernels
        if kernel.spec.family in ("gemm", "attention")
    )
    # A convolution of each channel over 7 x 7 positions is listed by the bytes it moves.
    depthwise = [kernel for kernel in kernels if kernel.name.endswith("convolution.depthwise")]
    return products + sum(2 * 49 * kernel.count * kernel.spec["rows"] * kernel.spec["cols"] for kernel in depthwise)


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("google-t5/t5-base", 60033073152),
        ("google/flan-t5-xl", 794317291520),
        ("google/umt5-small", 21544042496),
        ("facebook/bart-base", 31697584128),
        ("facebook/mbart-large-50", 119693246464),
        ("google/pegasus-large", 144039149568),
        ("Helsinki-NLP/opus-mt-en-de", 15046705152),
        ("facebook/nllb-200-distilled-600M", 120096423936),
        ("microsoft/deberta-v3-base", 115964116992),
        ("sentence-transformers/all-mpnet-base-v2", 91807285248),
        ("google/electra-small-discriminator", 11307843584),
        ("albert/albert-base-v2", 91907948544),
        ("facebook/wav2vec2-base", 56444235776),
        ("facebook/hubert-large-ll60k", 146030243840),
        ("microsoft/swin-tiny-patch4-window7-224", 17959194624),
        ("microsoft/swin-large-patch4-window12-384", 415670206464),
        ("facebook/convnext-tiny-224", 17819053056),
    ],
)
def test_operations_are_those_that_pytorch_counts(name: str, counted: int) -> None:
    """By torch.utils.flop_counter over transformers 5.24 with eager attention.

    Two sequences of 256 tokens, of 128 and 16 of the decoder, of 100 positions of sound, or two images.
    """
    facts = public(name)
    if facts.encoder is not None:
        facts, length = facts.with_source(128), 16
    else:
        length = facts.fixed_length or (100 if not facts.vocabulary else 256)
    assert operations(facts, Step.prefill(2, length)) == pytest.approx(counted, rel=0.002)


@pytest.mark.parametrize(("name", "counted"), [("google-t5/t5-base", 505749504), ("facebook/bart-base", 357940224)])
def test_operations_of_a_token_behind_others(name: str, counted: int) -> None:
    """Likewise of two sequences with 16 positions of their own and 128 of the encoder in the cache."""
    assert operations(public(name).with_source(128), Step.decode(2, 16), training=False) == counted


def test_a_decoder_looks_at_what_its_encoder_read() -> None:
    facts = public("google-t5/t5-base").with_source(512)
    first, later = listed(facts, Step.prefill(8, 1)), listed(facts, Step.decode(8, 63))
    head = {"heads": 12, "kv_heads": 12, "head_dim": 64, "window": 0, "batch": 8}
    assert sizes(first["encoder.attention.prefill"]) == [head | {"q_len": 512, "kv_len": 512}]
    assert first["encoder.attention.prefill"][0].spec.variant == "full"
    assert sum(kernel.count for kernel in first["encoder.attention.qkv"]) == 12
    assert sizes(first["layers.cross_attention.key_value"]) == [{"batch": 1, "m": 8 * 512, "n": 2 * 768, "k": 768}]
    assert sizes(later["layers.attention.decode"]) == [head | {"q_len": 1, "kv_len": 64}]
    assert sizes(later["layers.cross_attention.decode"]) == [head | {"q_len": 1, "kv_len": 512}]
    assert not any(name.startswith("encoder") or name.endswith("key_value") for name in later)
    # Both stacks look tokens up in the one table; T5 has none of positions.
    assert sizes(first["encoder.embedding"])[0] == {"rows": 8 * 512, "cols": 768}
    assert not any("positions" in name for name in first)
    assert {"encoder.positions", "positions"} <= set(
        listed(public("facebook/bart-base").with_source(9), Step.prefill(1, 1))
    )


def test_biases_by_relative_position_are_read_in_every_layer_of_their_own_sequence() -> None:
    facts = public("google-t5/t5-base").with_source(512)
    kernels = listed(facts, Step.prefill(8, 4))
    (biases,) = kernels["encoder.attention.biases"]
    assert (biases.count, sizes([biases])) == (11, [{"rows": 12 * 512, "cols": 512}])
    (gather,) = kernels["encoder.attention.gather_biases"]
    assert (gather.count, gather.spec) == (1, biases.spec)
    assert sizes(kernels["layers.attention.biases"]) == [{"rows": 12 * 4, "cols": 4}]
    assert "layers.cross_attention.biases" not in kernels
    # The first layer of each stack of T5 has a table, of UMT5 every layer.
    tables = {name: sum(count for count, part in public(name).parts if getattr(part, "biases", None))
              for name in ("google-t5/t5-base", "google/umt5-small")}  # fmt: skip
    assert tables == {"google-t5/t5-base": 2, "google/umt5-small": 16}


def test_both_caches_of_a_decoder_are_kept() -> None:
    facts, width = public("facebook/bart-large").with_source(1000), 12 * 2 * 1024 * 2
    kept = memory(facts, Step.decode(4, 99), BF16)
    assert (kept.cache_per_token_b, kept.cache_b) == (width, 4 * (100 + 1000) * width)
    longer = memory(public("facebook/bart-large").with_source(500), Step.decode(4, 99), BF16)
    assert kept.cache_b - longer.cache_b == 4 * 500 * width


def test_training_keeps_activations_of_both_stacks() -> None:
    one, two, ten = (
        memory(public("google-t5/t5-base").with_source(source), Step.prefill(2, 64), BF16, training=True).activations_b
        for source in (64, 128, 640)
    )
    assert one > two - one > 0
    assert ten - one == pytest.approx(9 * (two - one))


def test_gated_networks_and_projections_of_their_own() -> None:
    flan, plain = (
        listed(public(name).with_source(8), Step.prefill(1, 1)) for name in ("google/flan-t5-xl", "google-t5/t5-base")
    )
    assert sizes(flan["layers.mlp.gate_up"])[0]["n"] == 2 * 5120
    assert "layers.mlp.up" in plain
    assert not public("google/flan-t5-xl").tied_embeddings
    assert public("google-t5/t5-base").tied_embeddings


@pytest.mark.parametrize("step", [Step.prefill(1, 1), Step.decode(1, 7)])
def test_what_an_encoder_of_text_reads_must_be_said(step: Step) -> None:
    facts = public("google-t5/t5-base")
    for call in (forward, memory):
        if call is memory and step.groups[0].context == 0:
            continue
        with pytest.raises(SpecError, match="such as source 512") as refused:
            call(facts, step, BF16)
        assert refused.value.field == "source"
    assert any("the encoder reads 512 tokens" in note for note in facts.with_source(512).notes)


@pytest.mark.parametrize("source", [0, -1, 2**40, True, 2.5, "512", 1025])
def test_an_impossible_source_is_refused(source: Any) -> None:
    with pytest.raises(SpecError, match="source must be a whole number between 1 and the 1024 tokens") as refused:
        public("facebook/bart-base").with_source(source)
    assert refused.value.field == "source"


def test_a_source_without_an_encoder_of_text_is_refused() -> None:
    whisper = {
        "model_type": "whisper", "d_model": 384, "encoder_layers": 2, "decoder_layers": 2, "max_source_positions": 50,
        "max_target_positions": 20,
    }  # fmt: skip
    for config in (PUBLIC["microsoft/deberta-v3-base"]["config"], whisper):
        with pytest.raises(SpecError, match="no encoder of text") as refused:
            read_facts(config, "m").with_source(10)
        assert refused.value.field == "source"


def test_services_are_those_of_decoders() -> None:
    with pytest.raises(SpecError, match="reads text with an encoder") as refused:
        public("google-t5/t5-base").check_serves()
    assert refused.value.field == "model"


def test_an_encoder_of_text_alone() -> None:
    facts = public("google-t5/t5-base")
    alone = facts.encoder_alone()
    assert alone.parameters == pytest.approx(109.6e6, rel=0.001)
    assert (alone.generates, alone.fixed_length) == (False, None)
    assert facts.with_source(77).encoder_alone().fixed_length == 77
    assert sizes(listed(alone, Step.prefill(2, 77))["layers.attention.prefill"])[0]["kv_len"] == 77


def test_windows_of_an_image_are_sequences() -> None:
    facts = public("microsoft/swin-tiny-patch4-window7-224")
    assert (facts.hidden, facts.fixed_length, facts.layers) == (768, 49, 12)
    kernels = listed(facts, Step.prefill(2, 49))
    attention = {(size["batch"], size["heads"], size["q_len"]) for size in sizes(kernels["layers.attention.prefill"])}
    assert attention == {(2 * windows, heads, 49) for windows, heads in ((64, 3), (16, 6), (4, 12), (1, 24))}
    merged = [(size["m"], size["n"], size["k"]) for size in sizes(kernels["layers.merge"])]
    assert merged == [(2 * 784, 192, 384), (2 * 196, 384, 768), (2 * 49, 768, 1536)]
    # Every other layer is shifted, but for the last stage, which is one window.
    shifted = sum(count for count, part in facts.parts if isinstance(part, WindowAttention) and part.shifted)
    assert shifted == 1 + 1 + 3
    with pytest.raises(SpecError, match="several widths") as refused:
        forward(facts, Step.prefill(1, 49), BF16, ParallelPlan(pp=2))
    assert refused.value.field == "pp"
    # An image that does not fill its windows is padded.
    padded = read_facts(PUBLIC["microsoft/swin-tiny-patch4-window7-224"]["config"] | {"image_size": 256}, "m")
    assert sizes(listed(padded, Step.prefill(1, 64))["layers.attention.prefill"])[0]["batch"] == 10**2


def test_positions_of_an_image_become_fewer() -> None:
    kernels = listed(public("facebook/convnext-tiny-224"), Step.prefill(2, 49))
    rows = {(size["rows"], size["cols"]): kernel.count
            for kernel, size in zip(kernels["layers.convolution.depthwise"], sizes(kernels["layers.convolution.depthwise"]),
                                    strict=True)}  # fmt: skip
    assert rows == {(6272, 96): 3, (1568, 192): 3, (392, 384): 9, (98, 768): 3}


def test_positions_of_sound_are_made_of_samples() -> None:
    facts = public("facebook/wav2vec2-base")
    kernels = listed(facts, Step.prefill(2, 499))
    assert [sizes(kernels[f"convolution_{index}"])[0]["m"] for index in range(1, 8)] == [
        2 * 499 * rows for rows in (64, 32, 16, 8, 4, 2, 1)
    ]
    (placing,) = sizes(kernels["layers.convolution.product"])
    assert placing == {"batch": 16, "m": 2 * 499, "n": 48, "k": 48 * 128}
    assert any("320 samples of sound: 50 of them are a second" in note for note in facts.notes)
    one, many = (memory(facts, Step.prefill(count, 499), BF16).activations_b for count in (1, 4))
    assert many == 4 * one >= 2 * 499 * 64 * 512 * 2


def test_scores_by_relative_position_have_products_of_their_own() -> None:
    kernels = listed(public("microsoft/deberta-v3-base"), Step.prefill(2, 256))
    for term in ("c2p", "p2c"):
        assert sizes(kernels[f"layers.attention.{term}.scores"])[0] == {"batch": 24, "m": 256, "n": 512, "k": 64}
        assert sizes(kernels[f"layers.attention.{term}.positions"])[0]["m"] == 512
    assert not any(kernel.spec.family == "attention" for some in kernels.values() for kernel in some)


def test_an_indexer_chooses_what_is_attended_to() -> None:
    facts = public("deepseek-ai/DeepSeek-V3.2-Exp")
    kernels = listed(facts, Step.decode(4, 9999))
    (attention,) = sizes(kernels["layers.attention.decode"])
    (indexer,) = sizes(kernels["layers.attention.indexer.decode"])
    assert (attention["kv_len"], indexer["kv_len"], indexer["heads"], indexer["kv_heads"]) == (2048, 10000, 64, 1)
    (prompt,) = sizes(listed(facts, Step.prefill(1, 4096))["layers.attention.decode"])
    assert (prompt["batch"], prompt["kv_len"]) == (4096, round((2048 * 2049 / 2 + 2048 * 2048) / 4096))
    assert sizes(listed(facts, Step.prefill(1, 2048))["layers.attention.prefill"])[0]["kv_len"] == 2048
    assert memory(facts, Step.decode(1, 99), BF16).cache_per_token_b == 61 * (576 + 128) * 2


def test_layers_with_a_decay_of_each_channel() -> None:
    kernels = listed(public("moonshotai/Kimi-Linear-48B-A3B-Instruct"), Step.decode(4, 999))
    assert kernels["layers.linear_attention.rule"][0].count == 20
    assert kernels["layers.attention.decode"][0].count == 7
    assert sizes(kernels["layers.linear_attention.output_gate"])[0] == {"batch": 1, "m": 4, "n": 4096, "k": 128}
