"""ONNX graphs of fitted models: tree ensembles, constants, and the frame that networks share.

ONNX is the artifact's model format: it loads without pickle, any runtime can read it, and one engine (onnxruntime)
serves every regressor. Graphs map `x`, float32 `(n, n_features)`, to `y`, float32 `(n, n_targets)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from ...features.batch.cases import Floats

# Operator versions with TreeEnsemble (ai.onnx.ml 5); onnxruntime 1.20 and newer run them.
_OPSETS = (("", 20), ("ai.onnx.ml", 5))
_IR_VERSION = 9
_BRANCH_LT = 1
"""TreeEnsemble's code for the comparison `<`."""


@dataclass(frozen=True, slots=True)
class Tree:
    """One regression tree in arrays over its nodes; node 0 is the root, a leaf has `left == -1`.

    `value` is a split's threshold or, at leaves, unused; `leaf` of shape `(nodes, n_targets)` holds leaf values. A row
    goes left where `x[feature] < value` and, if missing, where `missing_left`.

    Attributes:
        left: Node to the left, -1 for a leaf, shape `(nodes,)`.
        right: Node to the right, shape `(nodes,)`.
        feature: Column that a split looks at, shape `(nodes,)`.
        value: Thresholds of splits, unused at leaves, shape `(nodes,)`.
        missing_left: Whether a missing value goes left, shape `(nodes,)`.
        leaf: Values of leaves, shape `(nodes, n_targets)`.
    """

    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    feature: npt.NDArray[np.int64]
    value: npt.NDArray[np.float32]
    missing_left: npt.NDArray[np.bool_]
    leaf: npt.NDArray[np.float32]


def tree_ensemble(trees: Sequence[Tree], *, base: Sequence[float], n_features: int) -> bytes:
    """The graph of `base` plus the sum of all trees; one output column per entry of `base`."""
    arrays = _flatten(trees, n_targets=len(base))
    node = helper.make_node(
        "TreeEnsemble", ["x"], ["sum"], domain="ai.onnx.ml", n_targets=len(base), aggregate_function=1,
        post_transform=0,
        tree_roots=arrays["roots"],
        nodes_featureids=arrays["feature"],
        nodes_splits=_tensor("splits", arrays["value"], np.float32),
        nodes_modes=_tensor("modes", np.full(len(arrays["feature"]), _BRANCH_LT), np.uint8),
        nodes_truenodeids=arrays["left"], nodes_trueleafs=arrays["left_leaf"],
        nodes_falsenodeids=arrays["right"], nodes_falseleafs=arrays["right_leaf"],
        nodes_missing_value_tracks_true=arrays["missing_left"],
        leaf_targetids=arrays["leaf_target"],
        leaf_weights=_tensor("weights", arrays["leaf_weight"], np.float32),
    )  # fmt: skip
    add = helper.make_node("Add", ["sum", "base"], ["y"])
    return model_bytes([node, add], [constant_tensor("base", np.asarray(base, np.float32))], n_features, len(base))


def constant(values: Sequence[float], *, n_features: int) -> bytes:
    """The graph that answers the same for every row."""
    nodes = [
        helper.make_node("ReduceSum", ["x", "axis"], ["total"], keepdims=1),
        helper.make_node("IsNaN", ["total"], ["row"]),
        helper.make_node("Where", ["row", "values", "values"], ["y"]),
    ]
    # Both branches answer the same: the test only brings the number of rows in.
    constants = [constant_tensor("axis", np.array([1]), np.int64), constant_tensor("values", np.asarray([values]))]
    return model_bytes(nodes, constants, n_features, len(values))


def _flatten(trees: Sequence[Tree], n_targets: int) -> dict[str, Any]:
    """All trees in the node and leaf lists of the TreeEnsemble operator: splits and leaves are numbered apart.

    A leaf of the operator holds one weight for one target, so a tree stands there once for every target.
    """
    names = ("feature", "value", "left", "left_leaf", "right", "right_leaf", "missing_left")
    parts: dict[str, list[Any]] = {name: [] for name in (*names, "leaf_weight", "leaf_target")}
    roots: list[int] = []
    first_split = first_leaf = 0
    for tree, target in ((_with_root_split(tree), target) for tree in trees for target in range(n_targets)):
        is_leaf = tree.left < 0
        splits, leaves = np.flatnonzero(~is_leaf), np.flatnonzero(is_leaf)
        number = np.empty(len(is_leaf), dtype=np.int64)
        number[splits] = first_split + np.arange(len(splits))
        number[leaves] = first_leaf + np.arange(len(leaves))
        roots.append(first_split)
        parts["feature"].append(tree.feature[splits])
        parts["value"].append(tree.value[splits])
        parts["missing_left"].append(tree.missing_left[splits].astype(np.int64))
        for side, child in (("left", tree.left[splits]), ("right", tree.right[splits])):
            parts[side].append(number[child])
            parts[f"{side}_leaf"].append(is_leaf[child].astype(np.int64))
        parts["leaf_weight"].append(tree.leaf[leaves, target])
        parts["leaf_target"].append(np.full(len(leaves), target))
        first_split += len(splits)
        first_leaf += len(leaves)
    return {name: np.concatenate(chunks) for name, chunks in parts.items()} | {"roots": roots}


