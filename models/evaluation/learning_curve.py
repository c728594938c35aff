"""Learning curves: how far predictions are off against how much was measured, in rows and in seconds of measuring.

One set of rows is held out for good. The others are put in a random order, once per seed, and a model is trained on the
first 100, the first 300 … of each: the smaller samples are part of the larger ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from ...datasets.form.form import FormTable, read_form
from ...datasets.rows.splits import held_out_shapes
from ...datasets.rows.table_columns import numbers
from ...features.batch.cases import Floats
from ...features.device import Catalogue, catalogue
from ...features.errors import SpecError, listed
from ..metrics import Metrics
from ..regressor import Progress, no_progress
from ..selection.suggest import measuring_seconds
from ..training.fitting import MIN_ROWS
from ..training.labelled_cases import LabelledCases, labelled_files, read_splits
from ..training.training import DEFAULT_REGRESSOR
from .charts import TARGETS, Axis, Chart, figures, head, page, percent, table
from .evaluation import trained_and_scored
from .scoring import LOWER_BOUND, Scored, pooled

ROWS = (100, 300, 1000, 3000, 10_000)
"""Training rows of the points, as far as there are so many; all rows come last."""

ORDERS = ("random", "file")
"""In which order rows are taken: shuffled anew for each seed, or as they stand in the table."""


@dataclass(frozen=True, slots=True)
class Band:
    """A figure over seeds.

    Attributes:
        median: Median.
        low: Least.
        high: Largest.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Band:
        """The band of at least one value."""
        return cls(float(np.median(values)), min(values), max(values))


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Errors, in percent, after training on some rows.

    Attributes:
        rows: Rows trained on.
        seconds: What measuring them took.
        judged: Rows the model was judged by.
        seeds: Orders that were tried.
        mean_ape_pct: Mean absolute percentage error.
        median_ape_pct: Median of it.
        within_10_pct: Share of rows within 10 %.
        coverage_pct: Share of measurements inside their interval.
        width_pct: Median relative width of the intervals.
    """

    rows: int
    seconds: Band
    judged: int
    seeds: int
    mean_ape_pct: Band
    median_ape_pct: Band
    within_10_pct: Band
    coverage_pct: Band
    width_pct: Band


FIGURES = ("mean_ape_pct", "median_ape_pct", "within_10_pct", "coverage_pct", "width_pct")
"""The errors of a point, in the order they are shown."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One target of one family.

    Attributes:
        family: Kernel family.
        target: `latency_s`, `power_w` or `energy_j`.
        points: By number of rows.
    """

    family: str
    target: str
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True)
class LearningCurves:
    """Curves of one regressor.

    Attributes:
        regressor: What learned.
        facts: What was measured and how.
        notes: What a reader must know beside the figures.
        curves: One per family and target.
    """

    regressor: str
    facts: Mapping[str, Any]
    notes: tuple[str, ...]
    curves: tuple[Curve, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(replace(self, facts=dict(self.facts)))


@dataclass(frozen=True, slots=True)
class Pool:
    """What one family's curve is made from.

    Attributes:
        rows: Rows to train on.
        seconds: What measuring each cost, shape `(n,)`.
        judged: Tables to judge by.
    """

    rows: LabelledCases
    seconds: Floats
    judged: tuple[LabelledCases, ...]

    @property
    def n_judged(self) -> int:
        """Rows to judge by."""
        return sum(map(len, self.judged))

    @classmethod
    def of(
        cls, rows: LabelledCases, devices: Catalogue, first_call_s: Floats | None = None, share: float = 0.1
    ) -> Pool:
        """One table as both, with about `share` of its shapes held out by hash.

        Raises:
            SpecError: a device the catalogue does not know.
        """
        out = held_out_shapes(rows.cases, share)
        seconds = measuring_seconds(rows, devices, first_call_s)
        return cls(rows.take(~out), seconds[~out], (rows.take(out),) if out.any() else ())


def learning_curves(
    pools: Sequence[Pool],
    *,
    rows: Sequence[int] = ROWS,
    seeds: int = 3,
    order: str = "random",
    regressor: str = DEFAULT_REGRESSOR,
    coverage: float = 0.9,
    devices: Catalogue | None = None,
    progress: Progress | None = None,
    facts: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> LearningCurves:
    """A curve for every family and target that has rows enough.

    Args:
        pools: what to train on and judge by, one of each family.
        rows: numbers of rows to train on; those beyond what there is become one point of all rows.
        seeds: how often each point is repeated with another order; all rows, and rows in the file's order, need it once.
        order: `random`, or `file` for the order of the table.
        regressor: what learns.
        coverage: of the intervals that are judged.
        devices: the catalogue, default the shipped one.
        progress: called before every training.
        facts: what a reader should know of the rows.
        notes: what a reader must know beside the figures.

    Raises:
        SpecError: an impossible number of rows or seeds, an unknown order or regressor, or no family has rows enough.
    """
    _check(rows, seeds, order)
    known, steps = devices or catalogue(), progress or no_progress
    remarks = list(notes)
    plan: list[tuple[Pool, int, int]] = []
    for pool in pools:
        name = pool.rows.cases.family.name
        sizes = _sizes(rows, len(pool.rows))
        if not sizes or not pool.n_judged:
            remarks.append(f"{name} has no curve: {len(pool.rows)} rows to train on, {pool.n_judged} to judge by")
        for n in sizes:
            once = order == "file" or n == len(pool.rows)
            plan += [(pool, n, seed) for seed in range(1 if once else seeds)] if pool.n_judged else []
    if not plan:
        raise SpecError(f"no learning curve: {'; '.join(remarks) or 'no rows'}", field="data")
    by_rows: dict[tuple[str, str], dict[int, list[tuple[float, Metrics]]]] = {}
    failed: dict[tuple[str, int], str] = {}
    for i, (pool, n, seed) in enumerate(plan):
        name = pool.rows.cases.family.name
        steps(f"{name}: {n} rows, order {seed + 1}", i, len(plan))
        every = (
            np.arange(len(pool.rows)) if order == "file" else np.random.default_rng(seed).permutation(len(pool.rows))
        )
        chosen = every[:n]
        try:
            answers = _judged(pool.rows.take(chosen), pool.judged, regressor, coverage, known)
        except SpecError as error:
            # A small sample may hold too few shapes to train on, which says nothing of the larger ones.
            failed[name, n] = str(error)
            continue
        for target, metrics in answers.items():
            cost = float(pool.seconds[chosen].sum())
            by_rows.setdefault((name, target), {}).setdefault(n, []).append((cost, metrics))
    steps("learning curves done", len(plan), len(plan))
    if not by_rows:
        raise SpecError(f"no learning curve: {'; '.join(sorted(set(failed.values())))}", field="data")
    remarks += [f"{name} could not be trained on every {n} rows: {why}" for (name, n), why in failed.items()]
    curves = [Curve(name, target, tuple(_point(n, points[n]) for n in sorted(points)))
              for (name, target), points in by_rows.items()]  # fmt: skip
    about = {"order": order, "orders tried": seeds if order == "random" else 1, "interval": coverage}
    return LearningCurves(regressor, about | dict(facts or {}), tuple(remarks), tuple(curves))


def _judged(
    rows: LabelledCases, judged: Sequence[LabelledCases], regressor: str, coverage: float, devices: Catalogue
) -> dict[str, Metrics]:
    """Metrics by target of a model trained on `rows`."""
    parts: dict[str, list[Scored]] = {}
    for target_rows in trained_and_scored(rows, judged, regressor, coverage, devices):
        if target_rows.regressor != LOWER_BOUND:
            parts.setdefault(target_rows.target, []).append(target_rows)
    return {target: pooled(some, family=some[0].family, labels=()).metrics() for target, some in parts.items()}


def _point(n: int, point: Sequence[tuple[float, Metrics]]) -> CurvePoint:
    bands = {name: Band.of([getattr(metrics, name) for _, metrics in point]) for name in FIGURES}
    return CurvePoint(n, Band.of([cost for cost, _ in point]), point[0][1].n, len(point), **bands)


def _sizes(wanted: Sequence[int], there: int) -> list[int]:
    """Numbers of rows there are, and all of them last; none where there are too few to train on."""
    sizes = sorted({n for n in wanted if n < there} | ({there} if max(wanted) >= there else set()))
    return [n for n in sizes if n >= MIN_ROWS]


def _check(rows: Sequence[int], seeds: int, order: str) -> None:
    if not rows or min(rows) < MIN_ROWS:
        raise SpecError(
            f"rows to train on must be {MIN_ROWS} or more, got {listed(map(str, rows)) or 'none'}", field="rows"
        )
    if seeds < 1:
        raise SpecError(f"seeds must be 1 or more, got {seeds}", field="seeds")
    if order not in ORDERS:
        raise SpecError(f"no order {order!r}; orders: {listed(ORDERS)}", field="order")


def learning_curve_files(
    paths: Sequence[Path],
    *,
    split: Sequence[str] = (),
    train_split: str | None = None,
    family: str | None = None,
    skip_bad_rows: bool = False,
    devices: Catalogue | None = None,
    **options: Any,
) -> LearningCurves:
    """Learning curves of measurement files.

    Args:
        paths: CSV or Parquet files of the bring-your-own form.
        split: names or patterns of the splits to judge by; none to hold a tenth of the shapes out by hash.
        train_split: the split to train on; default: `train` where other splits are judged, else every row.
        family: the family of all rows, for files without that column.
        skip_bad_rows: go on with the good rows when others are refused.
        devices: the catalogue, default the shipped one.
        options: see `learning_curves`.

    Raises:
        SpecError: a file or row breaks the form, no row has a split asked for, one is to be trained on and judged by, or
            see `learning_curves`.
    """
    known = devices or catalogue()
    judged = read_splits(paths, split, family=family, skip_bad_rows=skip_bad_rows, devices=known) if split else []
    trained = train_split or ("train" if judged else None)
    names = sorted({part.split for part in judged})
    if trained in names:
        raise SpecError(f"split {trained!r} would be trained on and judged by; name another --split", field="split")
    tables = labelled_files(paths, split=trained, family=family, skip_bad_rows=skip_bad_rows, devices=known)
    forms = [read_form(path, family=family, skip_bad_rows=skip_bad_rows) for path in dict.fromkeys(paths)]
    pools, recorded = [], {}
    for rows in tables:
        name = rows.cases.family.name
        calls = np.concatenate([_first_calls(form, name, trained) for form in forms])
        recorded[name] = f"of {(~np.isnan(calls)).sum():,} rows of {len(calls):,}"
        tables_judged = tuple(part.rows for part in judged if part.rows.cases.family.name == name)
        if judged:
            pools.append(Pool(rows, measuring_seconds(rows, known, calls), tables_judged))
        else:
            pools.append(Pool.of(rows, known, calls))
    facts = {
        "data": ", ".join(path.name for path in paths),
        "judged by": ", ".join(names) or "a tenth of the shapes, by hash",
        "trained on": trained or "the other rows",
        "seconds of measuring": "estimated from latencies by the protocol of docs/measurement.md",
        "first calls recorded": recorded,
    }
    return learning_curves(pools, devices=known, facts=facts, **options)


def _first_calls(form: FormTable, family: str, split: str | None) -> Floats:
    """Recorded first calls in seconds of a file's rows of one family and split, NaN where there is no record."""
    if family not in form.parts:
        return np.empty(0)
    part = form.parts[family]
    indices = part.rows if split is None else part.rows[part.split == split]
    return numbers(form.table, "first_call_s").values[indices]


