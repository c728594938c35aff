"""Stage 5: whether what was measured is sound, whether the devices changed, and whether the serving model still holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...features.errors import SpecError
from ..checks.device_check import check_device, check_repeats, device_facts, recorded_tonight
from ..checks.model_check import check_intervals, review_champion
from ..checks.store_check import check_store
from ..context import Night, StageResult
from ..record.record import Finding
from ..rows import TrainingRows, night_tables, short_rows

_REFUSED = 0.05
"""More than this share of a night's rows refused by the physical checks is a fault of what measures, not of a case."""


def check(night: Night) -> StageResult:
    """Check the store, tonight's rows and the serving model; damaged files are put aside.

    Raises:
        StoreError: the store cannot be reached.
    """
    facts, findings = check_store(night)
    # Read once for all that follows: going through a store of many files takes long.
    fresh = night_tables(night)
    rows = short_rows(fresh)
    statuses = Counter(row["status"] for row in rows)
    # Of failed rows only those that were measured and then refused have samples (`datasets.rows.checks.as_failed`).
    refused = sum(row["status"] == "failed" and row["n_samples"] is not None for row in rows)
    facts |= {"rows": len(rows), "refused": refused}
    if rows and refused > _REFUSED * len(rows):
        message = (f"{refused} of tonight's {len(rows)} rows broke physics (faster than the device can be, or energy that does "
                   "not fit) and are stored as failed. Look at the device file, clocks and sensors.")  # fmt: skip
        numbers = {"refused": refused, "rows": len(rows)}
        findings.append(Finding("rows", "needs-person", night.record.device, message, numbers))
    for device in night.measurer.devices:
        findings += _check_device(night, device, fresh, facts)
    if statuses["ok"]:
        reader = TrainingRows(night.store, night.plan, night.devices, facts["software"])
        parts = {
            "repeats": partial(check_repeats, night, fresh),
            "intervals": partial(check_intervals, night, fresh, reader),
            "champion": partial(review_champion, night),
        }
        for name, part in parts.items():
            try:
                part_facts, part_findings = part()
            except SpecError as error:
                # One check that fails must not keep the others from being made.
                message = f"{error}. The night continues without this check."
                part_facts, part_findings = {}, [Finding("stage", "warning", name, message)]
            facts |= part_facts
            findings += part_findings
    summary = f"{statuses['ok']} of {len(rows)} rows are good; {len(facts['damaged_files'])} files were damaged."
    return StageResult(summary, facts, tuple(findings))


def _check_device(night: Night, device: str, fresh: Mapping[str, pa.Table], facts: dict[str, Any]) -> list[Finding]:
    """Software of a device, and drift of one whose anchors were read only between blocks; `facts` are added to."""
    read_before, noted = device_facts(night, device), recorded_tonight(night, device)
    software = read_before.get("software") or (noted.software if noted is not None else _most_common(fresh, device))
    facts.setdefault("software", {})[device] = software
    if "readings" in read_before or noted is None or not noted.readings:
        return []
    findings, drift, _ = check_device(night, device, noted.software, noted.readings)
    facts.setdefault("device_drift", {})[device] = {**drift, "readings": dict(noted.readings)}
    return findings


def _most_common(tables: Mapping[str, pa.Table], device: str) -> str:
    """The software of most of a device's rows; empty for no rows."""
    counts: Counter[str] = Counter()
    for table in tables.values():
        software = table.filter(pc.field("device") == device)["software"].to_pylist()
        counts.update(word or "" for word in software)
    return max(sorted(counts), key=lambda word: counts[word], default="")
