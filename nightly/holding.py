"""Does the serving model still hold: on what was measured since it was made, and on what the service is asked for?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..datasets.shipped import read_shipped, shipped_families
from ..datasets.usage import read_usage_log
from ..features.cases import Cases
from ..models.artifact import ArtifactError
from ..models.candidates import runnable
from ..models.labelled import Labelled
from ..models.predictor import ArtifactPredictor
from ..models.tables import joined, labelled_table
from .context import Night, chosen_in
from .drift.data import Inputs, data_drift, outside_domain
from .drift.model import fresh_rows as judged_rows
from .drift.model import model_drift
from .folders import nights_dir, records
from .fresh import fresh_tables
from .outcome import serving_predictor
from .record import Finding
from .regimes import ledgers
from .rows import Rows, tonight
from .written import blocks_of

_NIGHTS = 14
"""Nights since the model began to serve that are looked at."""


def holding(night: Night, fresh: Mapping[str, pa.Table]) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """What model drift and data drift say; `fresh` are tonight's rows by family.

    Raises:
        StoreError: the store cannot be read.
        SpecError: the regimes cannot be read.
    """
    try:
        predictor = serving_predictor(night.devices)
    except ArtifactError:
        return {}, ()
    held, told = _model(night, predictor, fresh)
    moved, more = _data(night, predictor)
    return {"model_drift": held, "data_drift": moved}, (*told, *more)


def _model(
    night: Night, predictor: ArtifactPredictor, fresh: Mapping[str, pa.Table]
) -> tuple[dict[str, Any], list[Finding]]:
    reader = Rows.of(night.store, night.plan, night.devices, ledgers(night.measurer.devices))
    folders = _since_promotion(night)
    earlier = fresh_tables(night, blocks=[block for folder in folders[:-1] for block in blocks_of(folder)])
    tables: list[Labelled] = []
    nights: list[Any] = []
    reasons: list[Any] = []
    for folder in folders:
        why = {case.spec.case_id: case.why for case in chosen_in(folder)}
        stored, blocks = (fresh if folder == night.folder else earlier), blocks_of(folder)
        for reason in sorted(set(why.values())):
            ids = [case for case, own in why.items() if own == reason]
            where = tonight(blocks) & pc.field("case_id").isin(pa.array(ids, pa.string()))
            for table in reader.labelled({name: rows.filter(where) for name, rows in stored.items()}):
                if table.cases.family.name in predictor.families:
                    tables.append(table)
                    nights.append(np.full(len(table), folder.name))
                    reasons.append(np.full(len(table), reason))
    if not tables:
        return {}, []
    own = {
        name: float(entry["metrics"]["held_out"]["latency"]["mean_ape_pct"])
        for name, entry in predictor.manifest["families"].items()
        if entry.get("metrics", {}).get("held_out", {}).get("latency")
    }
    found, facts = model_drift(judged_rows(predictor, tables, nights, reasons), own, seed=night.plan.seed)
    return facts, found


def _since_promotion(night: Night) -> list[Path]:
    """Folders of the nights that the serving model has not learned from: this one, and those before it back to the
    promotion, oldest first.
    """
    found = [night.folder]
    for folder, record in records(nights_dir()):
        if folder.name >= night.folder.name:
            continue
        if record.outcome in ("promoted", "rolled-back") or len(found) >= _NIGHTS:
            break
        found.append(folder)
    return sorted(found)


def _data(night: Night, predictor: ArtifactPredictor) -> tuple[dict[str, Any], list[Finding]]:
    """What is asked for beside what there are rows of, on the first device of the night."""
    device = night.measurer.devices[0]
    asked = read_usage_log(night.usage_folder).asked
    by_family: dict[str, list[Any]] = {}
    for spec in asked:
        by_family.setdefault(spec.family, []).append(spec)
    inputs: dict[str, Inputs] = {}
    for family, specs in by_family.items():
        trained = _learned(night, family, device)
        if trained is None:
            continue
        cases = Cases.of(specs, [device] * len(specs)).with_core_counts(night.devices)
        # What was asked for another device may be in a dtype that this one has no peak for.
        able = np.flatnonzero(runnable(cases, night.devices.get(device)))
        if not len(able):
            continue
        cases, counts = cases.take(able), np.array([asked[spec] for spec in specs])[able]
        inputs[family] = Inputs(trained, cases, outside_domain(predictor, cases), counts)
    findings, facts = data_drift(inputs, seed=night.plan.seed)
    return facts, findings


def _learned(night: Night, family: str, device: str) -> Cases | None:
    """Cases of a family on a device that there are rows of; None without any."""
    reader = Rows.of(night.store, night.plan, night.devices, {})
    found = reader.read([device], ~tonight(night.blocks()), [family])
    if not night.rehearsal and family in shipped_families():
        shipped = labelled_table(read_shipped(family, [device]), family, night.devices)
        found += [shipped] if len(shipped) else []
    return joined(found).cases if found else None
