"""Which of this product's own kinds of graph a serialised ONNX model is, and its arrays.

Only what `onnx_writer.tree_ensemble` and `onnx_writer.periodic_network` write is recognised, to the last name; any other
graph gives None, and onnxruntime runs it. Operators: ai.onnx.ml's TreeEnsemble, version 5
(https://onnx.ai/onnx/operators/onnx_aionnxml_TreeEnsemble.html), and ai.onnx, version 20.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .protobuf import Graph, Node, UnlikeError, read_graph

_ML = "ai.onnx.ml"
_OPSETS = {"": 20, _ML: 5}
_BRANCH_LT = 1
_MOST = 2**31 - 1
_MOST_LAYERS = 64

Ints = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.float32]
Flags = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ForestArrays:
    """Trees over split nodes and leaves, numbered apart, as TreeEnsemble has them.

    A row goes to the right where `x[feature] >= threshold`; where it is missing, unless `missing_left`. Each tree's leaves
    all belong to one target; answers are `base` plus the sum of the leaves, one column for each of `base`.

    Attributes:
        width: Columns of the input.
        roots: First split of each tree, shape `(n_trees,)`.
        feature: Column a split looks at, shape `(n_splits,)`.
        threshold: Threshold of a split, shape `(n_splits,)`.
        missing_left: Whether a missing value goes left, shape `(n_splits,)`.
        left: Number of the split or leaf to the left, shape `(n_splits,)`.
        left_leaf: Whether that is a leaf, shape `(n_splits,)`.
        right: Number of the split or leaf to the right, shape `(n_splits,)`.
        right_leaf: Whether that is a leaf, shape `(n_splits,)`.
        leaf_value: Values of leaves, shape `(n_leaves,)`.
        leaf_target: Target of each leaf, shape `(n_leaves,)`.
        base: What answers start from, shape `(n_targets,)`.
    """

    width: int
    roots: Ints
    feature: Ints
    threshold: Numbers
    missing_left: Flags
    left: Ints
    left_leaf: Flags
    right: Ints
    right_leaf: Flags
    leaf_value: Numbers
    leaf_target: Ints
    base: Numbers

    @property
    def targets(self) -> int:
        """Columns of the answer."""
        return len(self.base)


@dataclass(frozen=True, slots=True)
class NetworkArrays:
    """A residual network on periodic embeddings, see `onnx_writer.periodic_network`; `columns` are read, the first
    `numbers` of them embedded.

    Attributes:
        width: Columns of the input.
        columns: Columns that are read.
        numbers: How many of them, from the first on, are embedded.
        mean: Means the numbers are standardised by, shape `(numbers,)`.
        scale: Deviations they are standardised by, shape `(numbers,)`.
        clip: Largest standardised number.
        frequency: Frequencies of the waves, shape `(numbers, 1, waves)`.
        embed_weight: Weights of the embeddings.
        embed_bias: Biases of the embeddings.
        layer_weights: Weights of each layer.
        layer_biases: Biases of each layer.
        out_weight: Weights of the answer.
        out_bias: Bias of the answer.
    """

    width: int
    columns: Ints
    numbers: int
    mean: Numbers
    scale: Numbers
    clip: float
    frequency: Numbers
    embed_weight: Numbers
    embed_bias: Numbers
    layer_weights: tuple[Numbers, ...]
    layer_biases: tuple[Numbers, ...]
    out_weight: Numbers
    out_bias: float

    targets = 1


def arrays_of(model: bytes) -> ForestArrays | NetworkArrays | None:
    """The arrays of a graph that this product wrote, checked against each other; None for any other bytes."""
    try:
        graph, opsets = read_graph(model)
        if opsets != _OPSETS:
            return None
        (width,), (targets,) = _ends(graph)
        return _forest(graph, width, targets) if len(graph.nodes) == 2 else _network(graph, width, targets)
    except UnlikeError:
        return None


def _ends(graph: Graph) -> tuple[tuple[int], tuple[int]]:
    """Columns of `x` and of `y`."""
    shapes = []
    for ends, name in ((graph.inputs, "x"), (graph.outputs, "y")):
        if list(ends) != [name] or len(ends[name]) != 2 or ends[name][0] != 0 or not 0 < ends[name][1] < 1 << 20:
            raise UnlikeError
        shapes.append((ends[name][1],))
    return shapes[0], shapes[1]


_SCALARS = {"aggregate_function": 1, "post_transform": 0}
"""TreeEnsemble's codes: sum, none."""


