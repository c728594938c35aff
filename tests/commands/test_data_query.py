"""SQL over stored rows, and rows out to files and in again, from the command line."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.store.store import Store
from kernelcast.features.kernel import KernelSpec

T4 = "nvidia-t4"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    filled = Store(root, lower_bounds=lambda specs, devices: np.full(len(specs), np.nan))
    specs = [KernelSpec.of("gemm", "fp16", m=m, n=64, k=64) for m in range(1, 61)]
    specs.append(KernelSpec.of("softmax", "fp16", rows=8, cols=8))
    rows = [Measurement(spec, T4, "ok", "b", latency_s=1e-4 * (i + 1)) for i, spec in enumerate(specs)]
    filled.append(rows, Provenance("b", {"host": "a"}))
    return root


def test_an_answer_as_a_table_as_json_and_in_files(run, store, tmp_path):
    sql = "SELECT family, count(*) AS rows, sum(m) AS m FROM gemm GROUP BY family"
    shown = run("data", "query", sql, "--store", store)
    assert (shown.code, shown.out.split(), shown.err) == (0, ["family", "rows", "m", "gemm", "60", "1830"], "")
    assert json.loads(run("data", "query", sql, "--store", store, "--json").out) == [
        {"family": "gemm", "rows": 60, "m": 1830}
    ]
    some = "SELECT [1, NULL] AS l, {'a': 1} AS s, DATE '2026-01-02' AS d, 0.5::DECIMAL(3, 1) AS x, 'a'::BLOB AS b"
    assert json.loads(run("data", "query", some, "--store", store, "--json").out) == [
        {"l": [1, None], "s": {"a": 1}, "d": "2026-01-02", "x": 0.5, "b": "61"}
    ]
    done = run("data", "query", "SELECT m FROM gemm", "--store", store, "--parquet", tmp_path / "a.parquet")
    assert f"60 rows written to {tmp_path / 'a.parquet'}" in done.err
    assert pq.read_table(tmp_path / "a.parquet")["m"].to_pylist() == list(range(1, 61))
    run("data", "query", "SELECT m FROM gemm LIMIT 2", "--store", store, "--csv", tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == '"m"\n1\n2\n'


def test_long_answers_are_cut_on_a_screen_and_none_says_so(run, store):
    done = run("data", "query", "SELECT m FROM gemm ORDER BY m", "--store", store)
    assert done.out.split()[-1] == "40"
    assert "the first 40 rows; --json, --csv or --parquet give all of them" in done.err
    assert "no rows" in run("data", "query", "SELECT m FROM gemm WHERE m < 0", "--store", store).err
    many = run("data", "query", "SELECT a FROM range(200000) t(a)", "--store", store, "--json")
    assert "more than 100000 rows, too many for JSON" in many.error


def test_wide_answers_are_shown_column_by_column_and_long_words_cut(run, store):
    wide = run("data", "query", "FROM gemm ORDER BY m", "--store", store)
    lines = dict(line.split(maxsplit=1) for line in wide.out.splitlines() if len(line.split()) == 4)
    assert lines["m"].split() == ["1", "2", "3"]
    assert lines["device"].split() == [T4] * 3
    assert "the first 3 rows" in wide.err
    long = run("data", "query", "SELECT repeat('x', 100000) AS x", "--store", store)
    assert "xxx" in long.out
    assert len(long.out) < 1000


def test_a_damaged_file_is_one_note(run, store):
    (path,) = (store / "family=gemm").rglob("*.parquet")
    path.write_bytes(b"PAR1")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        done = run("data", "list", "--store", store)
    assert done.code == 0
    assert done.err.splitlines() == [
        line for line in done.err.splitlines() if line.startswith("warning: skipped a file")
    ]
    assert done.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("SELECT x FROM gemm",), "columns of gemm: family, device"),
        (("SELECT * FROM nothing",), "views: gemm, softmax, measurements"),
        (("DROP VIEW gemm",), "DROP is not possible here; a query only reads"),
        (("COPY gemm TO 'out.csv'",), "COPY is not possible here"),
        (("SELECT * FROM read_csv('/etc/passwd')",), "sees the store and nothing else"),
        (("SELECT 1", "--memory", "0.01"), "0.01 GB is too little memory"),
        (("SELECT 1", "--memory", "nan"), "too little memory"),
        (("SELECT 1", "--memory", "inf"), "inf GB is more memory than any machine has"),
        (("SELECT DATE '290000-01-01' AS d",), "times that only SQL has a form for"),
        (("SELECT 'infinity'::TIMESTAMP AS t", "--json"), "make text of them: CAST(… AS VARCHAR)"),
        (("SELECT union_value(a := 1) AS u", "--parquet", "a.parquet"), "'u' holds sparse_union"),
        (("SELECT [INTERVAL 1 DAY] AS i", "--parquet", "a.parquet"), "'i' holds list"),
        (("SELECT m FROM gemm", "--csv", "store/family=gemm/a.csv"), "lies in the store"),
        (("SELECT 1", "--spill", "nowhere"), "nowhere is no folder"),
        (("SELECT 1", "--csv", "a.csv", "--parquet", "a.parquet"), "not both"),
        (("SELECT 1", "--csv", "a.txt"), "ends in neither"),
        (("SELECT 1", "--csv", "a.parquet"), "has the other format's name"),
        (("SELECT 1", "--csv", "nowhere/a.csv"), "does not exist"),
        (("SELECT [1] AS l", "--csv", "a.csv"), "'l' holds list"),
    ],
)
def test_what_a_query_is_refused_for(run, store, args, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = run("data", "query", *args, "--store", store).error
    assert said in message
    assert "\n" not in message
    assert sorted(item.name for item in tmp_path.iterdir()) == ["store"]


def test_without_rows_and_without_a_store(run, tmp_path):
    assert "no rows in" in run("data", "query", "SELECT 1").error
    assert "fsspec knows no protocol" in run("data", "query", "SELECT 1", "--store", "nope://x").error
    assert "no row of" in run("data", "export", "--out", tmp_path / "x").error


def test_without_duckdb_one_sentence_says_what_to_install(run, store, monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    assert "pip install 'kernelcast[storage]'" in run("data", "query", "SELECT 1", "--store", store).error
    query = run("data", "export", "--store", store, "--out", tmp_path / "x", "--where", "m > 1")
    assert "pip install 'kernelcast[storage]'" in query.error
    # Without a condition rows are read without it.
    assert run("data", "export", "--store", store, "--out", tmp_path / "x").code == 0


def test_what_is_exported_is_imported(run, store, tmp_path):
    done = run("data", "export", "--store", store, "--out", tmp_path / "out", "--format", "form", "--json")
    assert json.loads(done.out)["rows"] == 61
    assert [Path(item).name for item in json.loads(done.out)["files"]] == ["gemm-0001.parquet", "softmax-0001.parquet"]
    for path in json.loads(done.out)["files"]:
        assert run("import", path, "--source", "a friend", "--store", tmp_path / "theirs").code == 0
    mine, theirs = (
        {(row["case_id"], row["latency_s"]) for row in Store(root).read("gemm").to_pylist()}
        for root in (store, tmp_path / "theirs")
    )
    assert mine == theirs
    some = run("data", "export", "--store", store, "--family", "gemm", "--device", T4, "--where", "m > 50", "--out",
               tmp_path / "some.csv")  # fmt: skip
    assert "10 rows of 1 family" in some.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--out", "a.parquet"), "name one with --family"),
        (("--out", "a.csv", "--family", "gemm", "--format", "parquet"), "does not end in .parquet"),
        (("--out", "a", "--format", "xml"), "formats: parquet, csv, form"),
        (("--out", "a", "--family", "nothing"), "nothing"),
        (("--out", "a", "--device", "nothing"), "devices there: nvidia-t4"),
        (("--out", "a", "--where", "x = 1"), "columns of"),
        (("--out", "nowhere/a.parquet", "--family", "gemm"), "does not exist"),
        (("--out", "a", "--where", "true) UNION ALL SELECT * FROM read_csv('/etc/passwd') --"), "syntax error"),
        (("--out", "s3://bucket/a"), "is a URL; rows are exported to files of this machine"),
        (("--out", "store/family=gemm"), "lies in the store"),
    ],
)
def test_what_an_export_is_refused_for(run, store, args, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in run("data", "export", *args, "--store", store).error


def test_training_from_a_store(run, store, tmp_path):
    done = run(
        "train", "--store", store, "--families", "gemm", "--regressor", "roofline", "--out", tmp_path / "m", "--json"
    )
    assert json.loads(done.out)["families"]["gemm"]["rows"] == 60
    refused = {
        ("--out", "m"): "--data FILE, --store DIR, or both",
        ("--data", "x.csv", "--out", "m", "--most-rows", "9"): "--most-rows goes with --store",
        ("--data", "x.csv", "--out", "m", "--families", "gemm"): "--families goes with --store",
        ("--store", str(store), "--out", "m", "--split", "train"): "--split goes with --data",
        ("--store", str(tmp_path / "empty"), "--out", "m"): "has no measured row",
        ("--store", str(store), "--out", "m", "--families", "gem,softmax"): "gem",
        ("--store", str(store), "--out", "m", "--regressor", "roofline"): "softmax has 1 rows",
    }
    for args, said in refused.items():
        assert said in run("train", *args).error
