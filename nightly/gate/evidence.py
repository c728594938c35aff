"""What speaks for a challenger: bets against the champion, shape by shape, over all nights since the champion was promoted.

Each shape is judged once, by models that have not learned from it. A challenger's wealth starts at one; before a shape is seen
a part of it is bet that the challenger errs less there. If it does not err less on average, the wealth exceeds 1 / alpha with a
probability of at most alpha, however often one looks (Ville's inequality). The wealth is the mean of a few fixed bets (Waudby-
Smith and Ramdas, "Estimating means of bounded random variables by betting", Journal of the Royal Statistical Society B, 2024;
comparing forecasters so: Choe and Ramdas, "Comparing sequential forecasters", Operations Research, 2023).
That holds as far as shapes are independent. Those of one night share its load, so a bet counts a night that was slow for one
kind of kernel more than once; what the first night promotes by it, later ones judge again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...datasets.rows.splits import Mask, mixed, shape_hashes, word_hash
from ...features.batch.cases import Floats
from ...models.evaluation.scoring import canonical
from ...models.metrics import ape_pct
from ...models.predict.predictor import ArtifactPredictor
from ...models.training.labelled_cases import LabelledCases

MOST_PCT, _MOST_GAIN_PCT = 100.0, 50.0
"""Larger errors, and larger differences of errors, count as this: bets need bounds, and a few shapes must not decide."""

COVERAGE = 0.9
"""Coverage of the intervals that are judged."""

_BETS = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.9])
"""Shares of the wealth that are bet: small ones for small differences."""

_GROWTH, _MOST_FOLDS = 0.3, 4
"""Tonight's shapes are dealt to folds, each learned from before the next is judged, so that a fold is at most this share of all
rows."""


@dataclass(frozen=True, slots=True)
class ShapeScore:
    """Errors on the rows of one shape on one device, in percent, and shares of rows inside their intervals.

    Attributes:
        family: Its kernel family.
        device: Where it was measured.
        rows: Number of rows.
        champion_pct: Mean error of the champion, `MOST_PCT` where it does not know the family.
        challenger_pct: That of the challenger.
        champion_inside: Share inside the champion's intervals.
        challenger_inside: Share inside the challenger's.
    """

    family: str
    device: str
    rows: int
    champion_pct: float
    challenger_pct: float
    champion_inside: float
    challenger_inside: float


def scores(
    champion: ArtifactPredictor, challenger: ArtifactPredictor, tables: Iterable[LabelledCases]
) -> list[ShapeScore]:
    """Both models' errors, a score for each shape and device; families that the challenger lacks are left out."""
    result = []
    for table in tables:
        if not len(table) or table.cases.family.name not in challenger.families:
            continue
        rows = canonical(table, challenger.devices)
        columns = np.stack([*_errors(champion, rows), *_errors(challenger, rows)])
        keys = mixed(shape_hashes(rows.cases)) ^ rows.cases.coded("device").code.astype(np.uint64)
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        sizes = np.bincount(which)
        old, old_inside, new, new_inside = (np.bincount(which, column) / sizes for column in columns)
        for i, row in enumerate(first.tolist()):
            numbers = (float(column[i]) for column in (old, new, old_inside, new_inside))
            result.append(ShapeScore(rows.cases.family.name, str(rows.cases.device[row]), int(sizes[i]), *numbers))
    return result


def _errors(model: ArtifactPredictor, rows: LabelledCases) -> tuple[Floats, Floats]:
    """Errors in percent, and 1 for rows inside their interval, else 0; shape `(n,)` each."""
    if rows.cases.family.name not in model.families:
        return np.full(len(rows), MOST_PCT), np.zeros(len(rows))
    answer = model.predict_cases(rows.cases, coverage=COVERAGE).targets["latency_s"]
    inside = (answer.lower <= rows.latency_s) & (rows.latency_s <= answer.upper)
    return np.asarray(ape_pct(rows.latency_s, answer.value), dtype=np.float64), inside.astype(np.float64)


