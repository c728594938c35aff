"""Readers of decoders whose layers are attention and a feed-forward network: what their configurations say, by architecture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from ....features.errors import SpecError
from ..facts import Block, ModelFacts, Product
from ..kernel_list import Part
from ..layers.attention import Attention
from ..layers.feed_forward import Experts, Linear, Mlp, Streams
from ..layers.latent_attention import IndexedLatentAttention, LatentAttention
from ..layers.state_space import GatedDelta
from .fields import MAX_LAYERS, Config, per_head, quantisation

_SLIDING, _FULL, _LINEAR, _CHUNKED = "sliding_attention", "full_attention", "linear_attention", "chunked_attention"
_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Names of the number of routed experts."""
_HEAD_NORMS = ("use_qk_norm", "qk_layernorm")
"""Names of the switch that normalises query and key heads."""
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
"""Names of the most positions that a model was made for."""
_CHUNKS = "attention within chunks is estimated as a sliding window of a chunk's length"


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
        norm: Kind of the normalisations.
        gated: Whether a second product up gates the first of a dense network.
        shared_expert: Whether experts have a shared one of their size beside them.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    head_norm: bool = False
    norms: int = 2
    window_every: int = 0
    tied: bool = False
    sinks: bool = False
    gated_attention: bool = False
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    gated: bool = True
    shared_expert: bool = False


TRAITS = {
    "apertus": Traits(gated=False, head_norm=True),
    "arcee": Traits(gated=False),
    "baichuan": Traits(),
    "bailing_moe": Traits(),
    "cohere": Traits(norms=1, norm="layernorm", tied=True),
    "cohere2": Traits(norms=1, norm="layernorm", tied=True, window_every=4),
    "deepseek": Traits(),
    "dots1": Traits(head_norm=True),
    "ernie4_5": Traits(tied=True),
    "ernie4_5_moe": Traits(tied=True),
    "exaone": Traits(),
    "exaone4": Traits(head_norm=True, window_every=4),
    "glm": Traits(qkv_bias=True),
    "glm4": Traits(qkv_bias=True, norms=4),
    "glm4_moe": Traits(),
    "granite": Traits(),
    "granitemoe": Traits(),
    "granitemoeshared": Traits(),
    "helium": Traits(),
    "hunyuan_v1_dense": Traits(head_norm=True),
    "hunyuan_v1_moe": Traits(head_norm=True, shared_expert=True),
    "internlm2": Traits(),
    "internlm3": Traits(),
    "llama": Traits(),
    "llama4_text": Traits(shared_expert=True),
    "nemotron": Traits(norm="layernorm", gated=False),
    "olmo": Traits(norm="layernorm"),
    "olmo2": Traits(head_norm=True),
    "olmo3": Traits(head_norm=True, window_every=4),
    "olmoe": Traits(head_norm=True),
    "persimmon": Traits(qkv_bias=True, output_bias=True, norm="layernorm", gated=False),
    "phimoe": Traits(qkv_bias=True, output_bias=True, norm="layernorm"),
    "seed_oss": Traits(qkv_bias=True),
    "smollm3": Traits(tied=True),
    "stablelm": Traits(norm="layernorm"),
    "minicpm": Traits(tied=True),
    "ministral": Traits(window_every=1),
    "mistral": Traits(window_every=1),
    "minimax_m2": Traits(head_norm=True),
    "mixtral": Traits(window_every=1),
    "qwen2": Traits(qkv_bias=True),
    "qwen2_moe": Traits(qkv_bias=True),
    "qwen3": Traits(head_norm=True),
    "qwen3_moe": Traits(head_norm=True),
    "gemma": Traits(tied=True),
    "gemma2": Traits(norms=4, window_every=2, tied=True),
    "vaultgemma": Traits(window_every=2, tied=True),
    "gemma3_text": Traits(norms=4, head_norm=True, window_every=6, tied=True),
    "phi3": Traits(window_every=1),
    "gpt_oss": Traits(qkv_bias=True, output_bias=True, window_every=2, sinks=True),
    "qwen3_next": Traits(head_norm=True, gated_attention=True),
    "qwen3_5_text": Traits(head_norm=True, gated_attention=True),
    "qwen3_5_moe_text": Traits(head_norm=True, gated_attention=True),
}
"""By `model_type`. Source: the `modeling_*.py` of each in transformers; of baichuan, bailing_moe, deepseek, internlm2,
internlm3 and minicpm in their repositories on huggingface.co."""


