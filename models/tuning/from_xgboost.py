"""A forest from a fitted xgboost booster, judged exactly as xgboost judges it.

xgboost compares float32 with float32, and a row goes left where its value is less than the threshold; so does `Forest`. The
leaves are the same numbers, summed in float64 here and in float32 there.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from .forest import MOST_DEPTH, MOST_LEAVES, Forest

_END = -1


def forest_of(booster: Any, n_features: int) -> Forest:
    """The forest of an `xgboost.Booster` or fitted `XGBRegressor` that predicts one number from `n_features` columns.

    Rows must have no missing values; which way xgboost sends them is not kept. All trees are taken: where fitting stopped
    early, give `booster[: best_iteration + 1]`.

    Raises:
        ValueError: it is no plain forest of numeric splits, it has other columns, or its trees are deeper than 12.
    """
    booster = booster.get_booster() if hasattr(booster, "get_booster") else booster
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    shape = learner["learner_model_param"]
    if int(shape["num_feature"]) != n_features:
        raise ValueError(f"the booster was fitted on {shape['num_feature']} columns, not on {n_features}")
    boosting = learner["gradient_booster"]
    targets = max(int(shape.get("num_class", 0)), int(shape.get("num_target", 1)))
    if boosting["name"] != "gbtree" or targets > 1:
        raise ValueError(
            f"the booster is {boosting['name']} for {targets} outputs; only gbtree with one can be converted"
        )
    objective = learner["objective"]["name"]
    if objective not in _IDENTITY:
        raise ValueError(f"the objective {objective} transforms what trees give; use one of {', '.join(_IDENTITY)}")
    trees = boosting["model"]["trees"]
    depth = max((_depth(tree) for tree in trees), default=0)
    if depth > MOST_DEPTH or len(trees) << depth > MOST_LEAVES:
        raise ValueError(f"{len(trees)} trees of {depth} levels are more than a model file holds; fit smaller ones")
    return _forest(trees, depth, _base_score(shape["base_score"]))


_IDENTITY = (
    "reg:squarederror",
    "reg:absoluteerror",
    "reg:pseudohubererror",
    "reg:quantileerror",
    "reg:squaredlogerror",
)
"""Objectives whose prediction is the sum of the leaves and the base score."""


def _base_score(text: Any) -> float:
    """Xgboost writes a number, or since 3.1 a list of one, as text."""
    found = json.loads(text) if isinstance(text, str) else text
    return float(np.float32(found[0] if isinstance(found, list) else found))


def _depth(tree: Any) -> int:
    left, right = tree["left_children"], tree["right_children"]
    deepest, level = 0, [0]
    while level := [child for node in level if left[node] != _END for child in (left[node], right[node])]:
        deepest += 1
    return deepest


def _forest(trees: list[Any], depth: int, bias: float) -> Forest:
    comparisons = sorted({
        (int(feature), float(np.float32(threshold)))
        for tree in trees
        for feature, threshold, left in zip(
            tree["split_indices"], tree["split_conditions"], tree["left_children"], strict=True
        )
        if left != _END
    })  # fmt: skip
    number = {comparison: i for i, comparison in enumerate(comparisons)}
    splits = np.zeros(((1 << depth) - 1, len(trees)), dtype=np.uint32)
    leaves = np.zeros((len(trees), 1 << depth), dtype=np.float32)
    for t, tree in enumerate(trees):
        if any(tree.get("split_type", [])):
            raise ValueError("the booster splits by categories; code them as numbers")
        _place(tree, number, splits[:, t], leaves[t])
    return Forest(
        bias=bias,
        depth=depth,
        features=np.array([feature for feature, _ in comparisons], dtype=np.uint32),
        thresholds=np.array([threshold for _, threshold in comparisons], dtype=np.float32),
        splits=splits,
        leaves=leaves,
    )


def _place(tree: Any, number: dict[tuple[int, float], int], splits: Any, leaves: Any) -> None:
    """Write one tree into its column of splits, nodes depth first, and its row of leaves."""
    waiting = [(0, 0, len(splits), 0, 0)]
    while waiting:
        node, at, size, first, above = waiting.pop()
        left, half = tree["left_children"][node], size // 2
        # xgboost keeps a leaf's value where a split keeps its threshold. Below it every comparison leads to the same leaf; the
        # one above is repeated, so that no feature seems to be looked at that is not.
        if left == _END:
            splits[at : at + size] = above
            leaves[first : first + size + 1] = tree["split_conditions"][node]
            continue
        splits[at] = number[tree["split_indices"][node], float(np.float32(tree["split_conditions"][node]))]
        waiting.append((left, at + 1, half, first, splits[at]))
        waiting.append((tree["right_children"][node], at + 1 + half, half, first + half + 1, splits[at]))
