from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from kernelcast.datasets.form import export as exporting
from kernelcast.datasets.form.export import export, form_columns, regrouped, row_file, write_answer
from kernelcast.datasets.form.import_form import import_form
from kernelcast.datasets.rows.schema import Measurement, Provenance, arrow_schema, from_row
from kernelcast.datasets.shipped import read_shipped
from kernelcast.datasets.store.parquet_files import provenance_in, provenance_of
from kernelcast.datasets.store.store import Store, StoreError
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec

Make = Callable[..., Measurement]
SOFTMAX = KernelSpec.of("softmax", "fp16", rows=8, cols=8)


@pytest.fixture
def filled(store: Store, make: Make) -> Store:
    """gemm on two devices, softmax, a failed row; three blocks with their facts."""
    for block, rows in {
        "b1": [make(m, latency_s=m * 1e-5, message='one,\n"two"') for m in (1, 2, 3)],
        "b2": [make(4, device="other"), make(9, status="timeout", latency_s=None)],
        "b3": [make(spec=SOFTMAX)],
    }.items():
        store.append([_of_block(row, block) for row in rows], Provenance(block, {"host": f"host of {block}"}))
    return store


def _of_block(row: Measurement, block: str) -> Measurement:
    return replace(row, block=block)


def test_parquet_has_all_columns_and_the_rows_provenance(filled: Store, tmp_path: Path) -> None:
    messages: list[tuple[str, int, int]] = []
    done = export(filled, tmp_path / "gemm.parquet", families=["gemm"], progress=lambda *one: messages.append(one))
    table = pq.read_table(done.files[0])
    assert table.schema.equals(arrow_schema("gemm"))
    assert table.replace_schema_metadata(None).equals(filled.read("gemm").replace_schema_metadata(None))
    assert provenance_of(table) == {"b1": {"host": "host of b1"}, "b2": {"host": "host of b2"}}
    assert (done.rows, dict(done.families), messages) == (5, {"gemm": 5}, [("writing gemm", 0, 0)])


def test_a_folder_has_a_file_per_family(filled: Store, tmp_path: Path) -> None:
    done = export(filled, tmp_path / "out" / "deep", fmt="csv")
    assert [path.name for path in done.files] == ["gemm.csv", "softmax.csv"]
    rows = pa_csv.read_csv(
        done.files[0], parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(strings_can_be_null=True),
    ).to_pylist()  # fmt: skip
    assert [row["m"] for row in rows] == filled.read("gemm")["m"].to_pylist()
    assert rows[0]["message"] == 'one,\n"two"'


def test_rows_are_chosen_by_device_and_by_a_condition(filled: Store, tmp_path: Path) -> None:
    export(filled, tmp_path / "other.parquet", families=["gemm"], devices=["other"])
    assert pq.read_table(tmp_path / "other.parquet")["m"].to_pylist() == [4]
    where = "m > 1 -- as one writes it"
    done = export(filled, tmp_path / "some.parquet", families=["gemm"], devices=["my-machine"], where=where)
    table = pq.read_table(tmp_path / "some.parquet")
    assert (sorted(table["m"].to_pylist()), done.rows) == ([2, 3, 9], 3)
    one = export(filled, tmp_path / "one.parquet", families=["gemm"], where="block = 'b1'")
    assert one.rows == 3
    # The facts of blocks without a row in the file are not told.
    assert list(provenance_of(pq.read_table(tmp_path / "one.parquet"))) == ["b1"]


@pytest.mark.parametrize("name", ["form.csv", "form.parquet"])
def test_what_one_exports_another_imports(name: str, store: Store, tmp_path: Path) -> None:
    """Rows of the shipped tables, with every column that the form has."""
    shipped = read_shipped("gemm")
    rows = shipped.take(pa.array(np.linspace(0, shipped.num_rows - 1, 150).astype(int).tolist())).to_pylist()
    raw = [_of_block(from_row(row), "b1") for row in rows]
    store.append(raw, Provenance("b1", {"host": "a"}))
    done = export(store, tmp_path / name, fmt="form", families=["gemm"])
    measured = [one for one in raw if one.status == "ok"]
    assert done.rows == len(measured)

    theirs = Store(tmp_path / "theirs", lower_bounds=lambda specs, devices: np.full(len(specs), np.nan))
    report = import_form(tmp_path / name, theirs, "a friend", skip_bad_rows=False)
    assert (report.stored, report.refused) == (len(measured), ())
    again = [from_row(row) for row in theirs.read("gemm").to_pylist()]
    names = ("spec", "device", "latency_s", "power_w", "power_limit_w", "energy_j", "source", "split")
    assert sorted(map(repr, (tuple(getattr(m, name) for name in names) for m in again))) == sorted(
        map(repr, (tuple(getattr(m, name) for name in names) for m in measured))
    )
    assert {m.case_id for m in again} == {m.case_id for m in measured}


