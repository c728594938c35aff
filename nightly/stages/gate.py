"""Stage 7: each challenger beside the model that serves, on rows neither has learned from; at most one passes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...datasets.usage import read_usage_log
from ...models.artifact import ArtifactError
from ..context import Did, Night
from ..gate.challengers import Challenger
from ..gate.changes import prediction_changes, probes, unexplained
from ..gate.hold_out import Dealt, Evidence
from ..gate.judging import Verdict, chosen, judge
from ..gate.ledger import Ledger, recent_errors
from ..making import deal_rows, read_made
from ..outcome import serving_model, serving_version
from ..record import Finding
from ..regimes import ledgers
from ..reviewing import rules_of
from ..rows import Rows

_ASKED = 200
"""Kernels that users asked for most, whose answers are compared before and after."""


def gate(night: Night) -> Did:
    """Judge the challengers.

    Raises:
        ArtifactError: the serving model cannot be loaded.
        SpecError: the rows that judge cannot be read.
        StoreError: the store cannot be read.
    """
    names = [str(one["name"]) for one in night.facts("train").get("challengers", ())]
    challengers = [made for name in names if isinstance(made := read_made(night.folder, name), Challenger)]
    if not challengers:
        return Did("There is no challenger to judge.", status="skipped")
    champion, problem = serving_model()
    if problem is not None:
        return Did(f"Nothing was judged: the serving model cannot be loaded ({problem}).", status="skipped")
    evidence = _evidence(night)
    verdicts = _verdicts(night, champion, challengers, evidence)
    winner = chosen(verdicts)
    findings = [
        Finding("gate", "info", one.name, one.said, {"gain_pct": one.gain_pct}) for one in verdicts
    ]  # fmt: skip
    findings += _written_down(night, evidence)
    facts: dict[str, Any] = {
        "champion": serving_version(), "judged": _judged(evidence), "verdicts": [one.facts() for one in verdicts],
        "winner": winner.name if winner else None,
    }  # fmt: skip
    if winner is None:
        return Did(f"{_none_of(len(verdicts))} better beyond noise; what serves goes on serving.", facts,
                   tuple(findings))  # fmt: skip
    path = next(one.path for one in challengers if one.name == winner.name)
    asked = read_usage_log(night.usage_folder).asked
    most = sorted(asked, key=lambda spec: (-asked[spec], spec.case_id))[:_ASKED]
    moved = prediction_changes(champion, path, probes(champion, most, devices=night.devices), devices=night.devices)
    fresh = set(night.facts("collect").get("families", {}))
    findings += unexplained(moved, explained=fresh)
    return Did(f"{winner.name}: {winner.said}", {**facts, "changes": moved.facts()}, tuple(findings))


def _none_of(count: int) -> str:
    return "The one challenger is not" if count == 1 else f"None of {count} challengers is"


def _evidence(night: Night) -> tuple[Evidence, ...]:
    reader = Rows.of(night.store, night.plan, night.devices, ledgers(night.measurer.devices))
    return deal_rows(reader, night.record, list(night.measurer.devices), night.blocks()).evidence


def _verdicts(
    night: Night, champion: Path, challengers: Sequence[Challenger], evidence: Sequence[Evidence]
) -> list[Verdict]:
    found: list[Verdict] = []
    for step, one in enumerate(challengers):
        night.tell(f"judging {one.name}", step, len(challengers))
        try:
            found.append(
                judge(champion, one.path, evidence, name=one.name, rules=rules_of(night), devices=night.devices)
            )
        except ArtifactError as error:
            said = f"Refused: it cannot be loaded ({error})."
            found.append(Verdict(one.name, False, False, 0.0, said, (), (said,)))
    return found


def _judged(evidence: Sequence[Evidence]) -> dict[str, int]:
    return Dealt((), tuple(evidence)).judged()


def _written_down(night: Night, evidence: Sequence[Evidence]) -> list[Finding]:
    """How wrong the kept models are tonight, in the ledger: what past models are chosen by later."""
    ledger = Ledger()
    entries = sorted(ledger.entries(), key=lambda entry: entry.made_at(), reverse=True)[: night.plan.keep.models]
    for entry in entries:
        if any(one.night == night.record.id for one in entry.errors):
            continue
        if errors := recent_errors(entry, evidence, night.record.id, devices=night.devices):
            ledger.record_errors(entry.version, errors)
    if not ledger.damaged:
        return []
    said = f"{ledger.damaged} lines of {ledger.path} could not be read and were passed over. Keep a copy and look at the disk."
    return [Finding("storage", "warning", str(ledger.path), said, {"lines": ledger.damaged})]
