"""The serving model on tonight's rows: whether its intervals still hold, and whether it is worse than the model before it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...features.batch.cases import Strings
from ...models.family_model.artifact_files import ArtifactError
from ...models.training.labelled_cases import LabelledCases
from ..context import Night, chosen_in
from ..gate.hold_out import unseen
from ..gate.judge import Rules
from ..gate.promotion import has_predecessor, review
from ..record.folders import blocks_of, nights_dir, records
from ..record.record import Finding
from ..record.serving_model import serving_predictor
from ..rows import TrainingRows, in_blocks, night_tables
from .model_drift import JUDGED, fresh_rows, model_drift

_NIGHTS = 14
"""Nights since the model began to serve whose rows judge its intervals."""


def check_intervals(
    night: Night, fresh: Mapping[str, pa.Table], reader: TrainingRows
) -> tuple[dict[str, Any], list[Finding]]:
    """Whether the serving model's intervals hold on rows measured since it was made; `fresh` are tonight's rows by family.

    Raises:
        StoreError: the store cannot be read.
        SpecError: what a night chose cannot be read.
    """
    try:
        predictor = serving_predictor(night.devices)
    except ArtifactError:
        return {}, []  # the stage `choose` has reported it
    folders = _since_promotion(night)
    earlier = night_tables(night, blocks=[block for folder in folders[:-1] for block in blocks_of(folder)])
    tables: list[LabelledCases] = []
    nights: list[Strings] = []
    for folder in folders:
        stored = fresh if folder == night.folder else earlier
        ids = [case.spec.case_id for case in chosen_in(folder) if case.why in JUDGED]
        where = in_blocks(blocks_of(folder)) & pc.field("case_id").isin(pa.array(ids, pa.string()))
        for table in reader.labelled({name: rows.filter(where) for name, rows in stored.items()}):
            if table.cases.family.name in predictor.families:
                tables.append(table)
                nights.append(np.full(len(table), folder.name))
    if not tables:
        return {"model_drift": {}}, []
    held_out = {
        name: float(entry["metrics"]["held_out"]["latency"]["mean_ape_pct"])
        for name, entry in predictor.manifest["families"].items()
        if entry.get("metrics", {}).get("held_out", {}).get("latency")
    }
    findings, facts = model_drift(fresh_rows(predictor, tables, nights), held_out)
    return {"model_drift": facts}, findings


def _since_promotion(night: Night) -> list[Path]:
    """Folders of the nights that the serving model has not learned from: this one, and those before it back to the
    promotion, oldest first.
    """
    folders = [night.folder]
    for folder, record in records(nights_dir()):
        if folder.name >= night.folder.name:
            continue
        if record.outcome in ("promoted", "rolled-back") or len(folders) >= _NIGHTS:
            break
        folders.append(folder)
    return sorted(folders)


def review_champion(
    night: Night, fresh: Mapping[str, pa.Table], reader: TrainingRows
) -> tuple[dict[str, Any], list[Finding]]:
    """The serving model beside its predecessor on rows neither has seen; a promotion that turns out worse is taken back.

    Raises:
        StoreError: the store cannot be read.
        SpecError: the ledger of models cannot be read or written.
    """
    try:
        if not has_predecessor():
            # There is nothing to compare it with, so no row of an earlier night is read.
            return {}, []
        earlier = reader.read(night.measurer.devices, ~in_blocks(night.blocks()))
        evidence = unseen(earlier, reader.labelled(fresh), share=night.plan.gate.hold_out)
        verdict, back = review(evidence, rules=gate_rules(night), devices=night.devices)
    except ArtifactError as error:
        return {}, [Finding("registry", "needs-person", "champion", f"The serving model cannot be reviewed: {error}")]
    facts: dict[str, Any] = {} if verdict is None else {"review": {"passed": verdict.passed, "said": verdict.summary}}
    if back is None or back.version is None:
        return facts, []
    return {**facts, "rolled_back": {"from": back.previous, "to": back.version}}, list(back.findings)


def gate_rules(night: Night) -> Rules:
    """What the plan asks of the gate."""
    gate = night.plan.gate
    return Rules(alpha=1.0 - gate.confidence, may_forget=gate.may_forget, seed=night.plan.seed)