def test_the_form_in_a_folder_is_in_files_one_can_import(
    filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "FORM_ROWS", 2)
    done = export(filled, tmp_path / "out", fmt="form")
    assert [path.name for path in done.files] == ["gemm-0001.parquet", "gemm-0002.parquet", "softmax-0001.parquet"]
    assert [pq.read_metadata(path).num_rows for path in done.files] == [2, 2, 1]
    assert pq.read_schema(done.files[0]).names == form_columns("gemm")
    assert "b1" in provenance_in(pq.read_schema(done.files[0]).metadata)


@pytest.mark.parametrize(
    ("out", "options", "said"),
    [
        ("x.parquet", {}, "is one file and there are 2 families \\(gemm, softmax\\); name one with --family"),
        ("x.csv", {"families": ["gemm"], "fmt": "parquet"}, "does not end in .parquet"),
        ("x.parquet", {"families": ["gemm"], "fmt": "xml"}, "format 'xml' is not known; formats: parquet, csv, form"),
        ("x.parquet", {"families": ["gem"]}, "gem"),
        ("x.parquet", {"families": ["gemm"], "devices": ["nobody"]}, "no row of .*nobody; nothing .* devices there: my-"),
        ("x.parquet", {"families": ["gemm"], "where": "m > 100"}, "no row of .*with m > 100; nothing was written"),
        ("x.parquet", {"families": ["gemm"], "where": "mm > 1"}, '"mm" not found .*columns of gemm: family'),
        ("x.parquet", {"families": ["gemm"], "where": "m > (SELECT 1 FROM read_text('/etc/passwd'))"}, "nothing else"),
        ("x.parquet", {"families": ["gemm"], "where": "m > 1); COPY gemm TO 'y"}, "statements|unterminated|syntax"),
        ("taken", {"families": ["gemm"]}, "is a file; give a folder"),
        ("folder.csv", {"families": ["gemm"]}, "is a folder with a file's name"),
    ],
)  # fmt: skip
def test_what_is_refused(out: str, options: dict[str, Any], said: str, filled: Store, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(SpecError, match=said):
        export(filled, tmp_path / out, **options)
    assert not (tmp_path / "x.parquet").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_failure_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("before")
    schema = pa.schema([("a", pa.int64())])

    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"a": list(range(10))}, schema=schema)
        raise SpecError("half way")

    with pytest.raises(SpecError, match="half way"):
        write_answer(failing(), schema, path)
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["x.csv"]
    with pytest.raises(StoreError, match="cannot write"), row_file(path / "x.csv", pa.schema([])):
        pass


def test_answers_of_any_kind_have_a_form_or_are_named(tmp_path: Path) -> None:
    plain = pa.table({"d": [datetime.date(2026, 1, 2)], "n": pa.array([7], pa.decimal128(38, 0)), "b": [True]})
    for name in ("a.csv", "a.parquet"):
        assert write_answer(plain.to_batches(), plain.schema, tmp_path / name) == 1
    assert (tmp_path / "a.csv").read_text().splitlines()[1] == "2026-01-02,7,true"
    nested = pa.table({"l": [[1, 2]]})
    assert write_answer(nested.to_batches(), nested.schema, tmp_path / "l.parquet") == 1
    with pytest.raises(SpecError, match=r"'l' holds list.*for which .csv has no form"):
        write_answer(nested.to_batches(), nested.schema, tmp_path / "l.csv")
    with pytest.raises(SpecError, match=r"neither .parquet nor .csv"):
        write_answer([], plain.schema, tmp_path / "a.json")
    # An answer without rows is a file with its columns.
    assert write_answer([], plain.schema, tmp_path / "none.parquet") == 0
    assert pq.read_table(tmp_path / "none.parquet").schema.names == ["d", "n", "b"]


@pytest.mark.parametrize("sizes", [[], [1], [4], [3, 3, 3], [10], [1] * 9, [0, 4, 0, 5]])
def test_regrouping_keeps_every_row_in_order(sizes: list[int]) -> None:
    schema = pa.schema([("a", pa.int64())])
    starts = np.cumsum([0, *sizes])
    batches = [pa.record_batch({"a": list(range(a, b))}, schema=schema) for a, b in pairwise(starts)]
    tables = list(regrouped(batches, schema, 4))
    assert [value for table in tables for value in table["a"].to_pylist()] == list(range(sum(sizes)))
    assert all(table.num_rows == 4 for table in tables[:-1])
    assert all(0 < table.num_rows <= 4 for table in tables)
