"""Stage 8: promote the accepted challenger, verify that it serves, and prune old models."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from ...models.registry.mlflow_tracking import URI_ENV
from ..challenger_process import read_challenger
from ..context import Night, StageResult
from ..gate.answer_changes import probes
from ..gate.challengers import Challenger
from ..gate.model_ledger import Ledger, serving_model, serving_version
from ..gate.promotion import promote_challenger, taken_back
from ..record.record import Finding
from ..rows import night_software, night_tables


def promote(night: Night) -> StageResult:
    """Promote the gate's winner, if there is one.

    Raises:
        ArtifactError: it cannot be loaded, pinned or pointed at; the model before keeps serving.
        SpecError: the ledger cannot be written; the model before serves.
    """
    winner, nothing = night.facts("gate").get("winner"), {"version": None}
    facts: dict[str, Any]
    if winner is None:
        return StageResult("There was nothing to promote.", nothing, status="skipped")
    challenger = read_challenger(night.folder, str(winner))
    if not isinstance(challenger, Challenger):
        return StageResult(f"The challenger {winner} is missing from the night's folder.", nothing, status="failed")
    serving, problem = serving_model()
    if problem is not None:
        summary = f"Nothing was promoted: the serving model cannot be loaded ({problem})."
        return StageResult(summary, nothing, status="failed")
    ledger = Ledger()
    entry = ledger.get(serving_version())
    verdict = next(each for each in night.facts("gate")["verdicts"] if each["name"] == challenger.name)
    # With families of the champion it is no model that served before, but a new one.
    is_before = challenger.kind == "past" and entry is not None and challenger.name == f"past-{entry.previous}"
    if is_before and not verdict["keep"]:
        with _registry(night.plan.registry):
            back = taken_back(
                f"on rows measured since, beside {challenger.name.removeprefix('past-')}: {verdict['summary']}"
            )
        facts = {**nothing, "rolled_back": True, "previous": back.previous, "name": challenger.name}
        return StageResult(f"{back.summary}.", facts, back.findings)
    with _registry(night.plan.registry):
        done = promote_challenger(
            challenger, night.record.id, registry=night.plan.registry is not None,
            probes=probes(serving, devices=night.devices),
            software=night_software(night.record, night.measurer.devices), measured=_span(night), devices=night.devices,
        )  # fmt: skip
    facts = {**done.facts(), "name": challenger.name}
    # After a crash between the promotion and its being written down, the model before is no longer what serves.
    if done.version is not None and done.previous == done.version:
        facts["previous"] = night.record.champion_before
    summary = f"{done.summary[:1].upper()}{done.summary[1:].rstrip('.')}."
    if done.version is None:
        facts["rolled_back"] = any(finding.kind == "rollback" for finding in done.findings)
        return StageResult(summary, facts, done.findings, "failed" if facts["rolled_back"] else "done")
    return StageResult(summary, facts, (*done.findings, *_pruned(night)))


@contextlib.contextmanager
def _registry(uri: str | None) -> Iterator[None]:
    """The plan's registry, for what reads its address from the environment."""
    before = os.environ.get(URI_ENV)
    if uri is not None:
        os.environ[URI_ENV] = uri
    try:
        yield
    finally:
        if uri is not None:
            os.environ.pop(URI_ENV)
            if before is not None:
                os.environ[URI_ENV] = before


def _span(night: Night) -> tuple[str | None, str | None]:
    """When the first and the last of tonight's rows were measured; None where rows do not say."""
    tables = night_tables(night, ("measured_at", "block")).values()
    known = [time for table in tables for time in table["measured_at"].to_pylist() if time]
    return min(known, default=None), max(known, default=None)


def _pruned(night: Night) -> list[Finding]:
    """Remove models beyond those the plan keeps, but for the one that serves and the one before it."""
    ledger = Ledger()
    entries = {entry.version: entry for entry in ledger.entries()}
    serving = serving_version() or ""
    before = entries[serving].previous if serving in entries else None
    removed = ledger.prune(night.plan.keep.models, {serving, before or ""})
    if not removed:
        return []
    named = ", ".join(entry.version for entry in removed[:5])
    return [Finding("storage", "info", str(ledger.path), f"{len(removed)} old models were removed: {named}.")]
