"""Which rows of a device may be learned from together: those of its regime, and older ones moved by what is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...datasets.tables import numbers, text
from ...features.cases import Floats, Indices, Strings
from ...features.coded import Words
from ...models.labelled import Labelled
from .ledger import Ledger, seconds_of

Mask = npt.NDArray[np.bool_]

MOST_HALF_WIDTH = 0.03
"""The widest half of a shift's interval, in ln, that rows are still moved by: about what a median case is measured to."""

_TIMES = ("latency_s", "latency_q1_s", "latency_q3_s", "latency_min_s", "steady_latency_s")
_ENERGIES = ("energy_j", "net_energy_j")


@dataclass(frozen=True, slots=True)
class RowCounts:
    """What became of a device's rows: used `as_they_are`, `moved` by a known shift, and `left_out` by why and how many."""

    as_they_are: int = 0
    moved: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data for a night's record."""
        return {"as_they_are": self.as_they_are, "moved": self.moved, "left_out": dict(self.left_out)}

    def joined(self, other: RowCounts) -> RowCounts:
        """Both together."""
        left = {
            why: self.left_out.get(why, 0) + other.left_out.get(why, 0) for why in {**self.left_out, **other.left_out}
        }
        return RowCounts(self.as_they_are + other.as_they_are, self.moved + other.moved, left)


def regimes_of(ledger: Ledger, software: Strings, measured_at: Strings) -> tuple[list[str], Indices]:
    """Names of regimes, and which of them each row belongs to, shape `(n,)`; -1 for software nobody has decided about."""
    names = [one.id for one in ledger.regimes]
    place = np.full(len(software), -1, dtype=np.intp)
    by_software = Words.of(software)
    for code, word in enumerate(by_software.words):
        rows = np.flatnonzero(by_software.code == code)
        spans = [span for span in ledger.spans if span.software == word]
        if not spans:
            continue
        place[rows] = names.index(spans[0].regime)
        if len(spans) > 1:
            moments = Words.of(measured_at[rows])
            at = np.array([seconds_of(moment) for moment in moments.words])[moments.code]
            for span in spans[1:]:
                place[rows[seconds_of(span.since) <= at]] = names.index(span.regime)
    return names, place


def places_in_training(
    ledger: Ledger, family: str, impl: Strings, software: Strings, measured_at: Strings,
    most_half_width: float = MOST_HALF_WIDTH,
) -> tuple[Mask, Floats, RowCounts]:  # fmt: skip
    """Which rows of one device and family may be learned from, what is added to their ln latency, and the counts.

    A device without regimes has all its rows as they are.
    """
    n = len(impl)
    if ledger.current is None:
        return np.ones(n, dtype=np.bool_), np.zeros(n), RowCounts(as_they_are=n)
    names, place = regimes_of(ledger, software, measured_at)
    words = Words.of(impl)
    keep, added = np.zeros(n, dtype=np.bool_), np.zeros(n)
    counts = RowCounts()
    for code in np.unique(place):
        for number, word in enumerate(words.words):
            rows = np.flatnonzero((place == code) & (words.code == number))
            if not len(rows):
                continue
            key = f"{family}/{word}"
            if code < 0:
                counts = counts.joined(RowCounts(left_out={"software nobody has decided about yet": len(rows)}))
                continue
            shift = ledger.shift(names[code], ledger.current.id, key)
            if shift is None:
                counts = counts.joined(RowCounts(left_out={f"{names[code]}, {key}: the shift is not known": len(rows)}))
            elif (shift.high - shift.low) / 2.0 > most_half_width:
                counts = counts.joined(RowCounts(left_out={f"{names[code]}, {key}: the shift is too wide": len(rows)}))
            else:
                keep[rows], added[rows] = True, shift.log_ratio
                moved = shift.log_ratio != 0.0
                counts = counts.joined(RowCounts(moved=len(rows)) if moved else RowCounts(as_they_are=len(rows)))
    return keep, added, counts


def rows_for_training(table: pa.Table, family: str, ledger: Ledger, device: str) -> tuple[pa.Table, RowCounts]:
    """Stored rows of one family as they may be learned from: other devices' as they are, the device's by its regimes.

    Times of moved rows are multiplied by the shift; their energies, whose shift nobody measured, become null.
    """
    own = np.flatnonzero(text(table, "device") == device)
    rows = table.take(pa.array(own))
    keep, added, counts = places_in_training(
        ledger, family, text(rows, "impl"), text(rows, "software"), text(rows, "measured_at")
    )
    wanted, factor = np.ones(table.num_rows, dtype=np.bool_), np.ones(table.num_rows)
    wanted[own], factor[own] = keep, np.exp(added)
    moved = factor != 1.0
    if moved.any():
        for name in (*_TIMES, *_ENERGIES):
            if name not in table.column_names:
                continue
            values = numbers(table, name).values * factor
            missing = np.isnan(values) | (moved if name in _ENERGIES else False)
            column = pa.array(values, pa.float64(), mask=missing)
            table = table.set_column(table.column_names.index(name), table.schema.field(name), column)
    return table.filter(pa.array(wanted)), counts


def labelled_for_training(
    rows: Labelled, software: Strings, measured_at: Strings, ledger: Ledger, device: str
) -> tuple[Labelled, RowCounts]:
    """`rows_for_training` of rows already in columns; `software` and `measured_at` (empty: not known) of shape `(n,)`."""
    own = np.flatnonzero(rows.cases.device == device)
    cases = rows.cases.take(own)
    keep, added, counts = places_in_training(
        ledger, rows.cases.family.name, cases.impl, software[own], measured_at[own]
    )
    wanted, factor = np.ones(len(rows), dtype=np.bool_), np.ones(len(rows))
    wanted[own], factor[own] = keep, np.exp(added)
    return replace(rows, latency_s=rows.latency_s * factor).take(np.flatnonzero(wanted)), counts
