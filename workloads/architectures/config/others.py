"""Readers of the other architectures: earlier decoders, encoders, speech, and layers of one part each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ....features.errors import SpecError
from ..facts import Block, Encoder, ModelFacts, Product
from ..kernel_list import Part
from ..layers.attention import Attention
from ..layers.feed_forward import Experts, Mlp
from ..layers.state_space import StateSpace
from .decoders import decoder_facts, group_layers
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
    """GPT-2."""
    hidden = config.size("n_embd", "hidden_size")
    mixer = _heads(config, hidden, "n_head", "num_attention_heads")
    network = Mlp(config.size("n_inner", default=4 * hidden), gated=False, activation="gelu_new", bias=True)
    block = Block(config.size("n_layer", "num_hidden_layers", most=MAX_LAYERS), (mixer, network), 2)
    positions = config.size("n_positions", "n_ctx", "max_position_embeddings")
    return decoder_facts(config, name, hidden, (block,), tied=True, norm="layernorm", positions=positions)


def read_gptj(config: Config, name: str) -> ModelFacts:
    """GPT-J: attention without biases and network read the same input through one norm; rotary positions."""
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


def _encoder_layers(config: Config, hidden: int, layers: int) -> Block:
    mixer = _heads(config, hidden, causal=False)
    network = Mlp(config.size("intermediate_size"), gated=False, activation="gelu", bias=True)
    return Block(layers, (mixer, network), 2)


def read_bert(config: Config, name: str) -> ModelFacts:
    """BERT with its pooler."""
    hidden = config.size("hidden_size")
    block = _encoder_layers(config, hidden, config.size("num_hidden_layers", most=MAX_LAYERS))
    length = config.size("max_position_embeddings")
    return ModelFacts(
        name=name, architecture="bert", hidden=hidden, vocabulary=config.size("vocab_size"), blocks=(block,), norm="layernorm",
        dtype=config.dtype, generates=False, positions=length + config.size("type_vocab_size", default=2), max_length=length,
        tail=(Product("pooler", 1, hidden, hidden),), notes=(_NO_NEXT,),
    )  # fmt: skip


def read_vit(config: Config, name: str) -> ModelFacts:
    """A vision transformer; patches of the image are the rows of a product."""
    hidden = config.size("hidden_size")
    image, patch = config.size("image_size", most=2**16), config.size("patch_size", most=2**16)
    if image % patch:
        raise SpecError(f"{config.origin}: patch_size {patch} does not divide image_size {image}", field="patch_size")
    patches = (image // patch) ** 2
    block = _encoder_layers(config, hidden, config.size("num_hidden_layers", most=MAX_LAYERS))
    return ModelFacts(
        name=name, architecture="vit", hidden=hidden, vocabulary=0, blocks=(block,), norm="layernorm", dtype=config.dtype,
        generates=False, positions=patches + 1, fixed_length=patches + 1, notes=("the classifier is left out",),
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


def read_nemotron_h(config: Config, name: str) -> ModelFacts:
    """Nemotron-H: each layer is one part, by a letter of `hybrid_override_pattern`.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden = config.size("hidden_size")
    heads = config.size("num_attention_heads")
    pattern = config.word("hybrid_override_pattern", "")
    makers: Mapping[str, Callable[[], Part]] = {
        "M": lambda: StateSpace(
            config.size("mamba_num_heads"), config.size("mamba_head_dim"), config.size("ssm_state_size"),
            config.size("n_groups"), config.size("conv_kernel", default=4),
        ),
        "*": lambda: Attention(
            heads, config.size("num_key_value_heads", default=heads),
            config.size("attention_head_dim", "head_dim", default=hidden // heads), rotary=False,
        ),
        "-": lambda: Mlp(config.size("intermediate_size"), gated=False, activation="relu"),
        "E": lambda: Experts(
            config.size("n_routed_experts"), config.size("num_experts_per_tok"), config.size("moe_intermediate_size"),
            shared=config.size("moe_shared_expert_intermediate_size", default=0, least=0), gated=False,
        ),
    }  # fmt: skip
    if not pattern or len(pattern) > MAX_LAYERS or set(pattern) - set(makers):
        raise config.wrong(
            "hybrid_override_pattern", "a letter per layer: M state space, * attention, - network, E experts"
        )
    parts = {letter: makers[letter]() for letter in dict.fromkeys(pattern)}
    return decoder_facts(config, name, hidden, group_layers(((parts[letter],), 1) for letter in pattern))
