"""The HTML report of an evaluation, and its charts: parity, residuals, errors and reliability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from ..metrics import Metrics, wilson_pct
from .charts import TARGETS, Axis, Chart, figures, head, page, percent, table
from .evaluation import Evaluation, RegressorMetrics
from .published_errors import Range
from .scoring import LOWER_BOUND, Plot, Reliability

_KEYS = '<i class="key seen"></i>seen device <i class="key unseen"></i>unseen device'


def report_html(evaluation: Evaluation) -> str:
    """The report as text."""
    facts = {"regressor": evaluation.regressor, "interval": f"{evaluation.coverage:.0%}", **evaluation.facts}
    families = sorted({part.family for part in evaluation.slices})
    return page(
        evaluation.title,
        [
            head(evaluation.title, facts, evaluation.notes),
            _cards(evaluation),
            _comparison(evaluation),
            _peers(evaluation),
            *(_family(evaluation, family) for family in families),
            _how_to_read(evaluation),
        ],
    )


def _cards(evaluation: Evaluation) -> str:
    cards = []
    for target, name in TARGETS.items():
        metrics = evaluation.overall(target)
        if metrics is not None:
            inside = in_band(metrics, evaluation)
            cards.append(
                f"<div class=card><h2>{name}</h2><p class=big>{metrics.median_ape_pct:.1f} %</p><p>median error</p><ul>"
                f"<li><b>{metrics.mean_ape_pct:.1f} %</b> mean</li><li><b>{metrics.within_10_pct:.0f} %</b> within 10 %</li>"
                f'<li><b class="{inside}">{metrics.coverage_pct:.1f} %</b> inside the {evaluation.coverage:.0%} interval</li>'
                f"<li><b>{metrics.n:,}</b> rows</li></ul></div>"
            )
    return f"<section class=cards>{''.join(cards)}</section>"


def _comparison(evaluation: Evaluation) -> str:
    whole = [row for row in evaluation.compared if not row.device]
    devices = [row for row in evaluation.compared if row.device]
    parts = ["<section><h2>Every regressor beside the roofline</h2>"]
    for target, name in TARGETS.items():
        rows = [part for part in whole if part.target == target]
        if rows:
            parts.append(f"<h3>{name}</h3>{compared_table(evaluation, rows)}")
    if devices:
        parts.append(f"<details><summary>By device left out</summary>{compared_table(evaluation, devices)}</details>")
    return "".join([*parts, "</section>"])


def _peers(evaluation: Evaluation) -> str:
    if not evaluation.beside:
        return ""
    sources = dict.fromkeys(comparison.peer.source for comparison in evaluation.beside)
    cited = "".join(f"<li>{escape(source)}</li>" for source in sources)
    return (
        "<section><h2>Others on the same kind of rows</h2><p>What other predictors are off by, where family, source of the "
        "tables and what was held out are those of rows judged here, and what this model is off by on these rows. Only "
        "figures measured on the same rows are strictly comparable: elsewhere other rows were held out.</p>"
        f"{peers_table(evaluation)}<details><summary>Sources</summary><ul>{cited}</ul></details></section>"
    )


def _family(evaluation: Evaluation, family: str) -> str:
    title = family or "all families"
    plots = "".join(_plots(evaluation, plot) for plot in evaluation.plots if plot.family == family)
    tables = "".join(slice_table(evaluation, family, target) for target in TARGETS)
    common = evaluation.shared.get(family, {})
    common_labels = "; ".join(f"{by}: {word}" for by, word in common.items())
    shared = f"<p class=small>All rows have {escape(common_labels)}.</p>" if common_labels else ""
    return f'<section id="family-{escape(family)}"><h2>{escape(title)}</h2>{plots}{shared}{tables}</section>'


def _plots(evaluation: Evaluation, plot: Plot) -> str:
    name = TARGETS[plot.target]
    plots = [
        (parity(plot), f"{name}: predicted against measured ({_KEYS if any(plot.unseen) else 'band: ±10 %'})"),
        (residual(plot), f"{name}: error against prediction (line: median, band: middle 80 %)"),
        (error_by_size(plot), f'{name}: error by size (<i class="key median"></i>median, '
                                     '<i class="key p90"></i>90th percentile)'),
    ]  # fmt: skip
    curves = [
        interval
        for interval in evaluation.intervals
        if (interval.family, interval.target) == (plot.family, plot.target)
    ]
    if curves:
        regimes = _KEYS if len(curves) > 1 else f"{'seen' if curves[0].seen else 'unseen'} devices"
        plots.append((reliability(curves), f"{name}: coverage asked for and found ({regimes})"))
    return figures(plots)


def _how_to_read(evaluation: Evaluation) -> str:
    return (
        "<section class=small><h2>How to read this</h2><p>An absolute percentage error (APE) is |predicted / measured − 1|. "
        "Spearman and Kendall compare the order of predictions with the order of measurements. Width is the median of "
        "(upper − lower) / value. The lower bound is the roofline itself: the time no run can beat. Slices and plots are of "
        f"{escape(evaluation.regressor)}; plots show at most 1,500 rows each, spread evenly by size. An error above zero in "
        "the second plot is a prediction above the measurement; errors beyond its axis are drawn on the edge. Power of "
        "kernels under 333 µs is told apart, since sensors hardly see them.</p></section>"
    )


_HEADS = ("rows", "mean APE", "median APE", "within 10 %", "Spearman", "Kendall", "coverage", "width")


def compared_table(evaluation: Evaluation, rows: Sequence[RegressorMetrics]) -> str:
    """Regressors by family and device left out, the lower bound first, each with a bar as long as its mean error."""
    names = list(dict.fromkeys(row.regressor for row in rows))
    names.sort(key=lambda name: name != LOWER_BOUND)
    groups: dict[tuple[str, str, str], dict[str, Metrics]] = {}
    for row in rows:
        groups.setdefault((row.family, row.device, row.target), {})[row.regressor] = row.metrics
    body = []
    for (family, device, target), rows_of_group in sorted(groups.items()):
        worst = max(metrics.mean_ape_pct for metrics in rows_of_group.values()) or 1.0
        best = min(metrics.mean_ape_pct for metrics in rows_of_group.values())
        label = f"{family} without {device}, {TARGETS[target]}" if device else family
        for i, name in enumerate(name for name in names if name in rows_of_group):
            metrics = rows_of_group[name]
            mark = " class=best" if metrics.mean_ape_pct == best else ""
            head = f'<th rowspan="{len(rows_of_group)}" class=group>{escape(label)}</th>' if i == 0 else ""
            bar = f'<td class=barcell><i style="width:{metrics.mean_ape_pct / worst * 100:.1f}%"></i></td>'
            first = " class=first" if i == 0 else ""
            body.append(f"<tr{first}>{head}<td{mark}>{escape(name)}</td>{bar}{_cells(metrics, evaluation)}</tr>")
    return table(("family", "regressor", "mean error", *_HEADS), body, "compared")


def slice_table(evaluation: Evaluation, family: str, target: str) -> str:
    """Errors of one family and target by everything its rows are sliced by; empty where it has no rows."""
    rows = [part for part in evaluation.slices if part.family == family and part.target == target]
    if not rows:
        return ""
    body = []
    for i, row in enumerate(rows):
        first = i == 0 or rows[i - 1].by != row.by
        label = f"<td class=by>{escape(row.by if first and row.by != 'all' else '')}</td>"
        name = "all rows" if row.by == "all" else row.name
        mark = " class=first" if first else ""
        body.append(f"<tr{mark}>{label}<td class=name>{escape(name)}</td>{_cells(row.metrics, evaluation)}</tr>")
    opened = " open" if target == "latency_s" else ""
    return (
        f"<details{opened}><summary>{TARGETS[target]} by slice</summary>{table(('slice', '', *_HEADS), body)}</details>"
    )


def peers_table(evaluation: Evaluation) -> str:
    """Other predictors' errors, and ours on the judged rows they compare with."""
    body = []
    last = ("", "", "")
    for comparison in evaluation.beside:
        peer, ours = comparison.peer, comparison.ours
        of_what = (peer.family + (f", {peer.variant}" if peer.variant else ""), TARGETS[peer.target], peer.held_out)
        mark = " class=first" if of_what != last else ""
        last = of_what
        theirs = "".join(f"<td class=num>{span(value)}</td>"
                         for value in (peer.mean_ape_pct, peer.median_ape_pct, peer.within_10_pct))  # fmt: skip
        our_cells = "".join(f"<td class=num>{percent(value)}</td>"
                      for value in (ours.mean_ape_pct, ours.median_ape_pct, ours.within_10_pct))  # fmt: skip
        cells = "".join(f"<td>{escape(word)}</td>" for word in (*of_what, peer.name))
        basis = escape(comparison.basis + (f"; {peer.note}" if peer.note else ""))
        body.append(f'<tr{mark}>{cells}{theirs}<td title="{escape(peer.source)}">{basis}</td>{our_cells}'
                    f"<td class=num>{ours.n:,}</td></tr>")  # fmt: skip
    heads = ("family", "target", "held out", "predictor", "mean", "median", "within 10 %", "their figures are",
             "ours: mean", "median", "within 10 %", "rows")  # fmt: skip
    return table(heads, body, "peers")


