"""Readers of models whose layers keep states of fixed size, most of them beside layers of attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

from ....features.errors import SpecError
from ..facts import Block, ModelFacts
from ..kernel_list import Part
from ..layers.attention import Attention
from ..layers.feed_forward import Experts, Linear, Mlp, Shared
from ..layers.linear_attention import DecayingAttention
from ..layers.state_space import GatedDelta, SelectiveScan, ShortConvolution, StateSpace
from .decoders import Traits, decoder_facts, experts, group_layers, latent_attention, network
from .fields import MAX_LAYERS, Config, per_head

_PLAIN = Traits()
_ALIASES = {
    "M": "mamba", "linear_attention": "mamba", "*": "attention", "full_attention": "attention", "-": "mlp", "E": "moe",
}  # fmt: skip
"""Names of a layer's kind in older and newer configurations, by the letter of a pattern or the word of a list."""


def _kinds(config: Config, layers: int, *known: str) -> list[str] | None:
    """The kind of each layer, from a list of words; None where there is none."""
    for field in ("layers_block_type", "layer_types"):
        words = (*known, *(alias for alias, word in _ALIASES.items() if word in known and len(alias) > 1))
        if (kinds := config.words(field, layers, words)) is not None:
            return [_ALIASES.get(kind, kind) for kind in kinds]
    return None


def _attention(
    config: Config, hidden: int, *, rotary: bool = True, head_norm: bool = False, inputs: int = 0
) -> Attention:
    heads = config.size("num_attention_heads")
    bias = config.flag("attention_bias", False)
    return Attention(
        heads, config.size("num_key_value_heads", default=heads), per_head(config, inputs or hidden, heads),
        rotary=rotary, qkv_bias=bias, output_bias=bias, norm_kind="rmsnorm" if head_norm else "", inputs=inputs,
    )  # fmt: skip


def _mamba2(config: Config, hidden: int) -> StateSpace:
    """Mamba-2 by the names of Bamba's configuration and those of Zamba2's.

    Raises:
        SpecError: a field is missing or wrong, or the heads do not make the inner channels.
    """
    inner = config.size("mamba_d_ssm", default=config.size("mamba_expand") * hidden)
    heads = config.size("mamba_n_heads", "n_mamba_heads")
    word = "mamba_headdim" if "mamba_headdim" in config else "mamba_d_head"
    shared_out = config.values.get(word) in (None, "auto")
    head_dim = inner // heads if shared_out else config.size(word)
    if heads * head_dim != inner:
        raise SpecError(
            f"{config.origin}: {heads} state-space heads of {head_dim} do not make {inner} channels",
            field="mamba_n_heads",
        )
    return StateSpace(
        heads, head_dim, config.size("mamba_d_state"), config.size("mamba_n_groups", "mamba_ngroups"),
        config.size("mamba_d_conv"), normed=config.flag("mamba_rms_norm", True),
    )  # fmt: skip


def read_bamba(config: Config, name: str) -> ModelFacts:
    """Bamba and Granite 4: Mamba-2 or attention in each layer, and a network or experts; Granite's has no positions by default.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden = config.size("hidden_size")
    layers = config.size("num_hidden_layers", most=MAX_LAYERS)
    kinds = _kinds(config, layers, "mamba", "attention")
    if kinds is None:
        chosen = config.numbers("attn_layer_indices")
        kinds = ["attention" if index in chosen else "mamba" for index in range(layers)]
    rotary = config.word("model_type", "") == "bamba" or config.word("position_embedding_type", "") == "rope"
    mixers: dict[str, Part] = {"mamba": _mamba2(config, hidden), "attention": _attention(config, hidden, rotary=rotary)}
    layers_of = ((mixers[kind], network(config, index, _PLAIN)) for index, kind in enumerate(kinds))
    return decoder_facts(config, name, hidden, group_layers((parts, 2) for parts in layers_of))


def read_falcon_h1(config: Config, name: str) -> ModelFacts:
    """Falcon-H1: Mamba-2 and attention read the same input in every layer, a network follows.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden = config.size("hidden_size")
    parts = (_mamba2(config, hidden), _attention(config, hidden), network(config, 0, _PLAIN))
    block = Block(config.size("num_hidden_layers", most=MAX_LAYERS), parts, 2)
    return decoder_facts(config, name, hidden, (block,))


