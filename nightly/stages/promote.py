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
from ..gate.model_ledger import Ledger
from ..gate.promotion import promote_challenger
from ..record.record import Finding
from ..record.serving_model import serving_model, serving_version
from ..rows import night_software, night_tables


def promote(night: Night) -> StageResult:
    """Promote the gate's winner, if there is one.

    Raises:
        ArtifactError: it cannot be loaded, pinned or pointed at; the model before keeps serving.
        SpecError: the ledger cannot be written; the model before serves.
    """
    winner = night.facts("gate").get("winner")
    if winner is None:
        return StageResult("There was nothing to promote.", {"version": None}, status="skipped")
    challenger = read_challenger(night.folder, str(winner))
    if not isinstance(challenger, Challenger):
        return StageResult(
            f"The challenger {winner} is missing from the night's folder.", {"version": None}, status="failed"
        )
    serving, problem = serving_model()
    if problem is not None:
        return StageResult(
            f"Nothing was promoted: the serving model cannot be loaded ({problem}).", {"version": None}, (), "failed"
        )
    with _registry(night.plan.registry):
        done = promote_challenger(
            challenger, night.record.id, registry=night.plan.registry is not None,
            probes=probes(serving, devices=night.devices),
            software=night_software(night.record, night.measurer.devices), measured=_span(night), devices=night.devices,
        )  # fmt: skip
    facts: dict[str, Any] = {**done.facts(), "name": challenger.name}
    # After a crash between the promotion and its being written down, the model before is no longer what serves.
    if done.version is not None and done.previous == done.version:
        facts["previous"] = night.record.champion_before
    if done.version is None:
        back = any(finding.kind == "rollback" for finding in done.findings)
        return StageResult(
            _sentence(done.summary), {**facts, "rolled_back": back}, done.findings, "failed" if back else "done"
        )
    return StageResult(_sentence(done.summary), facts, (*done.findings, *_pruned(night)))


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
    times = [
        time
        for table in night_tables(night, ("measured_at", "block")).values()
        for time in table["measured_at"].to_pylist()
    ]
    known = sorted(time for time in times if time)
    return (known[0], known[-1]) if known else (None, None)


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


def _sentence(text: str) -> str:
    sentence = text[:1].upper() + text[1:]
    return sentence if sentence.endswith(".") else f"{sentence}."
