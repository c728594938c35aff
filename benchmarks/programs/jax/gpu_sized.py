"""Programs in sizes that keep a GPU busy, as people who use JAX write them: layers, losses, training steps, science.

Each is a function of arrays, with the shapes of its arguments in every size that it comes in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from kernelcast.datasets.records.mlir_modules import ModuleText

Shapes = tuple[Any, ...]
"""Shapes of the arguments; one that begins with `"ids"` is of int32."""

BF16, F32 = jnp.bfloat16, jnp.float32


@dataclass(frozen=True, slots=True)
class Program:
    """A program in some sizes.

    Attributes:
        function: What it computes.
        sizes: Shapes of its arguments, one entry a size.
        dtypes: Formats it is written in.
        gradient: Whether it is also written as its gradient by all floating-point arguments.
    """

    function: Callable[..., Any]
    sizes: tuple[Shapes, ...]
    dtypes: tuple[Any, ...] = (BF16,)
    gradient: bool = False


def rmsnorm(x: Any, w: Any) -> Any:
    """RMS norm over the last axis, in float32."""
    y = x.astype(F32)
    return (y * lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * w


def layernorm(x: Any, w: Any, b: Any) -> Any:
    """Layer norm over the last axis, in float32."""
    y = x.astype(F32)
    y = y - y.mean(-1, keepdims=True)
    return (y * lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * w + b


def rotate(x: Any) -> Any:
    """Rotary positions on (batch, tokens, heads, size)."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1], dtype=F32)[:, None] * jnp.exp(-jnp.arange(half, dtype=F32) * (9.2 / half))
    sin, cos = jnp.sin(angle)[:, None].astype(x.dtype), jnp.cos(angle)[:, None].astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Attention over (batch, tokens, heads, size), scores in float32; keys may have fewer heads."""
    batch, tokens, heads, size = q.shape
    groups = heads // k.shape[2]
    q = q.reshape(batch, tokens, k.shape[2], groups, size)
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", q, k, preferred_element_type=F32) * size**-0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e30)
    weights = jax.nn.softmax(scores, -1).astype(q.dtype)
    return jnp.einsum("bhgqk,bkhd->bqhgd", weights, v).reshape(batch, tokens, heads * size)


def llama_block(x: Any, n1: Any, wq: Any, wkv: Any, wo: Any, n2: Any, gate: Any, up: Any, down: Any) -> Any:
    """A decoder layer with grouped keys, rotary positions and a gated MLP; heads of 128."""
    batch, tokens, _ = x.shape
    h = rmsnorm(x, n1)
    q = rotate((h @ wq).reshape(batch, tokens, -1, 128))
    k, v = jnp.split((h @ wkv).reshape(batch, tokens, -1, 128), 2, axis=2)
    x = x + attend(q, rotate(k), v, causal=True) @ wo
    h = rmsnorm(x, n2)
    return x + (jax.nn.silu(h @ gate) * (h @ up)) @ down


def llama_decode(
    x: Any, keys: Any, values: Any, n1: Any, wq: Any, wo: Any, n2: Any, gate: Any, up: Any, down: Any
) -> Any:
    """A token each of many sequences, with keys and values that are there."""
    batch, _, _ = x.shape
    h = rmsnorm(x, n1)
    x = x + attend((h @ wq).reshape(batch, 1, -1, 128), keys, values, causal=False) @ wo
    h = rmsnorm(x, n2)
    return x + (jax.nn.silu(h @ gate) * (h @ up)) @ down


def encoder_block(x: Any, wqkv: Any, wo: Any, n1: Any, b1: Any, up: Any, bu: Any, down: Any, n2: Any, b2: Any) -> Any:
    """A layer of BERT or ViT: heads of 64, norms after, GELU."""
    batch, tokens, _ = x.shape
    q, k, v = jnp.split((x @ wqkv).reshape(batch, tokens, -1, 64), 3, axis=2)
    x = layernorm(x + attend(q, k, v, causal=False) @ wo, n1, b1)
    return layernorm(x + jax.nn.gelu(x @ up + bu) @ down, n2, b2)


def conv(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
    """A convolution of images (batch, height, width, channels) that keeps their size at stride 1."""
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
    )


def bottleneck(x: Any, a: Any, sa: Any, b: Any, sb: Any, c: Any, sc: Any) -> Any:
    """A block of ResNet-50 at inference, norms as scales."""
    h = jax.nn.relu(conv(x, a) * sa)
    h = jax.nn.relu(conv(h, b) * sb)
    return jax.nn.relu(x + conv(h, c) * sc)


def inverted(x: Any, a: Any, sa: Any, d: Any, sd: Any, c: Any, sc: Any) -> Any:
    """A block of MobileNet-V2."""
    h = jnp.clip(conv(x, a) * sa, 0, 6)
    h = jnp.clip(conv(h, d, groups=d.shape[-1]) * sd, 0, 6)
    return x + conv(h, c) * sc


def convnext(x: Any, d: Any, n: Any, b: Any, up: Any, down: Any, scale: Any) -> Any:
    """A block of ConvNeXt."""
    h = layernorm(conv(x, d, groups=d.shape[-1]), n, b)
    return x + (jax.nn.gelu(h @ up) @ down) * scale


def unet_block(x: Any, a: Any, b: Any, g1: Any, g2: Any) -> Any:
    """A residual block of a diffusion UNet: group norm of 32, SiLU, convolution, twice."""

    def group(y: Any, g: Any) -> Any:
        z = y.astype(F32).reshape(*y.shape[:3], 32, -1)
        z = z - z.mean((1, 2, 4), keepdims=True)
        z = z * lax.rsqrt(jnp.square(z).mean((1, 2, 4), keepdims=True) + 1e-5)
        return z.reshape(y.shape).astype(y.dtype) * g

    h = conv(jax.nn.silu(group(x, g1)), a)
    return x + conv(jax.nn.silu(group(h, g2)), b)


def mlp(x: Any, a: Any, b: Any, c: Any) -> Any:
    """Three dense layers."""
    return jax.nn.relu(jax.nn.relu(x @ a) @ b) @ c


def train_mlp(x: Any, y: Any, *weights: Any) -> Any:
    """A step of Adam on three dense layers."""
    count = len(weights) // 3
    now, first, second = weights[:count], weights[count : 2 * count], weights[2 * count :]
    grads = jax.grad(lambda w: jnp.square((mlp(x, *w) - y).astype(F32)).mean())(now)
    first = [0.9 * m + 0.1 * g for m, g in zip(first, grads, strict=True)]
    second = [0.99 * v + 0.01 * g * g for v, g in zip(second, grads, strict=True)]
    return [w - 1e-3 * m / (jnp.sqrt(v) + 1e-8) for w, m, v in zip(now, first, second, strict=True)], first, second


def vocabulary_loss(x: Any, w: Any, labels: Any) -> Any:
    """Cross-entropy of tokens over a vocabulary, product included."""
    logits = (x @ w).astype(F32)
    return (jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]).mean()


def embed(table: Any, ids: Any) -> Any:
    """Rows of a table, scaled."""
    return jnp.take(table, ids, axis=0, mode="clip") * 2.0


def lstm(x: Any, w: Any, u: Any) -> Any:
    """An LSTM over (tokens, batch, width)."""
    xs = x @ w

    def step(state: Any, z: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(z + h @ u, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((x.shape[1], u.shape[0]), x.dtype)
    return lax.scan(step, (zero, zero), xs)[1]


def experts(x: Any, route: Any, up: Any, down: Any) -> Any:
    """Experts that all see all tokens, weighted by a softmax over the best two."""
    weights = jax.nn.softmax((x @ route).astype(F32), -1)
    best = lax.top_k(weights, 2)[0][:, -1:]
    weights = jnp.where(weights >= best, weights, 0).astype(x.dtype)
    h = jax.nn.silu(jnp.einsum("td,edf->tef", x, up))
    return jnp.einsum("tef,efd,te->td", h, down, weights)


def mixer(x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """A block of an MLP mixer on (batch, patches, channels)."""
    y = jax.nn.gelu(jnp.swapaxes(x, 1, 2) @ a) @ b
    x = x + jnp.swapaxes(y, 1, 2)
    return x + jax.nn.gelu(x @ c) @ d


def heat(u: Any) -> Any:
    """Fifty Jacobi steps of a five-point stencil."""

    def step(_: int, v: Any) -> Any:
        return 0.25 * (jnp.roll(v, 1, 0) + jnp.roll(v, -1, 0) + jnp.roll(v, 1, 1) + jnp.roll(v, -1, 1))

    return lax.fori_loop(0, 50, step, u)


def black_scholes(spot: Any, strike: Any, time: Any) -> Any:
    """Prices of options."""
    root = 0.2 * jnp.sqrt(jnp.abs(time) + 0.1)
    d1 = jnp.log((jnp.abs(spot) + 1) / (jnp.abs(strike) + 1)) / root + root
    cdf = partial(jax.scipy.stats.norm.cdf)
    return spot * cdf(d1) - strike * cdf(d1 - root)


def bodies(x: Any) -> Any:
    """Accelerations of bodies by gravity, all pairs."""
    d = x[None] - x[:, None]
    return (d * lax.rsqrt(jnp.square(d).sum(-1, keepdims=True) + 1e-3) ** 3).sum(1)


def kmeans(x: Any, centres: Any) -> Any:
    """A step of k-means."""
    far = jnp.square(x).sum(1)[:, None] - 2 * x @ centres.T + jnp.square(centres).sum(1)
    member = jax.nn.one_hot(far.argmin(1), centres.shape[0], dtype=x.dtype)
    return (member.T @ x) / (member.sum(0)[:, None] + 1)


def chain(x: Any, y: Any) -> Any:
    """Elementwise operations in a row."""
    return jnp.tanh(x * y + x) * jax.nn.sigmoid(y) - jnp.exp(-jnp.square(x))


def _attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    return attend(q, k, v, causal)


def _llama(batch: int, tokens: int, width: int, kv: int, inner: int) -> Shapes:
    return ((batch, tokens, width), (width,), (width, width), (width, 2 * kv), (width, width), (width,), (width, inner),
            (width, inner), (inner, width))  # fmt: skip


def _decode(batch: int, context: int, width: int, kv: int, inner: int) -> Shapes:
    cache = (batch, context, kv // 128, 128)
    return ((batch, 1, width), cache, cache, (width,), (width, width), (width, width), (width,), (width, inner),
            (width, inner), (inner, width))  # fmt: skip


def _encoder(batch: int, tokens: int, width: int) -> Shapes:
    return ((batch, tokens, width), (width, 3 * width), (width, width), (width,), (width,), (width, 4 * width), (4 * width,),
            (4 * width, width), (width,), (width,))  # fmt: skip


def _bottleneck(batch: int, side: int, wide: int) -> Shapes:
    c = wide // 4
    return (batch, side, side, wide), (1, 1, wide, c), (c,), (3, 3, c, c), (c,), (1, 1, c, wide), (wide,)


def _inverted(batch: int, side: int, c: int) -> Shapes:
    return (batch, side, side, c), (1, 1, c, 6 * c), (6 * c,), (3, 3, 1, 6 * c), (6 * c,), (1, 1, 6 * c, c), (c,)


def _convnext(batch: int, side: int, c: int) -> Shapes:
    return (batch, side, side, c), (7, 7, 1, c), (c,), (c,), (c, 4 * c), (4 * c, c), (c,)


def _unet(batch: int, side: int, c: int) -> Shapes:
    return (batch, side, side, c), (3, 3, c, c), (3, 3, c, c), (c,), (c,)


def _mlp(rows: int, width: int, inner: int, out: int) -> Shapes:
    return (rows, width), (width, inner), (inner, inner), (inner, out)


def _adam(rows: int, width: int, inner: int, out: int) -> Shapes:
    x, *weights = _mlp(rows, width, inner, out)
    return (x, (rows, out), *weights * 3)


PROGRAMS: Mapping[str, Program] = {
    "llama_block": Program(llama_block, (
        _llama(1, 128, 4096, 1024, 14336), _llama(1, 2048, 4096, 1024, 14336), _llama(4, 1024, 2048, 512, 8192),
        _llama(1, 1000, 5120, 1024, 13824)), (BF16,), gradient=True),
    "llama_decode": Program(llama_decode, (
        _decode(1, 2048, 4096, 1024, 14336), _decode(16, 2048, 4096, 1024, 14336), _decode(64, 4096, 4096, 1024, 14336))),
    "encoder_block": Program(encoder_block, (
        _encoder(8, 128, 768), _encoder(32, 384, 768), _encoder(16, 512, 1024), _encoder(64, 197, 768)), (BF16, F32),
        gradient=True),
    "attention": Program(partial(_attention, causal=True), tuple(
        ((b, t, h, d), (b, t, kv, d), (b, t, kv, d)) for b, t, h, kv, d in ((4, 1024, 16, 16, 64), (1, 4096, 32, 8, 128),
        (2, 2048, 16, 2, 128)))),
    "bottleneck": Program(bottleneck, (_bottleneck(32, 56, 256), _bottleneck(64, 28, 512), _bottleneck(32, 14, 1024),
        _bottleneck(64, 7, 2048)),
        (BF16, F32), gradient=True),
    "inverted": Program(inverted, (_inverted(32, 56, 24), _inverted(64, 28, 32), _inverted(64, 14, 96)), (BF16, F32)),
    "convnext": Program(convnext, (_convnext(32, 56, 96), _convnext(16, 28, 192), _convnext(64, 14, 384)), (BF16,),
        gradient=True),
    "unet_block": Program(unet_block, (_unet(4, 64, 320), _unet(8, 32, 640), _unet(2, 128, 128)), (BF16, F32)),
    "mlp": Program(mlp, (_mlp(8192, 1024, 4096, 1000), _mlp(256, 4096, 4096, 4096), _mlp(65536, 256, 256, 64)), (BF16, F32)),
    "train_mlp": Program(train_mlp, (_adam(4096, 784, 2048, 128), _adam(1024, 4096, 8192, 1024)), (F32, BF16)),
    "vocabulary_loss": Program(vocabulary_loss, (((2048, 1024), (1024, 50304), ("ids", 2048)), ((4096, 4096), (4096, 32000),
        ("ids", 4096))), gradient=True),
    "embed": Program(embed, (((50304, 1024), ("ids", 32768)), ((1000000, 64), ("ids", 262144))), (F32, BF16), gradient=True),
    "lstm": Program(lstm, (((64, 64, 512), (512, 2048), (512, 2048)), ((128, 256, 1024), (1024, 4096), (1024, 4096))),
        (F32, BF16)),
    "experts": Program(experts, (((1024, 1024), (1024, 8), (8, 1024, 2048), (8, 2048, 1024)), ((256, 4096), (4096, 8),
        (8, 4096, 14336), (8, 14336, 4096)))),
    "mixer": Program(mixer, (((64, 196, 512), (196, 256), (256, 196), (512, 2048), (2048, 512)), ((32, 196, 1024),
        (196, 512), (512, 196), (1024, 4096), (4096, 1024))), (BF16, F32)),
    "heat": Program(heat, (((2048, 2048),), ((8192, 8192),)), (F32,)),
    "black_scholes": Program(black_scholes, (((4 << 20,),) * 3, ((64 << 20,),) * 3), (F32,)),
    "bodies": Program(bodies, (((4096, 3),), ((16384, 3),)), (F32,)),
    "kmeans": Program(kmeans, (((1 << 18, 64), (256, 64)), ((1 << 16, 512), (1024, 512))), (F32,)),
    "chain": Program(chain, (((1000, 1000),) * 2, ((8192, 4096),) * 2, ((64, 1024, 1024),) * 2), (F32, BF16)),
    "softmax": Program(partial(jax.nn.softmax, axis=-1), (((16384, 1024),), ((4096, 50304),), ((512, 131072),)), (F32, BF16)),
    "softmax_first": Program(partial(jax.nn.softmax, axis=0), (((1024, 16384),), ((8192, 8192),)), (F32,)),
    "layernorm": Program(layernorm, tuple(((rows, n), (n,), (n,)) for rows, n in ((32768, 768), (8192, 4096),
        (131072, 256))), (F32, BF16), gradient=True),
    "rmsnorm": Program(rmsnorm, tuple(((rows, n), (n,)) for rows, n in ((4096, 4096), (65536, 1024))), (BF16,)),
    "sum_last": Program(lambda x: x.sum(-1), (((65536, 1024),), ((64, 1 << 20),), ((1 << 20, 37),)), (F32, BF16)),
    "sum_first": Program(lambda x: x.sum(0), (((1024, 65536),), ((1 << 20, 64),)), (F32,)),
    "sum_all": Program(lambda x: jnp.square(x).sum(), (((1 << 26,),),), (F32,)),
    "argmax": Program(lambda x: x.argmax(-1), (((4096, 32000),), ((65536, 1000),)), (F32,)),
    "cumsum": Program(lambda x: jnp.cumsum(x, -1), (((4096, 4096),), ((16, 1 << 20),)), (F32,)),
    "sort": Program(lambda x: jnp.sort(x, -1), (((4096, 4096),), ((1 << 22,),)), (F32,)),
    "top_k": Program(lambda x: lax.top_k(x, 8), (((4096, 32000),), ((16384, 256),)), (F32,)),
    "transpose": Program(lambda x: x.T.copy(), (((8192, 8192),), ((100000, 333),)), (F32, BF16)),
    "permute": Program(lambda x: jnp.transpose(x, (0, 2, 1, 3)).copy(), (((16, 1024, 16, 64),), ((8, 4096, 32, 128),)),
        (BF16,)),
    "batched": Program(lambda a, b: a @ b, (((64, 512, 512), (64, 512, 512)), ((256, 197, 64), (256, 64, 197)),
        ((2048, 128, 128), (2048, 128, 128))), (BF16, F32)),
    "product": Program(lambda a, b: a @ b, tuple(((m, k), (k, n)) for m, n, k in
        ((1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192), (16, 14336, 4096), (300, 5000, 7000))), (BF16, F32)),
    "conv": Program(conv, tuple(((b, s, s, c), (r, r, c, o)) for b, s, c, o, r in
        ((32, 56, 64, 64, 3), (64, 28, 128, 128, 3), (16, 112, 32, 64, 5), (8, 64, 320, 320, 3), (128, 14, 256, 1024, 1))),
        (BF16, F32), gradient=True),
    "maxpool": Program(lambda x: lax.reduce_window(x, jnp.array(-jnp.inf, x.dtype), lax.max, (1, 3, 3, 1), (1, 2, 2, 1),
        "SAME"), (((64, 112, 112, 64),), ((32, 56, 56, 256),)), (BF16, F32)),
}  # fmt: skip


def _gradient(function: Callable[..., Any], shapes: Shapes) -> Callable[..., Any]:
    places = tuple(i for i, shape in enumerate(shapes) if shape[0] != "ids")
    return jax.grad(lambda *a: jnp.square(function(*a).astype(F32)).sum(), argnums=places)


def gpu_sized_texts() -> Iterator[ModuleText]:
    """All programs in all sizes and formats as StableHLO."""
    for name, program in PROGRAMS.items():
        for shapes in program.sizes:
            for dtype in program.dtypes:
                arguments = [
                    jax.ShapeDtypeStruct(s[1:], jnp.int32) if s and s[0] == "ids" else jax.ShapeDtypeStruct(s, dtype)
                    for s in shapes
                ]
                modes = {"forward": program.function}
                if program.gradient:
                    modes["grad"] = _gradient(program.function, shapes)
                for mode, function in modes.items():
                    text = str(jax.jit(function).lower(*arguments).as_text())
                    yield ModuleText(text, f"jax-gpu/{name}/{mode}", "jax", "stablehlo")
