"""Predictions and measurements side by side: one family's scored rows, and what is drawn of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..features.cases import Floats, Strings
from ..features.device import Catalogue
from .labelled import Labelled
from .metrics import Metrics, ape_pct, labels_of, power_bands
from .prediction import TARGETS
from .predictor import ArtifactPredictor

LOWER_BOUND = "lower bound"
"""Name under which the physical lower bound stands among the regressors: the roofline without any fitting."""

SPLIT_AND_DEVICE = "split and device"
"""Label of rows that are of a split, beside the split and the device alone."""

PLOT_POINTS = 1500
"""Most points of one parity plot; more would only print over each other."""

APE_EDGES_PCT = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
"""Edges of the error histogram's bars, open at both ends."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One target of one family, measured and predicted, in the target's SI unit; every column has shape `(n,)`.

    `labels` are what rows are sliced by.
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


def canonical(rows: Labelled, devices: Catalogue) -> Labelled:
    """The same rows with devices by the catalogue's names.

    Raises:
        SpecError: a device the catalogue does not know.
    """
    found, inverse = np.unique(rows.cases.device, return_inverse=True)
    names = np.array([devices.get(name).name for name in found.tolist()], dtype=np.str_)[inverse]
    return replace(rows, cases=replace(rows.cases, device=names))


def score(predictor: ArtifactPredictor, rows: Labelled, *, coverage: float, split: str = "") -> list[Scored]:
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
            own = labels if target == "latency_s" else labels | {"kernel time": power_bands(rows.latency_s)}
            by = {name: column[known] for name, column in own.items()}
            scored.append(Scored(regressor, family, target, measured[known], columns.value[known],
                                 columns.lower[known], columns.upper[known], by))  # fmt: skip
    bound = np.max(np.stack(list(predictions.breakdown.values())), axis=0)
    return [*scored, replace(scored[0], regressor=LOWER_BOUND, value=bound, lower=bound, upper=bound)]


def pooled(parts: Sequence[Scored], *, family: str, labels: Sequence[str]) -> Scored:
    """Scored rows of one target as one table under the name `family`, with the labels that are named."""
    columns = {name: np.concatenate([getattr(one, name) for one in parts])
               for name in ("measured", "value", "lower", "upper")}  # fmt: skip
    by = {name: np.concatenate([one.labels[name] for one in parts]) for name in labels}
    return Scored(parts[0].regressor, family, parts[0].target, labels=by, **columns)


def shared_labels(parts: Sequence[Scored]) -> list[str]:
    """Labels that all of the parts have, in the first one's order."""
    return [name for name in parts[0].labels if all(name in one.labels for one in parts)]


@dataclass(frozen=True, slots=True)
class SizeBin:
    """Errors of the rows whose measured value is between `low` and `high`, in the target's SI unit."""

    low: float
    high: float
    n: int
    median_ape_pct: float
    p90_ape_pct: float


@dataclass(frozen=True, slots=True)
class BiasBin:
    """ln(predicted / measured) of the rows predicted between `low` and `high`, in the target's SI unit.

    Median and the ends of the middle 80 %.
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

    At most `PLOT_POINTS` pairs in SI units with a mark for devices not seen in training, counts of errors between
    `APE_EDGES_PCT`, errors by half decade of the measured value, and signed errors by half decade of the predicted one.
    """

    family: str
    target: str
    measured: tuple[float, ...]
    predicted: tuple[float, ...]
    unseen: tuple[bool, ...]
    ape_counts: tuple[int, ...]
    by_size: tuple[SizeBin, ...]
    bias: tuple[BiasBin, ...]

    @classmethod
    def of(cls, scored: Scored) -> Plot:
        """The plot of scored rows; its points are spread evenly over them in order of size, the same every time."""
        order = np.argsort(scored.measured, kind="stable")
        n = len(order)
        shown = order[np.unique(np.linspace(0, n - 1, min(n, PLOT_POINTS)).round().astype(np.int64))]
        ape = ape_pct(scored.measured, scored.value)
        counts = np.bincount(np.searchsorted(APE_EDGES_PCT, ape), minlength=len(APE_EDGES_PCT) + 1)
        return cls(
            family=scored.family,
            target=scored.target,
            measured=tuple(scored.measured[shown].tolist()),
            predicted=tuple(scored.value[shown].tolist()),
            unseen=tuple((scored.labels["device seen in training"][shown] == "no").tolist()),
            ape_counts=tuple(counts.tolist()),
            by_size=tuple(_by_size(scored.measured, ape)),
            bias=tuple(_bias(scored.value, np.log(scored.value / scored.measured))),
        )


def _by_size(measured: Floats, ape: Floats) -> Iterable[SizeBin]:
    for low, high, inside in _half_decades(measured, ape):
        median, p90 = np.quantile(inside, [0.5, 0.9]).round(3).tolist()
        yield SizeBin(low, high, len(inside), median, p90)


def _bias(predicted: Floats, log_error: Floats) -> Iterable[BiasBin]:
    for low, high, inside in _half_decades(predicted, log_error):
        p10, median, p90 = np.quantile(inside, [0.1, 0.5, 0.9]).round(5).tolist()
        yield BiasBin(low, high, len(inside), p10, median, p90)


def _half_decades(size: Floats, column: Floats) -> Iterable[tuple[float, float, Floats]]:
    """Each half decade that `size` has rows in: its ends, and the rows of `column` there."""
    half_decade = np.floor(np.log10(size) * 2).astype(np.int64)
    for step in np.unique(half_decade).tolist():
        yield 10 ** (step / 2), 10 ** ((step + 1) / 2), column[half_decade == step]
