"""Every model that was kept: what it was made of, when it served, how wrong it was since, and which
challenge again.

`KERNELCAST_HOME/nights/ledger.jsonl`, one JSON object a line, only ever appended to: `kept`, `promoted`, `rolled-back`,
`errors` and `pruned`. What a model is now follows from reading the lines in order. A line that a crash cut short is
skipped and counted in `Ledger.damaged`. Beside it, what serves now.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from ...features.device import Catalogue, catalogue
from ...features.errors import SpecError, listed
from ...files import append_line, home_dir, read_lines
from ...models.family_model.artifact import CHAMPION_POINTER, default_model_dir, manifest_sha256, pointer, read_manifest
from ...models.family_model.artifact_files import ArtifactError
from ...models.predict.predictor import ArtifactPredictor, load_predictor
from ...models.registry.registry import pin
from .challengers import Challenger

SHIPPED = "shipped"
"""The version of the model that serves where nothing was promoted."""

_EVENTS = ("kept", "promoted", "rolled-back", "errors", "pruned")


@dataclass(frozen=True, slots=True)
class RecentError:
    """Error of a model on the rows of one family and device in one night.

    Attributes:
        night: Id of the night.
        device: The device.
        family: The kernel family.
        n: Number of rows.
        mean_ape_pct: Mean absolute percentage error of latency.
    """

    night: str
    device: str
    family: str
    n: int
    mean_ape_pct: float


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that was kept.

    Attributes:
        version: Its name.
        path: Its copy on disk.
        kind: How it was made, see `challengers.Kind`.
        night: The night that made it.
        sha256: Digest of its manifest.
        rows: Rows it learned from beyond the model it was made of.
        families: Kernel families it answers for.
        software: By device, what the rows it learned from were measured under.
        first_row: When the first of those rows was measured (UTC, ISO 8601); None where that is not known.
        last_row: When the last of them was.
        registry: Whether the version is a number of the model registry.
        promoted_at: When it began to serve; None where it never did.
        previous: The version that served before it did, `SHIPPED` for the shipped model.
        rolled_back: When it stopped to serve by a rollback.
        errors: How wrong it was in later nights.
    """

    version: str
    path: str
    kind: str
    night: str
    sha256: str
    rows: int = 0
    families: tuple[str, ...] = ()
    software: Mapping[str, str] = field(default_factory=dict)
    first_row: str | None = None
    last_row: str | None = None
    registry: bool = False
    promoted_at: str | None = None
    previous: str | None = None
    rolled_back: str | None = None
    errors: tuple[RecentError, ...] = ()

    def made_at(self) -> datetime:
        """When the night began that made it; for models from elsewhere, when it was promoted."""
        return night_time(self.night, self.promoted_at)


def night_time(night: str, otherwise: str | None = None) -> datetime:
    """The time in a night's id (`20261122T220000Z-name`), else that of an ISO 8601 text, else the beginning of time."""
    for text in (night.partition("-")[0], otherwise or ""):
        try:
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
        except ValueError:
            continue
    return datetime.min.replace(tzinfo=UTC)


class Ledger:
    """The ledger in one file; `damaged` counts the lines that the last reading skipped."""

    def __init__(self, path: Path | None = None) -> None:
        """`path`: `KERNELCAST_HOME/nights/ledger.jsonl` unless another is given."""
        self.path = path or home_dir() / "nights" / "ledger.jsonl"
        self.damaged = 0

    def entries(self) -> list[ModelEntry]:
        """Every model that is still kept, in the order they were kept.

        Raises:
            SpecError: the file cannot be read.
        """
        by_version: dict[str, ModelEntry] = {}
        for event in self._events():
            version = event["version"]
            if event["event"] == "kept":
                old = by_version.get(version)
                by_version[version] = replace(event["entry"], errors=old.errors if old else ())
            elif event["event"] == "pruned":
                by_version.pop(version, None)
            elif version in by_version:
                by_version[version] = _changed(by_version[version], event)
        return list(by_version.values())

    def served(self) -> list[tuple[str, str, str]]:
        """(when, what, version) of every promotion and rollback, oldest first; `what` is `promoted` or `rolled-back`."""
        events = (event for event in self._events() if event["event"] in _EVENTS[1:3])
        return [(event["at"], event["event"], event["version"]) for event in events]

    def find(self, version: str) -> ModelEntry:
        """The kept model of this version.

        Raises:
            SpecError: it is not kept.
        """
        if (entry := self.get(version)) is not None:
            return entry
        have = listed(entry.version for entry in self.entries()) or "none"
        raise SpecError(f"no model {version!r} is kept; kept: {have}", field="version")

    def get(self, version: str | None) -> ModelEntry | None:
        """The kept model of this version; None where it is not kept."""
        return next((entry for entry in self.entries() if entry.version == version), None)

    def keep(
        self,
        challenger: Challenger,
        night: str,
        *,
        version: str | None = None,
        path: Path | None = None,
        registry: bool = False,
        software: Mapping[str, str] | None = None,
        measured: tuple[str | None, str | None] = (None, None),
    ) -> ModelEntry:
        """Keep a copy of a challenger's model and write it down; `version` and `path` are given where it is pinned already.

        A model that is kept already stays what it was: that it serves again does not change what it learned from.

        Raises:
            ArtifactError: it cannot be copied.
            SpecError: the ledger cannot be written.
        """
        sha256 = manifest_sha256(challenger.path)
        version = version or sha256[:12]
        path = path or pin(challenger.path, version)
        same = self.get(version)
        if same is not None and (same.sha256, Path(same.path)) == (sha256, path):
            return same
        entry = ModelEntry(version, str(path), challenger.kind, night, sha256, challenger.rows,
                           tuple(read_manifest(path)["families"]), dict(software or {}), *measured,
                           registry=registry)  # fmt: skip
        line = {name: value for name, value in asdict(entry).items() if name != "errors"}
        self._append({"event": "kept", **line})
        return entry

    def promoted(self, version: str, previous: str | None, at: str) -> None:
        """Write down that a model serves from `at` on, and which did before; None: the shipped one."""
        self._append({"event": "promoted", "version": version, "previous": previous or SHIPPED, "at": at})

    def rolled_back(self, version: str, to: str | None, at: str, why: str) -> None:
        """Write down that a model serves no longer, and which does instead; None: the shipped one."""
        self._append({"event": "rolled-back", "version": version, "to": to or SHIPPED, "at": at, "why": why})

    def record_errors(self, version: str, errors: Sequence[RecentError]) -> None:
        """Write down how wrong a model was in one night."""
        self._append({"event": "errors", "version": version, "errors": [asdict(error) for error in errors]})

    def prune(self, keep: int, protected: Iterable[str]) -> list[ModelEntry]:
        """Remove all but the `keep` newest models, the `protected` versions and the newest of each software; gives the removed.

        Only copies under `KERNELCAST_HOME/models` are deleted.
        """
        entries = self.entries()
        spared = set(protected) | newest_by_software(entries)
        ordered = sorted(entries, key=lambda entry: entry.made_at())
        spared |= {entry.version for entry in ordered[len(ordered) - keep :]} if keep > 0 else set()
        removed = [entry for entry in entries if entry.version not in spared]
        models = (home_dir() / "models").resolve()
        for entry in removed:
            # Written first: a crash in between leaves a folder without an entry, not an entry without its folder.
            self._append({"event": "pruned", "version": entry.version})
            if Path(entry.path).resolve().parent == models:
                shutil.rmtree(entry.path, ignore_errors=True)
        return removed

    def _append(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, ensure_ascii=False, allow_nan=False)
        try:
            append_line(self.path, text)
        except OSError as error:
            raise SpecError(f"cannot write {self.path}: {error.strerror or error}; free space or make it writable",
                            field="ledger") from error  # fmt: skip

    def _events(self) -> list[dict[str, Any]]:
        try:
            events, self.damaged = read_lines(self.path, _event)
        except OSError as error:
            raise SpecError(f"cannot read {self.path}: {error.strerror or error}", field="ledger") from error
        return events


