"""Physical checks: what a measured row must satisfy before anything is learned from it.

The rules work on columns, so a block of a campaign and a table of 100,000 rows are judged by the same code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...features.batch.cases import Cases, Floats, Indices
from ...features.cost.bounds import work
from ...features.device import Catalogue, catalogue
from ...features.errors import SpecError, listed
from ...features.kernel import KernelSpec
from .schema import STATUSES, Measurement

Mask = npt.NDArray[np.bool_]

LowerBounds = Callable[[Sequence[KernelSpec], Sequence[str]], Floats]
"""`(specs, devices) -> seconds`, shape `(n,)`; NaN where no bound is known."""

POWER_OVER_LIMIT = 1.3
"""Boards overshoot their power limit for milliseconds; a longer average above 1.3 times the limit is a unit error."""

ENERGY_MISMATCH = 0.5
"""Energy may differ from latency times power by this share: sensors average over windows, but a unit is 1000 off."""

BOUND_SLACK = 0.02
"""Datasheets round, and boards boost a little above them: three of 59,136 public GEMM rows beat theirs by 0.07 %."""

CPU_SLACK = 2.5
"""How far a CPU may beat its bound where its peaks were measured: a virtual machine shares its host and is as fast as the hour.
A core of an AMD EPYC 7003 reached 60 GFLOP/s in fp32 one day and 84 on another. A unit error is further off."""

_TIMES = ("latency_s", "latency_q1_s", "latency_q3_s", "latency_min_s")
_NUMBERS = (*_TIMES, "power_w", "power_limit_w", "energy_j", "n_samples", "rejected_samples", "first_call_s")


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that was not accepted. As text, rows count from 1.

    Attributes:
        row: Position, from 0.
        column: The column at fault.
        reason: What is wrong with it.
        advice: What is possible and what to do, where many rows share it; no part of the text.
    """

    row: int
    column: str
    reason: str
    advice: str = ""

    def __str__(self) -> str:
        return f"row {self.row + 1}: {self.column}: {self.reason}"


class Refusals:
    """Collects what is wrong with `n` rows; the first reason found for a row is the one that stays."""

    def __init__(self, n: int) -> None:
        self.bad: Mask = np.zeros(n, dtype=np.bool_)
        self._refused: list[Refused] = []

    def add(self, mask: Mask, column: str, reason: str | Callable[[int], str], advice: str = "") -> None:
        """Refuse the rows of `mask`, shape `(n,)`, with `reason` or `reason(row)`; the first reason of a row stays."""
        new = np.flatnonzero(mask & ~self.bad)
        self._refused.extend(
            Refused(int(i), column, reason if isinstance(reason, str) else reason(int(i)), advice) for i in new
        )
        self.bad[new] = True

    def merge(self, part: Refusals, rows: Indices) -> None:
        """Take over what was found in the rows at positions `rows` (part's row i is `rows[i]` here)."""
        self._refused.extend(replace(refused, row=int(rows[refused.row])) for refused in part._refused)
        self.bad[rows[part.bad]] = True

    def __iter__(self) -> Iterator[Refused]:
        return iter(sorted(self._refused, key=lambda refused: refused.row))

    def __len__(self) -> int:
        return len(self._refused)


def check_measurements(measurements: Sequence[Measurement], lower_bounds: LowerBounds | None = None) -> list[Refused]:
    """Rows that cannot be true, by position in the list.

    `lower_bounds` defaults to the paper bounds of the device catalogue; a device not in it has none and is not judged
    by them.
    """
    columns: dict[str, Any] = {
        name: np.array([_number(getattr(m, name)) for m in measurements], dtype=np.float64) for name in _NUMBERS
    }
    columns["status"] = np.array([m.status for m in measurements], dtype=np.str_)
    columns["energy_source"] = np.array([m.energy_source or "" for m in measurements], dtype=np.str_)

    def bounds_of(timed: Indices) -> Floats:
        rows = [measurements[i] for i in timed.tolist()]
        return (lower_bounds or catalogue_bounds)([row.spec for row in rows], [row.device for row in rows])

    return list(check_rows(columns, bounds_of))


def check_rows(columns: Mapping[str, Any], bounds_of: Callable[[Indices], Floats]) -> Refusals:
    """What is wrong with rows in columns; `bounds_of` gives the lower bounds in seconds of the rows at these positions."""
    refusals = Refusals(len(columns["status"]))
    check_statuses(columns, refusals)
    check_labels(columns, refusals)
    timed = np.flatnonzero(~refusals.bad & ~np.isnan(columns["latency_s"]))
    bounds = np.full(len(refusals.bad), np.nan)
    bounds[timed] = bounds_of(timed)
    check_bounds(columns["latency_s"], bounds, refusals)
    return refusals


