"""The ledger remembers what was kept, through crashes and damage, and never prunes what might be needed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.nightly.gate.challengers import past
from kernelcast.nightly.gate.model_ledger import Ledger, ModelEntry, RecentError, night_time, past_models

T4 = "nvidia-t4"


def night(day: int) -> str:
    return f"202611{day:02d}T220000Z-home"


def error(day: int, pct: float, n: int = 100) -> RecentError:
    return RecentError(night(day), T4, "gemm", n, pct)


def entry(version: str, day: int, *errors: RecentError, software: str = "driver=1") -> ModelEntry:
    return ModelEntry(
        version, f"/models/{version}", "retrained", night(day), "", software={T4: software}, errors=errors
    )


def test_what_is_kept_comes_back_with_its_errors(home: Path, champion: Path) -> None:
    ledger = Ledger()
    remaining = ledger.keep(
        past(champion, "old"), night(1), software={T4: "driver=1"}, measured=("2026-11-01T22:00:00+00:00", None)
    )
    ledger.record_errors(remaining.version, [error(2, 50.0)])
    (again,) = Ledger().entries()
    assert again.errors == (error(2, 50.0),)
    assert (again.software, again.first_row, again.previous) == ({T4: "driver=1"}, remaining.first_row, None)
    assert Path(again.path).parent == home / "models"
    # A past model that is promoted a second time has still learned from what it was made of.
    ledger.keep(past(champion, "old"), night(3), software={T4: "driver=2"})
    assert ledger.entries() == [again]


def test_the_model_before_and_the_newest_of_the_software_that_runs_challenge_again() -> None:
    entries = [
        entry("a", 1), entry("b", 2, software="driver=2"), entry("c", 3), entry("d", 4, software="driver=2"),
        replace(entry("e", 5, software="driver=3"), previous="b"),
    ]  # fmt: skip
    again = [item.version for item in past_models(entries, "e", {T4: "driver=1"})]
    assert again == ["b", "c"]
    assert [item.version for item in past_models(entries, "c", {T4: "driver=1"})] == []
    assert past_models([], "shipped", {T4: "driver=1"}) == []


@pytest.mark.parametrize(
    "damage",
    ["", "{", "null", "[]", '{"event": "kept"}', '{"event": "sold", "version": "a"}', '{"event": "kept", "version": "a"}',
     '{"event": "promoted", "version": "a", "at": 3}', '{"event": "errors", "version": "a", "errors": [{}]}', "\x00\xff"],
)  # fmt: skip
def test_a_damaged_line_costs_only_itself(home: Path, champion: Path, damage: str) -> None:
    ledger = Ledger()
    remaining = ledger.keep(past(champion, "old"), night(1))
    with ledger.path.open("a", encoding="latin-1") as file:
        file.write(damage)
    ledger.promoted(remaining.version, None, "2026-11-02T00:00:00+00:00")
    (result,) = ledger.entries()
    assert result.promoted_at == "2026-11-02T00:00:00+00:00"
    assert result.previous == "shipped"
    assert ledger.damaged == bool(damage)


def test_an_unknown_version_names_those_there_are(home: Path, champion: Path) -> None:
    ledger = Ledger()
    with pytest.raises(SpecError, match="no model 'x' is kept; kept: none"):
        ledger.find("x")
    version = ledger.keep(past(champion, "old"), night(1)).version
    with pytest.raises(SpecError, match=f"kept: {version}"):
        ledger.find("x")


def test_pruning_spares_the_champion_and_the_newest_of_each_software(home: Path) -> None:
    ledger = Ledger()
    (home / "nights").mkdir(parents=True)
    lines = []
    for i, (version, software) in enumerate([("a", "x"), ("b", "x"), ("c", "x"), ("d", "y"), ("e", "y"), ("f", "z")]):
        folder = home / "models" / version
        folder.mkdir(parents=True)
        lines.append({"event": "kept", "version": version, "path": str(folder), "kind": "retrained", "night": night(i + 1),
                      "sha256": "", "software": {T4: software}})  # fmt: skip
    ledger.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    removed = ledger.prune(1, ["a"])
    assert [item.version for item in removed] == ["b", "d"]
    assert [item.version for item in ledger.entries()] == ["a", "c", "e", "f"]
    assert sorted(path.name for path in (home / "models").iterdir()) == ["a", "c", "e", "f"]


def test_lines_of_earlier_versions_have_fields_that_are_not_read_any_more(home: Path) -> None:
    ledger = Ledger()
    (home / "nights").mkdir(parents=True)
    remaining = {"event": "kept", "version": "a", "path": "/models/a", "kind": "retrained", "night": night(1), "sha256": "",
            "regime": {T4: "r1"}}  # fmt: skip
    recent = {"night": night(2), "device": T4, "family": "gemm", "regime": "r1", "n": 50, "mean_ape_pct": 9.0}
    errors = {"event": "errors", "version": "a", "errors": [recent]}
    ledger.path.write_text("".join(json.dumps(line) + "\n" for line in (remaining, errors)))
    (entry,) = ledger.entries()
    assert entry.errors == (RecentError(night(2), T4, "gemm", 50, 9.0),)
    assert ledger.damaged == 0


def test_pruning_deletes_nothing_outside_the_models_folder(home: Path, tmp_path: Path, champion: Path) -> None:
    ledger = Ledger()
    mine = tmp_path / "mine"
    mine.mkdir()
    ledger.keep(past(champion, "x"), night(1), version="mine", path=champion)
    ledger.prune(0, [])
    assert champion.exists()
    assert ledger.entries() == []


def test_an_unwritable_ledger_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot write"):
        Ledger(tmp_path / "file" / "ledger.jsonl").promoted("a", None, "now")
    with pytest.raises(SpecError, match="cannot read"):
        Ledger(tmp_path).entries()


@pytest.mark.parametrize(
    ("text", "day"), [("20261122T220000Z-home", 22), ("20261103T000000Z", 3), ("night one", 1), ("", 1)]
)
def test_nights_have_a_time(text: str, day: int) -> None:
    assert night_time(text).day == day
