"""Readers of the other architectures: earlier decoders, encoders of text and images, speech."""

from __future__ import annotations

from dataclasses import replace

from ....features.errors import SpecError
from ..facts import Block, Encoder, ModelFacts, Product
from ..layers.attention import Attention
from ..layers.feed_forward import Mlp
from .decoders import decoder_facts
from .fields import MAX_LAYERS, Config, per_head

_NO_NEXT = "the vocabulary projection is left out: an encoder ends in its last layer"


def _heads(
    config: Config, hidden: int, *names: str, causal: bool = True, rotary: bool = False, keys: int = 0
) -> Attention:
    """Attention with as many key heads as query heads, and biases."""
    heads = config.size(*(names or ("num_attention_heads",)))
    head_dim = per_head(config, hidden, heads)
    return Attention(
        heads, heads, head_dim, causal=causal, rotary=rotary, keys=keys, qkv_bias=True, output_bias=True
    )  # fmt: skip


def read_gpt2(config: Config, name: str) -> ModelFacts:
    """GPT-2, and StarCoder, whose heads share one key head."""
    hidden = config.size("n_embd", "hidden_size")
    mixer = _heads(config, hidden, "n_head", "num_attention_heads")
    if config.word("model_type", "") == "gpt_bigcode" and config.flag("multi_query", True):
        mixer = replace(mixer, kv_heads=1)
    network = Mlp(config.size("n_inner", default=4 * hidden), gated=False, activation="gelu_new", bias=True)
    block = Block(config.size("n_layer", "num_hidden_layers", most=MAX_LAYERS), (mixer, network), 2)
    positions = config.size("n_positions", "n_ctx", "max_position_embeddings")
    return decoder_facts(config, name, hidden, (block,), tied=True, norm="layernorm", positions=positions)


def read_bloom(config: Config, name: str) -> ModelFacts:
    """BLOOM: GPT-2's layers, with positions as biases of the scores, which are not estimated."""
    hidden = config.size("hidden_size", "n_embed")
    mixer = _heads(config, hidden, "n_head", "num_attention_heads")
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


def read_gpt_neox(config: Config, name: str) -> ModelFacts:
    """GPT-NeoX and Pythia: attention and network read the same input through a norm each."""
    hidden = config.size("hidden_size")
    mixer = _heads(config, hidden, rotary=True)
    network = Mlp(config.size("intermediate_size"), gated=False, activation="gelu", bias=True)
    block = Block(config.size("num_hidden_layers", most=MAX_LAYERS), (mixer, network), 2)
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
    """OPT; its table of positions has two rows before the first (transformers' `OPTLearnedPositionalEmbedding`).

    Raises:
        SpecError: embeddings are of another width than the layers, as in OPT-350m.
    """
    hidden = config.size("hidden_size")
    if config.size("word_embed_proj_dim", default=hidden) != hidden:
        raise config.wrong("word_embed_proj_dim", f"hidden_size {hidden}; embeddings of another width are not read")
    mixer = _heads(config, hidden)
    network = Mlp(config.size("ffn_dim"), gated=False, activation="relu", bias=True)
    block = Block(config.size("num_hidden_layers", most=MAX_LAYERS), (mixer, network), 2)
    positions = config.size("max_position_embeddings") + 2
    return decoder_facts(config, name, hidden, (block,), tied=True, norm="layernorm", positions=positions)


def read_phi(config: Config, name: str) -> ModelFacts:
    """Phi-1 to Phi-2: attention and network read the same input through one norm."""
    hidden = config.size("hidden_size")
    mixer = _heads(config, hidden, rotary=True)
    network = Mlp(config.size("intermediate_size"), gated=False, activation="gelu_new", bias=True)
    block = Block(config.size("num_hidden_layers", most=MAX_LAYERS), (mixer, network), 1)
    return decoder_facts(config, name, hidden, (block,), norm="layernorm")


