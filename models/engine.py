"""Running ONNX graphs: what training checks itself with and serving answers from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..features.cases import Floats
from ..features.errors import SpecError, listed
from ..features.extract import FeatureSchema
from . import native_engine
from .regressor import Matrix

_PIECE_ROWS = 2048
_MOST_JOINED = 64

ENGINE_ENV = "KERNELCAST_ENGINE"
"""What runs graphs: one of `ENGINES`."""

ENGINES = ("auto", "native", "onnxruntime")
"""auto: the compiled engine for the graphs it knows, where the package was built with it, else onnxruntime; native: the same,
and an error where it was not; onnxruntime: that for all."""


class Runtime:
    """Loaded graphs, each on the engine that knows it (`ENGINE_ENV`). Safe to share between threads.

    A row's answers are the same to the last bit whatever rows are asked beside it, where the compiled engine runs its graph.
    Between the engines answers of trees are equal; those of networks differ by rounding, less than 1e-5.

    Raises:
        GraphError: a graph is no valid model for this version of onnxruntime.
        SpecError: the environment asks for an engine that is not there.
    """

    def __init__(self, graphs: Sequence[bytes]) -> None:
        native = chosen_engine() == "native"
        loaded = {i: native_engine.load(graph) for i, graph in enumerate(graphs)} if native else {}
        self._native = {i: graph for i, graph in loaded.items() if graph is not None}
        others = [i for i in range(len(graphs)) if i not in self._native]
        self._sessions = dict(zip(others, _sessions([graphs[i] for i in others]), strict=True))
        self._all = tuple(range(len(graphs)))
        self._joined: dict[tuple[int, ...], tuple[tuple[int, ...], native_engine.Together | None]] = {}

    def run(self, x: Matrix, only: Iterable[int] | None = None) -> dict[int, Floats]:
        """Answers for `x` of every graph, or `only` of some, by the graph's place: float64 of shape `(n, n_targets)`.

        Raises:
            ValueError: `x` is not float32 of as many columns as the graphs read.
        """
        chosen = self._all if only is None else tuple(only)
        quick, together = self._together(chosen)
        found = {} if together is None else dict(zip(quick, together.run(x), strict=True))
        if len(found) < len(chosen):
            # In pieces that stay in the cache: networks are half as fast again on them.
            pieces = [x[start : start + _PIECE_ROWS] for start in range(0, max(len(x), 1), _PIECE_ROWS)]
            found |= {i: _run(self._sessions[i], pieces) for i in chosen if i not in self._native}
        return found

    def _together(self, chosen: tuple[int, ...]) -> tuple[tuple[int, ...], native_engine.Together | None]:
        """Which of the chosen graphs the compiled engine runs, in one call; kept, as callers choose the same again."""
        if (kept := self._joined.get(chosen)) is None:
            quick = tuple(dict.fromkeys(i for i in chosen if i in self._native))
            kept = quick, native_engine.Together([self._native[i] for i in quick]) if quick else None
            if len(self._joined) < _MOST_JOINED:
                self._joined[chosen] = kept
        return kept


def chosen_engine() -> str:
    """What runs the graphs it knows in this process: `native` or `onnxruntime`.

    Raises:
        SpecError: `ENGINE_ENV` names no engine, or the compiled one where the package was built without it.
    """
    asked = os.environ.get(ENGINE_ENV, "").strip() or "auto"
    if asked not in ENGINES:
        raise SpecError(
            f"{ENGINE_ENV} is {asked!r}; it can be {listed(ENGINES)}; leave it out for auto", field=ENGINE_ENV
        )
    there = asked != "onnxruntime" and native_engine.library() is not None
    if asked == "native" and not there:
        raise SpecError(
            f"{ENGINE_ENV} is native, but this installation has no compiled engine for this machine; install kernelcast where "
            f"there is a C++ compiler, or set {ENGINE_ENV}=auto to let onnxruntime answer",
            field=ENGINE_ENV,
        )
    return "native" if there else "onnxruntime"


def _sessions(graphs: Sequence[bytes]) -> list[Any]:
    if not graphs:
        # It takes memory and time to load: not where nothing needs it.
        return []
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # One thread: a server answers many requests at once, and spinning pools would fight for the cores.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    try:
        return [onnxruntime.InferenceSession(graph, options, providers=providers) for graph in graphs]
    except Exception as error:  # onnxruntime's errors share no other base class
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise GraphError(f"onnxruntime {onnxruntime.__version__} cannot run a graph: {reason}") from error


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
    x = np.empty((len(values), values.shape[1] + 1), dtype=np.float32)
    x[:, :-1] = values
    x[:, -1] = log_base / np.log(2.0)
    return x


def nowhere(x: Matrix, schema: FeatureSchema) -> Matrix:
    """The inputs as they are for a device never measured: no word says where a case ran."""
    x = x.copy()
    x[:, _places(schema)] = 0.0
    return x


@lru_cache(maxsize=256)
def _places(schema: FeatureSchema) -> list[int]:
    """The columns that say where a case ran."""
    return [i for i, name in enumerate(schema.names) if name.startswith(("device=", "group="))]
