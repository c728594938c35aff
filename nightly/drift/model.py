"""Do the model's intervals still hold on rows measured after it was trained?

Judged are rows that were not chosen for what the model says of them: space-filling ones and repeats. Rows chosen because the
model was unsure there (`informative`), because somebody asked for them (`usage`) or to bridge regimes miss more often by
construction: they are reported apart and decide nothing. A repeat may have been trained on; it then misses less often than
promised, which makes a false alarm rarer, and still moves when the device does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...features.cases import Floats, Strings
from ...models.labelled import Labelled
from ..record import Finding
from .data import PredictsCases
from .evidence import CoverageWatch, coverage_evidence, likely_start
from .robust import bootstrap_median, percent, plain, share_interval

JUDGED = ("space-filling", "repeat")
"""Why a row was measured, for those that are judged."""

ALL = "all"
_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class FreshRows:
    """Rows measured after the model was trained, columns of shape `(n,)`: the night, the slice (a family, say), why it was
    measured, seconds measured and predicted, and the ends of the interval of `coverage`.
    """

    night: Strings
    slice: Strings
    why: Strings
    measured_s: Floats
    predicted_s: Floats
    low_s: Floats
    high_s: Floats
    coverage: float

    def __len__(self) -> int:
        return len(self.measured_s)

    def take(self, rows: Any) -> FreshRows:
        """The rows at an index or mask."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return FreshRows(**columns, coverage=self.coverage)

    @property
    def outside(self) -> npt.NDArray[np.bool_]:
        """Which rows lie outside their interval, shape `(n,)`."""
        found: npt.NDArray[np.bool_] = (self.measured_s < self.low_s) | (self.measured_s > self.high_s)
        return found


_NUMBERS = ("coverage_pct", "coverage_low_pct", "coverage_high_pct", "bias_pct", "bias_low_pct", "bias_high_pct",
            "mean_ape_pct")  # fmt: skip

_COLUMNS = ("night", "slice", "why", "measured_s", "predicted_s", "low_s", "high_s")


def fresh_rows(
    predictor: PredictsCases, tables: Sequence[Labelled], nights: Sequence[Strings], why: Sequence[Strings],
    *, coverage: float = 0.9,
) -> FreshRows:  # fmt: skip
    """The rows of each family with what `predictor` says of them; `nights` and `why` hold a column for each table.

    Nights have to sort in the order of time, as their ids do. Slices are the families.

    Raises:
        SpecError: a family that the model does not know.
    """
    columns: dict[str, list[Any]] = {
        name: [np.zeros(0)] if name.endswith("_s") else [np.zeros(0, "<U1")] for name in _COLUMNS
    }
    for rows, night, reason in zip(tables, nights, why, strict=True):
        if len(rows):
            said = predictor.predict_cases(rows.cases, coverage=coverage).targets["latency_s"]
            family = np.full(len(rows), rows.cases.family.name)
            parts = (night, family, reason, rows.latency_s, said.value, said.lower, said.upper)
            for name, part in zip(_COLUMNS, parts, strict=True):
                columns[name].append(part)
    return FreshRows(**{name: np.concatenate(parts) for name, parts in columns.items()}, coverage=coverage)


def model_drift(
    fresh: FreshRows,
    held_out_ape_pct: Mapping[str, float] | None = None,
    *,
    watch: CoverageWatch | None = None,
    seed: int = 0,
) -> tuple[list[Finding], dict[str, Any]]:
    """What all nights since the model was trained say of it; the last night is tonight.

    `held_out_ape_pct` is the model's own mean error on rows held out from its training, by slice. The facts have for every
    slice and for `all` what tonight's judged rows say, the evidence so far and the limit it alarms at, and under `not judged`
    the rest of tonight's rows by why they were measured.
    """
    rule, own = watch or CoverageWatch(), held_out_ape_pct or {}
    nights = sorted(set(fresh.night.tolist()))
    judged = fresh.take(np.isin(fresh.why, JUDGED))
    slices = sorted(set(judged.slice.tolist()))
    findings: list[Finding] = []
    facts: dict[str, Any] = {}
    for name in (ALL, *slices):
        rows = judged if name == ALL else judged.take(judged.slice == name)
        finding, facts[name] = _slice(name, rows, nights, own.get(name), rule, len(slices), seed)
        findings += finding
    apart = fresh.take(~np.isin(fresh.why, JUDGED) & (fresh.night == (nights[-1] if nights else "")))
    reasons = sorted(set(apart.why.tolist()))
    facts["not judged"] = {one or "unknown": _numbers(apart.take(apart.why == one), seed) for one in reasons}
    return findings, facts


def _slice(
    name: str, rows: FreshRows, nights: Sequence[str], own: float | None, rule: CoverageWatch, slices: int, seed: int
) -> tuple[list[Finding], dict[str, Any]]:
    by_night = [rows.take(rows.night == night) for night in nights]
    shares = [one.outside.mean() if len(one) >= rule.least_rows else np.nan for one in by_night]
    outside = np.array(shares, dtype=np.float64)
    gathered = coverage_evidence(outside, rows.coverage, rule)
    evidence, limit = float(gathered[-1]) if len(gathered) else 0.0, rule.limit(slices, name == ALL)
    told = int(np.count_nonzero(~np.isnan(shares)))
    tonight = by_night[-1] if by_night else rows
    facts = _numbers(tonight, seed) | {
        "held_out_mean_ape_pct": own, "nights": told, "evidence": evidence, "evidence_limit": limit,
        "state": "drifted" if evidence >= limit else "quiet" if told else "not enough rows",
    }  # fmt: skip
    if evidence < limit:
        return [], facts
    since = likely_start(outside, rows.coverage)
    late = _numbers(rows.take(np.isin(rows.night, nights[since:])), seed)
    error = f", mean error {late['mean_ape_pct']:.1f} % where it promised {own:.1f} %" if own is not None else ""
    said = (
        f"The serving model no longer holds for {'its fresh rows' if name == ALL else name}: since the night {nights[since]}, "
        f"{late['coverage_pct']:.0f} % of {late['n']} rows lie in intervals made for {100 * rows.coverage:.0f} %, and "
        f"measured times are {late['bias_pct']:+.1f} % off the prediction in the median ({late['bias_low_pct']:+.1f} to "
        f"{late['bias_high_pct']:+.1f} %){error}. Tonight's challengers learn from these rows; look at the device if it was "
        "found to drift too."
    )
    numbers = {key: plain(late[key]) for key in ("n", "coverage_pct", "bias_pct", "mean_ape_pct")} | {
        "evidence": evidence
    }
    return [Finding("model-drift", "warning", name, said, numbers)], facts


def _numbers(rows: FreshRows, seed: int) -> dict[str, Any]:
    """What rows say by themselves: coverage with its exact interval, bias with a bootstrapped one, error; None for no rows."""
    n = len(rows)
    facts: dict[str, Any] = {"n": n, "expected_coverage_pct": 100.0 * rows.coverage}
    if n == 0:
        return facts | dict.fromkeys(_NUMBERS)
    inside = n - int(np.count_nonzero(rows.outside))
    coverage = (inside / n, *share_interval(inside, n, _LEVEL))
    ratio = np.log(rows.measured_s / rows.predicted_s)
    bias = (float(np.median(ratio)), *bootstrap_median(ratio, _LEVEL, seed))
    ape = 100.0 * float(np.mean(np.abs(rows.predicted_s / rows.measured_s - 1.0)))
    values = (*(100.0 * share for share in coverage), *map(percent, bias), ape)
    return facts | dict(zip(_NUMBERS, values, strict=True))
