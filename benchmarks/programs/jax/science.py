"""Families of JAX programs outside networks: stencils, pairs of points, iterations, contractions, statistics, integers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..families import Choices, Family, Sizes, pick
from .layers import ACTIVATIONS, Weights


def stencil(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """Steps of a finite-difference scheme on a grid of one to three dimensions."""
    axes = range(x.ndim)

    def shifted(a: Any, axis: int, by: int) -> Any:
        if c.border == "periodic":
            return jnp.roll(a, by, axis)
        pad = [(max(by, 0), max(-by, 0)) if i == axis else (0, 0) for i in axes]
        padded = jnp.pad(a, pad, mode="edge" if c.border == "edge" else "constant")
        return jax.lax.slice_in_dim(padded, 0 if by > 0 else -by, (0 if by > 0 else -by) + a.shape[axis], axis=axis)

    def near(a: Any) -> Any:
        total = sum(shifted(a, axis, by) for axis in axes for by in (1, -1))
        if c.points == "wide":
            return (16 * total - sum(shifted(a, axis, by) for axis in axes for by in (2, -2))) / 12 - 2.5 * x.ndim * a
        return total - 2 * x.ndim * a

    def step(a: Any) -> Any:
        if c.kind == "heat":
            return a + 0.05 * near(a)
        if c.kind == "advection":
            return a - 0.1 * sum(jnp.where(a > 0, a - shifted(a, axis, 1), shifted(a, axis, -1) - a) for axis in axes)
        if c.kind == "reaction":
            return jnp.tanh(a + 0.05 * near(a) + 0.1 * a * (1 - a * a))
        if c.kind == "wave":
            return 2 * a - 0.9 * a + 0.1 * near(a)
        gradient = sum(jnp.square(0.5 * (shifted(a, axis, -1) - shifted(a, axis, 1))) for axis in axes)
        return a - 0.05 * jnp.sqrt(gradient + 1e-3)

    if c.form == "loop":
        return jax.lax.fori_loop(0, c.steps, lambda _, a: step(a), x)
    for _ in range(c.steps):
        x = step(x)
    return x


def pairs(p: Weights, c: Choices, s: Sizes, x: Any, y: Any) -> Any:
    """All pairs of two sets of points: distances, kernels, forces."""
    if c.distance == "product":
        squares = (x * x).sum(-1)[:, None] + (y * y).sum(-1)[None, :] - 2 * x @ y.T
    elif c.distance == "l1":
        squares = jnp.abs(x[:, None, :] - y[None, :, :]).sum(-1)
    else:
        squares = jnp.square(x[:, None, :] - y[None, :, :]).sum(-1)
    squares = jnp.abs(squares) + 0.05
    kernel = pick(
        {
            "gauss": lambda d: jnp.exp(-0.5 * d),
            "inverse": lambda d: jax.lax.rsqrt(d),
            "lennard": lambda d: (1 / (d + 0.5)) ** 6 - (1 / (d + 0.5)) ** 3,
            "cauchy": lambda d: 1 / (1 + d),
            "softmax": lambda d: jax.nn.softmax(-d, axis=-1),
            "count": lambda d: (d < 1.0).astype(d.dtype),
        },
        c.kernel,
    )(squares)
    if c.result == "force":
        return jnp.einsum("ij,ijd->id", kernel, x[:, None, :] - y[None, :, :])
    return pick(
        {
            "matrix": lambda k: k,
            "sum": lambda k: k.sum(1),
            "max": lambda k: k.max(1),
            "nearest": lambda k: jnp.argmax(k, axis=1),
            "blend": lambda k: k @ y,
        },
        c.result,
    )(kernel)


def iteration(p: Weights, c: Choices, s: Sizes, a: Any, b: Any) -> Any:
    """Iterations of linear algebra with a few steps: Jacobi, power, conjugate gradients, Newton-Schulz, and their like."""
    n = a.shape[0]
    a = jnp.tanh(a) / n
    start = (
        (a if c.kind == "newton_schulz" else jnp.eye(n, dtype=a.dtype)) if c.kind in ("newton_schulz", "series") else b
    )
    eye = jnp.eye(n, dtype=a.dtype)
    step = pick(
        {
            "jacobi": lambda v: b - a @ v + 0.1 * v,
            "power": lambda v: (a @ v + v) / (jnp.sqrt(jnp.square(a @ v + v).sum()) + 1e-3),
            "richardson": lambda v: v + 0.5 * (b - (v + a @ v)),
            "newton_schulz": lambda m: 1.5 * m - 0.5 * (m @ m.T @ m),
            "series": lambda m: eye + a @ m,
            "gradient": lambda v: v - 0.1 * (a.T @ (a @ v - b)),
            "markov": lambda v: jax.nn.softmax(a, axis=-1) @ v,
            "threshold": lambda v: jnp.sign(v + b - a @ v) * jax.nn.relu(jnp.abs(v + b - a @ v) - 0.1),
        },
        c.kind,
    )
    if c.form == "loop":
        return jax.lax.fori_loop(0, c.steps, lambda _, v: step(v), start)
    for _ in range(c.steps):
        start = step(start)
    return start


def quantized(p: Weights, c: Choices, s: Sizes, x: Any, *w: Any) -> Any:
    """Products of int8 matrices in int32, rescaled."""
    for number, weight in enumerate(w):
        total = jax.lax.dot_general(x, weight, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
        if c.zero_point:
            total = total - 3 * x.astype(jnp.int32).sum(1, keepdims=True)
        scale = 0.001 * (1 + jnp.abs(weight).astype(jnp.float32).mean(0) if c.channels else 1.0)
        y = ACTIVATIONS[c.activation](total.astype(jnp.float32) * scale)
        x = jnp.clip(jnp.round(y * 16), -128, 127).astype(jnp.int8)
        if number + 1 == len(w) and c.output == "float":
            return y
        if number + 1 == len(w) and c.output == "sums":
            return total
    return x


EINSUMS = (
    "ij,jk->ik", "ij,kj->ik", "ji,jk->ik", "ij,ij->i", "ij,ij->", "bij,bjk->bik", "bij,bkj->bik", "bij,jk->bik", "ij,jk->ki",
    "i,j->ij", "ij,j->i", "ij,i->j", "bij,bij->b", "bij,bik->jk", "abc,cd->abd", "abc,bd->acd", "abc,adc->bd",
    "abij,abjk->abik",
    "aibj,ajbk->aibk", "ij,ik->ijk", "ijk,k->ij", "ijk,j->ik", "ijk,ijl->kl", "ijk,jkl->il", "ijk,kjl->il", "ijk,jil->kl",
    "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "ij,jk,kl->il", "ij,kj,kl->li", "i,ij,j->", "bi,bj,bk->ijk", "ab,ac,ad->bcd",
    "ij,ij,ij->j",
)  # fmt: skip


def contraction(p: Weights, c: Choices, s: Sizes, *arrays: Any) -> Any:
    """A contraction of odd index patterns, with what comes before and after it."""
    if c.before == "tanh":
        arrays = tuple(jnp.tanh(a) for a in arrays)
    elif c.before == "shift":
        arrays = tuple(a - a.mean() for a in arrays)
    elif c.before == "widen":
        arrays = tuple(a * a + a for a in arrays)
    y = jnp.einsum(c.pattern, *arrays)
    return pick(
        {
            "": lambda v: v,
            "relu": jax.nn.relu,
            "square_sum": lambda v: jnp.square(v).sum(0) if v.ndim else v * v,
            "scale": lambda v: v / (1 + jnp.abs(v)),
            "flip": lambda v: v.T,
        },
        c.after,
    )(y)


def _index_sizes(c: Choices, s: Sizes) -> dict[str, int]:
    letters = sorted(set(c.pattern) - set(",->"))
    return {letter: getattr(s, f"size{number}") for number, letter in enumerate(letters)}


def _contraction_inputs(c: Choices, s: Sizes) -> list[tuple[Any, ...]]:
    sizes = _index_sizes(c, s)
    return [tuple(sizes[letter] for letter in term) for term in c.pattern.split("->")[0].split(",")]


def _contraction_work(c: Choices, s: Sizes) -> float:
    product = 2.0
    for size in _index_sizes(c, s).values():
        product *= size
    terms = c.pattern.replace("->", ",").split(",")
    elements = [1.0] * len(terms)
    for number, term in enumerate(terms):
        for letter in term:
            elements[number] *= _index_sizes(c, s)[letter]
    # What does not fit in 100 MB of f32 is no candidate, however few operations it takes.
    return 1e12 if sum(elements) > 2e7 else product + 10 * sum(elements)


def statistics(p: Weights, c: Choices, s: Sizes, x: Any) -> Any:
    """Statistics of a table along an axis."""
    if c.transform == "standardize":
        x = (x - x.mean(c.axis, keepdims=True)) / (x.std(c.axis, keepdims=True) + 0.1)
    elif c.transform == "log":
        x = jnp.log1p(jnp.abs(x))
    elif c.transform == "clip":
        x = jnp.clip(x, -1, 1)
    mean = x.mean(c.axis, keepdims=True)
    return pick(
        {
            "variance": lambda: jnp.square(x - mean).mean(c.axis),
            "moments": lambda: tuple(((x - mean) ** k).mean(c.axis) for k in (2, 3, 4)),
            "covariance": lambda: (x - mean).T @ (x - mean) / x.shape[0],
            "correlation": lambda: jnp.corrcoef(x[:64], rowvar=False),
            "cumulative": lambda: jnp.cumsum(x, axis=c.axis),
            "running_max": lambda: jax.lax.cummax(x, axis=c.axis),
            "histogram": lambda: (jnp.floor(jnp.clip(x, -3, 3) * 2)[..., None] == jnp.arange(-6, 7)).sum((0, 1)),
            "range": lambda: x.max(c.axis) - x.min(c.axis),
            "argmax": lambda: jnp.argmax(x, axis=c.axis),
            "logsumexp": lambda: jax.nn.logsumexp(x, axis=c.axis),
            "moving": lambda: (
                jax.lax.reduce_window(x, np.asarray(0, x.dtype), jax.lax.add, (1, 5), (1, 1), "VALID") / 5
            ),
            "differences": lambda: jnp.diff(x, axis=c.axis),
            "norms": lambda: jnp.sqrt(jnp.square(x).sum(c.axis) + 1e-3) + jnp.abs(x).max(c.axis),
            "softmax_entropy": lambda: (
                -(jax.nn.softmax(x, axis=c.axis) * jax.nn.log_softmax(x, axis=c.axis)).sum(c.axis)
            ),
            "products": lambda: jnp.cumprod(1 + 0.001 * jnp.tanh(x), axis=c.axis),
            "outliers": lambda: jnp.where(jnp.abs(x - mean) > 1, mean, x),
        },
        c.kind,
    )()


def pointwise(p: Weights, c: Choices, s: Sizes, x: Any, y: Any) -> Any:
    """Formulas applied to every element: polynomials, finance, geometry, ordinary differential equations."""
    for _ in range(c.times):
        if c.kind == "polynomial":
            z = x
            for k in range(c.order):
                z = z * jnp.tanh(x) + y / (k + 1)
        elif c.kind == "fractal":
            a, b = x, y
            for _ in range(c.order):
                a, b = jnp.clip(a * a - b * b + x, -2, 2), jnp.clip(2 * a * b + y, -2, 2)
            z = a * a + b * b
        elif c.kind == "option":
            price, time = jnp.abs(x) + 0.5, jnp.abs(y) + 0.1
            d = (jnp.log(price) + 0.06 * time) / jnp.sqrt(time)
            z = price * jax.scipy.special.erf(d) - jnp.exp(-0.05 * time) * jax.scipy.special.erf(d - jnp.sqrt(time))
        elif c.kind == "haversine":
            z = jnp.arctan2(jnp.sqrt(jnp.sin(x) ** 2 + jnp.cos(x) * jnp.cos(y) * jnp.sin(y) ** 2 + 2), jnp.abs(y) + 1)
        elif c.kind == "runge_kutta":
            z = x
            for _ in range(c.order):
                k1 = jnp.sin(z) - 0.1 * y
                k2 = jnp.sin(z + 0.05 * k1) - 0.1 * y
                k3 = jnp.sin(z + 0.05 * k2) - 0.1 * y
                z = z + 0.1 / 6 * (k1 + 4 * k2 + k3)
        elif c.kind == "complex":
            z = (x * y - y * y) / (1 + x * x + y * y)
        elif c.kind == "color":
            z = jnp.where(x > 0.04, jnp.abs(x + 0.05) ** 2.4, x / 12.92) * 0.7 + 0.3 * y
        else:
            z = jnp.sin(x * c.order) * jnp.exp(-jnp.abs(y)) + jnp.cos(y)
        x, y = y, z
    return pick(
        {"": lambda v: v, "sum": lambda v: v.sum(), "rows": lambda v: v.sum(1), "columns": lambda v: v.max(0)},
        c.reduced,
    )(y)


def indexing(p: Weights, c: Choices, s: Sizes, x: Any, ids: Any) -> Any:
    """Reading and writing at computed places, and moving data about."""
    return pick(
        {
            "rows": lambda: jnp.take(x, ids, axis=0, mode="clip"),
            "columns": lambda: jnp.take(x, ids, axis=1, mode="clip"),
            "segments": lambda: jax.ops.segment_sum(
                jnp.tile(x[:1], (ids.shape[0], 1)) * ids[:, None], ids, 8, mode="drop"
            ),
            "one_hot": lambda: jax.nn.one_hot(ids, x.shape[0], dtype=x.dtype) @ x,
            "add": lambda: x.at[ids].add(jnp.tanh(x[:1]), mode="drop"),
            "pairs": lambda: jnp.take(x, ids, axis=0, mode="clip") * jnp.take(x, 7 - ids, axis=0, mode="clip"),
            "transpose": lambda: x.T * (1 + ids.sum() % 2),
            "reverse": lambda: x[::-1, ::-1] + ids[0],
            "every_second": lambda: x[::2, ::2] * (ids.sum() % 3),
            "concatenate": lambda: jnp.concatenate([x, x[:8] * 2, jnp.take(x, ids, axis=0, mode="clip")], 0),
            "triangle": lambda: jnp.tril(x) + jnp.triu(x, 2) * ids[0],
        },
        c.kind,
    )() * (1.5 if c.scaled else 1)


_LOOPS = ("", "loop")
FAMILIES = (
    Family("stencil", stencil, lambda c, s: [(s.size0, s.size1, s.size2)[3 - c.dims :] if c.dims > 1 else (s.size0 * s.size1,)],
           {"kind": ("heat", "advection", "reaction", "wave", "eikonal"), "dims": (1, 2, 2, 3), "points": ("near", "wide"),
            "border": ("periodic", "edge", "zero"),
            "steps": (1, 2, 4, 8), "form": _LOOPS},
           {"size0": (8, 256), "size1": (8, 500), "size2": (8, 500)},
           lambda c, s: 15.0 * c.steps * c.dims * (s.size0 * s.size1 * s.size2 if c.dims == 3 else s.size1
               * s.size2 if c.dims == 2 else s.size0 * s.size1),
           share=2, valid=lambda c: c.points == "near" or c.kind in ("heat", "reaction", "wave")),
    Family("pairs", pairs, lambda c, s: [(s.left, s.space), (s.right, s.space)],
           {"distance": ("squares", "product", "l1"), "kernel": ("gauss", "inverse", "lennard", "cauchy", "softmax", "count"),
            "result": ("matrix", "sum", "max", "nearest", "blend", "force")},
           {"left": (8, 1500), "right": (8, 1500), "space": (2, 64)}, lambda c, s: s.left * s.right * (4.0 * s.space + 10)),
    Family("iteration", iteration, lambda c, s: [(s.size, s.size), (s.size, s.columns)],
           {"kind": ("jacobi", "power", "richardson", "newton_schulz", "series", "gradient", "markov", "threshold"),
            "steps": (1, 2, 3, 5, 8), "form": _LOOPS},
           {"size": (8, 900), "columns": (1, 64)},
           lambda c, s: 2.0 * c.steps * s.size**2 * (2 * s.size if c.kind in ("newton_schulz",
               "series") else s.columns) + 20.0 * s.size**2, dtypes=("f32", "f64")),
    Family("quantized", quantized, lambda c, s: [(s.rows, s.width)] + [(s.width, s.width)] * (c.layers - 1) + [(s.width,
        s.columns)],
           {"layers": (1, 1, 2, 3), "activation": ("", "relu", "gelu"), "zero_point": ("", "zero_point"),
            "channels": ("", "channels"), "output": ("int", "float", "sums")},
           {"rows": (1, 400), "width": (8, 900), "columns": (8, 900)},
           lambda c, s: 2.0 * s.rows * s.width * ((c.layers - 1) * s.width + s.columns), dtypes=("i8",)),
    Family("contraction", contraction, _contraction_inputs,
           {"pattern": EINSUMS, "before": ("", "", "tanh", "shift", "widen"),
            "after": ("", "", "relu", "square_sum", "scale", "flip")},
           {f"size{number}": (2, 900) for number in range(5)}, _contraction_work, ("forward", "forward", "input_grad"),
            share=2),
    Family("statistics", statistics, lambda c, s: [(s.rows, s.columns)],
           {"kind": ("variance", "moments", "covariance", "correlation", "cumulative", "running_max", "histogram", "range",
            "argmax", "logsumexp", "moving",
                     "differences", "norms", "softmax_entropy", "products", "outliers"),
                     "transform": ("", "standardize", "log", "clip"), "axis": (0, 1)},
           {"rows": (8, 3000), "columns": (8, 3000)},
           lambda c, s: s.rows * s.columns * (2.0 * s.columns if c.kind in ("covariance",
               "correlation") else 100.0 if c.kind == "histogram" else 15.0)),
    Family("pointwise", pointwise, lambda c, s: [(s.rows, s.columns)] * 2,
           {"kind": ("polynomial", "fractal", "option", "haversine", "runge_kutta", "complex", "color", "waves"),
            "order": (2, 4, 8), "times": (1, 2),
            "reduced": ("", "sum", "rows", "columns")},
           {"rows": (4, 2000), "columns": (4, 2000)}, lambda c, s: 25.0 * c.times * c.order * s.rows * s.columns, ("forward",
            "forward", "input_grad")),
    Family("indexing", indexing, lambda c, s: [(s.rows, s.columns), ("ids", s.picked)],
           {"kind": ("rows", "columns", "segments", "one_hot", "add", "pairs", "transpose", "reverse", "every_second",
            "concatenate", "triangle"), "scaled": ("", "scaled")},
           {"rows": (8, 3000), "columns": (8, 2000), "picked": (1, 2000)},
           lambda c, s: 10.0 * (s.rows * s.columns + s.picked * (s.rows if c.kind == "columns" else s.columns))
           + (2.0 * s.picked * s.rows * s.columns if c.kind == "one_hot" else 0)),
)  # fmt: skip