def _forest(graph: Graph, width: int, targets: int) -> ForestArrays:
    trees, add = graph.nodes
    if (trees.domain, trees.kind, trees.inputs, trees.outputs) != (_ML, "TreeEnsemble", ("x",), ("sum",)):
        raise UnlikeError
    if add != Node("", "Add", ("sum", "base"), ("y",), {}) or set(graph.constants) != {"base"}:
        raise UnlikeError
    attributes = dict(trees.attributes)
    if any(attributes.pop(name, None) != code for name, code in (_SCALARS | {"n_targets": targets}).items()):
        raise UnlikeError
    base = _numbers(graph.constants["base"], (targets,))
    splits, leaves = _length(attributes, "nodes_featureids"), _length(attributes, "leaf_targetids")
    threshold = _numbers(attributes.pop("nodes_splits", None), (splits,))
    modes = attributes.pop("nodes_modes", None)
    if not isinstance(modes, np.ndarray) or modes.shape != (splits,) or not (modes == _BRANCH_LT).all():
        raise UnlikeError
    left_leaf, right_leaf = (_flags(attributes.pop(f"nodes_{side}leafs", None), splits) for side in ("true", "false"))
    arrays = ForestArrays(
        width=width,
        roots=_places(attributes.pop("tree_roots", None), None, splits),
        feature=_places(attributes.pop("nodes_featureids"), splits, width),
        threshold=threshold,
        missing_left=_flags(attributes.pop("nodes_missing_value_tracks_true", None), splits),
        left=_places(attributes.pop("nodes_truenodeids", None), splits, np.where(left_leaf, leaves, splits)),
        left_leaf=left_leaf,
        right=_places(attributes.pop("nodes_falsenodeids", None), splits, np.where(right_leaf, leaves, splits)),
        right_leaf=right_leaf,
        leaf_value=_numbers(attributes.pop("leaf_weights", None), (leaves,)),
        leaf_target=_places(attributes.pop("leaf_targetids"), leaves, targets),
        base=base,
    )
    if attributes:
        raise UnlikeError
    return arrays


def _layers(depth: int) -> list[Node]:
    nodes = []
    for i in range(depth):
        nodes.append(Node("", "Gemm", (f"h{i}", f"layer{i}_weight", f"layer{i}_bias"), (f"z{i}",), {"transB": 1}))
        nodes.append(Node("", "Relu", (f"z{i}",), ("h1" if i == 0 else f"r{i}",), {}))
        if i > 0:
            nodes.append(Node("", "Add", (f"h{i}", f"r{i}"), (f"h{i + 1}",), {}))
    return [*nodes, Node("", "Gemm", (f"h{depth}", "out_weight", "out_bias"), ("y",), {"transB": 1})]


_FRAME: tuple[tuple[str, tuple[str, ...], str, dict[str, Any]], ...] = (
    ("Gather", ("x", "columns"), "chosen", {"axis": 1}),
    ("IsNaN", ("chosen",), "missing", {}),
    ("Where", ("missing", "mean", "chosen"), "filled", {}),
    ("Sub", ("filled", "mean"), "centred", {}),
    ("Div", ("centred", "scale"), "scaled", {}),
    ("Clip", ("scaled", "low", "high"), "inputs", {}),
    ("Slice", ("inputs", "zero", "n_numeric", "one"), "numbers", {}),
    ("Transpose", ("numbers",), "by_column", {"perm": (1, 0)}),
    ("Unsqueeze", ("by_column", "two"), "stacked", {}),
    ("Mul", ("stacked", "frequency"), "phase", {}),
    ("Sin", ("phase",), "sine", {}),
    ("Cos", ("phase",), "cosine", {}),
    ("Concat", ("sine", "cosine"), "waves", {"axis": 2}),
    ("MatMul", ("waves", "embed_weight"), "mixed", {}),
    ("Add", ("mixed", "embed_bias"), "shifted", {}),
    ("Relu", ("shifted",), "bent", {}),
    ("Transpose", ("bent",), "by_row", {"perm": (1, 0, 2)}),
    ("Reshape", ("by_row", "flat"), "embedded", {}),
    ("Concat", ("inputs", "embedded"), "h0", {"axis": 1}),
)
"""The operations in front of a periodic network's layers: kind, inputs, output, attributes."""


