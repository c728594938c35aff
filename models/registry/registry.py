"""The model registry: versions of artifacts in MLflow, and which of them serves.

Promotion copies an artifact under `KERNELCAST_HOME/models/`, checks the copy whole, and only then moves the alias and the
pointer file that servers watch (`default_model_dir`), so serving needs no registry client.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...files import LockedError, home_dir, lock, write_whole
from ..family_model.artifact import CHAMPION_POINTER, Pointer, manifest_sha256, read_manifest
from ..family_model.artifact_files import MANIFEST, ArtifactError
from ..predict.predictor import load_predictor
from .mlflow_tracking import (
    ARTIFACT_PATH,
    RegistryError,
    Tracking,
    clear_errors,
    log_training,
    open_tracking,
)

NAME = "kernelcast"
CHAMPION = "champion"

_MOST_VERSIONS = 200_000
"""The most that MLflow lists at once."""

_LOCK = ".promoting.lock"
_LOCK_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a registered model.

    Attributes:
        name: Name of the model.
        version: Its number.
        aliases: Names that point at it, such as `champion`.
        run_id: The run that made it.
        sha256: Of the manifest.
        regressor: The regressor it was trained with.
        families: Kernel families it answers for.
        created_at: UTC, ISO 8601.
    """

    name: str
    version: int
    aliases: tuple[str, ...]
    run_id: str
    sha256: str
    regressor: str
    families: tuple[str, ...]
    created_at: str


@dataclass(frozen=True, slots=True)
class Promoted:
    """What a promotion did.

    Attributes:
        artifact: The pinned copy.
        version: The registry's number; a hash without a registry.
    """

    artifact: Path
    version: str


def register(artifact_dir: Path) -> int:
    """The artifact's version in the registry; one that is there already keeps the version it has.

    Raises:
        ArtifactError: the artifact cannot be used.
        RegistryError: the database cannot be used.
    """
    load_predictor(artifact_dir).load_all()
    sha256, manifest = manifest_sha256(artifact_dir), read_manifest(artifact_dir)
    tracking = open_tracking()
    same = [version.version for version in _versions(tracking) if version.sha256 == sha256]
    if same:
        return max(same)
    run_id = log_training(artifact_dir)
    with clear_errors(tracking.shown):
        if _registered(tracking) is None:
            tracking.client.create_registered_model(NAME)
        tags = {"manifest_sha256": sha256, "regressor": str(manifest["regressor"]),
                "families": ",".join(manifest["families"])}  # fmt: skip
        created = tracking.client.create_model_version(NAME, f"runs:/{run_id}/{ARTIFACT_PATH}", run_id, tags=tags)
    return int(created.version)


def promote(what: int | Path) -> Promoted:
    """Make a version, or an artifact directory (registered first), the champion, which serves from then on.

    Raises:
        ArtifactError: the artifact cannot be used or pinned; what served before goes on serving.
        RegistryError: the database cannot be used, or has no such version.
    """
    number = what if isinstance(what, int) else register(what)
    tracking = open_tracking()
    known = {version.version: version for version in _versions(tracking)}
    if number not in known:
        have = ", ".join(map(str, known)) or "none"
        raise RegistryError(f"{NAME} has no version {number}; versions: {have}")
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        with clear_errors(tracking.shown):
            source = Path(tracking.client.download_artifacts(known[number].run_id, ARTIFACT_PATH, folder))
        if manifest_sha256(source) != known[number].sha256:
            raise ArtifactError(
                f"the files of {NAME} version {number} are not those that were registered; register again"
            )
        pinned = pin(source, str(number))
    with _alone():
        # Asked again: another promotion may have ended since.
        before = next((version.version for version in _versions(tracking) if CHAMPION in version.aliases), None)
        _set_alias(tracking, number)
        try:
            _point_at(pinned, str(number))
        except ArtifactError:
            # Alias and pointer name the same version, or the next server to start elsewhere serves another model.
            _set_alias(tracking, before)
            raise
    return Promoted(pinned, str(number))


def promote_directory(artifact_dir: Path) -> Promoted:
    """Make an artifact the champion without a registry; needs no MLflow.

    Raises:
        ArtifactError: the artifact cannot be used or pinned; what served before goes on serving.
    """
    read_manifest(artifact_dir)
    version = manifest_sha256(artifact_dir)[:12]
    pinned = pin(artifact_dir, version)
    with _alone():
        _point_at(pinned, version)
    return Promoted(pinned, version)


def versions() -> list[ModelVersion]:
    """Every registered version, oldest first.

    Raises:
        RegistryError: the database cannot be used.
    """
    return _versions(open_tracking())