_CURVES_TITLE = "Learning curves"
_CURVE_HEADS = ("rows", "orders", "seconds of measuring", "mean APE", "median APE", "within 10 %", "coverage", "width")
_CURVE_KEYS = '<i class="key p90"></i>mean, <i class="key median"></i>median, band: over orders'


def curves_html(curves: LearningCurves) -> str:
    """The report as text."""
    facts = {"regressor": curves.regressor, **curves.facts}
    return page(
        _CURVES_TITLE, [head(_CURVES_TITLE, facts, curves.notes), *map(_section, curves.curves), _how_to_read_curves()]
    )


def _section(curve: Curve) -> str:
    name = f"{curve.family}, {TARGETS[curve.target]}"
    by_rows = _chart(curve, "count", "rows trained on", lambda point: float(point.rows))
    by_seconds = _chart(curve, "seconds", "seconds of measuring", lambda point: point.seconds.median)
    drawn = figures([
        (by_rows, f"error against rows ({_CURVE_KEYS})"),
        (by_seconds, f"error against what measuring them took ({_CURVE_KEYS})"),
    ])  # fmt: skip
    body = []
    for point in curve.points:
        bands = [_band(getattr(point, name)) for name in FIGURES]
        cells = (f"{point.rows:,}", str(point.seeds), f"{point.seconds.median:,.0f} s", *bands)
        body.append("<tr>" + "".join(f"<td class=num>{escape(cell)}</td>" for cell in cells) + "</tr>")
    judged = f"<p class=small>Judged by {curve.points[-1].judged:,} rows that no model was trained on.</p>"
    return f"<section><h2>{escape(name)}</h2>{drawn}{judged}{table(_CURVE_HEADS, body, 'numbers')}</section>"


