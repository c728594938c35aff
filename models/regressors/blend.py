"""Trees and networks on what the analytic model leaves over, averaged: the regressor kernelcast ships."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..regressor import Graph, Problem
from .mlp import MLP
from .xgboost import XGBoost


@dataclass(frozen=True, slots=True)
class Blend:
    """The mean of boosted trees and small networks, both on the ratio to the fitted analytic model.

    The analytic model carries what is smooth and extrapolates, trees find the steps that libraries make, and networks
    interpolate between few rows; their errors differ, so the mean is better than each.
    """

    name: str = "blend"
    on_analytic: bool = True
    networks: int = 2

    def fit(self, problem: Problem) -> list[Graph]:
        """One graph of trees and `networks` of networks per target. Needs the `train` extra."""
        graphs = XGBoost().fit(problem)
        for i in range(self.networks):
            graphs += MLP().fit(replace(problem, seed=problem.seed + i))
        return graphs


REGRESSOR = Blend()
