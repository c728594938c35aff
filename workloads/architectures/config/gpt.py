"""Readers of decoders from before Llama, whose configurations have names of their own: GPT, BLOOM, Falcon, OPT and others."""

from __future__ import annotations

from dataclasses import replace

from ..facts import Block, ModelFacts
from ..layers.attention import Attention
from ..layers.feed_forward import Experts, Mlp
from .decoders import decoder_facts, group_layers, head_attention
from .fields import MAX_LAYERS, Config, per_head


def read_gpt2(config: Config, name: str) -> ModelFacts:
    """GPT-2, and StarCoder, whose heads share one key head."""
    hidden = config.size("n_embd", "hidden_size")
    mixer = head_attention(config, hidden, "n_head", "num_attention_heads")
    if config.word("model_type", "") == "gpt_bigcode" and config.flag("multi_query", True):
        mixer = replace(mixer, kv_heads=1)
    network = Mlp(config.size("n_inner", default=4 * hidden), gated=False, activation="gelu_new", bias=True)
    block = Block(config.size("n_layer", "num_hidden_layers", most=MAX_LAYERS), (mixer, network), 2)
    positions = config.size("n_positions", "n_ctx", "max_position_embeddings")
    return decoder_facts(config, name, hidden, (block,), tied=True, norm="layernorm", positions=positions)


def read_bloom(config: Config, name: str) -> ModelFacts:
    """BLOOM: GPT-2's layers, with positions as biases of the scores, which are not estimated."""
    hidden = config.size("hidden_size", "n_embed")
    mixer = head_attention(config, hidden, "n_head", "num_attention_heads")
    network = Mlp(4 * hidden, gated=False, activation="gelu", bias=True)
    block = Block(config.size("n_layer", "num_hidden_layers", most=MAX_LAYERS), (mixer, network), 2)
    return decoder_facts(config, name, hidden, (block,), tied=True, norm="layernorm")


def read_mpt(config: Config, name: str) -> ModelFacts:
    """MPT: likewise, without biases."""
    hidden, heads = config.size("d_model"), config.size("n_heads")
    nested = config.nested("attn_config")
    kv_heads = heads if nested is None else nested.size("kv_n_heads", default=heads)
    mixer = Attention(heads, kv_heads, per_head(config, hidden, heads), rotary=False)
    network = Mlp(config.size("expansion_ratio", default=4) * hidden, gated=False, activation="gelu")
    block = Block(config.size("n_layers", most=MAX_LAYERS), (mixer, network), 2)
    return decoder_facts(config, name, hidden, (block,), tied=True, norm="layernorm")


def read_falcon(config: Config, name: str) -> ModelFacts:
    """Falcon: attention and network read the same input, through a norm each in the newer layers."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads", "n_head")
    bias, newer = config.flag("bias", False), config.flag("new_decoder_architecture", False)
    alike = 1 if config.flag("multi_query", True) and not newer else heads
    kv_heads = config.size("num_kv_heads", "n_head_kv", default=heads) if newer else alike
    mixer = Attention(
        heads, kv_heads, per_head(config, hidden, heads), qkv_bias=bias, output_bias=bias,
        rotary=not config.flag("alibi", False),
    )  # fmt: skip
    network = Mlp(config.size("ffn_hidden_size", default=4 * hidden), gated=False, activation="gelu", bias=bias)
    norms = config.size("num_ln_in_parallel_attn", default=2) if newer else 2 - config.flag("parallel_attn", True)
    block = Block(config.size("num_hidden_layers", "n_layer", most=MAX_LAYERS), (mixer, network), norms)
    return decoder_facts(config, name, hidden, (block,), tied=True, norm="layernorm")


def read_gptj(config: Config, name: str) -> ModelFacts:
    """GPT-J and CodeGen: attention without biases and network read the same input through one norm; rotary positions."""
    hidden = config.size("n_embd", "hidden_size")
    heads = config.size("n_head", "num_attention_heads")
    mixer = Attention(heads, heads, per_head(config, hidden, heads))
    network = Mlp(config.size("n_inner", default=4 * hidden), gated=False, activation="gelu_new", bias=True)
    block = Block(config.size("n_layer", "num_hidden_layers", most=MAX_LAYERS), (mixer, network), 1)
    return decoder_facts(config, name, hidden, (block,), norm="layernorm")


def read_gpt_neox(config: Config, name: str, *, activation: str = "gelu", norms: int = 2) -> ModelFacts:
    """GPT-NeoX, Pythia and Phi-1 to Phi-2: attention and network read the same input, through a norm each or one for both."""
    hidden = config.size("hidden_size")
    mixer = head_attention(config, hidden, rotary=True)
    network = Mlp(config.size("intermediate_size"), gated=False, activation=activation, bias=True)
    block = Block(config.size("num_hidden_layers", most=MAX_LAYERS), (mixer, network), norms)
    return decoder_facts(config, name, hidden, (block,), norm="layernorm")


def read_starcoder2(config: Config, name: str) -> ModelFacts:
    """StarCoder2: GPT-2's layers with rotary positions and fewer key heads than query heads; embeddings are tied by default."""
    hidden = config.size("hidden_size")
    heads = config.size("num_attention_heads")
    mixer = Attention(
        heads, config.size("num_key_value_heads"), per_head(config, hidden, heads), qkv_bias=True, output_bias=True
    )
    network = Mlp(config.size("intermediate_size"), gated=False, activation="gelu", bias=True)
    block = Block(config.size("num_hidden_layers", most=MAX_LAYERS), (mixer, network), 2)
    return decoder_facts(config, name, hidden, (block,), tied=True, norm="layernorm")


