"""Model artifacts: a directory with `manifest.json` and compressed ONNX graphs. Nothing in it can run code.

Layout: `manifest.json` names every other file with its SHA-256; `<family>.<n>.onnx.gz` are the graphs. An artifact is
written beside its place and renamed into it, so a reader sees the old one or the new one (or, for an instant, none), never
half of one.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import __version__
from ..features.errors import SpecError
from ..features.extract import FeatureSchema
from ..home import home_dir
from .adapted import Adaptation
from .analytic import AnalyticModel
from .continuation import Largest
from .domain import Domain
from .intervals import Scores

FORMAT_VERSION = 2
"""Version of the layout. History: 1, the first; 2, what was measured where, scale-free trees, and adaptations to devices."""

MANIFEST = "manifest.json"
CHAMPION_POINTER = "champion.json"
_SHIPPED = Path(__file__).parent / "pretrained"


class ArtifactError(SpecError):
    """An artifact that cannot be used: missing, incomplete, corrupt, or made for another version."""


@dataclass(frozen=True, slots=True)
class TargetModel:
    """How one target of one family is predicted: which graphs, and the scores its intervals come from.

    `members` are (graph, column, weight) triples whose answers add up to the log ratio; none for energy, a product of two
    others. `scale_graph` says where the size of errors comes from. `scores` maps a regime of `intervals.REGIMES` to scores.
    """

    members: tuple[tuple[int, int, float], ...]
    scale_graph: int | None
    scores: Mapping[str, Scores]


@dataclass(frozen=True, slots=True)
class FamilyModel:
    """Everything the artifact holds about one kernel family. `graphs` are serialised ONNX.

    `devices` are those in the training rows, `kinds` their kinds; `measured` holds for each target the words of what was
    measured where (`features.words.measured_word`), `largest` the largest sizes there. `free` is the graph of the
    scale-free trees and `shift` what is added to ln(latency) on devices never measured (`models.transfer`).
    `adaptations` holds by device and target what a few rows of it taught. `median_log_ratio` is the median of
    ln(latency / lower bound) over training rows, for kinds of devices never trained on. `analytic` is the fitted analytic
    model that latency is a ratio to; None where it is a ratio to the lower bound.
    """

    schema: FeatureSchema
    graphs: tuple[bytes, ...]
    targets: Mapping[str, TargetModel]
    domain: Domain
    devices: tuple[str, ...]
    kinds: tuple[str, ...]
    median_log_ratio: float
    n_rows: int
    measured: Mapping[str, tuple[str, ...]]
    largest: Largest
    free: int | None = None
    shift: float = 0.0
    analytic: AnalyticModel | None = None
    adaptations: Mapping[str, Mapping[str, Adaptation]] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A trained model: one `FamilyModel` per family and what is known of its making (data, hashes, versions, metrics)."""

    regressor: str
    families: Mapping[str, FamilyModel]
    facts: Mapping[str, Any]


def default_model_dir() -> Path:
    """The champion a promotion pointed at, if there is one, else the shipped model.

    Raises:
        ArtifactError: the champion pointer exists but cannot be read; it is never passed over silently.
    """
    pointer = home_dir() / CHAMPION_POINTER
    if not pointer.exists():
        return _SHIPPED
    try:
        target = json.loads(pointer.read_text(encoding="utf-8"))["artifact"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"the champion pointer {pointer} is unreadable ({error}); promote a model again") from error
    return Path(str(target))


def shipped_model_dir() -> Path:
    """The model that comes with kernelcast."""
    return _SHIPPED


def save_artifact(artifact: Artifact, directory: Path) -> None:
    """Write the artifact, replacing what was in `directory` only once all of it is on disk.

    Raises:
        ArtifactError: `directory` is something else's, or cannot be written.
    """
    replace_directory(directory, lambda staging: _write(artifact, staging))


def replace_directory(directory: Path, write: Callable[[Path], None]) -> None:
    """Have `write` fill an empty directory beside `directory`, and put it in its place once all of it is on disk.

    Raises:
        ArtifactError: `directory` is something else's, or cannot be written.
    """
    if directory.exists() and (
        not directory.is_dir() or (any(directory.iterdir()) and not (directory / MANIFEST).exists())
    ):
        raise ArtifactError(f"{directory} exists and is no model directory; choose another --out")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            write(staging)
            staging.chmod(0o755)
            _swap(staging, directory)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise ArtifactError(f"cannot write the model to {directory}: {error.strerror or error}") from error


