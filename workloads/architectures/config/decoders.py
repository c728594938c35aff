"""Readers of decoders whose layers are attention and a feed-forward network: what their configurations say, by architecture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ....features.errors import SpecError
from ..facts import Block, ModelFacts
from ..kernel_list import Part
from ..layers.attention import Attention
from ..layers.feed_forward import Experts, Mlp
from ..layers.latent_attention import LatentAttention
from ..layers.state_space import GatedDelta
from .fields import MAX_LAYERS, Config, per_head, quantisation

_SLIDING, _FULL, _LINEAR = "sliding_attention", "full_attention", "linear_attention"


@dataclass(frozen=True, slots=True)
class Traits:
    """What an architecture's code decides and its configuration does not say.

    Attributes:
        qkv_bias: Whether projections of queries, keys and values have a bias, where `attention_bias` does not say.
        output_bias: The same of the output projection.
        head_norm: Whether query and key heads are normalised.
        norms: Normalisations in a layer.
        window_every: Of so many layers the last has no window; 1: all have it; 0: none has.
        tied: Whether embeddings are tied where the configuration does not say.
        sinks: Whether heads have sinks.
        gated_attention: Whether a gate multiplies the result of attention.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    head_norm: bool = False
    norms: int = 2
    window_every: int = 0
    tied: bool = False
    sinks: bool = False
    gated_attention: bool = False


TRAITS = {
    "llama": Traits(),
    "mistral": Traits(window_every=1),
    "minimax_m2": Traits(head_norm=True),
    "mixtral": Traits(window_every=1),
    "qwen2": Traits(qkv_bias=True),
    "qwen2_moe": Traits(qkv_bias=True),
    "qwen3": Traits(head_norm=True),
    "qwen3_moe": Traits(head_norm=True),
    "gemma": Traits(tied=True),
    "gemma2": Traits(norms=4, window_every=2, tied=True),
    "gemma3_text": Traits(norms=4, head_norm=True, window_every=6, tied=True),
    "phi3": Traits(window_every=1),
    "gpt_oss": Traits(qkv_bias=True, output_bias=True, window_every=2, sinks=True),
    "qwen3_next": Traits(head_norm=True, gated_attention=True),
    "qwen3_5_text": Traits(head_norm=True, gated_attention=True),
    "qwen3_5_moe_text": Traits(head_norm=True, gated_attention=True),
}
"""By `model_type`. Source: the `modeling_*.py` of each in transformers."""


def read_decoder(config: Config, name: str, traits: Traits) -> ModelFacts:
    """A decoder whose configuration uses the names of Llama's.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden = config.size("hidden_size")
    layers = config.size("num_hidden_layers", most=MAX_LAYERS)
    mixers = _mixers(config, hidden, layers, traits)
    networks = [_network(config, index) for index in range(layers)]
    blocks = group_layers([(pair, traits.norms) for pair in zip(mixers, networks, strict=True)])
    return decoder_facts(config, name, hidden, blocks, tied=traits.tied)


def read_deepseek(config: Config, name: str, traits: Traits) -> ModelFacts:
    """DeepSeek-V2 and V3: latent attention, and experts after the first dense layers.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden = config.size("hidden_size")
    layers = config.size("num_hidden_layers", most=MAX_LAYERS)
    mixer = LatentAttention(
        heads=config.size("num_attention_heads"), query_rank=config.size("q_lora_rank", default=0),
        kv_rank=config.size("kv_lora_rank"), nope_dim=config.size("qk_nope_head_dim"), rope_dim=config.size("qk_rope_head_dim"),
        value_dim=config.size("v_head_dim"),
    )  # fmt: skip
    dense = config.size("first_k_dense_replace", default=0, least=0, most=layers)
    inner = config.size("moe_intermediate_size")
    experts = _experts(
        config,
        config.size("n_routed_experts"),
        inner,
        shared=inner * config.size("n_shared_experts", default=0, least=0),
    )
    network = Mlp(config.size("intermediate_size"))
    parts: list[tuple[tuple[Part, ...], int]] = [
        ((mixer, network if index < dense else experts), traits.norms) for index in range(layers)
    ]
    notes = (
        ("the layers that predict several tokens ahead are left out",) if "num_nextn_predict_layers" in config else ()
    )
    return decoder_facts(config, name, hidden, group_layers(parts), notes=notes)


def decoder_facts(
    config: Config, name: str, hidden: int, blocks: tuple[Block, ...], *, tied: bool = False,
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm", **others: Any,
) -> ModelFacts:  # fmt: skip
    """The facts that all decoders' configurations say alike."""
    weights, experts = quantisation(config)
    return ModelFacts(
        name=name, architecture=config.word("model_type", ""), hidden=hidden, vocabulary=config.size("vocab_size"),
        blocks=blocks, norm=norm, dtype=config.dtype, weights=weights, experts=experts,
        tied_embeddings=config.flag("tie_word_embeddings", tied),
        max_length=config.size("max_position_embeddings", "n_positions") if _limited(config) else None, **others,
    )  # fmt: skip


