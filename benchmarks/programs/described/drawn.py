"""Networks drawn at random from the steps that the described ones consist of: blocks for images, volumes, signals, rows and
sequences, one after the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from math import prod

from .stablehlo_text import Value, Writer
from .steps import (
    ACTIVATIONS,
    Step,
    attention,
    batchnorm,
    branches,
    by,
    chain,
    conv,
    dense,
    everywhere,
    flat,
    gated,
    groupnorm,
    instancenorm,
    layernorm,
    logsoftmax,
    logsumexp,
    mlp,
    over,
    per_channel,
    pool,
    residual,
    rmsnorm,
    softmax,
    squeeze,
    swiglu,
)

Named = tuple[str, Step]
Network = tuple[Callable[[], tuple[int, ...]], list[Named]]
"""What draws the shape of an array, and the steps it goes through."""

_CHANNELS = (8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128)
_WIDTHS = (10, 32, 64, 96, 100, 128, 192, 200, 256, 333, 384, 512, 768, 1000)
_LENGTHS = (1, 7, 16, 33, 64, 100, 128, 197, 256)
_USUAL_ELEMENTS = 600_000
"""Elements of an array with 32 channels above which a batch is one."""

_ARRAYS = ((40, 2, 7, 80, 4), (6, 3, 6, 20, 2), (10, 1, 60, 3000, 3))
"""Images, volumes and signals: how often, dimensions, shortest and longest side, most stages."""


def networks(rng: random.Random, count: int) -> Iterator[tuple[str, list[str]]]:
    """(name, texts) of so many networks, two or three sizes of each."""
    draws = [*(_spatial(*row) for _, *row in _ARRAYS), _rows, _sequences]
    weights = [*(weight for weight, *_ in _ARRAYS), 20, 24]
    for _ in range(count):
        shape, parts = rng.choices(draws, weights)[0](rng)
        step = chain(*(part for _, part in parts))
        texts = []
        for _ in range(rng.choice((2, 2, 3))):
            w = Writer(rng.choices(("f32", "bf16"), (85, 15))[0])
            texts.append(w.text(step(w, w.argument(*shape()))))
        yield "-".join(name for name, _ in parts), texts


def _chosen(rng: random.Random, *choices: tuple[float, Named]) -> Named:
    return rng.choices([named for _, named in choices], [weight for weight, _ in choices])[0]


def _activation(rng: random.Random) -> Named:
    return rng.choice(sorted(ACTIVATIONS.items()))


def _number(rng: random.Random) -> Named:
    name = rng.choice(("multiply", "add", "subtract", "divide", "maximum", "minimum"))
    return name, by(name, rng.choice((0.5, 1.5, 2.0)))


def _spatial(dimensions: int, low: int, high: int, most_stages: int) -> Callable[[random.Random], Network]:
    """Draws convolutions, with what comes after each, over arrays of so many dimensions."""

    def draw(rng: random.Random) -> Network:
        channels, parts = rng.choice((1, 3, *_CHANNELS)), []

        def shape() -> tuple[int, ...]:
            side = round(low * (high / low) ** rng.random())
            sides = [
                side if rng.random() < 0.7 else round(low * (high / low) ** rng.random()) for _ in range(dimensions)
            ]
            most = max(_USUAL_ELEMENTS // (max(channels, 32) * prod(sides)), 1)
            return min(rng.choice((1, 1, 2, 4, 8)), most), channels, *sides

        for _ in range(rng.randint(1, most_stages)):
            parts.append(_convolution(rng) if rng.random() < 0.75 else _block(rng))
            parts += [_after_convolution(rng) for _ in range(rng.randint(0, 3))]
        return shape, [*parts, _head(rng)] if rng.random() < 0.35 else parts

    return draw


def _convolution(rng: random.Random) -> Named:
    """A convolution; where an array has fewer places than it has taps, one without stride and with padding."""
    filters, taps = rng.choice(_CHANNELS), rng.choices((1, 3, 5, 7), (30, 50, 14, 6))[0]
    bias, half = rng.random() < 0.5, taps // 2
    same = conv(filters, taps, padding=half, bias=bias)
    name, step = _chosen(
        rng,
        (45, ("plain", same)),
        (15, ("strided", conv(filters, taps, stride=2, padding=half, bias=bias))),
        (8, ("valid", conv(filters, taps, bias=bias))),
        (8, ("dilated", conv(filters, taps, padding=2 * half, dilation=2, bias=bias))),
        (14, ("depthwise", chain(conv(0, taps, padding=half, groups=0, bias=bias), conv(filters, 1, bias=bias)))),
        (10, ("transposed", conv(min(filters, 48), taps + 1, padding=half + 1, upsample=2, bias=bias))),
    )
    return f"{name}{taps}", lambda w, x: (step if min(x.shape[2:]) > taps else same)(w, x)


def _block(rng: random.Random) -> Named:
    """A convolution that keeps its array's shape, with what is around it in residual networks and branches."""
    name, activation = _activation(rng)
    taps = rng.choice((1, 3, 3, 5))

    def same(w: Writer, x: Value) -> Value:
        return conv(x.shape[1], taps, padding=taps // 2)(w, x)

    block = chain(same, rng.choice((batchnorm, groupnorm)), activation)
    kind, step = _chosen(
        rng,
        (1, ("residual", residual(block))),
        (1, ("branches", branches(1, block, conv(rng.choice(_CHANNELS), 1)))),
        (1, ("gated", gated(block, chain(same, ACTIVATIONS["sigmoid"])))),
    )
    return f"{kind}{taps}-{name}", step


def _pooling(name: str) -> Named:
    """A pooling that leaves arrays with few places as they are."""
    return f"{name}pool", lambda w, x: pool(name)(w, x) if min(x.shape[2:]) > 3 else x


def _after_convolution(rng: random.Random) -> Named:
    return _chosen(
        rng,
        (3, _activation(rng)), (1, _number(rng)), (1, _pooling("max")), (1, _pooling("avg")), (1, ("batchnorm", batchnorm)),
        (1, ("groupnorm", groupnorm)), (1, ("instancenorm", instancenorm)), (1, ("bias", per_channel("add"))),
        (1, ("scale", per_channel("multiply"))), (1, ("squeeze", squeeze(8))), (1, ("softmax", softmax(1))),
    )  # fmt: skip


def _head(rng: random.Random) -> Named:
    return _chosen(
        rng,
        (1, ("mean", everywhere)), (1, ("dense", chain(everywhere, dense(rng.choice(_WIDTHS))))), (1, ("logsumexp", logsumexp)),
        (1, ("classes", chain(everywhere, dense(10), softmax(-1)))), (1, ("sum", over("add"))),
        (1, ("largest", over("maximum"))), (1, ("flat", flat)),
    )  # fmt: skip


def _rows(rng: random.Random) -> Network:
    """Layers over rows, and at times a reduction along their columns."""
    width, parts = rng.choice(_WIDTHS), []
    for _ in range(rng.randint(1, 6)):
        inner, (name, activation) = rng.choice(_WIDTHS), _activation(rng)
        parts.append(_chosen(
            rng,
            (4, ("dense", dense(inner))), (2, ("product", dense(inner, bias=False))),
            (5, (f"dense-{name}", chain(dense(inner), activation))), (2, (f"mlp-{name}", mlp(inner, activation))),
            (2, (f"residual-{name}", residual(mlp(inner, activation)))), (1, ("swiglu", swiglu(inner))),
            (1, (f"gate-{name}", gated(dense(inner), chain(dense(inner), activation)))), (1.5, ("layernorm", layernorm)),
            (1, ("rmsnorm", rmsnorm)), (1, _number(rng)), (2, (name, activation)), (0.7, ("softmax", softmax(-1))),
            (0.5, ("logsoftmax", logsoftmax)),
        ))  # fmt: skip
    if rng.random() < 0.3:
        last = ("sum", over("add")), ("largest", over("maximum")), ("columns", softmax(0)), ("logsumexp", logsumexp)
        parts.append(rng.choice(last))
    return lambda: (round(2 ** rng.uniform(0, 9.5)), width), parts


def _sequences(rng: random.Random) -> Network:
    """Layers of transformers and mixers."""
    width, parts = 8 * rng.choice((4, 8, 12, 16, 24, 32, 48, 64)), []
    for _ in range(rng.randint(1, 5)):
        heads, causal = rng.choice((2, 4, 8)), rng.random() < 0.5
        shared, inner = rng.choice([count for count in (1, 2, 4, 8) if count <= heads]), rng.choice(_WIDTHS)
        before, norm = rng.choice((("layernorm", layernorm), ("rmsnorm", rmsnorm)))
        name, activation = _activation(rng)
        parts.append(_chosen(
            rng,
            (4, (f"{before}-attention", residual(norm, attention(heads, shared, causal=causal)))),
            (1, ("attention", attention(heads, causal=causal))),
            (4, (f"{before}-mlp-{name}", residual(norm, mlp(inner, activation)))),
            (3, (f"{before}-swiglu", residual(norm, swiglu(inner)))),
            (1, (before, norm)),
            (1, (f"mix-{name}", _along_sequence(mlp(rng.choice((32, 64, 128)), activation)))),
        ))  # fmt: skip
    if rng.random() < 0.3:
        parts.append(rng.choice((("classes", dense(100)), ("pooled", over("add")), ("logsoftmax", logsoftmax))))
    return lambda: (rng.choice((1, 1, 2, 4)), rng.choice(_LENGTHS), width), parts


def _along_sequence(step: Step) -> Step:
    """A step along the sequence in place of along the width."""
    return lambda w, x: w.transpose(step(w, w.transpose(x, 0, 2, 1)), 0, 2, 1)