def read_decoder(config: Config, name: str, traits: Traits) -> ModelFacts:
    """A decoder whose configuration uses the names of Llama's.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden = config.size("hidden_size")
    layers = config.size("num_hidden_layers", "num_layers", most=MAX_LAYERS)
    mixers = _mixers(config, hidden, layers, traits)
    networks = [network(config, index, traits) for index in range(layers)]
    norms = 1 if config.flag("use_parallel_residual", False) else traits.norms
    blocks = group_layers([(pair, norms) for pair in zip(mixers, networks, strict=True)])
    notes = _ahead(config) + ((_CHUNKS,) if "attention_chunk_size" in config else ())
    return decoder_facts(config, name, hidden, blocks, tied=traits.tied, norm=traits.norm, notes=notes)


def read_deepseek(config: Config, name: str, traits: Traits) -> ModelFacts:
    """DeepSeek-V2 to V3.2: latent attention, and experts after the first dense layers.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden = config.size("hidden_size")
    layers = config.size("num_hidden_layers", most=MAX_LAYERS)
    mixer = latent_attention(config)
    parts: list[tuple[tuple[Part, ...], int]] = [
        ((mixer, network(config, index, traits)), traits.norms) for index in range(layers)
    ]
    return decoder_facts(config, name, hidden, group_layers(parts), notes=_ahead(config))


def read_mllama(config: Config, name: str) -> ModelFacts:
    """Llama 3.2 with images: layers of Llama, and some in place of them that look at the positions of an image.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden, layers = config.size("hidden_size"), config.size("num_hidden_layers", most=MAX_LAYERS)
    vision, crossed = config.nested("vision_config"), config.numbers("cross_attention_layers")
    if vision is None:
        raise config.wrong(
            "vision_config", "the configuration of images, whose size says how many positions layers look at"
        )
    tiles = vision.size("max_num_tiles", default=4)
    keys = tiles * ((vision.size("image_size", default=448) // vision.size("patch_size", default=14)) ** 2 + 1)
    plain = _mixers(config, hidden, layers, TRAITS["llama"])[0]
    if not isinstance(plain, Attention):
        raise config.wrong("layer_types", "attention in each layer")
    to_image = replace(plain, keys=keys, rotary=False, norm_kind="rmsnorm")
    networks = [network(config, index, TRAITS["llama"]) for index in range(layers)]
    blocks = group_layers(((to_image if index in crossed else plain, networks[index]), 2) for index in range(layers))
    note = f"each sequence has an image of {tiles} tiles, {keys} positions that {len(crossed)} layers look at"
    return decoder_facts(config, name, hidden, blocks, notes=(note,))


def read_gemma3n(config: Config, name: str) -> ModelFacts:
    """Gemma 3n: Gemma 3's layers on one of four residual streams, beside products of low rank and embeddings of each layer; the
    last layers read keys and values of earlier ones.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden, layers = config.size("hidden_size"), config.size("num_hidden_layers", most=MAX_LAYERS)
    streams, width = config.size("altup_num_inputs", default=4), config.size("hidden_size_per_layer_input", default=256)
    laurel = Linear((config.size("laurel_rank", default=64), hidden), name="laurel")
    embedded = Linear((width, hidden), name="layer_embedding")
    shared = layers - config.size("num_kv_shared_layers", default=15, least=0)
    traits = Traits(head_norm=True, window_every=5)
    parts: list[tuple[tuple[Part, ...], int]] = []
    for index, mixer in enumerate(_mixers(config, hidden, layers, traits)):
        if isinstance(mixer, Attention):
            mixer = replace(mixer, owns_keys=index < shared)
        parts.append(((Streams(streams), mixer, laurel, network(config, index, traits), embedded), 6))
    others = (streams - 1) * hidden
    return decoder_facts(
        config, name, hidden, group_layers(parts), tied=True,
        layer_table=(config.size("vocab_size_per_layer_input", default=262144), layers * width),
        front=(
            Product("layer_projection", 1, layers * width, hidden, per_position=True, bias=False),
            Product("streams", 1, others, hidden, per_position=True, bias=False),
        ),
        tail=(Product("streams", 1, others, hidden, per_position=True, bias=False),),
        notes=("activations that the first layers leave out are estimated as those of the others",),
    )  # fmt: skip


def latent_attention(config: Config) -> LatentAttention:
    """Latent attention, to the positions that an indexer chooses where there is one (DeepSeek-V3.2).

    Raises:
        SpecError: a field is missing or wrong.
    """
    sizes = {
        "heads": config.size("num_attention_heads"), "query_rank": config.size("q_lora_rank", default=0, least=0),
        "kv_rank": config.size("kv_lora_rank"), "nope_dim": config.size("qk_nope_head_dim"),
        "rope_dim": config.size("qk_rope_head_dim"), "value_dim": config.size("v_head_dim"),
    }  # fmt: skip
    if "index_topk" not in config:
        return LatentAttention(**sizes)
    return IndexedLatentAttention(
        **sizes, index_heads=config.size("index_n_heads"), index_dim=config.size("index_head_dim"),
        chosen=config.size("index_topk"),
    )  # fmt: skip


def _ahead(config: Config) -> tuple[str, ...]:
    if not config.size("num_nextn_predict_layers", default=0, least=0):
        return ()
    return ("the layers that predict several tokens ahead are left out",)