def _versions(tracking: Tracking) -> list[ModelVersion]:
    with clear_errors(tracking.shown):
        model = _registered(tracking)
        if model is None:
            return []
        aliases = {alias: int(version) for alias, version in model.aliases.items()}
        entries = tracking.client.search_model_versions(f"name = '{NAME}'", max_results=_MOST_VERSIONS)
    return sorted((_version(entry, aliases) for entry in entries), key=lambda version: version.version)


def _version(entry: Any, aliases: dict[str, int]) -> ModelVersion:
    return ModelVersion(
        name=entry.name,
        version=int(entry.version),
        aliases=tuple(sorted(alias for alias, version in aliases.items() if version == int(entry.version))),
        run_id=entry.run_id or "",
        sha256=entry.tags.get("manifest_sha256", ""),
        regressor=entry.tags.get("regressor", ""),
        families=tuple(word for word in entry.tags.get("families", "").split(",") if word),
        created_at=datetime.fromtimestamp(entry.creation_timestamp / 1000, UTC).isoformat(timespec="seconds"),
    )


def _registered(tracking: Tracking) -> Any:
    return next(iter(tracking.client.search_registered_models(f"name = '{NAME}'")), None)


def _set_alias(tracking: Tracking, version: int | None) -> None:
    with clear_errors(tracking.shown):
        if version is None:
            tracking.client.delete_registered_model_alias(NAME, CHAMPION)
        else:
            tracking.client.set_registered_model_alias(NAME, CHAMPION, str(version))


def point_back(to: Pointer) -> None:
    """Have what served before serve again: a pinned copy, or the shipped model. The registry is not asked.

    Raises:
        ArtifactError: the copy cannot be loaded or is another model than it was, or the pointer not be written; what serves
            goes on serving.
    """
    if to.artifact is not None and to.version is not None:
        load_predictor(to.artifact).load_all()
        if to.sha256 is not None and manifest_sha256(to.artifact) != to.sha256:
            raise ArtifactError(f"{to.artifact} is not the model that version {to.version} was; restore its files")
    with _alone():
        if to.artifact is not None and to.version is not None:
            _point_at(to.artifact, to.version)
            return
        try:
            (home_dir() / CHAMPION_POINTER).unlink(missing_ok=True)
        except OSError as error:
            raise ArtifactError(f"cannot remove the champion pointer: {error.strerror or error}") from error


def pin(source: Path, version: str) -> Path:
    """A checked copy of the artifact under `KERNELCAST_HOME/models/`; a copy that is there is used if it is the same.

    Another model's folder is never overwritten, since a server may be reading it: a second registry's version gets
    the manifest's hash behind its number.

    Raises:
        ArtifactError: the artifact cannot be used or copied.
    """
    models = home_dir().absolute() / "models"
    sha256 = manifest_sha256(source)
    target = models / version
    if target.exists() and not _is_copy(target, sha256):
        target = models / f"{version}-{sha256[:8]}"
    try:
        models.mkdir(parents=True, exist_ok=True)
        if not _is_copy(target, sha256):
            with tempfile.TemporaryDirectory(prefix=".", dir=models) as folder:
                staged = Path(shutil.copytree(source, Path(folder) / "model"))
                load_predictor(staged).load_all()
                staged.rename(target)
    except OSError as error:
        raise ArtifactError(f"cannot pin the model in {target}: {error.strerror or error}") from error
    load_predictor(target).load_all()
    return target


def _is_copy(target: Path, sha256: str) -> bool:
    return (target / MANIFEST).exists() and manifest_sha256(target) == sha256


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Hold `KERNELCAST_HOME` for one promotion, so that alias and pointer name the same version when two promote at once.

    The operating system lets go when the process ends. On Windows nothing is locked; there, do not promote two at once.
    """
    path = home_dir() / _LOCK
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock(path, wait_s=_LOCK_WAIT_S))
        except LockedError:
            raise ArtifactError(f"another promotion has held {path} for {_LOCK_WAIT_S:g} s; end it first") from None
        except OSError as error:
            raise ArtifactError(f"cannot open the lock {path}: {error.strerror or error}") from error
        yield


def _point_at(artifact: Path, version: str) -> None:
    """Write the champion pointer: on disk under another name first, then renamed, so a reader sees old or new."""
    pointer = home_dir() / CHAMPION_POINTER
    content = {
        "artifact": str(artifact),
        "version": version,
        "sha256": manifest_sha256(artifact),
        "promoted_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    try:
        write_whole(pointer, json.dumps(content, indent=1))
    except OSError as error:
        raise ArtifactError(f"cannot write the champion pointer {pointer}: {error.strerror or error}") from error
