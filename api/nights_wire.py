"""Nights as they are stored and answered: the report of one, and the line a list has for each.

`kernelcast nightly` writes `report.json` (`nightly/record.py`); the server imports nothing of it and reads it by these types.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeGuard

import msgspec
from msgspec import Meta

FORMAT_VERSION = 1
NIGHT_ID = re.compile(r"\d{8}T\d{6}Z-[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What a night is called: when it began, in UTC, and the name of its plan. Nothing else is looked for on disk."""

OUTCOMES = ("promoted", "kept", "rolled-back", "failed", "interrupted", "running")
LEVELS = ("info", "warning", "needs-person")
MAX_SAID = 10
"""Most findings that a line of the list repeats; the report has them all."""

_LAST_NIGHT = "last night"
"""What the gate calls the rows measured in the night itself."""

Outcome = Literal["promoted", "kept", "rolled-back", "failed", "interrupted", "running"]


class NightFinding(msgspec.Struct, frozen=True):
    """One thing that a night says."""

    kind: Annotated[str, Meta(description="What it is about, such as device-drift, model-drift, gate or storage")]
    level: Literal["info", "warning", "needs-person"]
    subject: Annotated[str, Meta(description="The device, slice or file")]
    said: Annotated[str, Meta(description="What was found, what was done, what a person should do, if anything")]
    numbers: dict[str, float | None] = {}


class NightStage(msgspec.Struct, frozen=True):
    """One stage of a night; `facts` differ by stage."""

    name: str
    status: Literal["done", "skipped", "failed", "not-reached"]
    began: str | None
    seconds: float
    said: str
    facts: dict[str, Any]
    findings: list[NightFinding]


class NightReport(msgspec.Struct, frozen=True):
    """What a night did, stage by stage; of one that still runs, what it did so far."""

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
        return next((one.facts for one in self.stages if one.name == stage), {})


class NightSummary(msgspec.Struct, frozen=True):
    """A night in a list. Where its file cannot be used, `problem` says why, and all that is told of it is its id."""

    id: str
    plan: str = ""
    device: str = ""
    outcome: Outcome | None = None
    began: str | None = None
    ended: str | None = None
    champion_before: str | None = None
    champion_after: str | None = None
    stage: Annotated[str, Meta(description="The last stage that was begun")] = ""
    rows: Annotated[dict[str, int], Meta(description="Rows measured, by their status")] = {}
    findings: Annotated[dict[str, int], Meta(description="Findings by level")] = {}
    needs_person: Annotated[list[str], Meta(description=f"What a person is asked for, at most {MAX_SAID}")] = []
    champion_error: Annotated[
        float | None,
        Meta(description="Mean error of the served model on the night's rows, as a share of what was measured"),
    ] = None
    has_page: Annotated[bool, Meta(description="Whether GET /nights/{id} has its report")] = False
    problem: str | None = None


class NightsAnswer(msgspec.Struct, frozen=True):
    """A page of nights, newest first; `total` counts all there are."""

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
        {level: sum(one.level == level for one in findings) for level in LEVELS},
        [one.said for one in findings if one.level == "needs-person"][:MAX_SAID], champion_error(report), has_page,
    )  # fmt: skip


def champion_error(report: NightReport) -> float | None:
    """What the model that served before the night was off by on the rows measured in it, on average, as a share.

    From the drift check; where that did not run, from what the gate judged on the same rows. A slice `all` goes first, else the
    slices' means are weighted by their rows.
    """
    slices: list[tuple[str, float, float]] = []
    drift = report.facts("check").get("model_drift")
    if isinstance(drift, Mapping):
        slices = [found for name, one in drift.items() if (found := _slice(name, one, "mean_ape_pct")) is not None]
    verdicts = report.facts("gate").get("verdicts")
    if not slices and isinstance(verdicts, list) and verdicts and isinstance(verdicts[0], Mapping):
        # The champion is the same in every verdict.
        judged = verdicts[0].get("slices")
        for one in judged if isinstance(judged, list) else ():
            if isinstance(one, Mapping) and str(one.get("rows")).replace("_", " ") == _LAST_NIGHT:
                name = str(one.get("slice"))
                found = _slice(name, one, "champion_mean_ape_pct")
                # Others are parts of these.
                is_whole = ", " not in name or name.endswith(f", origin {_LAST_NIGHT}")
                slices += [found] if found is not None and is_whole else []
    slices = [one for one in slices if one[0] == "all"] or slices
    total = sum(n for _, n, _ in slices)
    return sum(n * pct for _, n, pct in slices) / total / 100 if total else None


def _slice(name: str, one: Any, error: str) -> tuple[str, float, float] | None:
    if not isinstance(one, Mapping):
        return None
    n, pct = one.get("n"), one.get(error)
    return (name, float(n), float(pct)) if _is_number(n) and _is_number(pct) and n > 0 else None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _counts(found: Any) -> dict[str, int]:
    if not isinstance(found, Mapping):
        return {}
    return {str(name)[:40]: int(count) for name, count in list(found.items())[:20] if _is_number(count) and count >= 0}
