"""Learning curves as an HTML report: one file that needs nothing else, no script, readable in light and dark."""

from __future__ import annotations

from html import escape
from pathlib import Path

from . import curve_charts
from .learning_curve import Band, Curve, LearningCurves
from .report_page import TARGETS, figures, head, page, percent, table, write_page

_TITLE = "Learning curves"
_HEADS = ("rows", "orders", "seconds of measuring", "mean APE", "median APE", "within 10 %", "coverage", "width")
_KEYS = '<i class="key p90"></i>mean, <i class="key median"></i>median, band: over orders'


def write_curves(found: LearningCurves, path: Path) -> None:
    """Write the report to `path`, replacing what was there only once the whole file is on disk.

    Raises:
        SpecError: `path` cannot be written.
    """
    write_page(curves_html(found), path)


def curves_html(found: LearningCurves) -> str:
    """The report as text."""
    facts = {"regressor": found.regressor, **found.facts}
    return page(_TITLE, [head(_TITLE, facts, found.notes), *map(_section, found.curves), _how_to_read()])


def _section(curve: Curve) -> str:
    name = f"{curve.family}, {TARGETS[curve.target]}"
    charts = figures([
        (curve_charts.errors_by_rows(curve), f"error against rows ({_KEYS})"),
        (curve_charts.errors_by_seconds(curve), f"error against what measuring them took ({_KEYS})"),
    ])  # fmt: skip
    body = []
    for one in curve.points:
        bands = (one.mean_ape_pct, one.median_ape_pct, one.within_10_pct, one.coverage_pct, one.width_pct)
        cells = (f"{one.rows:,}", str(one.seeds), f"{one.seconds.median:,.0f} s", *map(_band, bands))
        body.append("<tr>" + "".join(f"<td class=num>{escape(cell)}</td>" for cell in cells) + "</tr>")
    judged = f"<p class=small>Judged by {curve.points[-1].judged:,} rows that no model was trained on.</p>"
    return f"<section><h2>{escape(name)}</h2>{charts}{judged}{table(_HEADS, body, 'numbers')}</section>"


def _band(band: Band) -> str:
    middle = percent(band.median)
    return middle if band.low == band.high else f"{middle} ({band.low:.1f}–{band.high:.1f})"


def _how_to_read() -> str:
    return (
        "<section class=small><h2>How to read this</h2><p>Rows are put in a random order, once per seed, and a model is "
        "trained on the first 100, the first 300 and so on: smaller samples are part of larger ones, and all models are "
        "judged by the same rows. Figures are medians over the orders, in brackets the least and the most. Seconds of "
        "measuring are what these rows would take by this project's own protocol: repetitions of the kernel until the "
        "stopping rule is met, warm-up, the first call where it was recorded, 2.8 s for power, and a constant for all "
        "else.</p></section>"
    )
