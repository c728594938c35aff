"""The report of a night as one page of HTML: the outcome first, then what a person must do, then the evidence.

A night may fail at any stage. What a stage did not report is said to be missing, and the page is complete all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from ..models.evaluation.charts import head, page, percent, quantity, words
from ..models.evaluation.charts import table as plain_table
from .record.record import Finding, NightRecord

MOST_SLICES = 60
"""Slices of one challenger in its table; report.json has the others."""
_MOST_CHARS = 1200
"""Longest text of a fact."""

_MOST_NUMBER = 1e15
"""No count, time or percentage of a night is larger; a number beyond is damage."""

_OUTCOMES = {
    "promoted": "Promoted: {after} serves now and replaces {before}.",
    "kept": "Kept: {after} keeps serving; no challenger replaced it.",
    "rolled-back": "Rolled back: {after} serves again; the model promoted after it was worse or did not load.",
    "failed": "Failed at {stage}: {reason}{after} keeps serving.",
    "interrupted": "Interrupted at {stage}: {after} keeps serving; run the same plan again to continue this night.",
    "running": "Still running, at {stage}; {after} keeps serving meanwhile.",
}
_CONTENTS = (
    '<p class=small>On this page: <a href="#person">what needs a person</a>, <a href="#measured">what was measured</a>, '
    '<a href="#accuracy">how accurate the models are</a>, <a href="#changes">what changed</a>, '
    '<a href="#stages">stages</a></p>'
)
_MARKS = {"needs-person": "off", "info": "ok", "better": "ok", "worse": "off", "done": "ok", "failed": "off"}
"""Class of a cell for the style sheet, by what it says."""


def table(label: str, titles: Sequence[str], body: Iterable[Sequence[object]], texts: int, kind: str = "") -> str:
    """A table in a box that the keyboard can scroll where the window is narrow; `label` is its name there.

    The first `texts` columns hold words, whose colour follows what they say, the others numbers.
    """
    first = " class=first" if kind else ""
    marked_up = []
    for row in body:
        cells = [_text(cell) for cell in row]
        marks = [_MARKS.get(cell, "") if i < texts else "num" for i, cell in enumerate(cells)]
        marked = "".join(f'<td class="{mark}">{cell}</td>' for mark, cell in zip(marks, cells, strict=True))
        marked_up.append(f"<tr{first}>{marked}</tr>")
    box = f'<div class=scroll tabindex=0 role=region aria-label="{escape(label)}">'
    return plain_table(titles, marked_up, kind).replace("<div class=scroll>", box, 1)


def _percent(value: object) -> str:
    return percent(number(value))


def _count(value: object) -> str:
    count = number(value)
    return "–" if count is None else f"{count:,.0f}"


def _duration(value: object) -> str:
    seconds = number(value)
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _latency(value: object) -> str:
    seconds = number(value)
    return "–" if seconds is None or seconds <= 0 else quantity(seconds, "latency_s")


def _change(row: Mapping[str, Any]) -> str:
    before, after = number(row.get("before_s")), number(row.get("after_s"))
    return "–" if not before or after is None else f"{100 * (after / before - 1):+.1f} %"


def _coverages(row: Mapping[str, Any]) -> str:
    before, after = (number(row.get(f"{model}_coverage_pct")) for model in ("champion", "challenger"))
    return "–" if after is None else f"{percent(before, 0)} → {percent(after, 0)}"


def _numbers(values: Mapping[str, float | None]) -> str:
    known = {name: value for name, entry in values.items() if (value := number(entry)) is not None}
    return ", ".join(f"{name} {value:.4g}" for name, value in known.items())


def report_page(record: NightRecord) -> str:
    """The whole page of a night."""
    about = {
        "outcome": record.outcome, "plan": record.plan, "measured": record.device, "began": record.began,
        "took": f"{_duration(seconds_taken(record))} of {_duration(record.budget_s)}",
        "model before": record.champion_before or "none", "model now": record.champion_after or "none",
    }  # fmt: skip
    parts = [head(f"Night {record.id}", about, [outcome_sentence(record)]), _CONTENTS, _needed(record), _measured(record),
             _accuracy(record), _changes(record), _stages(record)]  # fmt: skip
    return page(f"Night {record.id}: {record.outcome}", parts)


def outcome_sentence(record: NightRecord) -> str:
    """The outcome of the night in a sentence."""
    failed = record.outcome == "failed"
    stages = [stage for stage in record.stages if (stage.status == "failed" if failed else stage.began)]
    stage = stages[0 if failed else -1] if stages else None
    if failed and stage is None and record.stage("promote").status != "not-reached":
        return f"Failed: the model that should serve, {_named(record.champion_after)}, cannot be loaded; a person has to act."
    sentence = _OUTCOMES[record.outcome].format(
        before=_named(record.champion_before),
        after=_named(record.champion_after or record.champion_before),
        stage="its start" if stage is None else stage.name,
        reason="" if stage is None or not stage.summary else f"{_short(stage.summary).rstrip('.')}. ",
    )
    return sentence[:1].upper() + sentence[1:]


def _named(version: str | None) -> str:
    """A version as a sentence names it."""
    return {None: "no model", "shipped": "the shipped model"}.get(version, version or "")


def _needed(record: NightRecord) -> str:
    urgent = [finding for finding in record.findings if finding.level == "needs-person"]
    others = [finding for level in ("warning", "info") for finding in record.findings if finding.level == level]
    nothing = "<p>Nothing: no finding of this night needs a person.</p>"
    top = _findings("Findings", urgent) if urgent else nothing
    more = f"<h3>Other findings</h3>{_findings('Other findings', others)}" if others else ""
    return f"<section id=person><h2>What needs a person</h2>{top}{more}</section>"


def _findings(label: str, findings: Iterable[Finding]) -> str:
    body = [(each.level, each.kind, each.subject, each.message, _numbers(each.numbers)) for each in findings]
    return table(label, ("Level", "Kind", "About", "What happened", "Numbers"), body, 4, "peers")


def _measured(record: NightRecord) -> str:
    chosen, collected = facts(record, "choose"), facts(record, "collect")
    totals = {
        "cases chosen": _count(chosen.get("cases")), "out of": _count(chosen.get("candidates")),
        "time planned for them": _duration(chosen.get("predicted_seconds")),
        "time taken": _duration(collected.get("seconds")), "left unmeasured": _count(collected.get("left")),
    }  # fmt: skip
    tables = [
        _counted("Rows measured", "status", {"rows": rows_measured(record)}),
        _counted("By kernel family", "family",
                 {"chosen": counts(chosen.get("families")), "rows": counts(collected.get("families"))}),
        _counted("Why they were chosen", "reason", {"cases": counts(chosen.get("why"))}),
    ]  # fmt: skip
    summaries = "".join(
        f"<p>{_text(summary)}</p>" for name in ("choose", "collect") if (summary := record.stage(name).summary)
    )
    nothing = "" if any(tables) else "<p>No rows: the night did not get to measuring.</p>"
    shown = f"{summaries}{_facts(totals)}{nothing}<div class=plots>{''.join(tables)}</div>"
    return f"<section id=measured><h2>What was measured</h2>{shown}</section>"


def _counted(title: str, name: str, columns: Mapping[str, Mapping[str, float]]) -> str:
    """A table of counts, a row for everything counted in any of the columns; nothing where nothing was."""
    keys = list(dict.fromkeys(key for column in columns.values() for key in column))
    if not keys:
        return ""
    counted = {heading: column for heading, column in columns.items() if column}
    body = [(key, "", *(_count(column.get(key)) for column in counted.values())) for key in keys]
    return f"<div><h3>{escape(title)}</h3>{table(title, (name, '', *counted), body, 2)}</div>"


def _accuracy(record: NightRecord) -> str:
    parts = []
    if slices := served_slices(record):
        parts.append("<h3>The served model on tonight's rows, none of which it had learned from</h3>")
        body = [
            (row["slice"], "", _count(row.get("n")),
             *(_percent(row.get(name)) for name in ("mean_ape_pct", "coverage_pct", "expected_coverage_pct")))
            for row in slices[:MOST_SLICES]
        ]  # fmt: skip
        parts.append(
            table("The served model", ("Slice", "", "Rows", "Mean error", "In its interval", "Expected"), body, 2)
        )
    challengers = {str(entry.get("name")): entry for entry in rows(facts(record, "train").get("challengers"))}
    for verdict in rows(facts(record, "gate").get("verdicts")):
        challenger = challengers.pop(str(verdict.get("name")), {})
        parts.append(_verdict(verdict, challenger, facts(record, "gate").get("winner")))
    for name, challenger in challengers.items():
        parts.append(f"<h3>{_text(name)}</h3>{_facts(_origin(challenger))}<p class=small>It was not judged.</p>")
    shown = "".join(parts) or "<p>Nothing was judged: the night did not get to it.</p>"
    return f"<section id=accuracy><h2>How accurate the models are</h2>{shown}</section>"


def _verdict(verdict: Mapping[str, Any], challenger: Mapping[str, Any], winner: object) -> str:
    slices, name = rows(verdict.get("slices")), verdict.get("name")
    result = "refused"
    if verdict.get("passed") is True:
        beaten = (
            "better, and another gains more" if verdict.get("better") else "not better beyond noise, and not promoted"
        )
        result = "passed" if name == winner else beaten
    titles = ("Slice", "Rows of", "Verdict", "Rows", "Served model", "Challenger", "Coverage")  # fmt: skip
    body = [
        (row.get("slice"), row.get("rows"), row.get("verdict"), _count(row.get("n")),
         _percent(row.get("champion_mean_ape_pct")), _percent(row.get("challenger_mean_ape_pct")), _coverages(row))
        for row in slices[:MOST_SLICES]
    ]  # fmt: skip
    shown = table(f"Slices of {name}", titles, body, 3, "compared") if slices else ""
    if (hidden := len(slices) - MOST_SLICES) > 0:
        shown += f"<p class=small>{hidden} further slices are in report.json.</p>"
    listed = _facts({"verdict": result, **_origin(challenger)})
    return f"<h3>{_text(name)}</h3>{listed}<p>{_text(verdict.get('summary', ''))}</p>{shown}"


def _origin(challenger: Mapping[str, Any]) -> dict[str, object]:
    """How a challenger came to be."""
    families = challenger.get("families")
    return {
        "kind": challenger.get("kind"), "regressor": challenger.get("regressor"),
        "rows learned from": _count(challenger.get("rows")), "took": _duration(challenger.get("seconds")),
        "families": ", ".join(map(str, families)) if isinstance(families, list) else None,
    }  # fmt: skip


def _changes(record: NightRecord) -> str:
    answers = "<p>No challenger was promoted, so this night changes no prediction of the service.</p>"
    if changes := mapping(facts(record, "gate").get("changes")):
        totals = {
            "cases compared": _count(changes.get("cases")), "median change": _percent(changes.get("median_pct")),
            "95 of 100 change less than": _percent(changes.get("p95_pct")),
            "largest change on other devices": _percent(
                mapping(facts(record, "gate").get("changes_elsewhere")).get("largest_pct")
            ),
        }  # fmt: skip
        body = [
            (
                row.get("case"),
                row.get("device"),
                _latency(row.get("before_s")),
                _latency(row.get("after_s")),
                _change(row),
            )
            for row in rows(changes.get("largest"))
        ]
        largest = table("Largest changes", ("Case", "Device", "Before", "After", "Change"), body, 2)
        answers = f"{_facts(totals)}<h3>Largest changes</h3>{largest}"
    sentinels = facts(record, "sentinels")
    clock, temperature = number(sentinels.get("clock_hz")), number(sentinels.get("temperature_c"))
    machine = _facts({
        "software": sentinels.get("software"), "clock": f"{clock / 1e9:.2f} GHz" if clock and clock > 0 else None,
        "temperature": None if temperature is None else f"{temperature:.0f} °C",
    })  # fmt: skip
    state = f"<h3>The machine</h3>{machine}" if machine else ""
    ratios = [(case, "", f"{100 * (ratio - 1):+.1f} %") for case, ratio in sentinel_ratios(record).items()]
    moves = table("Sentinels", ("Sentinel", "", "Against what was expected"), ratios, 2) if ratios else ""
    return f"<section id=changes><h2>What changed</h2>{answers}{state}{moves}</section>"


def _stages(record: NightRecord) -> str:
    promoted = {name: facts(record, "promote").get(name) for name in ("version", "name", "previous", "registry")}
    files = {name: facts(record, "report").get(name) for name in ("html", "json")}
    body = [(stage.name, stage.status, stage.began, stage.summary, _duration(stage.seconds) if stage.began else None)
            for stage in record.stages]  # fmt: skip
    stages = table("Stages of the night", ("Stage", "Status", "Began", "Result", "Took"), body, 4, "peers")
    return (
        f"<section id=stages><h2>Stages</h2>{stages}{_facts(promoted)}"
        f"{_facts(files)}<p class=small>The night's folder also holds report.json, with every number of this page, and the "
        f"challengers. The service shows both at /nights/{escape(record.id)} and /v1/nights/{escape(record.id)}.</p></section>"
    )


def _facts(values: Mapping[str, object]) -> str:
    """Facts that are known, side by side."""
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{_text(value)}</dd></div>"
        for name, value in values.items()
        if value not in (None, "–", "")
    )
    return f"<dl>{items}</dl>" if items else ""


def _text(value: object) -> str:
    return escape(_short("–" if value is None else words(value)))


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}…"


def mapping(value: object) -> Mapping[str, Any]:
    """The value where it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def rows(value: object) -> Sequence[Mapping[str, Any]]:
    """The mappings of a list; nothing where it is none."""
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list | tuple) else []


