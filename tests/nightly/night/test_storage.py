"""What a night does with its store: what it reads, what it says of each kind of damage, and when it packs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelcast.datasets.compaction import compact_in_place
from kernelcast.datasets.schema import Provenance
from kernelcast.datasets.store import Store, StoreError
from kernelcast.datasets.verifying import Verified
from kernelcast.features.device import catalogue
from kernelcast.nightly import storage as stored
from kernelcast.nightly.storage import Known, Reading, storage


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
    facts, findings = storage(night)
    assert (facts["files"], facts["files_left"], facts["stored_rows"], findings) == (4, 0, 20, [])
    damage(night.store.files()[0])
    night.budget.total_s = 0.0
    facts, _ = storage(night)
    assert (facts["files"], facts["files_left"], facts["damaged_files"]) == (0, 4, [])
    night.budget.total_s = 600.0
    facts, (finding,) = storage(night)
    assert (facts["files"], len(facts["damaged_files"])) == (4, 1)
    assert "moved out of the way, to `.quarantine` in the store" in finding.said
    assert (night.store.root / ".quarantine").is_dir()


def test_new_files_and_those_of_another_size_are_always_read(night, rows) -> None:
    storage(night)
    night.budget.total_s = 0.0
    path = night.store.files()[0]
    path.write_bytes(path.read_bytes()[:-100])
    night.store.append(rows(3, seed=9), Provenance("b1", {"kernel": "6.1"}))
    facts, _ = storage(night)
    assert (facts["files"], facts["stored_rows"], len(facts["damaged_files"])) == (2, 3, 1)


def test_the_longest_unread_come_first_and_a_slow_disk_ends_it(tmp_path: Path) -> None:
    known = Known(tmp_path / "k.json", {"a": (1, 30.0, 4.0), "b": (1, 10.0, 4.0), "c": (1, 20.0, 4.0)})
    now = [0.0]
    reading = Reading(known, {"a": 1, "b": 1, "c": 1, "d": 1}, 9.0, lambda: now[0])
    assert (reading.due, reading.new) == ({"b", "c"}, {"d"})
    assert not reading.wants("a")
    assert reading.wants("b")
    now[0] = 20.0
    assert not reading.wants("c")
    assert reading.wants("d")
    reading.finish(lambda name: name != "d", 99.0)
    assert known.files == {"a": (1, 30.0, 4.0), "b": (1, 99.0, 20.0), "c": (1, 20.0, 4.0)}


def test_what_is_known_of_files_may_be_lost_or_damaged(night) -> None:
    storage(night)
    path = Known.of(night.store).path
    for content in ("{", "[]", '{"files": {"a": 1}}'):
        path.write_text(content)
        assert storage(night)[0]["files"] == 4
    night.store.files()[0].unlink()
    storage(night)
    assert len(Known.of(night.store).files) == 3


@pytest.mark.parametrize(
    ("found", "key", "kind", "said"),
    [
        ({"missing": ("f/a.parquet",)}, "missing", "storage", "1 packed files that a compaction wrote are missing: f/a"),
        ({"newer": (("f/a", "format 9"),)}, "newer", "storage", "1 files were written by a newer kernelcast"),
        ({"refused": (("f/a", "2 of 9 rows cannot be true"),)}, "impossible_rows", "rows", "1 files have rows that cannot be"),
        ({"twice": (("f", 7),)}, "twice", "rows", "7 rows are stored twice, in f"),
    ],
)  # fmt: skip
def test_every_kind_of_fault_is_one_sentence(
    night, monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], key: str, kind: str, said: str
) -> None:
    monkeypatch.setattr(stored, "verify", lambda *given, **named: Verified(**found))
    facts, (finding,) = storage(night)
    assert facts[key]
    assert finding.kind == kind
    assert said in finding.said


def test_rows_that_are_there_twice_and_files_that_are_missing_are_found(night) -> None:
    store = night.store
    one = store.files()[0]
    one.with_name(one.name.replace(one.name[-17:-8], "-00000000"[:9])).write_bytes(one.read_bytes())
    facts, findings = storage(night)
    assert sum(facts["twice"].values()) == 5
    assert "stored twice" in findings[0].said
    compact_in_place(store, keep_s=0.0)
    next(iter(store.files())).unlink()
    facts, findings = storage(night)
    assert len(facts["missing"]) == 1
    assert any("Bring them back from a backup" in finding.said for finding in findings)


def test_many_small_files_are_packed_and_few_are_not(night, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "packed" not in storage(night)[0]
    monkeypatch.setattr(stored, "_FEWEST_FILES", 4)
    facts, findings = storage(night)
    assert facts["packed"] == {"read": 4, "written": 1, "before": 4, "rows": 20}
    assert findings == []
    assert len(night.store.files()) == 1
    assert "packed" not in storage(night)[0]


@pytest.mark.parametrize("problem", ["fails", "late"])
def test_packing_that_fails_or_has_no_time_harms_nothing(night, monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    monkeypatch.setattr(stored, "_FEWEST_FILES", 4)

    def compact(store: Store, *, progress: Any) -> Any:
        if problem == "fails":
            raise StoreError("the disk is full")
        progress("family=softmax/device=d", 2, 4)

    night.budget.left_s = 0.0
    monkeypatch.setattr(stored, "compact_in_place", compact)
    facts, (finding,) = storage(night)
    assert finding.level == "info"
    assert ("the disk is full" if problem == "fails" else "was over after 2 of 4 files") in finding.said
    assert facts["files"] == 4
