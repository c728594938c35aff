"""Whether the model's intervals still hold on rows measured after it was trained.

Judged are rows that were not chosen for what the model says of them: space-filling ones and repeats. Rows chosen because the
model was unsure there (`informative`) or because users asked for them (`usage`) miss more often by construction and are left
out. A repeat may have been trained on; it then misses less often, which makes a false alarm rarer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...features.batch.cases import Cases, Floats, Strings
from ...models.predict.prediction import Predictions
from ...models.training.labelled_cases import LabelledCases
from ..record.record import Finding

JUDGED = ("space-filling", "repeat")
"""Why a row was measured, for those that are judged."""

ALL = "all"


class PredictsCases(Protocol):
    """What a predictor has to do here."""

    def predict_cases(self, cases: Cases, *, coverage: float = 0.9) -> Predictions:
        """Predictions in columns."""


@dataclass(frozen=True, slots=True)
class CoverageRule:
    """When intervals no longer hold.

    Attributes:
        false_alarms: Probability of a false alarm in a night over all slices, if rows miss independently of each other.
        tolerance: By how much the share inside may fall short of the coverage. Rows of one night hang together, and a small
            loss is for the gate to judge.
        least_rows: Fewer rows of a slice say nothing.
    """

    false_alarms: float = 1e-4
    tolerance: float = 0.05
    least_rows: int = 20


@dataclass(frozen=True, slots=True)
class FreshRows:
    """Judged rows measured after the model was trained, columns of shape `(n,)`.

    Attributes:
        night: The night's id; ids sort in the order of time.
        family: The kernel family.
        measured_s: Measured latency in seconds.
        predicted_s: What the model says, in seconds.
        low_s: Lower end of its interval, in seconds.
        high_s: Upper end of its interval, in seconds.
        coverage: Coverage the intervals were made for.
    """

    night: Strings
    family: Strings
    measured_s: Floats
    predicted_s: Floats
    low_s: Floats
    high_s: Floats
    coverage: float

    def __len__(self) -> int:
        return len(self.measured_s)

    def take(self, rows: Any) -> FreshRows:
        """The rows at an index or mask."""
        return FreshRows(**{name: getattr(self, name)[rows] for name in _COLUMNS}, coverage=self.coverage)

    @property
    def inside(self) -> npt.NDArray[np.bool_]:
        """Which rows lie inside their interval, shape `(n,)`."""
        inside: npt.NDArray[np.bool_] = (self.low_s <= self.measured_s) & (self.measured_s <= self.high_s)
        return inside


_COLUMNS = ("night", "family", "measured_s", "predicted_s", "low_s", "high_s")


def fresh_rows(
    predictor: PredictsCases, tables: Sequence[LabelledCases], nights: Sequence[Strings], *, coverage: float = 0.9
) -> FreshRows:
    """The rows of each family with what `predictor` says of them; `nights` holds a column for each table.

    Raises:
        SpecError: a family that the model does not know.
    """
    columns: dict[str, list[Any]] = {name: [np.zeros(0, float if name.endswith("_s") else "<U1")] for name in _COLUMNS}
    for rows, night in zip(tables, nights, strict=True):
        if len(rows):
            answer = predictor.predict_cases(rows.cases, coverage=coverage).targets["latency_s"]
            family = np.full(len(rows), rows.cases.family.name)
            for name, part in zip(
                _COLUMNS, (night, family, rows.latency_s, answer.value, answer.lower, answer.upper), strict=True
            ):
                columns[name].append(part)
    return FreshRows(**{name: np.concatenate(parts) for name, parts in columns.items()}, coverage=coverage)


def model_drift(
    fresh: FreshRows, held_out_ape_pct: Mapping[str, float] | None = None, rule: CoverageRule | None = None
) -> tuple[list[Finding], dict[str, Any]]:
    """Findings and facts by family, and for `all`: tonight's numbers, and whether the rows of all nights are inside enough.

    `held_out_ape_pct` is the model's mean error on rows held out from its training, by family.
    """
    rule, held_out = rule or CoverageRule(), held_out_ape_pct or {}
    families = sorted(set(fresh.family.tolist()))
    tonight = max(fresh.night.tolist(), default="")
    findings: list[Finding] = []
    facts: dict[str, Any] = {}
    for name in (ALL, *families):
        rows = fresh if name == ALL else fresh.take(fresh.family == name)
        facts[name] = _numbers(rows.take(rows.night == tonight)) | {
            "held_out_mean_ape_pct": held_out.get(name), "nights": len(set(rows.night.tolist())), "state": "not enough rows",
        }  # fmt: skip
        if len(rows) < rule.least_rows:
            continue
        _, most = _share_interval(
            int(rows.inside.sum()), len(rows), 1.0 - 2.0 * rule.false_alarms / (1 + len(families))
        )
        lost = most < rows.coverage - rule.tolerance
        facts[name]["state"] = "drifted" if lost else "quiet"
        if lost:
            findings.append(_finding(name, rows, held_out.get(name)))
    return findings, facts


def _finding(name: str, rows: FreshRows, held_out_pct: float | None) -> Finding:
    numbers = _numbers(rows)
    error = (
        ""
        if held_out_pct is None
        else f", mean error {numbers['mean_ape_pct']:.1f} % and {held_out_pct:.1f} % when trained"
    )
    message = (
        f"The intervals of the serving model no longer hold for {'its fresh rows' if name == ALL else name}: "
        f"{numbers['coverage_pct']:.0f} % of {len(rows)} rows measured since {min(rows.night.tolist())} lie in intervals made "
        f"for {100 * rows.coverage:.0f} %; measured times are {numbers['bias_pct']:+.1f} % off the prediction in the "
        f"median{error}. Tonight's challengers learn from these rows; check the device if it drifted or its software changed."
    )
    shown = ("n", "coverage_pct", "bias_pct", "mean_ape_pct")
    return Finding("model-drift", "warning", name, message, {key: float(numbers[key]) for key in shown})


def _numbers(rows: FreshRows) -> dict[str, Any]:
    """Coverage with its exact 95 % interval, median bias and mean error in percent; None for no rows."""
    n = len(rows)
    names = ("coverage_pct", "coverage_low_pct", "coverage_high_pct", "bias_pct", "mean_ape_pct")
    facts: dict[str, Any] = {"n": n, "expected_coverage_pct": 100.0 * rows.coverage}
    if n == 0:
        return facts | dict.fromkeys(names)
    hits = int(rows.inside.sum())
    shares = [100.0 * share for share in (hits / n, *_share_interval(hits, n, 0.95))]
    bias = 100.0 * float(np.median(rows.measured_s / rows.predicted_s) - 1.0)
    ape = 100.0 * float(np.mean(np.abs(rows.predicted_s / rows.measured_s - 1.0)))
    return facts | dict(zip(names, (*shares, bias, ape), strict=True))


def _share_interval(hits: int, n: int, level: float) -> tuple[float, float]:
    """Exact interval of a share after `hits` of `n` > 0 (Clopper and Pearson, Biometrika 26, 1934)."""
    # Not scipy.stats, which takes seconds to import, for the same function.
    from scipy.special import betaincinv

    tail = (1.0 - level) / 2.0
    low = float(betaincinv(hits, n - hits + 1, tail)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, n - hits, 1.0 - tail)) if hits < n else 1.0
    return low, high
