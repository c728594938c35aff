"""The report of a night: complete wherever the night failed, true to its record, and never anything but text."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from kernelcast.nightly.record.record import STAGES, Finding, NightRecord, StageRecord
from kernelcast.nightly.report_page import outcome_sentence, report_page, sentinel_ratios

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
SECTIONS = ("person", "measured", "accuracy", "changes", "stages")
VOID = {"meta"}

FACTS: dict[str, dict[str, Any]] = {
    "characterise": {"reused": True, "age_days": 2.0, "descriptor": {"a": 1.0}},
    "sentinels": {"readings": {"gemm": 1.2e-3, "copy": 2e-5}, "expected": {"gemm": 1e-3, "copy": 2e-5},
                  "software": "driver=580", "clock_hz": 1.98e9, "temperature_c": 44.0},
    "choose": {"cases": 640, "candidates": 91000, "predicted_seconds": 1800.0, "why": {"usage": 180, "informative": 460},
               "families": {"gemm": 400, "copy": 240}},
    "collect": {"rows": {"ok": 630, "failed": 10}, "families": {"gemm": 398, "copy": 242}, "seconds": 1750.0, "left": 3},
    "check": {"model_drift": {
        "gemm": {"n": 300, "mean_ape_pct": 6.0, "coverage_pct": 88.0, "expected_coverage_pct": 90.0},
        "copy": {"n": 100, "mean_ape_pct": 2.0, "coverage_pct": 93.0, "expected_coverage_pct": 90.0}}},
    "train": {"challengers": [{"name": "adapted", "kind": "adapted", "rows": 5000, "seconds": 40.0, "regressor": "blend",
                               "families": ["gemm"]}, {"name": "late", "kind": "retrained"}]},
    "gate": {"champion": "v12", "verdicts": [{"name": "adapted", "passed": True, "summary": "It is better.", "slices": [
        {"slice": "gemm on h200", "rows": "last night", "n": 300, "champion_mean_ape_pct": 6.25,
         "challenger_mean_ape_pct": 5.125, "verdict": "better",
         "champion_coverage_pct": 88.0, "challenger_coverage_pct": 91.0},
        {"slice": "gemm on h200, impl torch", "rows": "last night", "n": 300, "champion_mean_ape_pct": 1.0,
         "challenger_mean_ape_pct": 1.0, "verdict": "too few"}]}],
        "changes": {"cases": 1200, "median_pct": 1.25, "p95_pct": 9.0,
                    "largest": [{"case": "gemm[m=1]", "device": "h200", "before_s": 1.2e-5, "after_s": 1.8e-5}]}},
    "promote": {"version": "v13", "name": "adapted", "previous": "v12", "registry": "ok"},
    "report": {"html": "report.html", "json": "report.json"},
}  # fmt: skip


def night(day: int = 22, outcome: Any = "promoted", **changes: Any) -> NightRecord:
    stages = tuple(
        StageRecord(name, "done", f"2026-11-{day:02d}T22:0{i}:00+00:00", 60.0, f"{name} went well.", FACTS[name])
        for i, name in enumerate(STAGES)
    )
    plain = NightRecord(f"202611{day:02d}T220000Z-rack", "rack", "h200", outcome, f"2026-11-{day:02d}T22:00:00+00:00",
                        f"2026-11-{day:02d}T22:58:00+00:00", 3600.0, "v12", "v13", stages)  # fmt: skip
    return replace(plain, **changes)


def failed_at(name: str) -> NightRecord:
    place = STAGES.index(name)
    stages = list(night().stages[:place])
    stages.append(StageRecord(name, "failed", "2026-11-22T22:30:00+00:00", 3.0, f"The disk was full in {name}."))
    stages += [StageRecord(item) for item in STAGES[place + 1 :]]
    return night(outcome="failed", champion_after="v12", stages=tuple(stages))


class Reader(HTMLParser):
    """Checks that elements close as they were opened; keeps tags, ids and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        self.text += data if self.open[-1:] != ["style"] else ""


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    assert set(SECTIONS) <= set(reader.ids)
    # Nothing inline and nothing from elsewhere: the service's policy allows the style sheet alone.
    assert not reader.tags & {"script", "img", "iframe", "link", "object", "base", "form"}
    assert not {item for item in reader.attributes if item.startswith("on")} | (reader.attributes & {"style", "src"})
    return reader


def test_a_whole_night_tells_everything() -> None:
    reader = read(report_page(night()))
    for words in (
        "Promoted: v13 serves now and replaces v12.", "Nothing: no finding of this night needs a person.",
        "58.0 min of 60.0 min", "91,000", "630", "informative", "88.0 %", "5.1 %", "too few",
        "12 µs", "18 µs",
        "+50.0 %", "driver=580", "1.98 GHz", "44 °C", "+20.0 %", "It was not judged.", "gate went well.",
    ):  # fmt: skip
        assert words in reader.text, words


