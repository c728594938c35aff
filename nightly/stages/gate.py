"""Stage 7: each challenger beside the model that serves, on rows neither has learned from; at most one passes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...datasets.records.usage_log import read_usage_log
from ...models.family_model.artifact_files import ArtifactError
from ..challenger_process import read_challenger
from ..checks.model_check import gate_rules
from ..context import Night, StageResult
from ..gate.answer_changes import prediction_changes, probes, unexplained
from ..gate.challengers import Challenger
from ..gate.hold_out import Evidence, judging_rows
from ..gate.judge import Verdict, chosen, judge
from ..gate.model_ledger import Ledger, recent_errors, serving_model, serving_version
from ..record.record import Finding
from ..rows import TrainingRows, night_split

_MOST_REQUESTED = 200
"""Kernels that users asked for most, whose answers are compared before and after."""


def gate(night: Night) -> StageResult:
    """Judge the challengers.

    Raises:
        ArtifactError: the serving model cannot be loaded.
        SpecError: the rows that judge cannot be read.
        StoreError: the store cannot be read.
    """
    names = [str(entry["name"]) for entry in night.facts("train").get("challengers", ())]
    challengers = [
        challenger for name in names if isinstance(challenger := read_challenger(night.folder, name), Challenger)
    ]
    if not challengers:
        return StageResult("There is no challenger to judge.", status="skipped")
    champion, problem = serving_model()
    if problem is not None:
        return StageResult(f"Nothing was judged: the serving model cannot be loaded ({problem}).", status="skipped")
    rows = TrainingRows.of_night(night)
    evidence = night_split(rows, night.record.id, night.measurer.devices, night.blocks()).evidence
    verdicts = _verdicts(night, champion, challengers, evidence)
    winner = chosen(verdicts)
    findings = [
        Finding("gate", "info", verdict.name, verdict.summary, {"gain_pct": verdict.gain_pct}) for verdict in verdicts
    ]  # fmt: skip
    findings += _record_errors(night, evidence)
    facts: dict[str, Any] = {
        "champion": serving_version(), "judged": judging_rows(evidence), "verdicts": [verdict.facts() for verdict in verdicts],
        "winner": winner.name if winner else None,
    }  # fmt: skip
    if winner is None:
        return StageResult(f"{_none_of(len(verdicts))} better beyond noise; the serving model is kept.", facts,
                   tuple(findings))  # fmt: skip
    path = next(challenger.path for challenger in challengers if challenger.name == winner.name)
    counts = read_usage_log(night.usage_folder).total
    most = sorted(counts, key=lambda spec: (-counts[spec], spec.case_id))[:_MOST_REQUESTED]
    moved = prediction_changes(champion, path, probes(champion, most, devices=night.devices), devices=night.devices)
    fresh = set(night.facts("collect").get("families", {}))
    findings += unexplained(moved, explained=fresh)
    return StageResult(f"{winner.name}: {winner.summary}", {**facts, "changes": asdict(moved)}, tuple(findings))


def _none_of(count: int) -> str:
    return "The one challenger is not" if count == 1 else f"None of {count} challengers is"


def _verdicts(
    night: Night, champion: Path, challengers: Sequence[Challenger], evidence: Sequence[Evidence]
) -> list[Verdict]:
    verdicts, rules = [], gate_rules(night)
    for step, challenger in enumerate(challengers):
        night.progress(f"judging {challenger.name}", step, len(challengers))
        try:
            verdict = judge(
                champion, challenger.path, evidence, name=challenger.name, rules=rules, devices=night.devices
            )
        except ArtifactError as error:
            reason = f"Refused: it cannot be loaded ({error})."
            verdict = Verdict(challenger.name, False, False, 0.0, reason, (), (reason,))
        verdicts.append(verdict)
    return verdicts


def _record_errors(night: Night, evidence: Sequence[Evidence]) -> list[Finding]:
    """Write how wrong the kept models are tonight into the ledger, which later nights choose past models by."""
    ledger = Ledger()
    entries = sorted(ledger.entries(), key=lambda entry: entry.made_at(), reverse=True)[: night.plan.keep.models]
    for entry in entries:
        if any(error.night == night.record.id for error in entry.errors):
            continue
        if errors := recent_errors(entry, evidence, night.record.id, devices=night.devices):
            ledger.record_errors(entry.version, errors)
    if not ledger.damaged:
        return []
    message = (
        f"{ledger.damaged} lines of {ledger.path} could not be read and were skipped. Keep a copy and check the disk."
    )
    return [Finding("storage", "warning", str(ledger.path), message, {"lines": ledger.damaged})]
