"""Writes a graph of array operations, in given sizes, as linalg on tensors: named operations, and generic ones with bodies."""

from __future__ import annotations

import random

from .graphs import Graph, Shape, Sizes, Step, Value
from .stablehlo import neutral, number, reduced, sliced

_FLOAT = {
    "add": "arith.addf", "subtract": "arith.subf", "multiply": "arith.mulf", "divide": "arith.divf",
    "maximum": "arith.maximumf",
    "minimum": "arith.minimumf", "tanh": "math.tanh", "abs": "math.absf", "negate": "arith.negf", "sine": "math.sin",
    "cosine": "math.cos",
    "floor": "math.floor", "exponential": "math.exp", "log1p": "math.log1p", "sqrt": "math.sqrt", "rsqrt": "math.rsqrt",
}  # fmt: skip
_INTEGER = {
    "add": "arith.addi", "subtract": "arith.subi", "multiply": "arith.muli", "maximum": "arith.maxsi", "minimum": "arith.minsi",
}  # fmt: skip


class _Writer:
    def __init__(self, graph: Graph, sizes: Sizes, dtype: str, rng: random.Random) -> None:
        self.graph, self.sizes, self.dtype, self.rng = graph, sizes, dtype, rng
        self.scalars = _INTEGER if graph.integer else _FLOAT
        self.lines: list[str] = []
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"%{self.names - 1}"

    def shape(self, shape: Shape) -> tuple[int, ...]:
        return tuple(dim.size(self.sizes) for dim in shape)

    def type(self, shape: Shape) -> str:
        return f"tensor<{''.join(f'{size}x' for size in self.shape(shape))}{self.dtype}>"

    def emit(self, text: str, indent: str = "    ") -> str:
        name = self.name()
        self.lines.append(f"{indent}{name} = {text}")
        return name

    def constant(self, value: float) -> str:
        return self.emit(f"arith.constant {number(value, self.graph.integer)} : {self.dtype}")

    def empty(self, shape: Shape) -> str:
        return self.emit(f"tensor.empty() : {self.type(shape)}")

    def filled(self, shape: Shape, value: float) -> str:
        start, room = self.constant(value), self.empty(shape)
        return self.emit(
            f"linalg.fill ins({start} : {self.dtype}) outs({room} : {self.type(shape)}) -> {self.type(shape)}"
        )

    def generic(
        self,
        maps: list[str],
        iterators: list[str],
        ins: list[tuple[str, str]],
        out: tuple[str, str],
        steps: tuple[Step, ...],
    ) -> str:
        """A `linalg.generic`; steps count its inputs and then the value of its output so far."""
        name = self.name()
        names, types = ", ".join(n for n, _ in ins), ", ".join(t for _, t in ins)
        self.lines.append(
            f"    {name} = linalg.generic {{indexing_maps = [{', '.join(f'affine_map<{m}>' for m in maps)}],"
            f" iterator_types = [{', '.join(chr(34) + i + chr(34) for i in iterators)}]}}"
            f" ins({names} : {types}) outs({out[0]} : {out[1]}) {{"
        )
        created = [f"%in_{name[1:]}_{n}" for n in range(len(ins))] + [f"%out_{name[1:]}"]
        self.lines.append(f"    ^bb0({', '.join(f'{arg}: {self.dtype}' for arg in created)}):")
        for step in steps:
            created.append(self.step(step, [created[n] for n in step.args]))
        self.lines += [f"      linalg.yield {created[-1]} : {self.dtype}", f"    }} -> {out[1]}"]
        return name

    def step(self, step: Step, args: list[str]) -> str:
        def op(name: str, *of: str) -> str:
            return self.emit(f"{self.scalars[name]} {', '.join(of)} : {self.dtype}", "      ")

        def constant(value: float) -> str:
            return self.emit(f"arith.constant {number(value, self.graph.integer)} : {self.dtype}", "      ")

        x = args[0]
        if step.op == "negate" and self.graph.integer:
            return op("subtract", constant(0), x)
        if step.op in self.scalars:
            return op(step.op, *args)
        if step.op == "select":
            order = "arith.cmpi sgt" if self.graph.integer else "arith.cmpf ogt"
            chosen = self.emit(f"{order}, {x}, {args[1]} : {self.dtype}", "      ")
            return self.emit(f"arith.select {chosen}, {args[1]}, {x} : {self.dtype}", "      ")
        if step.op == "square":
            return op("multiply", x, x)
        if step.op == "exp_tanh":
            return op("exponential", op("tanh", x))
        if step.op == "log1p_abs":
            return op("log1p", op("abs", x))
        if step.op == "relu":
            return op("maximum", x, constant(0))
        if step.op in ("scale", "shift"):
            return op({"scale": "multiply", "shift": "add"}[step.op], x, constant(step.constant or 0))
        if step.op == "sqrt_abs":
            return op("sqrt", op("add", op("abs", x), constant(0.01)))
        if step.op == "rsqrt_square":
            return op("rsqrt", op("add", op("multiply", x, x), constant(1)))
        if step.op == "logistic":
            item = constant(1)
            return op("divide", item, op("add", item, op("exponential", op("negate", x))))
        return op("divide", x, op("add", op("abs", args[1]), constant(1)))

    def write(self, value: Value, args: list[str]) -> str:
        kind = self.type(value.shape)
        shapes = [self.graph.values[n].shape for n in value.args]
        types = [self.type(shape) for shape in shapes]
        rank = len(value.shape)
        if value.op == "map":
            only = value.steps[0]
            if len(value.steps) == 1 and only.op in self.scalars and self.rng.random() < 0.5:
                room = self.empty(value.shape)
                names, kinds = (", ".join(from_[n] for n in only.args) for from_ in (args, types))
                return self.emit(
                    f"linalg.map {{ {self.scalars[only.op]} }} ins({names} : {kinds}) outs({room} : {kind})"
                )
            # The output's old value comes between the inputs and the steps.
            steps = tuple(
                Step(step.op, tuple(n if n < len(args) else n + 1 for n in step.args), step.constant)
                for step in value.steps
            )
            pairs = list(zip(args, types, strict=True))
            return self.generic(
                [_map(rank, range(rank))] * (len(args) + 1),
                ["parallel"] * rank,
                pairs,
                (self.empty(value.shape), kind),
                steps,
            )
        if value.op == "reduce":
            return self.reduce(value, args[0], shapes[0])
        if value.op == "contract":
            return self.contract(value, args, shapes)
        if value.op == "transpose":
            room = self.empty(value.shape)
            order = ", ".join(str(axis) for axis in value.axes)
            return self.emit(
                f"linalg.transpose ins({args[0]} : {types[0]}) outs({room} : {kind}) permutation = [{order}]"
            )
        if value.op == "broadcast":
            room = self.empty(value.shape)
            new = ", ".join(str(axis) for axis in range(rank) if axis not in value.axes)
            return self.emit(f"linalg.broadcast ins({args[0]} : {types[0]}) outs({room} : {kind}) dimensions = [{new}]")
        if value.op == "slice":
            start, _, stride = sliced(value, self.shape(shapes[0]), self.shape(value.shape))
            window = self.window(value, start, self.shape(value.shape), stride)
            return self.emit(f"tensor.extract_slice {args[0]}{window} : {types[0]} to {kind}")
        if value.op == "concat":
            room = self.empty(value.shape)
            for arg, shape, start in zip(args, shapes, (0, self.shape(shapes[0])[value.axes[0]]), strict=True):
                window = self.window(value, start, self.shape(shape), 1)
                room = self.emit(f"tensor.insert_slice {arg} into {room}{window} : {self.type(shape)} into {kind}")
            return room
        if value.op == "pad":
            low, high = (", ".join(by if axis == value.axes[0] else "0" for axis in range(rank)) for by in ("1", "2"))
            filler, name = self.constant(0), self.name()
            places = ", ".join(f"%at_{name[1:]}_{axis}: index" for axis in range(rank))
            self.lines += [f"    {name} = tensor.pad {args[0]} low[{low}] high[{high}] {{", f"    ^bb0({places}):",
                           f"      tensor.yield {filler} : {self.dtype}", f"    }} : {types[0]} to {kind}"]  # fmt: skip
            return name
        axis = value.axes[0]
        groups = (
            [f"[{n}]" for n in range(axis)] + [f"[{axis}, {axis + 1}]"] + [f"[{n}]" for n in range(axis + 2, rank + 1)]
        )
        return self.emit(f"tensor.collapse_shape {args[0]} [{', '.join(groups)}] : {types[0]} into {kind}")

    def window(self, value: Value, start: int, sizes: tuple[int, ...], stride: int) -> str:
        """Offsets, sizes and strides of a slice along the value's one axis."""
        axes = range(len(sizes))
        offsets = ", ".join(str(start) if axis == value.axes[0] else "0" for axis in axes)
        strides = ", ".join(str(stride) if axis == value.axes[0] else "1" for axis in axes)
        return f"[{offsets}] [{', '.join(str(size) for size in sizes)}] [{strides}]"

    def reduce(self, value: Value, source: str, shape: Shape) -> str:
        step = {"mean": "add", "sum": "add"}.get(value.kind, value.kind)
        room = self.filled(value.shape, neutral(value.kind, self.graph.integer))
        types = self.type(shape), self.type(value.shape)
        if self.rng.random() < 0.4:
            axes = ", ".join(str(axis) for axis in value.axes)
            operands = f"ins({source} : {types[0]}) outs({room} : {types[1]})"
            total = self.emit(f"linalg.reduce {{ {self.scalars[step]} }} {operands} dimensions = [{axes}]")
        else:
            items = [axis for axis in range(len(shape)) if axis not in value.axes]
            iterators = ["reduction" if axis in value.axes else "parallel" for axis in range(len(shape))]
            maps = [_map(len(shape), range(len(shape))), _map(len(shape), items)]
            total = self.generic(maps, iterators, [(source, types[0])], (room, types[1]), (Step(step, (0, 1)),))
        if value.kind != "mean":
            return total
        rank, scale = len(value.shape), Step("scale", (0,), 1 / reduced(value, self.shape(shape)))
        return self.generic(
            [_map(rank, range(rank))] * 2,
            ["parallel"] * rank,
            [(total, types[1])],
            (self.empty(value.shape), types[1]),
            (scale,),
        )

    def contract(self, value: Value, args: list[str], shapes: list[Shape]) -> str:
        kind = self.type(value.shape)
        types = [self.type(shape) for shape in shapes]
        room = self.filled(value.shape, 0)
        batch, summed = value.pairs
        named = _NAMED.get((len(shapes[0]), len(shapes[1]), batch, summed[0]))
        if named:
            operands = f"{', '.join(args)} : {', '.join(types)}"
            return self.emit(f"linalg.{named} ins({operands}) outs({room} : {kind}) -> {kind}")
        maps, loops = _maps_of_product(value, shapes), ["parallel"] * len(value.shape) + ["reduction"]
        steps = (Step("multiply", (0, 1)), Step("add", (2, 3)))
        return self.generic(maps, loops, list(zip(args, types, strict=True)), (room, kind), steps)


