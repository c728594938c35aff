"""Stage 5: is what was measured sound, which regime is it of, and does the model that serves still hold on it?"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...datasets.store import StoreError
from ...datasets.verifying import quarantine, verify
from ...features.errors import SpecError
from ..context import Did, Night
from ..fresh import fresh_rows
from ..holding import holding
from ..record import Finding
from ..regimes import decide
from ..repeats import repeats
from ..reviewing import review_champion

_REFUSED = 0.05
"""More than this share of a night's rows refused by the physical checks is a fault of what measures, not of a case."""


def check(night: Night) -> Did:
    """Look at the store, at tonight's rows and at the serving model; damaged files are put aside.

    Raises:
        StoreError: the store cannot be reached.
    """
    findings: list[Finding] = []
    facts: dict[str, Any] = {}
    storage, told = _storage(night)
    findings += told
    facts |= storage
    rows = fresh_rows(night)
    statuses = Counter(row["status"] for row in rows)
    refused = sum(1 for row in rows if row["status"] == "failed" and _is_refusal(row["message"]))
    facts |= {"rows": len(rows), "refused": refused}
    if rows and refused > _REFUSED * len(rows):
        said = (f"{refused} of tonight's {len(rows)} rows broke physics (faster than the device can be, or energy that does "
                "not fit) and are stored as failed. Look at the device file, clocks and sensors.")  # fmt: skip
        findings.append(
            Finding("rows", "needs-person", night.record.device, said, {"refused": refused, "rows": len(rows)})
        )
    for device in night.measurer.devices if not night.rehearsal else ():
        decided, told_regimes, regime = decide(night, device)
        facts.setdefault("regimes", {})[device] = decided
        findings += told_regimes
        if device == night.measurer.devices[0]:
            facts["regime"] = regime or ""
    if statuses["ok"]:
        for part in (repeats, holding, review_champion):
            try:
                said_facts, looked = part(night, rows)
            except SpecError as error:
                # One look that cannot be taken must not keep the others from being taken.
                looked = (Finding("stage", "warning", part.__name__, f"{error}. The night goes on without this look."),)
                said_facts = {}
            facts |= said_facts
            findings += looked
    said = f"{statuses['ok']} of {len(rows)} rows are good; {len(facts.get('damaged_files', ()))} files were damaged."
    return Did(said, facts, tuple(findings))


def _storage(night: Night) -> tuple[dict[str, Any], list[Finding]]:
    """Read every file of the store; those that cannot be read are moved out of it, and named."""
    found = verify(night.store, devices=night.devices)
    damaged = list(found.damaged)
    facts: dict[str, Any] = {
        "files": found.files,
        "stored_rows": found.rows,
        "damaged_files": [name for name, _ in damaged],
    }
    if not damaged:
        return facts, []
    try:
        quarantine(night.store, damaged)
        done = "They were moved out of the way (`quarantine` in the store) and the rest is used"
    except (StoreError, OSError) as error:
        done = f"They could not be moved out of the way ({error}); the rest is used"
    named = "; ".join(f"{name}: {why}" for name, why in damaged[:3])
    said = f"{len(damaged)} files of the store are damaged: {named}. {done}. Look at the disk, and at a backup for their rows."
    return facts, [Finding("storage", "needs-person", night.store.root_name, said, {"files": len(damaged)})]


def _is_refusal(message: str | None) -> bool:
    """Whether a failed row was measured and then refused, rather than never measured."""
    return message is not None and message.startswith("refused")
