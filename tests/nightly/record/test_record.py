"""The record of a night on disk: what is written is read, whatever else is refused in a sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelcast.nightly.record.record import STAGES, Finding, NightRecord, RecordError, StageRecord

RECORD = NightRecord(
    "20261122T220000Z-n", "n", "d", "running", "2026-11-22T22:00:00+00:00", None, 60.0, "shipped", None
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    finding = Finding("device", "warning", "d", "It is warm.", {"degrees": 90.0, "not": None})
    stage = StageRecord("collect", "done", "2026-11-22T22:00:00+00:00", 3.0, "Stored.", {"rows": {"ok": 3}}, (finding,))
    record = RECORD.with_stage(stage)
    record.write(tmp_path / "state.json")
    assert NightRecord.read(tmp_path / "state.json") == record
    assert record.findings == (finding,)
    assert [item.name for item in record.stages] == list(STAGES)
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_numbers_that_are_none_are_null() -> None:
    record = RECORD.with_stage(StageRecord("gate", "done", facts={"gain": float("nan")}))
    assert NightRecord.from_json(record.to_json()).stage("gate").facts == {"gain": None}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format_version": 9}, "format version 9"),
        ({"outcome": "great"}, "Invalid enum value 'great' - at `.*outcome"),
        ({"stages": []}, "its stages are not"),
        ({"stages": None}, "damaged"),
        ({"id": 3}, "Expected `str`, got `int` - at `.*id"),
        ({"budget_s": "much"}, "Expected `float`, got `str` - at `.*budget_s"),
    ],
)
def test_what_is_refused(change: dict[str, Any], words: str) -> None:
    content = json.loads(RECORD.to_json())
    with pytest.raises(RecordError, match=words):
        NightRecord.from_json(json.dumps({**content, **change}))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "{}", "\x00"])
def test_texts_that_are_no_record(text: str) -> None:
    with pytest.raises(RecordError, match="the record"):
        NightRecord.from_json(text)


def test_a_status_and_level_that_do_not_exist() -> None:
    for stage in (StageRecord("gate", "perhaps"), StageRecord("gate", findings=(Finding("x", "loud", "d", "s"),))):  # type: ignore[arg-type]
        with pytest.raises(RecordError, match=r"Invalid enum value .* - at `\$\.stages"):
            NightRecord.from_json(RECORD.with_stage(stage).to_json())


def test_a_file_that_cannot_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    RECORD.write(tmp_path / "state.json")
    with pytest.raises(TypeError):
        replace(RECORD, plan=object()).write(tmp_path / "state.json")  # type: ignore[arg-type]
    assert NightRecord.read(tmp_path / "state.json") == RECORD
