"""Every model that was kept: what it was made of, when it served, and how wrong it was since.

`KERNELCAST_HOME/nights/ledger.jsonl`, one JSON object a line, only ever appended to: `kept`, `promoted`, `rolled-back`,
`errors` and `pruned`. What a model is now follows from reading the lines in order. A line that a crash cut short is passed
over, told in `Ledger.damaged`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...features.device import Catalogue, catalogue
from ...features.errors import SpecError, listed
from ...home import home_dir
from ...models.artifact import ArtifactError, read_manifest
from ...models.metrics import ape_pct
from ...models.predictor import load_predictor
from ...models.registry import pin
from ...models.scoring import canonical
from ...models.tracking import manifest_sha256
from .challengers import Challenger
from .hold_out import Evidence

_EVENTS = ("kept", "promoted", "rolled-back", "errors", "pruned")
SHIPPED = "shipped"
"""The version of the model that serves where nothing was promoted."""


@dataclass(frozen=True, slots=True)
class RecentError:
    """Mean absolute percentage error of latency on `n` rows of one family and device in one night, in a software regime."""

    night: str
    device: str
    family: str
    regime: str
    n: int
    mean_ape_pct: float


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that was kept.

    `version` names it; `path` is its copy on disk. `night` is when it was made. `software` and `regime` hold by device what
    the rows it learned from were measured under; `first_row` and `last_row` are when they were measured (UTC, ISO 8601), None
    where nobody told. `previous` is the version that served before it did (`SHIPPED` for the shipped model), None where it
    never served. `registry` says that the version is a number of the model registry.
    """

    version: str
    path: str
    kind: str
    night: str
    sha256: str
    rows: int = 0
    families: tuple[str, ...] = ()
    software: Mapping[str, str] = field(default_factory=dict)
    regime: Mapping[str, str] = field(default_factory=dict)
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
    """The ledger in one file; `damaged` counts the lines that the last reading passed over."""

    def __init__(self, path: Path | None = None) -> None:
        """`path`: `KERNELCAST_HOME/nights/ledger.jsonl` unless another is given."""
        self.path = path or home_dir() / "nights" / "ledger.jsonl"
        self.damaged = 0

    def entries(self) -> list[ModelEntry]:
        """Every model that is still kept, in the order they were kept.

        Raises:
            SpecError: the file cannot be read.
        """
        found: dict[str, ModelEntry] = {}
        for line in self._lines():
            version = line["version"]
            if line["event"] == "kept":
                old = found.get(version)
                found[version] = replace(_entry(line), errors=old.errors if old else ())
            elif version in found:
                found[version] = _changed(found[version], line)
                if line["event"] == "pruned":
                    del found[version]
        return list(found.values())

    def served(self) -> list[tuple[str, str, str]]:
        """(when, what, version) of every promotion and rollback, oldest first; `what` is `promoted` or `rolled-back`."""
        return [(line["at"], line["event"], line["version"]) for line in self._lines() if line["event"] in _EVENTS[1:3]]

    def find(self, version: str) -> ModelEntry:
        """The kept model of this version.

        Raises:
            SpecError: it is not kept.
        """
        entries = self.entries()
        for entry in entries:
            if entry.version == version:
                return entry
        have = listed([entry.version for entry in entries]) or "none"
        raise SpecError(f"no model {version!r} is kept; kept: {have}", field="version")

    def keep(
        self,
        challenger: Challenger,
        night: str,
        *,
        version: str | None = None,
        path: Path | None = None,
        registry: bool = False,
        software: Mapping[str, str] | None = None,
        regime: Mapping[str, str] | None = None,
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
        same = next((one for one in self.entries() if (one.version, one.sha256) == (version, sha256)), None)
        if same is not None and Path(same.path) == path:
            return same
        entry = ModelEntry(version, str(path), challenger.kind, night, sha256, challenger.rows,
                           tuple(read_manifest(path)["families"]), dict(software or {}), dict(regime or {}), *measured,
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
        self._append({"event": "errors", "version": version, "errors": [asdict(one) for one in errors]})

    def prune(self, keep: int, protected: Iterable[str]) -> list[ModelEntry]:
        """Remove all but the `keep` newest models, the `protected` versions and the best of each regime; gives the removed.

        Only copies under `KERNELCAST_HOME/models` are deleted.
        """
        entries = self.entries()
        spared = set(protected) | best_of_regimes(entries)
        ordered = sorted(entries, key=lambda entry: entry.made_at())
        spared |= {entry.version for entry in ordered[len(ordered) - keep :]} if keep > 0 else set()
        gone = [entry for entry in entries if entry.version not in spared]
        models = (home_dir() / "models").resolve()
        for entry in gone:
            # Written first: a crash in between leaves a folder nobody names, not a name without its folder.
            self._append({"event": "pruned", "version": entry.version})
            if Path(entry.path).resolve().parent == models:
                shutil.rmtree(entry.path, ignore_errors=True)
        return gone

    def _append(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, ensure_ascii=False, allow_nan=False)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                size = os.fstat(handle).st_size
                # A line cut short by a crash must not swallow this one.
                torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
                os.write(handle, f"{chr(10) if torn else ''}{text}\n".encode())
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise SpecError(f"cannot write {self.path}: {error.strerror or error}; free space or make it writable",
                            field="ledger") from error  # fmt: skip

    def _lines(self) -> list[dict[str, Any]]:
        try:
            text = self.path.read_bytes().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SpecError(f"cannot read {self.path}: {error.strerror or error}", field="ledger") from error
        found, self.damaged = [], 0
        for line in filter(None, text.split("\n")):
            try:
                one = json.loads(line)
                _check(one)
            except (ValueError, KeyError, TypeError, AttributeError):
                self.damaged += 1
                continue
            found.append(one)
        return found


def recent_errors(
    entry: ModelEntry, evidence: Sequence[Evidence], night: str, *, devices: Catalogue | None = None
) -> list[RecentError]:
    """How wrong a kept model is on rows of this night; none for a model that can no longer be loaded or knows none of them."""
    known = devices or catalogue()
    try:
        predictor = load_predictor(Path(entry.path), known)
        found: list[RecentError] = []
        for one in evidence:
            if not len(one) or one.rows.cases.family.name not in predictor.families:
                continue
            rows = canonical(one.rows, known)
            errors = ape_pct(rows.latency_s, predictor.predict_cases(rows.cases).targets["latency_s"].value)
            for device in sorted(set(rows.cases.device.tolist())):
                here = rows.cases.device == device
                regime = str(one.regime[here][0])
                mean = round(float(errors[here].mean()), 4)
                found.append(RecentError(night, device, rows.cases.family.name, regime, int(here.sum()), mean))
    except ArtifactError:
        return []
    return found


def best_of_regimes(entries: Sequence[ModelEntry]) -> set[str]:
    """For every device and regime, the version with the smallest mean error there, else the newest that learned from it."""
    found: set[str] = set()
    regimes = {pair for entry in entries for pair in entry.regime.items()}
    for device, regime in regimes:
        own = [entry for entry in entries if entry.regime.get(device) == regime]
        judged = {entry.version: _mean_error(entry, device, regime) for entry in own}
        known = {version: error for version, error in judged.items() if error is not None}
        best = min(known, key=lambda version: known[version]) if known else max(own, key=ModelEntry.made_at).version
        found.add(best)
    return found


def _mean_error(entry: ModelEntry, device: str, regime: str) -> float | None:
    own = [one for one in entry.errors if (one.device, one.regime) == (device, regime)]
    rows = sum(one.n for one in own)
    return sum(one.n * one.mean_ape_pct for one in own) / rows if rows else None


def _check(line: Mapping[str, Any]) -> None:
    if line["event"] not in _EVENTS or not isinstance(line["version"], str):
        raise ValueError("no event of a ledger")
    if line["event"] == "kept":
        _entry(line)
    elif line["event"] == "errors":
        [RecentError(**one) for one in line["errors"]]
    elif line["event"] != "pruned" and not isinstance(line["at"], str):
        raise ValueError("no time")


def _entry(line: Mapping[str, Any]) -> ModelEntry:
    content = {name: value for name, value in line.items() if name != "event"}
    return ModelEntry(**content | {"families": tuple(content.get("families", ()))})


def _changed(entry: ModelEntry, line: Mapping[str, Any]) -> ModelEntry:
    if line["event"] == "promoted":
        return replace(entry, promoted_at=line["at"], previous=line["previous"], rolled_back=None)
    if line["event"] == "rolled-back":
        return replace(entry, rolled_back=line["at"])
    if line["event"] == "errors":
        return replace(entry, errors=(*entry.errors, *(RecentError(**one) for one in line["errors"])))
    return entry
