"""Draws random graphs of array operations, well-formed by construction.

A bound on the magnitude of every value is carried along; what would grow out of hand is wrapped in a tanh.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from .graphs import Dim, Graph, Shape, Step, Value

UNARY: dict[str, Callable[[float], float]] = {
    "tanh": lambda b: 1.0, "logistic": lambda b: 1.0, "abs": lambda b: b, "negate": lambda b: b, "sine": lambda b: 1.0,
    "cosine": lambda b: 1.0,
    "log1p_abs": lambda b: b, "sqrt_abs": lambda b: max(b, 1.0), "rsqrt_square": lambda b: 1.0, "relu": lambda b: b,
    "square": lambda b: b * b,
    "floor": lambda b: b + 1, "exp_tanh": lambda b: 3.0, "scale": lambda b: b, "shift": lambda b: b + 1,
}  # fmt: skip
"""Bounds of results, given the operand's."""
BINARY: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b, "subtract": lambda a, b: a + b, "multiply": lambda a, b: a * b, "maximum": max, "minimum": max,
    "divide_safe": lambda a, b: a, "select": max,
}  # fmt: skip
INTEGER_UNARY = ("negate", "square", "relu", "shift")
INTEGER_BINARY = ("add", "subtract", "multiply", "maximum", "minimum", "select")
_LARGEST = 200.0
_STYLES = {
    "pointwise": {"map": 10, "reduce": 2, "broadcast": 2, "transpose": 1},
    "reducing": {"map": 6, "reduce": 6, "broadcast": 4, "softmax": 2, "norm": 2},
    "contracting": {"map": 5, "contract": 7, "reduce": 1, "broadcast": 1, "transpose": 1},
    "moving": {"map": 4, "transpose": 4, "slice": 4, "concat": 4, "pad": 2, "merge": 2, "broadcast": 2},
    "mixed": {"map": 8, "reduce": 3, "contract": 3, "transpose": 2, "slice": 2, "concat": 2, "broadcast": 2, "pad": 1,
    "merge": 1, "softmax": 1, "norm": 1},
}  # fmt: skip
_MOST_RANK = 4


