"""Predictions and measurements side by side: one family's scored rows, and what is drawn of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...features.batch.cases import Floats, Strings
from ...features.device import Catalogue
from ..metrics import Metrics, ape_pct, labels_of, power_bands
from ..predict.prediction import TARGETS
from ..predict.predictor import ArtifactPredictor
from ..training.labelled_cases import LabelledCases

LOWER_BOUND = "lower bound"
"""Name under which the physical lower bound stands among the regressors: the roofline without any fitting."""

SPLIT_AND_DEVICE = "split and device"
"""Label of rows that are of a split, beside the split and the device alone."""

PLOT_POINTS = 1500
"""Most points of one parity plot; more would only print over each other."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One target of one family, measured and predicted, in the target's SI unit; every column has shape `(n,)`.

    Attributes:
        regressor: What predicted.
        family: The family; empty for several.
        target: One of `TARGETS`.
        measured: What was measured.
        value: What was predicted.
        lower: Lower end of the interval.
        upper: Upper end of the interval.
        labels: What rows are sliced by.
    """

    regressor: str
    family: str
    target: str
    measured: Floats
    value: Floats
    lower: Floats
    upper: Floats
    labels: Mapping[str, Strings]

    def __len__(self) -> int:
        return len(self.measured)

    def metrics(self, rows: Any = slice(None)) -> Metrics:
        """Metrics of some of the rows; the lower bound has no interval to judge."""
        intervals = () if self.regressor == LOWER_BOUND else (self.lower[rows], self.upper[rows])
        return Metrics.of(self.measured[rows], self.value[rows], *intervals)


def canonical(rows: LabelledCases, devices: Catalogue) -> LabelledCases:
    """The same rows with devices by the catalogue's names.

    Raises:
        SpecError: a device the catalogue does not know.
    """
    result, inverse = np.unique(rows.cases.device, return_inverse=True)
    names = np.array([devices.get(name).name for name in result.tolist()], dtype=np.str_)[inverse]
    return replace(rows, cases=replace(rows.cases, device=names))


def score(predictor: ArtifactPredictor, rows: LabelledCases, *, coverage: float, split: str = "") -> list[Scored]:
    """Predictions beside measurements of one family, one entry per target that was measured and predicted.

    The lower bound's latency comes last, as if it were a regressor called `LOWER_BOUND`. `split` names the split all the
    rows are of, if any: a label like the others, alone and together with the device.

    Raises:
        SpecError: see `Predictor.predict_cases`.
    """
    rows = canonical(rows, predictor.devices)
    cases = rows.cases
    predictions = predictor.predict_cases(cases, coverage=coverage)
    family, regressor = cases.family.name, str(predictor.manifest["regressor"])
    labels = labels_of(cases, rows.latency_s, predictor.manifest["families"][family]["devices"], rows.source)
    labels["in domain"] = np.where(predictions.in_domain, "yes", "no")
    if split:
        labels |= {"split": np.full(len(cases), split), SPLIT_AND_DEVICE: np.char.add(f"{split}, ", labels["device"])}
    scored = []
    for target, measured in zip(TARGETS, (rows.latency_s, rows.power_w, rows.power_w * rows.latency_s), strict=True):
        columns = predictions.targets[target]
        known = np.flatnonzero(~np.isnan(measured) & ~np.isnan(columns.value))
        if len(known):
            # A short kernel's power, and so its energy, is hardly measured at all.
            target_labels = labels if target == "latency_s" else labels | {"kernel time": power_bands(rows.latency_s)}
            by = {name: column[known] for name, column in target_labels.items()}
            scored.append(Scored(regressor, family, target, measured[known], columns.value[known],
                                 columns.lower[known], columns.upper[known], by))  # fmt: skip
    bound = np.max(np.stack(list(predictions.breakdown.values())), axis=0)
    return [*scored, replace(scored[0], regressor=LOWER_BOUND, value=bound, lower=bound, upper=bound)]


def pooled(parts: Sequence[Scored], *, family: str, labels: Sequence[str]) -> Scored:
    """Scored rows of one target as one table under the name `family`, with the labels that are named."""
    columns = {name: np.concatenate([getattr(part, name) for part in parts])
               for name in ("measured", "value", "lower", "upper")}  # fmt: skip
    by = {name: np.concatenate([part.labels[name] for part in parts]) for name in labels}
    return Scored(parts[0].regressor, family, parts[0].target, labels=by, **columns)


def shared_labels(parts: Sequence[Scored]) -> list[str]:
    """Labels that all of the parts have, in the first one's order."""
    return [name for name in parts[0].labels if all(name in part.labels for part in parts)]


@dataclass(frozen=True, slots=True)
class Bin:
    """Errors of the rows whose size lies between two, in the target's SI unit.

    Attributes:
        low: The lower end.
        high: The upper end.
        n: Number of rows.
        p10: 10th percentile of their errors.
        median: Median.
        p90: 90th percentile.
    """

    low: float
    high: float
    n: int
    p10: float
    median: float
    p90: float


