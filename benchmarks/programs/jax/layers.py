"""Layers that the JAX programs are made of. Imports jax at the top: only `jax_lowering` and the families import it, lazily."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Weights = Callable[..., Any]
"""`p(name, *shape)` gives the weight of that name."""

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "": lambda x: x,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "elu": jax.nn.elu,
    "softplus": jax.nn.softplus,
    "leaky": jax.nn.leaky_relu,
    "hardswish": jax.nn.hard_swish,
    "mish": lambda x: x * jnp.tanh(jax.nn.softplus(x)),
    "relu6": jax.nn.relu6,
    "squared": lambda x: jnp.square(jax.nn.relu(x)),
}
COMMON_ACTIVATIONS = ("relu", "gelu", "silu", "tanh")


def dense(p: Weights, name: str, x: Any, width: int, bias: str = "") -> Any:
    """`x @ w (+ b)` over the last axis."""
    y = x @ p(f"{name}_w", x.shape[-1], width)
    return y + p(f"{name}_b", width) if bias else y


def normalize(p: Weights, name: str, x: Any, kind: str) -> Any:
    """Layer, RMS or L2 normalisation of the last axis; none for an empty kind."""
    if not kind:
        return x
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if kind == "layernorm":
        centred = wide - wide.mean(-1, keepdims=True)
        y = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
        return y.astype(x.dtype) * p(f"{name}_scale", x.shape[-1]) + p(f"{name}_shift", x.shape[-1])
    if kind == "rmsnorm":
        y = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-6)
        return y.astype(x.dtype) * p(f"{name}_scale", x.shape[-1])
    return x / jnp.sqrt(jnp.sum(x * x, -1, keepdims=True) + jnp.asarray(1e-6, x.dtype))


def rotary(x: Any) -> Any:
    """Rotary position embedding of (batch, time, heads, features), halves rotated against each other."""
    time, half = x.shape[1], x.shape[-1] // 2
    angles = jnp.arange(time)[:, None] * jnp.exp(-jnp.arange(half) * (9.21 / max(half, 1)))[None, :]
    cos, sin = (f(angles)[None, :, None, :].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], -1)


def attend(q: Any, k: Any, v: Any, mask: str = "", cap: str = "") -> Any:
    """Softmax attention over (batch, time, heads, features); fewer heads in k and v are shared by groups of query heads."""
    groups = q.shape[2] // k.shape[2]
    if groups > 1:
        k, v = jnp.repeat(k, groups, axis=2), jnp.repeat(v, groups, axis=2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    if cap:
        scores = 30.0 * jnp.tanh(scores / 30.0)
    rows, columns = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])[None, :]
    if mask == "causal":
        scores = jnp.where(rows >= columns, scores, jnp.asarray(-3e4, scores.dtype))
    elif mask == "window":
        scores = jnp.where((rows >= columns) & (rows - columns < 16), scores, jnp.asarray(-3e4, scores.dtype))
    elif mask == "alibi":
        scores = scores - (jnp.abs(rows - columns) * 0.0625).astype(scores.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


def multi_head(p: Weights, name: str, x: Any, memory: Any, heads: int, kv_heads: int, **how: Any) -> Any:
    """Attention with projections; `how` takes `rotary`, `mask`, `cap`, `bias` and `qk_norm`."""
    width = x.shape[-1] // heads
    bias = how.get("bias", "")
    q = dense(p, f"{name}_q", x, heads * width, bias).reshape(*x.shape[:2], heads, width)
    k = dense(p, f"{name}_k", memory, kv_heads * width, bias).reshape(*memory.shape[:2], kv_heads, width)
    v = dense(p, f"{name}_v", memory, kv_heads * width, bias).reshape(*memory.shape[:2], kv_heads, width)
    if how.get("qk_norm"):
        q, k = normalize(p, f"{name}_qn", q, "rmsnorm"), normalize(p, f"{name}_kn", k, "rmsnorm")
    if how.get("rotary"):
        q, k = rotary(q), rotary(k)
    y = attend(q, k, v, how.get("mask", ""), how.get("cap", ""))
    return dense(p, f"{name}_o", y.reshape(*x.shape[:2], heads * width), x.shape[-1], bias)


def feed_forward(p: Weights, name: str, x: Any, hidden: int, kind: str, bias: str = "") -> Any:
    """The two- or three-matrix feed-forward of a transformer block: an activation's name, or `swiglu`, `geglu`, `reglu`."""
    gates = {"swiglu": jax.nn.silu, "geglu": jax.nn.gelu, "reglu": jax.nn.relu}
    if kind in gates:
        h = gates[kind](dense(p, f"{name}_gate", x, hidden, bias)) * dense(p, f"{name}_up", x, hidden, bias)
    else:
        h = ACTIVATIONS[kind](dense(p, f"{name}_up", x, hidden, bias))
    return dense(p, f"{name}_down", h, x.shape[-1], bias)


