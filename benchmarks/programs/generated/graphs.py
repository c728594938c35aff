"""Graphs of array operations with sizes left open.

A graph is a program: sizes are symbols, so one graph is written in many sizes and in more than one dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Dim:
    """A size as a formula of symbols: `kind` is `symbol`, `half`, `sum` or `product`, of `parts`."""

    kind: str
    name: str = ""
    parts: tuple[Dim, ...] = ()
    extra: int = 0

    def size(self, sizes: Sizes) -> int:
        """The number it stands for when symbols have these sizes."""
        values = [part.size(sizes) for part in self.parts]
        if self.kind == "symbol":
            return sizes[self.name]
        if self.kind == "half":
            return values[0] // 2
        if self.kind == "product":
            return values[0] * values[1]
        return sum(values) + self.extra


Shape = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One scalar operation of a map; `args` count the map's operands first, then the steps before it."""

    op: str
    args: tuple[int, ...]
    constant: float | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the graph and how it is made.

    `op` is `input`, `map`, `reduce`, `contract`, `transpose`, `broadcast`, `slice`, `concat`, `pad` or `merge`. `axes` are:
    of a reduction what is reduced; of a transposition the permutation; of a broadcast where the operand's axes go; of a slice,
    concatenation, pad or merge the one axis. `pairs` of a contraction are `(batch, batch)` and `(summed, summed)` axes.
    """

    op: str
    args: tuple[int, ...]
    shape: Shape
    bound: float
    steps: tuple[Step, ...] = ()
    axes: tuple[int, ...] = ()
    kind: str = ""
    pairs: tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] = ((), ())


@dataclass(slots=True)
class Graph:
    """Values in order; `integer` graphs are of i32."""

    values: list[Value] = field(default_factory=list)
    integer: bool = False

    @property
    def outputs(self) -> tuple[int, ...]:
        """Values nothing reads, inputs left out."""
        read = {arg for value in self.values for arg in value.args}
        return tuple(n for n, value in enumerate(self.values) if n not in read and value.op != "input")

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the sizes, sorted."""
        return tuple(sorted({name for value in self.values for dim in value.shape for name in _names(dim)}))

    def work(self, sizes: Sizes) -> float:
        """Operations of one run, roughly; what moves an element counts as three."""
        total = 0.0
        for value in self.values:
            elements = float(count(value.shape, sizes))
            if value.op == "contract":
                first = self.values[value.args[0]].shape
                for axis, _ in value.pairs[1]:
                    elements *= first[axis].size(sizes)
                total += 2 * elements
            elif value.op == "reduce":
                total += count(self.values[value.args[0]].shape, sizes)
            else:
                total += elements * (2 + 4 * len(value.steps))
        return total

    def bytes(self, sizes: Sizes) -> float:
        """Bytes of all values together, at four bytes an element."""
        return 4.0 * sum(count(value.shape, sizes) for value in self.values)


def count(shape: Shape, sizes: Sizes) -> int:
    """Elements of a shape in these sizes."""
    total = 1
    for dim in shape:
        total *= dim.size(sizes)
    return total


def _names(dim: Dim) -> set[str]:
    return {dim.name} if dim.kind == "symbol" else {name for part in dim.parts for name in _names(part)}
