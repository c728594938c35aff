"""What a regressor is: it learns log ratios from a feature matrix and ends as an ONNX graph that serving runs.

Every regressor predicts the same thing, so training, intervals, evaluation and artifacts are shared:

* `latency`: ln(latency_s / base in s), where the base is the lower bound or, for regressors that ask for it, the fitted
  analytic model (`models.family_model.analytic`);
* `power`: ln(power_w / power limit in W), where the rows have power.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..features.batch.cases import Floats
from ..features.errors import SpecError, listed
from ..features.kernel import discover

Progress = Callable[[str, int, int], None]
"""Called with what is being done, steps done, steps in all."""

Matrix = npt.NDArray[np.float32]
"""Features as the engines see them: float32, shape `(n, n_features)`, NaN where a feature is missing."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What a regressor learns from.

    Attributes:
        x: Features of shape `(n, n_features)`.
        targets: Each of shape `(n,)`, with NaN where missing.
        weights: A column of shape `(n,)` for targets whose rows do not all count alike.
        seed: Of everything random.
        threads: How many threads the fit may use: more than there are cores spin against each other.
        unneeded: Members and targets whose graph has no weight and need not be fitted.
        earlier: Graphs fitted to most of these rows, which a fit may go on from.
    """

    x: Matrix
    targets: Mapping[str, Floats]
    weights: Mapping[str, Floats]
    seed: int
    threads: int = 1
    unneeded: frozenset[tuple[str, str]] = frozenset()
    earlier: Sequence[Graph] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """A fitted model.

    Attributes:
        targets: What it answers.
        onnx: Serialised ONNX that maps `x` (float32, `(n, n_features)`) to `y` (float32, `(n, len(targets))`).
        member: Its name among the graphs of one fit that answer the same target; its weight is learned from held-out
            answers.
        state: What a fit that goes on from this one needs; None where none can.
    """

    targets: tuple[str, ...]
    onnx: bytes
    member: str = ""
    state: Any = None


@dataclass(frozen=True, slots=True)
class Regressor:
    """What learns; found in the files of `regressors/` by `REGRESSOR = ...`, one or a tuple.

    Attributes:
        name: On the command line and in artifacts.
        on_analytic: Whether latency is learned as a ratio to the fitted analytic model rather than to the lower bound.
        quick: Stands in for it in the many fits that leave a device out; None: itself.
    """

    name: str = ""
    on_analytic: bool = False
    quick: Regressor | None = None

    def fit(self, problem: Problem) -> list[Graph]:
        """Graphs that together answer every target of the problem; where several answer one, they are weighed."""
        raise NotImplementedError


def no_progress(what: str, done: int, total: int) -> None:
    """A `Progress` that tells nobody."""


@cache
def regressors() -> Mapping[str, Any]:
    """Every regressor by name; libraries are imported when one is fitted."""
    from . import regressors as package

    return MappingProxyType(discover(package, "REGRESSOR"))


def get_regressor(name: str) -> Regressor:
    """The regressor called `name`.

    Raises:
        SpecError: there is none; the message lists those there are.
    """
    if name not in regressors():
        raise SpecError(f"no regressor {name!r}; regressors: {listed(regressors())}", field="regressor")
    regressor: Regressor = regressors()[name]
    return regressor


def fit_rows(problem: Problem, target: str) -> tuple[Matrix, Floats, Floats]:
    """`x`, `y` and weights of the rows that have `target`."""
    known = ~np.isnan(problem.targets[target])
    weight = problem.weights.get(target, np.ones(len(known)))
    return problem.x[known], problem.targets[target][known], weight[known]
