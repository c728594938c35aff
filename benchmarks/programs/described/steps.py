"""Steps that networks and fused kernels are described by: each takes a writer and an array and gives an array."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .stablehlo_text import Value, Writer

Step = Callable[[Writer, Value], Value]


def sigmoid(w: Writer, x: Value) -> Value:
    """The logistic function."""
    return w.unary("logistic", x)


def relu(w: Writer, x: Value) -> Value:
    """The larger of x and 0."""
    return w.binary("maximum", x, 0.0)


def swish(w: Writer, x: Value) -> Value:
    """The array times its logistic function."""
    return w.binary("multiply", x, sigmoid(w, x))


def gelu(w: Writer, x: Value) -> Value:
    """The approximation with tanh."""
    cube = w.binary("multiply", w.binary("multiply", w.binary("multiply", x, x), x), 0.044715)
    inner = w.unary("tanh", w.binary("multiply", w.binary("add", x, cube), 0.79788456))
    return w.binary("multiply", w.binary("multiply", x, 0.5), w.binary("add", inner, 1.0))


def softplus(w: Writer, x: Value) -> Value:
    """log(1 + exp(x))."""
    return w.unary("log_plus_one", w.unary("exponential", x))


def mish(w: Writer, x: Value) -> Value:
    """The array times tanh of its softplus."""
    return w.binary("multiply", x, w.unary("tanh", softplus(w, x)))


def hardswish(w: Writer, x: Value) -> Value:
    """The array times a clamped line."""
    gate = w.binary("minimum", relu(w, w.binary("add", x, 3.0)), 6.0)
    return w.binary("multiply", w.binary("multiply", x, gate), 1 / 6)


def hardtanh(w: Writer, x: Value) -> Value:
    """Cut at -1 and 1."""
    return w.binary("minimum", w.binary("maximum", x, -1.0), 1.0)


def leaky(w: Writer, x: Value) -> Value:
    """A hundredth of x where it is negative."""
    return w.select(w.compare("GT", x, 0.0), x, w.binary("multiply", x, 0.01))


def elu(w: Writer, x: Value) -> Value:
    """exp(x) - 1 where x is negative."""
    return w.select(w.compare("GT", x, 0.0), x, w.unary("exponential_minus_one", x))


def dense(features: int, bias: bool = True) -> Step:
    """A product with a matrix of weights over the last axis, and a bias."""

    def step(w: Writer, x: Value) -> Value:
        y = w.dot(x, w.argument(x.shape[-1], features), (len(x.shape) - 1, 0))
        return w.binary("add", y, w.spread(w.argument(features), y.shape, [len(y.shape) - 1])) if bias else y

    return step


def conv(
    filters: int, taps: int = 3, *, stride: int = 1, padding: int = 0, groups: int = 1, dilation: int = 1, upsample: int = 1,
    bias: bool = True,
) -> Step:  # fmt: skip
    """A convolution of as many dimensions as the array has; `upsample` makes it a transposed one, `groups` 0 depthwise."""

    def step(w: Writer, x: Value) -> Value:
        parts = groups or x.shape[1]
        out = filters or x.shape[1]
        weights = w.argument(out, x.shape[1] // parts, *[taps] * (len(x.shape) - 2))
        y = w.convolve(
            x, weights, stride=stride, padding=padding, groups=parts, dilation=dilation, upsample=upsample
        )  # fmt: skip
        return per_channel("add")(w, y) if bias else y

    return step


def per_channel(name: str) -> Step:
    """An element operation with one number per channel."""
    return lambda w, x: w.binary(name, x, w.spread(w.argument(x.shape[1]), x.shape, [1]))


def batchnorm(w: Writer, x: Value) -> Value:
    """With statistics that are known: a scale and a shift per channel."""
    return per_channel("add")(w, per_channel("multiply")(w, x))


def normalized(w: Writer, x: Value, *axes: int) -> Value:
    """Mean 0 and variance 1 over axes."""
    centred = w.binary("subtract", x, w.mean(x, *axes))
    variance = w.mean(w.binary("multiply", centred, centred), *axes)
    return w.binary("multiply", centred, w.unary("rsqrt", w.binary("add", variance, 1e-5)))


def layernorm(w: Writer, x: Value) -> Value:
    """Over the last axis, with scale and shift."""
    y, last = normalized(w, x, len(x.shape) - 1), len(x.shape) - 1
    y = w.binary("multiply", y, w.spread(w.argument(x.shape[-1]), x.shape, [last]))
    return w.binary("add", y, w.spread(w.argument(x.shape[-1]), x.shape, [last]))


def rmsnorm(w: Writer, x: Value) -> Value:
    """Divided by the root of the mean square over the last axis, with a scale."""
    last = len(x.shape) - 1
    scale = w.unary("rsqrt", w.binary("add", w.mean(w.binary("multiply", x, x), last), 1e-6))
    return w.binary("multiply", w.binary("multiply", x, scale), w.spread(w.argument(x.shape[-1]), x.shape, [last]))


def instancenorm(w: Writer, x: Value) -> Value:
    """Over the positions of every image and channel."""
    return normalized(w, x, *range(2, len(x.shape)))


def groupnorm(w: Writer, x: Value) -> Value:
    """Over eight groups of channels, or as many as divide them."""
    groups = next(count for count in (8, 4, 2, 1) if x.shape[1] % count == 0)
    y = w.reshape(x, x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return batchnorm(w, w.reshape(normalized(w, y, *range(2, len(y.shape))), *x.shape))


def softmax(axis: int) -> Step:
    """Softmax along an axis."""

    def step(w: Writer, x: Value) -> Value:
        place = axis % len(x.shape)
        powers = w.unary("exponential", w.binary("subtract", x, w.reduced("maximum", x, place)))
        return w.binary("divide", powers, w.reduced("add", powers, place))

    return step


def logsoftmax(w: Writer, x: Value) -> Value:
    """Logarithm of the softmax along the last axis."""
    last = len(x.shape) - 1
    shifted = w.binary("subtract", x, w.reduced("maximum", x, last))
    return w.binary("subtract", shifted, w.unary("log", w.reduced("add", w.unary("exponential", shifted), last)))


def logsumexp(w: Writer, x: Value) -> Value:
    """Logarithm of the sum of exponentials along axis 1."""
    return w.unary("log", w.reduce("add", w.unary("exponential", x), 1))


def pool(name: str, size: int = 2) -> Step:
    """The maximum or the mean of windows that do not overlap."""

    def step(w: Writer, x: Value) -> Value:
        window = [1, 1, *[size] * (len(x.shape) - 2)]
        y = w.window("maximum" if name == "max" else "add", x, window, window)
        return y if name == "max" else w.binary("multiply", y, 1.0 / size ** (len(x.shape) - 2))

    return step


def everywhere(w: Writer, x: Value) -> Value:
    """The mean over all positions of every channel."""
    axes = range(2, len(x.shape))
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return w.binary("multiply", w.reduce("add", x, *axes), 1.0 / count)


def flat(w: Writer, x: Value) -> Value:
    """One row per image."""
    count = 1
    for size in x.shape[1:]:
        count *= size
    return w.reshape(x, x.shape[0], count)


def over(name: str, axis: int = 1) -> Step:
    """A reduction along an axis."""
    return lambda w, x: w.reduce(name, x, axis)


def by(name: str, number: float) -> Step:
    """An element operation with a number."""
    return lambda w, x: w.binary(name, x, number)


def residual(*steps: Step) -> Step:
    """Steps whose result is added to what they are given."""
    return lambda w, x: w.binary("add", x, chain(*steps)(w, x))


def branches(axis: int, *parts: Step) -> Step:
    """Results of several steps one after the other along an axis."""
    return lambda w, x: w.concatenate(axis, *(part(w, x) for part in parts))


def gated(value: Step, gate: Step) -> Step:
    """The product of two steps' results."""
    return lambda w, x: w.binary("multiply", value(w, x), gate(w, x))


