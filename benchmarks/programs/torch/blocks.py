"""Families of torch programs, written with weights as arguments. torch is imported inside, when a program is exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..families import Choices, Family, Sizes, pick

Weights = Any
"""`p(name, *shape)` gives the weight of that name."""

_ACTIVATIONS = (
    "relu",
    "gelu",
    "gelu_tanh",
    "silu",
    "tanh",
    "sigmoid",
    "elu",
    "leaky_relu",
    "hardswish",
    "relu6",
    "mish",
    "softplus",
)


def _activate(name: str, x: Any) -> Any:
    import torch

    if name == "gelu_tanh":
        return torch.nn.functional.gelu(x, approximate="tanh")
    if name in ("tanh", "sigmoid"):
        return getattr(torch, name)(x)
    return getattr(torch.nn.functional, name)(x) if name else x


def _linear(p: Weights, name: str, x: Any, width: int, bias: str = "") -> Any:
    import torch

    return torch.nn.functional.linear(x, p(f"{name}_w", width, x.shape[-1]), p(f"{name}_b", width) if bias else None)


def _norm(p: Weights, name: str, x: Any, kind: str) -> Any:
    import torch

    width = x.shape[-1]
    if kind == "layernorm":
        return torch.nn.functional.layer_norm(x, (width,), p(f"{name}_scale", width), p(f"{name}_shift", width))
    if kind == "rmsnorm":
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * p(f"{name}_scale", width)
    return x


def mlp(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """Dense layers."""
    import torch

    for layer in range(c.depth):
        width = s.hidden if layer + 1 < c.depth else s.out
        h = _norm(p, f"n{layer}", x, c.norm)
        y = _activate(c.activation, _linear(p, f"l{layer}", h, width, c.bias))
        if c.gated:
            y = y * _linear(p, f"g{layer}", h, width, c.bias)
        x = x + y if c.skip and x.shape == y.shape else y
    return torch.softmax(x, -1) if c.head else x


def _heads(x: Any, heads: int) -> Any:
    return x.reshape(x.shape[0], x.shape[1], heads, x.shape[2] // heads).transpose(1, 2)


def _attend(q: Any, k: Any, v: Any, form: str, mask: str) -> Any:
    """Softmax attention of (batch, heads, time, features): torch's own, or written out."""
    import torch

    if form == "sdpa":
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal")
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if mask == "causal":
        rows, columns = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None, :]
        scores = torch.where(rows >= columns, scores, torch.full((), -3e4, dtype=scores.dtype))
    return torch.softmax(scores, -1) @ v


def attention(p: Weights, c: Choices, s: Sizes, x: Any, *memory: Any) -> Any:
    """Attention, with projections or bare."""
    other = memory[0] if memory else x
    q, k, v = (
        (_linear(p, n, h, x.shape[-1], c.bias) for n, h in (("q", x), ("k", other), ("v", other)))
        if c.projections
        else (x, other, other)
    )
    y = (
        _attend(_heads(q, s.heads), _heads(k, s.heads), _heads(v, s.heads), c.form, c.mask)
        .transpose(1, 2)
        .reshape(x.shape)
    )
    return _linear(p, "o", y, x.shape[-1], c.bias) if c.projections else y


