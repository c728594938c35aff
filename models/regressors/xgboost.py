"""Gradient-boosted trees on the ratio to the lower bound: alone, and the first member of the blend that ships."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..regressor import Graph, Matrix, Problem, Regressor, fit_rows


@dataclass(frozen=True, slots=True)
class XGBoost(Regressor):
    """XGBoost (Chen and Guestrin, KDD 2016) with histogram splits; small tables get shallower, slower learners.

    Attributes:
        name: On the command line and in artifacts.
        sizes: `(rows, leaves, rounds, rate)` of the trees for latency; leaves and rounds grow with the number of rows
            between two of them.
        other_sizes: The same for the other targets.
        bins: Most values of a feature between which a split is looked for.
    """

    name: str = "xgboost"
    sizes: tuple[tuple[int, int, int, float], ...] = (
        (2_000, 32, 400, 0.05),
        (10_000, 48, 600, 0.05),
        (30_000, 96, 600, 0.08),
        (100_000_000, 127, 300, 0.15),
    )

    other_sizes: tuple[tuple[int, int, int, float], ...] = ((100_000_000, 48, 200, 0.1),)
    bins: int = 256

    def fit(self, problem: Problem) -> list[Graph]:
        """One graph per target. Needs the `train` extra."""
        return [Graph((target,), self._fit_one(problem, target)) for target in problem.targets]

    def _fit_one(self, problem: Problem, target: str) -> bytes:
        import xgboost

        from ..engine.onnx_writer import tree_ensemble

        x, y, weight = fit_rows(problem, target)
        # Power is the smoother of the two, and noisier: fewer trees say as much.
        sizes = self.sizes if target == "latency" else self.other_sizes
        _, leaves, rounds, rate = next(size for size in sizes if len(y) <= size[0])
        settings = {
            "tree_method": "hist", "grow_policy": "lossguide", "max_leaves": leaves, "max_depth": 0, "max_bin": self.bins,
            "eta": rate, "subsample": 0.8, "colsample_bytree": 0.6, "min_child_weight": 2.0, "lambda": 1.0,
            "objective": "reg:squarederror", "base_score": float(np.mean(y)), "seed": problem.seed,
            "nthread": problem.threads, "verbosity": 0,
        }  # fmt: skip
        booster = xgboost.train(settings, xgboost.DMatrix(x, y, weight=weight), num_boost_round=rounds)
        return tree_ensemble(trees_of(booster), base=[base_score(booster)], n_features=x.shape[1])


def fit_scale(x: Matrix, y: Any, seed: int) -> bytes:
    """Graph of a small, stiff model of the size of errors: it must find regions, not rows."""
    import xgboost

    from ..engine.onnx_writer import tree_ensemble

    settings = {
        "tree_method": "hist", "max_depth": 5, "eta": 0.1, "subsample": 0.7, "colsample_bytree": 0.5,
        "min_child_weight": max(20.0, len(y) / 200), "lambda": 10.0, "objective": "reg:squarederror",
        "base_score": float(np.mean(y)), "seed": seed, "nthread": 1, "verbosity": 0,
    }  # fmt: skip
    booster = xgboost.train(settings, xgboost.DMatrix(x, y), num_boost_round=80)
    return tree_ensemble(trees_of(booster), base=[base_score(booster)], n_features=x.shape[1])


def _document(booster: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(bytes(booster.save_raw("json")))
    return document


def base_score(booster: Any) -> float:
    """The constant the trees' sum is added to (XGBoost's JSON model schema, `learner_model_param.base_score`)."""
    text = json.loads(booster.save_config())["learner"]["learner_model_param"]["base_score"]
    return float(str(text).strip("[]"))


def trees_of(booster: Any) -> list[Any]:
    """The trees of a booster; a leaf's value stands in its `split_conditions` (XGBoost's JSON model schema)."""
    from ..engine.onnx_writer import Tree

    trees = []
    for tree in _document(booster)["learner"]["gradient_booster"]["model"]["trees"]:
        value = np.asarray(tree["split_conditions"], dtype=np.float32)
        trees.append(
            Tree(
                left=np.asarray(tree["left_children"], dtype=np.int64),
                right=np.asarray(tree["right_children"], dtype=np.int64),
                feature=np.asarray(tree["split_indices"], dtype=np.int64),
                value=value,
                missing_left=np.asarray(tree["default_left"], dtype=np.bool_),
                leaf=value[:, None],
            )
        )
    return trees


REGRESSOR = XGBoost()

QUICK = XGBoost(name="quick", sizes=((100_000_000, 48, 200, 0.12),), bins=64)
"""A fit of seconds, for what is fitted many times over; no regressor of its own. With 64 bins it takes two thirds of the time
and errs as with 256: convolutions of 25 devices left out 44.1 → 43.7 %, attention of 10 59.2 → 58.9."""
