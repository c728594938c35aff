"""The folder of nightly reports: the types of a report and of its line in the list, and reading them safely.

`kernelcast measure nightly` writes `report.json` (`nightly/record/record.py`); the server imports nothing of it, and reads it
by these types. No link is followed, nothing long is read, and a damaged file is reported as such.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeGuard

import msgspec

FORMAT_VERSION = 1
NIGHT_ID = re.compile(r"\d{8}T\d{6}Z-[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What a night is called: when it began, in UTC, and the name of its plan. Nothing else is looked for on disk."""

OUTCOMES = ("promoted", "kept", "rolled-back", "failed", "interrupted", "running")
LEVELS = ("info", "warning", "needs-person")
MAX_REPEATED = 10
"""Most findings that a line of the list repeats; the report has them all."""


Outcome = Literal["promoted", "kept", "rolled-back", "failed", "interrupted", "running"]


class NightFinding(msgspec.Struct, frozen=True):
    """One finding of a night.

    Attributes:
        kind: What it is about, such as device-drift, model-drift, gate or storage
        level: How urgent it is
        subject: The device, slice or file
        said: What was found, what was done, and what a person should do, if anything
        numbers: Numbers behind it, by name
    """

    kind: str
    level: Literal["info", "warning", "needs-person"]
    subject: str
    said: str
    numbers: dict[str, float | None] = {}


class NightStage(msgspec.Struct, frozen=True):
    """One stage of a night.

    Attributes:
        name: Name of the stage
        status: How far it got
        began: When it began, ISO 8601; null where it was not reached
        seconds: How long it took, seconds
        said: What it did, in a sentence
        facts: Its results; they differ by stage
        findings: What it found
    """

    name: str
    status: Literal["done", "skipped", "failed", "not-reached"]
    began: str | None
    seconds: float
    said: str
    facts: dict[str, Any]
    findings: list[NightFinding]


class NightReport(msgspec.Struct, frozen=True):
    """What a night did, stage by stage; of a night that is still running, what it did so far.

    Attributes:
        format_version: Version of the report's format
        id: The night's id: when it began, in UTC, and the name of its plan
        plan: Name of the plan it followed
        device: Catalogue name of the measured device
        outcome: How it ended; `running` while it runs
        began: When it began, ISO 8601
        ended: When it ended, ISO 8601; null while it runs
        budget_s: Time it was allowed, seconds
        champion_before: The model served before it
        champion_after: The model served after it
        stages: Its stages, in order
    """

    format_version: int
    id: str
    plan: str
    device: str
    outcome: Outcome
    began: str
    ended: str | None
    budget_s: float
    champion_before: str | None
    champion_after: str | None
    stages: list[NightStage]

    def findings(self) -> Iterator[NightFinding]:
        """The findings of all stages, in order."""
        for stage in self.stages:
            yield from stage.findings

    def facts(self, stage: str) -> Mapping[str, Any]:
        """The facts of a stage; none where the night did not get there."""
        return next((entry.facts for entry in self.stages if entry.name == stage), {})


class NightSummary(msgspec.Struct, frozen=True):
    """A night in a list. Where its report cannot be used, only `id` and `problem` are set.

    Attributes:
        id: The night's id
        plan: Name of the plan it followed
        device: Catalogue name of the measured device
        outcome: How it ended; `running` while it runs
        began: When it began, ISO 8601
        ended: When it ended, ISO 8601; null while it runs
        champion_before: The model served before it
        champion_after: The model served after it
        stage: The last stage that was begun
        rows: Number of rows measured, by their status
        findings: Number of findings, by level
        needs_person: What a person has to do, at most 10 entries
        champion_error: Mean error of the served model on the night's rows, as a share of the measured value
        has_page: Whether GET /nights/{id} has its report
        problem: Why the report cannot be used; null where it can
    """

    id: str
    plan: str = ""
    device: str = ""
    outcome: Outcome | None = None
    began: str | None = None
    ended: str | None = None
    champion_before: str | None = None
    champion_after: str | None = None
    stage: str = ""
    rows: dict[str, int] = {}
    findings: dict[str, int] = {}
    needs_person: list[str] = []
    champion_error: float | None = None
    has_page: bool = False
    problem: str | None = None