def transformer(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """Transformer blocks."""
    width = x.shape[-1]

    def attend(h: Any, n: int) -> Any:
        q, k, v = _linear(p, f"{n}qkv", h, 3 * width, c.bias).chunk(3, -1)
        y = _attend(_heads(q, s.heads), _heads(k, s.heads), _heads(v, s.heads), c.form, c.mask)
        return _linear(p, f"{n}o", y.transpose(1, 2).reshape(x.shape), width, c.bias)

    def feed(h: Any, n: int) -> Any:
        up = _activate(c.activation, _linear(p, f"{n}up", h, s.hidden, c.bias))
        return _linear(p, f"{n}down", up * _linear(p, f"{n}side", h, s.hidden) if c.gated else up, width, c.bias)

    for layer in range(c.layers):
        for number, part in enumerate((attend, feed)):
            name = f"{layer}n{number}"
            x = (
                x + part(_norm(p, name, x, c.norm), layer)
                if c.order == "pre"
                else _norm(p, name, x + part(x, layer), c.norm)
            )
    return x


def convolutions(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """Convolutions with what goes with them."""
    import torch

    functional = torch.nn.functional
    for layer in range(c.depth):
        depth = x.shape[1]
        stride = c.stride if layer == 0 else 1
        bias = p(f"b{layer}", s.filters) if not c.norm else None
        if c.kind == "separable":
            y = functional.conv2d(
                x, p(f"d{layer}", depth, 1, c.kernel, c.kernel), None, stride, c.kernel // 2, 1, depth
            )
            y = functional.conv2d(y, p(f"w{layer}", s.filters, depth, 1, 1), bias)
        else:
            y = functional.conv2d(x, p(f"w{layer}", s.filters, depth, c.kernel, c.kernel), bias, stride, c.kernel // 2)
        if c.norm == "batchnorm":
            mean, var, scale, shift = (p(f"{n}{layer}", s.filters).reshape(1, -1, 1, 1) for n in ("m", "v", "s", "t"))
            y = (y - mean) * torch.rsqrt(var.abs() + 1e-3) * scale + shift
        elif c.norm == "groupnorm":
            # Written out: torch-mlir makes constant index tensors of torch's own.
            scale, shift = (p(f"{n}{layer}", s.filters).reshape(1, -1, 1, 1) for n in ("s", "t"))
            y = y - y.mean((1, 2, 3), keepdim=True)
            y = y * torch.rsqrt(y.pow(2).mean((1, 2, 3), keepdim=True) + 1e-5) * scale + shift
        y = _activate(c.activation, y)
        x = x + y if c.skip and x.shape == y.shape else y
    pools = {
        "max": lambda v: functional.max_pool2d(v, 2),
        "average": lambda v: functional.avg_pool2d(v, 2),
        "global": lambda v: v.mean((2, 3)),
        "": lambda v: v,
    }
    return pick(pools, c.pool)(x)


def embedding(p: Weights, c: Choices, s: Sizes, ids: Any) -> Any:
    """Embedding, pooling, head."""
    import torch

    x = torch.nn.functional.embedding(ids, p("table", s.vocabulary, s.width))
    if c.positions:
        x = x + p("positions", s.time, s.width)
    x = _norm(p, "n", x, c.norm)
    x = pick({"mean": lambda v: v.mean(1), "max": lambda v: v.amax(1), "": lambda v: v}, c.pool)(x)
    for layer in range(c.layers):
        x = _activate(c.activation, _linear(p, f"h{layer}", x, s.width, "b"))
    x = _linear(p, "head", x, s.classes, "b")
    return torch.log_softmax(x, -1) if c.head else x


def recurrence(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """Recurrent cells, unrolled."""
    import torch

    h = cell = p("start", x.shape[1], s.hidden)
    for step in range(c.steps):
        if c.cell == "lstm":
            gates = _linear(p, "x", x[step], 4 * s.hidden, "b") + _linear(p, "h", h, 4 * s.hidden)
            i, f, g, o = gates.chunk(4, -1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(cell)
        elif c.cell == "gru":
            r, z = torch.sigmoid(_linear(p, "x", x[step], 2 * s.hidden, "b") + _linear(p, "h", h, 2 * s.hidden)).chunk(
                2, -1
            )
            h = (1 - z) * torch.tanh(
                _linear(p, "xn", x[step], s.hidden, "b") + r * _linear(p, "hn", h, s.hidden)
            ) + z * h
        else:
            h = _activate(c.activation, _linear(p, "x", x[step], s.hidden, "b") + _linear(p, "h", h, s.hidden))
    return _linear(p, "out", h, s.out, "b") if c.head else h


def loss(p: Weights, c: Choices, s: Sizes, x: Any, y: Any) -> Any:
    """Losses of two arrays."""
    import torch

    functional = torch.nn.functional
    y = torch.tanh(y) if c.squashed else y
    rows = pick(
        {
            "mse": lambda: (x - y).pow(2).mean(-1),
            "mae": lambda: (x - y).abs().mean(-1),
            "huber": lambda: torch.where((x - y).abs() < 1, 0.5 * (x - y).pow(2), (x - y).abs() - 0.5).sum(-1),
            "soft_labels": lambda: -(torch.softmax(y, -1) * torch.log_softmax(x, -1)).sum(-1),
            "divergence": lambda: (torch.softmax(y, -1) * (torch.log_softmax(y, -1) - torch.log_softmax(x, -1))).sum(
                -1
            ),
            "cosine": lambda: (
                1 - (x * y).sum(-1) * torch.rsqrt(x.pow(2).sum(-1) + 1e-3) * torch.rsqrt(y.pow(2).sum(-1) + 1e-3)
            ),
            "hinge": lambda: functional.relu(1 - x * y).mean(-1),
            "contrastive": lambda: -torch.log_softmax(torch.tanh(x) @ torch.tanh(y).transpose(0, 1) / 8, -1).mean(-1),
        },
        c.kind,
    )()
    return pick({"mean": rows.mean, "sum": rows.sum, "rows": lambda: rows}, c.reduced)()


def pointwise(p: Weights, c: Choices, s: Sizes, x: Any, y: Any) -> Any:
    """Chains of elementwise operations and reductions."""
    import torch

    for n in range(c.length):
        steps: list[Callable[[Any], Any]] = [
            lambda v: torch.tanh(v) * y,
            lambda v: v + torch.sigmoid(y),
            lambda v: torch.maximum(v, y),
            lambda v: torch.sqrt(v.abs() + 1),
            lambda v: torch.exp(-v.abs()),
            lambda v: v * 0.5 - y,
            lambda v: v / (1 + y.abs()),
            lambda v: torch.where(v > y, v, 0.1 * y),
            lambda v: torch.clamp(v, -2.0, 2.0),
            lambda v: torch.log(1 + v.abs()),
            lambda v: torch.sin(v) + torch.cos(y),
        ]
        x = steps[(c.pattern * (n + 1) + n * n) % 11](x)
    reduced = {
        "": lambda v: v,
        "sum": lambda v: v.sum(-1),
        "mean": lambda v: v.mean(0),
        "max": lambda v: v.amax(-1),
        "transpose": lambda v: v.transpose(0, 1).contiguous(),
        "softmax": lambda v: torch.softmax(v, -1),
        "centred": lambda v: v - v.mean(-1, keepdim=True),
        "concat": lambda v: torch.cat([v, y], 0),
    }
    return pick(reduced, c.after)(x)


def products(p: Weights, c: Choices, s: Sizes, x: Any, y: Any) -> Any:
    """Matrix products in many forms."""
    import torch

    y = pick(
        {
            "mm": lambda: x @ y[0],
            "bmm": lambda: torch.bmm(x, y),
            "transposed": lambda: x @ y.transpose(1, 2).contiguous().transpose(1, 2),
            "gram": lambda: x @ x.transpose(1, 2),
            "vector": lambda: x @ y[0, :, 0],
            "chain": lambda: (x @ y) @ y.transpose(1, 2),
        },
        c.kind,
    )()
    y = _activate(c.activation, y)
    return y * 0.5 + y.mean() if c.scaled else y


FAMILIES = (
    Family("mlp", mlp, lambda c, s: [(s.batch, s.features)],
           {"depth": (1, 2, 3, 4), "activation": _ACTIVATIONS, "bias": ("", "bias"),
            "norm": ("", "", "layernorm", "rmsnorm"), "skip": ("", "skip"),
            "gated": ("", "", "gated"), "head": ("", "softmax")},
           {"batch": (1, 600), "features": (8, 1600), "hidden": (8, 2048), "out": (8, 1024)},
           lambda c, s: 2.0 * s.batch * (s.features * s.hidden + (c.depth - 1) * s.hidden**2) * (2 if c.gated else 1), share=2),
    Family("attention", attention, lambda c, s: [(s.batch, s.time, s.heads * s.head)] * (2 if c.source == "cross" else 1),
           {"source": ("self", "self", "cross"), "form": ("sdpa", "written"), "mask": ("", "causal"),
            "projections": ("", "projected"), "bias": ("", "bias")},
           {"batch": (1, 8), "time": (4, 500), "heads": (1, 12), "head": (8, 96)},
           lambda c, s: s.batch * s.time * s.heads * s.head * (8.0 * s.heads * s.head * bool(c.projections) + 4 * s.time),
           valid=lambda c: bool(c.projections or not c.bias)),
    Family("transformer", transformer, lambda c, s: [(s.batch, s.time, s.heads * s.head)],
           {"layers": (1, 1, 2), "form": ("sdpa", "written"), "mask": ("", "causal"), "order": ("pre", "post"),
            "norm": ("layernorm", "rmsnorm"),
            "activation": ("gelu", "relu", "silu", "gelu_tanh"), "gated": ("", "gated"), "bias": ("", "bias")},
           {"batch": (1, 8), "time": (4, 256), "heads": (1, 12), "head": (8, 64), "hidden": (16, 2048)},
           lambda c, s: c.layers * s.batch * s.time * s.heads * s.head * (8.0 * s.heads * s.head + 4 * s.time
               + 6 * s.hidden), share=2),
    Family("convolutions", convolutions, lambda c, s: [(s.batch, s.channels, s.height, s.width)],
           {"depth": (1, 1, 2, 3), "kernel": (1, 3, 3, 5), "stride": (1, 1, 2), "kind": ("plain", "plain", "separable"),
            "norm": ("", "batchnorm", "groupnorm"),
            "activation": ("relu", "silu", "relu6", "hardswish", "gelu", ""), "pool": ("", "", "max", "average", "global"),
            "skip": ("", "skip")},
           {"batch": (1, 8), "channels": (1, 160), "height": (8, 120), "width": (8, 120), "filters": (4, 160)},
           lambda c, s: 2.0 * s.batch * s.height * s.width / c.stride**2 * s.filters
               * (c.kernel**2 if c.kind == "plain" else 1) * (s.channels + (c.depth - 1) * s.filters)
           + 30.0 * s.batch * s.height * s.width * s.filters, share=2),
    Family("embedding", embedding, lambda c, s: [("ids", s.batch, s.time)],
           {"positions": ("", "positions"), "norm": ("", "layernorm", "rmsnorm"), "pool": ("mean", "max", ""),
            "layers": (0, 1, 2),
            "activation": ("relu", "gelu", "tanh"), "head": ("", "log_softmax")},
           {"batch": (1, 32), "time": (4, 128), "vocabulary": (8, 4000), "width": (8, 300), "classes": (8, 600)},
           lambda c, s: 2.0 * s.batch * (1 if c.pool else s.time) * s.width * (c.layers * s.width + s.classes)
               + 10.0 * s.batch * s.time * s.width),
    Family("recurrence", recurrence, lambda c, s: [(c.steps, s.batch, s.features)],
           {"cell": ("lstm", "gru", "plain"), "steps": (1, 1, 2, 4), "activation": ("tanh", "relu", "sigmoid"),
            "head": ("", "head")},
           {"batch": (1, 128), "features": (8, 600), "hidden": (8, 600), "out": (8, 400)},
           lambda c, s: 8.0 * c.steps * s.batch * s.hidden * (s.features + s.hidden),
               valid=lambda c: c.cell == "plain" or c.activation == "tanh"),
    Family("loss", loss, lambda c, s: [(s.rows, s.columns)] * 2,
           {"kind": ("mse", "mae", "huber", "soft_labels", "divergence", "cosine", "hinge", "contrastive"),
            "reduced": ("mean", "sum", "rows"), "squashed": ("", "squashed")},
           {"rows": (2, 3000), "columns": (8, 6000)},
           lambda c, s: 20.0 * s.rows * s.columns + (2.0 * s.rows**2 * s.columns if c.kind == "contrastive" else 0)),
    Family("pointwise", pointwise, lambda c, s: [(s.rows, s.columns)] * 2,
           {"length": (1, 2, 3, 5, 8), "pattern": tuple(range(1, 11)),
            "after": ("", "", "sum", "mean", "max", "transpose", "softmax", "centred", "concat")},
           {"rows": (4, 2500), "columns": (4, 2500)}, lambda c, s: 10.0 * c.length * s.rows * s.columns),
    Family("products", products, lambda c, s: [(s.batch, s.rows, s.inner), (s.batch, s.inner, s.columns)],
           {"kind": ("mm", "bmm", "transposed", "gram", "vector", "chain"), "activation": ("", *_ACTIVATIONS),
            "scaled": ("", "scaled")},
           {"batch": (1, 24), "rows": (1, 800), "inner": (4, 800), "columns": (1, 800)},
           lambda c, s: 2.0 * s.batch * s.rows * s.inner
               * (1 if c.kind == "vector" else s.rows if c.kind == "gram" else s.columns * (2 if c.kind == "chain" else 1))),
)  # fmt: skip
