"""A random forest that learns latency and power together where rows have both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..regressor import Graph, Problem, Regressor, fit_rows


@dataclass(frozen=True, slots=True)
class RandomForest(Regressor):
    """scikit-learn's RandomForestRegressor (Breiman, "Random forests", 2001), multi-output when power is measured.

    Rows without power cannot join a multi-output fit, so latency and power then have a forest each.

    Attributes:
        name: On the command line and in artifacts.
        trees: Number of trees.
        min_leaf: Least rows of a leaf.
        features: Share of the features tried at a split.
    """

    name: str = "random_forest"
    trees: int = 100
    min_leaf: int = 2
    features: float = 0.5

    def fit(self, problem: Problem) -> list[Graph]:
        """One graph with every target where all rows have all of them and count alike, else one per target.

        Needs the `train` extra.
        """
        apart = any(np.isnan(column).any() for column in problem.targets.values()) or len(problem.weights) > 0
        if not apart:
            y = np.stack(list(problem.targets.values()), axis=1)
            return [Graph(tuple(problem.targets), self._fit(problem.x, y, None, problem))]
        graphs = []
        for target in problem.targets:
            x, y, weight = fit_rows(problem, target)
            graphs.append(Graph((target,), self._fit(x, y[:, None], weight, problem)))
        return graphs

    def _fit(self, x: Any, y: Any, weight: Any, problem: Problem) -> bytes:
        from sklearn.ensemble import RandomForestRegressor

        from ..engine.onnx_writer import tree_ensemble

        forest = RandomForestRegressor(
            n_estimators=self.trees,
            min_samples_leaf=self.min_leaf,
            max_features=self.features,
            random_state=problem.seed,
            n_jobs=problem.threads,
        )
        forest.fit(x, y if y.shape[1] > 1 else y[:, 0], sample_weight=weight)
        trees = [_tree(estimator.tree_, self.trees) for estimator in forest.estimators_]
        return tree_ensemble(trees, base=[0.0] * y.shape[1], comparison="<=", n_features=x.shape[1])


def _tree(tree: Any, count: int) -> Any:
    """One of `count` trees whose mean is the forest's answer.

    Thresholds round down, so a float32 row that scikit-learn sends right of a float64 threshold still goes right.
    """
    from ..engine.onnx_writer import Tree

    threshold = tree.threshold.astype(np.float32)
    below = np.nextafter(threshold, np.float32(-np.inf))
    threshold = np.where(threshold.astype(np.float64) > tree.threshold, below, threshold)
    return Tree(
        left=tree.children_left.astype(np.int64),
        right=tree.children_right.astype(np.int64),
        feature=np.maximum(tree.feature, 0).astype(np.int64),
        value=threshold.astype(np.float32),
        missing_left=tree.missing_go_to_left.astype(np.bool_),
        leaf=(tree.value[:, :, 0] / count).astype(np.float32),
    )


REGRESSOR = RandomForest()
