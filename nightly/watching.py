"""How the night's devices stand beside their earlier nights: anchors, sensors, and what is noted of both for nights to come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..datasets.store import StoreError
from ..home import home_dir
from .context import Night
from .drift.device import AnchorNight, device_drift
from .drift.ledger import Ledger
from .drift.nights import Watch
from .drift.sensors import SensorNight, sensor_drift, sensor_night
from .drift.watched import Watched, anchors_of, note_night, of_one_regime, watched_nights, watched_path
from .record import Finding


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a device before a regime is decided on: its software (None: not known), whether it has drifted long
    enough to ask for a new regime, since which night, and how far a quiet night scatters (ln; None: not known yet).
    """

    software: str | None = None
    drifted: bool = False
    since: str | None = None
    noise: float | None = None


def standing(night: Night, device: str, ledger: Ledger) -> Standing:
    """By tonight's sentinels; of a device that cannot be looked at from here, by what was noted of it last.

    Raises:
        StoreError: what was noted cannot be read.
    """
    looked = looked_at(night, device)
    if "software" in looked:
        drift = looked.get("drift") or {}
        return Standing(str(looked["software"]), bool(looked.get("drifted")), drift.get("since"), looked.get("noise"))
    nights, _ = watched_nights(device, _folder(night))
    known = [one for one in nights if one.night <= night.record.id]
    if not known:
        return Standing()
    _, drift, _ = _judged(device, nights, ledger, known[-1])
    return Standing(known[-1].software, confirmed(drift), drift.get("since"), drift.get("noise"))


def looked_at(night: Night, device: str) -> Mapping[str, Any]:
    """The facts of the stage `sentinels` on a device; empty where it could not be looked at."""
    facts = night.facts("sentinels")
    found: Mapping[str, Any] = facts.get("devices", {}).get(device, facts)
    return found


def noted_tonight(night: Night, device: str) -> Watched | None:
    """What was noted of a device in this night so far; None for nothing.

    Raises:
        StoreError: it cannot be read.
    """
    nights, _ = watched_nights(device, _folder(night))
    return next((one for one in nights if one.night == night.record.id), None)


def confirmed(drift: Mapping[str, Any]) -> bool:
    """Whether facts of `device_drift` are of a drift that has lasted long enough for a new regime."""
    return drift.get("state") == "drifted" and int(drift["confirmed_nights"]) >= Watch().confirm_nights


def note(
    night: Night, device: str, software: str, *, readings: Mapping[str, float | None] | None = None,
    sensors: SensorNight | None = None,
) -> list[Finding]:  # fmt: skip
    """Keep what was read for the nights to come; a finding where that cannot be written, which must not cost the night."""
    try:
        note_night(device, night.record.id, software, readings=readings, sensors=sensors, folder=_folder(night))
    except StoreError as error:
        said = f"What was read of {device} tonight could not be kept: {error}. Later nights will not know of it; make room."
        return [Finding("storage", "warning", device, said)]
    return []


def judged_anchors(
    night: Night, device: str, ledger: Ledger, software: str, readings: Mapping[str, float | None]
) -> tuple[list[Finding], dict[str, Any], list[AnchorNight]]:
    """What tonight's anchors say beside all nights of the regime: findings, facts, and those nights.

    Raises:
        StoreError: what was noted of earlier nights cannot be read.
    """
    nights, damaged = watched_nights(device, _folder(night))
    findings, drift, history = _judged(device, nights, ledger, Watched(night.record.id, software, readings))
    if damaged:
        path = watched_path(device, _folder(night))
        said = f"{damaged} lines of {path} could not be read and were passed over; the other nights are used. Look at the disk."
        findings.append(Finding("storage", "warning", str(path), said, {"lines": damaged}))
    return findings, drift, history


def judged_sensors(
    night: Night, device: str, ledger: Ledger, software: str, tables: Mapping[str, pa.Table]
) -> tuple[list[Finding], dict[str, Any], dict[str, Any]]:
    """What the sensors beside the device's rows of tonight say: findings, tonight's readings, and what came of each sensor.

    Raises:
        StoreError: what was noted of earlier nights cannot be read.
    """
    tonight = sensor_night(night.record.id, tables)
    nights, _ = watched_nights(device, _folder(night))
    history = of_one_regime(nights, ledger, Watched(night.record.id, software))
    findings, drift = sensor_drift(device, [*(one.sensors for one in history if one.sensors is not None), tonight])
    return [*findings, *note(night, device, software, sensors=tonight)], tonight.to_json(), drift


def _judged(
    device: str, nights: list[Watched], ledger: Ledger, last: Watched
) -> tuple[list[Finding], dict[str, Any], list[AnchorNight]]:
    history = anchors_of(of_one_regime(nights, ledger, last), last)
    findings, drift = device_drift(device, [*history, AnchorNight(last.night, last.readings)])
    # Nothing was to be read, which is no finding.
    return (findings if last.readings else []), drift, history


def _folder(night: Night) -> Path | None:
    """A rehearsal's readings are of a recording: they are kept apart from those of the device."""
    return home_dir() / "regimes" / "rehearsed" if night.rehearsal else None