def _with_root_split(tree: Tree) -> Tree:
    """The operator knows no tree that is only a leaf: give such a tree a split whose sides agree."""
    if tree.left[0] >= 0:
        return tree
    return Tree(
        left=np.array([1, -1, -1]),
        right=np.array([2, -1, -1]),
        feature=np.zeros(3, dtype=np.int64),
        value=np.zeros(3, dtype=np.float32),
        missing_left=np.ones(3, dtype=np.bool_),
        leaf=np.repeat(tree.leaf[:1], 3, axis=0),
    )


def _tensor(name: str, values: Any, dtype: Any) -> TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(values, dtype=dtype), name)


def constant_tensor(name: str, values: Any, dtype: Any = np.float32) -> TensorProto:
    """A named constant of a graph."""
    return _tensor(name, values, dtype)


def model_bytes(nodes: list[Any], constants: list[TensorProto], n_features: int, n_targets: int) -> bytes:
    """The checked graph from `x` to `y`, serialised."""
    graph = helper.make_graph(
        nodes,
        "kernelcast",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", n_features])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", n_targets])],
        initializer=constants,
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in _OPSETS]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="kernelcast")
    onnx.checker.check_model(model)
    serialised: bytes = model.SerializeToString()
    return serialised


def periodic_network(
    weights: Mapping[str, Any],
    *,
    columns: Sequence[int],
    n_numeric: int,
    mean: Floats,
    scale: Floats,
    clip: float,
    n_features: int,
) -> bytes:
    """The graph: chosen columns standardised (missing values become the mean), embedded, residual layers, one answer.

    Args:
        weights: `frequency` (n_numeric, 1, k), `embed_weight` (n_numeric, 2 k, e), `embed_bias` (n_numeric, 1, e), then
            `layer<i>_weight` (width, inputs) and `layer<i>_bias`, and `out_weight`, `out_bias`.
        columns: which columns of `x` are read, those with numbers first.
        n_numeric: how many of them are embedded.
        mean: of the chosen columns, shape `(len(columns),)`.
        scale: what they are divided by, likewise.
        clip: standardised values stay within ± this.
        n_features: columns of `x`.
    """
    depth = sum(name.startswith("layer") and name.endswith("_weight") for name in weights)
    embedded = n_numeric * weights["embed_weight"].shape[2]
    nodes = [
        helper.make_node("Gather", ["x", "columns"], ["chosen"], axis=1),
        helper.make_node("IsNaN", ["chosen"], ["missing"]),
        helper.make_node("Where", ["missing", "mean", "chosen"], ["filled"]),
        helper.make_node("Sub", ["filled", "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "scale"], ["scaled"]),
        helper.make_node("Clip", ["scaled", "low", "high"], ["inputs"]),
        helper.make_node("Slice", ["inputs", "zero", "n_numeric", "one"], ["numbers"]),
        helper.make_node("Transpose", ["numbers"], ["by_column"], perm=[1, 0]),
        helper.make_node("Unsqueeze", ["by_column", "two"], ["stacked"]),
        helper.make_node("Mul", ["stacked", "frequency"], ["phase"]),
        helper.make_node("Sin", ["phase"], ["sine"]),
        helper.make_node("Cos", ["phase"], ["cosine"]),
        helper.make_node("Concat", ["sine", "cosine"], ["waves"], axis=2),
        helper.make_node("MatMul", ["waves", "embed_weight"], ["mixed"]),
        helper.make_node("Add", ["mixed", "embed_bias"], ["shifted"]),
        helper.make_node("Relu", ["shifted"], ["bent"]),
        helper.make_node("Transpose", ["bent"], ["by_row"], perm=[1, 0, 2]),
        helper.make_node("Reshape", ["by_row", "flat"], ["embedded"]),
        helper.make_node("Concat", ["inputs", "embedded"], ["h0"], axis=1),
    ]
    for i in range(depth):
        nodes.append(helper.make_node("Gemm", [f"h{i}", f"layer{i}_weight", f"layer{i}_bias"], [f"z{i}"], transB=1))
        nodes.append(helper.make_node("Relu", [f"z{i}"], ["h1" if i == 0 else f"r{i}"]))
        if i > 0:
            nodes.append(helper.make_node("Add", [f"h{i}", f"r{i}"], [f"h{i + 1}"]))
    nodes.append(helper.make_node("Gemm", [f"h{depth}", "out_weight", "out_bias"], ["y"], transB=1))
    whole = {"columns": columns, "zero": [0], "one": [1], "two": [2], "n_numeric": [n_numeric], "flat": [-1, embedded]}
    constants = [constant_tensor(name, np.array(value), np.int64) for name, value in whole.items()]
    bounds = {"mean": mean, "scale": scale, "low": np.array(-clip), "high": np.array(clip)}
    constants += [constant_tensor(name, value) for name, value in {**bounds, **weights}.items()]
    return model_bytes(nodes, constants, n_features, 1)
