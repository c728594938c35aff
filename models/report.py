"""The HTML report of an evaluation: one file that needs nothing else, no script, readable in light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from . import charts, interval_charts
from .evaluation import Evaluation, SliceResult
from .report_page import TARGETS, figures, head, page, write_page
from .report_tables import compared_table, in_band, peers_table, slice_table
from .scoring import Plot

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
    families = sorted({one.family for one in evaluation.slices})
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
        found = evaluation.overall(target)
        if found is not None:
            inside = in_band(found, evaluation)
            cards.append(
                f"<div class=card><h2>{name}</h2><p class=big>{found.median_ape_pct:.1f} %</p><p>median error</p><ul>"
                f"<li><b>{found.mean_ape_pct:.1f} %</b> mean</li><li><b>{found.within_10_pct:.0f} %</b> within 10 %</li>"
                f'<li><b class="{inside}">{found.coverage_pct:.1f} %</b> inside the {evaluation.coverage:.0%} interval</li>'
                f"<li><b>{found.n:,}</b> rows</li></ul></div>"
            )
    return f"<section class=cards>{''.join(cards)}</section>"


def _comparison(evaluation: Evaluation) -> str:
    whole = [one for one in evaluation.compared if not one.device]
    devices = [one for one in evaluation.compared if one.device]
    parts = ["<section><h2>Every regressor beside the roofline</h2>"]
    for target, name in TARGETS.items():
        rows = [one for one in whole if one.target == target]
        if rows:
            parts.append(f"<h3>{name}</h3>{compared_table(evaluation, rows)}")
    if devices:
        parts.append(f"<details><summary>By device left out</summary>{compared_table(evaluation, devices)}</details>")
    return "".join([*parts, "</section>"])


def _peers(evaluation: Evaluation) -> str:
    if not evaluation.beside:
        return ""
    sources = dict.fromkeys(one.peer.source for one in evaluation.beside)
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
    told = "; ".join(f"{by}: {word}" for by, word in common.items())
    shared = f"<p class=small>All rows have {escape(told)}.</p>" if told else ""
    return f'<section id="family-{escape(family)}"><h2>{escape(title)}</h2>{plots}{shared}{tables}</section>'


def _plots(evaluation: Evaluation, plot: Plot) -> str:
    name = TARGETS[plot.target]
    found = [
        (charts.parity(plot), f"{name}: predicted against measured ({_KEYS if any(plot.unseen) else 'band: ±10 %'})"),
        (charts.residual(plot), f"{name}: error against prediction (line: median, band: middle 80 %)"),
        (charts.histogram(plot), f"{name}: share of rows by error"),
        (charts.error_by_size(plot), f'{name}: error by size (<i class="key median"></i>median, '
                                     '<i class="key p90"></i>90th percentile)'),
    ]  # fmt: skip
    curves = [one for one in evaluation.intervals if (one.family, one.target) == (plot.family, plot.target)]
    if curves:
        regimes = _KEYS if len(curves) > 1 else f"{'seen' if curves[0].seen else 'unseen'} devices"
        found.append((interval_charts.reliability(curves), f"{name}: coverage asked for and found ({regimes})"))
    return figures(found)


def _coverage(evaluation: Evaluation) -> str:
    parts = []
    for target, name in TARGETS.items():
        found = [
            one
            for one in evaluation.slices
            if one.target == target and one.by != "family" and one.metrics.coverage_pct is not None
        ]
        rows = [(_slice_name(one), one.metrics.coverage_pct or 0.0, one.metrics.n) for one in _largest(found)]
        if rows:
            parts.append(f"<h3>{name}</h3>{interval_charts.coverage(rows, evaluation.coverage * 100)}")
    words = f"{evaluation.coverage - 0.02:.0%}–{evaluation.coverage + 0.02:.0%}"
    return (
        "<section><h2>Do the intervals hold?</h2><p>The share of measurements inside their interval, slice by slice; the "
        f"band is {words}. The line through each dot is what chance alone allows (95 %): a grey dot has too few rows to "
        f"tell.</p>{''.join(parts)}</section>"
    )


def _largest(found: Sequence[SliceResult]) -> Iterable[SliceResult]:
    """At most `_COVERAGE_ROWS` slices, those with the most rows, in their order."""
    keep = sorted(range(len(found)), key=lambda i: -found[i].metrics.n)[:_COVERAGE_ROWS]
    return [found[i] for i in sorted(keep)]


def _slice_name(one: SliceResult) -> str:
    return " · ".join(
        word for word in (one.family or "all families", one.by if one.by != "all" else "", one.name) if word
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
