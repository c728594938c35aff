"""Regressors that learn nothing on top of a kernel's cost on paper: the bound itself, and the fitted analytic model alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..regressor import Graph, Problem, Regressor


@dataclass(frozen=True, slots=True)
class Roofline(Regressor):
    """Latency is the lower bound (Williams et al., CACM 2009); power, where measured, the median share of the limit.

    Needs no rows, and is what others must beat. On the analytic model (`models.family_model.analytic`) it answers that
    model's weighted sum of terms.

    Attributes:
        name: On the command line and in artifacts.
    """

    name: str = "roofline"

    def fit(self, problem: Problem) -> list[Graph]:
        """One constant graph: ratio 1 for latency, the median for any other target."""
        from ..engine.onnx_writer import constant

        values = [0.0 if name == "latency" else float(np.nanmedian(y)) for name, y in problem.targets.items()]
        return [Graph(tuple(problem.targets), constant(values, n_features=problem.x.shape[1]))]


REGRESSOR = (Roofline(), Roofline("analytic", on_analytic=True))
