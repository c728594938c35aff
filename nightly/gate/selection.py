"""Which of the models kept is worth bringing back: by when and under what it was made, by how wrong it was, or both.

Temporal adjacency needs no rows: what software a device runs is known before anything is measured there. Recent error needs
rows under that software, and knows nothing in the night after a change. `both` asks for the software first, then the error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from .ledger import ModelEntry, RecentError, night_time

HALF_LIFE_DAYS = 7.0
"""A night's errors count half as much a week later."""

PRIOR_ROWS = 50.0
"""So many rows of an average model are added to every model's own: a handful of lucky rows does not make it the best."""

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Now:
    """For when a model is chosen: the night's id, and by device the software there and its regime (empty if unknown)."""

    night: str
    software: Mapping[str, str]
    regime: Mapping[str, str]

    def at(self) -> datetime:
        """When the night began."""
        return night_time(self.night)


Policy = Callable[[Sequence[ModelEntry], Now], list[ModelEntry]]
"""Puts models in order, the one to take first."""


def by_adjacency(entries: Sequence[ModelEntry], now: Now) -> list[ModelEntry]:
    """Models made under the same software first (on most of the devices), then the nearest in time."""
    return sorted(entries, key=lambda entry: (-_same(entry, now), _days(entry, now), entry.version))


def by_error(entries: Sequence[ModelEntry], now: Now) -> list[ModelEntry]:
    """The least wrong of late first; equals by nearness in time."""
    excess = excess_errors(entries, now)
    return sorted(entries, key=lambda entry: (excess[entry.version], _days(entry, now), entry.version))


def by_both(entries: Sequence[ModelEntry], now: Now) -> list[ModelEntry]:
    """Models made under the same software first, and among equals the least wrong of late."""
    excess = excess_errors(entries, now)
    return sorted(
        entries, key=lambda entry: (-_same(entry, now), excess[entry.version], _days(entry, now), entry.version)
    )


POLICIES: Mapping[str, Policy] = {"adjacency": by_adjacency, "error": by_error, "both": by_both}


def excess_errors(
    entries: Sequence[ModelEntry], now: Now, *, half_life_days: float = HALF_LIFE_DAYS, prior_rows: float = PRIOR_ROWS
) -> dict[str, float]:
    """By version, points of mean error above what the models had on average on the same rows, decayed and shrunk to zero.

    Nights differ in how hard their cases are, and a new model was asked in few of them: only the difference within a night,
    family and device can be compared. Where the devices' regime is known, only rows of it count.
    """
    told: dict[tuple[str, str, str], list[tuple[str, RecentError]]] = {}
    for entry in entries:
        for one in entry.errors:
            regime = now.regime.get(one.device, "")
            if not regime or not one.regime or one.regime == regime:
                told.setdefault((one.night, one.device, one.family), []).append((entry.version, one))
    sums = {entry.version: 0.0 for entry in entries}
    weights = dict.fromkeys(sums, 0.0)
    for (night, _, _), ones in told.items():
        mean = sum(one.mean_ape_pct for _, one in ones) / len(ones)
        age_days = abs((now.at() - night_time(night)).total_seconds()) / _DAY_S
        for version, one in ones:
            weight = 0.5 ** (age_days / half_life_days) * one.n
            sums[version] += weight * (one.mean_ape_pct - mean)
            weights[version] += weight
    return {version: sums[version] / (weights[version] + prior_rows) for version in sums}


def _same(entry: ModelEntry, now: Now) -> float:
    """Share of the devices on which the model learned from what runs now: by regime where both are known, else by software."""
    devices = {*now.software, *now.regime}
    same = 0
    for device in devices:
        was, is_now = entry.regime.get(device, ""), now.regime.get(device, "")
        if was and is_now:
            same += was == is_now
        else:
            same += bool(now.software.get(device)) and entry.software.get(device) == now.software[device]
    return same / len(devices) if devices else 0.0


def _days(entry: ModelEntry, now: Now) -> float:
    return abs((now.at() - entry.made_at()).total_seconds()) / _DAY_S
