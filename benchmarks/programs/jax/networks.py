"""Families of JAX programs over vectors and sequences: perceptrons, attention, transformers, recurrences, experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..families import Choices, Family, Sizes, pick
from .layers import (
    ACTIVATIONS,
    COMMON_ACTIVATIONS,
    Weights,
    attend,
    dense,
    feed_forward,
    multi_head,
    normalize,
    rotary,
)

TRAINED = ("forward", "forward", "grad", "loss_and_grad", "input_grad", "sgd", "adam")


def mlp(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """Dense layers with what is usual between them."""
    for layer in range(c.depth):
        width = s.hidden if layer + 1 < c.depth or c.skip else s.out
        h = normalize(p, f"n{layer}", x, c.norm)
        y = ACTIVATIONS[c.activation](dense(p, f"l{layer}", h, width, c.bias))
        if c.gated:
            y = y * jax.nn.sigmoid(dense(p, f"g{layer}", h, width, c.bias))
        x = x + y if c.skip and x.shape == y.shape else y
    return pick({"": lambda v: v, "softmax": jax.nn.softmax, "mean": lambda v: v.mean(0)}, c.head)(x)


def attention(p: Weights, c: Choices, s: Sizes, x: Any, *memory: Any) -> Any:
    """Attention alone or with its projections."""
    heads = s.groups * c.query_heads
    other = memory[0] if memory else x
    if c.projections:
        return multi_head(p, "a", x, other, heads, s.groups, rotary=c.rotary, mask=c.mask, cap=c.cap, bias=c.bias)
    q = x.reshape(*x.shape[:2], heads, s.head)
    k = other.reshape(*other.shape[:2], heads, s.head)[:, :, : s.groups]
    if c.rotary:
        q, k = rotary(q), rotary(k)
    return attend(q, k, jnp.tanh(k) if c.bias else k, c.mask, c.cap)


def _attention_inputs(c: Choices, s: Sizes) -> list[tuple[Any, ...]]:
    width = s.groups * c.query_heads * s.head
    local = (s.batch, s.time, width)
    return [local, (s.batch, s.memory, width)] if c.source == "cross" else [local]


def _attention_work(c: Choices, s: Sizes) -> float:
    width, seen = s.groups * c.query_heads * s.head, s.memory if c.source == "cross" else s.time
    projections = 8.0 * s.time * width * width if c.projections else 0.0
    return float(
        s.batch * (projections + 4.0 * s.time * seen * width + 12.0 * s.time * seen * s.groups * c.query_heads)
    )


def transformer(p: Weights, c: Choices, s: Sizes, x: Any, *memory: Any) -> Any:
    """Blocks of attention and feed-forward, encoder or decoder, norms before or after."""
    width = x.shape[-1]
    how = {"rotary": c.positions == "rotary", "mask": "causal" if c.kind != "encoder" else "", "bias": c.bias}
    if c.positions == "alibi":
        how["mask"] = "alibi"
    if c.positions == "learned":
        x = x + p("positions", x.shape[1], width)
    for layer in range(c.layers):
        parts: list[Callable[[Any, str], Any]] = [lambda h, n: multi_head(p, f"{n}a", h, h, s.heads, s.heads, **how)]
        if c.kind == "decoder_cross":
            parts.append(lambda h, n: multi_head(p, f"{n}x", h, memory[0], s.heads, s.heads, bias=c.bias))
        parts.append(lambda h, n: feed_forward(p, f"{n}f", h, s.expansion * width // 2, c.ffn, c.bias))
        if c.order == "parallel":
            h = normalize(p, f"{layer}n", x, c.norm)
            x = x + sum(part(h, f"{layer}") for part in parts)
            continue
        for number, part in enumerate(parts):
            name = f"{layer}n{number}"
            if c.order == "pre":
                x = x + part(normalize(p, name, x, c.norm), f"{layer}")
            else:
                x = normalize(p, name, x + part(x, f"{layer}"), c.norm)
    if c.head == "logits":
        return dense(p, "head", x, s.classes)
    return x.mean(1) if c.head == "mean" else x


def _transformer_inputs(c: Choices, s: Sizes) -> list[tuple[Any, ...]]:
    local = (s.batch, s.time, s.heads * s.head)
    return [local, local] if c.kind == "decoder_cross" else [local]


def _transformer_work(c: Choices, s: Sizes) -> float:
    width = s.heads * s.head
    per_token = width * width * (8 + 3 * s.expansion) + 4 * s.time * width + 12 * s.time * s.heads + 60 * width
    return float(s.batch * s.time * (per_token * c.layers + (2 * width * s.classes if c.head == "logits" else 0)))


def _lstm(p: Weights, x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
    h, cell = state
    i, f, g, o = jnp.split(dense(p, "x", x, 4 * h.shape[-1], "b") + dense(p, "h", h, 4 * h.shape[-1]), 4, axis=-1)
    cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def _gru(p: Weights, x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
    h, _ = state
    r, z = jnp.split(
        jax.nn.sigmoid(dense(p, "x", x, 2 * h.shape[-1], "b") + dense(p, "h", h, 2 * h.shape[-1])), 2, axis=-1
    )
    n = jnp.tanh(dense(p, "xn", x, h.shape[-1], "b") + r * dense(p, "hn", h, h.shape[-1]))
    return (1 - z) * n + z * h, h


def _plain(p: Weights, x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
    h, _ = state
    return jnp.tanh(dense(p, "x", x, h.shape[-1], "b") + dense(p, "h", h, h.shape[-1])), h


def _minimal(p: Weights, x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
    h, _ = state
    f = jax.nn.sigmoid(dense(p, "x", x, h.shape[-1], "b"))
    return f * h + (1 - f) * jnp.tanh(dense(p, "g", x, h.shape[-1])), h


def _peephole(p: Weights, x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
    h, cell = state
    i, f, g = jnp.split(dense(p, "x", x, 3 * h.shape[-1], "b") + dense(p, "h", h, 3 * h.shape[-1]), 3, axis=-1)
    cell = jax.nn.sigmoid(f + cell) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jnp.tanh(cell), cell


CELLS = {"lstm": _lstm, "gru": _gru, "plain": _plain, "minimal": _minimal, "peephole": _peephole}


def recurrence(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """A recurrent cell over a few steps, written out or as a loop."""
    batch = x.shape[1]
    for layer in range(c.layers):

        def weights(name: str, *shape: int, layer: int = layer) -> Any:
            return p(f"{layer}{name}", *shape)

        state: tuple[Any, ...] = (jnp.zeros((batch, s.hidden), x.dtype),) * 2
        if c.form == "loop":
            # Weights are read before the loop, so that they are arguments of the program and not of its body.
            seen: dict[str, Any] = {}

            def read(name: str, *shape: int, w: Weights = weights, seen: dict[str, Any] = seen) -> Any:
                return seen.setdefault(name, w(name, *shape))

            def step(carry: Any, row: Any, seen: dict[str, Any] = seen) -> tuple[Any, Any]:
                new = CELLS[c.cell](lambda name, *_: seen[name], row, carry)
                return new, new[0]

            CELLS[c.cell](read, x[0], state)
            state, x = jax.lax.scan(step, state, x)
            continue
        outputs = []
        for number in range(c.steps):
            state = CELLS[c.cell](weights, x[number], state)
            outputs.append(state[0])
        x = jnp.stack(outputs)
    return {"last": x[-1], "all": x, "mean": x.mean(0)}[c.output]


def experts(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """A mixture of experts, all computed, weighed by a gate."""
    logits = dense(p, "gate", x, c.experts)
    gate = jax.nn.softmax(logits, axis=-1)
    if c.gate == "top1":
        gate = jnp.where(logits >= logits.max(-1, keepdims=True), gate, jnp.zeros_like(gate))
    elif c.gate == "noisy":
        gate = gate * jax.nn.softplus(dense(p, "noise", x, c.experts))
    hidden = jnp.einsum("td,edh->teh", x, p("up", c.experts, s.width, s.hidden))
    hidden = ACTIVATIONS[c.activation](hidden)
    if c.gated:
        hidden = hidden * jnp.einsum("td,edh->teh", x, p("side", c.experts, s.width, s.hidden))
    y = jnp.einsum("teh,ehd,te->td", hidden, p("down", c.experts, s.hidden, s.width), gate)
    return y + feed_forward(p, "shared", x, s.hidden, c.activation) if c.shared else y


def mixer(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """MLP-mixer blocks: dense layers over positions, then over channels."""
    for block in range(c.blocks):
        h = normalize(p, f"{block}t", x, c.norm).transpose(0, 2, 1)
        h = feed_forward(p, f"{block}m", h, s.mixed, c.activation, c.bias).transpose(0, 2, 1)
        x = x + h if c.skip else h
        x = x + feed_forward(p, f"{block}c", normalize(p, f"{block}u", x, c.norm), s.hidden, c.activation, c.bias)
    return x.mean(1) if c.head else x


def classifier(p: Weights, c: Choices, s: Sizes, ids: Any) -> Any:
    """Token embedding, pooling and a head."""
    x = jnp.take(p("table", s.vocabulary, s.width), ids, axis=0, mode="clip")
    if c.positions:
        x = x + p("positions", s.time, s.width)
    x = normalize(p, "n", x, c.norm)
    x = pick(
        {"mean": lambda v: v.mean(1), "max": lambda v: v.max(1), "last": lambda v: v[:, -1], "": lambda v: v}, c.pool
    )(x)
    for layer in range(c.hidden_layers):
        x = ACTIVATIONS[c.activation](dense(p, f"h{layer}", x, s.width, c.bias))
    if c.tied:
        return x @ p("table", s.vocabulary, s.width).T
    return jax.nn.log_softmax(dense(p, "head", x, s.classes, c.bias), axis=-1)


def linear_attention(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """Attention without a softmax over positions: kernel features, running sums or a decaying state."""
    q, k, v = (dense(p, name, x, s.width) for name in "qkv")
    feature = pick(
        {"elu": lambda a: jax.nn.elu(a) + 1, "relu": lambda a: jax.nn.relu(a) + 0.01, "softmax": jax.nn.softmax},
        c.feature,
    )
    q, k = feature(q), feature(k)
    if c.form == "global":
        y = jnp.einsum("btk,bkv->btv", q, jnp.einsum("btk,btv->bkv", k, v)) / (
            jnp.einsum("btk,bk->bt", q, k.sum(1))[..., None] + 1
        )
    elif c.form == "masked":
        scores = jnp.tril(jnp.einsum("btk,bsk->bts", q, k))
        y = jnp.einsum("bts,bsv->btv", scores / (scores.sum(-1, keepdims=True) + 1), v)
    else:

        def step(state: Any, row: Any) -> tuple[Any, Any]:
            state = 0.9 * state + row[1][:, :, None] * row[2][:, None, :]
            return state, jnp.einsum("bk,bkv->bv", row[0], state)

        rows = tuple(a.transpose(1, 0, 2) for a in (q, k, v))
        _, y = jax.lax.scan(step, jnp.zeros((x.shape[0], s.width, s.width), x.dtype), rows)
        y = y.transpose(1, 0, 2)
    y = normalize(p, "n", y, c.norm)
    return dense(p, "o", y * jax.nn.silu(dense(p, "g", x, s.width)) if c.gated else y, x.shape[-1])


def graph_layer(p: Weights, c: Choices, s: Sizes, x: Any, adjacency: Any) -> Any:
    """Layers of a graph network over a dense adjacency matrix."""
    links = jax.nn.sigmoid(adjacency)
    if c.links == "normalised":
        links = links / (links.sum(-1, keepdims=True) + 1)
    for layer in range(c.layers):
        h = dense(p, f"w{layer}", x, s.hidden, c.bias)
        if c.kind == "attention":
            scores = jax.nn.leaky_relu(
                h @ p(f"l{layer}", s.hidden)[:, None] + (h @ p(f"r{layer}", s.hidden)[:, None]).T
            )
            y = jax.nn.softmax(scores + links, axis=-1) @ h
        elif c.kind == "sage":
            y = jnp.concatenate([links @ h, h], -1)
        elif c.kind == "max":
            y = (links[:, :8, None] * h[None, :8, :]).max(1)
        else:
            y = links @ h
        x = ACTIVATIONS[c.activation](y)
    return x.sum(0) if c.readout else x


FAMILIES = (
    Family("mlp", mlp, lambda c, s: [(s.batch, s.features)],
           {"depth": (1, 2, 3, 4, 6, 8), "activation": tuple(ACTIVATIONS), "bias": ("", "bias"),
            "norm": ("", "", "layernorm", "rmsnorm"),
            "skip": ("", "", "skip"), "gated": ("", "", "gated"), "head": ("", "softmax", "mean")},
           {"batch": (1, 600), "features": (8, 1600), "hidden": (8, 2048), "out": (8, 1024)},
           lambda c, s: 2.0 * s.batch * (s.features * s.hidden + (c.depth - 1) * s.hidden * s.hidden) * (2 if c.gated else 1)
           + 10.0 * c.depth * s.batch * s.hidden, TRAINED, share=4),
    Family("attention", attention, _attention_inputs,
           {"source": ("self", "self", "cross"), "query_heads": (1, 1, 2, 4), "projections": ("", "projected"),
            "mask": ("", "causal", "window", "alibi"),
            "rotary": ("", "rotary"), "cap": ("", "", "", "cap"), "bias": ("", "bias")},
           {"batch": (1, 8), "time": (4, 700), "memory": (4, 500), "groups": (1, 12), "head": (8, 96)},
           _attention_work, ("forward", "forward", "input_grad", "loss_and_grad"), share=3,
               valid=lambda c: bool(c.projections or not c.bias)),
    Family("transformer", transformer, _transformer_inputs,
           {"kind": ("encoder", "decoder", "decoder_cross"), "order": ("pre", "post", "parallel"),
            "norm": ("layernorm", "rmsnorm"),
            "ffn": ("gelu", "relu", "swiglu", "geglu", "squared"), "layers": (1, 1, 2, 3),
            "positions": ("", "rotary", "alibi", "learned"),
            "bias": ("", "bias"), "head": ("", "logits", "mean")},
           {"batch": (1, 8), "time": (4, 300), "heads": (1, 12), "head": (8, 64), "expansion": (4, 8), "classes": (8, 1000)},
           _transformer_work, TRAINED, share=4),
    Family("recurrence", recurrence, lambda c, s: [(c.steps, s.batch, s.features)],
           {"cell": tuple(CELLS), "steps": (1, 2, 4, 8, 12), "form": ("", "loop"), "layers": (1, 1, 2),
            "output": ("last", "all", "mean")},
           {"batch": (1, 128), "features": (8, 600), "hidden": (8, 600)},
           lambda c, s: 8.0 * c.layers * c.steps * s.batch * s.hidden * (s.features + s.hidden), TRAINED, share=2),
    Family("experts", experts, lambda c, s: [(s.tokens, s.width)],
           {"experts": (2, 3, 4, 8), "gate": ("soft", "top1", "noisy"), "activation": COMMON_ACTIVATIONS,
            "gated": ("", "gated"), "shared": ("", "shared")},
           {"tokens": (1, 256), "width": (8, 384), "hidden": (8, 600)},
           lambda c, s: 4.0 * s.tokens * c.experts * s.width * s.hidden * (1.5 if c.gated else 1), TRAINED),
    Family("mixer", mixer, lambda c, s: [(s.batch, s.patches, s.width)],
           {"blocks": (1, 2, 3), "activation": COMMON_ACTIVATIONS, "norm": ("layernorm", "rmsnorm", ""),
            "bias": ("", "bias"), "skip": ("", "skip"), "head": ("", "mean")},
           {"batch": (1, 8), "patches": (8, 200), "width": (8, 300), "mixed": (8, 200), "hidden": (16, 600)},
           lambda c, s: 4.0 * c.blocks * s.batch * s.patches * s.width * (s.mixed + s.hidden), TRAINED),
    Family("classifier", classifier, lambda c, s: [("ids", s.batch, s.time)],
           {"positions": ("", "positions"), "norm": ("", "layernorm", "rmsnorm"), "pool": ("mean", "max", "last", ""),
            "hidden_layers": (0, 1, 2),
            "activation": COMMON_ACTIVATIONS, "bias": ("", "bias"), "tied": ("", "", "tied")},
           {"batch": (1, 32), "time": (4, 128), "vocabulary": (8, 4000), "width": (8, 300), "classes": (8, 600)},
           lambda c, s: 2.0 * s.batch * (1 if c.pool else s.time) * s.width * (c.hidden_layers * s.width
               + (s.vocabulary if c.tied else s.classes))
           + 10.0 * s.batch * s.time * s.width, TRAINED, share=2),
    Family("linear_attention", linear_attention, lambda c, s: [(s.batch, s.time, s.features)],
           {"feature": ("elu", "relu", "softmax"), "form": ("global", "masked", "loop"),
            "norm": ("", "layernorm", "rmsnorm"), "gated": ("", "gated")},
           {"batch": (1, 4), "time": (4, 160), "features": (8, 256), "width": (8, 128)},
           lambda c, s: s.batch * s.time * (8.0 * s.features * s.width
               + 6.0 * s.width * (s.time if c.form == "masked" else s.width)), TRAINED),
    Family("graph", graph_layer, lambda c, s: [(s.nodes, s.features), (s.nodes, s.nodes)],
           {"kind": ("mean", "attention", "sage", "max"), "links": ("", "normalised"), "layers": (1, 2, 3),
            "activation": COMMON_ACTIVATIONS,
            "bias": ("", "bias"), "readout": ("", "readout")},
           {"nodes": (8, 500), "features": (8, 200), "hidden": (8, 200)},
           lambda c, s: 2.0 * c.layers * s.nodes * s.hidden * (s.features + s.nodes), TRAINED),
)  # fmt: skip
"""Rows may name a value twice: what is usual is drawn more often."""
