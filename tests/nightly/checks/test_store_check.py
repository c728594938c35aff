"""What a night reads of its store, and what it reports of each kind of damage."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelcast.datasets.rows.schema import Provenance
from kernelcast.datasets.store.store import Store
from kernelcast.datasets.store.verify import Verified
from kernelcast.features.device import catalogue
from kernelcast.nightly.checks import store_check as stored
from kernelcast.nightly.checks.store_check import Reading, check_store, read_before


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows) -> Any:
    """A night whose store has four files."""
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path / "home"))
    store = Store(tmp_path / "rows")
    every = rows(20)
    for i in range(4):
        store.append(every[5 * i : 5 * i + 5], Provenance("b1", {"kernel": "6.1"}))
    return SimpleNamespace(store=store, devices=catalogue(), budget=SimpleNamespace(total_s=600.0, left_s=300.0))


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100] + b"\0" * 100)


def test_sound_files_are_read_again_only_for_a_share_of_the_night(night) -> None:
    facts, findings = check_store(night)
    assert (facts["files"], facts["files_left"], facts["stored_rows"], findings) == (4, 0, 20, [])
    damage(night.store.files()[0])
    night.budget.total_s = 0.0
    facts, _ = check_store(night)
    assert (facts["files"], facts["files_left"], facts["damaged_files"]) == (0, 4, [])
    night.budget.total_s = 600.0
    facts, (finding,) = check_store(night)
    assert (facts["files"], len(facts["damaged_files"])) == (4, 1)
    assert "moved out of the way, to `.quarantine` in the store" in finding.message
    assert (night.store.root / ".quarantine").is_dir()


def test_new_files_and_those_of_another_size_are_always_read(night, rows) -> None:
    check_store(night)
    night.budget.total_s = 0.0
    path = night.store.files()[0]
    path.write_bytes(path.read_bytes()[:-100])
    night.store.append(rows(3, seed=9), Provenance("b1", {"kernel": "6.1"}))
    facts, _ = check_store(night)
    assert (facts["files"], facts["stored_rows"], len(facts["damaged_files"])) == (2, 3, 1)


def test_the_longest_unread_come_first_and_a_slow_disk_ends_it() -> None:
    known = {"a": (1, 30.0, 4.0), "b": (1, 10.0, 4.0), "c": (1, 20.0, 4.0)}
    now = [0.0]
    reading = Reading(known, {"a": 1, "b": 1, "c": 1, "d": 1}, 9.0, lambda: now[0])
    assert (reading.due, reading.new) == ({"b", "c"}, {"d"})
    assert not reading.wants("a")
    assert reading.wants("b")
    now[0] = 20.0
    assert not reading.wants("c")
    assert reading.wants("d")
    assert reading.finish({"d"}, 99.0) == {"a": (1, 30.0, 4.0), "b": (1, 99.0, 20.0), "c": (1, 20.0, 4.0)}


def test_what_is_known_of_files_may_be_lost_or_damaged(night) -> None:
    check_store(night)
    path, _ = read_before(night.store)
    for content in ("{", "[]", '{"files": {"a": 1}}'):
        path.write_text(content)
        assert check_store(night)[0]["files"] == 4
    night.store.files()[0].unlink()
    check_store(night)
    assert len(read_before(night.store)[1]) == 3


@pytest.mark.parametrize(
    ("found", "key", "kind", "said"),
    [
        ({"other_format": [("f/a", "format 9")]}, "other_format", "storage", "1 files have another row format"),
        ({"refused": [("f/a", "2 of 9 rows cannot be true")]}, "impossible_rows", "rows", "1 files have rows that cannot be"),
        ({"twice": [("f", 7)]}, "twice", "rows", "7 rows are stored twice, in f"),
    ],
)  # fmt: skip
def test_every_kind_of_fault_is_one_sentence(
    night, monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], key: str, kind: str, said: str
) -> None:
    monkeypatch.setattr(stored, "verify", lambda *given, **named: Verified(**found))
    facts, (finding,) = check_store(night)
    assert facts[key]
    assert finding.kind == kind
    assert said in finding.message


def test_rows_that_are_there_twice_are_found(night) -> None:
    store = night.store
    item = store.files()[0]
    item.with_name(item.name.replace(item.name[-17:-8], "-00000000"[:9])).write_bytes(item.read_bytes())
    facts, findings = check_store(night)
    assert sum(facts["twice"].values()) == 5
    assert "stored twice" in findings[0].message