def decoder_facts(
    config: Config, name: str, hidden: int, blocks: tuple[Block, ...], *, tied: bool = False,
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm", **others: Any,
) -> ModelFacts:  # fmt: skip
    """The facts that all decoders' configurations say alike."""
    weights, experts = quantisation(config)
    others.setdefault("max_length", config.size(*_LENGTHS) if any(field in config for field in _LENGTHS) else None)
    return ModelFacts(
        name=name, architecture=config.word("model_type", ""), hidden=hidden, vocabulary=config.size("vocab_size"),
        blocks=blocks, norm=norm, dtype=config.dtype, weights=weights, experts=experts,
        tied_embeddings=config.flag("tie_word_embeddings", tied), **others,
    )  # fmt: skip


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
    bias = config.flag("attention_bias", config.flag("use_qkv_bias", traits.qkv_bias))
    head_norm = traits.head_norm or any(config.flag(name, False) for name in _HEAD_NORMS)
    kv_heads = config.size("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise SpecError(
            f"{config.origin}: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}",
            field="num_key_value_heads",
        )
    kinds: dict[str, Part] = {
        kind: Attention(
            heads, kv_heads, per_head(config, hidden, heads), window=width, qkv_bias=bias,
            output_bias=config.flag("attention_out_bias", traits.output_bias), norm_kind=traits.norm if head_norm else "",
            gated=traits.gated_attention, sinks=traits.sinks,
        )
        for kind, width in (
            (_FULL, 0), (_SLIDING, window), (_CHUNKED, config.size("attention_chunk_size", default=0, least=0)),
        )
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
    if "attention_chunk_size" in config:
        # A layer without rotary positions looks at all; the default is every fourth (transformers' `Llama4TextConfig`).
        rotary = config.numbers("no_rope_layers")
        rotary = rotary if len(rotary) == layers else [(index + 1) % 4 for index in range(layers)]
        return [_CHUNKED if word else _FULL for word in rotary]
    if not _window(config, traits):
        return [_FULL] * layers
    if config.flag("use_sliding_window", False) and not traits.window_every:
        first = config.size("max_window_layers", default=0, least=0)
        return [_SLIDING if index >= first else _FULL for index in range(layers)]
    every = config.size("sliding_window_pattern", default=traits.window_every)
    return [_FULL if every > 1 and (index + 1) % every == 0 else _SLIDING for index in range(layers)]


def network(config: Config, index: int, traits: Traits) -> Part:
    """The feed-forward part of a layer: experts in every so many-th behind the first dense ones, but those listed as dense.

    Raises:
        SpecError: a field is missing or wrong.
    """
    if count := config.size(*_COUNTS, default=0, least=0):
        first = config.size("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers", default=0, least=0)
        every = config.size("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", default=1)
        if index >= first and (index + 1) % every == 0 and index not in config.numbers("mlp_only_layers"):
            inner = config.size("moe_intermediate_size", "intermediate_size")
            return experts(config, count, inner, traits)
    activation = config.word("hidden_activation", config.word("hidden_act", "silu"))
    gate = "gelu" if activation.startswith("gelu") else "silu"
    return Mlp(
        config.size("shared_intermediate_size", "intermediate_size_mlp", "intermediate_size"), traits.gated,
        gate if traits.gated else "relu", bias=config.flag("mlp_bias", False),
    )  # fmt: skip


def experts(config: Config, count: int, inner: int, traits: Traits) -> Experts:
    """A mixture of experts of so many inner channels each, with what the configuration says of shared ones.

    Raises:
        SpecError: a field is missing or wrong.
    """
    top_k = config.size("num_experts_per_tok", "experts_per_token", "moe_k", "moe_topk", "num_experts_per_token")
    if top_k > count:
        raise SpecError(
            f"{config.origin}: num_experts_per_tok {top_k} is more than the {count} experts",
            field="num_experts_per_tok",
        )
    names = ("n_shared_experts", "moe_num_shared_experts", "num_shared_experts", "num_shared_expert")
    alike = config.size(*names, default=int(traits.shared_expert), least=0)
    shared = config.size("shared_expert_intermediate_size", "shared_intermediate_size", default=inner * alike, least=0)
    return Experts(count, top_k, inner, shared=shared, bias=config.word("model_type", "") == "gpt_oss",
                   shared_gate=bool(shared) and "shared_expert_intermediate_size" in config)  # fmt: skip


def head_attention(
    config: Config, hidden: int, *names: str, causal: bool = True, rotary: bool = False, keys: int | None = 0
) -> Attention:
    """Attention with as many key heads as query heads, and biases."""
    heads = config.size(*(names or ("num_attention_heads",)))
    head_dim = per_head(config, hidden, heads)
    return Attention(
        heads, heads, head_dim, causal=causal, rotary=rotary, keys=keys, qkv_bias=True, output_bias=True
    )  # fmt: skip