def chain(*steps: Step) -> Step:
    """Steps one after the other."""

    def step(w: Writer, x: Value) -> Value:
        for each in steps:
            x = each(w, x)
        return x

    return step


def squeeze(inner: int) -> Step:
    """Squeeze-and-excitation: channels weighed by a small network on their means."""

    def step(w: Writer, x: Value) -> Value:
        gate = chain(everywhere, dense(inner), relu, dense(x.shape[1]), sigmoid)(w, x)
        return w.binary("multiply", x, w.spread(gate, x.shape, [0, 1]))

    return step


def attention(heads: int, kv_heads: int = 0, *, causal: bool = True, scores: Step | None = None) -> Step:
    """Attention over `(batch, length, width)` with projections; `scores` in place of the softmax."""

    def step(w: Writer, x: Value) -> Value:
        batch, length, width = x.shape
        size, shared = width // heads, kv_heads or heads

        def parts(count: int) -> Value:
            y = w.reshape(dense(count * size, bias=False)(w, x), batch, length, count, size)
            y = w.transpose(y, 0, 2, 1, 3)
            if count < heads:
                y = w.spread(y, (batch, count, heads // count, length, size), [0, 1, 3, 4])
            return w.reshape(y, batch * heads, length, size)

        q, k, v = parts(heads), parts(shared), parts(shared)
        products = w.binary("multiply", w.dot(q, k, (2, 2), 1), size**-0.5)
        if causal:
            seen = w.compare("GE", w.iota(1, *products.shape), w.iota(2, *products.shape))
            products = w.select(seen, products, -1e4)
        y = w.dot((scores or softmax(-1))(w, products), v, (2, 1), 1)
        y = w.transpose(w.reshape(y, batch, heads, length, size), 0, 2, 1, 3)
        return dense(width, bias=False)(w, w.reshape(y, batch, length, width))

    return step


def mlp(inner: int, activation: Step = gelu) -> Step:
    """Two layers with an activation, as wide at the end as at the start."""
    return lambda w, x: chain(dense(inner), activation, dense(x.shape[-1]))(w, x)


def swiglu(inner: int) -> Step:
    """A gated feed-forward network."""
    gate = gated(chain(dense(inner, bias=False), swish), dense(inner, bias=False))
    return lambda w, x: chain(gate, dense(x.shape[-1], bias=False))(w, x)


ACTIVATIONS: Mapping[str, Step] = {
    "relu": relu, "sigmoid": sigmoid, "tanh": lambda w, x: w.unary("tanh", x), "swish": swish, "gelu": gelu, "mish": mish,
    "softplus": softplus, "hardswish": hardswish, "hardtanh": hardtanh, "leaky": leaky, "elu": elu,
}  # fmt: skip
"""Activations by name."""
