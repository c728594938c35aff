"""Artifacts of models of compiled code: a directory with `manifest.json` and compressed ONNX graphs. Nothing in it
can run code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ....features.batch.cases import Floats
from ....features.mlir.triton.shared_memory import CANDIDATES
from ....features.mlir.triton.vectors import NAMES, schema_hash
from ....models.engine.runtime import Runtime
from ....models.family_model.artifact_files import ArtifactFormat, StoreGraph, finite, numbers, read_graph, reading
from ....models.family_model.intervals import Scores, scores_from_json, scores_to_json
from ....models.regressor import Matrix

FORMAT = ArtifactFormat("model of compiled code", "train triton", version=1, kind="compiled code", features=schema_hash)

SCALES = ("registers", "instructions")
"""Targets whose error size is learned; a graph each, `scale-registers` and `scale-instructions`."""

_SLACK = 1.0
"""A doubling beyond the range of a number is still inside."""


@dataclass(frozen=True, slots=True)
class CodeModel:
    """What was learned of compiled code.

    Attributes:
        graphs: Serialised ONNX: `MEMBERS` and a scale for each of `SCALES`.
        scores: Conformal scores by target, of ln(measured / predicted).
        platt: Slope and intercept from a margin to the logit of spilling (Platt, 1999).
        low: Least of each number in training, shape `(len(NAMES),)`.
        high: Greatest of each number, likewise.
        fallback: Registers an assembler ends with that has given up on keeping values in them.
        n_programs: Programs trained on.
        n_rows: Rows trained on.
        metrics: Held-out errors.
    """

    graphs: Mapping[str, bytes]
    scores: Mapping[str, Scores]
    platt: tuple[float, float]
    low: Floats
    high: Floats
    fallback: float
    n_programs: int
    n_rows: int
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def outside(self, x: Floats) -> tuple[str, float]:
        """The number of a vector, shape `(len(NAMES),)`, that lies furthest outside the range of training, and by how
        many doublings; 0 inside.
        """
        beyond = np.maximum(np.maximum(self.low - x, x - self.high) - _SLACK, 0.0)
        worst = int(beyond.argmax())
        return NAMES[worst], float(beyond[worst])


def graph_names() -> tuple[str, ...]:
    """Names of all graphs of a model."""
    return (*MEMBERS, *(f"scale-{name}" for name in SCALES))


def save_code_model(model: CodeModel, facts: Mapping[str, Any], directory: Path) -> None:
    """Write a model, replacing what was in `directory` only once all of it is on disk.

    Raises:
        ArtifactError: `directory` is something else's, or cannot be written.
    """

    def content(store: StoreGraph) -> dict[str, Any]:
        for name, graph in model.graphs.items():
            store(name, graph)
        return {
            **facts, "scores": scores_to_json(model.scores), "platt": list(model.platt),
            "low": np.round(model.low, 4).tolist(), "high": np.round(model.high, 4).tolist(), "fallback": model.fallback,
            "n_programs": model.n_programs, "n_rows": model.n_rows, "metrics": dict(model.metrics),
        }  # fmt: skip

    FORMAT.save(directory, content)


def load_code_model(directory: Path) -> CodeModel:
    """The model of an artifact, every file checked against the manifest.

    Raises:
        ArtifactError: there is none, it is damaged, or was made for other features or by another version.
    """
    manifest = FORMAT.manifest(directory)
    with reading(f"the manifest of {directory}"):
        return _from_json(manifest, directory)


def _from_json(manifest: Mapping[str, Any], directory: Path) -> CodeModel:
    files = manifest["files"]
    low, high = (numbers(manifest[name], len(NAMES)) for name in ("low", "high"))
    slope, intercept = manifest["platt"]
    return CodeModel(
        graphs={name: read_graph(directory, f"{name}.onnx.gz", files) for name in graph_names()},
        scores=scores_from_json(manifest["scores"]),
        platt=(finite(slope), finite(intercept)),
        low=low,
        high=high,
        fallback=finite(manifest["fallback"], 0.0),
        n_programs=int(manifest["n_programs"]),
        n_rows=int(manifest["n_rows"]),
        metrics=manifest["metrics"],
    )


REGISTERS, ROOT_REGISTERS, COLLAPSE, SPILL, SPILL_SIZE, INSTRUCTIONS, ERROR_CORRELATION = (
    "registers", "root-registers", "collapse", "spill", "spill-size", "instructions", "shared",
)  # fmt: skip
MEMBERS = (REGISTERS, ROOT_REGISTERS, COLLAPSE, SPILL, SPILL_SIZE, INSTRUCTIONS, ERROR_CORRELATION)
"""Graphs of a model, in order."""

LEAST_REGISTERS = 8.0
"""No kernel of the training rows takes fewer, and the machine hands them out in eights."""

_COLUMN = {name: i for i, name in enumerate(NAMES)}
_LIMIT, _PAPER = _COLUMN["limit"], _COLUMN["instructions"]
_CANDIDATES = [_COLUMN[f"{name} b"] for name in CANDIDATES]
_USUAL = _COLUMN["operands b"]


@dataclass(frozen=True, slots=True)
class CodeAnswers:
    """Answers for `n` functions, columns of shape `(n,)`.

    Attributes:
        registers: Per thread.
        instructions: Machine instructions, each once.
        shared_b: Shared memory of a block, bytes.
        spill_margin: Margin of the classifier of spilling.
        spill_b: Stack bytes if it spills.
        given_up: Probability that the assembler gives up on registers.
    """

    registers: Floats
    instructions: Floats
    shared_b: Floats
    spill_margin: Floats
    spill_b: Floats
    given_up: Floats


def number(x: Floats, column: int) -> Floats:
    """A column of vectors, its logarithm undone."""
    return np.exp2(x[:, column]) - 1.0


def limit_of(x: Floats) -> Floats:
    """The most registers per thread, shape `(n,)`."""
    return np.round(number(x, _LIMIT))


def analytic_instructions(x: Floats) -> Floats:
    """The rule of thumb's instructions, which the model's are a ratio to; logarithms, shape `(n,)`."""
    logarithms: Floats = x[:, _PAPER] * np.log(2.0)
    return logarithms


def candidates_b(x: Floats) -> Floats:
    """Bytes of shared memory by each way they may come about, shape `(n, len(CANDIDATES))`."""
    return np.round(np.exp2(x[:, _CANDIDATES]) - 1.0)


def pair_inputs(x: Floats) -> Matrix:
    """A row per function and candidate: the function's numbers, which candidate, how large beside the usual one and
    the others.

    Shape `(n * len(CANDIDATES), len(NAMES) + len(CANDIDATES) + 2)`.
    """
    n, m = len(x), len(CANDIDATES)
    sizes = x[:, _CANDIDATES]
    beside = sizes - x[:, [_USUAL]]
    same = (sizes[:, :, None] == sizes[:, None, :]).sum(axis=2).astype(np.float64)
    rows = [np.repeat(x, m, axis=0), np.tile(np.eye(m), (n, 1)), beside.reshape(-1, 1), same.reshape(-1, 1)]
    return np.concatenate(rows, axis=1).astype(np.float32)


def probability(margin: Floats) -> Floats:
    """The probability a margin stands for (the logistic function)."""
    return 1.0 / (1.0 + np.exp(-np.clip(margin, -40.0, 40.0)))


class CodeEngine:
    """Runs the graphs of a model. Safe to share between threads.

    `fallback` are the registers an assembler ends with that has given up on keeping values in them.
    """

    def __init__(self, graphs: Mapping[str, bytes], fallback: float) -> None:
        self._runtime = Runtime([graphs[name] for name in MEMBERS])
        self._fallback = fallback

    def answer(self, x: Floats) -> CodeAnswers:
        """Answers for vectors of shape `(n, len(NAMES))`."""
        inputs = x.astype(np.float32)
        members = [i for i, name in enumerate(MEMBERS) if name != ERROR_CORRELATION]
        answers = {MEMBERS[i]: column[:, 0] for i, column in self._runtime.run(inputs, members).items()}
        limit = limit_of(x)
        in_registers = np.clip((answers[REGISTERS] + answers[ROOT_REGISTERS] ** 2) / 2.0, LEAST_REGISTERS, limit)
        # The mean of two worlds: one in which the assembler keeps what it can, one in which it gives up.
        given_up = probability(answers[COLLAPSE])
        registers = (1.0 - given_up) * in_registers + given_up * np.minimum(in_registers, self._fallback)
        return CodeAnswers(
            registers=registers,
            instructions=np.exp(analytic_instructions(x) + answers[INSTRUCTIONS]),
            shared_b=self._shared(x),
            spill_margin=answers[SPILL],
            spill_b=np.expm1(np.maximum(answers[SPILL_SIZE], 0.0)),
            given_up=given_up,
        )

    def _shared(self, x: Floats) -> Floats:
        place = MEMBERS.index(ERROR_CORRELATION)
        likely = self._runtime.run(pair_inputs(x), [place])[place][:, 0].reshape(len(x), len(CANDIDATES))
        shared_b: Floats = candidates_b(x)[np.arange(len(x)), likely.argmax(axis=1)]
        return shared_b
