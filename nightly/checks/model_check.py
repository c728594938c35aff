"""The serving model on tonight's rows: whether its intervals still hold, and whether it loads.

Intervals are judged by rows that were not chosen for what was asked of the model: space-filling ones and repeats. Rows that
users asked for may miss more often and are left out. A repeat may have been trained on; it then misses less often, which makes
a false alarm rarer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...features.batch.cases import Floats, Strings
from ...models.family_model.artifact_files import ArtifactError
from ...models.predict.prediction import Predictor
from ...models.training.labelled_cases import LabelledCases
from ..context import Night, chosen_in
from ..gate.judge import Rules
from ..gate.model_ledger import serving_predictor
from ..gate.promotion import restore_loadable
from ..record.folders import blocks_of, nights_dir, records
from ..record.record import Finding
from ..rows import TrainingRows, in_blocks, night_tables

_NIGHTS = 14
"""Nights since the model began to serve whose rows judge its intervals."""


def check_intervals(
    night: Night, fresh: Mapping[str, pa.Table], reader: TrainingRows
) -> tuple[dict[str, Any], list[Finding]]:
    """Whether the serving model's intervals hold on rows measured since it was made; `fresh` are tonight's rows by family.

    Raises:
        StoreError: the store cannot be read.
        SpecError: what a night chose cannot be read.
    """
    try:
        predictor = serving_predictor(night.devices)
    except ArtifactError:
        return {}, []  # the stage `choose` has reported it
    folders = _since_promotion(night)
    earlier = night_tables(night, blocks=[block for folder in folders[:-1] for block in blocks_of(folder)])
    tables: list[LabelledCases] = []
    nights: list[Strings] = []
    for folder in folders:
        stored = fresh if folder == night.folder else earlier
        ids = [case.spec.case_id for case in chosen_in(folder) if case.why in JUDGED]
        where = in_blocks(blocks_of(folder)) & pc.field("case_id").isin(pa.array(ids, pa.string()))
        for table in reader.labelled({name: rows.filter(where) for name, rows in stored.items()}):
            if table.cases.family.name in predictor.families:
                tables.append(table)
                nights.append(np.full(len(table), folder.name))
    if not tables:
        return {"model_drift": {}}, []
    held_out = {
        name: float(entry["metrics"]["held_out"]["latency"]["mean_ape_pct"])
        for name, entry in predictor.manifest["families"].items()
        if entry.get("metrics", {}).get("held_out", {}).get("latency")
    }
    findings, facts = model_drift(fresh_rows(predictor, tables, nights), held_out)
    return {"model_drift": facts}, findings


def _since_promotion(night: Night) -> list[Path]:
    """Folders of the nights that the serving model has not learned from: this one, and those before it back to the
    promotion, oldest first.
    """
    folders = [night.folder]
    for folder, record in records(nights_dir()):
        if folder.name >= night.folder.name:
            continue
        if record.outcome in ("promoted", "rolled-back") or len(folders) >= _NIGHTS:
            break
        folders.append(folder)
    return sorted(folders)


def review_champion(night: Night) -> tuple[dict[str, Any], list[Finding]]:
    """Whether the serving model loads; where it does not, the one before serves again. The gate judges by rows.

    Raises:
        SpecError: the ledger of models cannot be read or written.
    """
    try:
        back = restore_loadable(night.devices)
    except ArtifactError as error:
        return {}, [Finding("registry", "needs-person", "champion", f"The serving model cannot be reviewed: {error}")]
    if back is None or back.version is None:
        return {}, []
    return {"rolled_back": {"from": back.previous, "to": back.version}}, list(back.findings)


def gate_rules(night: Night) -> Rules:
    """What the plan asks of the gate."""
    gate = night.plan.gate
    return Rules(alpha=1.0 - gate.confidence, may_forget=gate.may_forget)


JUDGED = ("space-filling", "repeat")
"""Why a row was measured, for those that are judged."""

ALL = "all"

_COVERAGE = 0.9
"""Coverage that intervals are made for."""

_FALSE_ALARMS = 1e-4
"""Probability of a false alarm in a night over all slices, if rows miss independently of each other."""

_TOLERANCE = 0.05
"""By how much the share inside may fall short of the coverage. Rows of one night hang together, and a small loss is for the
gate to judge."""

_LEAST_ROWS = 20
"""Fewer rows of a slice say nothing."""


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
    """

    night: Strings
    family: Strings
    measured_s: Floats
    predicted_s: Floats
    low_s: Floats
    high_s: Floats

    def __len__(self) -> int:
        return len(self.measured_s)

    def take(self, rows: Any) -> FreshRows:
        """The rows at an index or mask."""
        return FreshRows(*(getattr(self, name)[rows] for name in FreshRows.__slots__))

    @property
    def inside(self) -> npt.NDArray[np.bool_]:
        """Which rows lie inside their interval, shape `(n,)`."""
        return (self.low_s <= self.measured_s) & (self.measured_s <= self.high_s)


