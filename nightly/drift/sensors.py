"""Clocks, temperature, idle power and throttling over nights: a rank rule whose false alarms are known whatever the law.

A sensor has drifted when its last `run` nights are all above, or all below, every night before. Of `n + run` exchangeable
nights, any `run` are the highest with probability `run! n! / (n + run)!`, and a draw counts against an alarm; summed over
all `n` from `least_nights` on, a regime of any length has a false alarm with at most `false_alarms_per_regime`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from ...datasets.tables import numbers
from ..record import Finding
from .robust import plain


@dataclass(frozen=True, slots=True)
class Sensor:
    """One thing read every night: its name in a sentence, its unit there, how its SI value is shown, and the least move of
    its median that is told: a share of the value before (`relative`) or an amount in its SI unit. `advice` is what to do.
    """

    title: str
    unit: str
    per_unit: float
    least_move: float
    relative: bool
    advice: str


SENSORS: Mapping[str, Sensor] = MappingProxyType({
    "clock_hz": Sensor("SM clock", "MHz", 1e6, 0.02, True,
                       "Look for a power or clock limit that was set, and at the cooling."),
    "temperature_c": Sensor("temperature", "°C", 1.0, 5.0, False, "Look at fans, dust, and what runs beside it."),
    "idle_power_w": Sensor("power at rest", "W", 1.0, 0.10, True,
                           "Look for another program that holds the device, or a changed persistence mode."),
    "throttled_share": Sensor("share of rows measured while the device throttled", "%", 0.01, 0.10, False,
                              "Look at the cooling and the power limit; such rows say little about kernels."),
})  # fmt: skip
"""What is watched; a night's reading is the median over its rows, or a share from 0 to 1."""


@dataclass(frozen=True, slots=True)
class SensorWatch:
    """`least_nights` nights before, and `run` nights in a row beyond all of them. `limit_move` is the share by which a power
    limit, which is a setting and has no noise, must differ from the night before.
    """

    least_nights: int = 10
    run: int = 4
    limit_move: float = 0.005


