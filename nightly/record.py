"""What a night did, as data: findings, stages, the whole record, and its JSON file that is replaced in one piece."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ..features.errors import SpecError, listed

FORMAT_VERSION = 1
"""Version of the JSON that `NightRecord.write` writes."""

STAGES = ("characterise", "sentinels", "choose", "collect", "check", "train", "gate", "promote", "report")
"""The stages of a night, in order; a record always has all of them."""

Level = Literal["info", "warning", "needs-person"]
StageStatus = Literal["done", "skipped", "failed", "not-reached"]
Outcome = Literal["promoted", "kept", "rolled-back", "failed", "interrupted", "running"]


class RecordError(SpecError):
    """A record that cannot be read: damaged, or of a version that this kernelcast does not know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a night says.

    `kind` is what it is about (`device-drift`, `data-drift`, `model-drift`, `regime`, `sensor`, `storage`, `registry`,
    `device`, `rows`, `gate`, `rollback`, `budget`, `lock`, `usage`, `stage`); `subject` the device, slice or file; `said`
    whole sentences: what was found, what was done about it, and what a person should do, if anything.
    """

    kind: str
    level: Level
    subject: str
    said: str
    numbers: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageRecord:
    """What became of one stage: `said` in a sentence, `facts` as plain JSON, `began` in UTC (ISO 8601)."""

    name: str
    status: StageStatus = "not-reached"
    began: str | None = None
    seconds: float = 0.0
    said: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class NightRecord:
    """A night so far. `device` names what is measured, several joined by `, `; times are UTC (ISO 8601)."""

    id: str
    plan: str
    device: str
    outcome: Outcome
    began: str
    ended: str | None
    budget_s: float
    champion_before: str | None
    champion_after: str | None
    stages: tuple[StageRecord, ...] = tuple(map(StageRecord, STAGES))
    format_version: int = FORMAT_VERSION

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all stages, in order."""
        return tuple(finding for stage in self.stages for finding in stage.findings)

    def stage(self, name: str) -> StageRecord:
        """The record of the stage called `name`, one of `STAGES`."""
        return self.stages[STAGES.index(name)]

    def with_stage(self, stage: StageRecord) -> NightRecord:
        """The record with `stage` in its place."""
        return replace(self, stages=tuple(stage if one.name == stage.name else one for one in self.stages))

    def to_json(self) -> str:
        """The record as JSON; numbers that are no numbers are null."""
        return json.dumps(_plain(asdict(self)), ensure_ascii=False, allow_nan=False, indent=1)

    @classmethod
    def from_json(cls, text: str, source: str = "the record") -> NightRecord:
        """The record that `to_json` wrote; `source` names it in errors.

        Raises:
            RecordError: damaged, or of another version.
        """
        try:
            content = json.loads(text)
            if content["format_version"] != FORMAT_VERSION:
                raise RecordError(
                    f"{source} has format version {content['format_version']!r}; this kernelcast reads {FORMAT_VERSION}"
                )
            stages = tuple(_stage(one) for one in content.pop("stages"))
            if tuple(stage.name for stage in stages) != STAGES:
                raise ValueError(f"its stages are not {listed(STAGES)}")
            record = cls(**content, stages=stages)
            _check(record)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, RecordError):
                raise
            raise RecordError(f"{source} is damaged or no record of a night: {error}") from error
        return record

    @classmethod
    def read(cls, path: Path) -> NightRecord:
        """The record in a file.

        Raises:
            RecordError: it cannot be read, is damaged, or of another version.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecordError(f"{path} cannot be read: {error}") from error
        return cls.from_json(text, str(path))

    def write(self, path: Path) -> None:
        """Replace the file in one piece: a reader, and whoever comes after a crash, sees the old record or this one.

        Raises:
            OSError: the folder is full or not writable; the file is as it was.
        """
        write_whole(path, self.to_json() + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a text file beside its place, flush it to disk, and rename it into its place.

    Raises:
        OSError: the folder is full or not writable; what was there before is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _stage(content: Mapping[str, Any]) -> StageRecord:
    findings = tuple(Finding(**one) for one in content["findings"])
    return StageRecord(**{**content, "findings": findings})


def _check(record: NightRecord) -> None:
    """Raises ValueError: a field is not of its type."""
    texts: list[object] = [record.id, record.plan, record.device, record.began]
    texts += [text for finding in record.findings for text in (finding.kind, finding.subject, finding.said)]
    texts += [stage.said for stage in record.stages]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a text is missing")
    if record.outcome not in get_args(Outcome):
        raise ValueError(f"its outcome is {record.outcome!r}; outcomes are: {listed(get_args(Outcome))}")
    for stage in record.stages:
        if stage.status not in get_args(StageStatus) or not isinstance(stage.facts, dict):
            raise ValueError(f"its stage {stage.name} has status {stage.status!r} or no facts")
        if any(one.level not in get_args(Level) or not isinstance(one.numbers, dict) for one in stage.findings):
            raise ValueError(f"a finding of its stage {stage.name} has no level or no numbers")
    if not all(isinstance(seconds, int | float) for seconds in (record.budget_s, *(s.seconds for s in record.stages))):
        raise ValueError("a number of seconds is missing")


def _plain(value: Any) -> Any:
    """What JSON can say of it: tuples as lists, numbers that are none as null."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
