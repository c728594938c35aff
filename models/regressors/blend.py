"""Boosted trees and a network on what the analytic model leaves over, weighed: the regressor kernelcast ships."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..regressor import Graph, Problem, Regressor
from .periodic import Periodic
from .xgboost import QUICK, XGBoost


@dataclass(frozen=True, slots=True)
class Blend(Regressor):
    """Boosted trees and a network on periodic embeddings, both on the ratio to the fitted analytic model.

    The analytic model carries what is smooth and extrapolates, the network interpolates between rows and learns the steps
    that libraries make, and trees learn what is particular to few rows; their errors differ, so a weighted mean is better
    than each.

    Attributes:
        name: On the command line and in artifacts.
        on_analytic: True: latency is a ratio to the fitted analytic model.
        quick: Stands in for it in the fits that leave a device out.
        boosted: The trees.
        network: The network.
    """

    name: str = "blend"
    on_analytic: bool = True
    quick: Regressor | None = replace(QUICK, on_analytic=True)  # noqa: RUF009 - frozen, so sharing one is safe
    boosted: XGBoost = XGBoost()  # noqa: RUF009
    network: Periodic = Periodic()  # noqa: RUF009

    def fit(self, problem: Problem) -> list[Graph]:
        """Graphs of every member, each answering its targets. Needs the `train` extra."""
        graphs = []
        for name, member in (("boosted", self.boosted), ("network", self.network)):
            targets = {target: y for target, y in problem.targets.items() if (name, target) not in problem.unneeded}
            earlier = tuple(graph for graph in problem.earlier if graph.member == name)
            fitted = member.fit(replace(problem, targets=targets, earlier=earlier))
            graphs += [replace(graph, member=name) for graph in fitted]
        return graphs


REGRESSOR = Blend()
