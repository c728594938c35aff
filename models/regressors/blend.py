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
        members = {"boosted": self.boosted.fit(problem), "network": self.network.fit(problem)}
        return [replace(graph, member=name) for name, graphs in members.items() for graph in graphs]


@dataclass(frozen=True, slots=True)
class NetworkAgain(Regressor):
    """The blend's network once more, for latency alone: two networks differ enough to be worth averaging, trees hardly do.

    Attributes:
        name: Name of the fit.
        on_analytic: True: latency is a ratio to the fitted analytic model.
        network: The network.
    """

    name: str = "network again"
    on_analytic: bool = True
    network: Periodic = Periodic()  # noqa: RUF009 - frozen, so sharing one is safe

    def fit(self, problem: Problem) -> list[Graph]:
        """One graph, for latency. Needs the `train` extra."""
        alone = replace(problem, targets={"latency": problem.targets["latency"]})
        return [replace(graph, member="network") for graph in self.network.fit(alone)]


REGRESSOR = Blend(again=NetworkAgain())
