"""The night's devices beside their earlier nights: anchor cases, software, and cases that were measured again."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...datasets.store.store import StoreError
from ...files import home_dir
from ..context import Night
from ..record.record import Finding
from ..rows import in_blocks, scan, short_rows
from .device_drift import DeviceNight, device_drift, read_readings, readings_path, software_change, write_readings

_MOST_PCT = 10.0
"""Repeats that differ by more than this in the median say that tonight's rows are worth little; a quiet CPU gives 1 to 3 %."""

_FEWEST = 5


def device_facts(night: Night, device: str) -> Mapping[str, Any]:
    """The facts of the stage `sentinels` on a device; empty where it could not be read."""
    facts = night.facts("sentinels")
    chosen: Mapping[str, Any] = facts.get("devices", {}).get(device, facts)
    return chosen


def record_readings(night: Night, device: str, software: str, readings: Mapping[str, float | None]) -> list[Finding]:
    """Keep what was read for the nights to come; a finding where it cannot be written, which must not cost the night."""
    try:
        write_readings(device, DeviceNight(night.record.id, software, readings), _folder(night))
    except StoreError as error:
        message = f"Tonight's readings of {device} could not be kept: {error}. Later nights will lack them; make room."
        return [Finding("storage", "warning", device, message)]
    return []


def recorded_tonight(night: Night, device: str) -> DeviceNight | None:
    """What was recorded of a device in this night so far; None for nothing.

    Raises:
        StoreError: it cannot be read.
    """
    nights, _ = read_readings(device, _folder(night))
    return next((recorded for recorded in nights if recorded.night == night.record.id), None)


def earlier_nights(night: Night, device: str, software: str) -> list[DeviceNight]:
    """What earlier nights under the same software read of a device.

    Raises:
        StoreError: it cannot be read.
    """
    nights, _ = read_readings(device, _folder(night))
    return [past for past in nights if past.night < night.record.id and past.software == software and past.readings]


def check_device(
    night: Night, device: str, software: str, readings: Mapping[str, float | None]
) -> tuple[list[Finding], dict[str, Any], list[DeviceNight]]:
    """Tonight's readings beside the earlier nights under the same software: findings, facts of the drift, and those nights.

    Raises:
        StoreError: readings of earlier nights cannot be read.
    """
    nights, damaged = read_readings(device, _folder(night))
    path = readings_path(device, _folder(night))
    findings: list[Finding] = []
    earlier = [past for past in nights if past.night < night.record.id]
    if earlier and earlier[-1].software != software:
        findings.append(software_change(device, earlier[-1].software, software, earlier[-1].night))
    # A night that read other cases says nothing of tonight's.
    comparable = [
        replace(past, readings={name: past.readings[name] for name in readings if name in past.readings})
        for past in earlier if past.software == software
    ]  # fmt: skip
    history = [past for past in comparable if past.readings]
    drift_findings, drift = device_drift(device, [*history, DeviceNight(night.record.id, software, readings)])
    findings += drift_findings
    if damaged:
        message = (
            f"{damaged} lines of {path} could not be read and were left out; the other nights are used. Check the disk."
        )
        findings.append(Finding("storage", "warning", str(path), message, {"lines": damaged}))
    return findings, drift, history


def check_repeats(night: Night, fresh: Mapping[str, pa.Table]) -> tuple[dict[str, Any], list[Finding]]:
    """By how much tonight's repeated cases differ from their medians of before, in percent of ln latency.

    Raises:
        StoreError: the store cannot be read.
    """
    repeated = {case.spec.case_id for case in night.chosen() if case.why == "repeat"}
    now = {
        (row["device"], row["case_id"]): row
        for row in short_rows(fresh)
        if row["status"] == "ok" and row["case_id"] in repeated
    }
    before: dict[tuple[str, str], list[float]] = {}
    where = pc.field("case_id").isin(pa.array(sorted(repeated), pa.string())) & (pc.field("status") == "ok")
    for family in sorted({row["family"] for row in now.values()}):
        columns = ["device", "case_id", "latency_s"]
        for batch in scan(night.store, family, night.measurer.devices, columns, where & ~in_blocks(night.blocks())):
            for row in batch.to_pylist():
                before.setdefault((row["device"], row["case_id"]), []).append(row["latency_s"])
    moved = [math.log(row["latency_s"] / statistics.median(before[key])) for key, row in now.items() if key in before]
    if not moved:
        return {"repeats": 0}, []
    typical = 100 * statistics.median(map(abs, moved))
    facts = {"repeats": len(moved), "repeat_median_pct": round(typical, 3),
             "repeat_bias_pct": round(100 * statistics.median(moved), 3)}  # fmt: skip
    if len(moved) < _FEWEST or typical <= _MOST_PCT:
        return facts, []
    message = (f"{len(moved)} cases measured again differ from before by {typical:.0f} % in the median. Another program "
               "used the device tonight, or it or its software changed; do not rely on this night's rows before that "
               "is known.")  # fmt: skip
    return facts, [Finding("rows", "warning", night.record.device, message, {"repeat_median_pct": typical})]


def _folder(night: Night) -> Path | None:
    """A rehearsal's readings are of a recording: they are kept apart from those of the device."""
    return home_dir() / "regimes" / "rehearsed" if night.plan.rehearsal else None
