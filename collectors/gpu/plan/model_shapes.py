"""Sizes of kernels met in published models, by family: what a GPU campaign measures beside space-filling shapes.

Sizes are those of the models' own configuration files or papers, named at each table.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ....features.kernel import get_family

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Transformer:
    """Widths of one published transformer.

    Attributes:
        hidden: Of the residual stream.
        inter: Of the MLP.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Of a head.
        vocab: Words of the vocabulary.
        gated: Whether MLPs have a gate beside the up projection.
    """

    hidden: int
    inter: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    gated: bool = True

    @property
    def projections(self) -> tuple[tuple[int, int], ...]:
        """`(k, n)` of query-key-value, attention output, up (with gate), down and vocabulary head."""
        attended = self.heads * self.head_dim
        return (
            (self.hidden, attended + 2 * self.kv_heads * self.head_dim),
            (attended, self.hidden),
            (self.hidden, self.inter * (2 if self.gated else 1)),
            (self.inter, self.hidden),
            (self.hidden, self.vocab),
        )


# config.json of openai-community/gpt2 and gpt2-xl, google-bert/bert-base-uncased and bert-large-uncased,
# google/vit-base-patch16-224 and vit-large-patch16-224 (head: 1000 classes), meta-llama/Meta-Llama-3-8B and -70B,
# Qwen/Qwen2.5-0.5B, -7B and -72B, mistralai/Mixtral-8x7B-v0.1, on huggingface.co.
TRANSFORMERS: Mapping[str, Transformer] = MappingProxyType({
    "gpt2": Transformer(768, 3072, 12, 12, 64, 50257, gated=False),
    "gpt2-xl": Transformer(1600, 6400, 25, 25, 64, 50257, gated=False),
    "bert-base": Transformer(768, 3072, 12, 12, 64, 30522, gated=False),
    "bert-large": Transformer(1024, 4096, 16, 16, 64, 30522, gated=False),
    "vit-b16": Transformer(768, 3072, 12, 12, 64, 1000, gated=False),
    "vit-l16": Transformer(1024, 4096, 16, 16, 64, 1000, gated=False),
    "llama3-8b": Transformer(4096, 14336, 32, 8, 128, 128256),
    "llama3-70b": Transformer(8192, 28672, 64, 8, 128, 128256),
    "qwen2.5-0.5b": Transformer(896, 4864, 14, 2, 64, 151936),
    "qwen2.5-7b": Transformer(3584, 18944, 28, 4, 128, 152064),
    "qwen2.5-72b": Transformer(8192, 29568, 64, 8, 128, 152064),
    "mixtral-8x7b": Transformer(4096, 14336, 32, 8, 128, 32000),
})  # fmt: skip

# (k, n) of DeepSeek-V3's latent attention and dense MLP: hidden 7168, q_lora 1536, kv_lora 512 + 64 rotary, 128 heads of
# 128 + 64 (arXiv 2412.19437, section 4.2).
_DEEPSEEK = ((7168, 1536), (1536, 24576), (7168, 576), (512, 32768), (16384, 7168), (7168, 36864), (18432, 7168))

# Token counts of decode batches, of prompts and images (77 CLIP, 197 ViT, 384 BERT SQuAD, 1500 Whisper), of full prefills.
_TOKENS = (1, 2, 4, 8, 16, 32, 48, 64, 77, 96, 128, 197, 256, 300, 384, 512, 777, 1024, 1500, 2048, 4096, 8192)

_LAYERS = tuple(dict.fromkeys((*itertools.chain(*(t.projections for t in TRANSFORMERS.values())), *_DEEPSEEK)))


def _gemm() -> list[Sizes]:
    dense = [{"batch": 1, "m": m, "n": n, "k": k} for (k, n), m in itertools.product(_LAYERS, _TOKENS)]
    # Scores and weighted values of unfused attention, as in the original BERT and GPT-2 code.
    attention = [
        {"batch": sequences * t.heads, "m": length, "n": n, "k": k}
        for t, sequences, length in itertools.product(TRANSFORMERS.values(), (1, 4), (77, 197, 384, 512, 1024))
        for n, k in ((length, t.head_dim), (t.head_dim, length))
    ]
    # Pairs of DLRM's features, 26 categories of Criteo's and the dense ones (arXiv 1906.00091). Windows of 7 by 7 times heads
    # of 32 in the first and third stages of Swin-T and Swin-B at 224 pixels (arXiv 2103.14030, table 7).
    interactions = [
        {"batch": samples, "m": 27, "n": 27, "k": width}
        for samples, width in itertools.product((128, 2048, 16384, 65536), (16, 32, 64, 128))
    ]
    windows = [
        {"batch": images * heads, "m": 49, "n": n, "k": k}
        for images, heads, (n, k) in itertools.product((1, 8, 64), (192, 256, 48, 64), ((49, 32), (32, 49)))
    ]
    return [
        *dense,
        *(dict(pairs) for pairs in dict.fromkeys(tuple(sizes.items()) for sizes in attention)),
        *interactions,
        *windows,
    ]


def _attention() -> list[Sizes]:
    heads = dict.fromkeys((t.heads, t.kv_heads, t.head_dim) for t in TRANSFORMERS.values())
    decode = list(itertools.product((1, 4, 8, 16, 32, 64, 128), (1,), (128, 300, 777, 1024, 2048, 4096, 8192, 32768)))
    prefill = [(batch, length, length) for batch, length in
               ((1, 77), (1, 128), (4, 197), (32, 197), (8, 384), (1, 512), (4, 512), (1, 777), (2, 1024), (8, 1024),
                (1, 2048), (4, 2048), (1, 4096), (2, 4096), (1, 8192), (1, 16384))]  # fmt: skip
    # Prompts cut into chunks of 512 and 2048, as serving engines do it.
    chunked = [(1, 512, 2048), (1, 512, 8192), (2, 512, 4096), (1, 2048, 8192), (1, 2048, 16384), (4, 128, 1024)]
    return [
        {"batch": batch, "heads": h, "kv_heads": kv, "q_len": q, "kv_len": length, "head_dim": dim, "window": 0}
        for h, kv, dim in heads
        for batch, q, length in (*decode, *prefill, *chunked)
    ]


# (in, out, height, kernel, stride, padding). ResNet-50 (He et al., CVPR 2016, table 1; stride in the 3×3 as in
# torchvision), VGG-16 (Simonyan and Zisserman, ICLR 2015, configuration D), patch stems of ViT-B/16 and ViT-L/14,
# Stable Diffusion 1.5's UNet at 512² (runwayml/stable-diffusion-v1-5, unet/config.json).
_CONVOLUTIONS = (
    (3, 64, 224, 7, 2, 3), (64, 64, 56, 1, 1, 0), (64, 64, 56, 3, 1, 1), (64, 256, 56, 1, 1, 0), (256, 64, 56, 1, 1, 0),
    (256, 128, 56, 1, 1, 0), (128, 128, 56, 3, 2, 1), (128, 512, 28, 1, 1, 0), (256, 512, 56, 1, 2, 0),
    (512, 128, 28, 1, 1, 0), (128, 128, 28, 3, 1, 1), (512, 256, 28, 1, 1, 0), (256, 256, 28, 3, 2, 1),
    (256, 1024, 14, 1, 1, 0), (512, 1024, 28, 1, 2, 0), (1024, 256, 14, 1, 1, 0), (256, 256, 14, 3, 1, 1),
    (1024, 512, 14, 1, 1, 0), (512, 512, 14, 3, 2, 1), (512, 2048, 7, 1, 1, 0), (1024, 2048, 14, 1, 2, 0),
    (2048, 512, 7, 1, 1, 0), (512, 512, 7, 3, 1, 1),
    (3, 64, 224, 3, 1, 1), (64, 64, 224, 3, 1, 1), (64, 128, 112, 3, 1, 1), (128, 128, 112, 3, 1, 1),
    (128, 256, 56, 3, 1, 1), (256, 256, 56, 3, 1, 1), (256, 512, 28, 3, 1, 1), (512, 512, 28, 3, 1, 1),
    (512, 512, 14, 3, 1, 1),
    (3, 768, 224, 16, 16, 0), (3, 1024, 224, 14, 14, 0),
    (4, 320, 64, 3, 1, 1), (320, 320, 64, 3, 1, 1), (640, 640, 32, 3, 1, 1), (1280, 1280, 16, 3, 1, 1),
    (1280, 1280, 8, 3, 1, 1), (2560, 1280, 16, 3, 1, 1), (320, 4, 64, 3, 1, 1),
)  # fmt: skip


def _conv2d() -> list[Sizes]:
    names = ("in_channels", "out_channels", "height", "kernel", "stride", "padding")
    return [
        dict(zip(names, layer, strict=True)) | {"width": layer[2], "batch": batch}
        for layer, batch in itertools.product(_CONVOLUTIONS, (1, 2, 4, 8, 16, 32, 64, 128, 256))
    ]


# (hidden, inter, topk, experts, (tp, ep) that bring a layer's bf16 weights under 4 GB). config.json of
# mistralai/Mixtral-8x7B-v0.1 and 8x22B, deepseek-ai/DeepSeek-V3 and DeepSeek-V2-Lite, Qwen/Qwen3-30B-A3B and
# Qwen3-235B-A22B, Qwen/Qwen1.5-MoE-A2.7B, allenai/OLMoE-1B-7B, openai/gpt-oss-20b and gpt-oss-120b,
# ibm-granite/granite-3.0-1b-a400m-base.
_EXPERTS = (
    (4096, 14336, 2, 8, ((1, 1), (2, 1), (8, 1))), (6144, 16384, 2, 8, ((2, 1), (8, 1))),
    (7168, 2048, 8, 256, ((1, 8), (1, 16), (8, 1))), (2048, 1408, 6, 64, ((1, 1), (1, 4))),
    (2048, 768, 8, 128, ((1, 1), (1, 4))), (4096, 1536, 8, 128, ((1, 2), (1, 8))), (2048, 1408, 4, 60, ((1, 1),)),
    (2048, 1024, 8, 64, ((1, 1),)), (2880, 2880, 4, 32, ((1, 1), (1, 4))), (2880, 2880, 4, 128, ((1, 2), (1, 8))),
    (1024, 512, 8, 32, ((1, 1),)),
)  # fmt: skip


def _moe() -> list[Sizes]:
    return [
        {"tokens": tokens, "hidden": hidden, "inter": inter, "topk": topk, "experts": experts, "tp": tp, "ep": ep}
        for hidden, inter, topk, experts, splits in _EXPERTS
        for (tp, ep), tokens in itertools.product(splits, _TOKENS)
    ]


def _tensors(widths: Sequence[int]) -> list[Sizes]:
    return [{"rows": rows, "cols": cols} for rows, cols in itertools.product((*_TOKENS, 16384, 65536), widths)]


_WIDTHS = tuple(sorted({t.hidden for t in TRANSFORMERS.values()} | {7168}))
_ACTIVATIONS = tuple(sorted(set(_WIDTHS) | {t.inter for t in TRANSFORMERS.values()} | {18432, 2048}))
# Feature maps of ResNet-50 as [pixels, channels]: 56², 28², 14² and 7² of 1, 8 and 64 images.
_FEATURE_MAPS: list[Sizes] = [
    {"rows": images * side * side, "cols": channels}
    for side, channels in (
        (112, 64),
        (56, 64),
        (56, 256),
        (28, 128),
        (28, 512),
        (14, 256),
        (14, 1024),
        (7, 512),
        (7, 2048),
    )
    for images in (1, 8, 64)
]
_VOCABULARIES = tuple(sorted({t.vocab for t in TRANSFORMERS.values()} | {129280}))


def _softmax() -> list[Sizes]:
    logits: list[Sizes] = [
        {"rows": rows, "cols": cols} for rows, cols in itertools.product((1, 8, 32, 128, 512), _VOCABULARIES)
    ]
    scores: list[Sizes] = [
        {"rows": sequences * heads * length, "cols": length}
        for sequences, heads, length in itertools.product((1, 8), (12, 16, 32), (77, 197, 384, 512, 1024, 2048))
    ]
    # Router logits: tokens × experts of Mixtral, OLMoE, Qwen3 and DeepSeek-V3.
    return [*logits, *scores, *_tensors((8, 64, 128, 256))]


def _latent_attention() -> list[Sizes]:
    """The family's own, and DeepSeek-V3's 128 heads whole and shared by two and four ranks."""
    shapes = list(get_family("latent_attention").model_shapes)
    deepseek = next(sizes for sizes in shapes if sizes["hidden"] == 7168)
    lengths = ((1, 1, 4096), (32, 1, 2048), (128, 1, 1024), (1, 1024, 1024), (4, 2048, 2048))
    return shapes + [
        dict(deepseek) | {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len}
        for heads, (batch, q_len, kv_len) in itertools.product((32, 64, 128), lengths)
    ]


MODEL_SHAPES: Mapping[str, Sequence[Sizes]] = MappingProxyType({
    "gemm": _gemm(),
    "attention": _attention(),
    "conv2d": _conv2d(),
    "moe": _moe(),
    "softmax": _softmax(),
    "layernorm": _tensors(_WIDTHS),
    "elementwise": [*_tensors(_ACTIVATIONS), *_FEATURE_MAPS],
    "reduction": [*_tensors(_WIDTHS), *_FEATURE_MAPS, *_tensors((49, 1000))],
    "copy": [*_tensors(_ACTIVATIONS), *_FEATURE_MAPS],
    # The others' own: of models too, and as large as a GPU needs them in the sweep's ranges.
    **{name: get_family(name).model_shapes for name in (
        "embedding", "cross_entropy", "optimizer", "rope", "quantize", "causal_conv1d", "linear_attention",
    )},
    "latent_attention": _latent_attention(),
})  # fmt: skip
"""Sizes by family name; a dictionary holds every size of the family (attention's window included)."""