def _network(graph: Graph, width: int, targets: int) -> NetworkArrays:
    constants = dict(graph.constants)
    depth = sum(name.startswith("layer") and name.endswith("_weight") for name in constants)
    expected = [Node("", kind, inputs, (output,), attributes) for kind, inputs, output, attributes in _FRAME] + _layers(
        depth
    )
    nodes = [Node(node.domain, node.kind, node.inputs, node.outputs, _plain(node.attributes)) for node in graph.nodes]
    if targets != 1 or not 0 < depth <= _MOST_LAYERS or nodes != expected:
        raise UnlikeError
    frequency, embed_weight = constants.pop("frequency", None), constants.pop("embed_weight", None)
    if frequency is None or embed_weight is None or frequency.ndim != 3 or embed_weight.ndim != 3:
        raise UnlikeError
    (numbers, _, waves), embedding = frequency.shape, embed_weight.shape[2]
    if not waves or not embedding:
        raise UnlikeError
    whole = {"zero": [0], "one": [1], "two": [2], "n_numeric": [numbers], "flat": [-1, numbers * embedding]}
    for name, value in whole.items():
        attributes = constants.pop(name, None)
        if attributes is None or attributes.dtype != np.int64 or attributes.tolist() != value:
            raise UnlikeError
    columns = _places(constants.pop("columns", None), None, width)
    clip = float(_weights(constants.pop("high", None), (1,))[0])
    if numbers > len(columns) or clip <= 0 or float(_weights(constants.pop("low", None), (1,))[0]) != -clip:
        raise UnlikeError
    weights, biases, inputs, outputs = [], [], len(columns) + numbers * embedding, 0
    for i in range(depth):
        bias = constants.pop(f"layer{i}_bias", None)
        outputs = outputs or (0 if bias is None else bias.size)
        biases.append(_weights(bias, (outputs,)))
        weights.append(_weights(constants.pop(f"layer{i}_weight", None), (outputs, inputs)))
        inputs = outputs
    arrays = NetworkArrays(
        width=width,
        columns=columns,
        numbers=numbers,
        mean=_weights(constants.pop("mean", None), (len(columns),)),
        scale=_weights(constants.pop("scale", None), (len(columns),)),
        clip=clip,
        frequency=_weights(frequency, (numbers, 1, waves)),
        embed_weight=_weights(embed_weight, (numbers, 2 * waves, embedding)),
        embed_bias=_weights(constants.pop("embed_bias", None), (numbers, 1, embedding)),
        layer_weights=tuple(weights),
        layer_biases=tuple(biases),
        out_weight=_weights(constants.pop("out_weight", None), (1, outputs)),
        out_bias=float(_weights(constants.pop("out_bias", None), (1,))[0]),
    )
    if constants or not (arrays.scale > 0).all():
        raise UnlikeError
    return arrays


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value.tolist()) if isinstance(value, np.ndarray) else value for name, value in attributes.items()
    }


def _length(attributes: Mapping[str, Any], name: str) -> int:
    value = attributes.get(name)
    if not isinstance(value, np.ndarray) or value.ndim != 1 or not 0 < len(value) < _MOST:
        raise UnlikeError
    return len(value)


def _numbers(value: Any, shape: Sequence[int]) -> Numbers:
    """Finite float32 of that shape."""
    if not isinstance(value, np.ndarray) or value.dtype != np.float32 or value.shape != tuple(shape):
        raise UnlikeError
    if not np.isfinite(value).all() or not value.size:
        raise UnlikeError
    # A copy, where numbers stand at addresses that are theirs: inside a file they stand anywhere.
    return value.astype(np.float32)


_LARGEST = 1e6
"""Largest number of a network that is run here: trained ones stay below a hundred, and some layers of larger ones overflow."""


def _weights(value: Any, shape: Sequence[int]) -> Numbers:
    """Numbers of a network, none so large that answers are not finite."""
    numbers = _numbers(value, shape)
    if (np.abs(numbers) > _LARGEST).any():
        raise UnlikeError
    return numbers


def _places(value: Any, count: int | None, below: Any) -> Ints:
    """Whole numbers from 0 up to `below`."""
    if not isinstance(value, np.ndarray) or value.dtype != np.int64 or value.ndim != 1 or not len(value):
        raise UnlikeError
    if (count is not None and len(value) != count) or not ((value >= 0) & (value < below)).all():
        raise UnlikeError
    return value.astype(np.int32)


def _flags(value: Any, count: int) -> Flags:
    return _places(value, count, 2).astype(np.uint8)
