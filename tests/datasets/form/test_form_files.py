from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kernelcast.datasets.form.form import read_form
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError

BENCHMARKS = Path(__file__).resolve().parents[4] / "shared" / "benchmarks"
# Tables of kernels; others beside them (of whole models, of services, of devices) have forms of their own.
FILES = sorted(
    path
    for path in BENCHMARKS.glob("*/*.parquet")
    if {"family", "device", "latency_s"} <= set(pq.read_schema(path).names)
)

GOOD = """family,device,dtype,m,n,k,latency_s
gemm,my-gpu,fp32,64,128,256,1e-4
gemm,my-gpu,float16,1,2,3,2e-5
"""

TABLE = pa.table({
    "family": ["gemm"] * 3, "device": ["my-gpu"] * 3, "dtype": ["fp32"] * 3, "impl": ["a", "0.240", None], "m": [1, 2, 3],
    "n": [8] * 3, "k": [8] * 3, "latency_s": [1e-4] * 3,
})  # fmt: skip


def write(folder: Path, content: str | bytes, name: str = "form.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_csv_becomes_columns(tmp_path):
    form = read_form(write(tmp_path, GOOD))
    rows = form.parts["gemm"]
    assert rows.cases.dtype.tolist() == ["fp32", "fp16"]
    assert rows.cases.kv_dtype.tolist() == ["fp32", "fp16"]
    assert rows.cases.sizes["m"].tolist() == [64.0, 1.0]
    assert rows.cases.sizes["batch"].tolist() == [1.0, 1.0]
    assert rows.cases.sizes["m"].dtype == np.float64
    assert rows.cases.cache_state.tolist() == ["hot", "hot"]
    assert np.isnan(rows.cases.threads).all()
    assert np.isnan(rows.cases.config["tile_m"]).all()
    assert rows.latency_s.tolist() == [1e-4, 2e-5]
    assert np.isnan(rows.power_w).all()
    assert rows.rows.tolist() == [0, 1]
    assert form.refused == ()


def test_csv_and_parquet_read_alike(tmp_path):
    table = TABLE
    pq.write_table(table, tmp_path / "form.parquet")
    lines = [",".join(table.column_names)] + [
        ",".join("" if cell is None else str(cell) for cell in row.values()) for row in table.to_pylist()
    ]
    a, b = read_form(tmp_path / "form.parquet"), read_form(write(tmp_path, "\n".join(lines)))
    assert a.parts["gemm"].cases.impl.tolist() == b.parts["gemm"].cases.impl.tolist() == ["a", "0.240", ""]
    assert a.parts["gemm"].latency_s.tolist() == b.parts["gemm"].latency_s.tolist()


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("\n", "\r\n"),
        "\ufeff" + GOOD,
        GOOD.replace(",", " , "),
        GOOD.replace("gemm", '"gemm"').replace("latency_s", '"latency_s"'),
    ],
)
def test_csv_dialects_that_are_read(tmp_path, text):
    rows = read_form(write(tmp_path, text)).parts["gemm"]
    assert rows.latency_s.tolist() == [1e-4, 2e-5]
    assert rows.cases.device.tolist() == ["my-gpu", "my-gpu"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("form.csv", b"", "is empty"),
        ("form.parquet", b"", "is empty"),
        ("form.csv", GOOD.splitlines()[0].encode(), "no rows"),
        ("form.xlsx", b"PK", "does not end in .csv or .parquet"),
        ("form", b"x", "does not end in"),
        ("form.parquet", b"PAR1 broken PAR1", "not a readable Parquet file"),
        ("form.csv", GOOD.replace("my-gpu", "gr\xfcn").encode("latin-1"), "not UTF-8"),
        ("form.csv", GOOD.replace(",", ";").encode(), "separates its columns with ';'"),
        ("form.csv", GOOD.replace(",", "\t").encode(), "separates its columns with"),
        ("form.csv", (GOOD + "gemm,my-gpu\n").encode(), "not a readable CSV file"),
        ("form.csv", GOOD.replace("dtype", "device").encode(), "'device' more than once"),
        ("form.csv", b"\x00\x01\x02\n\x03\n", "the name of a column is"),
    ],
)
def test_files_that_are_no_form(tmp_path, name, content, message):
    path = write(tmp_path, content, name)
    with pytest.raises(SpecError, match=message) as caught:
        read_form(path)
    assert name in str(caught.value)


def test_a_cut_parquet_file_and_paths_that_are_no_file(tmp_path):
    pq.write_table(TABLE, tmp_path / "whole.parquet")
    cut = write(tmp_path, (tmp_path / "whole.parquet").read_bytes()[:-30], "cut.parquet")
    with pytest.raises(SpecError, match="not a readable Parquet"):
        read_form(cut)
    with pytest.raises(SpecError, match="is a folder"):
        read_form(tmp_path)
    with pytest.raises(SpecError, match=r"cannot read .*No such file"):
        read_form(tmp_path / "none.csv")


def test_reading_a_form_imports_no_pandas(tmp_path):
    path = write(tmp_path, GOOD)
    code = (
        f"import sys; from kernelcast.datasets.form.form import read_form; read_form({str(path)!r});"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


@pytest.mark.skipif(not FILES, reason=f"no public benchmark tables at {BENCHMARKS}")
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_public_tables_read_without_a_refusal(path):
    form = read_form(path, known_devices=lambda name: catalogue().get(name).name)
    assert form.refused == ()
    assert sum(len(rows) for rows in form.parts.values()) == pq.ParquetFile(path).metadata.num_rows
