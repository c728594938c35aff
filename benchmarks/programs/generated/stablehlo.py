"""Writes a graph of array operations, in given sizes, as StableHLO text."""

from __future__ import annotations

from .graphs import Graph, Shape, Sizes, Step, Value

_DIRECT = {
    "tanh": "tanh", "logistic": "logistic", "abs": "abs", "negate": "negate", "sine": "sine", "cosine": "cosine",
    "floor": "floor",
    "exponential": "exponential", "add": "add", "subtract": "subtract", "multiply": "multiply", "maximum": "maximum",
    "minimum": "minimum",
    "divide": "divide",
}  # fmt: skip


class _Writer:
    def __init__(self, graph: Graph, sizes: Sizes, dtype: str) -> None:
        self.graph, self.sizes, self.dtype = graph, sizes, dtype
        self.lines: list[str] = []

    def shape(self, shape: Shape) -> tuple[int, ...]:
        return tuple(dim.size(self.sizes) for dim in shape)

    def type(self, shape: Shape, dtype: str = "") -> str:
        return f"tensor<{''.join(f'{size}x' for size in self.shape(shape))}{dtype or self.dtype}>"

    def emit(self, text: str) -> str:
        name = f"%{len(self.lines)}"
        self.lines.append(f"    {name} = {text}")
        return name

    def constant(self, value: float, shape: Shape = ()) -> str:
        return self.emit(f"stablehlo.constant dense<{number(value, self.graph.integer)}> : {self.type(shape)}")

    def write(self, value: Value, args: list[str]) -> str:
        kind = self.type(value.shape)
        shapes = [self.graph.values[n].shape for n in value.args]
        types = ", ".join(self.type(shape) for shape in shapes)
        axes = ", ".join(str(axis) for axis in value.axes)
        if value.op == "map":
            created = list(args)
            for step in value.steps:
                created.append(self.step(step, [created[n] for n in step.args], value.shape))
            return created[-1]
        if value.op == "reduce":
            return self.reduce(value, args[0], shapes[0], axes)
        if value.op == "contract":
            batch, summed = value.pairs
            pairs = [f"{name} = [{', '.join(str(a) for a, _ in p)}] x [{', '.join(str(b) for _, b in p)}]"
                     for name, p in (("batching_dims", batch), ("contracting_dims", summed)) if p]  # fmt: skip
            return self.emit(f"stablehlo.dot_general {args[0]}, {args[1]}, {', '.join(pairs)} : ({types}) -> {kind}")
        if value.op == "slice":
            ranges = [f"0:{size}" for size in self.shape(shapes[0])]
            ranges[value.axes[0]] = ":".join(
                str(part) for part in sliced(value, self.shape(shapes[0]), self.shape(value.shape))
            )
            return self.emit(f"stablehlo.slice {args[0]} [{', '.join(ranges)}] : ({types}) -> {kind}")
        if value.op == "pad":
            zeros = ["0"] * len(value.shape)
            low, high = (", ".join([*zeros[: value.axes[0]], by, *zeros[value.axes[0] + 1 :]]) for by in ("1", "2"))
            filler = self.constant(0)
            return self.emit(
                f"stablehlo.pad {args[0]}, {filler}, low = [{low}], high = [{high}], interior = [{', '.join(zeros)}]"
                f" : ({types}, {self.type(())}) -> {kind}"
            )
        how = {
            "transpose": f"transpose {args[0]}, dims = [{axes}]",
            "broadcast": f"broadcast_in_dim {args[0]}, dims = [{axes}]",
            "concat": f"concatenate {', '.join(args)}, dim = {axes}",
            "merge": f"reshape {args[0]}",
        }[value.op]
        return self.emit(f"stablehlo.{how} : ({types}) -> {kind}")

    def reduce(self, value: Value, source: str, shape: Shape, axes: str) -> str:
        start = self.constant(neutral(value.kind, self.graph.integer))
        op = {"mean": "add", "sum": "add"}.get(value.kind, value.kind)
        result = self.type(value.shape)
        total = self.emit(
            f"stablehlo.reduce({source} init: {start}) applies stablehlo.{op} across dimensions = [{axes}]"
            f" : ({self.type(shape)}, {self.type(())}) -> {result}"
        )
        if value.kind != "mean":
            return total
        scale = self.constant(1 / reduced(value, self.shape(shape)), value.shape)
        return self.emit(f"stablehlo.multiply {total}, {scale} : {result}")

    def step(self, step: Step, args: list[str], shape: Shape) -> str:
        kind = self.type(shape)

        def op(name: str, *of: str) -> str:
            return self.emit(f"stablehlo.{name} {', '.join(of)} : {kind}")

        if step.op in _DIRECT:
            return op(_DIRECT[step.op], *args)
        if step.op == "select":
            order = "SIGNED" if self.graph.integer else "FLOAT"
            chosen = self.emit(
                f"stablehlo.compare GT, {args[0]}, {args[1]}, {order} : ({kind}, {kind}) -> {self.type(shape, 'i1')}"
            )
            return self.emit(f"stablehlo.select {chosen}, {args[1]}, {args[0]} : {self.type(shape, 'i1')}, {kind}")
        x = args[0]
        if step.op == "square":
            return op("multiply", x, x)
        if step.op == "exp_tanh":
            return op("exponential", op("tanh", x))
        if step.op == "log1p_abs":
            return op("log_plus_one", op("abs", x))
        if step.op == "relu":
            return op("maximum", x, self.constant(0, shape))
        if step.op in ("scale", "shift"):
            return op({"scale": "multiply", "shift": "add"}[step.op], x, self.constant(step.constant or 0, shape))
        if step.op == "sqrt_abs":
            return op("sqrt", op("add", op("abs", x), self.constant(0.01, shape)))
        if step.op == "rsqrt_square":
            return op("rsqrt", op("add", op("multiply", x, x), self.constant(1, shape)))
        return op("divide", x, op("add", op("abs", args[1]), self.constant(1, shape)))


