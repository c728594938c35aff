"""A random forest for each target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..regressor import Graph, Problem, Regressor, fit_rows


@dataclass(frozen=True, slots=True)
class RandomForest(Regressor):
    """scikit-learn's RandomForestRegressor (Breiman, "Random forests", 2001).

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
        """One graph per target. Needs the `train` extra."""
        return [Graph((target,), self._fit(target, problem)) for target in problem.targets]

    def _fit(self, target: str, problem: Problem) -> bytes:
        from sklearn.ensemble import RandomForestRegressor

        from ..engine.onnx_writer import tree_ensemble

        x, y, weight = fit_rows(problem, target)
        forest = RandomForestRegressor(
            n_estimators=self.trees,
            min_samples_leaf=self.min_leaf,
            max_features=self.features,
            random_state=problem.seed,
            n_jobs=problem.threads,
        )
        forest.fit(x, y, sample_weight=weight)
        trees = [_tree(estimator.tree_, self.trees) for estimator in forest.estimators_]
        return tree_ensemble(trees, base=[0.0], comparison="<=", n_features=x.shape[1])


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
