"""Boosted trees as flat arrays, judged for 64 rows at a time: one bit per row, no walk from node to node.

Every tree is complete: a branch that ends early is continued with splits whose sides hold the same leaf. Every distinct
comparison `feature < threshold` is made once for all rows and kept as a word of 64 bits, one per row. A tree of depth d is
then d choices between its left and right half, each a few bitwise operations on all trees at once, and what is chosen on
the way are the bits of the leaf's number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]
Words = NDArray[np.uint64]

WORD = 64
MOST_DEPTH = 12
MOST_LEAVES = 2**24
"""Deepest tree and most leaves of one forest that a model file may hold."""

_ROWS_AT_ONCE = 256
"""Rows judged together; more would push the bits of a large forest out of the cache."""
_ALL, _NONE = np.uint64(2**64 - 1), np.uint64(0)


@dataclass(frozen=True, slots=True)
class Forest:
    """The sum of a bias and one leaf of each tree.

    A row goes left where its feature, rounded to float32, is less than the threshold.

    Attributes:
        bias: Added to every sum.
        depth: Of every tree.
        features: Feature of each distinct comparison, uint32 `(p,)`, ordered by feature and then by threshold.
        thresholds: Its threshold, float32 `(p,)`.
        splits: The comparison at every node of every tree, uint32 `(2**depth - 1, t)`; nodes in depth-first order: the node
            itself, its left half, its right half.
        leaves: float32 `(t, 2**depth)`, from left to right.
    """

    bias: float
    depth: int
    features: NDArray[np.uint32]
    thresholds: NDArray[np.float32]
    splits: NDArray[np.uint32]
    leaves: NDArray[np.float32]

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.leaves)


class ForestEvaluator:
    """A forest made ready to be summed over rows. Holds nothing that changes, so threads may share it."""

    __slots__ = ("_bias", "_depth", "_every", "_first_leaf", "_leaves", "_runs", "_splits", "_thresholds", "_uses")

    def __init__(self, forest: Forest) -> None:
        self._bias = float(forest.bias)
        self._depth = forest.depth
        self._every = forest.features.astype(np.intp)
        self._thresholds = forest.thresholds
        used, starts = np.unique(self._every, return_index=True)
        cuts = np.split(forest.thresholds, starts[1:])
        self._runs = list(zip(used.tolist(), cuts, strict=False))
        self._splits = forest.splits.astype(np.intp)
        nodes = np.bincount(self._every.take(self._splits.ravel()), minlength=1 + max(self._every, default=0))[used]
        self._uses = nodes / max(int(nodes.sum()), 1)
        # Bits say "left", so the leaf they number is counted from the right.
        self._leaves = forest.leaves[:, ::-1].astype(np.float64).ravel()
        self._first_leaf = (np.arange(forest.n_trees, dtype=np.intp) << forest.depth)[:, None]

    def sums(self, features: Sequence[float | Column], n: int) -> Column:
        """Bias plus leaves for `n` rows, shape `(n,)`; `features` are numbers or columns `(n,)`, in the forest's order.

        A row's sum is the same to the last bit whatever rows are judged with it.
        """
        if n <= _ROWS_AT_ONCE:
            return self._sums(features, n)
        total = np.empty(n)
        for low in range(0, n, _ROWS_AT_ONCE):
            high = min(low + _ROWS_AT_ONCE, n)
            part = [value[low:high] if isinstance(value, np.ndarray) else value for value in features]
            total[low:high] = self._sums(part, high - low)
        return total

    def places(self, features: Sequence[float | Column], n: int) -> Column:
        """Where rows lie as trees see them, shape `(n, used)`, so that Euclid's distance says how differently they are judged.

        One number for each feature that trees look at: the share of its thresholds the row is not below, 0 to 1, times the
        root of the share of all nodes that look at the feature.
        """
        places = np.empty((len(self._runs), n))
        with np.errstate(over="ignore"):
            for row, use, (feature, cuts) in zip(places, np.sqrt(self._uses), self._runs, strict=True):
                values = np.asarray(features[feature]).astype(np.float32)
                row[:] = np.searchsorted(cuts, values, side="right") * (use / len(cuts))
        return places.T

    def _sums(self, features: Sequence[float | Column], n: int) -> Column:
        if not self._splits.size:
            return np.full(n, self._bias + float(np.add.reduce(self._leaves)))
        words = -(-n // WORD)
        return self._added(self._chosen(self._compared(features, n, words)))[:n]

    def _compared(self, features: Sequence[float | Column], n: int, words: int) -> Words:
        """Bit `r` of `[p, r // 64]`: row `r` goes left at comparison `p`. Bits of rows past `n` mean nothing."""
        columns = [i for i, value in enumerate(features) if isinstance(value, np.ndarray)]
        rows = np.zeros((len(columns), words * WORD), dtype=np.float32)
        with np.errstate(over="ignore"):
            for row, i in zip(rows, columns, strict=True):
                row[:n] = features[i]
            numbers = np.array(
                [0.0 if isinstance(value, np.ndarray) else value for value in features], dtype=np.float32
            )
        left = np.empty((len(self._every), words), dtype=np.uint64)
        left[:] = np.where(numbers.take(self._every) < self._thresholds, _ALL, _NONE)[:, None]
        if columns:
            row_of = np.full(len(features), -1, dtype=np.intp)
            row_of[columns] = np.arange(len(columns))
            rows_of = row_of.take(self._every)
            varying = np.flatnonzero(rows_of >= 0)
            bits = rows.take(rows_of.take(varying), axis=0) < self._thresholds.take(varying)[:, None]
            left[varying] = np.packbits(bits, axis=1, bitorder="little").view(np.uint64)
        return left

    def _chosen(self, compared: Words) -> Words:
        """The bits of the leaves' numbers, the highest first, shape `(depth, t, words)`."""
        chosen = np.empty((self._depth, self._splits.shape[1], compared.shape[1]), dtype=np.uint64)
        nodes = compared.take(self._splits, axis=0)
        for level in range(self._depth):
            left = nodes[0]
            chosen[level] = left
            half = len(nodes) // 2
            if half:
                lower, upper = nodes[1 : half + 1], nodes[half + 1 :]
                lower ^= upper
                lower &= left
                upper ^= lower
                nodes = upper
        return chosen

    def _added(self, chosen: Words) -> Column:
        bits = np.unpackbits(chosen.view(np.uint8), axis=2, bitorder="little")
        number = bits[0].astype(np.uint16) if self._depth > 8 else bits[0]
        for bit in bits[1:]:
            number <<= 1
            number |= bit
        total: Column = np.add.reduce(self._leaves.take(number + self._first_leaf), axis=0) + self._bias
        return total


_END = -1


def forest_of(booster: Any) -> Forest:
    """The forest of an `xgboost.Booster` with `gbtree` and `reg:squarederror`, which predicts the sum of its leaves.

    Rows must have no missing values; which way xgboost sends them is not kept.

    Raises:
        ValueError: it has more or deeper trees than a model file holds.
    """
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    trees = learner["gradient_booster"]["model"]["trees"]
    depth = max((_depth(tree) for tree in trees), default=0)
    if depth > MOST_DEPTH or len(trees) << depth > MOST_LEAVES:
        raise ValueError(f"{len(trees)} trees of {depth} levels are more than a model file holds; fit smaller ones")
    # xgboost writes the score as a number, or since 3.1 as a list of one.
    return _forest(trees, depth, float(np.float32(learner["learner_model_param"]["base_score"].strip("[]"))))


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
