"""Stage 5: is what was measured sound, which regime is it of, and does the model that serves still hold on it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...features.errors import SpecError
from ..context import Did, Night
from ..drift.ledger import read_ledger
from ..fresh import fresh_tables, in_short
from ..holding import holding
from ..record import Finding
from ..regimes import decide
from ..repeats import repeats
from ..reviewing import review_champion
from ..storage import storage
from ..watching import judged_anchors, judged_sensors, looked_at, noted_tonight

_REFUSED = 0.05
"""More than this share of a night's rows refused by the physical checks is a fault of what measures, not of a case."""


def check(night: Night) -> Did:
    """Look at the store, at tonight's rows and at the serving model; damaged files are put aside.

    Raises:
        StoreError: the store cannot be reached.
    """
    findings: list[Finding] = []
    facts: dict[str, Any] = {}
    stored, told = storage(night)
    findings += told
    facts |= stored
    # Once for all that follows: a store of many files takes long to go through.
    fresh = fresh_tables(night)
    rows = in_short(fresh)
    statuses = Counter(row["status"] for row in rows)
    refused = sum(1 for row in rows if row["status"] == "failed" and _is_refusal(row["message"]))
    facts |= {"rows": len(rows), "refused": refused}
    if rows and refused > _REFUSED * len(rows):
        said = (f"{refused} of tonight's {len(rows)} rows broke physics (faster than the device can be, or energy that does "
                "not fit) and are stored as failed. Look at the device file, clocks and sensors.")  # fmt: skip
        findings.append(
            Finding("rows", "needs-person", night.record.device, said, {"refused": refused, "rows": len(rows)})
        )
    for device in night.measurer.devices:
        findings += _device(night, device, fresh, facts)
    if statuses["ok"]:
        for part in (repeats, holding, review_champion):
            try:
                said_facts, looked = part(night, fresh)
            except SpecError as error:
                # One look that cannot be taken must not keep the others from being taken.
                looked = (Finding("stage", "warning", part.__name__, f"{error}. The night goes on without this look."),)
                said_facts = {}
            facts |= said_facts
            findings += looked
    said = f"{statuses['ok']} of {len(rows)} rows are good; {len(facts.get('damaged_files', ()))} files were damaged."
    return Did(said, facts, tuple(findings))


def _device(night: Night, device: str, fresh: Mapping[str, pa.Table], facts: dict[str, Any]) -> list[Finding]:
    """Anchors of a device that could only be looked at where it is, its regime and its sensors; `facts` are added to."""
    findings: list[Finding] = []
    own = {name: table.filter(pc.equal(table["device"], device)) for name, table in fresh.items()}
    own = {name: table for name, table in own.items() if table.num_rows}
    looked, last = looked_at(night, device), noted_tonight(night, device)
    if "readings" not in looked and last is not None and last.readings:
        told, drift, _ = judged_anchors(night, device, read_ledger(device)[0], last.software, last.readings)
        facts.setdefault("device_drift", {})[device] = {**drift, "readings": dict(last.readings)}
        findings += told
    if not night.rehearsal:
        decided, told_regimes, regime = decide(night, device, own)
        facts.setdefault("regimes", {})[device] = decided
        findings += told_regimes
        if device == night.measurer.devices[0]:
            facts["regime"] = regime or ""
    if own:
        software = str(looked.get("software", last.software if last is not None else ""))
        told, tonight, drift = judged_sensors(night, device, read_ledger(device)[0], software, own)
        facts.setdefault("sensors", {})[device] = tonight
        facts.setdefault("sensor_drift", {})[device] = drift
        findings += told
    return findings


def _is_refusal(message: str | None) -> bool:
    """Whether a failed row was measured and then refused, rather than never measured."""
    return message is not None and message.startswith("refused")
