"""Trained networks as ONNX graphs, which onnxruntime serves: fits of one network side by side, their answers averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....features.batch.cases import Floats
from ....features.mlir.vectors.group_columns import GROUP_NUMBERS, TERMS
from ....features.mlir.vectors.op_columns import CODES, NUMBERS
from .analytic_base import AnalyticBase
from .networks import CLIP, MOST_LOG_FACTOR, Network, serving_names
from .ragged_batch import CONTEXT

_SMALL = 64
"""Tensors with fewer numbers are kept in fp32."""

_OPSETS = (("", 20),)
_IR_VERSION = 9

_WIDTHS: Mapping[str, tuple[str, int]] = {
    "context": ("FLOAT", len(CONTEXT)), "groups": ("FLOAT", len(GROUP_NUMBERS)), "ops": ("FLOAT", len(NUMBERS)),
    "op_codes": ("INT64", len(CODES)), "group_codes": ("INT64", 1), "terms": ("FLOAT", len(TERMS)),
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
        from ....models.engine.onnx_writer import constant_tensor

        full = f"{self._prefix}/{name}"
        if full not in self._known:
            self._known.add(full)
            array = np.asarray(value)
            if dtype is np.float32 and array.size >= _SMALL:
                self.constants.append(constant_tensor(f"{full}.half", array, np.float16))
                self._cast(f"{full}.half", full)
            else:
                self.constants.append(constant_tensor(full, array, dtype))
        return full

    def _cast(self, source: str, target: str) -> None:
        from onnx import TensorProto, helper

        self.nodes.append(helper.make_node("Cast", [source], [target], to=TensorProto.FLOAT))

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
        from ....models.engine.onnx_writer import constant_tensor

        mean, scale = f"{self._prefix}/{name}.mean", f"{self._prefix}/{name}.scale"
        if mean not in self._known:
            self._known.add(mean)
            self.constants += [
                constant_tensor(mean, self._scales[name][0]),
                constant_tensor(scale, self._scales[name][1]),
            ]
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

    def attend(self, query: str, key: str, value: str, owner: str, heads: int) -> str:
        """See `networks.Backend.attend`."""
        n = self._weights["query0.weight"].shape[0]
        # Every size is said: what is left to be worked out cannot be for a program without parts.
        shape = self.constant("heads", [0, heads, n // heads], np.int64)
        split = [
            self.op("Transpose", [self.op("Reshape", [tensor, shape])], perm=[1, 0, 2]) for tensor in (query, value)
        ]
        turned = self.op("Transpose", [self.op("Reshape", [key, shape])], perm=[1, 2, 0])
        logits = self.op(
            "Mul", [self.op("MatMul", [split[0], turned]), self.constant("per width", (n // heads) ** -0.5)]
        )
        down = self.op("Unsqueeze", [owner, self.constant("last", [1], np.int64)])
        across = self.op("Unsqueeze", [owner, self.constant("first", [0], np.int64)])
        masked = self.op("Where", [self.op("Equal", [down, across]), logits, self.constant("never", -1e9)])
        heard = self.op("MatMul", [self.op("Softmax", [masked], axis=-1), split[1]])
        back = self.op("Transpose", [heard], perm=[1, 0, 2])
        return self.op("Reshape", [back, self.constant("flat", [0, n], np.int64)])

    def parts_seconds(self, network: Network, base: AnalyticBase, factors: str) -> str:
        """Microseconds of each part: its group's analytic time, shared evenly by operations, times the factors."""
        n_settings, n_classes, n_terms = base.weights.shape
        table = base.weights.transpose(1, 0, 2).reshape(n_classes, n_settings * n_terms) * 1e6
        from ....models.engine.onnx_writer import constant_tensor

        name = f"{self._prefix}/paper"
        self.constants.append(constant_tensor(name, table))
        weights = self.op("Reshape", [self.op("Gather", [name, "classes"], axis=0),
                                      self.constant("by term", [0, n_settings, n_terms], np.int64)])  # fmt: skip
        terms = self.op("Unsqueeze", ["terms", self.constant("last", [1], np.int64)])
        seconds = self.op(
            "ReduceSum", [self.op("Mul", [weights, terms]), self.constant("third", [2], np.int64)], keepdims=0
        )
        if network.parts == "ops":
            seconds = self.op("Gather", [self.op("Mul", [seconds, "per_op"]), "op_group"], axis=0)
        return self.op("Mul", [seconds, self.op("Exp", [self._clipped(factors, MOST_LOG_FACTOR)])])

    def whole_seconds(self, base: AnalyticBase, factors: str) -> str:
        """Microseconds of the call itself, and of copying what only passes through."""
        from ....models.engine.onnx_writer import constant_tensor

        # Not in fp16: a copy's weight may be far from 1.
        self.constants += [constant_tensor(f"{self._prefix}/{name}", value[None] * 1e6)
                           for name, value in (("call", base.call_s), ("copy", base.copy))]  # fmt: skip
        copied = self.op("Mul", ["passed", f"{self._prefix}/copy"])
        calls = self.op("Add", [copied, f"{self._prefix}/call"])
        return self.op("Mul", [calls, self.op("Exp", [self._clipped(factors, MOST_LOG_FACTOR)])])