def new_shapes(rows: LabelledCases, earlier: Sequence[LabelledCases]) -> Mask:
    """Which rows are of shapes never measured before tonight, shape `(n,)`."""
    known = [shape_hashes(table.cases) for table in earlier if table.cases.family.name == rows.cases.family.name]
    return ~np.isin(shape_hashes(rows.cases), np.concatenate(known)) if known else np.ones(len(rows), dtype=np.bool_)


def fold_count(earlier: int, fresh: int) -> int:
    """Folds that so many new rows are dealt to beside so many earlier ones."""
    return min(max(math.ceil(fresh / (_GROWTH * max(earlier + fresh, 1))), 1), _MOST_FOLDS)


def folds(rows: LabelledCases, night: str, count: int) -> Any:
    """The fold of each row, shape `(n,)`; a shape lies in one, another night deals otherwise."""
    return (mixed(shape_hashes(rows.cases) ^ np.uint64(word_hash(night))) % np.uint64(count)).astype(np.intp)


@dataclass(frozen=True, slots=True)
class Wealth:
    """What bets have won.

    Attributes:
        logs: ln of the wealth by bet.
        shapes: Shapes bet on.
        gain_pct: Sum of the champion's errors less the challenger's, in percentage points.
    """

    logs: tuple[float, ...] = (0.0,) * len(_BETS)
    shapes: int = 0
    gain_pct: float = 0.0

    def after(self, gains_pct: Floats) -> Wealth:
        """The wealth after shapes on which the champion erred by so many points more, shape `(n,)`."""
        capped = np.clip(gains_pct / _MOST_GAIN_PCT, -1.0, 1.0)
        logs = np.array(self.logs) + np.log1p(_BETS[:, None] * capped[None]).sum(axis=1)
        return Wealth(
            tuple(np.round(logs, 6).tolist()), self.shapes + len(capped), self.gain_pct + float(gains_pct.sum())
        )

    @property
    def p_value(self) -> float:
        """At most so probable were such wealth if the challenger did not err less."""
        logs = np.array(self.logs)
        top = float(logs.max())
        return min(1.0, float(np.exp(-top) / np.exp(logs - top).mean()))

    @property
    def mean_gain_pct(self) -> float:
        """Mean of the champion's errors less the challenger's, in percentage points; 0 before any shape."""
        return self.gain_pct / self.shapes if self.shapes else 0.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for a challenger over all nights since the champion was promoted.

    Attributes:
        better: By family, bets that it errs less.
        worse: By family, bets that it errs more, by more than is tolerated.
    """

    better: Mapping[str, Wealth] = field(default_factory=dict)
    worse: Mapping[str, Wealth] = field(default_factory=dict)

    def after(self, tonight: Sequence[ShapeScore], tolerance_pct: float) -> Evidence:
        """The evidence with the shapes of one more night."""
        gains: dict[str, list[float]] = {}
        for score in tonight:
            gain = min(score.champion_pct, MOST_PCT) - min(score.challenger_pct, MOST_PCT)
            gains.setdefault(score.family, []).append(gain)
        better, worse = dict(self.better), dict(self.worse)
        for name, each in gains.items():
            better[name] = better.get(name, Wealth()).after(np.array(each))
            worse[name] = worse.get(name, Wealth()).after(-np.array(each) - tolerance_pct)
        return Evidence(better, worse)

    def together(self, without: Collection[str] = ()) -> Wealth:
        """Bets on all shapes that the challenger errs less, but for families that stay the champion's."""
        parts = [wealth for name, wealth in self.better.items() if name not in without]
        logs = np.sum([Wealth().logs, *(part.logs for part in parts)], axis=0)
        return Wealth(tuple(logs.tolist()), sum(part.shapes for part in parts), sum(part.gain_pct for part in parts))