def read_jamba(config: Config, name: str) -> ModelFacts:
    """Jamba: Mamba with attention in every so many-th layer, networks with experts in every so many-th, without positions.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden = config.size("hidden_size")
    period, offset = config.size("attn_layer_period"), config.size("attn_layer_offset", least=0)
    sparse, first = config.size("expert_layer_period"), config.size("expert_layer_offset", least=0)
    mamba = _mamba(
        config, hidden, config.size("mamba_expand") * hidden, "mamba_d_state", "mamba_d_conv", "mamba_dt_rank"
    )
    attention, dense = _attention(config, hidden, rotary=False), Mlp(config.size("intermediate_size"))
    count = config.size("num_experts", "num_local_experts", least=0)
    mixture = experts(config, count, config.size("intermediate_size"), _PLAIN) if count > 1 else dense
    layers = config.size("num_hidden_layers", most=MAX_LAYERS)
    pairs = (
        (attention if index % period == offset else mamba, mixture if index % sparse == first else dense)
        for index in range(layers)
    )
    return decoder_facts(config, name, hidden, group_layers((pair, 2) for pair in pairs))


def _mamba(config: Config, hidden: int, inner: int, state: str, positions: str, rank: str) -> SelectiveScan:
    """Mamba; the rank of its steps is a sixteenth of the width where it is left to the class."""
    shared_out = config.values.get(rank) in (None, "auto")
    return SelectiveScan(
        inner, config.size(state), ceil(hidden / 16) if shared_out else config.size(rank), config.size(positions),
        normed=config.word("model_type", "") != "mamba",
    )  # fmt: skip


def read_mamba(config: Config, name: str) -> ModelFacts:
    """Mamba and Falcon Mamba, which normalises what steers the scan."""
    hidden = config.size("hidden_size", "d_model")
    inner = config.size("intermediate_size", "d_inner", default=config.size("expand", default=2) * hidden)
    mixer = _mamba(config, hidden, inner, "state_size", "conv_kernel", "time_step_rank")
    block = Block(config.size("num_hidden_layers", "n_layer", most=MAX_LAYERS), (mixer,), 1)
    return decoder_facts(config, name, hidden, (block,), tied=True)


def read_mamba2(config: Config, name: str) -> ModelFacts:
    """Mamba-2."""
    hidden = config.size("hidden_size")
    heads, head_dim = config.size("num_heads"), config.size("head_dim")
    inner = config.size("expand", default=2) * hidden
    if heads * head_dim != inner:
        raise SpecError(
            f"{config.origin}: num_heads {heads} of head_dim {head_dim} do not make expand · hidden_size {inner}",
            field="num_heads",
        )
    mixer = StateSpace(
        heads, head_dim, config.size("state_size"), config.size("n_groups"), config.size("conv_kernel", default=4),
    )  # fmt: skip
    block = Block(config.size("num_hidden_layers", most=MAX_LAYERS), (mixer,), 1)
    return decoder_facts(config, name, hidden, (block,))


def read_zamba2(config: Config, name: str) -> ModelFacts:
    """Zamba2: Mamba-2 in every layer; hybrid ones run a transformer layer of shared weights before it, on the residual stream
    beside the embedding, with adapters of their own (arXiv 2411.15242).

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden = config.size("hidden_size")
    layers = config.size("num_hidden_layers", most=MAX_LAYERS)
    kinds = _kinds(config, layers, "mamba", "hybrid")
    if kinds is None:
        raise config.wrong("layers_block_type", "a list of mamba or hybrid for each layer")
    mamba = _mamba2(config, hidden)
    inner, rank = config.size("intermediate_size", default=4 * hidden), config.size("adapter_rank")
    share = min(1.0, config.size("num_mem_blocks") / max(1, kinds.count("hybrid")))
    attention = _attention(config, hidden, inputs=2 * hidden, rotary=config.flag("use_mem_rope", False))
    adapters = [Linear((rank, 2 * inner), name="mlp_adapter")]
    if config.flag("use_shared_attention_adapter", False):
        adapters += [Linear((rank, 2 * hidden), 2 * hidden, f"{word}_adapter") for word in ("query", "key", "value")]
    shared: tuple[Part, ...] = (Shared(attention, share), Shared(Mlp(inner, activation="gelu"), share))
    parts: dict[str, tuple[Part, ...]] = {"mamba": (mamba,), "hybrid": (*shared, *adapters, Linear((hidden,)), mamba)}
    norms = {"mamba": 1, "hybrid": 4}  # Before attention two, as its input is twice as wide.
    return decoder_facts(config, name, hidden, group_layers((parts[kind], norms[kind]) for kind in kinds), tied=True)