def read_opt(config: Config, name: str) -> ModelFacts:
    """OPT and BioGPT; the table of positions has two rows before the first (transformers' `OPTLearnedPositionalEmbedding`).

    Raises:
        SpecError: embeddings are of another width than the layers, as in OPT-350m.
    """
    hidden = config.size("hidden_size")
    if config.size("word_embed_proj_dim", default=hidden) != hidden:
        raise config.wrong("word_embed_proj_dim", f"hidden_size {hidden}; embeddings of another width are not read")
    mixer = head_attention(config, hidden)
    network = Mlp(config.size("ffn_dim", "intermediate_size"), gated=False, activation="relu", bias=True)
    block = Block(config.size("num_hidden_layers", most=MAX_LAYERS), (mixer, network), 2)
    positions = config.size("max_position_embeddings") + 2
    return decoder_facts(config, name, hidden, (block,), tied=True, norm="layernorm", positions=positions)


def read_gpt_neo(config: Config, name: str) -> ModelFacts:
    """GPT-Neo: GPT-2's layers without biases of queries, keys and values, every second one with a window."""
    hidden, heads = config.size("hidden_size"), config.size("num_heads")
    layers = config.size("num_layers", most=MAX_LAYERS)
    mixers = {
        kind: Attention(heads, heads, per_head(config, hidden, heads), window=window, output_bias=True, rotary=False)
        for kind, window in (("global", 0), ("local", config.size("window_size", default=256)))
    }
    kinds = config.words("attention_layers", layers, tuple(mixers)) or [
        "local" if index % 2 else "global" for index in range(layers)
    ]
    network = Mlp(config.size("intermediate_size", default=4 * hidden), gated=False, activation="gelu_new", bias=True)
    blocks = group_layers(((mixers[kind], network), 2) for kind in kinds)
    positions = config.size("max_position_embeddings")
    return decoder_facts(config, name, hidden, blocks, tied=True, norm="layernorm", positions=positions)


def read_xglm(config: Config, name: str) -> ModelFacts:
    """XGLM: GPT-2's layers with positions that are no parameters."""
    hidden = config.size("d_model")
    mixer = head_attention(config, hidden, "attention_heads")
    network = Mlp(config.size("ffn_dim"), gated=False, activation="gelu", bias=True)
    block = Block(config.size("num_layers", most=MAX_LAYERS), (mixer, network), 2)
    return decoder_facts(config, name, hidden, (block,), tied=True, norm="layernorm")


def read_dbrx(config: Config, name: str) -> ModelFacts:
    """DBRX: attention with fewer key heads, and experts, whose fields are nested.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden, heads = config.size("d_model"), config.size("n_heads")
    attention, network = config.nested("attn_config"), config.nested("ffn_config")
    if attention is None or network is None:
        field = "ffn_config" if attention else "attn_config"
        raise config.wrong(field, "the configuration of a part of each layer")
    mixer = Attention(heads, attention.size("kv_n_heads"), per_head(config, hidden, heads))
    mixture = Experts(
        network.size("moe_num_experts"), network.size("moe_top_k"), network.size("ffn_hidden_size", default=3584)
    )
    block = Block(config.size("n_layers", most=MAX_LAYERS), (mixer, mixture), 2)
    return decoder_facts(config, name, hidden, (block,), norm="layernorm")
