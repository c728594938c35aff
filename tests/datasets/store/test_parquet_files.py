"""The row format of files, and the software that rows name."""

from __future__ import annotations

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from kernelcast.datasets.rows.schema import (
    FORMAT_VERSION,
    READ_VERSIONS,
    VERSIONS,
    arrow_schema,
    from_row,
    software_of,
    to_table,
)
from kernelcast.datasets.shipped import read_shipped
from kernelcast.datasets.store.errors import FormatError, StoreError
from kernelcast.datasets.store.parquet_files import METADATA_KEY, read_file


@pytest.fixture
def file_of(tmp_path, make):
    """Writes a file whose metadata are the given JSON."""

    def write(metadata):
        path = tmp_path / "rows.parquet"
        table = to_table([make()], "gemm").replace_schema_metadata({METADATA_KEY: metadata.encode()})
        pq.write_table(table, path)
        return path

    return write


@pytest.mark.parametrize(
    ("version", "advice"),
    [
        (FORMAT_VERSION + 1, "install the newer kernelcast that wrote it"),
        (READ_VERSIONS[0] - 1, "export its rows with the kernelcast that wrote it .*kernelcast data import"),
    ],
)
def test_a_file_of_another_format_is_refused_with_what_to_do(file_of, version, advice):
    path = file_of(f'{{"format_version": {version}}}')
    with pytest.raises(
        FormatError, match=f"has format version {version}, this kernelcast reads 3, {FORMAT_VERSION}; {advice}"
    ):
        read_file(path, arrow_schema("gemm"))


def test_a_file_of_version_3_is_read_and_says_no_timing(tmp_path, make):
    path = tmp_path / "rows.parquet"
    table = to_table([make()], "gemm").drop_columns(["timing"])
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: b'{"format_version": 3}'}), path)
    (row,) = read_file(path, arrow_schema("gemm")).to_pylist()
    assert row["timing"] is None
    assert from_row(row) == make()


@pytest.mark.parametrize("version", ['"3"', "0", "null", "[]"])
def test_a_version_that_is_none_is_refused(file_of, version):
    with pytest.raises(StoreError, match="format version"):
        read_file(file_of(f'{{"format_version": {version}}}'), arrow_schema("gemm"))


def test_shipped_tables_say_their_software():
    words = read_shipped("gemm", columns=["device", "software"])
    gpu = words.filter(pc.starts_with(words["device"], "nvidia"))["software"].unique().to_pylist()
    # With CUTLASS and without.
    assert len(gpu) == 2
    assert all("driver=580.159.04; " in said and "power_limit_w=700" in said for said in gpu)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, ""),
        ({"host": "x", "licence": "MIT", "sha256": "0"}, ""),
        ({"versions": {"torch": "2.11.0", "numpy": "2.5.2", "triton": None}}, "torch=2.11.0"),
        ({"kernel": "6.1", "microcode": None}, "kernel=6.1"),
        ({"gpu": {"driver": "580", "power_limit_w": 699.96}}, "driver=580; power_limit_w=700"),
        # The limit in force when the block began, not the one at the campaign's start.
        ({"gpu": {"power_limit_w": 700.0}, "before": {"power_limit_w": 500.0}}, "power_limit_w=500"),
        # A worker of a CPU says what it loaded, which is not what changed.
        ({"versions": {"torch": "2"}, "workers": {"iree/1": {"versions": {"iree-base-compiler": "3"}}}}, "torch=2"),
        ({"workers": {"gpu/0": {"versions": {"torch": {"torch": "2", "cuda": "13.0"}}}}}, "cuda=13.0; torch=2"),
        ({"kernel": "a; b=c\n d"}, "kernel=a, b=c d"),
        ({"gpu": [], "before": 3, "workers": {"x": None}, "versions": "torch 2", "kernel": 6}, ""),
        ({"gpu": {"power_limit_w": True}, "before": {"power_limit_w": 0.0}}, ""),
    ],
)
def test_software_is_what_the_facts_know_of_it(facts, said):
    assert software_of(facts) == said


def test_software_is_equal_for_equal_facts_in_any_order():
    versions = dict.fromkeys(VERSIONS, "1")
    item = software_of({"versions": versions, "kernel": "6"})
    other = software_of({"kernel": "6", "versions": dict(reversed(versions.items()))})
    assert item == other
    assert [part.partition("=")[0] for part in item.split("; ")] == sorted([*VERSIONS, "kernel"])
