"""Files of older formats, written by the code of their time, read as the newest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from kernelcast.datasets.compaction import compact_in_place
from kernelcast.datasets.files import METADATA_KEY, provenance_of, read_file, version_in
from kernelcast.datasets.schema import FORMAT_VERSION, arrow_schema, from_row
from kernelcast.datasets.shipped import read_shipped
from kernelcast.datasets.software import VERSIONS, software_of
from kernelcast.datasets.store import Store, StoreError
from kernelcast.datasets.upgrading import UPGRADES
from kernelcast.datasets.verifying import verify

FORMATS = Path(__file__).parent / "formats"
DEVICES = {"cpu": "amd-epyc-9005-vm-2c", "gpu": "nvidia-h200-sxm-141gb"}
SOFTWARE = {
    "cpu": "iree-base-compiler=3.13.0; iree-base-runtime=3.13.0; kernel=6.18.44; microcode=0x1000065; torch=2.13.0+cpu",
    "gpu": "cuda=13.0; cuda_driver=13.0; cudnn=91900; cupy=14.2.0; driver=580.159.04; kernel=6.18.44-gpu; microcode=0x1; "
           "power_limit_w=700; torch=2.11.0; triton=3.6.0",
}  # fmt: skip


@pytest.fixture
def old(tmp_path):
    """A store of files of formats 1 and 2, under names of their time."""
    for at, path in enumerate(sorted(FORMATS.glob("*.parquet"))):
        folder = tmp_path / "family=gemm" / f"device={DEVICES[path.stem[3:]]}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / f"2025013{at}T101500.123456Z-9f86d081884c.parquet")
    return Store(tmp_path)


def test_there_is_a_step_from_every_version_to_the_next():
    assert sorted(UPGRADES) == list(range(1, FORMAT_VERSION))


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("version", [1, 2])
def test_an_old_file_reads_as_the_newest(version, kind):
    path = FORMATS / f"v{version}-{kind}.parquet"
    assert version_in(pq.read_schema(path).metadata, str(path)) == version
    table = read_file(path, arrow_schema("gemm"))
    assert table.schema.names == arrow_schema("gemm").names
    assert set(table["software"].to_pylist()) == {SOFTWARE[kind]}
    assert table["m"].to_pylist() == [1, 2, 3, 4]
    assert table["energy_spread"].null_count == 4
    measured = [from_row(row) for row in table.to_pylist()]
    assert [one.case_id for one in measured] == table["case_id"].to_pylist()
    assert list(provenance_of(table)) == [f"block-{kind}"]


def test_columns_are_made_only_where_they_are_asked_for():
    path = FORMATS / "v1-cpu.parquet"
    assert read_file(path, pa.schema([("software", pa.string())]))["software"].to_pylist() == [SOFTWARE["cpu"]] * 4
    assert read_file(path, pa.schema([("m", pa.int64())])).schema.names == ["m"]


def test_old_files_are_scanned_filtered_and_verified_as_new_ones(old):
    batches = list(old.scan("gemm", columns=["m"], where=pc.field("software") == SOFTWARE["gpu"], batch_rows=2))
    assert sum(batch.num_rows for batch in batches) == 8
    assert sum(batch.num_rows for batch in old.scan("gemm", [DEVICES["cpu"]], ["software"])) == 8
    assert len(old.case_ids(DEVICES["cpu"])) == 4
    found = verify(old)
    assert (found.damaged, found.refused, found.unnamed, found.rows) == ((), (), 4, 16)


def test_compacting_writes_the_newest_format_of_a_single_old_file_too(old):
    before = sorted(map(str, old.read("gemm").to_pylist()))
    for one in old.names(device=DEVICES["cpu"])[1:]:
        (old.root / one).unlink()
    assert compact_in_place(old).written == 2
    for path in old.files():
        assert version_in(pq.read_schema(path).metadata, str(path)) == FORMAT_VERSION
    after = map(str, old.read("gemm").to_pylist())
    assert set(after) <= set(before)
    assert compact_in_place(old).read == 0


def test_a_newer_format_is_refused_in_one_sentence(tmp_path):
    table = pq.ParquetFile(FORMATS / "v2-cpu.parquet").read()
    path = tmp_path / "new.parquet"
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: b'{"format_version": 4, "provenance": {}}'}), path)
    with pytest.raises(
        StoreError, match="has format version 4; this kernelcast reads up to 3, a newer one may read it"
    ):
        read_file(path, arrow_schema("gemm"))


@pytest.mark.parametrize("version", ['"3"', "0", "null", "[]"])
def test_a_version_that_is_none_is_refused(tmp_path, version):
    table = pq.ParquetFile(FORMATS / "v2-cpu.parquet").read()
    path = tmp_path / "odd.parquet"
    said = f'{{"format_version": {version}, "provenance": {{}}}}'
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: said.encode()}), path)
    with pytest.raises(StoreError, match="format version"):
        read_file(path, arrow_schema("gemm"))


def test_shipped_tables_say_their_software():
    words = read_shipped("gemm", columns=["device", "software"])
    gpu = words.filter(pc.starts_with(words["device"], "nvidia"))["software"].unique().to_pylist()
    assert len(gpu) == 1
    assert "driver=580.159.04; " in gpu[0]
    assert "power_limit_w=700" in gpu[0]


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
    one = software_of({"versions": versions, "kernel": "6"})
    other = software_of({"kernel": "6", "versions": dict(reversed(versions.items()))})
    assert one == other
    assert [part.partition("=")[0] for part in one.split("; ")] == sorted([*VERSIONS, "kernel"])