def span(value: Range | None) -> str:
    """A figure or the least and the most of several, in percent."""
    if value is None:
        return "–"
    return percent(value[0]) if value[0] == value[1] else f"{value[0]:g}–{value[1]:g} %"


def in_band(metrics: Metrics, evaluation: Evaluation) -> str:
    """`ok` inside the band, `off` outside it by more than chance allows, else nothing: too few rows to tell."""
    if metrics.coverage_pct is None:
        return ""
    low, high = evaluation.coverage * 100 - 2.0, evaluation.coverage * 100 + 2.0
    least, most = wilson_pct(metrics.coverage_pct, metrics.n)
    if low <= metrics.coverage_pct <= high:
        return "ok"
    return "off" if most < low or least > high else ""


def _cells(metrics: Metrics, evaluation: Evaluation) -> str:
    numbers = (f"{metrics.n:,}", percent(metrics.mean_ape_pct), percent(metrics.median_ape_pct),
               percent(metrics.within_10_pct, 0), _correlation(metrics.spearman), _correlation(metrics.kendall))  # fmt: skip
    return (
        "".join(f"<td class=num>{number}</td>" for number in numbers)
        + f'<td class="num {in_band(metrics, evaluation)}">{percent(metrics.coverage_pct)}</td>'
        + f"<td class=num>{percent(metrics.width_pct, 0)}</td>"
    )