def read_kimi_linear(config: Config, name: str) -> ModelFacts:
    """Kimi Linear: the delta rule with a decay of each channel, or latent attention without positions; experts.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden = config.size("hidden_size")
    layers = config.size("num_hidden_layers", most=MAX_LAYERS)
    linear = config.nested("linear_attn_config") or config
    heads, head_dim = linear.size("num_heads", "linear_num_heads"), linear.size("head_dim", "linear_head_dim")
    kinds = config.words("layer_types", layers, ("linear_attention", "full_attention"))
    if kinds is None:
        # Numbers of layers begin with 1.
        latent = linear.numbers("full_attn_layers") or list(range(5, layers + 1, 4))
        kinds = ["full_attention" if index + 1 in latent else "linear_attention" for index in range(layers)]
    mixers: dict[str, Part] = {
        "full_attention": latent_attention(config),
        "linear_attention": GatedDelta(
            heads, heads, head_dim, head_dim, linear.size("short_conv_kernel_size", "linear_conv_kernel_dim", default=4),
            gate_rank=head_dim,
        ),
    }  # fmt: skip
    pairs = ((mixers[kind], network(config, index, _PLAIN)) for index, kind in enumerate(kinds))
    return decoder_facts(config, name, hidden, group_layers((pair, 2) for pair in pairs))


def read_minimax(config: Config, name: str) -> ModelFacts:
    """MiniMax-01: lightning attention, or attention in every so many-th layer, and experts.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden, layers = config.size("hidden_size"), config.size("num_hidden_layers", most=MAX_LAYERS)
    kinds = config.words("layer_types", layers, ("linear_attention", "full_attention"))
    if kinds is None:
        # Earlier files have a number for each layer, 1 for attention; the class begins with attention and takes turns.
        numbers = config.numbers("attn_type_list") or [1 - index % 2 for index in range(layers)]
        if len(numbers) != layers or set(numbers) - {0, 1}:
            raise config.wrong("attn_type_list", f"0 or 1 for each of the {layers} layers")
        kinds = ["full_attention" if number else "linear_attention" for number in numbers]
    attention = _attention(config, hidden)
    mixers: dict[str, Part] = {
        "full_attention": attention,
        "linear_attention": DecayingAttention(attention.heads, attention.head_dim, attention.head_dim),
    }
    pairs = ((mixers[kind], network(config, index, _PLAIN)) for index, kind in enumerate(kinds))
    return decoder_facts(config, name, hidden, group_layers((pair, 2) for pair in pairs))


