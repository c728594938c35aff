"""Stage 1: what the device itself can do, measured anew every so many days."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...home import home_dir
from ..context import Did, Night
from ..record import Finding, write_whole

_TAKES_S = {"cpu": 45.0, "gpu": 120.0}
_MOST_SHARE = 0.25
"""No more of a night goes into it; a short night uses what an earlier one measured, or does without."""

_DAY_S = 86_400.0


def descriptor_file(device: str) -> Path:
    """Where the last characterisation of a device is kept."""
    return home_dir() / "characterised" / f"{device}.json"


def characterise(night: Night) -> Did:
    """Measure the device's descriptor, or say why an earlier one does.

    Raises:
        WorkerStartError: nothing can be measured.
        OSError: the descriptor cannot be kept.
    """
    every, device = night.plan.characterise.every_days, night.measurer.devices[0]
    before = _before(device)
    age = (
        None if before is None else (datetime.now(UTC) - datetime.fromisoformat(before["at"])).total_seconds() / _DAY_S
    )
    known: dict[str, Any] = {} if before is None else {
        "reused": True, "age_days": round(age or 0.0, 3), "descriptor": before["descriptor"],
    }  # fmt: skip
    if every == 0:
        return Did("The plan asks for no characterisation.", known, status="skipped")
    # A clock that was set back gives an age below zero, which says nothing: then it is measured.
    if age is not None and 0 <= age < every:
        return Did(f"The device was characterised {age:.1f} days ago; every {every:g} days are asked for.", known)
    takes = _TAKES_S.get(night.plan.collector, 0.0)
    if takes > _MOST_SHARE * night.plan.budget_s:
        said = (f"Characterising takes about {takes:g} s, more than a quarter of this night's {night.plan.budget_s:g} s. "
                "It was left out; `kernelcast characterize` does it by hand.")  # fmt: skip
        return Did(said, known, (Finding("budget", "info", device, said),), "skipped")
    began = time.monotonic()
    with night.lock():
        measured = night.measurer.characterise()
    if measured is None:
        return Did("What measures cannot be characterised from here.", known, status="skipped")
    values = {name: fact["value"] for name, fact in measured.items() if fact["value"] is not None}
    at = datetime.now(UTC).isoformat(timespec="seconds")
    content = json.dumps({"at": at, "descriptor": values, "measured": measured, "before": _short(before)})
    write_whole(descriptor_file(device), content + "\n")
    missing = sorted(set(measured) - set(values))
    said = f"{len(values)} facts of {device} were measured in {time.monotonic() - began:.0f} s."
    if missing:
        said += f" {len(missing)} could not be: {', '.join(missing[:5])}."
    return Did(said, {"reused": False, "age_days": 0.0, "descriptor": values})


def _before(device: str) -> dict[str, Any] | None:
    """The last characterisation; None where there is none that can be read, which is then measured again."""
    try:
        content = json.loads(descriptor_file(device).read_text(encoding="utf-8"))
        datetime.fromisoformat(content["at"])
        return content if isinstance(content["descriptor"], dict) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _short(before: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if before is None else {"at": before["at"], "descriptor": before["descriptor"]}
