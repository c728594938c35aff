"""Measured modules, stored and packed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kernelcast.datasets.records.mlir_modules import (
    RUN_SCHEMA,
    ModuleRun,
    ModuleText,
    append_runs,
    append_texts,
    measured_keys,
    pack_modules,
    read_packed,
    read_runs,
    read_texts,
    read_texts_file,
    runs_of,
    texts_of,
)
from kernelcast.datasets.store.errors import StoreError, StoreWarning
from kernelcast.datasets.store.parquet_files import provenance_of
from kernelcast.features.errors import SpecError

TEXTS = [ModuleText(f"func.func @main() // {i}", f"test/{i % 2}", "test", "linalg") for i in range(4)]
FACTS = {"cpu": "one", "versions": {"iree": "3"}}


def a_run(text: ModuleText, **given: object) -> ModuleRun:
    values = {"compiler": "iree", "device": "cpu-1", "threads": 1, "status": "ok", "block": "b1", "latency_s": 1e-5,
              "spills": 3, "noisy": False, "executed_instructions": 1e6} | given  # fmt: skip
    return ModuleRun(module_id=text.module_id, **values)  # type: ignore[arg-type]


def test_what_is_stored_is_read_back_with_its_provenance(tmp_path: Path) -> None:
    append_texts(tmp_path, TEXTS, {"texts": "test"})
    rows = [a_run(text, threads=threads) for text in TEXTS for threads in (1, None)]
    append_runs(tmp_path, rows, FACTS)
    assert texts_of(read_texts(tmp_path)) == TEXTS
    table = read_runs(tmp_path)
    assert table.schema.equals(RUN_SCHEMA)
    assert sorted(runs_of(table), key=str) == sorted(rows, key=str)
    assert provenance_of(table) == {"b1": FACTS}


def test_a_text_is_stored_once(tmp_path: Path) -> None:
    assert len(append_texts(tmp_path, [*TEXTS[:2], TEXTS[0]], {"a": 1})) == 1
    assert len(append_texts(tmp_path, TEXTS, {"a": 1})) == 1
    assert append_texts(tmp_path, TEXTS, {"a": 1}) == []
    assert texts_of(read_texts(tmp_path)) == TEXTS


def test_the_latest_measured_row_of_a_build_counts(tmp_path: Path) -> None:
    failed = a_run(TEXTS[0], status="failed", latency_s=None)
    append_runs(tmp_path, [failed], FACTS)
    append_runs(tmp_path, [a_run(TEXTS[0], block="b2", latency_s=2.0)], FACTS)
    append_runs(tmp_path, [a_run(TEXTS[0], block="b3", latency_s=3.0)], FACTS)
    append_runs(tmp_path, [replace(failed, block="b4")], FACTS)
    assert [row.block for row in runs_of(read_runs(tmp_path))] == ["b3"]


def test_a_resumed_campaign_skips_what_is_final_on_its_device(tmp_path: Path) -> None:
    statuses = ("ok", "unsupported", "failed", "crashed")
    rows = [a_run(text, status=status, latency_s=None) for text, status in zip(TEXTS, statuses, strict=True)]
    append_runs(
        tmp_path, [*rows, a_run(TEXTS[2], device="cpu-2"), a_run(TEXTS[3], compiler="xla", threads=None)], FACTS
    )
    assert measured_keys(tmp_path, "cpu-1") == {
        (TEXTS[0].module_id, "iree", 1), (TEXTS[1].module_id, "iree", 1), (TEXTS[3].module_id, "xla", None),
    }  # fmt: skip
    assert measured_keys(tmp_path / "nothing", "cpu-1") == set()


@pytest.mark.parametrize(("blocks", "facts"), [(("b1", "b2"), FACTS), (("", ""), FACTS), (("b1", "b1"), {})])
def test_rows_without_provenance_are_refused(tmp_path: Path, blocks: tuple[str, str], facts: dict[str, object]) -> None:
    with pytest.raises(StoreError, match="provenance"):
        append_runs(tmp_path, [a_run(TEXTS[0], block=blocks[0]), a_run(TEXTS[1], block=blocks[1])], facts)
    assert append_runs(tmp_path, [], FACTS) == []
    assert not list(tmp_path.rglob("*"))


def test_a_damaged_file_is_named_and_left_out(tmp_path: Path) -> None:
    append_runs(tmp_path, [a_run(TEXTS[0])], FACTS)
    (tmp_path / "runs" / "0.parquet").write_bytes(b"PAR1 not a table")
    with pytest.warns(StoreWarning, match=r"0\.parquet"):
        assert read_runs(tmp_path).num_rows == 1


def test_packed_tables_hold_matching_texts_and_rows_sorted(tmp_path: Path) -> None:
    append_texts(tmp_path, TEXTS[:3], {"texts": "test"})
    append_runs(tmp_path, [a_run(TEXTS[1]), a_run(TEXTS[0])], FACTS)
    append_runs(tmp_path, [a_run(TEXTS[3], block="b2")], {"cpu": "of a row whose text is not stored"})
    paths = pack_modules(tmp_path, tmp_path / "out")
    assert [path.name for path in paths] == ["texts.parquet", "runs.parquet"]
    texts, runs = read_packed(tmp_path / "out")
    assert sorted(texts, key=str) == sorted(TEXTS[:2], key=str)
    assert [row.module_id for row in runs] == sorted(text.module_id for text in TEXTS[:2])
    assert provenance_of(pq.read_table(paths[1])) == {"b1": FACTS}
    assert [path.read_bytes() for path in pack_modules(tmp_path, tmp_path / "again")] == [
        path.read_bytes() for path in paths
    ]


def test_packing_nothing_says_how_to_measure_some(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="kernelcast measure mlir"):
        pack_modules(tmp_path, tmp_path / "out")
    with pytest.raises(StoreError, match="cannot read"):
        read_packed(tmp_path / "out")


def test_texts_of_a_users_file(tmp_path: Path) -> None:
    path = tmp_path / "texts.parquet"
    rows = [
        {"text": text.text, "program": text.program, "source": "test", "dialect": "linalg", "more": 1} for text in TEXTS
    ]
    pq.write_table(pa.Table.from_pylist([*rows, rows[0]]), path)
    assert read_texts_file(path) == TEXTS
    pq.write_table(pa.Table.from_pylist([{**rows[0], "program": None}, rows[1]]), path)
    with pytest.raises(SpecError, match=r"row 1 of .* has no program"):
        read_texts_file(path)
    pq.write_table(pa.table({"text": ["a"]}), path)
    with pytest.raises(SpecError, match="no column 'dialect'"):
        read_texts_file(path)
    path.write_text("no parquet")
    with pytest.raises(SpecError, match="cannot read"):
        read_texts_file(path)
