"""The HTML report of an evaluation: one file that needs nothing else, no script, readable in light and dark."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from ..features.errors import SpecError
from . import charts
from .evaluation import Compared, Evaluation, SliceResult
from .metrics import Metrics, wilson_pct
from .scoring import LOWER_BOUND, Plot

_STYLE = Path(__file__).parent / "report_assets" / "report.css"
_TARGETS = {"latency_s": "latency", "power_w": "power", "energy_j": "energy"}
_HEADS = ("rows", "mean APE", "median APE", "within 10 %", "Spearman", "Kendall", "coverage", "width")
_COVERAGE_ROWS = 60
"""Most rows of the coverage chart; the table below it has them all."""


def write_report(evaluation: Evaluation, path: Path) -> None:
    """Write the report to `path`, replacing what was there only once the whole file is on disk.

    Raises:
        SpecError: `path` cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(report_html(evaluation), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise SpecError(f"cannot write the report {path}: {error.strerror or error}", field="html") from error


def report_html(evaluation: Evaluation) -> str:
    """The report as text."""
    parts = [
        _head(evaluation),
        _cards(evaluation),
        _comparison(evaluation),
        *(_family(evaluation, family) for family in _families(evaluation)),
        _coverage(evaluation),
        _how_to_read(evaluation),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(evaluation.title)} · kernelcast</title>"
        f"<style>{_STYLE.read_text(encoding='utf-8')}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def _head(evaluation: Evaluation) -> str:
    facts = {"regressor": evaluation.regressor, "interval": f"{evaluation.coverage:.0%}", **evaluation.facts}
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(_words(value))}</dd></div>" for name, value in facts.items()
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in evaluation.notes)
    return f"<header><p class=brand>kernelcast</p><h1>{escape(evaluation.title)}</h1><dl>{items}</dl>{notes}</header>"


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(one)}" for name, one in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _cards(evaluation: Evaluation) -> str:
    cards = []
    for target, name in _TARGETS.items():
        found = evaluation.overall(target)
        if found is not None:
            inside = _in_band(found, evaluation)
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
    for target, name in _TARGETS.items():
        rows = [one for one in whole if one.target == target]
        if rows:
            parts.append(f"<h3>{name}</h3>{_compared_table(evaluation, rows)}")
    if devices:
        parts.append(f"<details><summary>By device left out</summary>{_compared_table(evaluation, devices)}</details>")
    return "".join([*parts, "</section>"])


def _compared_table(evaluation: Evaluation, rows: Sequence[Compared]) -> str:
    names = list(dict.fromkeys(one.regressor for one in rows))
    names.sort(key=lambda name: name != LOWER_BOUND)
    groups: dict[tuple[str, str, str], dict[str, Metrics]] = {}
    for one in rows:
        groups.setdefault((one.family, one.device, one.target), {})[one.regressor] = one.metrics
    body = []
    for (family, device, target), found in sorted(groups.items()):
        worst = max(metrics.mean_ape_pct for metrics in found.values()) or 1.0
        best = min(metrics.mean_ape_pct for metrics in found.values())
        label = f"{family} without {device}, {_TARGETS[target]}" if device else family
        for i, name in enumerate(name for name in names if name in found):
            metrics = found[name]
            mark = " class=best" if metrics.mean_ape_pct == best else ""
            head = f'<th rowspan="{len(found)}" class=group>{escape(label)}</th>' if i == 0 else ""
            bar = f'<td class=barcell><i style="width:{metrics.mean_ape_pct / worst * 100:.1f}%"></i></td>'
            first = " class=first" if i == 0 else ""
            body.append(f"<tr{first}>{head}<td{mark}>{escape(name)}</td>{bar}{_cells(metrics, evaluation)}</tr>")
    heads = "".join(f"<th>{head}</th>" for head in ("family", "regressor", "mean error", *_HEADS))
    table = f"<table class=compared><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f"<div class=scroll>{table}</div>"


