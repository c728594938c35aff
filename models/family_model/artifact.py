"""The artifact of a model of kernels: one `FamilyModel` per kernel family, with graphs `<family>.<n>.onnx.gz`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...features.batch.category import category_of
from ...features.vector.schema import FeatureSchema
from ...files import home_dir, write_whole
from ..pretrained import KERNELS
from .analytic import AnalyticModel
from .artifact_files import MANIFEST, ArtifactError, ArtifactFormat, StoreGraph, finite, read_graph, reading
from .device_correction import Adaptation
from .domain import Domain, Largest
from .intervals import Scores, scores_from_json, scores_to_json
from .utilisation import UtilisationModel

FORMAT = ArtifactFormat("model", "train", version=2, required={"families": dict, "files": dict, "regressor": str})
"""History of versions: 1, the first; 2, what was measured where, scale-free trees, and adaptations to devices."""

CHAMPION_POINTER = "champion.json"


@dataclass(frozen=True, slots=True)
class TargetModel:
    """How one target of one family is predicted.

    Attributes:
        members: (graph, column, weight) triples whose answers add up to the log ratio; none for energy, a product of two,
            and for power that follows from a `UtilisationModel`.
        scale_graph: The graph of error sizes; None where there is none.
        scores: Conformal scores by regime (`intervals.REGIMES`).
    """

    members: tuple[tuple[int, int, float], ...]
    scale_graph: int | None
    scores: Mapping[str, Scores]


@dataclass(frozen=True, slots=True)
class FamilyModel:
    """Everything the artifact holds about one kernel family.

    Attributes:
        schema: Features the graphs read.
        graphs: Serialised ONNX.
        targets: How each target is predicted.
        domain: Where the training rows lie.
        devices: Devices in the training rows.
        kinds: Kinds of these.
        median_log_ratio: Median of ln(latency / lower bound) over training rows, for kinds of devices never trained on.
        n_rows: Training rows.
        measured: For each target the words of what was measured where (`category.measured_label`), with the training rows
            of each; None in a model that did not count them.
        largest: The largest sizes there, and how products were aligned.
        vectors: As what products with a vector were measured (`products.vector_labels`); None: nobody looked.
        free: The graph of the scale-free trees; None where there is none.
        shift: Added to ln(latency) on devices never measured.
        analytic: The analytic model that latency is a ratio to; None where it is a ratio to the lower bound.
        utilisation: Power of a family whose own was not learned; None where it was, or that of fewer than two families was.
        steady: The same of the family's own kernels in loops of seconds; None where too few were measured.
        adaptations: By device and target what a few rows of it taught.
        metrics: Held-out errors.
    """

    schema: FeatureSchema
    graphs: tuple[bytes, ...]
    targets: Mapping[str, TargetModel]
    domain: Domain
    devices: tuple[str, ...]
    kinds: tuple[str, ...]
    median_log_ratio: float
    n_rows: int
    measured: Mapping[str, Mapping[str, int | None]]
    largest: Largest
    vectors: tuple[str, ...] | None = None
    free: int | None = None
    shift: float = 0.0
    analytic: AnalyticModel | None = None
    utilisation: UtilisationModel | None = None
    steady: UtilisationModel | None = None
    adaptations: Mapping[str, Mapping[str, Adaptation]] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def impls(self) -> tuple[str, ...]:
        """The implementations of its rows, the preferred first, then those that calibrations alone have."""
        adapted = [adaptation for targets in self.adaptations.values() for adaptation in targets.values()]
        others = sorted(name for adaptation in adapted for name in adaptation.impls())
        return tuple(dict.fromkeys((*self.schema.impls, *others)))


def with_power_of(before: FamilyModel, model: FamilyModel) -> FamilyModel:
    """The model with the utilisation model of an earlier one, where it has no power itself."""
    if before.utilisation is None or "power" in model.targets:
        return model
    from_before = {target: before.targets[target] for target in ("power", "energy")}
    return replace(
        model, utilisation=before.utilisation, steady=before.steady, targets={**model.targets, **from_before}
    )


@dataclass(frozen=True, slots=True)
class Artifact:
    """A trained model.

    Attributes:
        regressor: What learned.
        families: One model per kernel family.
        facts: What is known of its making: data, hashes, versions.
    """

    regressor: str
    families: Mapping[str, FamilyModel]
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pointer:
    """What serves; both are None where nothing was promoted and the shipped model serves.

    Attributes:
        artifact: The pinned copy.
        version: Its version.
        sha256: Of its manifest, which has those of the other files; None where an older kernelcast promoted it.
    """

    artifact: Path | None
    version: str | None
    sha256: str | None = None


def pointer() -> Pointer:
    """What the champion pointer names.

    Raises:
        ArtifactError: the pointer exists and cannot be read; it is never passed over silently.
    """
    path = home_dir() / CHAMPION_POINTER
    if not path.exists():
        return Pointer(None, None)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Pointer(Path(str(content["artifact"])), str(content["version"]), content.get("sha256"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"the champion pointer {path} is unreadable ({error}); promote a model again") from error


def default_model_dir() -> Path:
    """The champion a promotion pointed at, if there is one, else the shipped model.

    Raises:
        ArtifactError: the champion pointer exists but cannot be read, or the champion is not the model that was promoted.
    """
    champion = pointer()
    if champion.artifact is None:
        return KERNELS
    path = champion.artifact / MANIFEST
    # One that is missing is for the loader to say.
    if champion.sha256 is not None and path.is_file() and manifest_sha256(champion.artifact) != champion.sha256:
        raise ArtifactError(f"{path} is not the one that was promoted; promote a model again, or restore the file")
    return champion.artifact


def manifest_sha256(directory: Path) -> str:
    """What identifies an artifact: the SHA-256 of its manifest, which has those of all its files."""
    return hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest()


def shipped_model_dir() -> Path:
    """The model that comes with kernelcast."""
    return KERNELS


def save_artifact(artifact: Artifact, directory: Path) -> None:
    """Write the artifact, replacing what was in `directory` only once all of it is on disk.

    Raises:
        ArtifactError: `directory` is something else's, or cannot be written.
    """
    FORMAT.save(directory, lambda store: {
        "regressor": artifact.regressor, **artifact.facts,
        "families": {family: _to_json(family, model, store) for family, model in artifact.families.items()},
    })  # fmt: skip


def save_adaptations(
    source: Path, manifest: Mapping[str, Any], models: Mapping[str, FamilyModel], facts: Mapping[str, Any], directory: Path
) -> None:  # fmt: skip
    """Write the artifact in `source`, whose manifest is given, with the adaptations of `models` and further facts.

    The graphs are copied as they are.

    Raises:
        ArtifactError: `directory` is something else's, or cannot be written.
    """
    families = {name: {**entry, "adaptations": _adaptations(models[name])} if name in models else entry
                for name, entry in manifest["families"].items()}  # fmt: skip

    def copy(staging: Path) -> Mapping[str, Any]:
        for name in manifest["files"]:
            write_whole(staging / name, (source / name).read_bytes())
        return {**manifest, **facts, "families": families}

    FORMAT.write(directory, copy)


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of an artifact.

    Raises:
        ArtifactError: there is none, it is damaged, or of a format this version does not know.
    """
    return FORMAT.manifest(directory)