def newest_by_software(entries: Sequence[ModelEntry]) -> set[str]:
    """For every device and software, the version of the newest model that learned from it: software may come back."""
    newest: dict[tuple[str, str], ModelEntry] = {}
    for entry in sorted(entries, key=ModelEntry.made_at):
        newest |= dict.fromkeys(entry.software.items(), entry)
    return {entry.version for entry in newest.values()}


def _event(text: str) -> dict[str, Any]:
    """An event from its line, a model in `entry`. Fields that earlier versions wrote, such as `regime`, are passed over.

    Raises:
        ValueError: no line of a ledger. So do KeyError, TypeError and msgspec.ValidationError.
    """
    event = json.loads(text)
    if event["event"] not in _EVENTS or not isinstance(event["version"], str):
        raise ValueError("no event of a ledger")
    if event["event"] == "kept":
        event["entry"] = msgspec.convert(event, ModelEntry)
    elif event["event"] == "errors":
        event["errors"] = msgspec.convert(event["errors"], tuple[RecentError, ...])
    elif event["event"] != "pruned" and not isinstance(event["at"], str):
        raise ValueError("no time")
    return dict(event)


def _changed(entry: ModelEntry, event: Mapping[str, Any]) -> ModelEntry:
    if event["event"] == "promoted":
        return replace(entry, promoted_at=event["at"], previous=event["previous"], rolled_back=None)
    if event["event"] == "rolled-back":
        return replace(entry, rolled_back=event["at"])
    return replace(entry, errors=(*entry.errors, *event["errors"]))


def past_models(entries: Sequence[ModelEntry], serving: str | None, software: Mapping[str, str]) -> list[ModelEntry]:
    """Kept models that challenge again: the one that served before, and the newest of tonight's software.

    An update of the software is sometimes taken back: what was made before it is right again then (docs/decisions/015).
    """
    by_version = {entry.version: entry for entry in entries}
    previous = by_version[serving].previous if serving in by_version else None
    same = newest_by_software([entry for entry in entries if software.items() & entry.software.items()])
    chosen = ({previous} | same) - {serving, None}
    return [by_version[version] for version in sorted(map(str, chosen)) if version in by_version]


def serving_version() -> str | None:
    """The version that serves: the pointer's, `shipped` where there is none, None where the pointer cannot be read."""
    try:
        return pointer().version or SHIPPED
    except ArtifactError:
        return None


def serving_model() -> tuple[Path, str | None]:
    """The model directory that serves, and why it cannot be loaded; None where it can."""
    try:
        return serving_predictor().directory, None
    except ArtifactError as error:
        return home_dir() / CHAMPION_POINTER, str(error)


def serving_predictor(devices: Catalogue | None = None) -> ArtifactPredictor:
    """The model that serves, every family of it read and checked; read again only where its files have changed since.

    Raises:
        ArtifactError: it cannot be loaded.
    """
    directory = default_model_dir()
    try:
        files = tuple(sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in directory.iterdir()))
    except OSError:
        # Reading it says what is wrong with it.
        files = ()
    return _read(directory, files, devices or catalogue())


@lru_cache(maxsize=2)
def _read(directory: Path, files: tuple[tuple[str, int, int], ...], devices: Catalogue) -> ArtifactPredictor:  # noqa: ARG001
    """The predictor of a directory whose `files` are these; with others it is another."""
    predictor = load_predictor(directory, devices)
    predictor.load_all()
    return predictor