def _correlation(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


_LEAST_APE_PCT = 0.05
"""Smaller errors are drawn here: a logarithm has no zero."""


def parity(plot: Plot) -> str:
    """Predicted against measured, both logarithmic, with the line of equality and the ±10 % band."""
    both = (*plot.measured, *plot.predicted)
    x, y = (Axis.logarithmic(name, both, plot.target) for name in ("measured", "predicted"))
    chart = Chart(x, y, f"{plot.family}: predicted against measured {plot.target}, {len(plot.measured)} rows")
    lower, upper = ([(end, end * factor) for end in (x.low, x.high)] for factor in (0.9, 1.1))
    chart.band(lower, upper)
    chart.path([(x.low, x.low), (x.high, x.high)], "equal")
    _points(chart, plot, list(plot.predicted))
    return chart.svg()


def residual(plot: Plot) -> str:
    """Predicted over measured against the predicted value, with its median and middle 80 % by half decade.

    A flat median at 1 means no bias that depends on size. The error stands against what is predicted, not against what was
    measured: noise alone slopes the latter.
    """
    ratios = [b / a for a, b in zip(plot.measured, plot.predicted, strict=True)]
    most = 1.1 * max(1.1, float(np.exp(np.quantile(np.abs(np.log(ratios)), 0.98))))
    ticks = [(factor, f"× {factor:.2f}") for factor in np.geomspace(1 / most, most, 5).tolist()]
    x = Axis.logarithmic("predicted", [edge for part in plot.bias for edge in (part.low, part.high)], plot.target)
    y = Axis("predicted over measured", 1 / most, most, ticks, log=True)
    chart = Chart(x, y, f"{plot.family}: signed error of {plot.target} against its prediction")
    chart.path([(x.low, 1.0), (x.high, 1.0)], "equal")
    _points(chart, plot, ratios, across=plot.predicted)
    middles = [math.sqrt(part.low * part.high) for part in plot.bias]
    lower, median, upper = ([(at, math.exp(getattr(part, name))) for at, part in zip(middles, plot.bias, strict=True)]
                            for name in ("p10", "median", "p90"))  # fmt: skip
    chart.band(lower, upper)
    chart.line(median, "bias", (f"{part.n} rows: median {_signed(part.median)}, middle 80 % from {_signed(part.p10)} to "
                                f"{_signed(part.p90)}" for part in plot.bias))  # fmt: skip
    return chart.svg()


def error_by_size(plot: Plot) -> str:
    """Median and 90th percentile of the error against the measured value, by half decade."""
    bins = plot.by_size
    x = Axis.logarithmic("measured", [edge for part in bins for edge in (part.low, part.high)], plot.target)
    errors = [value for part in bins for value in (part.median, part.p90)]
    y = Axis.logarithmic("absolute error", [*errors, 1.0, 20.0], "percent", _LEAST_APE_PCT)
    chart = Chart(x, y, f"{plot.family}: error against size")
    titles = [f"{part.n} rows: median {part.median:.1f} %, 90th percentile {part.p90:.1f} %" for part in bins]
    for kind in ("p90", "median"):
        chart.line([(math.sqrt(part.low * part.high), getattr(part, kind)) for part in bins], kind, titles)
    return chart.svg()


def reliability(curves: Sequence[Reliability]) -> str:
    """Coverage found against the nominal coverage, a line for seen and one for unseen devices, with what chance allows.

    On the diagonal intervals hold what they promise; below it they are too narrow, above it too wide.
    """
    levels = [level for curve in curves for level in curve.levels]
    nominal = [level.asked_pct for level in levels]
    low = max(0, math.floor((min([*(level.covered_pct for level in levels), *nominal]) - 2) / 10) * 10)
    x = Axis("nominal coverage", min(nominal) - 2, 101.0, [(tick, f"{tick} %") for tick in range(50, 101, 10)])
    y = Axis("measured inside", low, 101.0, [(tick, f"{tick} %") for tick in range(low, 101, 10 if low >= 50 else 20)])
    chart = Chart(x, y, f"{curves[0].family}: coverage found against nominal coverage, {curves[0].target}")
    chart.path([(value, value) for value in (max(x.low, low), 101.0)], "equal")
    for curve in curves:
        for level in curve.levels:
            chart.path([(level.asked_pct, end) for end in wilson_pct(level.covered_pct, curve.n)], "whisker")
        chart.line(
            [(level.asked_pct, level.covered_pct) for level in curve.levels], "seen" if curve.seen else "unseen",
            (f"nominal {level.asked_pct:g} %, found {level.covered_pct:.1f} % of {curve.n}, median width "
             f"{level.width_pct:.0f} %" for level in curve.levels),
        )  # fmt: skip
    return chart.svg()


def _points(chart: Chart, plot: Plot, up: Sequence[float], across: Sequence[float] | None = None) -> None:
    """The rows of a plot, those of devices not seen in training in another colour."""
    places = list(zip(across or plot.measured, up, plot.unseen, strict=True))
    for kind, wanted in (("seen", False), ("unseen", True)):
        chart.points([(x, y) for x, y, unseen in places if unseen == wanted], kind)


def _signed(log_error: float) -> str:
    return f"{math.expm1(log_error) * 100:+.1f} %"