def network_graph(network: Network, fits: Sequence[Any]) -> bytes:
    """The graph of several fits of a network.

    It maps the arrays of `serving_inputs` to `log_latency` of shape `(n, n_settings)`, the mean of the fits' logarithms of
    seconds, and `seconds` of shape `(n_parts, n_settings)`, their mean of each part's.

    Args:
        network: which.
        fits: `network_training.TrainedNetwork`, one or more.
    """
    from onnx import TensorProto, checker, helper

    inputs = {name: name for name in network.inputs}
    nodes: list[Any] = []
    constants: list[Any] = []
    logs, seconds = [], []
    n_settings = len(fits[0].base.call_s)
    owner = "group_program" if network.parts == "groups" else "op_program"
    for i, fit in enumerate(fits):
        b = OnnxBackend(f"fit{i}", fit.weights, fit.scales)
        parts, whole = network.compute(b, inputs, n_settings)
        part_s = b.parts_seconds(network, fit.base, parts)
        in_all = b.op("Add", [b.total(part_s, owner, "context"), b.whole_seconds(fit.base, whole)])
        logs.append(b.op("Log", [in_all]))
        seconds.append(part_s)
        nodes += b.nodes
        constants += b.constants
    b = OnnxBackend("mean", {}, {})
    mean = b.op("Sub", [b.op("Mean", logs), b.constant("micro", float(np.log(1e6)))])
    parts = b.op("Mul", [b.op("Mean", seconds), b.constant("second", 1e-6)])
    nodes += [
        *b.nodes,
        helper.make_node("Identity", [mean], ["log_latency"]),
        helper.make_node("Identity", [parts], ["seconds"]),
    ]
    graph = helper.make_graph(
        nodes, "kernelcast", [_declared(name) for name in serving_names(network)],
        [helper.make_tensor_value_info("log_latency", TensorProto.FLOAT, ["n", n_settings]),
         helper.make_tensor_value_info("seconds", TensorProto.FLOAT, ["parts", n_settings])],
        initializer=[*constants, *b.constants],
    )  # fmt: skip
    opsets = [helper.make_opsetid(domain, version) for domain, version in _OPSETS]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="kernelcast")
    checker.check_model(model)
    serialised: bytes = model.SerializeToString()
    return serialised


def _declared(name: str) -> Any:
    from onnx import TensorProto, helper

    if name in ("per_op", "passed"):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"n_{name}", 1])
    kind, width = _WIDTHS.get(name, ("INT64", 0))
    shape: list[str | int | None] = [f"n_{name}", width] if width else [f"n_{name}"]
    return helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)
