"""A writer of StableHLO text: every call appends an operation and returns its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA value: its name, sizes and element type."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def type(self) -> str:
        """Its type as MLIR writes it."""
        return f"tensor<{''.join(f'{size}x' for size in self.shape)}{self.dtype}>"


class Writer:
    """One function: arguments and operations in order."""

    def __init__(self, dtype: str = "f32") -> None:
        self.dtype = dtype
        self._arguments: list[Value] = []
        self._lines: list[str] = []
        self._count = 0

    def argument(self, *shape: int, dtype: str = "") -> Value:
        """A new argument of the function."""
        value = Value(f"%arg{len(self._arguments)}", shape, dtype or self.dtype)
        self._arguments.append(value)
        return value

    def text(self, *results: Value) -> str:
        """The module whose function returns these values."""
        arguments = ", ".join(f"{value.name}: {value.type}" for value in self._arguments)
        types = ", ".join(value.type for value in results)
        names = ", ".join(value.name for value in results)
        body = "\n".join(f"    {line}" for line in self._lines)
        body += f"\n    return {names} : {types}"
        return f"module {{\n  func.func public @main({arguments}) -> ({types}) {{\n{body}\n  }}\n}}\n"

    def op(self, text: str, shape: Sequence[int], dtype: str = "") -> Value:
        """An operation given as text in which `{}` is the type of its result."""
        value = Value(f"%{self._count}", tuple(shape), dtype or self.dtype)
        self._count += 1
        self._lines.append(f"{value.name} = {text.replace('{}', value.type)}")
        return value

    def number(self, number: float, *shape: int, dtype: str = "") -> Value:
        """One number everywhere."""
        dtype = dtype or self.dtype
        shown = str(int(number)) if dtype.startswith("i") else f"{number:e}"
        return self.op(f"stablehlo.constant dense<{shown}> : {{}}", shape, dtype)

    def unary(self, name: str, x: Value) -> Value:
        """An element operation on one array."""
        return self.op(f"stablehlo.{name} {x.name} : {{}}", x.shape, x.dtype)

    def binary(self, name: str, x: Value, y: Value | float) -> Value:
        """An element operation on two arrays of one shape, or an array and a number."""
        y = y if isinstance(y, Value) else self.number(y, *x.shape, dtype=x.dtype)
        return self.op(f"stablehlo.{name} {x.name}, {y.name} : {{}}", x.shape, x.dtype)

    def compare(self, how: str, x: Value, y: Value | float) -> Value:
        """A comparison such as `GT`."""
        y = y if isinstance(y, Value) else self.number(y, *x.shape, dtype=x.dtype)
        return self.op(f"stablehlo.compare {how}, {x.name}, {y.name} : ({x.type}, {y.type}) -> {{}}", x.shape, "i1")

    def select(self, where: Value, x: Value, y: Value | float) -> Value:
        """`x` where the condition holds, else `y`."""
        y = y if isinstance(y, Value) else self.number(y, *x.shape, dtype=x.dtype)
        return self.op(f"stablehlo.select {where.name}, {x.name}, {y.name} : {where.type}, {{}}", x.shape, x.dtype)

    def convert(self, x: Value, dtype: str) -> Value:
        """Another number format."""
        return self.op(f"stablehlo.convert {x.name} : ({x.type}) -> {{}}", x.shape, dtype)

    def spread(self, x: Value, shape: Sequence[int], axes: Sequence[int]) -> Value:
        """A broadcast: axis `i` of `x` becomes axis `axes[i]`."""
        return self.op(f"stablehlo.broadcast_in_dim {x.name}, dims = {list(axes)} : ({x.type}) -> {{}}", shape, x.dtype)

    def reshape(self, x: Value, *shape: int) -> Value:
        """The same elements in another shape."""
        return self.op(f"stablehlo.reshape {x.name} : ({x.type}) -> {{}}", shape, x.dtype)

    def transpose(self, x: Value, *order: int) -> Value:
        """Axes in another order."""
        shape = [x.shape[axis] for axis in order]
        return self.op(f"stablehlo.transpose {x.name}, dims = {list(order)} : ({x.type}) -> {{}}", shape, x.dtype)

    def reduce(self, name: str, x: Value, *axes: int) -> Value:
        """Axes reduced by `add`, `maximum`, `minimum` or `multiply`."""
        start = self.number(_start(name, x.dtype), dtype=x.dtype)
        shape = [size for axis, size in enumerate(x.shape) if axis not in axes]
        return self.op(
            f"stablehlo.reduce({x.name} init: {start.name}) applies stablehlo.{name} across dimensions = {list(axes)} : "
            f"({x.type}, {start.type}) -> {{}}", shape, x.dtype,
        )  # fmt: skip

    def reduced(self, name: str, x: Value, *axes: int) -> Value:
        """The same, repeated along the reduced axes."""
        rest = [axis for axis in range(len(x.shape)) if axis not in axes]
        return self.spread(self.reduce(name, x, *axes), x.shape, rest)

    def mean(self, x: Value, *axes: int) -> Value:
        """The mean over axes, repeated along them."""
        return self.binary("multiply", self.reduced("add", x, *axes), 1.0 / prod(x.shape[axis] for axis in axes))

    def dot(self, x: Value, y: Value, contracted: tuple[int, int], batch: int = 0) -> Value:
        """A product over one axis of each; the first `batch` axes of both are batches."""
        batches = list(range(batch))
        shape = [*x.shape[:batch], *(size for axis, size in enumerate(x.shape) if axis >= batch and axis != contracted[0]),
                 *(size for axis, size in enumerate(y.shape) if axis >= batch and axis != contracted[1])]  # fmt: skip
        batching = f"batching_dims = {batches} x {batches}, " if batch else ""
        return self.op(
            f"stablehlo.dot_general {x.name}, {y.name}, {batching}contracting_dims = [{contracted[0]}] x [{contracted[1]}] : "
            f"({x.type}, {y.type}) -> {{}}", shape, x.dtype,
        )  # fmt: skip

    def convolve(
        self,
        x: Value,
        w: Value,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        dilation: int = 1,
        upsample: int = 1,
    ) -> Value:
        """A convolution of `(n, c, …)` with weights `(o, c / groups, …)` in one to three dimensions."""
        sides = len(x.shape) - 2
        window = [dilation * (size - 1) + 1 for size in w.shape[2:]]
        out = [
            ((side - 1) * upsample + 1 + 2 * padding - taps) // stride + 1
            for side, taps in zip(x.shape[2:], window, strict=True)
        ]
        axes = ", ".join(map(str, range(sides)))
        pads = [[padding, padding]] * sides
        return self.op(
            f"stablehlo.convolution({x.name}, {w.name}) dim_numbers = [b, f, {axes}]x[o, i, {axes}]->[b, f, {axes}], "
            f"window = {{stride = {[stride] * sides}, pad = {pads}, lhs_dilate = {[upsample] * sides}, "
            f"rhs_dilate = {[dilation] * sides}}} {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}} : "
            f"({x.type}, {w.type}) -> {{}}", (x.shape[0], w.shape[0], *out), x.dtype,
        )  # fmt: skip

    def window(
        self, name: str, x: Value, window: Sequence[int], strides: Sequence[int], low: Sequence[int] | None = None
    ) -> Value:
        """A window slid over `x` and reduced; `low` pads in front."""
        low = low or [0] * len(window)
        shape = [
            (size + before - taps) // step + 1
            for size, before, taps, step in zip(x.shape, low, window, strides, strict=True)
        ]
        start = self.number(_start(name, x.dtype), dtype=x.dtype)
        scalar = start.type
        a, b, c = (f"%w{self._count}{letter}" for letter in "abc")
        return self.op(
            f'"stablehlo.reduce_window"({x.name}, {start.name}) ({{ ^bb0({a}: {scalar}, {b}: {scalar}): '
            f'{c} = stablehlo.{name} {a}, {b} : {scalar} "stablehlo.return"({c}) : ({scalar}) -> () }}) '
            f"{{window_dimensions = array<i64: {_csv(window)}>, window_strides = array<i64: {_csv(strides)}>, "
            f"padding = dense<{[[before, 0] for before in low]}> : tensor<{len(low)}x2xi64>}} : ({x.type}, {scalar}) -> {{}}",
            shape, x.dtype,
        )  # fmt: skip

    def sort(self, x: Value, axis: int, how: str = "LT") -> Value:
        """Sorted along an axis."""
        scalar = f"tensor<{x.dtype}>"
        a, b, c = (f"%s{self._count}{letter}" for letter in "abc")
        return self.op(
            f'"stablehlo.sort"({x.name}) ({{ ^bb0({a}: {scalar}, {b}: {scalar}): '
            f'{c} = stablehlo.compare {how}, {a}, {b} : ({scalar}, {scalar}) -> tensor<i1> '
            f'"stablehlo.return"({c}) : (tensor<i1>) -> () }}) {{dimension = {axis} : i64, is_stable = true}} : '
            f"({x.type}) -> {{}}", x.shape, x.dtype,
        )  # fmt: skip

    def sort_places(self, x: Value, axis: int, how: str = "LT") -> Value:
        """The places that elements had before they were sorted along an axis."""
        places = self.iota(axis, *x.shape, dtype="i32")
        name = f"s{self._count}"
        kinds = [f"tensor<{kind}>" for kind in (x.dtype, x.dtype, "i32", "i32")]
        arguments = ", ".join(f"%{name}{letter}: {kind}" for letter, kind in zip("abcd", kinds, strict=True))
        self._lines.append(
            f'%{name}:2 = "stablehlo.sort"({x.name}, {places.name}) ({{ ^bb0({arguments}): '
            f"%{name}e = stablehlo.compare {how}, %{name}a, %{name}b : ({kinds[0]}, {kinds[0]}) -> tensor<i1> "
            f'"stablehlo.return"(%{name}e) : (tensor<i1>) -> () }}) {{dimension = {axis} : i64, is_stable = true}} : '
            f"({x.type}, {places.type}) -> ({x.type}, {places.type})"
        )
        return Value(f"%{name}#1", x.shape, "i32")

    def slice(self, x: Value, *ranges: tuple[int, int]) -> Value:
        """A part: from and to along each axis."""
        shown = ", ".join(f"{start}:{end}" for start, end in ranges)
        return self.op(
            f"stablehlo.slice {x.name} [{shown}] : ({x.type}) -> {{}}", [end - start for start, end in ranges], x.dtype
        )

    def concatenate(self, axis: int, *values: Value) -> Value:
        """Arrays one after the other along an axis."""
        shape = list(values[0].shape)
        shape[axis] = sum(value.shape[axis] for value in values)
        names, types = (", ".join(getattr(value, word) for value in values) for word in ("name", "type"))
        return self.op(f"stablehlo.concatenate {names}, dim = {axis} : ({types}) -> {{}}", shape, values[0].dtype)

    def rows(self, table: Value, places: Value) -> Value:
        """Rows of a table at the places in `(n,)`."""
        return self.op(
            f'"stablehlo.gather"({table.name}, {places.name}) {{dimension_numbers = #stablehlo.gather<offset_dims = [1], '
            f"collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, "
            f"{table.shape[1]}>, indices_are_sorted = false}} : ({table.type}, {places.type}) -> {{}}",
            (places.shape[0], table.shape[1]), table.dtype,
        )  # fmt: skip

    def iota(self, axis: int, *shape: int, dtype: str = "i32") -> Value:
        """Positions along an axis."""
        return self.op(f"stablehlo.iota dim = {axis} : {{}}", shape, dtype)


_LARGEST = {"f16": 6e4, "i32": 2.0**30}


def _start(name: str, dtype: str) -> float:
    """What a reduction starts from."""
    largest = _LARGEST.get(dtype, 3e38)
    return {"add": 0.0, "maximum": -largest, "minimum": largest, "multiply": 1.0}[name]


def _csv(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
