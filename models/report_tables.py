"""The tables of an evaluation's report: every regressor beside the roofline, errors by slice, peers beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .evaluation import Compared, Evaluation
from .metrics import Metrics, wilson_pct
from .peers import Range
from .report_page import TARGETS, percent, table
from .scoring import LOWER_BOUND

_HEADS = ("rows", "mean APE", "median APE", "within 10 %", "Spearman", "Kendall", "coverage", "width")


def compared_table(evaluation: Evaluation, rows: Sequence[Compared]) -> str:
    """Regressors by family and device left out, the lower bound first, each with a bar as long as its mean error."""
    names = list(dict.fromkeys(one.regressor for one in rows))
    names.sort(key=lambda name: name != LOWER_BOUND)
    groups: dict[tuple[str, str, str], dict[str, Metrics]] = {}
    for one in rows:
        groups.setdefault((one.family, one.device, one.target), {})[one.regressor] = one.metrics
    body = []
    for (family, device, target), found in sorted(groups.items()):
        worst = max(metrics.mean_ape_pct for metrics in found.values()) or 1.0
        best = min(metrics.mean_ape_pct for metrics in found.values())
        label = f"{family} without {device}, {TARGETS[target]}" if device else family
        for i, name in enumerate(name for name in names if name in found):
            metrics = found[name]
            mark = " class=best" if metrics.mean_ape_pct == best else ""
            head = f'<th rowspan="{len(found)}" class=group>{escape(label)}</th>' if i == 0 else ""
            bar = f'<td class=barcell><i style="width:{metrics.mean_ape_pct / worst * 100:.1f}%"></i></td>'
            first = " class=first" if i == 0 else ""
            body.append(f"<tr{first}>{head}<td{mark}>{escape(name)}</td>{bar}{_cells(metrics, evaluation)}</tr>")
    return table(("family", "regressor", "mean error", *_HEADS), body, "compared")


def slice_table(evaluation: Evaluation, family: str, target: str) -> str:
    """Errors of one family and target by everything its rows are sliced by; empty where it has no rows."""
    rows = [one for one in evaluation.slices if one.family == family and one.target == target]
    if not rows:
        return ""
    body = []
    for i, one in enumerate(rows):
        first = i == 0 or rows[i - 1].by != one.by
        label = f"<td class=by>{escape(one.by if first and one.by != 'all' else '')}</td>"
        name = "all rows" if one.by == "all" else one.name
        mark = " class=first" if first else ""
        body.append(f"<tr{mark}>{label}<td class=name>{escape(name)}</td>{_cells(one.metrics, evaluation)}</tr>")
    opened = " open" if target == "latency_s" else ""
    return (
        f"<details{opened}><summary>{TARGETS[target]} by slice</summary>{table(('slice', '', *_HEADS), body)}</details>"
    )


def peers_table(evaluation: Evaluation) -> str:
    """Other predictors' errors, and ours on the judged rows they compare with."""
    body = []
    last = ("", "", "")
    for one in evaluation.beside:
        peer, ours = one.peer, one.ours
        of_what = (peer.family + (f", {peer.variant}" if peer.variant else ""), TARGETS[peer.target], peer.held_out)
        mark = " class=first" if of_what != last else ""
        last = of_what
        theirs = "".join(f"<td class=num>{span(value)}</td>"
                         for value in (peer.mean_ape_pct, peer.median_ape_pct, peer.within_10_pct))  # fmt: skip
        own = "".join(f"<td class=num>{percent(value)}</td>"
                      for value in (ours.mean_ape_pct, ours.median_ape_pct, ours.within_10_pct))  # fmt: skip
        cells = "".join(f"<td>{escape(word)}</td>" for word in (*of_what, peer.name))
        basis = escape(one.basis + (f"; {peer.note}" if peer.note else ""))
        body.append(f'<tr{mark}>{cells}{theirs}<td title="{escape(peer.source)}">{basis}</td>{own}'
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
