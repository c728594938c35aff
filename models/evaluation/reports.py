"""HTML reports of an evaluation and of learning curves: one file each, no script, readable in light and dark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path

from ..metrics import Metrics, wilson_pct
from . import charts
from .charts import Axis, Chart
from .evaluation import Evaluation, RegressorMetrics, SliceResult
from .learning_curve import Band, Curve, CurvePoint, LearningCurves
from .published_errors import Range
from .report_page import TARGETS, figures, head, page, percent, table, write_page
from .scoring import LOWER_BOUND, Plot

_COVERAGE_ROWS = 60
"""Most rows of the coverage chart; the table below it has them all."""

_KEYS = '<i class="key seen"></i>seen device <i class="key unseen"></i>unseen device'


def write_report(evaluation: Evaluation, path: Path) -> None:
    """Write the report to `path`, replacing what was there only once the whole file is on disk.

    Raises:
        SpecError: `path` cannot be written.
    """
    write_page(report_html(evaluation), path)


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
            _coverage(evaluation),
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
        (charts.parity(plot), f"{name}: predicted against measured ({_KEYS if any(plot.unseen) else 'band: ±10 %'})"),
        (charts.residual(plot), f"{name}: error against prediction (line: median, band: middle 80 %)"),
        (charts.histogram(plot), f"{name}: share of rows by error"),
        (charts.error_by_size(plot), f'{name}: error by size (<i class="key median"></i>median, '
                                     '<i class="key p90"></i>90th percentile)'),
    ]  # fmt: skip
    curves = [
        interval
        for interval in evaluation.intervals
        if (interval.family, interval.target) == (plot.family, plot.target)
    ]
    if curves:
        regimes = _KEYS if len(curves) > 1 else f"{'seen' if curves[0].seen else 'unseen'} devices"
        plots.append((charts.reliability(curves), f"{name}: coverage asked for and found ({regimes})"))
    return figures(plots)


def _coverage(evaluation: Evaluation) -> str:
    parts = []
    for target, name in TARGETS.items():
        coverage = [
            part
            for part in evaluation.slices
            if part.target == target and part.by != "family" and part.metrics.coverage_pct is not None
        ]
        rows = [(_slice_name(part), part.metrics.coverage_pct or 0.0, part.metrics.n) for part in _largest(coverage)]
        if rows:
            parts.append(f"<h3>{name}</h3>{charts.coverage(rows, evaluation.coverage * 100)}")
    words = f"{evaluation.coverage - 0.02:.0%}–{evaluation.coverage + 0.02:.0%}"
    return (
        "<section><h2>Do the intervals hold?</h2><p>The share of measurements inside their interval, slice by slice; the "
        f"band is {words}. The line through each dot is what chance alone allows (95 %): a grey dot has too few rows to "
        f"tell.</p>{''.join(parts)}</section>"
    )


def _largest(largest: Sequence[SliceResult]) -> Iterable[SliceResult]:
    """At most `_COVERAGE_ROWS` slices, those with the most rows, in their order."""
    keep = sorted(range(len(largest)), key=lambda i: -largest[i].metrics.n)[:_COVERAGE_ROWS]
    return [largest[i] for i in sorted(keep)]


def _slice_name(part: SliceResult) -> str:
    return " · ".join(
        word for word in (part.family or "all families", part.by if part.by != "all" else "", part.name) if word
    )


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


_CURVES_TITLE = "Learning curves"
_CURVE_HEADS = ("rows", "orders", "seconds of measuring", "mean APE", "median APE", "within 10 %", "coverage", "width")
_CURVE_KEYS = '<i class="key p90"></i>mean, <i class="key median"></i>median, band: over orders'


def write_curves(curves: LearningCurves, path: Path) -> None:
    """Write the report to `path`, replacing what was there only once the whole file is on disk.

    Raises:
        SpecError: `path` cannot be written.
    """
    write_page(curves_html(curves), path)


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
        bands = (point.mean_ape_pct, point.median_ape_pct, point.within_10_pct, point.coverage_pct, point.width_pct)
        cells = (f"{point.rows:,}", str(point.seeds), f"{point.seconds.median:,.0f} s", *map(_band, bands))
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
