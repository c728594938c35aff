"""Artifacts of models of programs: a directory with `manifest.json` and compressed ONNX graphs, one model per device.

Written, checked and swapped in as `models.artifact` does. Nothing in it can run code.
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
from ...features.mlir.extract import schema_hash
from ..artifact import (
    MANIFEST,
    ArtifactError,
    manifest_in,
    read_graph,
    replace_directory,
    write_graph,
    write_manifest,
)
from ..intervals import Scores
from .domain import ProgramDomain
from .paper_base import PaperBase

FORMAT_VERSION = 1
KIND = "programs"
"""What the manifest says it is a model of; a model of kernels says nothing."""

SHIPPED = Path(__file__).parents[1] / "pretrained_mlir"

TREES, SCALE = "trees", "scale"
"""Names of graphs beside those of networks: boosted trees on the whole program, and the size of errors."""


@dataclass(frozen=True, slots=True)
class Characteristic:
    """A further learned target: its graph of ln(1 + value), and for each compiler the scores its intervals come from."""

    graph: bytes
    scores: Mapping[str, Scores]


@dataclass(frozen=True, slots=True)
class ProgramModel:
    """What was learned of programs on one device.

    `settings` are compilers with threads, the columns of every answer. `usual` names for each dialect of texts the compiler it
    was mostly measured with. `graphs` hold serialised ONNX by name: networks, `TREES` and `SCALE`; `weights` of shape
    `(n_settings,)` say how much each member counts. `scores` are by compiler.
    """

    device: str
    settings: tuple[tuple[str, int], ...]
    usual: Mapping[str, str]
    base: PaperBase
    graphs: Mapping[str, bytes]
    weights: Mapping[str, Floats]
    scores: Mapping[str, Scores]
    domain: ProgramDomain
    characteristics: Mapping[str, Characteristic]
    n_programs: int
    n_rows: int
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def compilers(self) -> tuple[str, ...]:
        """Compilers that were measured."""
        return tuple(dict.fromkeys(compiler for compiler, _ in self.settings))


def save_models(models: Mapping[str, ProgramModel], facts: Mapping[str, Any], directory: Path) -> None:
    """Write models by device, replacing what was in `directory` only once all of it is on disk.

    Raises:
        ArtifactError: `directory` is something else's, or cannot be written.
    """
    replace_directory(directory, lambda staging: _write(models, facts, staging))


def load_models(directory: Path) -> dict[str, ProgramModel]:
    """The models of an artifact by device, every file checked against the manifest.

    Raises:
        ArtifactError: there is no model, it is damaged, or was made for other features or by another version.
    """
    path = directory / MANIFEST
    manifest = manifest_in(directory, "model of programs", "train-mlir")
    if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
        raise ArtifactError(f"{path} is no model of programs; make one with `kernelcast train-mlir`")
    if manifest.get("format_version") != FORMAT_VERSION or manifest.get("schema_hash") != schema_hash():
        raise ArtifactError(
            f"{path} was made by a kernelcast that understands programs otherwise (format {manifest.get('format_version')!r}, "
            f"features {manifest.get('schema_hash')!r}); train it again with `kernelcast train-mlir`"
        )
    try:
        return {str(device): _from_json(str(device), entry, manifest["files"], directory)
                for device, entry in manifest["devices"].items()}  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{path} is damaged ({error!r}); train the model again") from error


def _write(models: Mapping[str, ProgramModel], facts: Mapping[str, Any], directory: Path) -> None:
    files: dict[str, str] = {}

    def stored(device: str, name: str, graph: bytes) -> str:
        file = f"{device}.{name.replace(' ', '-')}.onnx.gz"
        files[file] = write_graph(directory, file, graph)
        return file

    devices = {
        device: {
            "settings": [list(setting) for setting in model.settings],
            "usual": dict(model.usual),
            "base": model.base.to_json(),
            "graphs": {name: stored(device, name, graph) for name, graph in model.graphs.items()},
            "weights": {name: [round(float(w), 4) for w in own] for name, own in model.weights.items()},
            "scores": _scores_to_json(model.scores),
            "domain": model.domain.to_json(),
            "characteristics": {
                name: {"graph": stored(device, name, one.graph), "scores": _scores_to_json(one.scores)}
                for name, one in model.characteristics.items()
            },
            "n_programs": model.n_programs,
            "n_rows": model.n_rows,
            "metrics": dict(model.metrics),
        }
        for device, model in models.items()
    }
    write_manifest(directory, {
        "format_version": FORMAT_VERSION, "kind": KIND, "kernelcast": __version__, "schema_hash": schema_hash(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"), **facts, "files": files, "devices": devices,
    })  # fmt: skip


def _from_json(device: str, entry: Mapping[str, Any], files: Mapping[str, str], directory: Path) -> ProgramModel:
    def graph(name: str) -> bytes:
        return read_graph(directory, name, files[name])

    return ProgramModel(
        device=device,
        settings=tuple((str(compiler), int(threads)) for compiler, threads in entry["settings"]),
        usual={str(dialect): str(compiler) for dialect, compiler in entry["usual"].items()},
        base=PaperBase.from_json(entry["base"]),
        graphs={str(name): graph(file) for name, file in entry["graphs"].items()},
        weights={str(name): np.asarray(own, dtype=np.float64) for name, own in entry["weights"].items()},
        scores=_scores_from_json(entry["scores"]),
        domain=ProgramDomain.from_json(entry["domain"]),
        characteristics={
            str(name): Characteristic(graph(one["graph"]), _scores_from_json(one["scores"]))
            for name, one in entry["characteristics"].items()
        },
        n_programs=int(entry["n_programs"]),
        n_rows=int(entry["n_rows"]),
        metrics=entry["metrics"],
    )


def _scores_to_json(scores: Mapping[str, Scores]) -> dict[str, Any]:
    return {compiler: own.to_json() for compiler, own in scores.items()}


def _scores_from_json(data: Mapping[str, Any]) -> dict[str, Scores]:
    return {str(compiler): Scores.from_json(own) for compiler, own in data.items()}
