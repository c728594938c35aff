"""The ONNX graph of a residual network on periodic embeddings (`regressors.periodic`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper

from ..features.cases import Floats
from .onnx_graphs import constant_tensor, model_bytes


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