def _encoder_layers(config: Config, hidden: int) -> Block:
    mixer = _heads(config, hidden, "num_attention_heads", "n_heads", causal=False)
    ratio = config.size("mlp_ratio", default=4)
    inner = config.size("intermediate_size", "hidden_dim", default=ratio * hidden if "mlp_ratio" in config else None)
    gated = config.flag("use_swiglu_ffn", False)
    if gated:
        # Two thirds as wide, a multiple of 8 (transformers' `Dinov2SwiGLUFFN`).
        inner = -(-int(inner * 2 / 3) // 8) * 8
    network = Mlp(inner, gated=gated, activation="gelu", bias=True)
    return Block(config.size("num_hidden_layers", "n_layers", most=MAX_LAYERS), (mixer, network), 2)


def read_bert(config: Config, name: str, *, unused: int = 0) -> ModelFacts:
    """BERT with its pooler, and encoders like it; the first `unused` rows of the table of positions belong to none."""
    hidden = config.size("hidden_size")
    rows = config.size("max_position_embeddings", least=unused + 1)
    return ModelFacts(
        name=name, architecture=config.word("model_type", ""), hidden=hidden, vocabulary=config.size("vocab_size"),
        blocks=(_encoder_layers(config, hidden),), norm="layernorm", dtype=config.dtype, generates=False,
        positions=rows + config.size("type_vocab_size", default=2), max_length=rows - unused,
        tail=(Product("pooler", 1, hidden, hidden),), notes=(_NO_NEXT,),
    )  # fmt: skip


def read_distilbert(config: Config, name: str) -> ModelFacts:
    """DistilBERT: BERT without types of tokens and without a pooler."""
    hidden, length = config.size("dim"), config.size("max_position_embeddings")
    return ModelFacts(
        name=name, architecture="distilbert", hidden=hidden, vocabulary=config.size("vocab_size"),
        blocks=(_encoder_layers(config, hidden),), norm="layernorm", dtype=config.dtype, generates=False, positions=length,
        max_length=length, notes=(_NO_NEXT,),
    )  # fmt: skip


def read_vit(config: Config, name: str, *, tokens: int = 1) -> ModelFacts:
    """A vision transformer with `tokens` beside the patches of an image, which are the rows of a product."""
    hidden = config.size("hidden_size")
    image, patch = config.size("image_size", most=2**16), config.size("patch_size", most=2**16)
    if image % patch and tokens:  # SigLIP's images keep a margin.
        raise SpecError(f"{config.origin}: patch_size {patch} does not divide image_size {image}", field="patch_size")
    patches = (image // patch) ** 2
    positions = patches + tokens
    return ModelFacts(
        name=name, architecture=config.word("model_type", ""), hidden=hidden, vocabulary=0,
        blocks=(_encoder_layers(config, hidden),), norm="layernorm", dtype=config.dtype, generates=False, positions=positions,
        fixed_length=positions, notes=("what follows the last layer, as a classifier, is left out",),
        front=(Product("patches", patches, hidden, config.size("num_channels", default=3) * patch**2),),
    )  # fmt: skip


def read_whisper(config: Config, name: str) -> ModelFacts:
    """Whisper: an encoder of sound behind two convolutions, of which the second halves the positions, and a decoder."""
    hidden = config.size("d_model")
    positions, mels = config.size("max_source_positions"), config.size("num_mel_bins")

    def network(field: str) -> Mlp:
        return Mlp(config.size(field), gated=False, activation="gelu", bias=True)

    decoding, crossed = (_heads(config, hidden, "decoder_attention_heads", keys=keys) for keys in (0, positions))
    front = (
        Product("convolution_1", 2 * positions, hidden, 3 * mels),
        Product("convolution_2", positions, hidden, 3 * hidden),
    )
    sound = _heads(config, hidden, "encoder_attention_heads", causal=False)
    encoded = Block(config.size("encoder_layers", most=MAX_LAYERS), (sound, network("encoder_ffn_dim")), 2)
    encoder = Encoder(positions, front, (encoded,), ("the convolutions before the encoder are estimated as products",))
    layers = config.size("decoder_layers", most=MAX_LAYERS)
    length = config.size("max_target_positions")
    return ModelFacts(
        name=name, architecture="whisper", hidden=hidden, vocabulary=config.size("vocab_size"),
        blocks=(Block(layers, (decoding, crossed, network("decoder_ffn_dim")), 3),), norm="layernorm", dtype=config.dtype,
        tied_embeddings=True, positions=length, max_length=length, encoder=encoder,
    )  # fmt: skip