def load_family(directory: Path, manifest: Mapping[str, Any], family: str) -> FamilyModel:
    """One family of an artifact, its files checked against the manifest.

    Raises:
        ArtifactError: a file is missing or damaged, or the features it was trained on are not this version's.
    """
    with reading(f"{directory}: the manifest's entry for {family}"):
        entry = manifest["families"][family]
        schema = FeatureSchema.from_json(entry["schema"])
        if schema.hash != entry["schema_hash"]:
            raise ArtifactError(
                f"{directory}: the {family} model was trained on other features "
                f"({entry['schema_hash']}, this kernelcast has {schema.hash}); train it again"
            )
        targets = {name: _target_from_json(target, len(entry["graphs"])) for name, target in entry["targets"].items()}
        own_power = bool(targets["power"].members) if "power" in targets else None
        if own_power is bool(entry.get("utilisation")) or (own_power is not None and "energy" not in targets):
            raise ValueError("power needs members or a utilisation model, and an energy beside it")
        return FamilyModel(
            schema=schema,
            graphs=tuple(read_graph(directory, name, manifest["files"]) for name in entry["graphs"]),
            targets=targets,
            domain=Domain.from_json(entry["domain"]),
            devices=tuple(entry["devices"]),
            kinds=tuple(entry["kinds"]),
            median_log_ratio=finite(entry["median_log_ratio"]),
            n_rows=int(finite(entry["n_rows"], 1)),
            measured=measured_rows(entry),
            largest=entry["largest"],
            vectors=None if entry.get("vectors") is None else tuple(entry["vectors"]),
            free=_graph(entry["free"], len(entry["graphs"])),
            shift=finite(entry["shift"]),
            analytic=AnalyticModel.from_json(entry["analytic"]) if entry.get("analytic") else None,
            utilisation=UtilisationModel.from_json(entry["utilisation"]) if entry.get("utilisation") else None,
            steady=UtilisationModel.from_json(entry["steady"]) if entry.get("steady") else None,
            adaptations={
                str(device): {str(target): Adaptation.from_json(item) for target, item in by_target.items()}
                for device, by_target in entry["adaptations"].items()
            },
            metrics=entry.get("metrics", {}),
        )