class NightsAnswer(msgspec.Struct, frozen=True):
    """A page of nights, newest first.

    Attributes:
        total: Number of all nights
        offset: Position of the first one on this page
        nights: The nights of this page
    """

    total: int
    offset: int
    nights: list[NightSummary]


def summary_of(report: NightReport, *, has_page: bool) -> NightSummary:
    """A night's line in the list."""
    findings = list(report.findings())
    begun = [stage.name for stage in report.stages if stage.status != "not-reached" or stage.began is not None]
    return NightSummary(
        report.id, report.plan, report.device, report.outcome, report.began, report.ended, report.champion_before,
        report.champion_after, begun[-1] if begun else "", _counts(report.facts("collect").get("rows")),
        {level: sum(finding.level == level for finding in findings) for level in LEVELS},
        [finding.said for finding in findings if finding.level == "needs-person"][:MAX_REPEATED], champion_error(report),
        has_page,
    )  # fmt: skip


def champion_error(report: NightReport) -> float | None:
    """The mean error, as a share, of the model that served before the night on the rows measured in it, by the drift check.

    The slice `all` goes first, else the slices' means are weighted by their rows.
    """
    drift = report.facts("check").get("model_drift")
    slices: dict[str, tuple[float, float]] = {}
    for name, judgement in drift.items() if isinstance(drift, Mapping) else ():
        n, pct = (
            (judgement.get(key) for key in ("n", "mean_ape_pct")) if isinstance(judgement, Mapping) else (None, None)
        )
        if _is_number(n) and _is_number(pct) and n > 0:
            slices[name] = (n, pct)
    judged = [slices["all"]] if "all" in slices else list(slices.values())
    total = sum(n for n, _ in judged)
    return sum(n * pct for n, pct in judged) / total / 100 if total else None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _counts(counts: Any) -> dict[str, int]:
    if not isinstance(counts, Mapping):
        return {}
    return {str(name)[:40]: int(count) for name, count in list(counts.items())[:20] if _is_number(count) and count >= 0}


REPORT, STATE, PAGE = "report.json", "state.json", "report.html"
MAX_REPORT_B = 8 << 20
MAX_PAGE_B = 16 << 20
_MAX_CACHED = 512
"""Lines of the list that are kept for as long as their files stay as they are."""

_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_decoder = msgspec.json.Decoder(NightReport).decode

Stamp = tuple[int, int, int]