def _band(band: Band) -> str:
    middle = percent(band.median)
    return middle if band.low == band.high else f"{middle} ({band.low:.1f}–{band.high:.1f})"


def _how_to_read_curves() -> str:
    return (
        "<section class=small><h2>How to read this</h2><p>Rows are put in a random order, once per seed, and a model is "
        "trained on the first 100, the first 300 and so on: smaller samples are part of larger ones, and all models are "
        "judged by the same rows. Figures are medians over the orders, in brackets the least and the most. Seconds of "
        "measuring are what these rows would take by this project's own protocol: repetitions of the kernel until the "
        "stopping rule is met, warm-up, the first call where it was recorded, 2.8 s for power, and a constant for all "
        "else.</p></section>"
    )


_LEAST_CURVE_PCT = 0.05
_CURVE_KINDS = (("p90", "mean_ape_pct", "mean"), ("median", "median_ape_pct", "median"))
"""Class of the line in the style sheet, field of the point, and word."""


def _chart(curve: Curve, unit: str, name: str, at: Callable[[CurvePoint], float]) -> str:
    """Mean and median error, each with the band over orders, against rows or seconds."""
    bands = [getattr(point, field) for point in curve.points for _, field, _ in _CURVE_KINDS]
    x = Axis.logarithmic(name, map(at, curve.points), unit)
    y = Axis.logarithmic(
        "absolute error", [end for band in bands for end in (band.low, band.high)], "percent", _LEAST_CURVE_PCT
    )
    chart = Chart(x, y, f"{curve.family}: error of {curve.target} against {name}")
    for kind, field, word in _CURVE_KINDS:
        places = [(at(point), point.rows, point.seconds.median, getattr(point, field)) for point in curve.points]
        low, median, high = (
            [(where, getattr(band, end)) for where, *_, band in places] for end in ("low", "median", "high")
        )
        chart.band(low, high, f"spread {kind}")
        titles = (f"{rows} rows, {seconds:.0f} s: {word} {percent(band.median)}, {band.low:.1f} to {percent(band.high)}"
                  for _, rows, seconds, band in places)  # fmt: skip
        chart.line(median, kind, titles)
    return chart.svg()
