"""Running ONNX graphs: the one engine that training checks itself with and serving answers from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..features.cases import Floats
from ..features.errors import SpecError
from ..features.extract import FeatureSchema
from .regressor import Matrix

_PIECE_ROWS = 2048


class Runtime:
    """Loaded graphs. Safe to share between threads.

    Raises:
        GraphError: a graph is no valid model for this version of onnxruntime.
    """

    def __init__(self, graphs: Sequence[bytes]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # One thread: a server answers many requests at once, and spinning pools would fight for the cores.
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        try:
            self._sessions = [onnxruntime.InferenceSession(graph, options, providers=providers) for graph in graphs]
        except Exception as error:  # onnxruntime's errors share no other base class
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise GraphError(f"onnxruntime {onnxruntime.__version__} cannot run a graph: {reason}") from error

    def run(self, x: Matrix, only: Iterable[int] | None = None) -> dict[int, Floats]:
        """Answers for `x` of every graph, or `only` of some, by the graph's place: float64 of shape `(n, n_targets)`."""
        chosen = range(len(self._sessions)) if only is None else only
        # In pieces that stay in the cache: networks are half as fast again on them.
        pieces = [x[start : start + _PIECE_ROWS] for start in range(0, max(len(x), 1), _PIECE_ROWS)]
        return {i: self._run(self._sessions[i], pieces) for i in chosen}

    @staticmethod
    def _run(session: Any, pieces: Sequence[Matrix]) -> Floats:
        outputs = [session.run(None, {"x": piece})[0] for piece in pieces]
        return np.concatenate(outputs).astype(np.float64) if len(outputs) > 1 else outputs[0].astype(np.float64)


class GraphError(SpecError):
    """A graph that the installed onnxruntime does not take."""


def answered(outputs: Mapping[int, Floats], members: Sequence[tuple[int, int, float]]) -> Floats:
    """The sum of the answers in the (graph, column, weight) triples `members`, shape `(n,)`."""
    total: Any = 0.0
    for graph, column, weight in members:
        total = total + weight * outputs[graph][:, column]
    answer: Floats = total
    return answer


def with_base(values: Floats, log_base: Floats | None) -> Matrix:
    """What graphs read: features and, where latency is a ratio to an analytic model, log2 of its seconds as last column."""
    if log_base is None:
        return values.astype(np.float32)
    return np.column_stack([values, log_base / np.log(2.0)]).astype(np.float32)


def nowhere(x: Matrix, schema: FeatureSchema) -> Matrix:
    """The inputs as they are for a device never measured: no word says where a case ran."""
    x = x.copy()
    x[:, _places(schema)] = 0.0
    return x


@lru_cache(maxsize=256)
def _places(schema: FeatureSchema) -> list[int]:
    """The columns that say where a case ran."""
    return [i for i, name in enumerate(schema.names) if name.startswith(("device=", "group="))]