def number(value: object) -> float | None:
    """The value where it is a number that can be meant, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_MOST_NUMBER <= value <= _MOST_NUMBER:
        return None
    return float(value)


def counts(value: object) -> dict[str, float]:
    """The entries of a mapping that are numbers."""
    return {str(name): count for name, entry in mapping(value).items() if (count := number(entry)) is not None}


def facts(record: NightRecord, stage: str) -> Mapping[str, Any]:
    """The facts of a stage."""
    return mapping(record.stage(stage).facts)


def seconds_taken(record: NightRecord) -> float:
    """Seconds from begin to end; of a night without an end, those of its stages."""
    try:
        if record.ended is not None:
            return (datetime.fromisoformat(record.ended) - datetime.fromisoformat(record.began)).total_seconds()
    except (ValueError, TypeError):
        pass  # a time that is none, or one of the two without its offset: the sum of the stages' seconds stands for it
    return sum(number(stage.seconds) or 0.0 for stage in record.stages)


def served_slices(record: NightRecord) -> list[Mapping[str, Any]]:
    """What the model that served was off by on the night's rows, slice by slice, as the check measured it."""
    drift = mapping(facts(record, "check").get("model_drift"))
    slices = [{**mapping(numbers), "slice": name} for name, numbers in drift.items()]
    return [row for row in slices if (number(row.get("n")) or 0) > 0 and number(row.get("mean_ape_pct")) is not None]


def sentinel_ratios(record: NightRecord) -> dict[str, float]:
    """Each sentinel's reading over what was expected of it; of several devices, with the device's name before it."""
    sentinels = facts(record, "sentinels")
    several = mapping(sentinels.get("devices"))
    parts = {f"{device}: ": mapping(device_facts) for device, device_facts in several.items()} or {"": sentinels}
    ratios = {}
    for prefix, part in parts.items():
        expected = counts(part.get("expected"))
        for case, reading in counts(part.get("readings")).items():
            if reading > 0 and expected.get(case, 0) > 0:
                ratios[f"{prefix}{case}"] = reading / expected[case]
    return ratios


def rows_measured(record: NightRecord) -> dict[str, float]:
    """Rows measured, by status."""
    return counts(facts(record, "collect").get("rows"))
