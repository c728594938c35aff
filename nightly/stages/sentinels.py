"""Stage 2: how each device stands tonight: the same fixed cases as every night, its software, its sensors' first word."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from ...datasets.software import software_of
from ...features.errors import SpecError
from ...features.kernel import KernelSpec
from ..context import Did, Night
from ..drift.anchors import anchor_cases
from ..drift.device import AnchorNight
from ..measuring.protocol import Looked
from ..record import Finding
from ..regimes import ask
from ..watching import confirmed, judged_anchors, note

_TIMES = 3
"""Readings of each case; their median is the night's. A dozen cases take some seconds a reading."""


def sentinels(night: Night) -> Did:
    """Read the anchor cases and hold them against earlier nights of the same regime.

    Raises:
        StoreError: the device is being measured by something else, or the store cannot be read.
        CampaignError: the device cannot be used.
    """
    cases = {device: _anchors(night, device) for device in night.measurer.devices}
    with night.lock():
        looked = night.measurer.look(cases, _TIMES)
    if not looked:
        return Did(
            "What measures cannot be looked at from here; its own sentinels are read between blocks.", status="skipped"
        )
    devices: dict[str, dict[str, Any]] = {}
    findings: list[Finding] = []
    for device, one in looked.items():
        devices[device], told = _one(night, device, one)
        findings += told
    first, *others = devices.values()
    facts = {**first, "devices": devices} if others else first
    read = sum(len(one["readings"]) for one in devices.values())
    if not read:
        return Did(
            "There is no anchor case to read, so tonight is not held against earlier nights.", facts, tuple(findings)
        )
    lost = [
        f"{device}: {name}"
        for device, one in devices.items()
        for name, value in one["readings"].items()
        if value is None
    ]
    said = f"{read} anchor cases were read {_TIMES} times each."
    if lost:
        said += f" {len(lost)} gave no time: {', '.join(lost[:3])}."
        findings.append(Finding("device", "warning", night.record.device, f"{len(lost)} anchor cases gave no time tonight: "
                                f"{', '.join(lost[:3])}. If they stay so, look at the device."))  # fmt: skip
    return Did(said, facts, tuple(findings))


def _one(night: Night, device: str, looked: Looked) -> tuple[dict[str, Any], list[Finding]]:
    """Facts of one device and what its anchors say."""
    readings = _medians(looked)
    software = "" if night.rehearsal else software_of(looked.facts)
    asked = ask(night.store, device, software)
    regime = asked.regime or ""
    findings, drift, history = judged_anchors(night, device, asked.ledger, software, readings)
    if readings:
        findings += note(night, device, software, readings=readings)
    facts = {
        "readings": readings, "expected": _expected(history), "software": software, "regime": regime,
        "clock_hz": looked.clock_hz, "temperature_c": looked.temperature_c, "drift": drift, "noise": drift.get("noise"),
        "drifted": confirmed(drift),
    }  # fmt: skip
    return facts, [*asked.findings, *findings]


def _anchors(night: Night, device: str) -> list[KernelSpec]:
    try:
        found = anchor_cases(night.devices.get(device))
    except SpecError:
        # A device whose kind has no anchors, or lacks a peak they need.
        return []
    return [spec for spec in found if not night.plan.families or spec.family in night.plan.families]


def _medians(looked: Looked) -> dict[str, float | None]:
    names = {name for reading in looked.readings for name in reading}
    times = {name: [value for reading in looked.readings if (value := reading.get(name))] for name in sorted(names)}
    return {name: statistics.median(seen) if seen else None for name, seen in times.items()}


def _expected(history: list[AnchorNight]) -> Mapping[str, float]:
    """The median of earlier nights by case, in ln; none for a case without any."""
    names = sorted({name for one in history for name in one.readings})
    logs = {name: [math.log(value) for one in history if (value := one.readings.get(name))] for name in names}
    return {name: math.exp(statistics.median(seen)) for name, seen in logs.items() if seen}
