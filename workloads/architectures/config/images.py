"""Readers of models of images: patches in a sequence, and stages of fewer and wider positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ....features.errors import SpecError
from ..facts import Block, ModelFacts, Product
from ..kernel_list import Part
from ..layers.attention import AxisBiases, ContinuousBiases, MergedKeys, WindowAttention
from ..layers.feed_forward import Convolution, Mlp
from .decoders import group_layers
from .encoders import NO_HEAD, encoder_layers
from .fields import MAX_LAYERS, Config, per_head

MAX_SIDE = 2**16
"""Most pixels of a side of an image or a patch accepted."""


def read_vit(config: Config, name: str, *, tokens: int = 1) -> ModelFacts:
    """A vision transformer with `tokens` beside the patches of an image, which are the rows of a product."""
    hidden = config.size("hidden_size")
    image, patch = config.size("image_size", most=MAX_SIDE), config.size("patch_size", most=MAX_SIDE)
    if image % patch and tokens:  # SigLIP's images keep a margin.
        raise SpecError(f"{config.origin}: patch_size {patch} does not divide image_size {image}", field="patch_size")
    patches = (image // patch) ** 2
    positions = patches + tokens
    return ModelFacts(
        name=name, architecture=config.word("model_type", ""), hidden=hidden, vocabulary=0,
        blocks=(encoder_layers(config, hidden),), norm="layernorm", dtype=config.dtype, generates=False, positions=positions,
        fixed_length=positions, notes=(NO_HEAD,),
        front=(Product("patches", patches, hidden, config.size("num_channels", default=3) * patch**2),),
    )  # fmt: skip


def _stage(layers: list[tuple[Part, ...]], norms: int, hidden: int, grid: int, front: Product) -> Iterator[Block]:
    """Layers of a stage of an image model, `grid` positions high and wide, and what runs before them."""
    for index, block in enumerate(group_layers((parts, norms) for parts in layers)):
        yield replace(block, hidden=hidden, positions=grid**2, front=() if index else (front,))


def _of_images(config: Config, name: str, blocks: list[Block]) -> ModelFacts:
    """A model of stages; its positions and its width are those of the last."""
    hidden, positions = blocks[-1].hidden, blocks[-1].positions
    if not positions or not hidden:
        raise config.wrong("image_size", "large enough for a patch in every stage")
    return ModelFacts(
        name=name, architecture=config.word("model_type", ""), hidden=hidden, vocabulary=0, blocks=tuple(blocks),
        norm="layernorm", dtype=config.dtype, generates=False, fixed_length=positions, notes=(NO_HEAD,),
    )  # fmt: skip


def _patches(config: Config, grid: int, hidden: int) -> Product:
    """The products of patches of an image with a filter, whose results are normalised."""
    k = config.size("num_channels", default=3) * config.size("patch_size", most=MAX_SIDE) ** 2
    return Product("patches", grid**2, hidden, k, after=("norm",))


def read_swin(config: Config, name: str) -> ModelFacts:
    """Swin and its V2: attention within windows of an image; behind each stage but the last four positions become one twice as
    wide.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden, window = config.size("embed_dim"), config.size("window_size", most=MAX_SIDE)
    depths, heads = config.sizes("depths", most=MAX_LAYERS), config.sizes("num_heads")
    if len(depths) != len(heads) or any(hidden * 2**stage % count for stage, count in enumerate(heads)):
        raise config.wrong("num_heads", f"heads of each of the {len(depths)} stages of depths, which divide its width")
    ratio, bias = config.number("mlp_ratio", 4.0), config.flag("qkv_bias", True)
    newer, coordinates = config.word("model_type", "") == "swinv2", (2 * window - 1) ** 2
    # What does not fill a patch or a window is padded.
    grid = -(-config.size("image_size", most=MAX_SIDE) // config.size("patch_size", most=MAX_SIDE))
    front, blocks = _patches(config, grid, hidden), list[Block]()
    for depth, count in zip(depths, heads, strict=True):
        if blocks:
            grid, hidden = -(-grid // 2), 2 * hidden
            norm: dict[str, Any] = {"after": ("norm",)} if newer else {"norm": 2 * hidden}
            front = Product("merge", grid**2, hidden, 2 * hidden, bias=False, **norm)
        side = min(window, grid)
        across = -(-grid // side)
        sizes: dict[str, Any] = {
            "causal": False, "rotary": False, "qkv_bias": bias, "output_bias": True, "windows": across**2, "area": side**2,
        }  # fmt: skip
        straight, shifted = (
            ContinuousBiases(
                count, count, hidden // count, **sizes, shifted=moved, biases=0, coordinates=coordinates
            ) if newer
            else WindowAttention(count, count, hidden // count, **sizes, shifted=moved, biases=coordinates)
            for moved in (False, grid > window)
        )  # fmt: skip
        network = Mlp(max(1, int(ratio * hidden)), gated=False, activation="gelu", bias=True)
        layers: list[tuple[Part, ...]] = [(shifted if index % 2 else straight, network) for index in range(depth)]
        blocks += _stage(layers, 2, hidden, grid, front)
    return _of_images(config, name, blocks)


def read_segformer(config: Config, name: str) -> ModelFacts:
    """SegFormer's encoder: stages of attention to merged positions; before each overlapping patches become one position.

    Raises:
        SpecError: a field is missing or wrong.
    """
    fields = ("depths", "num_attention_heads", "sr_ratios", "patch_sizes", "strides", "mlp_ratios")
    widths = config.sizes("hidden_sizes")
    lists = [config.sizes(field, most=MAX_SIDE) for field in fields]
    for field, values in zip(fields, lists, strict=True):
        if len(values) != len(widths):
            raise config.wrong(field, f"a list of {len(widths)}, as hidden_sizes is")
    grid, before, blocks = (
        config.size("image_size", most=MAX_SIDE),
        config.size("num_channels", default=3),
        list[Block](),
    )
    for hidden, depth, heads, side, patch, stride, ratio in zip(widths, *lists, strict=True):
        if hidden % heads or depth > MAX_LAYERS:
            raise config.wrong("num_attention_heads", f"heads that divide the {hidden} channels of their stage")
        grid = (grid + 2 * (patch // 2) - patch) // stride + 1
        front = Product("patches", grid**2, hidden, before * patch**2, after=("norm",))
        mixer = MergedKeys(
            heads, heads, hidden // heads, causal=False, rotary=False, qkv_bias=True, output_bias=True,
            keys=max(1, grid // side) ** 2, side=side,
        )  # fmt: skip
        network = Mlp(ratio * hidden, gated=False, activation="gelu", bias=True, convolved=True)
        blocks += _stage([(mixer, network)] * depth, 2, hidden, grid, front)
        before = hidden
    return _of_images(config, name, blocks)


def read_sam(config: Config, name: str) -> ModelFacts:
    """SAM's encoder of images: windows in all layers but those listed, biases of both axes, and two convolutions behind it.

    Raises:
        SpecError: a field is missing or wrong.
    """
    hidden, layers = config.size("hidden_size"), config.size("num_hidden_layers", most=MAX_LAYERS)
    heads, window = config.size("num_attention_heads"), config.size("window_size", most=MAX_SIDE)
    grid = config.size("image_size", most=MAX_SIDE) // config.size("patch_size", most=MAX_SIDE)
    whole, channels = config.numbers("global_attn_indexes"), config.size("output_channels", default=256)
    bias = config.flag("qkv_bias", True)
    mixers = [
        AxisBiases(
            heads, heads, per_head(config, hidden, heads), causal=False, rotary=False, qkv_bias=bias, output_bias=True,
            windows=windows, area=area,
        )
        for windows, area in ((1, grid**2), ((-(-grid // window)) ** 2, window**2))
    ]  # fmt: skip
    network = Mlp(config.size("mlp_dim", default=4 * hidden), gated=False, activation="gelu", bias=True)
    patch = config.size("num_channels", default=3) * config.size("patch_size", most=MAX_SIDE) ** 2
    return ModelFacts(
        name=name, architecture="sam_vision_model", hidden=hidden, vocabulary=0,
        blocks=group_layers(((mixers[index not in whole], network), 2) for index in range(layers)), norm="layernorm",
        dtype=config.dtype, generates=False, positions=grid**2, fixed_length=grid**2, end_norms=0,
        front=(Product("patches", grid**2, hidden, patch),),
        tail=(
            Product("neck_1", grid**2, channels, hidden, bias=False, after=("norm",)),
            Product("neck_2", grid**2, channels, 9 * channels, bias=False, after=("norm",)),
        ),
    )  # fmt: skip


def read_convnext(config: Config, name: str) -> ModelFacts:
    """ConvNeXt: a convolution of each channel and a network in every layer; between stages four positions become one.

    Raises:
        SpecError: a field is missing or wrong.
    """
    depths, widths = config.sizes("depths", most=MAX_LAYERS), config.sizes("hidden_sizes")
    if len(depths) != len(widths):
        raise config.wrong("hidden_sizes", f"a width for each of the {len(depths)} stages of depths")
    grid = config.size("image_size", most=MAX_SIDE) // config.size("patch_size", most=MAX_SIDE)
    front, blocks = _patches(config, grid, widths[0]), list[Block]()
    for before, depth, hidden in zip((0, *widths), depths, widths, strict=False):
        if before:
            grid //= 2
            front = Product("downsample", grid**2, hidden, 4 * before, norm=before)
        parts: tuple[Part, ...] = (Convolution(49, layer_scale=True), Mlp(4 * hidden, False, "gelu", bias=True))
        blocks += _stage([parts] * depth, 1, hidden, grid, front)
    return _of_images(config, name, blocks)