def number(value: float, integer: bool) -> str:
    """A constant as MLIR writes it, infinities in hexadecimal left to the caller."""
    return str(int(value)) if integer else f"{value:e}"


def neutral(kind: str, integer: bool) -> float:
    """Where a reduction starts; maxima and minima start beyond any value that occurs."""
    far = 2.0**31 - 1 if integer else 6e4
    return {"maximum": -far, "minimum": far}.get(kind, 0.0)


def reduced(value: Value, shape: tuple[int, ...]) -> int:
    """How many elements go into one result of a reduction."""
    total = 1
    for axis in value.axes:
        total *= shape[axis]
    return total


def sliced(value: Value, source: tuple[int, ...], result: tuple[int, ...]) -> tuple[int, int, int]:
    """Start, end and stride of a slice along its axis."""
    size, remaining = source[value.axes[0]], result[value.axes[0]]
    return {"first": (0, remaining, 1), "last": (size - remaining, size, 1), "stride": (0, 2 * remaining - 1, 2)}[
        value.kind
    ]


def write_stablehlo(graph: Graph, sizes: Sizes, dtype: str) -> str:
    """The module's text: inputs are arguments of `@main`, what nothing reads is returned."""
    writer = _Writer(graph, sizes, dtype)
    names: list[str] = []
    arguments: list[str] = []
    for value in graph.values:
        if value.op == "input":
            names.append(f"%arg{len(arguments)}")
            arguments.append(f"{names[-1]}: {writer.type(value.shape)}")
        else:
            names.append(writer.write(value, [names[n] for n in value.args]))
    outputs = [names[n] for n in graph.outputs]
    types = ", ".join(writer.type(graph.values[n].shape) for n in graph.outputs)
    head = f"module @generated {{\n  func.func public @main({', '.join(arguments)}) -> ({types}) {{\n"
    return head + "\n".join(writer.lines) + f"\n    return {', '.join(outputs)} : {types}\n  }}\n}}\n"