class _Grower:
    """A graph while it is being drawn."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.graph = Graph(integer=rng.random() < 0.05)
        self.symbols = [Dim("symbol", name) for name in "ABCDEF"[: rng.choice((2, 3, 3, 4, 5))]]

    @property
    def values(self) -> list[Value]:
        return self.graph.values

    def add(self, value: Value) -> int:
        self.values.append(value)
        if value.bound > _LARGEST and not self.graph.integer:
            return self.map((len(self.values) - 1,), (Step("tanh", (0,)),), 1.0)
        return len(self.values) - 1

    def map(self, args: tuple[int, ...], steps: tuple[Step, ...], bound: float) -> int:
        return self.add(Value("map", args, self.values[args[0]].shape, bound, steps))

    def input(self, shape: Shape) -> int:
        return self.add(Value("input", (), shape, 4.0))

    def fresh(self, rank: int) -> Shape:
        return tuple(self.rng.choice(self.symbols) for _ in range(rank))

    def pick(self, least_rank: int = 0) -> int:
        """A value, recent ones more often, of at least this rank."""
        fitting = [n for n, value in enumerate(self.values) if len(value.shape) >= least_rank]
        if not fitting:
            return self.input(self.fresh(max(least_rank, 2)))
        recent = fitting[-4:]
        return self.rng.choice(recent if self.rng.random() < 0.7 else fitting)

    def grow(self, op: str) -> None:
        getattr(self, f"_{op}")()

    def _map(self) -> None:
        first = self.pick()
        shape = self.values[first].shape
        alike = [n for n, value in enumerate(self.values) if value.shape == shape and n != first]
        args = [first, *self.rng.sample(alike, min(len(alike), self.rng.choice((0, 1, 1, 2))))]
        if len(args) == 1 and self.rng.random() < 0.25:
            args.append(self.input(shape))
        steps: list[Step] = []
        bounds = [self.values[n].bound for n in args]
        unread = list(range(len(args)))
        for _ in range(self.rng.choice((0, 0, 1, 2, 3, 5))):
            _add_step(self.rng, self.graph.integer, steps, bounds, unread, [self.rng.randrange(len(bounds))])
        while len(unread) > 1 or not steps:
            _add_step(self.rng, self.graph.integer, steps, bounds, unread, unread[:2] if len(unread) > 1 else [0])
        self.map(tuple(args), tuple(steps), bounds[-1])

    def _reduce(self, source: int | None = None, axes: tuple[int, ...] = (), kind: str = "") -> int:
        n = self.pick(1) if source is None else source
        shape = self.values[n].shape
        axes = axes or tuple(sorted(self.rng.sample(range(len(shape)), self.rng.choice((1, 1, min(2, len(shape)))))))
        remaining = tuple(dim for axis, dim in enumerate(shape) if axis not in axes)
        kind = kind or self.rng.choice(
            ("mean", "mean", "maximum", "minimum") if not self.graph.integer else ("sum", "maximum", "minimum")
        )
        return self.add(Value("reduce", (n,), remaining, self.values[n].bound, axes=axes, kind=kind))

    def _broadcast(self, source: int | None = None, shape: Shape = (), axes: tuple[int, ...] | None = None) -> int:
        n = self.pick() if source is None else source
        old = self.values[n].shape
        if axes is None:
            if len(old) >= 3:
                return n
            wanted = [
                value.shape
                for value in self.values
                if len(value.shape) > len(old) and _inside(old, value.shape) is not None
            ]
            shape = self.rng.choice(wanted) if wanted and self.rng.random() < 0.8 else (*self.fresh(1), *old)
            axes = _inside(old, shape)
        return self.add(Value("broadcast", (n,), shape, self.values[n].bound, axes=axes or ()))

    def _softmax(self) -> None:
        if self.graph.integer:
            return self._map()
        n = self.pick(2)
        shape = self.values[n].shape
        axis = len(shape) - 1
        rest = tuple(range(axis))
        top = self._broadcast(self._reduce(n, (axis,), "maximum"), shape, rest)
        powers = self.map((n, top), (Step("subtract", (0, 1)), Step("exponential", (2,))), 1.0)
        total = self._broadcast(self._reduce(powers, (axis,), "sum"), shape, rest)
        self.map((powers, total), (Step("divide", (0, 1)),), 1.0)
        return None

    def _norm(self) -> None:
        if self.graph.integer:
            return self._map()
        n = self.pick(2)
        shape = self.values[n].shape
        axis = len(shape) - 1
        rest = tuple(range(axis))
        squares = self.map((n,), (Step("square", (0,)),), self.values[n].bound) if self.values[n].bound < 50 else n
        spread = self._broadcast(self._reduce(squares, (axis,), "mean"), shape, rest)
        self.map((n, spread), (Step("rsqrt_square", (1,)), Step("multiply", (0, 2))), self.values[n].bound)
        return None

    def _contract(self) -> None:
        rng = self.rng
        left = self.pick(1)
        shape = self.values[left].shape
        summed = rng.randrange(len(shape)) if rng.random() < 0.4 else len(shape) - 1
        partners = [
            n
            for n, value in enumerate(self.values)
            if n != left and shape[summed] in value.shape and len(value.shape) <= 3
        ]
        batch: tuple[tuple[int, int], ...] = ()
        if partners and rng.random() < 0.35:
            right = rng.choice(partners)
        else:
            new = [shape[summed], rng.choice(self.symbols)]
            rng.shuffle(new)
            if len(shape) >= 3 and rng.random() < 0.5 and summed != 0:
                new = [shape[0], *new]
            right = self.input(tuple(new))
        other = self.values[right].shape
        if len(shape) >= 3 and len(other) == 3 and other[0] == shape[0] and summed != 0 and shape[summed] in other[1:]:
            batch = ((0, 0),)
        free = [axis for axis, dim in enumerate(other) if dim == shape[summed] and (not batch or axis)]
        summed_right = rng.choice(free)
        taken = {axis for _, axis in batch} | {summed_right}
        items = [dim for axis, dim in enumerate(shape) if axis != summed and (axis, axis) not in batch]
        result = (*(shape[a] for a, _ in batch), *items, *(dim for axis, dim in enumerate(other) if axis not in taken))
        if len(result) > _MOST_RANK:
            return self._map()
        left, right = (self._tame(n) for n in (left, right))
        self.add(Value("contract", (left, right), result, 100.0, pairs=(batch, ((summed, summed_right),))))
        return None

    def _tame(self, n: int) -> int:
        if self.values[n].bound <= 4.0 or self.graph.integer:
            return n
        return self.map((n,), (Step("tanh", (0,)),), 1.0)

    def _transpose(self) -> None:
        n = self.pick(2)
        shape = self.values[n].shape
        order = list(range(len(shape)))
        while order == sorted(order):
            self.rng.shuffle(order)
        self.add(
            Value("transpose", (n,), tuple(shape[axis] for axis in order), self.values[n].bound, axes=tuple(order))
        )

    def _slice(self) -> None:
        n = self.pick(1)
        value = self.values[n]
        axis = self.rng.randrange(len(value.shape))
        if _depth(value.shape[axis]) >= 2:
            return self._map()
        shape = _replaced(value.shape, axis, Dim("half", parts=(value.shape[axis],)))
        self.add(
            Value("slice", (n,), shape, value.bound, axes=(axis,), kind=self.rng.choice(("first", "last", "stride")))
        )
        return None

    def _concat(self) -> None:
        n = self.pick(1)
        shape = self.values[n].shape
        axis = self.rng.randrange(len(shape))
        fitting = [
            m for m, value in enumerate(self.values)
            if len(value.shape) == len(shape) and all(a == b for i, (a, b) in enumerate(zip(shape, value.shape,
                strict=True)) if i != axis)
        ]  # fmt: skip
        other = self.rng.choice(fitting)
        total = Dim("sum", parts=(shape[axis], self.values[other].shape[axis]))
        if _depth(total) > 3:
            return self._map()
        bound = max(self.values[n].bound, self.values[other].bound)
        self.add(Value("concat", (n, other), _replaced(shape, axis, total), bound, axes=(axis,)))
        return None

    def _pad(self) -> None:
        n = self.pick(1)
        value = self.values[n]
        axis = self.rng.randrange(len(value.shape))
        if _depth(value.shape[axis]) >= 3:
            return self._map()
        shape = _replaced(value.shape, axis, Dim("sum", parts=(value.shape[axis],), extra=3))
        self.add(Value("pad", (n,), shape, value.bound, axes=(axis,)))
        return None

    def _merge(self) -> None:
        n = self.pick(2)
        value = self.values[n]
        axis = self.rng.randrange(len(value.shape) - 1)
        dim = Dim("product", parts=value.shape[axis : axis + 2])
        if _depth(dim) > 2:
            return self._map()
        self.add(Value("merge", (n,), (*value.shape[:axis], dim, *value.shape[axis + 2 :]), value.bound, axes=(axis,)))
        return None


def _add_step(
    rng: random.Random, integer: bool, steps: list[Step], bounds: list[float], unread: list[int], read: list[int]
) -> None:
    """Adds a scalar operation; a binary one where two values are given, or another can be drawn."""
    if len(read) == 1 and rng.random() < 0.35:
        read = [*read, rng.randrange(len(bounds))]
    if len(read) == 2:
        op = rng.choice(INTEGER_BINARY if integer else tuple(BINARY))
        bound = BINARY[op](bounds[read[0]], bounds[read[1]])
    else:
        op = rng.choice(INTEGER_UNARY if integer else tuple(UNARY))
        bound = UNARY[op](bounds[read[0]])
    if bound > _LARGEST and not integer:
        op, bound = ("maximum", max(bounds[read[0]], bounds[read[-1]])) if len(read) == 2 else ("tanh", 1.0)
    constant = {
        "scale": rng.choice((0.5, 0.25, 0.9, 0.125)),
        "shift": 1.0 if integer else rng.choice((1.0, -0.5, 0.25)),
    }.get(op)
    steps.append(Step(op, tuple(read), constant))
    unread[:] = [n for n in unread if n not in read] + [len(bounds)]
    bounds.append(bound)


def _depth(dim: Dim) -> int:
    return 0 if dim.kind == "symbol" else 1 + max(_depth(part) for part in dim.parts)


def _replaced(shape: Shape, axis: int, dim: Dim) -> Shape:
    return (*shape[:axis], dim, *shape[axis + 1 :])


def _inside(small: Shape, large: Shape) -> tuple[int, ...] | None:
    """Where the axes of one shape lie in another, in order; None where they do not."""
    axes, start = [], 0
    for dim in small:
        match = next((axis for axis in range(start, len(large)) if large[axis] == dim), None)
        if match is None:
            return None
        axes.append(match)
        start = match + 1
    return tuple(axes)


def draw_graph(number: int) -> Graph:
    """Graph `number`: always the same for a number. It has 1 to 40 drawn operations, and what keeps their values tame."""
    rng = random.Random(f"graph/{number}")
    grower = _Grower(rng)
    weights = _STYLES[rng.choice(tuple(_STYLES))]
    rank = rng.choice((1, 2, 2, 2, 3, 3, 4))
    for _ in range(rng.choice((1, 1, 2, 3))):
        grower.input(grower.fresh(max(1, rank - rng.choice((0, 0, 1)))))
    wanted = round(40 ** rng.random())
    while sum(value.op != "input" for value in grower.values) < wanted:
        grower.grow(rng.choices(tuple(weights), tuple(weights.values()))[0])
    return grower.graph