def _family(evaluation: Evaluation, family: str) -> str:
    title = family or "all families"
    plots = "".join(_plots(plot) for plot in evaluation.plots if plot.family == family)
    tables = "".join(_slice_table(evaluation, family, target) for target in _TARGETS)
    return f'<section id="family-{escape(family)}"><h2>{escape(title)}</h2>{plots}{tables}</section>'


def _plots(plot: Plot) -> str:
    name = _TARGETS[plot.target]
    legend = (
        '<i class="key seen"></i>seen device <i class="key unseen"></i>unseen device'
        if any(plot.unseen)
        else "band: ±10 %"
    )
    figures = (
        (charts.parity(plot), f"{name}: predicted against measured ({legend})"),
        (charts.histogram(plot), f"{name}: share of rows by error"),
        (charts.error_by_size(plot), f'{name}: error by size (<i class="key median"></i>median, '
                                     '<i class="key p90"></i>90th percentile)'),
    )  # fmt: skip
    return (
        "<div class=plots>"
        + "".join(f"<figure>{svg}<figcaption>{text}</figcaption></figure>" for svg, text in figures)
        + "</div>"
    )


def _slice_table(evaluation: Evaluation, family: str, target: str) -> str:
    rows = [one for one in evaluation.slices if one.family == family and one.target == target]
    if not rows:
        return ""
    heads = "".join(f"<th>{head}</th>" for head in ("slice", "", *_HEADS))
    body = []
    for i, one in enumerate(rows):
        first = i == 0 or rows[i - 1].by != one.by
        label = f"<td class=by>{escape(one.by if first and one.by != 'all' else '')}</td>"
        name = "all rows" if one.by == "all" else one.name
        mark = " class=first" if first else ""
        body.append(f"<tr{mark}>{label}<td class=name>{escape(name)}</td>{_cells(one.metrics, evaluation)}</tr>")
    opened = " open" if target == "latency_s" else ""
    return (
        f"<details{opened}><summary>{_TARGETS[target]} by slice</summary><div class=scroll><table>"
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table></div></details>"
    )


def _cells(metrics: Metrics, evaluation: Evaluation) -> str:
    numbers = (f"{metrics.n:,}", _percent(metrics.mean_ape_pct), _percent(metrics.median_ape_pct),
               _percent(metrics.within_10_pct, 0), _correlation(metrics.spearman), _correlation(metrics.kendall))  # fmt: skip
    return (
        "".join(f"<td class=num>{number}</td>" for number in numbers)
        + f'<td class="num {_in_band(metrics, evaluation)}">{_percent(metrics.coverage_pct)}</td>'
        + f"<td class=num>{_percent(metrics.width_pct, 0)}</td>"
    )


def _coverage(evaluation: Evaluation) -> str:
    parts = []
    for target, name in _TARGETS.items():
        found = [
            one
            for one in evaluation.slices
            if one.target == target and one.by != "family" and one.metrics.coverage_pct is not None
        ]
        rows = [(_slice_name(one), one.metrics.coverage_pct or 0.0, one.metrics.n) for one in _largest(found)]
        if rows:
            parts.append(f"<h3>{name}</h3>{charts.coverage(rows, evaluation.coverage * 100)}")
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
        f"{escape(evaluation.regressor)}; plots show at most 1,500 rows each, spread evenly by size. Power of kernels under "
        "333 µs is told apart, since sensors hardly see them.</p></section>"
    )


def _families(evaluation: Evaluation) -> list[str]:
    return sorted({one.family for one in evaluation.slices})


def _in_band(metrics: Metrics, evaluation: Evaluation) -> str:
    """`ok` inside the band, `off` outside it by more than chance allows, else nothing: too few rows to tell."""
    if metrics.coverage_pct is None:
        return ""
    low, high = evaluation.coverage * 100 - 2.0, evaluation.coverage * 100 + 2.0
    least, most = wilson_pct(metrics.coverage_pct, metrics.n)
    if low <= metrics.coverage_pct <= high:
        return "ok"
    return "off" if most < low or least > high else ""


def _percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f} %"


def _correlation(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
