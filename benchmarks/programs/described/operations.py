"""Single operations of StableHLO, linalg and TOSA, and chains of two and three, over sizes, axes and element types."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from .stablehlo_text import Value, Writer
from .steps import ACTIVATIONS, Step, by, chain, conv, dense, instancenorm, layernorm, logsumexp, pool, softmax

Make = Callable[[Writer, Value], Value]

SHAPES = ((64, 64), (1024, 1024), (8, 4096), (4096, 8), (63, 1001), (1001, 63), (1, 1_000_003), (17, 33), (2048, 257))
"""Rows and columns: square, flat, tall, odd, one row."""
_SLOW, _LONGEST = re.compile("dot|cumulative|sort|top"), 4096
"""Operations whose work or operands grow faster than their input, and the longest axis they are given."""

_UNARY = ("abs", "ceil", "cosine", "exponential", "exponential_minus_one", "floor", "log", "log_plus_one", "logistic", "negate",
          "round_nearest_even", "rsqrt", "sign", "sine", "sqrt", "cbrt", "tanh")  # fmt: skip
_BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "remainder", "atan2")
_REDUCTIONS = ("add", "maximum", "minimum", "multiply")


def _twice(name: str) -> Make:
    return lambda w, x: w.binary(name, x, w.argument(*x.shape))


def _with_row(name: str, axis: int) -> Make:
    return lambda w, x: w.binary(name, x, w.spread(w.argument(x.shape[axis]), x.shape, [axis]))


def _place_of_extreme(name: str, axis: int) -> Make:
    """The place of the largest or smallest along an axis, as exporters write it without a region of two results."""

    def make(w: Writer, x: Value) -> Value:
        is_best = w.compare("EQ", x, w.reduced(name, x, axis))
        places = w.select(is_best, w.iota(axis, *x.shape), w.number(2**30, *x.shape, dtype="i32"))
        return w.reduce("minimum", places, axis)

    return make


def _cumulative(name: str, axis: int) -> Make:
    def make(w: Writer, x: Value) -> Value:
        window, low = [1] * len(x.shape), [0] * len(x.shape)
        window[axis], low[axis] = x.shape[axis], x.shape[axis] - 1
        return w.window(name, x, window, [1] * len(x.shape), low)

    return make


def _product(left: bool, right: bool) -> Make:
    """A product of the array, as it is or transposed, with a matrix, likewise."""

    def make(w: Writer, x: Value) -> Value:
        k, n = x.shape[0 if left else 1], 96
        y = w.argument(*((n, k) if right else (k, n)))
        return w.dot(x, y, (0 if left else 1, 1 if right else 0))

    return make


def _largest_few(axis: int) -> Make:
    def make(w: Writer, x: Value) -> Value:
        ranges = [(0, size) for size in x.shape]
        ranges[axis] = (0, min(8, x.shape[axis]))
        return w.slice(w.sort(x, axis, "GT"), *ranges)

    return make


SINGLE: Mapping[str, Make] = {
    **{f"stablehlo-{name}": (lambda w, x, name=name: w.unary(name, x)) for name in _UNARY},
    **{f"stablehlo-{name}": _twice(name) for name in _BINARY},
    **{f"stablehlo-{name}-row": _with_row(name, 1) for name in ("add", "multiply", "maximum")},
    **{f"stablehlo-{name}-column": _with_row(name, 0) for name in ("add", "multiply", "maximum")},
    **{f"stablehlo-reduce-{name}-{axis}": (lambda w, x, name=name, axis=axis: w.reduce(name, x, axis))
       for name in _REDUCTIONS for axis in (0, 1)},
    **{f"stablehlo-softmax-{axis}": softmax(axis) for axis in (0, 1)},
    **{f"stablehlo-sort-{axis}": (lambda w, x, axis=axis: w.sort(x, axis)) for axis in (0, 1)},
    **{f"stablehlo-top-{axis}": _largest_few(axis) for axis in (0, 1)},
    **{f"stablehlo-{word}-{axis}": _place_of_extreme(name, axis)
       for word, name in (("argmax", "maximum"), ("argmin", "minimum")) for axis in (0, 1)},
    **{f"stablehlo-cumulative-{name}-{axis}": _cumulative(name, axis) for name in ("add", "multiply") for axis in (0, 1)},
    **{f"stablehlo-dot-{'nt'[left]}{'nt'[right]}": _product(left, right) for left in (False, True) for right in (False, True)},
    "stablehlo-transpose": lambda w, x: w.transpose(x, 1, 0),
    "stablehlo-reverse-0": lambda w, x: w.op(f"stablehlo.reverse {x.name}, dims = [0] : {{}}", x.shape, x.dtype),
    "stablehlo-reverse-1": lambda w, x: w.op(f"stablehlo.reverse {x.name}, dims = [1] : {{}}", x.shape, x.dtype),
    "stablehlo-slice-0": lambda w, x: w.slice(x, (0, (x.shape[0] + 1) // 2), (0, x.shape[1])),
    "stablehlo-slice-1": lambda w, x: w.slice(x, (0, x.shape[0]), (0, (x.shape[1] + 1) // 2)),
    "stablehlo-concatenate-0": lambda w, x: w.concatenate(0, x, w.argument(*x.shape)),
    "stablehlo-concatenate-1": lambda w, x: w.concatenate(1, x, w.argument(*x.shape)),
    "stablehlo-select": lambda w, x: w.select(w.compare("GT", x, 0.0), x, w.argument(*x.shape)),
    "stablehlo-convert": lambda w, x: w.convert(x, "bf16" if x.dtype == "f32" else "f32"),
    "stablehlo-broadcast-0": lambda w, x: w.spread(x, (4, *x.shape), (1, 2)),
    "stablehlo-broadcast-2": lambda w, x: w.spread(x, (*x.shape, 4), (0, 1)),
    "stablehlo-gather-rows": lambda w, x: w.rows(w.argument(8, x.shape[1]), w.argument(x.shape[0], dtype="i32")),
}  # fmt: skip
"""Operations on `(rows, columns)`."""

BATCHED_SHAPES = ((9, 70, 41, 88), (16, 64, 64, 64), (1, 7, 1001, 33), (96, 16, 16, 128))
"""Batch, rows, inner size and columns of batched products."""

_IMAGE_SHAPES = ((1, 16, 28, 28), (4, 8, 33, 17), (2, 3, 65, 65))
IMAGES: Mapping[str, Step] = {
    "conv1x1": conv(32, 1), "conv3x3": conv(32, 3, padding=1), "conv3x3-stride": conv(32, 3, stride=2),
    "conv1x1-stride": conv(32, 1, stride=2), "conv5x5": conv(16, 5), "conv-dilated": conv(16, 3, dilation=2),
    "conv-transposed": conv(16, 3, upsample=2, padding=2), "conv-depthwise": conv(0, 3, groups=0),
    "max-pool": pool("max"), "mean-pool": pool("avg"), "instance-norm": instancenorm,
}  # fmt: skip
"""Operations on images."""

_LINALG_BODIES = {"exp": "math.exp", "tanh": "math.tanh", "rsqrt": "math.rsqrt", "log": "math.log", "erf": "math.erf",
                  "abs": "math.absf",
                  "neg": "arith.negf"}  # fmt: skip
_TOSA_UNARY = ("abs", "ceil", "exp", "floor", "log", "negate", "reciprocal", "rsqrt", "sigmoid", "tanh", "erf")
_TOSA_REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min")

_CHAINED: Mapping[str, Step] = {
    **ACTIVATIONS, "softmax-0": softmax(0), "softmax-1": softmax(1), "layernorm": layernorm, "dense": dense(128),
    "scale": by("multiply", 3.0),
    "transpose": lambda w, x: w.transpose(x, 1, 0), "sort": lambda w, x: w.sort(x, 1),
    "sum-0": lambda w, x: w.reduced("add", x, 0),
    "max-1": lambda w, x: w.reduced("maximum", x, 1), "twice": lambda w, x: w.concatenate(0, x, x), "logsumexp": logsumexp,
}  # fmt: skip
_ENDING = frozenset({"logsumexp"})
_LONGEST_CHAINED = 20_000
"""Longest axis of a chain, among whose operations are sorts."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that operations are written in.

    Attributes:
        arrays: Rows and columns.
        batched: Batch, rows, inner size and columns of batched products.
        images: Images, channels, height and width.
    """

    arrays: Sequence[tuple[int, int]] = SHAPES
    batched: Sequence[tuple[int, int, int, int]] = BATCHED_SHAPES
    images: Sequence[tuple[int, int, int, int]] = _IMAGE_SHAPES

    @classmethod
    def drawn(cls, rng: random.Random) -> Sizes:
        """Sizes of every order of magnitude, even, odd and prime, whose arrays have up to 4 million elements."""

        def size(least: int, most: int) -> int:
            return round(least * (most / least) ** rng.random())

        arrays = [(rows, size(1, min(2**20, 2**22 // rows))) for rows in (size(1, 2**17) for _ in range(80))]
        return cls(
            arrays=[shape for shape in arrays if prod(shape) >= 64],
            batched=[(size(1, 128), size(1, 256), size(1, 256), size(1, 256)) for _ in range(4)],
            images=[(size(1, 8), size(2, 128), size(7, 128), size(7, 128)) for _ in range(3)],
        )


def single(rng: random.Random, sizes: Sizes) -> Iterator[tuple[str, str, list[str]]]:
    """(dialect, name, texts) of every operation alone, three sizes of it each."""
    for name, make in SINGLE.items():
        shapes = [shape for shape in sizes.arrays if max(shape) <= _LONGEST] if _SLOW.search(name) else sizes.arrays
        yield "stablehlo", name, [_stablehlo(make, shape, _dtype(rng)) for shape in rng.sample(shapes, 3)]
    yield "stablehlo", "stablehlo-dot-batched", [_batched(shape, _dtype(rng)) for shape in sizes.batched]
    for name, step in IMAGES.items():
        yield "stablehlo", f"stablehlo-{name}", [_stablehlo(step, shape, _dtype(rng)) for shape in sizes.images]
    for name in _LINALG_BODIES:
        yield (
            "linalg",
            f"linalg-{name}",
            [_linalg(name, shape, turned=rng.random() < 0.3) for shape in rng.sample(sizes.arrays, 3)],
        )
    for axis in (0, 1):
        yield (
            "linalg",
            f"linalg-softmax-{axis}",
            [_linalg_softmax(shape, axis) for shape in rng.sample(sizes.arrays, 3)],
        )
        for body in ("addf", "maximumf", "mulf"):
            yield (
                "linalg",
                f"linalg-reduce-{body}-{axis}",
                [_linalg_reduce(body, shape, axis) for shape in rng.sample(sizes.arrays, 3)],
            )
    for name in _TOSA_UNARY:
        yield "tosa", f"tosa-{name}", [_tosa(name, shape) for shape in rng.sample(sizes.arrays, 3)]
    for name in (*_TOSA_REDUCTIONS, "argmax"):
        for axis in (0, 1):
            shapes = rng.sample(sizes.arrays, 3)
            yield "tosa", f"tosa-{name}-{axis}", [_tosa_reduction(name, shape, axis) for shape in shapes]


def chains(rng: random.Random, count: int, sizes: Sizes) -> Iterator[tuple[str, str, list[str]]]:
    """So many different chains of two and three operations, two sizes of each."""
    seen = set()
    while len(seen) < count:
        names = tuple(rng.sample(sorted(_CHAINED), rng.choice((2, 3))))
        if names in seen or not _ENDING.isdisjoint(names[:-1]):
            continue
        seen.add(names)
        step = chain(*(_CHAINED[name] for name in names))
        small = [shape for shape in sizes.arrays if prod(shape) < 300_000 and max(shape) <= _LONGEST_CHAINED]
        yield "stablehlo", "-".join(names), [_stablehlo(step, shape, _dtype(rng)) for shape in rng.sample(small, 2)]


_SORTED_SHAPES = ((4096, 16), (16, 4096), (20_000, 8), (8, 8192), (1000, 100), (300, 300), (65, 1023), (2048, 257), (128, 2048),
                  (1, 1000), (1, 20_000), (33, 17))  # fmt: skip
"""Rows and columns of sorts: IREE's take the square of the length, 0.5 s at the longest of these."""