@pytest.mark.parametrize("name", STAGES)
def test_a_night_that_failed_anywhere_has_a_whole_page(name: str) -> None:
    record = failed_at(name)
    reader = read(report_page(record))
    assert f"Failed at {name}: The disk was full in {name}. v12 keeps serving." in reader.text
    assert reader.text.count("not-reached") == len(STAGES) - STAGES.index(name) - 1
    read(report_page(NightRecord.from_json(record.to_json())))


@pytest.mark.parametrize(
    ("outcome", "said"),
    [("kept", "keeps serving"), ("rolled-back", "serves again"), ("interrupted", "to continue this night"),
     ("running", "Still running, at report"), ("failed", "cannot be loaded; a person has to act")],
)  # fmt: skip
def test_every_outcome_is_a_sentence(outcome: str, said: str) -> None:
    for record in (
        night(outcome=outcome),
        night(outcome=outcome, ended=None, champion_before=None, champion_after=None),
    ):
        assert said in outcome_sentence(record)
        read(report_page(record))


def test_a_night_that_did_nothing_has_a_page() -> None:
    nothing = NightRecord("20261122T220000Z-x", "x", "", "failed", "", None, 0.0, None, None)
    text = read(report_page(nothing)).text
    assert "Failed at its start: no model keeps serving." in text
    for words in (
        "did not get to measuring",
        "did not get to it",
        "No challenger was promoted",
    ):
        assert words in text


def test_what_needs_a_person_comes_before_everything_else() -> None:
    result = (Finding("gate", "info", "a", "An aside."), Finding("rows", "warning", "b", "A warning."),
             Finding("device-drift", "needs-person", "h200", "Look at the fan.", {"ratio": 1.25, "none": None}))  # fmt: skip
    record = night()
    text = read(report_page(record.with_stage(replace(record.stage("check"), findings=result)))).text
    places = [text.index(words) for words in ("Look at the fan.", "ratio 1.25", "A warning.", "An aside.", "91,000")]
    assert places == sorted(places)


def hostile(value: Any) -> Any:
    """Every text, name and number of a fact made into what it should not be."""
    if isinstance(value, dict):
        return {
            f"{HOSTILE}{name}" if isinstance(item, int | float) else name: hostile(item) for name, item in value.items()
        }
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return HOSTILE if isinstance(value, str) else value


@pytest.mark.parametrize(
    "spoil", [hostile, lambda _: HOSTILE, lambda _: [HOSTILE], lambda _: {HOSTILE: {HOSTILE: [None]}}]
)
def test_texts_stay_texts_and_wrong_forms_are_left_out(spoil: Any) -> None:
    stages = tuple(
        StageRecord(item.name, item.status, HOSTILE, item.seconds, HOSTILE,
                    {name: spoil(fact) for name, fact in item.facts.items()},
                    (Finding(HOSTILE, "needs-person", HOSTILE, HOSTILE, {HOSTILE: 1.0}),))
        for item in night().stages
    )  # fmt: skip
    html = report_page(night(plan=HOSTILE, device=HOSTILE, began=HOSTILE, champion_after=HOSTILE, stages=stages))
    assert HOSTILE in read(html).text


@pytest.mark.parametrize("number", [float("inf"), float("nan"), -1.0, 0.0, 1e300, 5e-324, 10**400, True, None, "7"])
def test_no_number_breaks_the_page(number: Any) -> None:
    def spoilt(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: spoilt(item) for name, item in value.items()}
        return (
            [spoilt(item) for item in value]
            if isinstance(value, list)
            else number
            if isinstance(value, float | int)
            else value
        )

    stages = tuple(replace(item, facts=spoilt(item.facts)) for item in night().stages)
    html = report_page(night(stages=stages))
    read(html)
    assert not re.search(r"(?:nan|inf)[ \"]", re.sub(r"<style>.*</style>", "", html))


def test_sentinels_of_several_devices_are_told_apart() -> None:
    item, other = FACTS["sentinels"], {"readings": {"gemm": 2.0, "new": 1.0, "lost": None}, "expected": {"gemm": 4.0}}
    both = StageRecord("sentinels", "done", facts={**item, "devices": {"h200": item, "l40s": other}})
    result = sentinel_ratios(night().with_stage(both))
    assert result == pytest.approx({"h200: gemm": 1.2, "h200: copy": 1.0, "l40s: gemm": 0.5})
