"""Has the device itself become slower or faster? The anchor cases of a regime's nights, and its sensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...features.cases import Floats
from ..record import Finding
from .nights import Sums, Watch, sums_over_nights
from .robust import median, percent, plain

FALSE_ALARMS_PER_YEAR = {"all cases": 0.05, "one case": 0.05}
"""The most that quiet years with a false alarm are, of a regime read every night whose nights do not hang together;
`benchmarks/drift.py` simulates them, and nights that do."""


@dataclass(frozen=True, slots=True)
class AnchorNight:
    """One night's anchor readings: latency in seconds by case, None where it could not be measured."""

    night: str
    readings: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class DeviceDrift:
    """What the anchors of a device say after its last night.

    `state` is `not enough history`, `quiet` or `drifted`. `log_ratio` is by how much all cases moved since `since` (the night
    it began), in ln; `confirmed_nights` how many nights in a row the sum has been beyond its limit. `noise` is a quiet night's
    deviation of what all cases share, in ln, None before there is one. `cases` are those that moved beyond the others, with
    their own log ratio.
    """

    state: str
    nights: int
    log_ratio: float | None = None
    since: str | None = None
    confirmed_nights: int = 0
    noise: float | None = None
    cases: Mapping[str, float] | None = None


def logs_of(nights: Sequence[AnchorNight]) -> tuple[list[str], Floats]:
    """Names of the cases, sorted, and ln latency of shape `(nights, cases)`; NaN where there is no positive reading."""
    names = sorted({name for night in nights for name in night.readings})
    logs = np.full((len(nights), len(names)), np.nan)
    for i, night in enumerate(nights):
        for j, name in enumerate(names):
            value = night.readings.get(name)
            if value is not None and math.isfinite(value) and value > 0.0:
                logs[i, j] = math.log(value)
    return names, logs


def judge_device(nights: Sequence[AnchorNight], watch: Watch | None = None) -> DeviceDrift:
    """What the nights of one regime say, in order of time; the last is tonight."""
    rule = watch or Watch()
    nights = [night for night in nights if np.isfinite(logs_of([night])[1]).any()]
    names, logs = logs_of(nights)
    if len(nights) <= rule.least_nights or not names:
        return DeviceDrift("not enough history", len(nights))
    sums = sums_over_nights(logs[None], rule)
    noise = plain(sums.scale[0, -1])
    if noise is None:
        return DeviceDrift("not enough history", len(nights))
    cases = _moved_cases(names, sums, rule)
    confirmed, since = max(_beyond(side[0], rule.limit) for side in (sums.slower, sums.faster))
    if confirmed:
        moved = float(median(sums.moved[0, since:], 0))
        if abs(moved) >= rule.least_move:
            return DeviceDrift("drifted", len(nights), moved, nights[since].night, confirmed, noise, cases)
    return DeviceDrift("quiet", len(nights), noise=noise, cases=cases)


def _beyond(summed: Floats, limit: float) -> tuple[int, int]:
    """For how many nights up to the last a sum has been beyond its limit, and at which night it left zero."""
    inside = np.flatnonzero(summed <= limit)
    confirmed = len(summed) - 1 - (int(inside[-1]) if len(inside) else -1)
    zero = np.flatnonzero(summed == 0.0)
    return confirmed, min(int(zero[-1]) + 1 if len(zero) else 0, len(summed) - 1)


def _moved_cases(names: Sequence[str], sums: Sums, rule: Watch) -> dict[str, float]:
    found = {}
    for j, name in enumerate(names):
        confirmed, since = max(_beyond(side[0, :, j], rule.case_limit) for side in (sums.case_slower, sums.case_faster))
        moved = float(median(sums.case_moved[0, since:, j], 0)) if confirmed else 0.0
        if abs(moved) >= rule.least_move:
            found[name] = moved
    return found


def device_drift(
    device: str, nights: Sequence[AnchorNight], watch: Watch | None = None
) -> tuple[list[Finding], dict[str, Any]]:
    """Findings and plain facts of `judge_device`."""
    rule = watch or Watch()
    drift = judge_device(nights, rule)
    facts: dict[str, Any] = {
        "state": drift.state, "nights": drift.nights, "log_ratio": drift.log_ratio, "since": drift.since,
        "confirmed_nights": drift.confirmed_nights, "noise": drift.noise, "cases": dict(drift.cases or {}),
        "false_alarms_per_year": dict(FALSE_ALARMS_PER_YEAR),
    }  # fmt: skip
    findings: list[Finding] = []
    if drift.state == "not enough history":
        said = (
            f"Not enough history to say whether {device} has drifted: its regime has {drift.nights} of the "
            f"{rule.least_nights + 1} nights that are needed. Nothing to do."
        )
        findings.append(Finding("device-drift", "info", device, said, {"nights": float(drift.nights)}))
    if drift.state == "drifted" and drift.log_ratio is not None:
        findings.append(_whole_device(device, drift, rule))
    findings += [_one_case(device, name, moved) for name, moved in (drift.cases or {}).items()]
    return findings, facts


def _whole_device(device: str, drift: DeviceDrift, rule: Watch) -> Finding:
    moved = percent(drift.log_ratio or 0.0)
    lasting = drift.confirmed_nights >= rule.confirm_nights
    todo = (
        "It has lasted long enough for a new regime: cases measured before are measured again to settle it."
        if lasting
        else "Rows of tonight are kept; if it lasts, a new regime is opened."
    )
    said = (
        f"{device} runs its anchor cases {abs(moved):.1f} % {'slower' if moved > 0 else 'faster'} since the night "
        f"{drift.since}, where a quiet night scatters by {percent(drift.noise or 0.0):.1f} %. {todo} Look at the cooling, "
        "clocks and power limit, and at what else runs on this machine."
    )
    numbers = {"moved_pct": moved, "noise_pct": percent(drift.noise or 0.0), "nights": float(drift.nights),
               "confirmed_nights": float(drift.confirmed_nights)}  # fmt: skip
    return Finding("device-drift", "needs-person" if lasting else "warning", device, said, numbers)


def _one_case(device: str, name: str, moved: float) -> Finding:
    share = percent(moved)
    said = (
        f"On {device} the anchor case {name} runs {abs(share):.1f} % {'slower' if share > 0 else 'faster'} than before, and "
        "the others do not: its library or its shape's kernel changed, not the device. Look at what was installed."
    )
    return Finding("device-drift", "warning", f"{device}: {name}", said, {"moved_pct": share})
