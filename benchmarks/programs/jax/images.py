"""Families of JAX programs over images and signals: convolution blocks, residual networks, U-Nets, vision transformers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..families import Choices, Family, Sizes, pick
from .layers import (
    ACTIVATIONS,
    Weights,
    convolve,
    dense,
    feed_forward,
    multi_head,
    normalize,
    normalize_channels,
    pool,
)
from .networks import TRAINED

_IMAGE_ACTIVATIONS = ("relu", "silu", "gelu", "relu6", "hardswish", "leaky")
_IMAGE_NORMS = ("", "batchnorm", "batchnorm", "batchstats", "groupnorm", "instancenorm")


def _image(c: Choices, s: Sizes) -> list[tuple[Any, ...]]:
    return [
        (s.batch, s.channels, s.height, s.width) if c.layout == "nchw" else (s.batch, s.height, s.width, s.channels)
    ]


def _channels(x: Any, layout: str) -> int:
    return int(x.shape[1 if layout == "nchw" else -1])


def convolutions(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """Convolutions with norm, activation, stride and pooling."""
    for layer in range(c.depth):
        stride = c.stride if layer == 0 else 1
        y = convolve(p, f"c{layer}", x, s.filters, c.kernel, layout=c.layout, stride=stride, dilation=c.dilation,
                     padding=c.padding or "SAME", bias=not c.norm)  # fmt: skip
        y = ACTIVATIONS[c.activation](normalize_channels(p, f"n{layer}", y, c.norm, c.layout))
        x = x + y if c.skip and x.shape == y.shape else y
    return pool(x, c.pool, 2, c.layout) if c.pool else x


def block(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """The blocks of well-known networks: bottleneck, inverted bottleneck, separable, ConvNeXt, basic."""
    channels = _channels(x, c.layout)

    def layer(name: str, x: Any, out: int, kernel: int, act: str = c.activation, **how: Any) -> Any:
        y = convolve(p, name, x, out, kernel, layout=c.layout, **how)
        return ACTIVATIONS[act](normalize_channels(p, f"{name}n", y, c.norm, c.layout))

    for number in range(c.depth):
        n = f"{number}"
        if c.kind == "bottleneck":
            y = layer(n + "c", layer(n + "b", layer(n + "a", x, s.filters, 1), s.filters, 3, groups=1), channels, 1, "")
        elif c.kind == "inverted":
            wide = layer(n + "a", x, s.filters, 1)
            y = layer(n + "c", layer(n + "b", wide, s.filters, c.kernel, groups=s.filters), channels, 1, "")
        elif c.kind == "separable":
            y = layer(n + "b", layer(n + "a", x, channels, c.kernel, "", groups=channels), channels, 1)
        elif c.kind == "convnext":
            y = convolve(p, n + "a", x, channels, 7, groups=channels, layout=c.layout)
            y = layer(n + "c", layer(n + "b", y, s.filters, 1), channels, 1, "")
        else:
            y = layer(n + "b", layer(n + "a", x, channels, c.kernel), channels, c.kernel, "")
        if c.squeeze:
            gate = dense(p, n + "s", pool(y, "global", 0, c.layout), 8)
            gate = jax.nn.sigmoid(dense(p, n + "e", jax.nn.relu(gate), channels))
            y = y * (gate[:, :, None, None] if c.layout == "nchw" else gate[:, None, None, :])
        x = ACTIVATIONS[c.activation](x + y) if c.kind in ("bottleneck", "basic") else x + y
    return dense(p, "head", pool(x, "global", 0, c.layout), s.classes) if c.head else x


_BLOCK_TAPS = {"bottleneck": 9.0, "inverted": 1.0, "separable": 1.0, "convnext": 1.0, "basic": 9.0}


def _block_work(c: Choices, s: Sizes) -> float:
    inner = s.filters if c.kind in ("bottleneck", "inverted", "convnext") else s.channels
    taps = (
        inner * inner * 9.0 if c.kind == "bottleneck" else inner * c.kernel**2 * (2 * inner if c.kind == "basic" else 1)
    )
    return float(s.batch * s.height * s.width * c.depth * (2.0 * taps + 4.0 * inner * s.channels + 20.0 * inner))


def signal(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """One-dimensional convolutions over time: causal, dilated, gated."""
    for layer in range(c.depth):
        dilation = 2**layer if c.dilated else 1
        reach = (c.kernel - 1) * dilation
        padding = [(reach, 0)] if c.causal else [(reach // 2, reach - reach // 2)]
        y = convolve(p, f"c{layer}", x, s.filters, c.kernel, dilation=dilation, padding=padding, bias="bias")
        if c.gated:
            y = jnp.tanh(y) * jax.nn.sigmoid(
                convolve(p, f"g{layer}", x, s.filters, c.kernel, dilation=dilation, padding=padding)
            )
        else:
            y = ACTIVATIONS[c.activation](y)
        y = normalize(p, f"n{layer}", y, c.norm)
        x = x + y if c.skip and x.shape == y.shape else y
    return pick({"": lambda v: v, "mean": lambda v: v.mean(1), "last": lambda v: v[:, -1]}, c.output)(x)


def unet(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """Down by pooling or strides, up by repetition or transposed convolution, with skips."""
    items = []
    for level in range(c.levels):
        x = ACTIVATIONS[c.activation](convolve(p, f"d{level}", x, s.filters * (level + 1), 3, bias="bias"))
        items.append(x)
        x = (
            pool(x, c.down, 2)
            if c.down != "stride"
            else convolve(p, f"s{level}", x, x.shape[-1], 2, stride=2, padding="VALID")
        )
    x = ACTIVATIONS[c.activation](convolve(p, "middle", x, x.shape[-1], 3, bias="bias"))
    for level in reversed(range(c.levels)):
        if c.up == "transposed":
            x = jax.lax.conv_transpose(x, p(f"t{level}", 2, 2, x.shape[-1], x.shape[-1]), (2, 2), "SAME")
        else:
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
        side = items[level][:, : x.shape[1], : x.shape[2]]
        x = jnp.concatenate([x, side], -1) if c.skip == "concat" else x[..., : side.shape[-1]] + side
        x = ACTIVATIONS[c.activation](convolve(p, f"u{level}", x, s.filters * (level + 1), 3, bias="bias"))
    return convolve(p, "out", x, s.classes, 1)


def vision_transformer(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """Patches, positions, blocks, a head."""
    width, patch = s.heads * s.head, c.patch
    rows = s.rows
    if c.embedding == "convolution":
        x = convolve(p, "patches", x, width, patch, stride=patch, padding="VALID").reshape(x.shape[0], -1, width)
    else:
        x = x.reshape(x.shape[0], rows, patch, rows, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        x = dense(p, "patches", x.reshape(x.shape[0], rows * rows, patch * patch * 3), width)
    if c.token:
        x = jnp.concatenate([jnp.broadcast_to(p("token", 1, 1, width), (x.shape[0], 1, width)), x], 1)
    x = x + p("positions", x.shape[1], width)
    for layer in range(c.layers):
        h = normalize(p, f"{layer}a", x, c.norm)
        x = x + multi_head(p, f"{layer}m", h, h, s.heads, s.heads, bias="bias", qk_norm=c.qk_norm)
        x = x + feed_forward(p, f"{layer}f", normalize(p, f"{layer}b", x, c.norm), 4 * width, c.ffn, "bias")
    return dense(p, "head", x[:, 0] if c.token else x.mean(1), s.classes, "bias")


def pooling(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """Windowed reductions and resampling without weights."""
    for _ in range(c.times):
        if c.kind == "upsample":
            x = jnp.repeat(x, 2, axis=1)
            x = jnp.repeat(x, 2, axis=2)
        elif c.kind == "blur":
            padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
            x = sum(padded[:, i : i + x.shape[1], j : j + x.shape[2]] for i in range(3) for j in range(3)) / 9
        else:
            x = pool(x, c.kind, c.window, "nhwc")
        x = ACTIVATIONS[c.activation](x)
    return x - x.mean((1, 2), keepdims=True) if c.centred else x


FAMILIES = (
    Family("convolutions", convolutions, _image,
           {"depth": (1, 1, 2, 3), "kernel": (1, 3, 3, 5, 7), "stride": (1, 1, 2), "dilation": (1, 1, 1, 2),
            "norm": _IMAGE_NORMS, "activation": _IMAGE_ACTIVATIONS,
            "pool": ("", "", "max", "average", "global"), "layout": ("nhwc", "nhwc", "nchw"), "padding": ("", "", "VALID"),
            "skip": ("", "", "skip")},
           {"batch": (1, 8), "channels": (1, 200), "height": (16, 160), "width": (16, 160), "filters": (3, 200)},
           lambda c, s: 2.0 * s.batch * s.height * s.width / c.stride**2 * s.filters * c.kernel**2 * (s.channels
               + (c.depth - 1) * s.filters)
           + 30.0 * s.batch * s.height * s.width * s.filters, TRAINED, share=4,
               valid=lambda c: c.dilation * (c.kernel - 1) * c.depth < 14 or not c.padding),
    Family("block", block, _image,
           {"kind": tuple(_BLOCK_TAPS), "depth": (1, 1, 2), "kernel": (3, 3, 5),
            "norm": ("", "batchnorm", "batchnorm", "batchstats", "groupnorm"),
            "activation": _IMAGE_ACTIVATIONS, "squeeze": ("", "", "squeeze"), "layout": ("nhwc", "nchw"), "head": ("", "head")},
           {"batch": (1, 4), "channels": (8, 200), "height": (7, 90), "width": (7, 90), "filters": (8, 300),
            "classes": (8, 1000)},
           _block_work, TRAINED, share=3, valid=lambda c: c.kernel == 3 or c.kind in ("inverted", "separable", "basic")),
    Family("signal", signal, lambda c, s: [(s.batch, s.time, s.features)],
           {"depth": (1, 2, 3), "kernel": (2, 3, 5, 9), "causal": ("", "causal"), "dilated": ("", "dilated"),
            "gated": ("", "", "gated"),
            "activation": ("relu", "gelu", "tanh"), "norm": ("", "layernorm"), "skip": ("", "skip"),
            "output": ("", "mean", "last")},
           {"batch": (1, 8), "time": (16, 600), "features": (1, 200), "filters": (8, 200)},
           lambda c, s: 2.0 * s.batch * s.time * c.kernel * s.filters * (s.features
               + (c.depth - 1) * s.filters) * (2 if c.gated else 1), TRAINED),
    Family("unet", unet, lambda c, s: [(s.batch, s.rows * 2**c.levels, s.columns * 2**c.levels, s.channels)],
           {"levels": (1, 2, 3), "down": ("max", "average", "stride"), "up": ("repeat", "transposed"),
            "skip": ("concat", "sum"), "activation": _IMAGE_ACTIVATIONS},
           {"batch": (1, 4), "rows": (2, 20), "columns": (2, 20), "channels": (1, 12), "filters": (4, 48), "classes": (1, 10)},
           lambda c, s: 2.0 * s.batch * s.rows * s.columns * 4.0**c.levels * 9 * s.filters**2 * 5 * c.levels, TRAINED),
    Family("vision_transformer", vision_transformer, lambda c, s: [(s.batch, s.rows * c.patch, s.rows * c.patch, 3)],
           {"patch": (4, 8, 14, 16), "embedding": ("convolution", "reshape"), "token": ("", "token"), "layers": (1, 2),
            "norm": ("layernorm", "rmsnorm"),
            "ffn": ("gelu", "swiglu", "relu"), "qk_norm": ("", "", "qk_norm")},
           {"batch": (1, 4), "rows": (2, 14), "heads": (1, 6), "head": (8, 64), "classes": (8, 1000)},
           lambda c, s: s.batch * s.rows**2 * (24.0 * c.layers * (s.heads * s.head) ** 2
               + 16.0 * c.layers * s.rows**2 * s.heads * s.head), TRAINED),
    Family("pooling", pooling, lambda c, s: [(s.batch, s.rows * 8, s.columns * 8, s.channels)],
           {"kind": ("max", "average", "upsample", "blur"), "window": (2, 3), "times": (1, 2),
            "activation": ("", "relu", "tanh", "sigmoid"), "centred": ("", "centred")},
           {"batch": (1, 8), "rows": (2, 24), "columns": (2, 24), "channels": (1, 160)},
           lambda c, s: 64.0 * 8 * s.batch * s.rows * s.columns * s.channels * (4.0**c.times if c.kind == "upsample" else 1),
           ("forward", "input_grad"), valid=lambda c: c.window == 2 or c.kind in ("max", "average")),
)  # fmt: skip
