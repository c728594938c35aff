"""Artifacts of models of programs: a directory with `manifest.json` and compressed ONNX graphs, one model per device.

The files are those of `artifact_files`. Outside the domain, what a model was trained on, an answer says so and widens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ....features.batch.cases import Floats
from ....features.mlir.vectors.program_vector import Vectors, schema_hash
from ....models.engine.runtime import onnx_sessions
from ....models.family_model.artifact_files import ArtifactFormat, StoreGraph, finite, numbers, read_graph, reading
from ....models.family_model.intervals import Scores, scale_of, scores_from_json, scores_to_json
from ....models.predict.prediction import Interval
from .analytic_base import BASE, AnalyticBase, classes_of
from .boosted_trees import GROUP_TREES, GroupRows, tree_inputs
from .group_network import GROUP_NETWORK, SERVING_NAMES
from .program_domain import ProgramDomain, widening
from .ragged_batch import RaggedBatch, arrays_of, to_ragged_batch

FORMAT = ArtifactFormat("model of programs", "train mlir", version=3, kind="programs", features=schema_hash)

SCALE = "scale"
"""Name of the graph of the size of errors."""


@dataclass(frozen=True, slots=True)
class Characteristic:
    """A further learned target.

    Attributes:
        graph: Its graph, of ln(1 + value).
        scores: By compiler, the scores its intervals come from.
    """

    graph: bytes
    scores: Mapping[str, Scores]


@dataclass(frozen=True, slots=True)
class ProgramModel:
    """What was learned of programs on one device.

    Attributes:
        device: The device.
        settings: Compilers with threads, the columns of every answer.
        usual: For each dialect the compiler it was mostly measured with.
        base: The fitted analytic composition.
        graphs: Serialised ONNX by name: `GROUP_NETWORK`, `GROUP_TREES` with a compiler, and `SCALE`.
        weights: How much each member counts, shape `(n_settings,)` each.
        scores: Conformal scores by compiler.
        elsewhere: The same on devices of the kind where no program was measured; empty where no other was.
        domain: Where the training programs lie.
        characteristics: Further learned targets.
        n_programs: Programs trained on.
        n_rows: Measurements trained on.
        metrics: Held-out errors by member.
    """

    device: str
    settings: tuple[tuple[str, int], ...]
    usual: Mapping[str, str]
    base: AnalyticBase
    graphs: Mapping[str, bytes]
    weights: Mapping[str, Floats]
    scores: Mapping[str, Scores]
    domain: ProgramDomain
    characteristics: Mapping[str, Characteristic]
    n_programs: int
    n_rows: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    elsewhere: Mapping[str, Scores] = field(default_factory=dict)

    @property
    def compilers(self) -> tuple[str, ...]:
        """Compilers that were measured."""
        return compilers_of(self.settings)


def save_models(models: Mapping[str, ProgramModel], facts: Mapping[str, Any], directory: Path) -> None:
    """Write models by device, replacing what was in `directory` only once all of it is on disk.

    Raises:
        ArtifactError: `directory` is something else's, or cannot be written.
    """
    FORMAT.save(directory, lambda store: {
        **facts, "devices": {device: _to_json(device, model, store) for device, model in models.items()}
    })  # fmt: skip


def load_models(directory: Path) -> dict[str, ProgramModel]:
    """The models of an artifact by device, every file checked against the manifest.

    Raises:
        ArtifactError: there is no model, it is damaged, or was made for other features or by another version.
    """
    manifest = FORMAT.manifest(directory)
    with reading(f"the manifest of {directory}"):
        return {str(device): _from_json(str(device), entry, manifest["files"], directory)
                for device, entry in manifest["devices"].items()}  # fmt: skip


def _to_json(device: str, model: ProgramModel, store: StoreGraph) -> dict[str, Any]:
    return {
        "settings": [list(setting) for setting in model.settings], "usual": dict(model.usual), "base": model.base.to_json(),
        "graphs": {name: store(f"{device}.{name.replace(' ', '-')}", graph) for name, graph in model.graphs.items()},
        "weights": {name: [round(float(w), 4) for w in column] for name, column in model.weights.items()},
        "scores": scores_to_json(model.scores), "elsewhere": scores_to_json(model.elsewhere), "domain": model.domain.to_json(),
        "characteristics": {
            name: {"graph": store(f"{device}.{name}", target.graph), "scores": scores_to_json(target.scores)}
            for name, target in model.characteristics.items()
        },
        "n_programs": model.n_programs, "n_rows": model.n_rows, "metrics": dict(model.metrics),
    }  # fmt: skip


def _from_json(device: str, entry: Mapping[str, Any], files: Mapping[str, str], directory: Path) -> ProgramModel:
    def graph(name: str) -> bytes:
        return read_graph(directory, name, files)

    return ProgramModel(
        device=device,
        settings=tuple((str(compiler), int(threads)) for compiler, threads in entry["settings"]),
        usual={str(dialect): str(compiler) for dialect, compiler in entry["usual"].items()},
        base=AnalyticBase.from_json(entry["base"]),
        graphs={str(name): graph(file) for name, file in entry["graphs"].items()},
        weights={str(name): numbers(column, len(entry["settings"])) for name, column in entry["weights"].items()},
        scores=scores_from_json(entry["scores"]),
        elsewhere=scores_from_json(entry.get("elsewhere", {})),
        domain=ProgramDomain.from_json(entry["domain"]),
        characteristics={
            str(name): Characteristic(graph(entry["graph"]), scores_from_json(entry["scores"]))
            for name, entry in entry["characteristics"].items()
        },
        n_programs=int(finite(entry["n_programs"], 1)),
        n_rows=int(finite(entry["n_rows"], 1)),
        metrics=entry["metrics"],
    )


_MOST_LOG_WIDTH = 7.5
"""Most that an end of an interval is from its answer, in logarithms: the worst answer known, for a sort when nothing like it
was measured, was 11 µs in place of 15.9 ms (IREE, one core of a Zen 4), 1,400 times too short."""

_AT_ONCE = 256
"""Programs answered together: what bounds the memory."""

_LOG_ERROR_OUTSIDE = 0.1
"""What every doubling of an interval outside the domain adds to its half-width in logarithms: errors learned inside
say little."""


@dataclass(frozen=True, slots=True)
class ProgramAnswer:
    """What the model answers for one program in one setting.

    Attributes:
        latency_s: The time.
        group_s: The groups' parts of its value, shape `(n_groups,)`.
        call_s: The call itself; the parts and it add up to the value.
        excess: How far outside the domain the program lies, 0 inside.
        why: What is unusual about it.
        characteristics: Further targets by name.
    """

    latency_s: Interval
    group_s: Floats
    call_s: float
    excess: float
    why: str
    characteristics: Mapping[str, Interval]


class ProgramEngine:
    """The graphs of a `ProgramModel`, loaded when first asked for. Safe to share between threads."""

    def __init__(self, model: ProgramModel) -> None:
        self.model = model

    def load(self) -> None:
        """Create the graphs' sessions now.

        Raises:
            GraphError: a graph is no valid model for the installed onnxruntime.
        """
        _ = self._sessions

    @cached_property
    def _sessions(self) -> dict[str, Any]:
        graphs = dict(self.model.graphs)
        # The network stays where the blend does not use it: it says how a program's time is spread over its groups.
        if GROUP_TREES not in names_in_use(self.model.weights):
            graphs = {name: graph for name, graph in graphs.items() if not name.startswith(GROUP_TREES)}
        return dict(zip(graphs, onnx_sessions(list(graphs.values())), strict=True))

    @cached_property
    def _characteristics(self) -> dict[str, Any]:
        """Sessions of the further targets, made when first asked for."""
        further = self.model.characteristics
        return dict(zip(further, onnx_sessions([target.graph for target in further.values()]), strict=True))

    @property
    def method(self) -> str:
        """What it is blended from, in words."""
        return " + ".join(names_in_use(self.model.weights))

    def answer(
        self, program: Vectors, setting: tuple[str, int], coverage: float, *, elsewhere: bool = False
    ) -> ProgramAnswer:
        """The answer for a program in one of the model's settings; `elsewhere`: its numbers are of another device."""
        column = self.model.settings.index(setting)
        batch = to_ragged_batch([program])
        answers, rows, seconds = self._members(batch, (setting[0],))
        log_latency, sizes = self._answers(batch, answers, rows)
        value, scale = float(np.exp(log_latency[0, column])), float(sizes[0, column])
        excess, why = self.model.domain.excess(program)
        scores = (self.model.elsewhere if elsewhere else self.model.scores)[setting[0]]
        interval = _interval(value, scores, scale, coverage, widening(excess))
        times = self.model.base.of(batch)
        parts = (times.groups if seconds is None else seconds)[:, column]
        group_s, call_s = _split(value, parts, float(times.whole[0, column]))
        # What code comes out, and how long compiling it takes, are the measured device's own.
        further = {} if elsewhere else self._further(rows[column : column + 1], setting[0], coverage, widening(excess))
        return ProgramAnswer(interval, group_s, call_s, excess, why, further)

    def of_batch(self, programs: RaggedBatch) -> tuple[Floats, Floats]:
        """Logarithms of seconds, and sizes of their errors, of programs in every setting; shape `(n, n_settings)` each."""
        values, sizes = [], []
        for start in range(0, len(programs), _AT_ONCE):
            some = programs.take(np.arange(start, min(start + _AT_ONCE, len(programs))))
            answers, rows, _ = self._members(some, self.model.compilers)
            log_latency, size = self._answers(some, answers, rows)
            values.append(log_latency)
            sizes.append(size)
        return np.concatenate(values), np.concatenate(sizes)

    def _members(self, batch: RaggedBatch, compilers: Sequence[str]) -> tuple[dict[str, Floats], Any, Floats | None]:
        """Every member's logarithms of seconds, the rows of whole programs, and seconds of groups where the network says them.

        Trees answer for `compilers` only, NaN for others.
        """
        base, sessions = self.model.base, self._sessions
        log_base = base.log_latency(batch)
        rows = tree_inputs(batch, base)
        if batch.is_empty.all():
            # ONNX Runtime divides by the number of groups, and ends the process.
            return dict.fromkeys((BASE, *names_in_use(self.model.weights)), log_base), rows, None
        answers: dict[str, Floats] = {BASE: log_base, GROUP_TREES: np.full(log_base.shape, np.nan)}
        seconds: Floats | None = None
        if GROUP_NETWORK in sessions:
            log_latency, group_s = sessions[GROUP_NETWORK].run(None, feed(batch))
            answers[GROUP_NETWORK], seconds = log_latency.astype(np.float64), group_s.astype(np.float64)
        for compiler in compilers:
            columns = columns_of(compiler, self.model.settings)
            session = sessions.get(f"{GROUP_TREES} {compiler}")
            if session is None:
                answers[GROUP_TREES][:, columns] = log_base[:, columns]
                continue
            trees = GroupRows.of(batch, base, columns)
            answers[GROUP_TREES][:, columns] = trees.log_latency(partial(_run, session), len(columns))
        return answers, rows, seconds

    def _answers(self, batch: RaggedBatch, members: Mapping[str, Floats], rows: Any) -> tuple[Floats, Floats]:
        """Logarithms of seconds, and sizes of their errors, shape `(n, n_settings)` each.

        `members` has each member's answers, `rows` are those of `tree_inputs`.
        """
        middle = blended(members, self.model.weights, batch.is_empty)
        sizes = scale_of(self._sessions[SCALE].run(None, {"x": rows})[0][:, 0]).reshape(middle.shape)
        return at_mean_speed(middle, sizes, batch.is_empty), sizes

    def _further(self, row: Any, compiler: str, coverage: float, factor: float) -> dict[str, Interval]:
        further = {}
        for name, characteristic in self.model.characteristics.items():
            if compiler not in characteristic.scores:
                continue
            log_value = float(self._characteristics[name].run(None, {"x": row})[0][0, 0])
            value = float(np.expm1(max(log_value, 0.0)))
            low, high = characteristic.scores[compiler].bounds(coverage)
            ends = np.clip([low * factor, high * factor], -_MOST_LOG_WIDTH, _MOST_LOG_WIDTH)
            lower, upper = np.expm1(np.maximum(log_value + ends, 0.0))
            further[name] = Interval(value, min(float(lower), value), max(float(upper), value))
        return further