def check_statuses(columns: Mapping[str, Any], refusals: Refusals) -> None:
    """Refuse unknown statuses, `ok` without a latency, anything else with one, and energy without a sensor."""
    status, latency = columns["status"], columns["latency_s"]
    ok = status == "ok"
    refusals.add(~np.isin(status, STATUSES), "status", lambda i: f"is {status[i]!r}; it is one of {listed(STATUSES)}")
    refusals.add(ok & np.isnan(latency), "latency_s", "is missing though the status is ok")
    for name in (*_TIMES, "power_w", "energy_j"):
        filled = ~np.isnan(columns[name])
        refusals.add(~ok & filled, name, lambda i: f"is given though the status is {status[i]}")
    sensorless = ~np.isnan(columns["energy_j"]) & (columns["energy_source"] == "")
    refusals.add(sensorless, "energy_source", "is missing; energy is kept only with the sensor that read it")


def check_labels(columns: Mapping[str, Any], refusals: Refusals) -> None:
    """Refuse labels no machine can give: not positive, quartiles out of order, power far above its limit.

    `columns` are float64, shape `(n,)`, NaN for missing; absent columns are not judged.
    """
    for name in (*_TIMES, "power_w", "power_limit_w", "clock_hz", "energy_j"):
        if name in columns:
            values = columns[name]
            wrong = (values <= 0) | np.isinf(values)
            refusals.add(wrong, name, lambda i, v=values: f"must be a positive number, got {v[i]:g}")  # type: ignore[misc]
    order = [name for name in ("latency_min_s", "latency_q1_s", "latency_s", "latency_q3_s") if name in columns]
    for at, low in enumerate(order):
        for high in order[at + 1 :]:
            a, b = columns[low], columns[high]
            refusals.add(a > b, low, lambda i, a=a, b=b, h=high: f"is {a[i]:g}, above {h}, {b[i]:g}")  # type: ignore[misc]
    if "power_w" in columns and "power_limit_w" in columns:
        power, limit = columns["power_w"], columns["power_limit_w"]
        refusals.add(
            power > POWER_OVER_LIMIT * limit, "power_w",
            lambda i: f"is {power[i]:g} W, more than {POWER_OVER_LIMIT} times the limit of {limit[i]:g} W",
        )  # fmt: skip
    if all(name in columns for name in ("latency_s", "power_w", "energy_j")):
        energy, product = columns["energy_j"], columns["latency_s"] * columns["power_w"]
        # Infinities are refused above; here they would only make NaN.
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(energy - product) > ENERGY_MISMATCH * product
        refusals.add(
            apart, "energy_j",
            lambda i: f"is {energy[i]:g} J but latency times power is {product[i]:g} J; is one not in SI units?",
        )  # fmt: skip


def check_bounds(latency_s: Floats, bound_s: Floats, refusals: Refusals) -> None:
    """Refuse rows more than `BOUND_SLACK` faster than physics allows; seconds, shape `(n,)`, NaN where unknown."""
    refusals.add(
        latency_s < (1 - BOUND_SLACK) * bound_s, "latency_s",
        lambda i: f"is {latency_s[i]:.4g} s, below the lower bound of {bound_s[i]:.4g} s for this case and device",
    )  # fmt: skip


def catalogue_bounds(specs: Sequence[KernelSpec], devices: Sequence[str], *, known: Catalogue | None = None) -> Floats:
    """Lower bounds in seconds from the datasheets of `known` (default: shipped), NaN where it has no device or no peak."""
    groups: dict[str, list[int]] = {}
    for i, spec in enumerate(specs):
        groups.setdefault(spec.family, []).append(i)
    bounds = np.full(len(specs), np.nan)
    for rows in groups.values():
        cases = Cases.from_specs([specs[i] for i in rows], [devices[i] for i in rows])
        bounds[rows] = paper_bounds(cases, known or catalogue())
    return bounds


def paper_bounds(cases: Cases, known: Catalogue) -> Floats:
    """Seconds that no run of the cases can beat, shape `(n,)`; NaN where `known` lacks the device or its peak for the dtype."""
    bounds = np.full(len(cases), np.nan)
    for index, _ in cases.groups("device", "dtype"):
        # A user's own machine need not be in the catalogue: its rows are kept, only this one check is not made.
        with contextlib.suppress(SpecError):
            device = known.get(str(cases.device[index[0]]))
            slack = CPU_SLACK if device.kind == "cpu" and device.measured else 1.0
            bounds[index] = work(cases.take(index), known).lower_bound_s / slack
    return bounds


def as_failed(measurement: Measurement, reason: str) -> Measurement:
    """The row to store instead of a refused one: status `failed`, no labels, the reason as its message."""
    return replace(
        measurement, status="failed", latency_s=None, latency_q1_s=None, latency_q3_s=None, latency_min_s=None,
        power_w=None, energy_j=None, message=f"refused: {reason}",
    )  # fmt: skip


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)
