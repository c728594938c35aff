"""Stage 7: each challenger beside the model that serves, by all nights since that was promoted; at most one passes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from ...datasets.records.usage_log import read_usage_log
from ...models.family_model.artifact_files import ArtifactError
from ...models.training.labelled_cases import LabelledCases, joined_by_family
from ..challenger_process import read_challenger, write_challenger
from ..checks.model_check import gate_rules
from ..context import Night, StageResult
from ..gate.answer_changes import prediction_changes, probes, unexplained
from ..gate.challengers import Challenger, night_scores, refit_growth, with_champions_families
from ..gate.evidence import Evidence, ShapeScore
from ..gate.judge import Verdict, chosen, judge, refusals
from ..gate.model_ledger import Ledger, RecentError, serving_model, serving_version
from ..record.folders import CHALLENGERS, nights_dir, records
from ..record.record import Finding
from ..rows import TrainingRows, in_blocks
from .train import challenger_count

_MOST_REQUESTED = 200
"""Kernels that users asked for most, whose answers are compared before and after."""


def gate(night: Night, decide: Callable[[Verdict], Verdict] | None = None) -> StageResult:
    """Judge the challengers.

    Args:
        night: the night.
        decide: a further rule: the verdict that counts, from that of the bets.

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
    blocks, devices = night.blocks(), night.measurer.devices
    earlier, tonight = rows.read(devices, ~in_blocks(blocks)), rows.read(devices, in_blocks(blocks))
    if night.facts("train").get("champion") != serving_version():
        return StageResult(
            "Nothing was judged: another model serves than when the challengers were made; the next night makes new ones.",
            status="skipped",
        )
    before = _evidence_before(night)
    verdicts = _verdicts(night, champion, challengers, earlier, tonight, before)
    if decide is not None:
        verdicts = [decide(verdict) for verdict in verdicts]
    winner = chosen(verdicts)
    findings = [
        Finding("gate", "info", verdict.name, verdict.summary, {"gain_pct": verdict.gain_pct}) for verdict in verdicts
    ]  # fmt: skip
    findings += _record_errors(night, challengers)
    shapes = max((len(challenger.scores) for challenger in challengers), default=0)
    facts: dict[str, Any] = {
        "champion": serving_version(), "devices": list(devices), "judged": {"shapes": shapes},
        "verdicts": [verdict.facts() for verdict in verdicts], "winner": winner.name if winner else None,
        # Also of challengers that were not made tonight: a later night goes on from it.
        "evidence": {name: asdict(each) for name, each in (before | {each.name: each.evidence for each in verdicts}).items()},
    }  # fmt: skip
    if winner is None:
        return StageResult(f"{_none_of(len(verdicts))} better beyond noise; the serving model is kept.", facts,
                   tuple(findings))  # fmt: skip
    won = next(challenger for challenger in challengers if challenger.name == winner.name)
    if winner.keep:
        out = night.folder / CHALLENGERS / f"{won.name}-composed"
        with_champions_families(won.path, champion, winner.keep, out, night.devices)
        won = replace(won, path=out, families=tuple(name for name in won.families if name not in winner.keep))
        write_challenger(night.folder, won.name, won)
    counts = read_usage_log(night.usage_folder).total
    most = sorted(counts, key=lambda spec: (-counts[spec], spec.case_id))[:_MOST_REQUESTED]
    here = [rows.cases.with_catalogue_names(night.devices) for rows in joined_by_family([*earlier, *tonight])]
    elsewhere = probes(champion, most, devices=night.devices)
    changes = [prediction_changes(champion, won.path, cases, devices=night.devices) for cases in (here, elsewhere)]
    # What changes on tonight's devices tonight's rows explain; nothing explains a change of the others' answers.
    fresh = set(night.facts("collect").get("families", {}))
    findings += [*unexplained(changes[0], explained=fresh), *unexplained(changes[1])]
    facts |= {"changes": asdict(changes[0]), "changes_elsewhere": asdict(changes[1])}
    return StageResult(f"{winner.name}: {winner.summary}", facts, tuple(findings))


def _none_of(count: int) -> str:
    return "The one challenger is not" if count == 1 else f"None of {count} challengers is"


def _verdicts(
    night: Night, champion: Path, challengers: Sequence[Challenger], earlier: Sequence[LabelledCases],
    tonight: Sequence[LabelledCases], before: Mapping[str, Evidence],
) -> list[Verdict]:  # fmt: skip
    verdicts, rules, count = [], gate_rules(night), max(challenger_count(night.plan), len(challengers))
    for step, challenger in enumerate(challengers):
        night.progress(f"judging {challenger.name}", step, len(challengers))
        evidence = before.get(challenger.name, Evidence())
        try:
            scores = challenger.scores
            if challenger.kind == "past":
                scores = tuple(night_scores(champion, challenger.path, earlier, tonight, night.devices))
            why = list(refusals(champion, challenger.path, tonight, rules, night.devices))
            # The model before was made by the same rule of fewer rows: that is no refit.
            refit = refit_growth(champion, challenger.path) if challenger.kind == "adapted" else 0.0
            verdicts.append(judge(challenger.name, scores, evidence, why, rules, count, refit=refit))
        except ArtifactError as error:
            reason = f"Refused: it cannot be loaded ({error})."
            verdicts.append(Verdict(challenger.name, False, False, 0.0, reason, reasons=(reason,),
                                    evidence=evidence))  # fmt: skip
    return verdicts


def _evidence_before(night: Night) -> dict[str, Evidence]:
    """What earlier nights of the plan gathered for challengers of the champion that serves, by name."""
    serving = serving_version()
    for folder, record in records(nights_dir(), night.plan.name):
        facts = record.stage("gate").facts
        if folder.name >= night.folder.name or facts.get("devices") != list(night.measurer.devices):
            continue
        if facts.get("champion") != serving or record.champion_after != serving:
            break
        with contextlib.suppress(msgspec.ValidationError, KeyError):
            return msgspec.convert(facts["evidence"], dict[str, Evidence])
    return {}


def _record_errors(night: Night, challengers: Sequence[Challenger]) -> list[Finding]:
    """Write how wrong the serving model is tonight into the ledger, for `kernelcast serve models history`."""
    ledger, serving = Ledger(), serving_version()
    scores = max((challenger.scores for challenger in challengers), key=len, default=())
    entry = ledger.get(serving)
    if entry is not None and not any(error.night == night.record.id for error in entry.errors):
        parts: dict[tuple[str, str], list[ShapeScore]] = {}
        for score in scores:
            parts.setdefault((score.device, score.family), []).append(score)
        errors = []
        for (device, family), judged in parts.items():
            n = sum(score.rows for score in judged)
            errors.append(RecentError(night.record.id, device, family, n,
                                      round(sum(score.rows * score.champion_pct for score in judged) / n, 4)))  # fmt: skip
        if errors:
            ledger.record_errors(entry.version, errors)
    if not ledger.damaged:
        return []
    message = (
        f"{ledger.damaged} lines of {ledger.path} could not be read and were skipped. Keep a copy and check the disk."
    )
    return [Finding("storage", "warning", str(ledger.path), message, {"lines": ledger.damaged})]