def _limited(config: Config) -> bool:
    return "max_position_embeddings" in config or "n_positions" in config


def group_layers(layers: Iterable[tuple[tuple[Part, ...], int]]) -> tuple[Block, ...]:
    """Layers (their parts and number of norms) as blocks of those alike, in the order of their first."""
    counts: dict[tuple[tuple[Part, ...], int], int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(Block(count, parts, norms) for (parts, norms), count in counts.items())


def _mixers(config: Config, hidden: int, layers: int, traits: Traits) -> list[Part]:
    """What mixes positions in each layer: attention with and without window, or linear attention."""
    heads = config.size("num_attention_heads")
    window = _window(config, traits)
    bias = config.flag("attention_bias", traits.qkv_bias)
    kv_heads = config.size("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise SpecError(
            f"{config.origin}: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}",
            field="num_key_value_heads",
        )
    kinds: dict[str, Part] = {
        kind: Attention(
            heads, kv_heads, per_head(config, hidden, heads), window=width, qkv_bias=bias,
            output_bias=traits.output_bias, norm_kind="rmsnorm" if traits.head_norm else "", gated=traits.gated_attention,
            sinks=traits.sinks,
        )
        for kind, width in ((_FULL, 0), (_SLIDING, window))
    }  # fmt: skip
    if "linear_num_value_heads" in config:
        kinds[_LINEAR] = GatedDelta(
            config.size("linear_num_key_heads"), config.size("linear_num_value_heads"), config.size("linear_key_head_dim"),
            config.size("linear_value_head_dim"), config.size("linear_conv_kernel_dim"),
        )  # fmt: skip
    words = config.words("layer_types", layers, tuple(kinds)) or _pattern(
        config, layers, traits, linear=_LINEAR in kinds
    )
    if _SLIDING in words and not window:
        raise config.wrong("sliding_window", "the window of the layers that layer_types calls sliding_attention")
    return [kinds[word] for word in words]


def _window(config: Config, traits: Traits) -> int:
    """The sliding window, 0 where there is none; Qwen2 and Qwen3 name one that `use_sliding_window` switches on."""
    if "sliding_window" not in config or not config.flag(
        "use_sliding_window", "layer_types" in config or bool(traits.window_every)
    ):
        return 0
    return config.size("sliding_window")


def _pattern(config: Config, layers: int, traits: Traits, *, linear: bool) -> list[str]:
    """Kinds of layers where `layer_types` does not list them."""
    if linear:
        every = config.size("full_attention_interval", default=4)
        return [_FULL if (index + 1) % every == 0 else _LINEAR for index in range(layers)]
    if not _window(config, traits):
        return [_FULL] * layers
    if config.flag("use_sliding_window", False) and not traits.window_every:
        first = config.size("max_window_layers", default=0, least=0)
        return [_SLIDING if index >= first else _FULL for index in range(layers)]
    every = config.size("sliding_window_pattern", default=traits.window_every)
    return [_FULL if every > 1 and (index + 1) % every == 0 else _SLIDING for index in range(layers)]


def _network(config: Config, index: int) -> Part:
    """The feed-forward part of a layer: experts in every `decoder_sparse_step`-th but those listed as dense."""
    count = next((name for name in ("num_local_experts", "num_experts", "n_routed_experts") if name in config), None)
    if count is not None:
        sparse = (index + 1) % config.size("decoder_sparse_step", default=1) == 0
        if sparse and index not in config.numbers("mlp_only_layers"):
            inner = config.size("moe_intermediate_size", "intermediate_size")
            return _experts(
                config,
                config.size(count),
                inner,
                shared=config.size("shared_expert_intermediate_size", default=0, least=0),
            )
    activation = config.word("hidden_activation", config.word("hidden_act", "silu"))
    return Mlp(config.size("intermediate_size"), activation="gelu" if activation.startswith("gelu") else "silu",
               bias=config.flag("mlp_bias", False))  # fmt: skip


def _experts(config: Config, count: int, inner: int, *, shared: int) -> Experts:
    top_k = config.size("num_experts_per_tok", "experts_per_token")
    if top_k > count:
        raise SpecError(
            f"{config.origin}: num_experts_per_tok {top_k} is more than the {count} experts",
            field="num_experts_per_tok",
        )
    is_deepseek = "kv_lora_rank" in config
    return Experts(count, top_k, inner, shared=shared, shared_gate=bool(shared) and not is_deepseek,
                   bias=config.word("model_type", "") == "gpt_oss")  # fmt: skip