def measured_rows(entry: Mapping[str, Any]) -> dict[str, dict[str, int | None]]:
    """By target and `category.measured_label` the training rows that a family's entry of a manifest counts."""
    return {
        str(target): dict.fromkeys(rows)
        if isinstance(rows, list)
        else {str(label): int(n) for label, n in rows.items()}
        for target, rows in entry["measured"].items()
    }


def _to_json(family: str, model: FamilyModel, store: StoreGraph) -> dict[str, Any]:
    return {
        "schema": model.schema.to_json(), "schema_hash": model.schema.hash,
        "graphs": [store(f"{family}.{i}", graph) for i, graph in enumerate(model.graphs)],
        "targets": {name: _target_to_json(target) for name, target in model.targets.items()},
        "domain": model.domain.to_json(), "devices": model.devices, "kinds": model.kinds,
        "median_log_ratio": model.median_log_ratio, "n_rows": model.n_rows,
        "measured": {target: dict(rows) for target, rows in model.measured.items()},
        "largest": model.largest, "vectors": model.vectors,
        "adaptations": _adaptations(model),
        "free": model.free, "shift": model.shift,
        "analytic": model.analytic.to_json() if model.analytic else None,
        "utilisation": model.utilisation.to_json() if model.utilisation else None,
        "steady": model.steady.to_json() if model.steady else None, "metrics": dict(model.metrics),
    }  # fmt: skip


def _adaptations(model: FamilyModel) -> dict[str, Any]:
    return {
        device: {target: item.to_json() for target, item in by_target.items()}
        for device, by_target in model.adaptations.items()
    }


def _target_to_json(target: TargetModel) -> dict[str, Any]:
    return {"members": [list(member) for member in target.members], "scale_graph": target.scale_graph,
            "scores": scores_to_json(target.scores)}  # fmt: skip


def _target_from_json(data: Mapping[str, Any], n_graphs: int) -> TargetModel:
    members = tuple(
        (_graph(int(graph), n_graphs) or 0, int(finite(column, 0)), finite(weight))
        for graph, column, weight in data["members"]
    )
    return TargetModel(members, _graph(data["scale_graph"], n_graphs), scores_from_json(data["scores"]))


def _graph(position: int | None, n_graphs: int) -> int | None:
    if position is not None and not 0 <= position < n_graphs:
        raise ValueError(f"it names graph {position}, and there are {n_graphs}")
    return position


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """Rows of one kind of kernel on one device.

    Attributes:
        family: Kernel family.
        device: Catalogue name of the device.
        dtype: The dtype.
        impl: The implementation; empty where the rows name none.
        rows: Rows with a latency that the model was trained on.
    """

    family: str
    device: str
    dtype: str
    impl: str
    rows: int


def measured_kernels(directory: Path) -> list[MeasuredKernel]:
    """What the model of a directory was measured on, sorted by family, device, dtype and implementation.

    Raises:
        ArtifactError: the directory has no readable manifest.
    """
    rows: Counter[tuple[str, str, str, str]] = Counter()
    for family, label, count in _labels(read_manifest(directory)):
        category = category_of(label, 1.0)
        rows[family, str(category.device), category.dtype, category.impl] += count
    return [MeasuredKernel(*key, count) for key, count in sorted(rows.items())]


def _labels(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Family, label (see `measured_label`) and rows of everything that has a latency."""
    for name, family in manifest.get("families", {}).items():
        for label, count in family.get("measured", {}).get("latency", {}).items():
            yield name, label, int(count)
