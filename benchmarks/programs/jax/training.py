"""Families of JAX programs from training: losses with their gradients, optimisers over several tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..families import Choices, Family, Sizes, pick
from .layers import Weights


def _cosine(x: Any, y: Any) -> Any:
    norms = jnp.sqrt((x * x).sum(-1) + 1e-3) * jnp.sqrt((y * y).sum(-1) + 1e-3)
    return 1 - (x * y).sum(-1) / norms


def _contrastive(x: Any, y: Any) -> Any:
    scores = jnp.einsum("id,jd->ij", jnp.tanh(x), jnp.tanh(y)) / x.shape[-1] ** 0.5
    diagonal = jnp.diagonal(scores)
    return jax.nn.logsumexp(scores, axis=1) + jax.nn.logsumexp(scores, axis=0) - 2 * diagonal


def _soft_labels(x: Any, y: Any) -> Any:
    return -(jax.nn.softmax(y, axis=-1) * jax.nn.log_softmax(x, axis=-1)).sum(-1)


def _divergence(x: Any, y: Any) -> Any:
    target = jax.nn.log_softmax(y, axis=-1)
    return (jnp.exp(target) * (target - jax.nn.log_softmax(x, axis=-1))).sum(-1)


def _huber(x: Any, y: Any) -> Any:
    error = jnp.abs(x - y)
    return jnp.where(error < 1, 0.5 * error * error, error - 0.5).sum(-1)


def _focal(x: Any, y: Any) -> Any:
    chance = jax.nn.sigmoid(x)
    target = jax.nn.sigmoid(y)
    return -(
        target * (1 - chance) ** 2 * jax.nn.log_sigmoid(x) + (1 - target) * chance**2 * jax.nn.log_sigmoid(-x)
    ).sum(-1)


def _dice(x: Any, y: Any) -> Any:
    a, b = jax.nn.sigmoid(x), jax.nn.sigmoid(y)
    return 1 - (2 * (a * b).sum(-1) + 1) / (a.sum(-1) + b.sum(-1) + 1)


def _triplet(x: Any, y: Any) -> Any:
    near = jnp.square(x - y).sum(-1)
    far = jnp.square(x - jnp.roll(y, 1, axis=0)).sum(-1)
    return jax.nn.relu(near - far + 0.5)


def _gaussian(x: Any, y: Any) -> Any:
    spread = jax.nn.softplus(y) + 0.1
    return (jnp.log(spread) + jnp.square(x / spread)).sum(-1)


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "mse": lambda x, y: jnp.square(x - y).sum(-1),
    "mae": lambda x, y: jnp.abs(x - y).sum(-1),
    "huber": _huber,
    "soft_labels": _soft_labels,
    "divergence": _divergence,
    "contrastive": _contrastive,
    "cosine": _cosine,
    "hinge": lambda x, y: jax.nn.relu(1 - x * jnp.sign(y)).sum(-1),
    "focal": _focal,
    "dice": _dice,
    "triplet": _triplet,
    "gaussian": _gaussian,
    "logcosh": lambda x, y: (jax.nn.softplus(2 * (x - y)) - (x - y)).sum(-1),
    "poisson": lambda x, y: (jnp.exp(jnp.tanh(x)) - jnp.abs(y) * jnp.tanh(x)).sum(-1),
}


def loss(p: Weights, c: Choices, s: Sizes, x: Any, y: Any) -> Any:
    """A loss of two arrays, reduced, with weights and regularisation."""
    value = LOSSES[c.kind](x, y)
    if c.weighted:
        value = value * jax.nn.softmax(p("importance", value.shape[0]))
    total = pick(
        {
            "mean": jnp.mean,
            "sum": jnp.sum,
            "rows": lambda v: v,
            "logmeanexp": lambda v: jax.nn.logsumexp(v / (1 + s.columns)),
        },
        c.reduced,
    )(value)
    if c.penalty == "l2":
        total = total + 1e-3 * jnp.square(x).mean()
    return total + 1e-3 * jnp.abs(x).mean() if c.penalty == "l1" else total


def token_loss(p: Weights, c: Choices, s: Sizes, x: Any, labels: Any) -> Any:
    """Cross-entropy of logits against labels."""
    if c.head:
        x = x @ p("head", s.columns, s.classes)
    scores = jax.nn.log_softmax(x / 2 if c.temperature else x, axis=-1)
    if c.labels == "one_hot":
        picked = (scores * jax.nn.one_hot(labels, scores.shape[-1], dtype=scores.dtype)).sum(-1)
    else:
        picked = jnp.take_along_axis(scores, labels[:, None], axis=-1, mode="clip")[:, 0]
    if c.smoothing:
        picked = 0.9 * picked + 0.1 * scores.mean(-1)
    if c.masked:
        astype = (labels > 1).astype(scores.dtype)
        return -(picked * astype).sum() / (astype.sum() + 1)
    return -picked.mean() + (1e-4 * jnp.square(jax.nn.logsumexp(x, axis=-1)).mean() if c.z_loss else 0.0)


Rule = Callable[[Any, Any, Any, Any], tuple[Any, Any, Any]]


def _root(v: Any) -> Any:
    return jnp.sqrt(jnp.abs(v) + 1e-6)


def _adam(w: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return m / _root(v), m, v


def _nesterov(w: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    m = 0.9 * m + g
    return g + 0.9 * m, m, v


def _lamb(w: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    update, m, v = _adam(w, g, m, v)
    return update * _root((w * w).sum()) / _root((update * update).sum()), m, v


def _adafactor(w: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    squares = g * g + 1e-6
    rows, columns = squares.mean(-1, keepdims=True), squares.mean(0, keepdims=True)
    return g / _root(rows * columns / rows.mean()), m, v


def _adamax(w: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    m, v = 0.9 * m + 0.1 * g, jnp.maximum(0.999 * v, jnp.abs(g))
    return m / (jnp.abs(v) + 1e-3), m, v


RULES: dict[str, Rule] = {
    "sgd": lambda w, g, m, v: (g, m, v),
    "momentum": lambda w, g, m, v: (0.9 * m + g, 0.9 * m + g, v),
    "nesterov": _nesterov,
    "adam": _adam,
    "rmsprop": lambda w, g, m, v: (g / _root(0.9 * v + 0.1 * g * g), m, 0.9 * v + 0.1 * g * g),
    "adagrad": lambda w, g, m, v: (g / _root(v + g * g), m, v + g * g),
    "lion": lambda w, g, m, v: (jnp.sign(0.9 * m + 0.1 * g), 0.99 * m + 0.01 * g, v),
    "lamb": _lamb,
    "adafactor": _adafactor,
    "adamax": _adamax,
    "sign": lambda w, g, m, v: (jnp.sign(g), m, v),
}


def optimizer(p: Weights, c: Choices, s: Sizes, *grads: Any) -> Any:
    """One step of an optimiser over several tensors, whose states are arguments."""
    if c.clip == "norm":
        norm = jnp.sqrt(sum((g * g).sum() for g in grads) + 1e-6)
        grads = tuple(g * jnp.minimum(1.0, 1.0 / norm).astype(g.dtype) for g in grads)
    elif c.clip == "value":
        grads = tuple(jnp.clip(g, -1.0, 1.0) for g in grads)
    results = []
    for number, g in enumerate(grads):
        w, m, v = (p(f"{name}{number}", *g.shape) for name in "wmv")
        update, m, v = RULES[c.rule](w, g, m, v)
        if c.decay:
            update = update + 0.01 * w
        new = w - 0.001 * update
        if c.average:
            new = 0.99 * p(f"a{number}", *g.shape) + 0.01 * new
        results += [new, m, v]
    return tuple(results)


FAMILIES = (
    Family("loss", loss, lambda c, s: [(s.rows, s.columns)] * 2,
           {"kind": tuple(LOSSES), "reduced": ("mean", "mean", "sum", "rows", "logmeanexp"), "weighted": ("", "weighted"),
            "penalty": ("", "l2", "l1")},
           {"rows": (2, 3000), "columns": (8, 6000)},
           lambda c, s: 25.0 * s.rows * s.columns + (2.0 * s.rows**2 * s.columns if c.kind == "contrastive" else 0),
               ("forward", "input_grad"), share=2,
           valid=lambda c: c.reduced != "rows" or not c.penalty),
    Family("token_loss", token_loss, lambda c, s: [(s.rows, s.columns), ("ids", s.rows)],
           {"head": ("", "head"), "labels": ("one_hot", "picked"), "temperature": ("", "temperature"),
            "smoothing": ("", "smoothing"),
            "masked": ("", "masked"), "z_loss": ("", "z_loss")},
           {"rows": (2, 1000), "columns": (8, 3000), "classes": (8, 3000)},
           lambda c, s: 20.0 * s.rows * s.columns + (2.0 * s.rows * s.columns * s.classes if c.head else 0), ("forward",
               "input_grad"),
           valid=lambda c: not (c.masked and c.z_loss)),
    Family("optimizer", optimizer, lambda c, s: [(s.rows, s.columns) if n % 3 != 2 else (s.columns,
        s.third) for n in range(c.tensors)],
           {"rule": tuple(RULES), "tensors": (1, 2, 3, 5, 8), "clip": ("", "", "norm", "value"), "decay": ("", "decay"),
            "average": ("", "", "average")},
           {"rows": (4, 1600), "columns": (8, 1600), "third": (1, 600)},
           lambda c, s: 40.0 * c.tensors * s.rows * s.columns, dtypes=("f32", "f64"), share=2),
)  # fmt: skip
