"""What a night did, as data: findings, stages, the whole record, and its JSON file that is replaced in one piece."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from ...features.errors import SpecError, listed
from ...files import write_whole

FORMAT_VERSION = 1
"""Version of the JSON that `NightRecord.write` writes."""

STAGES = ("characterise", "sentinels", "choose", "collect", "check", "train", "gate", "promote", "report")
"""The stages of a night, in order; a record always has all of them."""

FindingKind = Literal["device-drift", "data-drift", "model-drift", "software", "regime", "sensor", "storage", "registry",
                      "device", "rows", "gate", "rollback", "budget", "lock", "usage", "stage"]  # fmt: skip
"""What a finding is about. `regime` is of nights that earlier versions wrote."""

_JSON_NAMES = {"message": "said", "summary": "said"}
"""Fields whose name in the JSON is another."""

Level = Literal["info", "warning", "needs-person"]
StageStatus = Literal["done", "skipped", "failed", "not-reached"]
Outcome = Literal["promoted", "kept", "rolled-back", "failed", "interrupted", "running"]


class RecordError(SpecError):
    """A record that cannot be read: damaged, or of a version that this kernelcast does not know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a night reports.

    Attributes:
        kind: What it is about.
        level: Whether a person has to act.
        subject: The device, slice or file.
        message: Whole sentences: what was observed, what the night did, and what a person should do, if anything.
        numbers: The numbers behind it by name.
    """

    kind: FindingKind
    level: Level
    subject: str
    message: str
    numbers: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageRecord:
    """What one stage did.

    Attributes:
        name: One of `STAGES`.
        status: How it ended.
        began: When it began (UTC, ISO 8601); None where it was not reached.
        seconds: How long it took.
        summary: What it did, in a sentence; `said` in the JSON.
        facts: Plain JSON for readers and for later stages.
        findings: What it reports.
    """

    name: str
    status: StageStatus = "not-reached"
    began: str | None = None
    seconds: float = 0.0
    summary: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class NightRecord:
    """A night so far. Times are UTC (ISO 8601).

    Attributes:
        id: The night: when it began, and its plan.
        plan: Name of the plan.
        device: What is measured, several devices joined by `, `.
        outcome: How it ended, or that it runs.
        began: When it began.
        ended: When it ended; None while it runs.
        budget_s: Seconds of the whole night.
        champion_before: Version that served before; None where that could not be read.
        champion_after: Version that serves after it; None where that is not known.
        stages: All stages in order.
        format_version: Version of the JSON.
    """

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
        return replace(self, stages=tuple(stage if other.name == stage.name else other for other in self.stages))

    def to_json(self) -> str:
        """The record as JSON; numbers that are no numbers are null."""
        content = asdict(
            self, dict_factory=lambda fields: {_JSON_NAMES.get(name, name): value for name, value in fields}
        )
        return json.dumps(_plain(content), ensure_ascii=False, allow_nan=False, indent=1)

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
            for stage in content["stages"]:
                stage["summary"] = stage.pop("said")
                for finding in stage["findings"]:
                    finding["message"] = finding.pop("said")
            record = msgspec.convert(content, cls)
        except RecordError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RecordError(f"{source} is damaged or no record of a night: {error}") from error
        if tuple(stage.name for stage in record.stages) != STAGES:
            raise RecordError(f"{source} is no record of a night: its stages are not {listed(STAGES)}")
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
        """Replace the file in one piece: a reader sees the old record or this one, also after a crash.

        Raises:
            OSError: the folder is full or not writable; the file is as it was.
        """
        write_whole(path, self.to_json() + "\n")


def _plain(value: Any) -> Any:
    """What JSON can say of it: tuples as lists, numbers that are none as null."""
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