def blended(answers: Mapping[str, Floats], weights: Mapping[str, Floats], is_empty: npt.NDArray[np.bool_]) -> Floats:
    """The weighted mean of the members' answers, shape `(n, n_settings)`.

    Programs without a kernel, where `is_empty` of shape `(n,)` is true, are answered by the analytic times alone, those of a
    call and of copies of results: there are too few of them to learn from.
    """
    mean = sum((answers[name] * weights[name] for name in weights if np.any(weights[name] > 0)), np.zeros(1))
    return np.where(is_empty[:, None], answers[BASE], mean)


_HALF_VARIANCE = float(np.exp(np.euler_gamma))
"""Half the variance of a normal error over the square of its size, exp(E ln|e|).

E ln|e| is ln(deviation) - (gamma + ln 2) / 2."""

_MOST_SHIFT = float(np.log(2.0))
"""Answers for the least certain programs are halved at most."""


def at_mean_speed(log_latency: Floats, sizes: Floats, is_empty: npt.NDArray[np.bool_]) -> Floats:
    """Logarithms of the times at the mean speed, given logarithms of the median times and the sizes of their errors.

    All are of shape `(n, n_settings)`. Those of programs without a kernel stay, where `is_empty` of shape `(n,)` is true.

    The mean of 1 / t of a log-normal t is that of exp(mu - variance / 2). This time lies half way between the median and
    exp(mu - variance), which has the least expected error in per cent: where a program may take 10 ms or 100, to say 10 is
    wrong by 90 % at most, to say 100 by 900 %.
    """
    return np.where(is_empty[:, None], log_latency, log_latency - np.minimum(_HALF_VARIANCE * sizes**2, _MOST_SHIFT))


def compilers_of(settings: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """The compilers of settings, each once."""
    return tuple(dict.fromkeys(name for name, _ in settings))


def columns_of(compiler: str, settings: Sequence[tuple[str, int]]) -> list[int]:
    """Positions of a compiler's settings."""
    return [column for column, (name, _) in enumerate(settings) if name == compiler]


def names_in_use(weights: Mapping[str, Floats]) -> Sequence[str]:
    """Members with a weight in any setting."""
    return [name for name, weight in weights.items() if np.any(weight > 0)]


def feed(programs: RaggedBatch) -> dict[str, Any]:
    """The arrays that the graph of the network reads."""
    arrays = arrays_of([name for name in SERVING_NAMES if name not in ("classes", "passed")], programs)
    return arrays | {"passed": programs.passed_s.astype(np.float32)[:, None], "classes": classes_of(programs)}


def _run(session: Any, x: Any) -> Any:
    """What trees say of rows, shape `(n_rows,)`."""
    return session.run(None, {"x": x})[0][:, 0]


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