def convolve(p: Weights, name: str, x: Any, channels: int, kernel: int, **how: Any) -> Any:
    """A convolution over all but the first axis and channels; `how`: stride, dilation, groups, layout, padding, bias."""
    layout = how.get("layout", "nhwc")
    spatial = "HW"[: x.ndim - 2] if x.ndim == 4 else "W"
    channels_first = layout == "nchw"
    axes = f"NC{spatial}" if channels_first else f"N{spatial}C"
    depth, groups = x.shape[1 if channels_first else -1], how.get("groups", 1)
    weights = p(f"{name}_w", *(kernel,) * len(spatial), depth // groups, channels)
    numbers = (axes, f"{spatial}IO", axes)
    y = jax.lax.conv_general_dilated(
        x, weights, (how.get("stride", 1),) * len(spatial), how.get("padding", "SAME"),
        rhs_dilation=(how.get("dilation", 1),) * len(spatial), dimension_numbers=numbers, feature_group_count=groups,
    )  # fmt: skip
    if how.get("bias"):
        b = p(f"{name}_b", channels)
        y = y + (b.reshape(-1, *(1,) * len(spatial)) if channels_first else b)
    return y


def normalize_channels(p: Weights, name: str, x: Any, kind: str, layout: str = "nhwc") -> Any:
    """Batch norm (from stored statistics or the batch's own), group or instance norm of an image batch."""
    if not kind:
        return x
    channel = 1 if layout == "nchw" else x.ndim - 1
    per_channel = tuple(-1 if axis == channel else 1 for axis in range(x.ndim))
    scale = p(f"{name}_scale", x.shape[channel]).reshape(per_channel)
    shift = p(f"{name}_shift", x.shape[channel]).reshape(per_channel)
    if kind == "batchnorm":
        mean = p(f"{name}_mean", x.shape[channel]).reshape(per_channel)
        spread = jnp.abs(p(f"{name}_var", x.shape[channel])).reshape(per_channel)
        return (x - mean) * jax.lax.rsqrt(spread + 1e-3) * scale + shift
    axes = {
        "batchstats": tuple(axis for axis in range(x.ndim) if axis != channel),
        "groupnorm": tuple(range(1, x.ndim)),
        "instancenorm": tuple(axis for axis in range(1, x.ndim) if axis != channel),
    }[kind]
    mean = x.mean(axes, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(jnp.square(x - mean).mean(axes, keepdims=True) + 1e-3) * scale + shift


def pool(x: Any, kind: str, window: int, layout: str = "nhwc") -> Any:
    """Max or average pooling over `window` × `window`, or the mean over all positions (`global`)."""
    channel = 1 if layout == "nchw" else x.ndim - 1
    spatial = tuple(axis for axis in range(1, x.ndim) if axis != channel)
    if kind == "global":
        return x.mean(spatial)
    sizes = tuple(window if axis in spatial else 1 for axis in range(x.ndim))
    if kind == "max":
        return jax.lax.reduce_window(x, np.asarray(-np.inf, x.dtype), jax.lax.max, sizes, sizes, "VALID")
    total = jax.lax.reduce_window(x, np.asarray(0, x.dtype), jax.lax.add, sizes, sizes, "VALID")
    return total / window ** len(spatial)
