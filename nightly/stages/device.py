"""Stages 1 and 2: what a device can do, measured again every few days, and how fast it is tonight.

The second reads the same anchor cases every night, and the software the device runs.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...datasets.rows.schema import software_of
from ...files import home_dir, write_whole
from ..checks.device_check import check_device, record_readings
from ..checks.device_drift import DeviceNight, anchor_cases
from ..context import Night, StageResult
from ..measuring.protocol import DeviceReading
from ..record.record import Finding

_TAKES_S = {"cpu": 45.0, "gpu": 120.0}
_MOST_SHARE = 0.25
"""No more of a night goes into it; a short night uses what an earlier one measured, or does without."""

_DAY_S = 86_400.0


def descriptor_file(device: str) -> Path:
    """Where the last characterisation of a device is kept."""
    return home_dir() / "characterised" / f"{device}.json"


def characterise(night: Night) -> StageResult:
    """Measure the device's descriptor, or say why an earlier one does.

    Raises:
        ChildStartError: nothing can be measured.
        OSError: the descriptor cannot be kept.
    """
    every, device = night.plan.characterise.every_days, night.measurer.devices[0]
    before = _before(device)
    age, known = None, {}
    if before is not None:
        age = (datetime.now(UTC) - datetime.fromisoformat(before["at"])).total_seconds() / _DAY_S
        known = {"reused": True, "age_days": round(age, 3), "descriptor": before["descriptor"]}
    if every == 0:
        return StageResult("The plan asks for no characterisation.", known, status="skipped")
    # A clock that was set back gives an age below zero, which says nothing: then it is measured.
    if age is not None and 0 <= age < every:
        message = f"The device was characterised {age:.1f} days ago; every {every:g} days are asked for."
        return StageResult(message, known)
    takes = _TAKES_S.get(night.plan.collector, 0.0)
    if takes > _MOST_SHARE * night.plan.budget_s:
        message = (f"Characterising takes about {takes:g} s, more than a quarter of this night's {night.plan.budget_s:g} s. "
                "It was left out; `kernelcast measure machine` does it by hand.")  # fmt: skip
        return StageResult(message, known, (Finding("budget", "info", device, message),), "skipped")
    began = time.monotonic()
    with night.lock():
        measured = night.measurer.characterise()
    if measured is None:
        return StageResult("The devices cannot be characterised from here.", known, status="skipped")
    values = write_descriptor(device, measured)
    missing = sorted(set(measured) - set(values))
    message = f"{len(values)} facts of {device} were measured in {time.monotonic() - began:.0f} s."
    if missing:
        message += f" {len(missing)} could not be: {', '.join(missing[:5])}."
    return StageResult(message, {"reused": False, "age_days": 0.0, "descriptor": values})


def write_descriptor(device: str, measured: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Keep what was measured of a device for the nights to come; the values by name.

    Raises:
        OSError: the disk is full or not writable.
    """
    values = {name: float(fact["value"]) for name, fact in measured.items() if fact["value"] is not None}
    at = datetime.now(UTC).isoformat(timespec="seconds")
    content = json.dumps({"at": at, "descriptor": values, "measured": measured})
    write_whole(descriptor_file(device), content + "\n")
    return values


def _before(device: str) -> dict[str, Any] | None:
    """The last characterisation; None where there is none that can be read, which is then measured again."""
    try:
        content = json.loads(descriptor_file(device).read_text(encoding="utf-8"))
        datetime.fromisoformat(content["at"])
        return content if isinstance(content["descriptor"], dict) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


_TIMES = 3
"""Readings of each case; their median is the night's. A dozen cases take some seconds a reading."""


def sentinels(night: Night) -> StageResult:
    """Read the anchor cases and compare them with earlier nights under the same software.

    Raises:
        StoreError: the device is being measured by another process, or the store cannot be read.
        CampaignError: the device cannot be used.
    """
    families = night.plan.families
    cases = {
        device: [spec for spec in anchor_cases(night.devices.get(device)) if not families or spec.family in families]
        for device in night.measurer.devices
    }
    with night.lock():
        readings = night.measurer.look(cases, _TIMES)
    if not readings:
        message = "These devices cannot be read before the night; their sentinels are read between blocks."
        return StageResult(message, status="skipped")
    devices: dict[str, dict[str, Any]] = {}
    findings: list[Finding] = []
    for device, reading in readings.items():
        devices[device], device_findings = _of_device(night, device, reading)
        findings += device_findings
    first, *others = devices.values()
    facts = {**first, "devices": devices} if others else first
    count = sum(len(device_facts["readings"]) for device_facts in devices.values())
    if not count:
        message = "There is no anchor case to read, so tonight is not compared with earlier nights."
        return StageResult(message, facts, tuple(findings))
    lost = [f"{device}: {name}" for device, device_facts in devices.items() for name, value in device_facts["readings"].items()
            if value is None]  # fmt: skip
    summary = f"{count} anchor cases were read {_TIMES} times each."
    if lost:
        summary += f" {len(lost)} gave no time: {', '.join(lost[:3])}."
        findings.append(Finding("device", "warning", night.record.device, f"{len(lost)} anchor cases gave no time tonight: "
                                f"{', '.join(lost[:3])}. If this happens again, check the device."))  # fmt: skip
    return StageResult(summary, facts, tuple(findings))


def _of_device(night: Night, device: str, reading: DeviceReading) -> tuple[dict[str, Any], list[Finding]]:
    """Facts of one device, and findings about its anchors and software."""
    readings = _medians(reading)
    software = "" if night.plan.rehearsal else software_of(reading.facts)
    findings, drift, history = check_device(night, device, software, readings)
    if readings:
        findings += record_readings(night, device, software, readings)
    facts = {
        "readings": readings, "expected": _expected(history), "software": software, "clock_hz": reading.clock_hz,
        "temperature_c": reading.temperature_c, "drift": drift,
    }  # fmt: skip
    return facts, findings


def _medians(reading: DeviceReading) -> dict[str, float | None]:
    names = sorted({name for times in reading.readings for name in times})
    known = {name: [value for times in reading.readings if (value := times.get(name))] for name in names}
    return {name: statistics.median(values) if values else None for name, values in known.items()}


def _expected(history: Sequence[DeviceNight]) -> Mapping[str, float]:
    """The median of earlier nights by case, in ln; none for a case without readings."""
    logs: dict[str, list[float]] = {}
    for night in history:
        for name, value in night.readings.items():
            if value:
                logs.setdefault(name, []).append(math.log(value))
    return {name: math.exp(statistics.median(values)) for name, values in sorted(logs.items())}