def manifest_in(directory: Path, what: str, command: str) -> Any:
    """The content of the manifest in `directory`, not yet looked at; `what` it should hold and the `command` that makes one.

    Raises:
        ArtifactError: there is none, or it is no JSON.
    """
    path = directory / MANIFEST
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtifactError(
            f"{directory} is no {what}: it has no {MANIFEST}; make one with `kernelcast {command}`"
        ) from error
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}") from error


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of an artifact.

    Raises:
        ArtifactError: there is none, it is damaged, or of a format this version does not know.
    """
    path = directory / MANIFEST
    manifest = manifest_in(directory, "model", "train")
    if not isinstance(manifest, dict) or manifest.get("format_version") != FORMAT_VERSION:
        found = manifest.get("format_version") if isinstance(manifest, dict) else None
        raise ArtifactError(
            f"{path} has format {found!r}, this kernelcast reads {FORMAT_VERSION}; train the model again"
        )
    for key, kind in (("families", dict), ("files", dict), ("regressor", str)):
        if not isinstance(manifest.get(key), kind):
            raise ArtifactError(f"{path} is damaged: it has no {key}; train the model again")
    return manifest


def load_family(directory: Path, manifest: Mapping[str, Any], family: str) -> FamilyModel:
    """One family of an artifact, its files checked against the manifest.

    Raises:
        ArtifactError: a file is missing or damaged, or the features it was trained on are not this version's.
    """
    try:
        entry = manifest["families"][family]
        schema = FeatureSchema.from_json(entry["schema"])
        if schema.hash != entry["schema_hash"]:
            raise ArtifactError(
                f"{directory}: the {family} model was trained on other features "
                f"({entry['schema_hash']}, this kernelcast has {schema.hash}); train it again"
            )
        return FamilyModel(
            schema=schema,
            graphs=tuple(read_graph(directory, name, manifest["files"][name]) for name in entry["graphs"]),
            targets={name: _target_from_json(target) for name, target in entry["targets"].items()},
            domain=Domain.from_json(entry["domain"]),
            devices=tuple(entry["devices"]),
            kinds=tuple(entry["kinds"]),
            median_log_ratio=float(entry["median_log_ratio"]),
            n_rows=int(entry["n_rows"]),
            measured={str(target): tuple(words) for target, words in entry["measured"].items()},
            largest=entry["largest"],
            free=entry["free"],
            shift=float(entry["shift"]),
            analytic=AnalyticModel.from_json(entry["analytic"]) if entry.get("analytic") else None,
            adaptations={
                str(device): {str(target): Adaptation.from_json(one) for target, one in own.items()}
                for device, own in entry["adaptations"].items()
            },
            metrics=entry.get("metrics", {}),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{directory}: the manifest's entry for {family} is damaged ({error!r})") from error


def _write(artifact: Artifact, directory: Path) -> None:
    files: dict[str, str] = {}
    families: dict[str, Any] = {}
    for family, model in artifact.families.items():
        names = []
        for i, graph in enumerate(model.graphs):
            name = f"{family}.{i}.onnx.gz"
            files[name] = write_graph(directory, name, graph)
            names.append(name)
        families[family] = {
            "schema": model.schema.to_json(), "schema_hash": model.schema.hash, "graphs": names,
            "targets": {name: _target_to_json(target) for name, target in model.targets.items()},
            "domain": model.domain.to_json(), "devices": model.devices, "kinds": model.kinds,
            "median_log_ratio": model.median_log_ratio, "n_rows": model.n_rows,
            "measured": {target: list(words) for target, words in model.measured.items()},
            "largest": model.largest,
            "adaptations": {
                device: {target: one.to_json() for target, one in own.items()} for device, own in model.adaptations.items()
            },
            "free": model.free, "shift": model.shift,
            "analytic": model.analytic.to_json() if model.analytic else None, "metrics": dict(model.metrics),
        }  # fmt: skip
    manifest = {
        "format_version": FORMAT_VERSION,
        "kernelcast": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "regressor": artifact.regressor,
        **artifact.facts,
        "files": files,
        "families": families,
    }
    write_manifest(directory, manifest)


def write_graph(directory: Path, name: str, graph: bytes) -> str:
    """Write a graph, compressed; the SHA-256 of the file."""
    # A fixed time stamp: equal models give equal bytes, and so equal hashes.
    packed = gzip.compress(graph, compresslevel=9, mtime=0)
    _write_synced(directory / name, packed)
    return hashlib.sha256(packed).hexdigest()


def write_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest, the last file of an artifact."""
    _write_synced(directory / MANIFEST, json.dumps(manifest).encode())


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _swap(staging: Path, directory: Path) -> None:
    """Put `staging` in `directory`'s place; the old one is moved aside first, since a rename needs an empty target."""
    if not directory.exists():
        staging.rename(directory)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{directory.name}.old.", dir=directory.parent))
    directory.rename(old / "model")
    try:
        staging.rename(directory)
    except OSError:
        (old / "model").rename(directory)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def read_graph(directory: Path, name: str, sha256: str) -> bytes:
    """A graph that `write_graph` wrote.

    Raises:
        ArtifactError: the file is missing, or not the one that was written.
    """
    try:
        packed = (directory / Path(name).name).read_bytes()
    except OSError as error:
        raise ArtifactError(f"{directory} is incomplete: {name} cannot be read ({error.strerror})") from error
    if hashlib.sha256(packed).hexdigest() != sha256:
        raise ArtifactError(f"{directory} is damaged: {name} does not match its checksum")
    return gzip.decompress(packed)


def _target_to_json(target: TargetModel) -> dict[str, Any]:
    return {"members": [list(member) for member in target.members], "scale_graph": target.scale_graph,
            "scores": {regime: scores.to_json() for regime, scores in target.scores.items()}}  # fmt: skip


def _target_from_json(data: Mapping[str, Any]) -> TargetModel:
    scores = {regime: Scores.from_json(entry) for regime, entry in data["scores"].items()}
    members = tuple((int(graph), int(column), float(weight)) for graph, column, weight in data["members"])
    return TargetModel(members, data["scale_graph"], scores)