_NAMED = {
    (2, 2, (), (1, 0)): "matmul", (3, 3, ((0, 0),), (2, 1)): "batch_matmul", (2, 1, (), (1, 0)): "matvec",
    (1, 2, (), (0, 0)): "vecmat", (1, 1, (), (0, 0)): "dot",
}  # fmt: skip
"""Named products by the ranks of their operands, the axes of the batch and those summed over."""


def _maps_of_product(value: Value, shapes: list[Shape]) -> list[str]:
    """Indexing maps of both operands and the result of a product; the loop that sums comes last."""
    batch, summed = value.pairs
    rank = len(value.shape)
    left_kept = [axis for axis in range(len(shapes[0])) if axis != summed[0][0] and (axis, axis) not in batch]
    taken = {axis for _, axis in batch} | {summed[0][1]}
    right_kept = [axis for axis in range(len(shapes[1])) if axis not in taken]
    places: list[dict[int, int]] = [{summed[0][0]: rank}, {summed[0][1]: rank}]
    for position, (a, b) in enumerate(batch):
        places[0][a] = places[1][b] = position
    for side, item, start in ((0, left_kept, len(batch)), (1, right_kept, len(batch) + len(left_kept))):
        places[side].update({axis: start + offset for offset, axis in enumerate(item)})
    return [*(_map(rank + 1, [place[axis] for axis in sorted(place)]) for place in places), _map(rank + 1, range(rank))]


def _map(rank: int, results: range | list[int]) -> str:
    return f"({', '.join(f'd{axis}' for axis in range(rank))}) -> ({', '.join(f'd{axis}' for axis in results)})"


def write_linalg(graph: Graph, sizes: Sizes, dtype: str, rng: random.Random) -> str:
    """The module's text: inputs are arguments of `@main`, what nothing reads is returned.

    `rng` decides where a named operation is written and where the generic one that does the same.
    """
    writer = _Writer(graph, sizes, dtype, rng)
    names: list[str] = []
    arguments: list[str] = []
    for value in graph.values:
        if value.op == "input":
            names.append(f"%arg{len(arguments)}")
            arguments.append(f"{names[-1]}: {writer.type(value.shape)}")
        else:
            names.append(writer.write(value, [names[n] for n in value.args]))
    types = ", ".join(writer.type(graph.values[n].shape) for n in graph.outputs)
    head = f"module @generated {{\n  func.func public @main({', '.join(arguments)}) -> ({types}) {{\n"
    return (
        head
        + "\n".join(writer.lines)
        + f"\n    return {', '.join(names[n] for n in graph.outputs)} : {types}\n  }}\n}}\n"
    )