def fresh_rows(predictor: Predictor, tables: Sequence[LabelledCases], nights: Sequence[Strings]) -> FreshRows:
    """The rows of each family with what `predictor` says of them; `nights` holds a column for each table.

    Raises:
        SpecError: a family that the model does not know.
    """
    text, numbers = np.zeros(0, "<U1"), np.zeros(0)
    parts: list[tuple[Any, ...]] = [(text, text, numbers, numbers, numbers, numbers)]
    for rows, night in zip(tables, nights, strict=True):
        if len(rows):
            answer = predictor.predict_cases(rows.cases, coverage=_COVERAGE).targets["latency_s"]
            family = np.full(len(rows), rows.cases.family.name)
            parts.append((night, family, rows.latency_s, answer.value, answer.lower, answer.upper))
    return FreshRows(*map(np.concatenate, zip(*parts, strict=True)))


def model_drift(
    fresh: FreshRows, held_out_ape_pct: Mapping[str, float] | None = None
) -> tuple[list[Finding], dict[str, Any]]:
    """Findings and facts by family, and for `all`: tonight's numbers, and whether the rows of all nights are inside enough.

    `held_out_ape_pct` is the model's mean error on rows held out from its training, by family.
    """
    held_out = held_out_ape_pct or {}
    families = sorted(set(fresh.family.tolist()))
    tonight = max(fresh.night.tolist(), default="")
    findings: list[Finding] = []
    facts: dict[str, Any] = {}
    for name in (ALL, *families):
        rows = fresh if name == ALL else fresh.take(fresh.family == name)
        facts[name] = _numbers(rows.take(rows.night == tonight)) | {
            "held_out_mean_ape_pct": held_out.get(name), "nights": len(set(rows.night.tolist())), "state": "not enough rows",
        }  # fmt: skip
        if len(rows) < _LEAST_ROWS:
            continue
        _, most = _share_interval(int(rows.inside.sum()), len(rows), 1.0 - 2.0 * _FALSE_ALARMS / (1 + len(families)))
        lost = most < _COVERAGE - _TOLERANCE
        facts[name]["state"] = "drifted" if lost else "quiet"
        if lost:
            findings.append(_finding(name, rows, held_out.get(name)))
    return findings, facts


def _finding(name: str, rows: FreshRows, held_out_pct: float | None) -> Finding:
    numbers = _numbers(rows)
    error = ""
    if held_out_pct is not None:
        error = f", mean error {numbers['mean_ape_pct']:.1f} % and {held_out_pct:.1f} % when trained"
    message = (
        f"The intervals of the serving model no longer hold for {'its fresh rows' if name == ALL else name}: "
        f"{numbers['coverage_pct']:.0f} % of {len(rows)} rows measured since {min(rows.night.tolist())} lie in intervals made "
        f"for {100 * _COVERAGE:.0f} %; measured times are {numbers['bias_pct']:+.1f} % off the prediction in the "
        f"median{error}. Tonight's challengers learn from these rows; check the device if it drifted or its software changed."
    )
    shown = ("n", "coverage_pct", "bias_pct", "mean_ape_pct")
    return Finding("model-drift", "warning", name, message, {key: float(numbers[key]) for key in shown})


def _numbers(rows: FreshRows) -> dict[str, Any]:
    """Coverage with its exact 95 % interval, median bias and mean error in percent; None for no rows."""
    n = len(rows)
    names = ("coverage_pct", "coverage_low_pct", "coverage_high_pct", "bias_pct", "mean_ape_pct")
    facts: dict[str, Any] = {"n": n, "expected_coverage_pct": 100.0 * _COVERAGE}
    if n == 0:
        return facts | dict.fromkeys(names)
    hits = int(rows.inside.sum())
    shares = [100.0 * share for share in (hits / n, *_share_interval(hits, n, 0.95))]
    bias = 100.0 * float(np.median(rows.measured_s / rows.predicted_s) - 1.0)
    ape = 100.0 * float(np.mean(np.abs(rows.predicted_s / rows.measured_s - 1.0)))
    return facts | dict(zip(names, (*shares, bias, ape), strict=True))


def _share_interval(hits: int, n: int, level: float) -> tuple[float, float]:
    """Exact interval of a share after `hits` of `n` > 0 (Clopper and Pearson, Biometrika 26, 1934)."""
    from scipy.stats import binomtest

    interval = binomtest(hits, n).proportion_ci(level)
    return float(interval.low), float(interval.high)
