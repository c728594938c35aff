"""Trees and a network on what the analytic model leaves over, weighed: the regressor kernelcast ships."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..regressor import Graph, Problem
from .mlp import MLP
from .random_forest import RandomForest
from .xgboost import XGBoost

_FEW_ROWS = 20_000
"""Above this, forests of full-grown trees are too large to ship, and boosting needs no help."""


@dataclass(frozen=True, slots=True)
class Blend:
    """Boosted trees, randomised trees and a small network, all on the ratio to the fitted analytic model.

    The analytic model carries what is smooth and extrapolates, trees find the steps that libraries make, and a network
    interpolates between few rows; their errors differ, so a weighted mean is better than each.
    """

    name: str = "blend"
    on_analytic: bool = True
    boosted: XGBoost = XGBoost()  # noqa: RUF009 - frozen, so sharing one is safe
    forest: RandomForest = RandomForest(extra=True, trees=64, min_leaf=1)  # noqa: RUF009
    network: MLP = MLP()  # noqa: RUF009

    def fit(self, problem: Problem) -> list[Graph]:
        """Graphs of every member, each answering its targets. Needs the `train` extra."""
        members = {"boosted": self.boosted.fit(problem)}
        if len(problem.x) <= _FEW_ROWS:
            members["forest"] = self.forest.fit(problem)
        members["network"] = self.network.fit(problem)
        return [replace(graph, member=name) for name, graphs in members.items() for graph in graphs]


REGRESSOR = Blend()
