"""The ledger remembers what was kept, through crashes and damage, and never prunes what might be needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.nightly.gate.challengers import past
from kernelcast.nightly.gate.hold_out import unseen
from kernelcast.nightly.gate.ledger import Ledger, ModelEntry, RecentError, night_time, recent_errors
from kernelcast.nightly.gate.selection import POLICIES, Now, by_both, by_error, excess_errors

T4 = "nvidia-t4"


def night(day: int) -> str:
    return f"202611{day:02d}T220000Z-home"


def error(day: int, pct: float, n: int = 100, regime: str = "") -> RecentError:
    return RecentError(night(day), T4, "gemm", regime, n, pct)


def entry(version: str, day: int, *errors: RecentError, software: str = "driver=1", regime: str = "") -> ModelEntry:
    return ModelEntry(version, f"/models/{version}", "retrained", night(day), "", software={T4: software},
                      regime={T4: regime} if regime else {}, errors=errors)  # fmt: skip


def test_what_is_kept_comes_back_with_its_errors(home: Path, rows, champion: Path) -> None:
    ledger = Ledger()
    kept = ledger.keep(past(champion, "old"), night(1), software={T4: "driver=1"}, regime={T4: "r1"},
                       measured=("2026-11-01T22:00:00+00:00", None))  # fmt: skip
    found = recent_errors(kept, unseen([], [rows(seed=9)], regime="r1"), night(2))
    ledger.record_errors(kept.version, found)
    (again,) = Ledger().entries()
    assert again.errors == tuple(found)
    assert (again.software, again.regime, again.first_row, again.previous) == (
        {T4: "driver=1"},
        {T4: "r1"},
        kept.first_row,
        None,
    )
    assert 40 < again.errors[0].mean_ape_pct < 160
    assert Path(again.path).parent == home / "models"
    # A past model that is promoted a second time has still learned from what it was made of.
    ledger.keep(past(champion, "old"), night(3), software={T4: "driver=2"})
    assert ledger.entries() == [again]


def test_a_model_that_does_not_load_has_no_errors(rows, tmp_path: Path) -> None:
    assert recent_errors(entry("gone", 1), unseen([], [rows()]), night(2)) == []


@pytest.mark.parametrize(
    "damage",
    ["", "{", "null", "[]", '{"event": "kept"}', '{"event": "sold", "version": "a"}', '{"event": "kept", "version": "a"}',
     '{"event": "promoted", "version": "a", "at": 3}', '{"event": "errors", "version": "a", "errors": [{}]}', "\x00\xff"],
)  # fmt: skip
def test_a_damaged_line_costs_only_itself(home: Path, champion: Path, damage: str) -> None:
    ledger = Ledger()
    kept = ledger.keep(past(champion, "old"), night(1))
    with ledger.path.open("a", encoding="latin-1") as file:
        file.write(damage)
    ledger.promoted(kept.version, None, "2026-11-02T00:00:00+00:00")
    (found,) = ledger.entries()
    assert found.promoted_at == "2026-11-02T00:00:00+00:00"
    assert found.previous == "shipped"
    assert ledger.damaged == bool(damage)


def test_an_unknown_version_names_those_there_are(home: Path, champion: Path) -> None:
    ledger = Ledger()
    with pytest.raises(SpecError, match="no model 'x' is kept; kept: none"):
        ledger.find("x")
    version = ledger.keep(past(champion, "old"), night(1)).version
    with pytest.raises(SpecError, match=f"kept: {version}"):
        ledger.find("x")


def test_pruning_spares_the_champion_and_the_best_of_each_regime(home: Path) -> None:
    ledger = Ledger()
    (home / "nights").mkdir(parents=True)
    lines = []
    for i, (version, regime, pct) in enumerate([("a", "r1", 9), ("b", "r1", 5), ("c", "r1", 7), ("d", "r2", 3), ("e", "r2", 8),
                                                ("f", "r2", 8)]):  # fmt: skip
        folder = home / "models" / version
        folder.mkdir(parents=True)
        lines.append({"event": "kept", "version": version, "path": str(folder), "kind": "retrained", "night": night(i + 1),
                      "sha256": "", "regime": {T4: regime}})  # fmt: skip
        recent = {"night": night(i + 2), "device": T4, "family": "gemm", "regime": regime, "n": 50, "mean_ape_pct": pct}
        lines.append({"event": "errors", "version": version, "errors": [recent]})
    ledger.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    gone = ledger.prune(1, ["a"])
    assert [one.version for one in gone] == ["c", "e"]
    assert [one.version for one in ledger.entries()] == ["a", "b", "d", "f"]
    assert sorted(path.name for path in (home / "models").iterdir()) == ["a", "b", "d", "f"]


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


NOW = Now(night(20), {T4: "driver=1"}, {})


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        # Made under the software that is back, though long ago; then the nearest.
        ("adjacency", ["old", "newer", "new"]),
        ("error", ["new", "newer", "old"]),
        ("both", ["old", "new", "newer"]),
    ],
)
def test_policies_put_models_in_order(policy: str, order: list[str]) -> None:
    models = [
        entry("old", 2, error(19, 30.0)),
        entry("new", 17, error(19, 10.0), software="driver=2"),
        entry("newer", 18, error(19, 15.0), software="driver=2"),
    ]
    assert [one.version for one in POLICIES[policy](models, NOW)] == order


def test_regimes_count_before_software() -> None:
    joined = entry("joined", 3, software="driver=2", regime="r1")
    other = entry("other", 19, software="driver=1", regime="r2")
    assert by_both([other, joined], Now(night(20), {T4: "driver=1"}, {T4: "r1"}))[0].version == "joined"


def test_a_handful_of_lucky_rows_is_not_believed() -> None:
    lucky, steady = (
        entry("lucky", 5, error(19, 5.0, n=2)),
        entry("steady", 5, *(error(day, 6.0) for day in (17, 18, 19))),
    )
    bad = entry("bad", 5, *(error(day, 20.0) for day in (17, 18, 19)))
    assert [one.version for one in by_error([lucky, bad, steady], NOW)] == ["steady", "lucky", "bad"]


def test_a_hard_night_is_no_fault_of_the_models_that_were_there() -> None:
    # Both were asked on night 19; only the older one also on night 10, when everything was wrong.
    older = entry("older", 5, error(10, 80.0), error(19, 10.0))
    younger = entry("younger", 15, error(19, 12.0))
    excess = excess_errors([older, younger], NOW)
    assert excess["older"] < 0 < excess["younger"]


def test_errors_of_other_regimes_do_not_count() -> None:
    one, two = (entry("one", 5, error(18, 1.0, regime="r2"), error(19, 20.0, regime="r1")),
                entry("two", 5, error(18, 50.0, regime="r2"), error(19, 10.0, regime="r1")))  # fmt: skip
    assert by_error([one, two], Now(night(20), {}, {T4: "r1"}))[0].version == "two"