_READ = ("all", "places", "few", "few-places", "last", "middle", "rows", "one")
"""What is read of a sort: all of it, the places that its elements had, the first eight of both, the last eight, those between,
some sorted rows, the one element in the middle."""


def sorts(rng: random.Random) -> Iterator[tuple[str, list[str]]]:
    """(name, texts) of sorts along either axis, upwards and downwards, by what is read of them; four sizes of each."""
    for read in _READ:
        for axis in (0, 1):
            for how in ("LT", "GT"):
                texts = []
                for shape in rng.sample(_SORTED_SHAPES, 4):
                    w = Writer(rng.choices(("f32", "bf16", "i32"), (80, 10, 10))[0])
                    texts.append(w.text(_sort(w, w.argument(*(shape if axis else shape[::-1])), axis, how, read)))
                yield f"sort-{read}-{axis}-{how.lower()}", texts


def _sort(w: Writer, x: Value, axis: int, how: str, read: str) -> Value:
    size = x.shape[axis]
    ranges = [(0, length) for length in x.shape]
    ranges[axis] = {
        "few": (0, min(8, size)), "few-places": (0, min(8, size)), "last": (max(size - 8, 0), size),
        "middle": (size // 4, size // 2), "one": (size // 2, size // 2 + 1),
    }.get(read, (0, size))  # fmt: skip
    if read == "rows":
        ranges[1 - axis] = (0, (x.shape[1 - axis] + 1) // 2)
    ordered = w.sort_places(x, axis, how) if read in ("places", "few-places") else w.sort(x, axis, how)
    return ordered if read in ("all", "places") else w.slice(ordered, *ranges)


def _dtype(rng: random.Random) -> str:
    return rng.choices(("f32", "bf16", "f16"), (80, 14, 6))[0]


def _stablehlo(make: Make, shape: tuple[int, ...], dtype: str) -> str:
    w = Writer(dtype)
    return w.text(make(w, w.argument(*shape)))


def _batched(sizes: tuple[int, int, int, int], dtype: str) -> str:
    batch, m, k, n = sizes
    w = Writer(dtype)
    return w.text(w.dot(w.argument(batch, m, k), w.argument(batch, k, n), (2, 1), 1))


def _type(shape: tuple[int, ...], dtype: str = "f32") -> str:
    return Value("", shape, dtype).type


def _function(argument: str, result: str, body: str) -> str:
    return f"func.func @main(%x: {argument}) -> {result} {{\n{body}\n  return %r : {result}\n}}\n"


def _linalg(name: str, shape: tuple[int, ...], *, turned: bool) -> str:
    """An element operation; `turned` writes it in transposed order."""
    source, result = _type(shape), _type(shape[::-1] if turned else shape)
    maps = ["(i, j) -> (i, j)", "(i, j) -> (j, i)" if turned else "(i, j) -> (i, j)"]
    return _function(
        source,
        result,
        f"""  %e = tensor.empty() : {result}
  %r = linalg.generic {{indexing_maps = [affine_map<{maps[0]}>, affine_map<{maps[1]}>],
                      iterator_types = ["parallel", "parallel"]}}
    ins(%x : {source}) outs(%e : {result}) {{
  ^bb0(%a: f32, %b: f32):
    %c = {_LINALG_BODIES[name]} %a : f32
    linalg.yield %c : f32
  }} -> {result}""",
    )


def _linalg_softmax(shape: tuple[int, ...], axis: int) -> str:
    kind = _type(shape)
    return _function(
        kind,
        kind,
        f"""  %e = tensor.empty() : {kind}
  %r = linalg.softmax dimension({axis}) ins(%x : {kind}) outs(%e : {kind}) -> {kind}""",
    )


def _linalg_reduce(body: str, shape: tuple[int, ...], axis: int) -> str:
    source, result = _type(shape), _type((shape[1 - axis],))
    start = {"addf": "0.0", "mulf": "1.0", "maximumf": "-3.0e38"}[body]
    return _function(
        source,
        result,
        f"""  %c = arith.constant {start} : f32
  %e = tensor.empty() : {result}
  %f = linalg.fill ins(%c : f32) outs(%e : {result}) -> {result}
  %r = linalg.reduce {{ arith.{body} }} ins(%x : {source}) outs(%f : {result}) dimensions = [{axis}]""",
    )


def _tosa(name: str, shape: tuple[int, ...]) -> str:
    kind = _type(shape)
    if name == "negate":
        zero = '  %z = "tosa.const"() {values = dense<0.0> : tensor<1xf32>} : () -> tensor<1xf32>\n'
        return _function(
            kind, kind, f"{zero}  %r = tosa.negate %x, %z, %z : ({kind}, tensor<1xf32>, tensor<1xf32>) -> {kind}"
        )
    return _function(kind, kind, f"  %r = tosa.{name} %x : ({kind}) -> {kind}")


def _tosa_reduction(name: str, shape: tuple[int, ...], axis: int) -> str:
    source = _type(shape)
    if name == "argmax":
        result = _type((shape[1 - axis],), "i32")
    else:
        result = _type(tuple(1 if place == axis else size for place, size in enumerate(shape)))
    return _function(source, result, f'  %r = "tosa.{name}"(%x) <{{axis = {axis} : i32}}> : ({source}) -> {result}')
