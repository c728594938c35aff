"""Configurations: every architecture, what their fields decide, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.workloads.architectures.config.fields import MAX_LAYERS
from kernelcast.workloads.architectures.config.reading import MAX_CONFIG_B, READERS, read_config_file, read_facts
from kernelcast.workloads.architectures.facts import ModelFacts
from kernelcast.workloads.architectures.forward import forward
from kernelcast.workloads.architectures.layers.attention import Attention
from kernelcast.workloads.architectures.layers.feed_forward import Experts, Mlp
from kernelcast.workloads.architectures.step import Formats, Step
from kernelcast.workloads.architectures.training import training_step

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 2048,
}  # fmt: skip
MOE = LLAMA | {"model_type": "qwen3_moe", "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
MAMBA: dict[str, Any] = {
    "model_type": "mamba2", "hidden_size": 128, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 64, "state_size": 16,
    "n_groups": 1, "vocab_size": 100,
}  # fmt: skip
BART: dict[str, Any] = {
    "model_type": "bart", "d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 128,
    "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 128, "vocab_size": 100,
}  # fmt: skip
T5: dict[str, Any] = {
    "model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 3, "num_heads": 4, "vocab_size": 100,
}  # fmt: skip
EVERY: dict[str, dict[str, Any]] = {
    **{name: BART | {"model_type": name, "max_position_embeddings": 64} for name in (
        "bart", "blenderbot", "blenderbot-small", "m2m_100", "marian", "mbart", "pegasus", "plbart")},
    **{name: T5 | {"model_type": name} for name in ("longt5", "mt5", "t5", "umt5")},
    **{name: LLAMA | {"model_type": name} for name in ("hubert", "unispeech", "unispeech-sat", "wav2vec2", "wavlm")},
    "convnext": {"model_type": "convnext", "depths": [1, 2], "hidden_sizes": [16, 32], "image_size": 32},
    **{name: {"model_type": name, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "image_size": 64} for name in (
        "swin", "swinv2")},
    "segformer": {"model_type": "segformer", "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 40, 64], "image_size": 64},
    "sam_vision_model": LLAMA | {"model_type": "sam_vision_model", "image_size": 64, "window_size": 3},
    "deberta": LLAMA | {"model_type": "deberta", "relative_attention": True, "pos_att_type": ["c2p"]},
    "deberta-v2": LLAMA | {"model_type": "deberta-v2", "relative_attention": True, "pos_att_type": "p2c|c2p",
                           "position_buckets": 16, "conv_kernel_size": 3},
    "hunyuan_v1_moe": MOE | {"model_type": "hunyuan_v1_moe", "moe_topk": [2, 2]},
    "kimi_linear": MOE | {"model_type": "kimi_linear", "kv_lora_rank": 32, "linear_attn_config": {
        "full_attn_layers": [4], "num_heads": 2, "head_dim": 16}},
    **{name: LLAMA | {"model_type": name} for name in (
        "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "phi", "arcee", "cohere", "cohere2",
        "ernie4_5", "exaone", "exaone4", "glm", "glm4", "glm4v_text", "granite", "hunyuan_v1_dense", "nemotron", "olmo",
        "olmo2", "olmo3", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "seed_oss", "smollm3", "stablelm",
        "albert", "camembert", "electra", "modernbert", "mpnet", "roberta", "xlm-roberta", "lfm2", "apertus", "baichuan",
        "biogpt", "data2vec-text", "ernie", "gemma3n_text", "helium", "internlm2", "internlm3", "megatron-bert", "minicpm",
        "ministral", "persimmon", "roberta-prelayernorm", "vaultgemma", "xlm-roberta-xl")},
    **{name: MOE | {"model_type": name} for name in (
        "minimax_m2", "mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "dots1", "ernie4_5_moe", "glm4_moe", "glm4v_moe_text",
        "bailing_moe", "deepseek", "minimax", "minimax_text_01", "granitemoe", "granitemoeshared",
        "llama4_text", "olmoe", "phimoe", "qwen3_vl_moe_text", "jamba", "granitemoehybrid",
        "lfm2_moe")},
    **{name: LLAMA | {"model_type": name, "mamba_n_heads": 8, "mamba_d_ssm": 512} for name in ("bamba", "falcon_h1")},
    **{name: LLAMA | {"model_type": name, "image_size": 32, "patch_size": 8} for name in (
        "vit", "clip_vision_model", "siglip_vision_model", "deit", "dinov2", "dinov2_with_registers", "vit_mae", "vit_msn")},
    **{name: LLAMA | {"model_type": name} for name in ("mamba", "falcon_mamba")},
    "mllama_text_model": LLAMA | {
        "model_type": "mllama_text_model", "cross_attention_layers": [1], "vision_config": {"image_size": 28}},
    "xlstm": MAMBA | {"model_type": "xlstm"},
    "xglm": {"model_type": "xglm", "d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 128, "vocab_size": 100},
    "gpt_neo": {"model_type": "gpt_neo", "hidden_size": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 100,
                "max_position_embeddings": 32},
    "dbrx": {"model_type": "dbrx", "d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 100,
             "attn_config": {"kv_n_heads": 2}, "ffn_config": {"moe_num_experts": 4, "moe_top_k": 2}},
    "zamba2": LLAMA | {"model_type": "zamba2", "layers_block_type": ["mamba", "hybrid"] * 2},
    "bloom": {"model_type": "bloom", "n_embed": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100},
    "mpt": {"model_type": "mpt", "d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 100},
    "falcon": LLAMA | {"model_type": "falcon"},
    "codegen": {"model_type": "codegen", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 100},
    "gpt_bigcode": {"model_type": "gpt_bigcode", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 100},
    "distilbert": {"model_type": "distilbert", "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 100,
                   "max_position_embeddings": 32},
    **{
        name: (MOE if "moe" in name or "next" in name else LLAMA) | {
            "model_type": name, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
            "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
        }
        for name in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
    },
    **{
        name: LLAMA | {
            "model_type": name, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
            "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "first_k_dense_replace": 1,
        }
        for name in ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2")
    },
    **{name: {"model_type": name, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 100} for name in (
        "gpt2", "openai-gpt")},
    "gpt_neox": LLAMA | {"model_type": "gpt_neox"},
    "gptj": {"model_type": "gptj", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 100},
    "starcoder2": LLAMA | {"model_type": "starcoder2"},
    "opt": LLAMA | {"model_type": "opt", "ffn_dim": 512},
    "bert": LLAMA | {"model_type": "bert"},
    "whisper": BART | {
        "model_type": "whisper", "max_source_positions": 50, "max_target_positions": 20, "num_mel_bins": 8,
    },
    "mamba2": MAMBA,
    "nemotron_h": LLAMA | {
        "model_type": "nemotron_h", "hybrid_override_pattern": "M-*E", "mamba_num_heads": 4, "mamba_head_dim": 16,
        "ssm_state_size": 8, "n_groups": 1, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    },
}  # fmt: skip


def with_any_source(facts: ModelFacts) -> ModelFacts:
    """The model, with something to read where it has an encoder of text."""
    return facts.with_source(5) if facts.encoder is not None and facts.encoder.vocabulary else facts


def attentions(values: dict[str, Any]) -> list[tuple[int, Attention]]:
    return [(count, part) for count, part in read_facts(values, "m").parts if isinstance(part, Attention)]


def test_every_reader_reads() -> None:
    assert set(EVERY) == set(READERS)
    for name, values in EVERY.items():
        facts = with_any_source(read_facts(values, "m"))
        assert facts.architecture == name
        steps = forward(facts, Step.prefill(2, facts.fixed_length or 8), Formats.of(facts.dtype))
        assert steps.kernels
        assert training_step(facts, Step.prefill(2, facts.fixed_length or 8), Formats.of(facts.dtype)).kernels
        if facts.generates:
            assert forward(facts, Step.decode(2, 8), Formats.of(facts.dtype)).kernels


def test_what_an_architecture_decides() -> None:
    [(_, qwen2)], [(_, qwen3)] = attentions(EVERY["qwen2"]), attentions(EVERY["qwen3"])
    assert qwen2.qkv_bias
    assert not qwen2.norm_kind
    assert qwen3.norm_kind == "rmsnorm"
    assert not qwen3.qkv_bias
    assert [part.window for _, part in attentions(LLAMA | {"sliding_window": 64})] == [0]
    assert [part.window for _, part in attentions(EVERY["mistral"] | {"sliding_window": 64})] == [64]
    assert [part.window for _, part in attentions(EVERY["mistral"] | {"sliding_window": None})] == [0]
    assert {part.window: count for count, part in attentions(EVERY["gemma2"] | {"sliding_window": 64})} == {64: 2, 0: 2}
    assert {part.window: count for count, part in attentions(EVERY["gpt_oss"] | {"sliding_window": 64})} == {
        64: 2,
        0: 2,
    }


def test_a_window_that_is_switched_off_is_none() -> None:
    qwen = EVERY["qwen2"] | {"sliding_window": 64, "max_window_layers": 3}
    assert [part.window for _, part in attentions(qwen | {"use_sliding_window": False})] == [0]
    assert {part.window: count for count, part in attentions(qwen | {"use_sliding_window": True})} == {0: 3, 64: 1}


def test_listed_kinds_of_layers_win() -> None:
    words = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]
    listed = LLAMA | {"layer_types": words, "sliding_window": 32}
    assert {part.window: count for count, part in attentions(listed)} == {0: 1, 32: 3}


def test_dense_layers_between_experts() -> None:
    facts = read_facts(MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [3]}, "m")
    kinds = {type(part): count for count, part in facts.parts if isinstance(part, Mlp | Experts)}
    assert kinds == {Mlp: 3, Experts: 1}


def test_formats_a_configuration_names() -> None:
    block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert read_facts(LLAMA | {"quantization_config": block}, "m").weights == "fp8_block"
    assert read_facts(LLAMA | {"quantization_config": {"quant_method": "fp8"}}, "m").weights == "fp8"
    assert read_facts(MOE | {"quantization_config": {"quant_method": "mxfp4"}}, "m").experts == "mxfp4"
    assert read_facts(LLAMA | {"torch_dtype": "float16"}, "m").dtype == "fp16"
    for method in ({"quant_method": "awq", "bits": 4}, {"quant_method": "gptq", "bits": 4}):
        assert read_facts(LLAMA | {"quantization_config": method}, "m").weights == "int4"
    assert (
        read_facts(LLAMA | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "m").weights
        == "nvfp4"
    )
    with pytest.raises(SpecError, match="'gptq' is not read") as refused:
        read_facts(LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 3}}, "m")
    assert refused.value.field == "quantization_config"


def test_the_text_part_of_a_model_of_images() -> None:
    text = {key: value for key, value in EVERY["qwen3_5_moe_text"].items() if key != "model_type"}
    facts = read_facts({"model_type": "qwen3_5_moe", "text_config": text, "dtype": "float16"}, "m")
    assert facts.architecture == "qwen3_5_moe_text"
    assert facts.dtype == "fp16"
    assert any("text part" in note for note in facts.notes)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hidden_size": -1}, "hidden_size"),
        ({"hidden_size": "256"}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 2.5}, "hidden_size"),
        ({"hidden_size": 2**50}, "hidden_size"),
        ({"hidden_size": 250}, "num_attention_heads"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": MAX_LAYERS + 1}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"vocab_size": [1]}, "vocab_size"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"torch_dtype": "float8"}, "torch_dtype"),
        ({"quantization_config": []}, "config"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window"),
        ({"model_type": 3}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"model_type": "lama"}, "model_type"),
        ({"model_type": "a" * 1000}, "model_type"),
        (MOE | {"num_experts_per_tok": 17}, "num_experts_per_tok"),
        (MOE | {"num_experts_per_tok": None}, "num_experts_per_tok"),
        (MOE | {"mlp_only_layers": "none"}, "mlp_only_layers"),
        (EVERY["vit"] | {"patch_size": 7}, "patch_size"),
        (EVERY["opt"] | {"word_embed_proj_dim": 64}, "word_embed_proj_dim"),
        (EVERY["nemotron_h"] | {"hybrid_override_pattern": "MX"}, "hybrid_override_pattern"),
        (EVERY["nemotron_h"] | {"hybrid_override_pattern": ""}, "hybrid_override_pattern"),
        (MAMBA | {"num_heads": 5}, "num_heads"),
        ({"model_type": "qwen3_5"}, "text_config"),
        (BART | {"activation_function": "sine"}, "activation_function"),
        (T5 | {"feed_forward_proj": "gated-sine"}, "feed_forward_proj"),
        (T5 | {"d_model": None}, "d_model"),
        (EVERY["deberta-v2"] | {"pos_att_type": "p2p"}, "pos_att_type"),
        (EVERY["wav2vec2"] | {"conv_dim": [8, 8]}, "conv_dim"),
        (EVERY["wav2vec2"] | {"conv_stride": []}, "conv_stride"),
        (EVERY["wav2vec2"] | {"num_conv_pos_embedding_groups": 7}, "num_conv_pos_embedding_groups"),
        (EVERY["wav2vec2"] | {"add_adapter": True}, "add_adapter"),
        (EVERY["swin"] | {"num_heads": [2]}, "num_heads"),
        (EVERY["swin"] | {"num_heads": [3, 4]}, "num_heads"),
        (EVERY["swin"] | {"depths": [2, 0]}, "depths"),
        (EVERY["convnext"] | {"hidden_sizes": [16]}, "hidden_sizes"),
        (EVERY["convnext"] | {"image_size": 7}, "image_size"),
        (
            EVERY["segformer"] | {"hidden_sizes": [8, 16, 41, 64], "num_attention_heads": [1, 2, 5, 8]},
            "num_attention_heads",
        ),
        (EVERY["segformer"] | {"depths": [1], "num_attention_heads": [1, 2, 5, 8]}, "depths"),
        (EVERY["minimax"] | {"attn_type_list": [0, 2, 0, 1]}, "attn_type_list"),
        (EVERY["xlstm"] | {"num_heads": 5}, "num_heads"),
        (EVERY["dbrx"] | {"ffn_config": None}, "ffn_config"),
        (EVERY["longt5"] | {"encoder_attention_type": "global"}, "encoder_attention_type"),
        (EVERY["mllama_text_model"] | {"cross_attention_layers": "all"}, "cross_attention_layers"),
    ],
)
def test_malformed_configurations_are_refused_by_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        read_facts(LLAMA | change, "m")
    assert refused.value.field == field
    assert len(str(refused.value)) < 2500


def test_an_unknown_architecture_names_the_nearest_and_all() -> None:
    with pytest.raises(SpecError, match="nearest: llama; read are albert, apertus, ") as refused:
        read_facts(LLAMA | {"model_type": "llama5"}, "m")
    assert "kernelcast predict model" in str(refused.value)


def test_no_field_brings_a_reader_down() -> None:
    """Any field replaced by anything is read, or refused as a user's error."""
    random.seed(0)
    strange: list[Any] = [None, -1, 0, 1, 3, 1e300, 2**70, "x", "", [], {}, [1], True, float("nan"), {"a": 1}]
    refused = 0
    for values in EVERY.values():
        for field in values:
            for value in random.sample(strange, 5):
                try:
                    facts = with_any_source(read_facts(values | {field: value}, "m"))
                    forward(facts, Step.prefill(1, facts.fixed_length or 2), Formats.of(facts.dtype))
                except SpecError:
                    refused += 1
    assert refused > 100


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000, '{"model_type": 1' + "0" * 5000 + "}"])
def test_files_that_are_no_configuration_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(SpecError) as refused:
        read_config_file(path)
    assert refused.value.field == "config"


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read"):
        read_config_file(tmp_path / "missing.json")
    with pytest.raises(SpecError, match="cannot read"):
        read_config_file(tmp_path)
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (MAX_CONFIG_B + 1))
    with pytest.raises(SpecError, match="bytes"):
        read_config_file(large)
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="no JSON"):
        read_config_file(binary)


def test_a_file_has_the_name_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    path = tmp_path / "my-model" / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert read_config_file(path).name == "my-model"


def test_the_number_of_experts_goes_before_the_default_of_its_class_under_another_name() -> None:
    facts = read_facts(EVERY["kimi_linear"] | {"num_experts": 3}, "kimi")
    assert {part.count for _, part in facts.parts if isinstance(part, Experts)} == {3}
    assert not any("num_local_experts" in note for note in facts.notes)
