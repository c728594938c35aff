"""Whole models as modules: a handful, of 80 to some thousand operations, for speed and for whole-module checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from kernelcast.datasets.records.mlir_modules import ModuleText

from ..families import Choices, Family, Sizes, Structure
from .images import FAMILIES as IMAGES
from .images import block
from .layers import ACTIVATIONS, Weights, convolve, dense, normalize_channels, pool
from .lowering import lower
from .networks import FAMILIES as NETWORKS
from .networks import classifier, transformer

_FAMILIES: Mapping[str, Family] = {family.name: family for family in (*NETWORKS, *IMAGES)}


def residual_network(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """A residual network: a stem, four stages of basic blocks, a head."""

    def named(prefix: str) -> Weights:
        return lambda name, *shape: p(prefix + name, *shape)

    x = ACTIVATIONS["relu"](
        normalize_channels(p, "stem_n", convolve(p, "stem", x, s.filters, 3, stride=2), "batchnorm")
    )
    for stage in range(4):
        if stage:
            x = convolve(p, f"down{stage}", x, s.filters * 2**stage, 3, stride=2)
        x = block(named(f"stage{stage}_"), c, s, x)
    return dense(p, "head", pool(x, "global", 0), s.classes, "bias")


def language_model(p: Weights, c: Choices, s: Sizes, ids: Any) -> Any:
    """Token embedding, transformer blocks, logits."""
    x = classifier(p, SimpleNamespace(positions="positions", norm="", pool="", hidden_layers=0, tied="tied"), s, ids)
    return transformer(p, c, s, dense(p, "in", x, s.heads * s.head))


_RESIDUAL = Family("resnet", residual_network, lambda c, s: [(s.batch, s.height, s.width, 3)], {}, {}, lambda c, s: 0.0)
_LANGUAGE = Family("language", language_model, lambda c, s: [("ids", s.batch, s.time)], {}, {}, lambda c, s: 0.0)


def _blocks(layers: int, **other: str) -> dict[str, Any]:
    return {"kind": "decoder", "order": "pre", "norm": "rmsnorm", "ffn": "swiglu", "positions": "rotary", "bias": "",
        "head": "logits",
            "layers": layers} | other  # fmt: skip


_BASIC = {
    "kind": "basic",
    "depth": 2,
    "kernel": 3,
    "norm": "batchnorm",
    "activation": "relu",
    "squeeze": "",
    "layout": "nhwc",
    "head": "",
}
_TOKENS = {
    "batch": 1,
    "time": 48,
    "heads": 4,
    "head": 32,
    "expansion": 5,
    "classes": 512,
    "vocabulary": 256,
    "width": 64,
}
_PATCHES = {
    "patch": 8,
    "embedding": "convolution",
    "token": "token",
    "norm": "layernorm",
    "ffn": "gelu",
    "qk_norm": "",
    "layers": 6,
}
_UNET = {"levels": 3, "down": "max", "up": "repeat", "skip": "concat", "activation": "silu"}

_MODELS: Mapping[str, tuple[Family, dict[str, Any], dict[str, int], str]] = {
    "decoder4": (_FAMILIES["transformer"], _blocks(4), _TOKENS, "forward"),
    "decoder12": (_FAMILIES["transformer"], _blocks(12), _TOKENS | {"batch": 2, "time": 33}, "forward"),
    "encoder6-train": (_FAMILIES["transformer"], _blocks(6, kind="encoder", ffn="gelu", norm="layernorm"), _TOKENS, "sgd"),
    "language8": (_LANGUAGE, _blocks(8), _TOKENS, "forward"),
    "language12-train": (_LANGUAGE, _blocks(12, norm="layernorm", ffn="geglu"), _TOKENS | {"time": 24, "head": 16}, "adam"),
    "resnet18": (_RESIDUAL, _BASIC, {"batch": 1, "height": 64, "width": 64, "filters": 32, "classes": 100}, "forward"),
    "resnet18-train": (_RESIDUAL, _BASIC, {"batch": 2, "height": 32, "width": 32, "filters": 16, "classes": 10},
    "loss_and_grad"),
    "vision6": (_FAMILIES["vision_transformer"], _PATCHES, {"batch": 1, "rows": 8, "heads": 4, "head": 24, "classes": 100},
    "forward"),
    "unet3": (_FAMILIES["unet"], _UNET, {"batch": 1, "rows": 6, "columns": 8, "channels": 3, "filters": 16, "classes": 4},
    "forward"),
    "lstm24-unrolled": (
        _FAMILIES["recurrence"],
        {"cell": "lstm", "steps": 24, "form": "", "layers": 2, "output": "last"},
        {"batch": 4, "features": 40, "hidden": 96},
        "forward",
    ),
}  # fmt: skip


def models() -> Iterator[ModuleText]:
    """The modules of the table, one by one."""
    for name, (family, choices, sizes, mode) in _MODELS.items():
        structure = Structure(family, SimpleNamespace(**choices), mode)
        yield ModuleText(lower(structure, SimpleNamespace(**sizes), "f32"), f"jax/model-{name}", "jax", "stablehlo")
