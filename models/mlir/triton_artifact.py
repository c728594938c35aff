"""Artifacts of models of compiled code: a directory with `manifest.json` and compressed ONNX graphs. Nothing in it
can run code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ... import __version__
from ...features.cases import Floats
from ...features.mlir.triton_vectors import NAMES, schema_hash
from ..artifact import MANIFEST, ArtifactError, manifest_in, read_graph, replace_directory, write_graph, write_manifest
from ..intervals import Scores
from .triton_engine import MEMBERS

FORMAT_VERSION = 1
KIND = "compiled code"
"""What the manifest says it is a model of."""

SHIPPED = Path(__file__).parents[1] / "pretrained_triton"

SCALES = ("registers", "instructions")
"""Targets whose error size is learned; a graph each, `scale-registers` and `scale-instructions`."""

_SLACK = 1.0
"""A doubling beyond the range of a number is still inside."""


@dataclass(frozen=True, slots=True)
class CodeModel:
    """What was learned of compiled code.

    `graphs` are serialised ONNX: `triton_engine.MEMBERS` and a scale for each of `SCALES`. `scores` are by target, of
    ln(measured / predicted). `platt` are slope and intercept from a margin to the logit of spilling (Platt, 1999).
    `low` and `high` of shape `(len(NAMES),)` are the range of each number in training. `fallback` is `CodeEngine`'s.
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
    replace_directory(directory, lambda staging: _write(model, facts, staging))


def load_code_model(directory: Path) -> CodeModel:
    """The model of an artifact, every file checked against the manifest.

    Raises:
        ArtifactError: there is none, it is damaged, or was made for other features or by another version.
    """
    path = directory / MANIFEST
    again = "make one with `kernelcast train-triton`"
    manifest = manifest_in(directory, "model of compiled code", "train-triton")
    if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
        raise ArtifactError(f"{path} is no model of compiled code; {again}")
    if manifest.get("format_version") != FORMAT_VERSION or manifest.get("schema_hash") != schema_hash():
        raise ArtifactError(f"{path} was made by a kernelcast that reads Triton IR otherwise; {again}")
    try:
        return _from_json(manifest, directory)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{path} is damaged ({error!r}); train the model again") from error


def _write(model: CodeModel, facts: Mapping[str, Any], directory: Path) -> None:
    files = {
        f"{name}.onnx.gz": write_graph(directory, f"{name}.onnx.gz", graph) for name, graph in model.graphs.items()
    }
    write_manifest(directory, {
        "format_version": FORMAT_VERSION, "kind": KIND, "kernelcast": __version__, "schema_hash": schema_hash(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"), **facts, "files": files,
        "scores": {name: own.to_json() for name, own in model.scores.items()},
        "platt": list(model.platt), "low": np.round(model.low, 4).tolist(), "high": np.round(model.high, 4).tolist(),
        "fallback": model.fallback, "n_programs": model.n_programs, "n_rows": model.n_rows, "metrics": dict(model.metrics),
    })  # fmt: skip


def _from_json(manifest: Mapping[str, Any], directory: Path) -> CodeModel:
    files = manifest["files"]
    low, high = (np.asarray(manifest[name], dtype=np.float64) for name in ("low", "high"))
    if low.shape != (len(NAMES),) or high.shape != (len(NAMES),):
        raise ValueError("ranges of other numbers than this version has")
    slope, intercept = manifest["platt"]
    return CodeModel(
        graphs={name: read_graph(directory, f"{name}.onnx.gz", files[f"{name}.onnx.gz"]) for name in graph_names()},
        scores={str(name): Scores.from_json(own) for name, own in manifest["scores"].items()},
        platt=(float(slope), float(intercept)),
        low=low,
        high=high,
        fallback=float(manifest["fallback"]),
        n_programs=int(manifest["n_programs"]),
        n_rows=int(manifest["n_rows"]),
        metrics=manifest["metrics"],
    )
