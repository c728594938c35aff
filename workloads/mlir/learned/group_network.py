"""The group network, written once: what it computes is the same in PyTorch, which trains it, and in ONNX, which serves fits
of it side by side, their answers averaged.

It gives every group of a program, and the program as a whole, logarithms of factors on its analytic time, one per setting (a
compiler with so many threads). Times are positive and add up, whatever the order: a sum over a set (Zaheer et al., "Deep sets",
NeurIPS 2017) is what latency is on a device that does one thing at a time, and it gives each group's share for nothing. A group
knows what it reads from, and the program as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ....features.batch.cases import Floats
from ....features.mlir.vectors.group_columns import GROUP_NUMBERS, TERMS
from ....features.mlir.vectors.op_columns import CODE_SIZES, CODES, NUMBERS
from .analytic_base import MOST_LOG_FACTOR, AnalyticBase
from .ragged_batch import CONTEXT, N_KINDS

_CODE_WIDTHS = (8, 8, 4, 4, 4)
_KIND_WIDTH = 4
_OP_WIDTH, _GROUP_WIDTH, _CONTEXT_WIDTH = 32, 96, 12
"""Widths of layers; part of every artifact."""

GROUP_NETWORK = "group network"
"""What it is called among the members of a blend."""

CLIP = 5.0
"""Standardised numbers stay within ± this: far outside the training range a network would extrapolate without limit."""


class Backend(Protocol):
    """The few operations that networks are made of, on tensors of one library; columns are features."""

    def linear(self, x: Any, name: str, n_in: int, n_out: int, *, zero: bool = False) -> Any:
        """A dense layer from `(n, n_in)` to `(n, n_out)` with the weights `name`; `zero` starts them at 0."""

    def embed(self, codes: Any, column: int, name: str, size: int, width: int) -> Any:
        """For each of `codes[:, column]` its learned row of the table `name`, which has `size` rows of `width` numbers."""

    def scaled(self, x: Any, name: str) -> Any:
        """Standardised by the mean and deviation kept under that name, within limits."""

    def relu(self, x: Any) -> Any:
        """Negative numbers become 0."""

    def add(self, x: Any, y: Any) -> Any:
        """The sum of two tensors of one shape."""

    def concat(self, parts: Sequence[Any]) -> Any:
        """Columns beside each other."""

    def drop(self, x: Any) -> Any:
        """In training, a share of the numbers at random becomes 0 (Srivastava et al., JMLR 2014); else nothing happens."""

    def take(self, x: Any, index: Any) -> Any:
        """The rows at these places."""

    def mean(self, x: Any, owner: Any, owners: Any) -> Any:
        """Mean of the rows of each owner; `owners` has a row per owner. Of none, 0."""


Inputs = Mapping[str, Any]
"""Tensors by the names of `RaggedBatch`."""


def _operations(b: Backend, x: Inputs) -> Any:
    """Every distinct operation by itself, `_OP_WIDTH` numbers."""
    words = [
        b.embed(x["op_codes"], column, f"code{column}", size, width)
        for column, (size, width) in enumerate(zip(CODE_SIZES, _CODE_WIDTHS, strict=True))
    ]
    numbers = b.scaled(x["ops"], "ops")
    known = len(NUMBERS) + sum(_CODE_WIDTHS)
    return b.drop(b.relu(b.linear(b.concat([numbers, *words]), "op", known, _OP_WIDTH)))


def _context(b: Backend, x: Inputs) -> Any:
    """The program as a whole, `_CONTEXT_WIDTH` numbers."""
    return b.relu(b.linear(b.scaled(x["context"], "context"), "around", len(CONTEXT), _CONTEXT_WIDTH))


def _groups(b: Backend, x: Inputs, context: Any) -> Any:
    """Every group with its operations and the whole around it, `_GROUP_WIDTH` numbers."""
    ops = _operations(b, x)
    ops = b.relu(b.linear(ops, "op2", _OP_WIDTH, _OP_WIDTH))
    inside = b.mean(b.take(ops, x["op_row"]), x["op_group"], x["groups"])
    kind = b.embed(x["group_codes"], 0, "kind", N_KINDS, _KIND_WIDTH)
    parts = [b.scaled(x["groups"], "groups"), kind, inside, b.take(context, x["group_program"])]
    width = len(GROUP_NUMBERS) + _KIND_WIDTH + _OP_WIDTH + _CONTEXT_WIDTH
    return b.drop(b.relu(b.linear(b.concat(parts), "group", width, _GROUP_WIDTH)))


def _residual(b: Backend, h: Any, beside: Sequence[Any], name: str, width: int) -> Any:
    return b.add(h, b.drop(b.relu(b.linear(b.concat([h, *beside]), name, width * (1 + len(beside)), width))))


def _whole(b: Backend, context: Any, n_settings: int) -> Any:
    h = b.relu(b.linear(context, "whole", _CONTEXT_WIDTH, _CONTEXT_WIDTH))
    return b.linear(h, "whole out", _CONTEXT_WIDTH, n_settings, zero=True)


def log_factors(b: Backend, x: Inputs, n_settings: int) -> tuple[Any, Any]:
    """Logarithms of factors of the groups, shape `(n_groups, n_settings)`, and of the calls, `(n, n_settings)`."""
    context = _context(b, x)
    h = _groups(b, x, context)
    h = _residual(b, h, [b.take(h, x["sources"])], "source", _GROUP_WIDTH)
    h = _residual(b, h, [], "deep", _GROUP_WIDTH)
    return b.linear(h, "out", _GROUP_WIDTH, n_settings, zero=True), _whole(b, context, n_settings)


INPUTS = ("context", "groups", "group_codes", "group_program", "ops", "op_codes", "op_row", "op_group", "sources")
"""Names of what the network reads."""

SERVING_NAMES = (*INPUTS, "terms", "classes", "passed")
"""Names of the arrays its graph reads: its inputs, and what the analytic times are made from. `classes` is each group's class
(`analytic_base.classes_of`), `passed` of shape `(n, 1)` the seconds of copying what passes through."""


_SMALL = 64
"""Tensors with fewer numbers are kept in fp32."""

_OPSET, _IR_VERSION = 20, 9

_WIDTHS: Mapping[str, tuple[str, int]] = {
    "context": ("FLOAT", len(CONTEXT)), "groups": ("FLOAT", len(GROUP_NUMBERS)), "ops": ("FLOAT", len(NUMBERS)),
    "op_codes": ("INT64", len(CODES)), "group_codes": ("INT64", 1), "terms": ("FLOAT", len(TERMS)),
    "passed": ("FLOAT", 1),
}  # fmt: skip
"""Inputs with columns; all others are places, int64 of shape `(n,)`."""


class OnnxBackend:
    """`networks.Backend` as nodes of a graph; tensors are their names. One per fit: names of weights start with `prefix`."""

    def __init__(self, prefix: str, weights: Mapping[str, Any], scales: Mapping[str, tuple[Floats, Floats]]) -> None:
        self._prefix = prefix
        self._weights = weights
        self._scales = scales
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._count = 0
        self._known: set[str] = set()

    def op(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """A node with one output, whose name is returned."""
        from onnx import helper

        self._count += 1
        out = f"{self._prefix}#{self._count}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], **attributes))
        return out

    def constant(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        """A tensor of the graph: large ones are stored in fp16, which is more than their training is exact to."""
        from onnx import TensorProto, helper

        full = f"{self._prefix}/{name}"
        if full not in self._known:
            self._known.add(full)
            array = np.asarray(value)
            if dtype is np.float32 and array.size >= _SMALL:
                half = self._stored(f"{full}.half", array, np.float16)
                self.nodes.append(helper.make_node("Cast", [half], [full], to=TensorProto.FLOAT))
            else:
                self._stored(full, array, dtype)
        return full

    def _stored(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        from ....models.engine.onnx_writer import constant_tensor

        self.constants.append(constant_tensor(name, value, dtype))
        return name

    def linear(self, x: str, name: str, n_in: int, n_out: int, *, zero: bool = False) -> str:
        """See `networks.Backend.linear`; weights were made in training."""
        del n_in, n_out, zero
        weight, bias = (self.constant(f"{name}.{part}", self._weights[f"{name}.{part}"]) for part in ("weight", "bias"))
        return self.op("Gemm", [x, weight, bias], transB=1)

    def embed(self, codes: str, column: int, name: str, size: int, width: int) -> str:
        """See `networks.Backend.embed`."""
        del size, width
        code = self.op("Gather", [codes, self.constant(f"column{column}", [column], np.int64)], axis=1)
        flat = self.op("Reshape", [code, self.constant("list", [-1], np.int64)])
        return self.op("Gather", [self.constant(f"{name}.rows", self._weights[f"{name}.rows"]), flat], axis=0)

    def scaled(self, x: str, name: str) -> str:
        """See `networks.Backend.scaled`; means and deviations stay in fp32."""
        mean, scale = f"{self._prefix}/{name}.mean", f"{self._prefix}/{name}.scale"
        if mean not in self._known:
            self._known.add(mean)
            self._stored(mean, self._scales[name][0])
            self._stored(scale, self._scales[name][1])
        return self._clipped(self.op("Div", [self.op("Sub", [x, mean]), scale]), CLIP)

    def _clipped(self, x: str, most: float) -> str:
        return self.op("Clip", [x, self.constant(f"-{most}", -most), self.constant(f"+{most}", most)])

    def relu(self, x: str) -> str:
        """See `networks.Backend.relu`."""
        return self.op("Relu", [x])

    def add(self, x: str, y: str) -> str:
        """See `networks.Backend.add`."""
        return self.op("Add", [x, y])

    def concat(self, parts: Sequence[str]) -> str:
        """See `networks.Backend.concat`."""
        return self.op("Concat", parts, axis=1)

    def drop(self, x: str) -> str:
        """See `networks.Backend.drop`: nothing happens."""
        return x

    def take(self, x: str, index: str) -> str:
        """See `networks.Backend.take`."""
        return self.op("Gather", [x, index], axis=0)

    def total(self, x: str, owner: str, like: str) -> str:
        """Sum of the rows of each owner; `like` has a row per owner."""
        rows = self.op("Shape", [like], start=0, end=1)
        columns = self.op("Shape", [x], start=1, end=2)
        zeros = self.op("ConstantOfShape", [self.op("Concat", [rows, columns], axis=0)])
        places = self.op("Unsqueeze", [owner, self.constant("last", [1], np.int64)])
        return self.op("ScatterND", [zeros, places, x], reduction="add")

    def mean(self, x: str, owner: str, owners: str) -> str:
        """See `networks.Backend.mean`."""
        first = self.op("Slice", [x, self.constant("zero", [0], np.int64), self.constant("one", [1], np.int64),
                                  self.constant("columns", [1], np.int64)])  # fmt: skip
        ones = self.op("Add", [self.op("Mul", [first, self.constant("0", 0.0)]), self.constant("1", 1.0)])
        counts = self.op("Max", [self.total(ones, owner, owners), self.constant("1", 1.0)])
        return self.op("Div", [self.total(x, owner, owners), counts])

    def group_seconds(self, base: AnalyticBase, factors: str) -> str:
        """Microseconds of each group: its analytic time, times the factors."""
        n_settings, n_classes, n_terms = base.weights.shape
        table = base.weights.transpose(1, 0, 2).reshape(n_classes, n_settings * n_terms) * 1e6
        name = self._stored(f"{self._prefix}/paper", table)
        weights = self.op("Reshape", [self.op("Gather", [name, "classes"], axis=0),
                                      self.constant("by term", [0, n_settings, n_terms], np.int64)])  # fmt: skip
        terms = self.op("Unsqueeze", ["terms", self.constant("last", [1], np.int64)])
        seconds = self.op(
            "ReduceSum", [self.op("Mul", [weights, terms]), self.constant("third", [2], np.int64)], keepdims=0
        )
        return self.op("Mul", [seconds, self.op("Exp", [self._clipped(factors, MOST_LOG_FACTOR)])])

    def whole_seconds(self, base: AnalyticBase, factors: str) -> str:
        """Microseconds of the call itself, and of copying what only passes through."""
        # Not in fp16: a copy's weight may be far from 1.
        call, copy = (
            self._stored(f"{self._prefix}/{name}", value[None] * 1e6)
            for name, value in (("call", base.call_s), ("copy", base.copy))
        )
        calls = self.op("Add", [self.op("Mul", ["passed", copy]), call])
        return self.op("Mul", [calls, self.op("Exp", [self._clipped(factors, MOST_LOG_FACTOR)])])


def network_graph(fits: Sequence[Any]) -> bytes:
    """The graph of several fits of the network.

    It maps the arrays of `SERVING_NAMES` to `log_latency` of shape `(n, n_settings)`, the mean of the fits' logarithms of
    seconds, and `seconds` of shape `(n_groups, n_settings)`, their mean of each group's.

    Args:
        fits: `network_training.TrainedNetwork`, one or more.
    """
    from onnx import TensorProto, checker, helper

    inputs = {name: name for name in INPUTS}
    nodes: list[Any] = []
    constants: list[Any] = []
    logs, seconds = [], []
    n_settings = len(fits[0].base.call_s)
    for i, fit in enumerate(fits):
        b = OnnxBackend(f"fit{i}", fit.weights, fit.scales)
        groups, whole = log_factors(b, inputs, n_settings)
        group_s = b.group_seconds(fit.base, groups)
        in_all = b.op("Add", [b.total(group_s, "group_program", "context"), b.whole_seconds(fit.base, whole)])
        logs.append(b.op("Log", [in_all]))
        seconds.append(group_s)
        nodes += b.nodes
        constants += b.constants
    b = OnnxBackend("mean", {}, {})
    mean = b.op("Sub", [b.op("Mean", logs), b.constant("micro", float(np.log(1e6)))])
    groups = b.op("Mul", [b.op("Mean", seconds), b.constant("second", 1e-6)])
    nodes += [
        *b.nodes,
        helper.make_node("Identity", [mean], ["log_latency"]),
        helper.make_node("Identity", [groups], ["seconds"]),
    ]
    graph = helper.make_graph(
        nodes, "kernelcast", [_declared(name) for name in SERVING_NAMES],
        [helper.make_tensor_value_info("log_latency", TensorProto.FLOAT, ["n", n_settings]),
         helper.make_tensor_value_info("seconds", TensorProto.FLOAT, ["groups", n_settings])],
        initializer=[*constants, *b.constants],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", _OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="kernelcast")
    checker.check_model(model)
    return bytes(model.SerializeToString())


def _declared(name: str) -> Any:
    from onnx import TensorProto, helper

    kind, width = _WIDTHS.get(name, ("INT64", 0))
    shape: list[str | int | None] = [f"n_{name}", width] if width else [f"n_{name}"]
    return helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)
