"""A model of programs on one device, ready to answer: from a program's numbers to seconds with an interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...features.cases import Floats
from ...features.mlir.extract import Vectors
from ..engine import GraphError
from ..intervals import Scores, scale_of
from ..prediction import Interval
from .artifact import SCALE, TREES, ProgramModel
from .blending import blended, names_in_use
from .boosting import tree_inputs
from .domain import widening
from .networks import NETWORKS, serving_names
from .packing import Packed, arrays_of, packed
from .paper_base import BASE, classes_of

_MOST_LOG_WIDTH = 50.0
_SPLIT_BY = ("group network", "transformer")
"""Networks that say how a program's time is spread over its groups, the preferred first."""

_LOG_ERROR_OUTSIDE = 0.1
"""What every doubling of an interval outside the domain adds to its half-width in logarithms: errors learned inside
say little."""


@dataclass(frozen=True, slots=True)
class ProgramAnswer:
    """What the model says of one program in one setting.

    `group_s` of shape `(n_groups,)` are the groups' parts of the value; they and `call_s`, the call itself, add up to
    it. `excess` and `why` say how far outside the domain it lies.
    """

    latency_s: Interval
    group_s: Floats
    call_s: float
    excess: float
    why: str
    characteristics: Mapping[str, Interval]


class ProgramEngine:
    """The graphs of a `ProgramModel`, loaded. Safe to share between threads.

    Raises:
        GraphError: a graph is no valid model for the installed onnxruntime.
    """

    def __init__(self, model: ProgramModel) -> None:
        self.model = model
        wanted = [name for name in (*names_in_use(model.weights), SCALE) if name in model.graphs]
        split = next((name for name in _SPLIT_BY if name in model.graphs), None)
        if split is not None and split not in wanted:
            wanted.append(split)
        self._split = split
        self._sessions = {name: _session(model.graphs[name]) for name in wanted}

    @cached_property
    def _characteristics(self) -> dict[str, Any]:
        """Sessions of the further targets, made when first asked for."""
        return {name: _session(one.graph) for name, one in self.model.characteristics.items()}

    @property
    def method(self) -> str:
        """What it is blended from, in words."""
        return " + ".join(names_in_use(self.model.weights))

    def answer(self, program: Vectors, setting: tuple[str, int], coverage: float) -> ProgramAnswer:
        """The answer for a program in one of the model's settings."""
        column = self.model.settings.index(setting)
        one = packed([program])
        log_base = self.model.base.log_latency(one)
        rows = tree_inputs(one, self.model.base)
        answers: dict[str, Floats] = {BASE: log_base}
        seconds: Floats | None = None
        for name, session in self._sessions.items():
            if name == TREES:
                answers[name] = log_base + session.run(None, {"x": rows})[0].reshape(log_base.shape)
            elif name in NETWORKS:
                log_latency, parts = session.run(None, feed(name, one))
                answers[name] = log_latency.astype(np.float64)
                if name == self._split:
                    seconds = parts[:, column].astype(np.float64)
        value = float(np.exp(blended(answers, self.model.weights)[0, column]))
        excess, why = self.model.domain.excess(program)
        scale = 1.0
        if SCALE in self._sessions:
            scale = float(scale_of(self._sessions[SCALE].run(None, {"x": rows[column : column + 1]})[0][:, 0])[0])
        interval = _interval(value, self.model.scores[setting[0]], scale, coverage, widening(excess))
        if seconds is None:
            seconds = self.model.base.of(one).parts[:, column]
        group_s, call_s = _split(value, seconds, float(self.model.base.of(one).whole[0, column]))
        further = self._further(rows[column : column + 1], setting[0], coverage, widening(excess))
        return ProgramAnswer(interval, group_s, call_s, excess, why, further)

    def _further(self, row: Any, compiler: str, coverage: float, factor: float) -> dict[str, Interval]:
        found = {}
        for name, one in self.model.characteristics.items():
            if compiler not in one.scores:
                continue
            log_value = float(self._characteristics[name].run(None, {"x": row})[0][0, 0])
            value = float(np.expm1(max(log_value, 0.0)))
            low, high = one.scores[compiler].bounds(coverage)
            lower, upper = (np.expm1(max(log_value + end * factor, 0.0)) for end in (low, high))
            found[name] = Interval(value, min(float(lower), value), max(float(upper), value))
        return found


def feed(name: str, programs: Packed) -> dict[str, Any]:
    """The arrays that the graph of a network reads."""
    names = serving_names(NETWORKS[name])
    arrays = arrays_of([one for one in names if one not in ("classes", "passed", "per_op")], programs)
    arrays["passed"] = programs.passed_s.astype(np.float32)[:, None]
    if "classes" in names:
        arrays["classes"] = classes_of(programs)
    if "per_op" in names:
        n_ops = np.bincount(programs.op_group, minlength=len(programs.groups))
        arrays["per_op"] = (1.0 / np.maximum(n_ops, 1)).astype(np.float32)[:, None]
    return arrays


def _session(graph: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no other base class
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise GraphError(f"onnxruntime {onnxruntime.__version__} cannot run a graph: {reason}") from error


def _interval(value: float, scores: Scores, scale: float, coverage: float, factor: float) -> Interval:
    low, high = scores.bounds(coverage)
    outside = _LOG_ERROR_OUTSIDE * (factor - 1.0)
    lower = value * float(np.exp(max(low * scale * factor - outside, -_MOST_LOG_WIDTH)))
    return Interval(value, lower, value * float(np.exp(min(high * scale * factor + outside, _MOST_LOG_WIDTH))))


def _split(value: float, group_s: Floats, call_s: float) -> tuple[Floats, float]:
    """Parts that add up to the value, in the proportions of these."""
    total = float(group_s.sum()) + call_s
    factor = value / total if total > 0 else 0.0
    return group_s * factor, call_s * factor
