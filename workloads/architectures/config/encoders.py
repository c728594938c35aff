"""Readers of models with an encoder: of text, images and sound, alone or beside a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from ....features.errors import listed
from ..facts import Block, ModelFacts, Product
from ..kernel_list import Part
from ..layers.attention import Attention, DisentangledAttention, GatedBiases, GlobalWindow
from ..layers.feed_forward import Convolution, Mlp, Shared
from .decoders import decoder_facts, group_layers, head_attention
from .fields import MAX_LAYERS, Config, per_head

_NO_NEXT = "the vocabulary projection is left out: an encoder ends in its last layer"
NO_HEAD = "what follows the last layer, as a classifier, is left out"
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_new", "silu": "silu", "swish": "silu", "tanh": "tanh"}
"""Kernels by the words of configurations."""


def encoder_layers(config: Config, hidden: int) -> Block:
    """Layers of attention to all positions and a network, which is gated in DINOv2's largest."""
    mixer = head_attention(config, hidden, "num_attention_heads", "n_heads", causal=False)
    ratio = config.size("mlp_ratio", default=4)
    inner = config.size("intermediate_size", "hidden_dim", default=ratio * hidden if "mlp_ratio" in config else None)
    gated = config.flag("use_swiglu_ffn", False)
    if gated:
        # Two thirds as wide, a multiple of 8 (transformers' `Dinov2SwiGLUFFN`).
        inner = -(-int(inner * 2 / 3) // 8) * 8
    network = Mlp(inner, gated=gated, activation="gelu", bias=True)
    return Block(config.size("num_hidden_layers", "n_layers", most=MAX_LAYERS), (mixer, network), 2)


def read_bert(
    config: Config, name: str, *, unused: int = 0, types: int = 2, pooler: bool = True, factored: bool = False
) -> ModelFacts:
    """BERT and encoders like it; the first `unused` rows of the table of positions belong to none.

    With `factored` the embedding may be narrower than the layers, as in ELECTRA and ALBERT, whose layers are copies of one.
    MPNet's layers have biases by relative position in common.
    """
    hidden = config.size("hidden_size")
    rows = config.size("max_position_embeddings", least=unused + 1)
    encoded = encoder_layers(config, hidden)
    share = config.size("num_hidden_groups", default=encoded.count) / encoded.count
    if share < 1:
        encoded = replace(encoded, parts=tuple(Shared(part, share) for part in encoded.parts))
    blocks: tuple[Block, ...] = (encoded,)
    mixer, network = encoded.parts
    buckets = config.size("relative_attention_num_buckets", default=0, least=0)
    if buckets and isinstance(mixer, Attention):
        first, later = ((replace(mixer, biases=biases), network) for biases in (buckets, 0))
        blocks = group_layers([(first, 2), *[(later, 2)] * (encoded.count - 1)])
    width = config.size("embedding_size", default=hidden) if factored else hidden
    if width != hidden:
        front = (Product("embedding_projection", 1, hidden, width, per_position=True),)
        blocks = (replace(blocks[0], front=front), *blocks[1:])
    return ModelFacts(
        name=name, architecture=config.word("model_type", ""), hidden=hidden, vocabulary=config.size("vocab_size"),
        embedding=width, blocks=blocks, norm="layernorm", dtype=config.dtype, generates=False,
        positions=rows + config.size("type_vocab_size", default=types, least=0), max_length=rows - unused,
        tail=(Product("pooler", 1, hidden, hidden),) if pooler else (), notes=(_NO_NEXT,),
    )  # fmt: skip


def read_modernbert(config: Config, name: str) -> ModelFacts:
    """ModernBERT: rotary positions, windows in all layers but every so many-th, gated networks, no biases.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden, layers = config.size("hidden_size"), config.size("num_hidden_layers", most=MAX_LAYERS)
    heads, every = config.size("num_attention_heads"), config.size("global_attn_every_n_layers", default=3)
    kinds = config.words("layer_types", layers, ("full_attention", "sliding_attention")) or [
        "sliding_attention" if index % every else "full_attention" for index in range(layers)
    ]
    bias = config.flag("attention_bias", False)
    mixers: dict[str, Part] = {
        kind: Attention(
            heads, heads, per_head(config, hidden, heads), window=window, causal=False, qkv_bias=bias, output_bias=bias
        )
        for kind, window in (("full_attention", 0), ("sliding_attention", config.size("local_attention", default=128)))
    }
    network = Mlp(config.size("intermediate_size"), True, "gelu", bias=config.flag("mlp_bias", False))
    return ModelFacts(
        name=name, architecture="modernbert", hidden=hidden, vocabulary=config.size("vocab_size"),
        blocks=group_layers(((mixers[kind], network), 2) for kind in kinds), norm="layernorm", dtype=config.dtype,
        generates=False, end_norms=2, max_length=config.size("max_position_embeddings"), notes=(_NO_NEXT,),
    )  # fmt: skip


def read_distilbert(config: Config, name: str) -> ModelFacts:
    """DistilBERT: BERT without types of tokens and without a pooler."""
    hidden, length = config.size("dim"), config.size("max_position_embeddings")
    return ModelFacts(
        name=name, architecture="distilbert", hidden=hidden, vocabulary=config.size("vocab_size"),
        blocks=(encoder_layers(config, hidden),), norm="layernorm", dtype=config.dtype, generates=False, positions=length,
        max_length=length, notes=(_NO_NEXT,),
    )  # fmt: skip


def _stack(config: Config, side: str, *mixers: Attention) -> Block:
    """Layers of an encoder or a decoder by the names of BART's configuration."""
    network = Mlp(config.size(f"{side}_ffn_dim"), False, _activation(config, "activation_function", "gelu"), bias=True)
    return Block(config.size(f"{side}_layers", most=MAX_LAYERS), (*mixers, network), len(mixers) + 1)


def _activation(config: Config, field: str, default: str) -> str:
    word = config.word(field, default)
    if word not in _ACTIVATIONS:
        raise config.wrong(field, f"one of {listed(_ACTIVATIONS)}")
    return _ACTIVATIONS[word]


def _with_encoder(decoder: ModelFacts, blocks: tuple[Block, ...], **others: Any) -> ModelFacts:
    """A decoder beside an encoder that is like it but for its layers and some others of its facts."""
    encoder = replace(decoder, blocks=blocks, generates=False, tied_embeddings=False, **others)
    return replace(decoder, encoder=encoder)


def _bart(config: Config, name: str, keys: int | None, of_encoder: Mapping[str, Any], **of_decoder: Any) -> ModelFacts:
    """Both stacks by the names of BART's configuration; the decoder looks at `keys` positions of the encoder."""
    hidden = config.size("d_model")
    mixers = [head_attention(config, hidden, "decoder_attention_heads", keys=count) for count in (0, keys)]
    blocks = (_stack(config, "decoder", *mixers),)
    decoder = decoder_facts(config, name, hidden, blocks, tied=True, norm="layernorm", **of_decoder)
    encoded = _stack(config, "encoder", head_attention(config, hidden, "encoder_attention_heads", causal=False))
    return _with_encoder(decoder, (encoded,), **of_encoder)


def read_bart(config: Config, name: str, *, unused: int = 0, end_norms: int = 1) -> ModelFacts:
    """BART and models like it, of which both stacks have a table of positions; its first `unused` rows belong to none."""
    rows = config.size("max_position_embeddings") + unused
    return _bart(config, name, None, {}, positions=rows, end_norms=end_norms)


def read_whisper(config: Config, name: str) -> ModelFacts:
    """Whisper: an encoder of sound behind two convolutions, of which the second halves the positions, and a decoder."""
    hidden, length = config.size("d_model"), config.size("max_target_positions")
    positions, mels = config.size("max_source_positions"), config.size("num_mel_bins")
    front = (
        Product("convolution_1", 2 * positions, hidden, 3 * mels),
        Product("convolution_2", positions, hidden, 3 * hidden),
    )
    of_encoder = {
        "vocabulary": 0, "positions": positions, "max_length": None, "fixed_length": positions, "front": front,
        "notes": ("the convolutions before the encoder are estimated as products",),
    }  # fmt: skip
    return _bart(config, name, positions, of_encoder, positions=length, max_length=length)


def read_t5(config: Config, name: str, *, tables: bool = False) -> ModelFacts:
    """T5, mT5 and LongT5, whose first layers have the table of biases by relative position; of UMT5 all have one (`tables`).

    The vocabulary projection is the embedding unless the configuration says otherwise, as those of T5 1.1, FLAN-T5 and mT5 do.
    """
    hidden, heads, head_dim = config.size("d_model"), config.size("num_heads"), config.size("d_kv")
    rows, layers = config.size("relative_attention_num_buckets", default=32), config.size("num_layers", most=MAX_LAYERS)
    form = config.word("feed_forward_proj", "relu")
    if (activation := form.removeprefix("gated-")) not in _ACTIVATIONS:
        raise config.wrong("feed_forward_proj", f"one of {listed(_ACTIVATIONS)}, with gated- before it or without")
    network = Mlp(config.size("d_ff"), form != activation, _ACTIVATIONS[activation])
    crossed = Attention(heads, heads, head_dim, rotary=False, keys=None)

    def stack(count: int, *others: Part, causal: bool) -> tuple[Block, ...]:
        mixer = Attention(heads, heads, head_dim, causal=causal, rotary=False, biases=rows)
        first: tuple[Part, ...] = (mixer, *others, network)
        later: tuple[Part, ...] = first if tables else (replace(mixer, biases=0), *others, network)
        return group_layers((later if index else first, len(first)) for index in range(count))

    count = config.size("num_decoder_layers", default=layers, most=MAX_LAYERS)
    decoder = decoder_facts(config, name, hidden, stack(count, crossed, causal=True), tied=True, max_length=None)
    encoded = stack(layers, causal=False)
    if config.word("model_type", "") == "longt5":
        encoded = tuple(replace(block, parts=(_of_long_texts(config, block.parts[0]), network)) for block in encoded)
    return _with_encoder(decoder, encoded)


def _of_long_texts(config: Config, mixer: Part) -> Part:
    """LongT5's attention: blocks of a radius and one, each to its neighbours too, and with `transient-global` to all sums."""
    kind, kinds = config.word("encoder_attention_type", "local"), {"local": Attention, "transient-global": GlobalWindow}
    if kind not in kinds or not isinstance(mixer, Attention):
        raise config.wrong("encoder_attention_type", f"one of {listed(kinds)}")
    window = 3 * (config.size("local_radius", default=127) + 1)
    others: dict[str, Any] = {} if kind == "local" else {"block": config.size("global_block_size", default=16)}
    return kinds[kind](
        mixer.heads, mixer.heads, mixer.head_dim, causal=False, rotary=False, biases=mixer.biases, window=window,
        inputs=config.size("d_model"), **others,
    )  # fmt: skip


def read_deberta(config: Config, name: str) -> ModelFacts:
    """DeBERTa, its v2 and v3: BERT without a pooler, scores by relative position, and in v2's larger models a convolution."""
    hidden, length = config.size("hidden_size"), config.size("max_position_embeddings")
    encoded = encoder_layers(config, hidden)
    first, later = encoded.parts, encoded.parts
    if config.flag("relative_attention", False):
        terms = config.values.get("pos_att_type") or []
        terms = [term.strip() for term in terms.lower().split("|")] if isinstance(terms, str) else terms
        if not isinstance(terms, list) or any(term not in ("c2p", "p2c") for term in terms):
            raise config.wrong("pos_att_type", "p2c, c2p, or both with | between them")
        buckets = config.size("position_buckets", default=-1, least=-1)
        span = buckets if buckets > 0 else config.size("max_relative_positions", default=-1, least=-1)
        heads = config.size("num_attention_heads")
        mixer = DisentangledAttention(
            heads, heads, per_head(config, hidden, heads), causal=False, qkv_bias=True, output_bias=True, rotary=False,
            rows=2 * (span if span > 0 else length), terms=tuple(terms), projects=not config.flag("share_att_key", False),
        )  # fmt: skip
        first, later = ((part, encoded.parts[-1]) for part in (replace(mixer, table=True), mixer))
    norms = 2
    if taps := config.size("conv_kernel_size", default=0, least=0):
        first, norms = (*first, Convolution(taps, 1, _activation(config, "conv_act", "tanh"))), 3
    layers = [(first, norms), *[(later, 2)] * (encoded.count - 1)]
    rows = length if config.flag("position_biased_input", True) else 0
    return ModelFacts(
        name=name, architecture=config.word("model_type", ""), hidden=hidden, vocabulary=config.size("vocab_size"),
        blocks=group_layers(layers), norm="layernorm", dtype=config.dtype, generates=False,
        positions=rows + config.size("type_vocab_size", default=0, least=0), max_length=length, notes=(_NO_NEXT,),
    )  # fmt: skip


def read_wav2vec2(config: Config, name: str) -> ModelFacts:
    """wav2vec 2.0, HuBERT and WavLM: convolutions make positions of samples; one over positions tells layers where they are.

    Raises:
        SpecError: a field is missing or wrong, or positions are merged behind the layers.
    """
    if config.flag("add_adapter", False):
        raise config.wrong("add_adapter", "false; layers that merge positions behind the others are not read")
    hidden = config.size("hidden_size")
    widths, taps, strides = (config.sizes(f"conv_{field}") for field in ("dim", "kernel", "stride"))
    if not len(widths) == len(taps) == len(strides):
        raise config.wrong("conv_dim", "a list as long as conv_kernel and conv_stride")
    each, bias = config.word("feat_extract_norm", "group") == "layer", config.flag("conv_bias", False)
    front = [
        Product(
            f"convolution_{index + 1}", prod(strides[index + 1 :]), width, before * taps[index], per_position=True, bias=bias,
            after=("norm", "gelu") if each or not index else ("gelu",),
        )
        for index, (before, width) in enumerate(zip((1, *widths), widths, strict=False))
    ]  # fmt: skip
    norm = widths[-1] if config.flag("feat_proj_layer_norm", True) else 0
    front.append(Product("projection", 1, hidden, widths[-1], per_position=True, norm=norm))
    groups = config.size("num_conv_pos_embedding_groups", default=16)
    if hidden % groups:
        raise config.wrong("num_conv_pos_embedding_groups", f"a divisor of hidden_size {hidden}")
    placing = Convolution(config.size("num_conv_pos_embeddings", default=128), groups)
    encoded = encoder_layers(config, hidden)
    first = later = encoded.parts
    if buckets := config.size("num_buckets", default=0, least=0):
        # WavLM's layers have biases by relative position in common, which each gates.
        heads = config.size("num_attention_heads")
        mixer = GatedBiases(
            heads, heads, per_head(config, hidden, heads), causal=False, rotary=False, qkv_bias=True, output_bias=True
        )
        first, later = ((replace(mixer, biases=biases), encoded.parts[-1]) for biases in (buckets, 0))
    layers = [((placing, *first), 2), *[(later, 2)] * (encoded.count - 1)]
    return ModelFacts(
        name=name, architecture=config.word("model_type", ""), hidden=hidden, vocabulary=0, blocks=group_layers(layers),
        norm="layernorm", dtype=config.dtype, generates=False,
        front=tuple(front),
        notes=(
            f"a position is {prod(strides)} samples of sound: {16000 / prod(strides):g} of them are a second at 16 kHz",
            "the convolutions before the layers are estimated as products", NO_HEAD,
        ),
    )  # fmt: skip