@dataclass(frozen=True, slots=True)
class SensorNight:
    """What a night read of a device's sensors: values by name in SI units, None where there is no such sensor.

    Names are those of `SENSORS` and `power_limit_w`; `throttle` are the words the device gave for throttling.
    """

    night: str
    values: Mapping[str, float | None] = field(default_factory=dict)
    throttle: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data for a night's record."""
        return {"night": self.night, "values": dict(self.values), "throttle": list(self.throttle)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> SensorNight:
        """The night `to_json` described."""
        return cls(str(content["night"]), dict(content["values"]), tuple(content["throttle"]))


def sensor_night(night: str, tables: Mapping[str, pa.Table]) -> SensorNight:
    """What the rows of a device and night say of its sensors; `tables` are its stored rows by family.

    Medians over all rows that were measured. `throttle` has words joined by commas, and is null where nothing was read.
    """
    columns = {"clock_hz": "sm_clock_hz", "temperature_c": "temperature_c", "idle_power_w": "idle_power_w",
               "power_limit_w": "power_limit_w"}  # fmt: skip
    values: dict[str, float | None] = {}
    for name, column in columns.items():
        parts = [numbers(table, column).values for table in tables.values()]
        known = np.concatenate([np.zeros(0), *(part[np.isfinite(part)] for part in parts)])
        values[name] = float(np.median(known)) if len(known) else None
    said = [
        one for table in tables.values() if "throttle" in table.column_names for one in table["throttle"].to_pylist()
    ]
    reasons = [tuple(word.strip() for word in one.split(",") if word.strip()) for one in said if one is not None]
    values["throttled_share"] = sum(map(bool, reasons)) / len(reasons) if reasons else None
    return SensorNight(night, values, tuple(sorted({word for one in reasons for word in one})))


def false_alarms_per_regime(watch: SensorWatch) -> float:
    """The most probable false alarm of one sensor in a whole regime, either way: 2 r! n! / ((r - 1) (n + r - 1)!) for a run
    of r after at least n nights.
    """
    n, r = watch.least_nights, watch.run
    return 2.0 * math.exp(math.lgamma(r + 1) + math.lgamma(n + 1) - math.lgamma(n + r)) / (r - 1)


def unlike_all_before(values: Sequence[float | None], watch: SensorWatch) -> int:
    """1 where the last nights are all higher than every night before, -1 where lower, 0 otherwise or with too few nights."""
    known = np.array([value for value in values if value is not None and math.isfinite(value)])
    if len(known) < watch.least_nights + watch.run or not values or values[-1] is None:
        return 0
    before, last = known[: -watch.run], known[-watch.run :]
    return int(last.min() > before.max()) - int(last.max() < before.min())


def sensor_drift(
    device: str, nights: Sequence[SensorNight], watch: SensorWatch | None = None
) -> tuple[list[Finding], dict[str, Any]]:
    """What the sensors of a device say of its last night against the nights before in the same regime, in order of time."""
    rule = watch or SensorWatch()
    findings, facts = [], {}
    for name, sensor in SENSORS.items():
        values = [night.values.get(name) for night in nights]
        known = [value for value in values if value is not None and math.isfinite(value)]
        if not known:
            continue
        way = unlike_all_before(values, rule)
        enough = len(known) >= rule.least_nights + rule.run
        before, last = float(np.median(known[: -rule.run] or known)), float(np.median(known[-rule.run :]))
        far = abs(last - before) >= sensor.least_move * (abs(before) if sensor.relative else 1.0)
        state = "drifted" if way and far else "quiet" if enough else "not enough history"
        facts[name] = {"state": state, "nights": len(known), "before": before, "last": last}
        if way and far:
            findings.append(_told(device, sensor, before, last, rule, len(known)))
    findings += [*_limit_moved(device, nights, rule, facts), *_new_words(device, nights, facts)]
    return findings, facts


def _told(device: str, sensor: Sensor, before: float, last: float, rule: SensorWatch, nights: int) -> Finding:
    way = "above" if last > before else "below"
    said = (
        f"The {sensor.title} of {device} has been {last / sensor.per_unit:.4g} {sensor.unit} over the last {rule.run} nights, "
        f"{way} each of the {nights - rule.run} nights before ({before / sensor.per_unit:.4g} {sensor.unit}). {sensor.advice}"
    )
    return Finding("sensor", "warning", device, said, {"before": before, "last": last, "nights": float(nights)})


def _limit_moved(device: str, nights: Sequence[SensorNight], rule: SensorWatch, facts: dict[str, Any]) -> list[Finding]:
    limits = [value for night in nights if (value := night.values.get("power_limit_w"))]
    if limits:
        facts["power_limit_w"] = {"last": limits[-1], "before": limits[-2] if len(limits) > 1 else None}
    if len(limits) < 2 or nights[-1].values.get("power_limit_w") is None:
        return []
    before, last = limits[-2:]
    if abs(last / before - 1.0) <= rule.limit_move:
        return []
    said = (
        f"The power limit of {device} is {last:.4g} W tonight and was {before:.4g} W the night before. It changes how fast "
        "kernels run: set it back, or leave it and let tonight's bridge decide whether a new regime opens."
    )
    return [Finding("sensor", "needs-person", device, said, {"before": before, "last": last})]


def _new_words(device: str, nights: Sequence[SensorNight], facts: dict[str, Any]) -> list[Finding]:
    """Reasons for throttling never given before; hardware's own are told at once, since they are no chance."""
    if not nights or not any(night.throttle for night in nights):
        return []
    known = {word for night in nights[:-1] for word in night.throttle}
    facts["throttle"] = sorted(nights[-1].throttle)
    new = sorted(set(nights[-1].throttle) - known)
    if not new or len(nights) < 2:
        return []
    said = (
        f"{device} throttled tonight for a reason not seen in the {len(nights) - 1} nights before: {', '.join(new)}. "
        "Look at its cooling and power supply if this stays."
    )
    return [Finding("sensor", "info", device, said, {"reasons": plain(len(new))})]
