"""What was read of a device, night by night: a file that outlives the folders of nights, since slow creeps need all of them.

`KERNELCAST_HOME/regimes/<device>.anchors.jsonl`, one JSON object a line, only ever appended to. Lines of one night add up: the
stages that write them are minutes apart. A line that a crash cut short is passed over and counted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...datasets.store import StoreError
from .device import AnchorNight
from .ledger import Ledger, ledger_path
from .sensors import SensorNight


@dataclass(frozen=True, slots=True)
class Watched:
    """One night of a device: the software it ran, seconds by anchor case (None where it gave no time), and its sensors."""

    night: str
    software: str
    readings: Mapping[str, float | None] = field(default_factory=dict)
    sensors: SensorNight | None = None


def watched_path(device: str, folder: Path | None = None) -> Path:
    """The device's file; `folder` stands for KERNELCAST_HOME/regimes.

    Raises:
        SpecError: a device name that cannot name a file.
    """
    return ledger_path(device, folder).with_name(f"{device}.anchors.jsonl")


def note_night(
    device: str, night: str, software: str, *, readings: Mapping[str, float | None] | None = None,
    sensors: SensorNight | None = None, folder: Path | None = None,
) -> None:  # fmt: skip
    """Add what was read tonight; what an earlier line of the night says and this one does not stays.

    Raises:
        SpecError: a device name that cannot name a file.
        StoreError: the disk is full or not writable.
    """
    path = watched_path(device, folder)
    line: dict[str, Any] = {"night": night, "software": software}
    line |= {} if readings is None else {"readings": dict(readings)}
    line |= {} if sensors is None else {"sensors": sensors.to_json()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            size = os.fstat(handle).st_size
            # A line cut short by a crash must not swallow this one.
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            text = f"{chr(10) if torn else ''}{json.dumps(line, ensure_ascii=False, allow_nan=False)}\n"
            os.write(handle, text.encode())
            os.fsync(handle)
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error


def watched_nights(device: str, folder: Path | None = None) -> tuple[list[Watched], int]:
    """Every night of the device in order of their ids, and how many lines could not be read.

    Raises:
        SpecError: a device name that cannot name a file.
        StoreError: the file is there and cannot be opened.
    """
    path = watched_path(device, folder)
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    found: dict[str, Watched] = {}
    damaged = 0
    for line in filter(None, text.split("\n")):
        try:
            one = _night(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            damaged += 1
            continue
        before = found.get(one.night, one)
        found[one.night] = replace(
            one, readings={**before.readings, **one.readings}, sensors=one.sensors or before.sensors
        )
    return [found[name] for name in sorted(found)], damaged


def of_one_regime(nights: Sequence[Watched], ledger: Ledger, last: Watched) -> list[Watched]:
    """The nights before `last` in its regime, in order: by what is decided now, so that nights that waited are among them.

    Where nobody has decided about the software of `last`, the nights of that software.
    """
    regime = _regime(ledger, last)
    return [one for one in nights if one.night < last.night and _regime(ledger, one) == regime]


def anchors_of(nights: Sequence[Watched], last: Watched) -> list[AnchorNight]:
    """Readings of the cases that `last` read: a night that read others says nothing of tonight's."""
    own = [{name: one.readings[name] for name in last.readings if name in one.readings} for one in nights]
    return [AnchorNight(one.night, cases) for one, cases in zip(nights, own, strict=True) if cases]


def _regime(ledger: Ledger, one: Watched) -> tuple[str, str]:
    found = ledger.regime_of(one.software, one.night)
    return ("regime", found) if found is not None else ("software", one.software)


def _night(content: Mapping[str, Any]) -> Watched:
    night, software, readings = content["night"], content["software"], content.get("readings", {})
    if not isinstance(night, str) or not isinstance(software, str):
        raise TypeError("no night")
    if any(value is not None and not isinstance(value, int | float) for value in readings.values()):
        raise TypeError("no readings")
    sensors = content.get("sensors")
    return Watched(night, software, dict(readings), SensorNight.from_json(sensors) if sensors is not None else None)