@dataclass(frozen=True, slots=True)
class Plot:
    """What is drawn of one family and target.

    Attributes:
        family: The family.
        target: The target.
        measured: At most `PLOT_POINTS` measured values, in SI units.
        predicted: The predictions of these.
        unseen: Whether the device of each was not in training.
        by_size: Absolute errors in percent by half decade of the measured value.
        bias: ln(predicted / measured) by half decade of the predicted value.
    """

    family: str
    target: str
    measured: tuple[float, ...]
    predicted: tuple[float, ...]
    unseen: tuple[bool, ...]
    by_size: tuple[Bin, ...]
    bias: tuple[Bin, ...]

    @classmethod
    def of(cls, scored: Scored) -> Plot:
        """The plot of scored rows; its points are spread evenly over them in order of size, the same every time."""
        order = np.argsort(scored.measured, kind="stable")
        n = len(order)
        shown = order[np.unique(np.linspace(0, n - 1, min(n, PLOT_POINTS)).round().astype(np.int64))]
        return cls(
            family=scored.family,
            target=scored.target,
            measured=tuple(scored.measured[shown].tolist()),
            predicted=tuple(scored.value[shown].tolist()),
            unseen=tuple((scored.labels["device seen in training"][shown] == "no").tolist()),
            by_size=tuple(_half_decades(scored.measured, ape_pct(scored.measured, scored.value))),
            bias=tuple(_half_decades(scored.value, np.log(scored.value / scored.measured))),
        )


def _half_decades(size: Floats, errors: Floats) -> Iterable[Bin]:
    """The errors by each half decade that `size` has rows in."""
    half_decade = np.floor(np.log10(size) * 2).astype(np.int64)
    for step in np.unique(half_decade).tolist():
        inside = errors[half_decade == step]
        yield Bin(10 ** (step / 2), 10 ** ((step + 1) / 2), len(inside), *np.quantile(inside, [0.1, 0.5, 0.9]).tolist())


LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Coverages that are asked for, within what `models.family_model.intervals` can give."""

MOST_ROWS = 20_000
"""Rows of a table that are asked at every level: with as many, chance alone moves a share of 90 % by 0.4 points."""


@dataclass(frozen=True, slots=True)
class Level:
    """What one nominal coverage gave, in percent.

    Attributes:
        asked_pct: The nominal coverage.
        covered_pct: Share of measurements inside their interval.
        width_pct: Median of (upper - lower) / value.
    """

    asked_pct: float
    covered_pct: float
    width_pct: float


@dataclass(frozen=True, slots=True)
class Reliability:
    """How often intervals contain the measured value, by the coverage asked for.

    Attributes:
        family: Kernel family.
        target: `latency_s`, `power_w` or `energy_j`.
        seen: Whether the rows are of devices seen in training.
        n: Number of rows of each level.
        levels: A level per coverage asked for.
    """

    family: str
    target: str
    seen: bool
    n: int
    levels: tuple[Level, ...]


def reliability(
    predictor: ArtifactPredictor, tables: Sequence[LabelledCases], levels: Sequence[float] = LEVELS
) -> list[Reliability]:
    """Coverage found at every level, for tables of one family; only targets that were measured and predicted.

    Raises:
        SpecError: see `Predictor.predict_cases`.
    """
    chosen = [canonical(_thinned(rows), predictor.devices) for rows in tables if len(rows)]
    if not chosen:
        return []
    family = chosen[0].cases.family.name
    trained = list(predictor.manifest["families"][family]["devices"])
    levels_of: dict[tuple[str, bool], list[Level]] = {}
    counts: dict[tuple[str, bool], int] = {}
    seen = np.concatenate([np.isin(rows.cases.device, trained) for rows in chosen])
    for level in levels:
        answers = [predictor.predict_cases(rows.cases, coverage=level) for rows in chosen]
        for target in TARGETS:
            measured = np.concatenate([_measured(rows, target) for rows in chosen])
            value, lower, upper = (np.concatenate([getattr(answer.targets[target], column) for answer in answers])
                                   for column in ("value", "lower", "upper"))  # fmt: skip
            known = ~np.isnan(measured) & ~np.isnan(value)
            for regime in (True, False):
                rows = known & (seen == regime)
                if rows.any():
                    inside = (lower <= measured) & (measured <= upper)
                    counts[target, regime] = int(rows.sum())
                    levels_of.setdefault((target, regime), []).append(
                        Level(round(level * 100, 3), _pct(inside[rows].mean()),
                              _pct(np.median((upper - lower)[rows] / value[rows])))
                    )  # fmt: skip
    return [Reliability(family, target, regime, counts[target, regime], tuple(here))
            for (target, regime), here in levels_of.items()]  # fmt: skip


def _thinned(rows: LabelledCases) -> LabelledCases:
    """At most `MOST_ROWS` rows, spread evenly over the table."""
    n = len(rows)
    return rows if n <= MOST_ROWS else rows.take(np.linspace(0, n - 1, MOST_ROWS).round().astype(np.int64))


def _measured(rows: LabelledCases, target: str) -> Floats:
    columns = {"latency_s": rows.latency_s, "power_w": rows.power_w, "energy_j": rows.power_w * rows.latency_s}
    return columns[target]


def _pct(share: Any) -> float:
    return round(float(share) * 100, 3)