def read_xlstm(config: Config, name: str) -> ModelFacts:
    """An xLSTM of matrix memories alone: mLSTM and a gated network in every layer.

    Raises:
        SpecError: a field is missing or wrong, or heads do not share channels out.
    """
    hidden, heads = config.size("hidden_size", "embedding_dim"), config.size("num_heads")
    key, value = (
        ceil(hidden * config.number(f"{word}_dim_factor", default) / 64) * 64
        for word, default in (("qk", 0.5), ("v", 1.0))
    )
    if key % heads or value % heads:
        raise SpecError(
            f"{config.origin}: {heads} heads do not share out {key} channels of keys and {value} of values",
            field="num_heads",
        )
    step = config.size("ffn_round_up_to_multiple_of", default=64)
    inner = ceil(hidden * config.number("ffn_proj_factor", 2.667) / step) * step
    bias = config.flag("use_bias", False)
    parts: tuple[Part, ...] = (
        DecayingAttention(heads, key // heads, value // heads, gates=2, bias=bias), Mlp(inner, bias=bias)
    )  # fmt: skip
    block = Block(config.size("num_hidden_layers", "num_blocks", most=MAX_LAYERS), parts, 2)
    return decoder_facts(config, name, hidden, (block,))


def read_lfm2(config: Config, name: str) -> ModelFacts:
    """LFM2: short convolutions or attention in each layer, and a network or experts behind the first dense ones.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden = config.size("hidden_size")
    layers = config.size("num_hidden_layers", most=MAX_LAYERS)
    kinds = _kinds(config, layers, "conv", "attention")
    if kinds is None:
        chosen = config.numbers("full_attn_idxs")
        kinds = ["attention" if index in chosen else "conv" for index in range(layers)]
    mixers: dict[str, Part] = {
        "conv": ShortConvolution(hidden, config.size("conv_L_cache"), config.flag("conv_bias", False)),
        "attention": _attention(config, hidden, head_norm=True),
    }
    inner = config.size("block_ff_dim", "intermediate_size")
    if config.flag("block_auto_adjust_ff_dim", True):
        # Two thirds as wide, as gated networks are, rounded up (transformers' `Lfm2MLP`).
        step, factor = config.size("block_multiple_of", default=256), config.number("block_ffn_dim_multiplier", 1.0)
        inner = ceil(int(factor * int(2 * inner / 3)) / step) * step
    dense = config.word("model_type", "") == "lfm2"
    pairs = (
        (mixers[kind], Mlp(inner) if dense else network(config, index, _PLAIN)) for index, kind in enumerate(kinds)
    )
    return decoder_facts(config, name, hidden, group_layers((pair, 2) for pair in pairs), tied=True)


def read_nemotron_h(config: Config, name: str) -> ModelFacts:
    """Nemotron-H: each layer is one part, by a letter of `hybrid_override_pattern` or a word of `layers_block_type`.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden = config.size("hidden_size")
    heads = config.size("num_attention_heads")
    makers: Mapping[str, Callable[[], Part]] = {
        "mamba": lambda: StateSpace(
            config.size("mamba_num_heads"), config.size("mamba_head_dim"), config.size("ssm_state_size"),
            config.size("n_groups"), config.size("conv_kernel", default=4),
        ),
        "attention": lambda: Attention(
            heads, config.size("num_key_value_heads", default=heads),
            config.size("attention_head_dim", "head_dim", default=hidden // heads), rotary=False,
        ),
        "mlp": lambda: Mlp(config.size("intermediate_size"), gated=False, activation="relu"),
        "moe": lambda: Experts(
            config.size("n_routed_experts"), config.size("num_experts_per_tok"), config.size("moe_intermediate_size"),
            shared=config.size("moe_shared_expert_intermediate_size", default=0, least=0), gated=False,
            latent=config.size("moe_latent_size", default=0, least=0),
        ),
    }  # fmt: skip
    pattern = config.word("hybrid_override_pattern", "")
    kinds = [_ALIASES.get(letter, "") for letter in pattern]
    if not pattern and (listed_kinds := config.values.get("layers_block_type")) and isinstance(listed_kinds, list):
        kinds = _kinds(config, len(listed_kinds), *makers) or []
    if not kinds or len(kinds) > MAX_LAYERS or set(kinds) - set(makers):
        raise config.wrong(
            "hybrid_override_pattern", "a letter per layer: M state space, * attention, - network, E experts"
        )
    parts = {kind: makers[kind]() for kind in dict.fromkeys(kinds)}
    return decoder_facts(config, name, hidden, group_layers(((parts[kind],), 1) for kind in kinds))
