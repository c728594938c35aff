"""The report of a night as one page of HTML: what came of it first, then what a person must do, then the evidence.

A night may fail at any stage; whatever a stage did not tell is said to be missing, and the page is complete all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ..models.report_page import figures, head, page, percent, words
from ..models.report_page import table as plain_table
from ..models.svg import quantity
from . import report_charts as charts
from .record import Finding, NightRecord
from .report_facts import (
    begun_times,
    champion_error_pct,
    counts,
    facts,
    failed_stage,
    last_begun,
    mapping,
    number,
    rows,
    rows_measured,
    seconds_taken,
    sentinel_ratios,
    served_slices,
)

MOST_SLICES = 60
"""Slices of one challenger that are shown; the rest is in report.json."""
MOST_CHANGES = 20
_SHOWN = 1200
"""Longest text of a fact that is shown, characters."""

_OUTCOMES = {
    "promoted": "Promoted: {after} answers now, in the place of {before}.",
    "kept": "Kept: {after} goes on answering; no challenger took its place.",
    "rolled-back": "Rolled back: {after} answers again; what was promoted before it did not hold.",
    "failed": "Failed at {stage}: {said}{after} goes on answering.",
    "interrupted": "Interrupted at {stage}: {after} goes on answering; running the same plan again goes on from there.",
    "running": "Still running, at {stage}; {after} answers meanwhile.",
}
_CONTENTS = (
    '<p class=small>On this page: <a href="#person">what needs a person</a>, <a href="#measured">what was measured</a>, '
    '<a href="#accuracy">how good the models are</a>, <a href="#changes">what changed</a>, '
    '<a href="#nights">over the nights</a>, <a href="#stages">stages</a></p>'
)
_LEVELS = {"needs-person": "off", "warning": "", "info": "ok"}


def report_page(record: NightRecord, earlier: Sequence[NightRecord] = ()) -> str:
    """A whole page of a night; `earlier` are nights before it, in any order, for what is drawn over nights."""
    others = sorted((one for one in earlier if one.id < record.id), key=lambda one: one.id)
    nights = [*others, record][-charts.MOST_NIGHTS :]
    parts = [
        head(f"Night {record.id}", _about(record), [outcome_sentence(record)]),
        _CONTENTS,
        _needed(record),
        _measured(record),
        _accuracy(record),
        _changes(record),
        _over_nights(nights),
        _stages(record),
    ]
    return page(f"Night {record.id}: {record.outcome}", parts)


def outcome_sentence(record: NightRecord) -> str:
    """What came of the night, in a sentence."""
    stage = failed_stage(record) if record.outcome == "failed" else last_begun(record)
    if record.outcome == "failed" and stage is None and record.stage("promote").status != "not-reached":
        return f"Failed: the model that should answer, {_named(record.champion_after)}, cannot be loaded; a person has to look."
    before = _named(record.champion_before)
    said = _OUTCOMES[record.outcome].format(
        before=before,
        after=_named(record.champion_after) if record.champion_after else before,
        stage="its start" if stage is None else stage.name,
        said="" if stage is None or not stage.said else f"{_short(stage.said).rstrip('.')}. ",
    )
    return said[:1].upper() + said[1:]


def _named(version: str | None) -> str:
    """A version as a sentence names it."""
    return {None: "no model", "shipped": "the shipped model"}.get(version, version or "")


def _about(record: NightRecord) -> dict[str, object]:
    return {
        "outcome": record.outcome, "plan": record.plan, "measured": record.device, "began": record.began,
        "took": f"{_time(seconds_taken(record))} of {_time(record.budget_s)}",
        "model before": record.champion_before or "none", "model now": record.champion_after or "none",
    }  # fmt: skip


def _needed(record: NightRecord) -> str:
    found = record.findings
    asked = [one for one in found if one.level == "needs-person"]
    others = sorted((one for one in found if one.level != "needs-person"), key=lambda one: one.level != "warning")
    top = _findings(asked) if asked else "<p>Nothing: no finding of this night asks for a person.</p>"
    more = f"<h3>What else was found</h3>{_findings(others)}" if others else ""
    return f"<section id=person><h2>What needs a person</h2>{top}{more}</section>"


def _findings(found: Iterable[Finding]) -> str:
    return table(
        "Findings",
        ("Level", "Kind", "About", "Found and done", "Numbers"),
        (
            f'<tr class=first><td class="{_LEVELS[one.level]}">{escape(one.level)}</td><td>{_cell(one.kind)}</td>'
            f"<td>{_cell(one.subject)}</td><td>{_cell(one.said)}</td>{_num(_numbers(one.numbers))}</tr>"
            for one in found
        ),
        "peers",
    )


def _measured(record: NightRecord) -> str:
    chosen, collected = facts(record, "choose"), facts(record, "collect")
    why, families, done = (
        counts(part) for part in (chosen.get("why"), chosen.get("families"), collected.get("families"))
    )
    told = {
        "cases chosen": _whole(chosen.get("cases")), "out of": _whole(chosen.get("candidates")),
        "time planned for them": _time(number(chosen.get("predicted_seconds"))),
        "time taken": _time(number(collected.get("seconds"))), "left unmeasured": _whole(collected.get("left")),
    }  # fmt: skip
    statuses = rows_measured(record)
    tables = [
        _counted("Rows measured", "status", {"rows": statuses}),
        _counted("By kernel family", "family", {"chosen": families, "rows": done}),
        _counted("Why they were chosen", "reason", {"cases": why}),
    ]
    said = "".join(
        f"<p>{_cell(record.stage(name).said)}</p>" for name in ("choose", "collect") if record.stage(name).said
    )
    nothing = "" if any(tables) else "<p>No rows: the night did not get to measuring.</p>"
    found = f"{said}{_facts(told)}{nothing}<div class=plots>{''.join(tables)}</div>"
    return f"<section id=measured><h2>What was measured</h2>{found}</section>"


def _accuracy(record: NightRecord) -> str:
    slices = served_slices(record)
    parts = []
    if slices:
        parts.append("<h3>The model that served, on tonight's rows before it saw them</h3>")
        parts.append(table(
            "The model that served",
            ("Slice", "", "Rows", "Mean error", "In its interval", "Asked"),
            (f"<tr><td>{_cell(one.name)}</td><td></td>{_num(_whole(one.n))}{_num(percent(one.mean_ape_pct))}"
             f"{_num(percent(one.coverage_pct))}{_num(percent(one.expected_pct))}</tr>" for one in slices[:MOST_SLICES]),
        ))  # fmt: skip
    challengers = {str(one.get("name")): one for one in rows(facts(record, "train").get("challengers"))}
    verdicts = rows(facts(record, "gate").get("verdicts"))
    winner = facts(record, "gate").get("winner")
    parts += [_verdict(verdict, challengers.pop(str(verdict.get("name")), {}), winner) for verdict in verdicts]
    parts += [
        f"<h3>{_cell(name)}</h3>{_facts(_made(one))}<p class=small>It was not judged.</p>"
        for name, one in challengers.items()
    ]
    if not parts:
        parts = ["<p>Nothing was judged: the night did not get to it.</p>"]
    return f"<section id=accuracy><h2>How good the models are</h2>{''.join(parts)}</section>"


def _judged(verdict: Mapping[str, Any], winner: object) -> str:
    """What came of a challenger, in words: one that is nowhere worse and not better either takes no place."""
    if verdict.get("passed") is not True:
        return "refused"
    return "passed" if verdict.get("name") == winner else "nowhere worse beyond noise, and not taken"


def _verdict(verdict: Mapping[str, Any], made: Mapping[str, Any], winner: object) -> str:
    slices = rows(verdict.get("slices"))
    told = {"verdict": _judged(verdict, winner), **_made(made)}
    found = table(
        f"Slices of {verdict.get('name')}",
        (
            "Slice",
            "Rows of",
            "Rows",
            "Served model",
            "Challenger",
            "Difference (below 0 is better), 90 % interval",
            "Coverage",
            "Verdict",
        ),
        (
            f"<tr><td>{_cell(one.get('slice'))}</td><td>{_cell(one.get('rows'))}</td>{_num(_whole(one.get('n')))}"
            f"{_num(percent(number(one.get('champion_mean_ape_pct'))))}{_num(percent(number(one.get('challenger_mean_ape_pct'))))}"
            f"{_num(_gap(one))}{_num(_coverages(one))}"
            f'<td class="{_VERDICTS.get(str(one.get("verdict")), "")}">{_cell(one.get("verdict"))}</td></tr>'
            for one in slices[:MOST_SLICES]
        ),
    )
    more = (
        f"<p class=small>{len(slices) - MOST_SLICES} further slices are in report.json.</p>"
        if len(slices) > MOST_SLICES
        else ""
    )
    said = f"<p>{_cell(verdict.get('said', ''))}</p>"
    return f"<h3>{_cell(verdict.get('name'))}</h3>{_facts(told)}{said}{found if slices else ''}{more}"


_DIFFERENCE = "Difference (below 0 is better), 90 % interval"
_VERDICTS = {"better": "ok", "worse": "off"}


def _made(made: Mapping[str, Any]) -> dict[str, object]:
    families = made.get("families")
    return {
        "made by": made.get("kind"), "regressor": made.get("regressor"), "rows learned from": _whole(made.get("rows")),
        "took": _time(number(made.get("seconds"))),
        "families": ", ".join(map(str, families)) if isinstance(families, list) else None,
    }  # fmt: skip


def _gap(one: Mapping[str, Any]) -> str:
    low, high = number(one.get("low_pct")), number(one.get("high_pct"))
    return "–" if low is None or high is None else f"{low:+.1f} to {high:+.1f} points"


def _coverages(one: Mapping[str, Any]) -> str:
    before, after = (number(one.get(f"{who}_coverage_pct")) for who in ("champion", "challenger"))
    return "–" if after is None else f"{percent(before, 0)} → {percent(after, 0)}"


def _changes(record: NightRecord) -> str:
    found = mapping(facts(record, "gate").get("changes"))
    told = {
        "cases asked of both models": _whole(found.get("cases")),
        "median change": percent(number(found.get("median_pct"))),
        "95 of 100 change less than": percent(number(found.get("p95_pct"))),
    }  # fmt: skip
    largest = table(
        "The answers that change most",
        ("Case", "Device", "Before", "After", "Change"),
        (
            f"<tr><td>{_cell(one.get('case'))}</td><td>{_cell(one.get('device'))}</td>{_num(_seconds(one.get('before_s')))}"
            f"{_num(_seconds(one.get('after_s')))}{_num(_moved(one))}</tr>"
            for one in rows(found.get("largest"))[:MOST_CHANGES]
        ),
    )
    sentinels = facts(record, "sentinels")
    machine = {
        "software": sentinels.get("software"), "regime": sentinels.get("regime"), "clock": _clock(sentinels.get("clock_hz")),
        "temperature": None if (at := number(sentinels.get("temperature_c"))) is None else f"{at:.0f} °C",
    }  # fmt: skip
    answers = (
        f"{_facts(told)}<h3>The answers that change most</h3>{largest}"
        if found
        else "<p>No challenger was taken, so no answer of the service changes by this night.</p>"
    )
    regime = f"<h3>The machine</h3>{_facts(machine)}" if any(value is not None for value in machine.values()) else ""
    moves = sentinel_ratios(record)
    read = table(
        "Sentinels",
        ("Sentinel", "", "Against what was expected"),
        (
            f"<tr><td>{_cell(case)}</td><td></td>{_num(f'{100 * (ratio - 1):+.1f} %')}</tr>"
            for case, ratio in moves.items()
        ),
    )
    return f"<section id=changes><h2>What changed</h2>{answers}{regime}{read if moves else ''}</section>"


def _over_nights(nights: Sequence[NightRecord]) -> str:
    names = begun_times(nights)
    measured = [rows_measured(night) for night in nights]
    good = [one.get("ok", 0.0) for one in measured]
    others = [sum(one.values()) - ok for one, ok in zip(measured, good, strict=True)]
    drawn = [
        (charts.errors_by_night(names, [champion_error_pct(night) for night in nights]),
         "mean error of the model that served, on each night's own rows"),
        (charts.rows_by_night(names, good, others), "rows measured; in the other colour those that are not ok"),
        (charts.sentinels_by_night(names, [sentinel_ratios(night) for night in nights]),
         "sentinels: every one as a dot, their median as a line"),
    ]  # fmt: skip
    found = [(svg, caption) for svg, caption in drawn if svg]
    shown = figures(found) if found else "<p>No night has told anything to draw yet.</p>"
    return f"<section id=nights><h2>Over {len(nights)} night{'s' if len(nights) > 1 else ''}</h2>{shown}</section>"


def _stages(record: NightRecord) -> str:
    marks = {"done": "ok", "failed": "off"}
    body = (
        f'<tr><td>{escape(one.name)}</td><td class="{marks.get(one.status, "")}">{escape(one.status)}</td>'
        f"<td>{_cell(one.began or '–')}</td><td>{_cell(one.said)}</td>{_num(_time(one.seconds) if one.began else '–')}</tr>"
        for one in record.stages
    )
    stages = table("Stages of the night", ("Stage", "Status", "Began", "Said", "Took"), body, "peers")
    files = {name: facts(record, "report").get(name) for name in ("html", "json")}
    promoted = {name: facts(record, "promote").get(name) for name in ("version", "name", "previous", "registry")}
    return (
        f"<section id=stages><h2>Stages</h2>{stages}{_facts(promoted)}{_facts(files)}"
        f"<p class=small>The night's folder also holds report.json, which has every number of this page, and the challengers. "
        f"The service shows both at /nights/{escape(record.id)} and /v1/nights/{escape(record.id)}.</p></section>"
    )


def table(label: str, heads: Iterable[str], body: Iterable[str], kind: str = "") -> str:
    """A table in a box that the keyboard can scroll where the window is narrow; `label` is what it is called there."""
    box = f'<div class=scroll tabindex=0 role=region aria-label="{escape(label)}">'
    return plain_table(heads, body, kind).replace("<div class=scroll>", box, 1)


def _counted(title: str, name: str, columns: Mapping[str, Mapping[str, float]]) -> str:
    """A table of counts, a row for everything counted in any of the columns; nothing where nothing was."""
    keys = list(dict.fromkeys(key for column in columns.values() for key in column))
    if not keys:
        return ""
    filled = {title: column for title, column in columns.items() if column}
    body = (
        f"<tr><td>{_cell(key)}</td><td></td>{''.join(_num(_whole(column.get(key))) for column in filled.values())}</tr>"
        for key in keys
    )
    return f"<div><h3>{escape(title)}</h3>{table(title, (name, '', *filled), body)}</div>"


def _facts(told: Mapping[str, object]) -> str:
    """Facts that are known, side by side."""
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{_cell(value)}</dd></div>"
        for name, value in told.items()
        if value not in (None, "–", "")
    )
    return f"<dl>{items}</dl>" if items else ""


def _cell(value: object) -> str:
    return escape(_short("–" if value is None else words(value)))


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _num(text: str) -> str:
    return f"<td class=num>{escape(text)}</td>"


def _numbers(found: Mapping[str, float | None]) -> str:
    known = {name: value for name, one in found.items() if (value := number(one)) is not None}
    return _short(", ".join(f"{name} {value:.4g}" for name, value in known.items()))


def _whole(value: object) -> str:
    found = number(value)
    return "–" if found is None else f"{found:,.0f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _seconds(value: object) -> str:
    found = number(value)
    return "–" if found is None or found <= 0 else quantity(found, "latency_s")


def _moved(one: Mapping[str, Any]) -> str:
    before, after = number(one.get("before_s")), number(one.get("after_s"))
    return "–" if not before or after is None else f"{100 * (after / before - 1):+.1f} %"


def _clock(value: object) -> str | None:
    found = number(value)
    return None if found is None or found <= 0 else f"{found / 1e9:.2f} GHz"
