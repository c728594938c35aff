"""Networks drawn at random from the steps that the described ones consist of: blocks for images, volumes, signals, rows and
sequences, one after the other, and a head.
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
Draw = Callable[[random.Random], Named]

_MOST_ELEMENTS, _FEWEST_PLACES = 600_000, 4
_CHANNELS = (8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128)
_WIDTHS = (10, 32, 64, 96, 100, 128, 192, 200, 256, 333, 384, 512, 768, 1000)
_HEADS = (2, 4, 8)


def networks(rng: random.Random, count: int) -> Iterator[tuple[str, list[str]]]:
    """(name, texts) of so many networks, two or three sizes of each."""
    for _ in range(count):
        shape, parts = rng.choices((_images, _volumes, _signals, _rows, _sequences), (40, 6, 10, 20, 24))[0](rng)
        step = chain(*(part for _, part in parts))
        texts = []
        for _ in range(rng.choice((2, 2, 3))):
            w = Writer(rng.choices(("f32", "bf16"), (85, 15))[0])
            texts.append(w.text(step(w, w.argument(*shape()))))
        yield "-".join(name for name, _ in parts), texts


def _activation(rng: random.Random) -> Named:
    name = rng.choice(sorted(ACTIVATIONS))
    return name, ACTIVATIONS[name]


def _number(rng: random.Random) -> Named:
    name = rng.choice(("multiply", "add", "subtract", "divide", "maximum", "minimum"))
    return name, by(name, rng.choice((0.5, 1.5, 2.0)))


def _sides(rng: random.Random, low: int, high: int, count: int) -> tuple[int, ...]:
    """Sides of one size, or of two."""
    side = round(low * (high / low) ** rng.random())
    return tuple(side if rng.random() < 0.7 else round(low * (high / low) ** rng.random()) for _ in range(count))


def _arrays(rng: random.Random, low: int, high: int, dimensions: int) -> Callable[[], tuple[int, ...]]:
    channels = rng.choice((1, 3, *_CHANNELS))

    def shape() -> tuple[int, ...]:
        sides = _sides(rng, low, high, dimensions)
        most = max(_MOST_ELEMENTS // (max(channels, 32) * prod(sides)), 1)
        return min(rng.choice((1, 1, 2, 4, 8)), most), channels, *sides

    return shape


def _on_places(name: str) -> Draw:
    """A pooling that leaves arrays with few places as they are."""

    def step(w: Writer, x: Value) -> Value:
        return pool(name)(w, x) if min(x.shape[2:]) >= _FEWEST_PLACES else x

    return lambda rng: (f"{name}pool", step)


def _after_convolution(rng: random.Random) -> Named:
    draws: tuple[Draw, ...] = (
        _activation, _activation, _activation, _number, _on_places("max"), _on_places("avg"),
        lambda _: ("batchnorm", batchnorm), lambda _: ("groupnorm", groupnorm), lambda _: ("instancenorm", instancenorm),
        lambda _: ("bias", per_channel("add")), lambda _: ("scale", per_channel("multiply")),
        lambda _: ("squeeze", squeeze(8)), lambda _: ("softmax", softmax(1)),
    )  # fmt: skip
    return rng.choice(draws)(rng)


def _convolution(rng: random.Random) -> Named:
    filters = rng.choice(_CHANNELS)
    taps = rng.choices((1, 3, 5, 7), (30, 50, 14, 6))[0]
    how = rng.choices(("plain", "strided", "transposed", "depthwise", "dilated", "valid"), (45, 15, 10, 14, 8, 8))[0]
    bias = rng.random() < 0.5
    if how == "depthwise":
        step = chain(conv(0, taps, padding=taps // 2, groups=0, bias=bias), conv(filters, 1, bias=bias))
    elif how == "transposed":
        step = conv(min(filters, 48), max(taps, 3), padding=max(taps, 3) // 2 + 1, upsample=2, bias=bias)
    elif how == "dilated":
        step = conv(filters, taps, padding=taps // 2 * 2, dilation=2, bias=bias)
    else:
        stride, padding = 2 if how == "strided" else 1, 0 if how == "valid" and taps <= _FEWEST_PLACES else taps // 2
        step = conv(filters, taps, stride=stride, padding=padding, bias=bias)
    return f"{how}{taps}", step


def _around(rng: random.Random) -> Named:
    """A convolution that keeps its array's shape, with what is around it in residual networks and branches."""
    name, activation = _activation(rng)
    taps = rng.choice((1, 3, 3, 5))

    def same(w: Writer, x: Value) -> Value:
        return conv(x.shape[1], taps, padding=taps // 2)(w, x)

    block = chain(same, rng.choice((batchnorm, groupnorm)), activation)
    return rng.choice((
        (f"residual{taps}-{name}", residual(block)),
        (f"branches{taps}-{name}", branches(1, block, conv(rng.choice(_CHANNELS), 1))),
        (f"gated{taps}-{name}", gated(block, chain(same, ACTIVATIONS["sigmoid"]))),
    ))  # fmt: skip


def _head(rng: random.Random) -> Named:
    heads: tuple[Named, ...] = (
        ("mean", everywhere), ("classes", chain(everywhere, dense(rng.choice(_WIDTHS)))), ("logsumexp", logsumexp),
        ("sum", over("add")), ("largest", over("maximum")), ("flat", chain(everywhere, dense(10), softmax(-1))),
        ("rows", flat),
    )  # fmt: skip
    return rng.choice(heads)


def _spatial(rng: random.Random, stages: int) -> list[Named]:
    parts: list[Named] = []
    for _ in range(rng.randint(1, stages)):
        parts.append(_convolution(rng) if rng.random() < 0.75 else _around(rng))
        parts += [_after_convolution(rng) for _ in range(rng.randint(0, 3))]
    return [*parts, _head(rng)] if rng.random() < 0.35 else parts


def _images(rng: random.Random) -> tuple[Callable[[], tuple[int, ...]], list[Named]]:
    return _arrays(rng, 7, 80, 2), _spatial(rng, 4)


def _volumes(rng: random.Random) -> tuple[Callable[[], tuple[int, ...]], list[Named]]:
    return _arrays(rng, 6, 20, 3), _spatial(rng, 2)


def _signals(rng: random.Random) -> tuple[Callable[[], tuple[int, ...]], list[Named]]:
    return _arrays(rng, 60, 3000, 1), _spatial(rng, 3)


def _on_rows(rng: random.Random) -> Named:
    width = rng.choice(_WIDTHS)
    name, activation = _activation(rng)
    draws: tuple[Named, ...] = (
        ("dense", dense(width)), ("dense", dense(width, bias=False)), (f"dense-{name}", chain(dense(width), activation)),
        (f"mlp-{name}", mlp(width, activation)), (f"residual-{name}", residual(mlp(width, activation))),
        ("swiglu", swiglu(width)), ("layernorm", layernorm), ("rmsnorm", rmsnorm), _number(rng), (name, activation),
        ("softmax", softmax(-1)), ("logsoftmax", logsoftmax),
        (f"gate-{name}", gated(dense(width), chain(dense(width), activation))),
    )  # fmt: skip
    return rng.choices(draws, (4, 2, 5, 2, 2, 1, 1.5, 1, 1, 2, 0.7, 0.5, 1))[0]


def _rows(rng: random.Random) -> tuple[Callable[[], tuple[int, ...]], list[Named]]:
    width = rng.choice(_WIDTHS)
    parts = [_on_rows(rng) for _ in range(rng.randint(1, 6))]
    if rng.random() < 0.3:
        parts.append(
            rng.choice(
                (("sum", over("add")), ("largest", over("maximum")), ("columns", softmax(0)), ("logsumexp", logsumexp))
            )
        )
    return lambda: (round(2 ** rng.uniform(0, 9.5)), width), parts


def _on_sequence(rng: random.Random) -> Named:
    heads, before = rng.choice(_HEADS), rng.choice((("layernorm", layernorm), ("rmsnorm", rmsnorm)))
    shared = rng.choice([count for count in (1, 2, 4, 8) if count <= heads])
    name, activation = _activation(rng)
    causal = rng.random() < 0.5
    draws: tuple[Named, ...] = (
        (f"{before[0]}-attention", residual(before[1], attention(heads, shared, causal=causal))),
        ("attention", attention(heads, causal=causal)),
        (f"{before[0]}-mlp-{name}", residual(before[1], mlp(rng.choice(_WIDTHS), activation))),
        (f"{before[0]}-swiglu", residual(before[1], swiglu(rng.choice(_WIDTHS)))),
        before,
        (f"mix-{name}", _across(mlp(rng.choice((32, 64, 128)), activation))),
    )  # fmt: skip
    return rng.choices(draws, (4, 1, 4, 3, 1, 1))[0]


def _across(step: Step) -> Step:
    """A step along the sequence in place of along the width."""
    return lambda w, x: w.transpose(step(w, w.transpose(x, 0, 2, 1)), 0, 2, 1)


def _sequences(rng: random.Random) -> tuple[Callable[[], tuple[int, ...]], list[Named]]:
    width = 8 * rng.choice((4, 8, 12, 16, 24, 32, 48, 64))
    parts = [_on_sequence(rng) for _ in range(rng.randint(1, 5))]
    if rng.random() < 0.3:
        parts.append(
            rng.choice((("classes", dense(rng.choice(_WIDTHS))), ("pooled", over("add")), ("logsoftmax", logsoftmax)))
        )
    return lambda: (rng.choice((1, 1, 2, 4)), rng.choice((1, 7, 16, 33, 64, 100, 128, 197, 256)), width), parts