class NightError(Exception):
    """A night that cannot be told of; `status` is the HTTP status that says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NightsFolder:
    """The nights in `folder`; a folder that is not there holds none. Safe for threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._summary = lru_cache(_MAX_CACHED)(self._new_summary)

    def ids(self) -> list[str]:
        """The nights, newest first.

        Raises:
            NightError: 500, the folder cannot be read.
        """
        try:
            with os.scandir(self._folder) as entries:
                names = [entry.name for entry in entries if NIGHT_ID.fullmatch(entry.name) and not entry.is_file()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise NightError(500, f"the folder of nights cannot be read: {error.strerror or error}") from error
        return sorted(names, reverse=True)

    def report(self, night: str) -> tuple[bytes, NightReport]:
        """A night's report as it is stored, checked; of a night that still runs, its state so far.

        Raises:
            NightError: 404, there is no such night; 500, its file cannot be used.
        """
        self._check_place(night)
        content = self._read(night, REPORT, MAX_REPORT_B)
        if content is None or self._is_older(night, REPORT, STATE):
            state = self._read(night, STATE, MAX_REPORT_B)
            if state is not None:
                report = _decode_report(state, night, STATE)
                # A night that was interrupted has a report, and is gone on with.
                if content is None or report.outcome == "running":
                    return state, report
        if content is None:
            raise NightError(404, f"the night {night} has no {REPORT} and no {STATE} (yet)")
        return content, _decode_report(content, night, REPORT)

    def page(self, night: str) -> str:
        """A night's report as HTML.

        Raises:
            NightError: 404, there is no such night or it has no page; 500, the page cannot be used.
        """
        self._check_place(night)
        content = self._read(night, PAGE, MAX_PAGE_B)
        if content is None:
            raise NightError(404, f"the night {night} has no {PAGE} (yet); GET /v1/nights/{night} reports its progress")
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise NightError(500, f"{PAGE} of the night {night} is not UTF-8") from error

    def summary(self, night: str) -> NightSummary:
        """A night's line in the list; one that cannot be read says why."""
        return self._summary(night, tuple(self._stamp(night, name) for name in (REPORT, STATE, PAGE)))

    def _new_summary(self, night: str, stamps: tuple[Stamp | None, ...]) -> NightSummary:
        try:
            return summary_of(self.report(night)[1], has_page=stamps[2] is not None)
        except NightError as error:
            return NightSummary(night, problem=str(error))

    def _check_place(self, night: str) -> None:
        if NIGHT_ID.fullmatch(night) is None:
            shown = night if len(night) <= 60 else f"{night[:60]}…"
            raise NightError(
                404,
                f"no night is called {shown!r}; names look like 20261122T220000Z-rack, and GET /v1/nights lists them",
            )
        try:
            status = os.lstat(self._folder / night)
        except FileNotFoundError as error:
            raise NightError(404, f"there is no night {night}; GET /v1/nights lists all nights") from error
        except OSError as error:
            raise _unreadable(night, "", error) from error
        if not stat.S_ISDIR(status.st_mode):
            raise NightError(500, f"{night} is not a folder, and links are not followed")

    def _read(self, night: str, name: str, most_b: int) -> bytes | None:
        """A file of the night, None where there is none."""
        try:
            handle = os.open(self._folder / night / name, os.O_RDONLY | _NO_LINK)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NightError(500, f"{name} of the night {night} is a link, which is not followed") from error
            raise _unreadable(night, name, error) from error
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise NightError(500, f"{name} of the night {night} is no file")
            with os.fdopen(handle, "rb", closefd=False) as file:
                content = file.read(most_b + 1)
        except OSError as error:
            raise _unreadable(night, name, error) from error
        finally:
            os.close(handle)
        if len(content) > most_b:
            raise NightError(500, f"{name} of the night {night} is longer than {most_b >> 20} MiB and is not read")
        return content

    def _is_older(self, night: str, name: str, other: str) -> bool:
        first, second = self._stamp(night, name), self._stamp(night, other)
        return first is not None and second is not None and first[0] < second[0]

    def _stamp(self, night: str, name: str) -> Stamp | None:
        """What changes when the file does; None where there is no file."""
        try:
            status = os.lstat(self._folder / night / name)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def _decode_report(content: bytes, night: str, name: str) -> NightReport:
    try:
        decoded = _decoder(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NightError(500, f"{name} of the night {night} is damaged or no report of a night: {error}") from error
    if decoded.format_version != FORMAT_VERSION:
        raise NightError(
            500,
            f"{name} of the night {night} has format version {decoded.format_version}; this kernelcast reads {FORMAT_VERSION}",
        )
    if decoded.id != night:
        raise NightError(500, f"{name} of the night {night} is of another night, {decoded.id[:120]!r}")
    return decoded


def _unreadable(night: str, name: str, error: OSError) -> NightError:
    which = f"{name} of the night {night}" if name else f"the night {night}"
    return NightError(500, f"{which} cannot be read: {error.strerror or type(error).__name__}")
