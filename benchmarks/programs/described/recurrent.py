"""Recurrent networks, their steps written one after the other."""

from __future__ import annotations

from collections.abc import Callable

from .stablehlo_text import Value, Writer
from .steps import Step, dense, sigmoid

Cell = Callable[[Writer, Value, Value], Value]


def scanned(steps: int, cell: Cell) -> Step:
    """A cell applied to its own state, as many times."""

    def step(w: Writer, x: Value) -> Value:
        state = w.argument(*x.shape)
        for _ in range(steps):
            state = cell(w, x, state)
        return state

    return step


def _gates(w: Writer, x: Value, h: Value, count: int) -> list[Value]:
    size = h.shape[-1]
    y = w.binary("add", dense(count * size)(w, x), dense(count * size, bias=False)(w, h))
    return [w.slice(y, (0, y.shape[0]), (i * size, (i + 1) * size)) for i in range(count)]


def gru(steps: int) -> Step:
    """Gated recurrent units."""

    def cell(w: Writer, x: Value, h: Value) -> Value:
        update, reset, new = _gates(w, x, h, 3)
        z = sigmoid(w, update)
        n = w.unary("tanh", w.binary("add", new, w.binary("multiply", sigmoid(w, reset), h)))
        return w.binary("add", n, w.binary("multiply", z, w.binary("subtract", h, n)))

    return scanned(steps, cell)


def lstm(steps: int) -> Step:
    """Long short-term memory."""

    def step(w: Writer, x: Value) -> Value:
        h, c = w.argument(*x.shape), w.argument(*x.shape)
        for _ in range(steps):
            i, f, g, o = _gates(w, x, h, 4)
            kept = w.binary("multiply", sigmoid(w, f), c)
            c = w.binary("add", kept, w.binary("multiply", sigmoid(w, i), w.unary("tanh", g)))
            h = w.binary("multiply", sigmoid(w, o), w.unary("tanh", c))
        return h

    return step


def linear_recurrence(steps: int) -> Step:
    """A state that is scaled and added to, one number per channel: what state-space models do."""

    def cell(w: Writer, x: Value, h: Value) -> Value:
        decay = w.unary("exponential", w.binary("multiply", w.spread(w.argument(h.shape[1]), h.shape, [1]), -1.0))
        return w.binary("add", w.binary("multiply", decay, h), x)

    return scanned(steps, cell)
