from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from kernelcast.datasets.rows.checks import Refused, as_failed
from kernelcast.datasets.rows.schema import Provenance, arrow_schema, from_row
from kernelcast.datasets.store.parquet_files import METADATA_KEY, provenance_of
from kernelcast.datasets.store.store import RowsRefused, Store, StoreError, StoreWarning
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.files import home_dir

APPEND = """
import sys
import numpy as np
from pathlib import Path
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.store.store import Store
from kernelcast.features.kernel import KernelSpec

root, who, blocks = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = Store(Path(root))
for block in range(blocks):
    name = f"{who}-{block}"
    rows = [Measurement(KernelSpec.of("gemm", "fp32", m=m, n=8, k=8), "shared", "ok", name, latency_s=1e-3)
            for m in range(1, 6)]
    store.append(rows, Provenance(name, {"who": who}))
"""

HOLD = """
import sys
from pathlib import Path
from kernelcast.datasets.store.store import Store

with Store(Path(sys.argv[1])).lock("gpu0"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_rows_come_back_equal_and_in_order(store, make, provenance):
    rows = [make(m=m, power_w=100.0, power_limit_w=300.0, n_samples=9, noisy=False) for m in (3, 1, 2)]
    paths = store.append(rows, provenance)
    table = store.read("gemm")
    assert [from_row(row) for row in table.to_pylist()] == rows
    assert provenance_of(table) == {"b1": {"host": "test", "driver": "1.0"}}
    assert [path.parent.parent.name for path in paths] == ["family=gemm"]
    assert table.schema.names == arrow_schema("gemm").names


def test_one_file_per_family_and_device(store, make, provenance):
    softmax = KernelSpec.of("softmax", "fp32", rows=4, cols=4)
    rows = [make(), make(device="other"), make(spec=softmax)]
    paths = store.append(rows, provenance)
    assert len(paths) == 3
    assert store.families() == ["gemm", "softmax"]
    assert store.read("gemm", devices=["other"], columns=["device", "m"]).to_pylist() == [{"device": "other", "m": 64}]
    assert {name: table.num_rows for name, table in store.read_all().items()} == {"gemm": 2, "softmax": 1}


def test_empty_store_reads_as_empty_tables(store, provenance):
    assert store.append([], provenance) == []
    assert store.read("gemm").num_rows == 0
    assert store.families() == []
    assert store.case_ids("gpu0") == set()


def test_default_root_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    assert Store().root == tmp_path / "measurements"
    monkeypatch.delenv("KERNELCAST_HOME")
    assert home_dir() == Path.home() / ".local" / "share" / "kernelcast"


def test_unknown_column_is_refused(store):
    with pytest.raises(SpecError, match="no column 'latency_ms'"):
        store.read("gemm", columns=["latency_ms"])


def test_case_ids_leave_out_what_is_worth_repeating(store, make, provenance):
    ok, crashed, refused = make(m=1), make(m=2, status="crashed", latency_s=None), make(m=3, status="unsupported")
    refused = as_failed(refused, "x")
    unsupported = make(m=4, status="unsupported", latency_s=None)
    store.append([ok, crashed, refused, unsupported], provenance)
    assert store.case_ids("my-machine") == {ok.case_id, unsupported.case_id}


@pytest.mark.parametrize("bad", [Provenance("b1", {}), Provenance("", {"host": "x"})])
def test_rows_without_provenance_are_refused(store, make, bad):
    with pytest.raises(StoreError, match="provenance"):
        store.append([make()], bad)


def test_provenance_must_be_plain_json(store, make):
    with pytest.raises(StoreError, match="plain JSON"):
        store.append([make()], Provenance("b1", {"when": object()}))
    assert store.files() == []


def test_a_bad_row_is_named_and_nothing_is_written(store, make, provenance):
    with pytest.raises(RowsRefused, match=r"1 of 3 rows refused.*row 2: latency_s: must be a positive") as caught:
        store.append([make(), make(m=2, latency_s=-1.0), make(m=3)], provenance)
    assert [item.row for item in caught.value.refused] == [1]
    assert store.files() == []


def test_bad_rows_are_reported_and_the_rest_is_stored(store, make, provenance):
    rows = [make(m=1), make(m=2, latency_s=0.0), make(m=3, block="another")]
    refused: list[Refused] = []
    store.append(rows, provenance, on_refused=refused.extend)
    assert [(item.row, item.column) for item in refused] == [(1, "latency_s"), (2, "block")]
    assert store.read("gemm", columns=["m"]).to_pylist() == [{"m": 1}]
    store.append([as_failed(rows[1], refused[0].reason)], provenance)
    assert store.read("gemm", columns=["status"])["status"].to_pylist() == ["ok", "failed"]


def test_rows_faster_than_physics_are_refused_by_the_catalogue(tmp_path, make, provenance):
    spec = KernelSpec.of("gemm", "fp32", m=8192, n=8192, k=8192)
    with pytest.raises(RowsRefused, match="below the lower bound"):
        Store(tmp_path).append([make(spec=spec, device="nvidia-t4", latency_s=1e-6)], provenance)


@pytest.mark.parametrize("name", ["../escape", "a/b", "", ".hidden", "a b"])
def test_a_device_name_cannot_leave_the_store(store, make, provenance, name):
    with pytest.raises(StoreError, match="device name"):
        store.append([make(device=name)], provenance)


def test_two_processes_append_at_once(tmp_path):
    command = [sys.executable, "-c", APPEND, str(tmp_path)]
    running = [subprocess.Popen([*command, who, "8"], stderr=subprocess.PIPE, cwd=tmp_path) for who in ("a", "b")]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    store = Store(tmp_path)
    table = store.read("gemm")
    assert table.num_rows == 2 * 8 * 5
    assert {facts["who"] for facts in provenance_of(table).values()} == {"a", "b"}
    assert store.leftovers() == []


def test_equal_blocks_get_two_files(store, make, provenance):
    assert store.append([make()], provenance) != store.append([make()], provenance)
    assert store.read("gemm").num_rows == 2


def test_what_a_killed_collector_leaves_is_not_read(store, make, provenance):
    (path,) = store.append([make()], provenance)
    leftover = path.with_name(f".{path.name}.123.tmp")
    leftover.write_bytes(path.read_bytes()[:100])
    assert store.read("gemm").num_rows == 1
    assert store.leftovers() == [leftover]
    assert leftover.exists()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _foreign(path: Path) -> None:
    pq.write_table(pq.ParquetFile(path).read().replace_schema_metadata(None), path)


def _future(path: Path) -> None:
    table = pq.ParquetFile(path).read()
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: b'{"format_version": 99, "provenance": {}}'}), path)


def _not_json(path: Path) -> None:
    pq.write_table(pq.ParquetFile(path).read().replace_schema_metadata({METADATA_KEY: b"{"}), path)


@pytest.mark.parametrize("damage", [_cut, _empty, _foreign, _future, _not_json])
def test_a_damaged_file_is_named_and_costs_no_other(store, make, provenance, damage):
    damaged, _ = *store.append([make(m=1)], provenance), *store.append([make(m=2)], provenance)
    damage(damaged)
    with pytest.warns(StoreWarning, match=damaged.name):
        table = store.read("gemm")
    assert table["m"].to_pylist() == [2]
    assert damaged.exists()


def test_columns_added_later_read_as_missing(store, make, provenance):
    (path,) = store.append([make()], provenance)
    table = pq.ParquetFile(path).read()
    pq.write_table(table.drop_columns(["split_k", "noisy"]), path)
    assert store.read("gemm", columns=["split_k", "noisy", "m"]).to_pylist() == [
        {"split_k": None, "noisy": None, "m": 64}
    ]


def test_rows_of_an_unknown_family_are_named(store, make, provenance):
    (path,) = store.append([make()], provenance)
    other = store.root / "family=fft" / "device=x"
    other.mkdir(parents=True)
    (other / path.name).write_bytes(path.read_bytes())
    with pytest.warns(StoreWarning, match="unknown families: fft"):
        assert store.families() == ["gemm"]


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_loses_nothing(store, make, provenance, monkeypatch, call):
    softmax = make(spec=KernelSpec.of("softmax", "fp32", rows=4, cols=4))
    store.append([make(m=1)], provenance)
    real, calls = getattr(os, call), []

    def full(*args):
        calls.append(args)
        if len(calls) >= 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args)

    monkeypatch.setattr(os, call, full)
    with pytest.raises(StoreError, match="no space left to write"):
        store.append([make(m=2), softmax], provenance)
    monkeypatch.undo()
    # The first file was complete, but a block is stored whole or not at all.
    assert store.read("gemm")["m"].to_pylist() == [1]
    assert store.leftovers() == []
    store.append([make(m=2), softmax], provenance)
    assert store.families() == ["gemm", "softmax"]


def test_short_writes_are_continued(store, make, provenance, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, bytes(data[:100])))
    store.append([make()], provenance)
    assert store.read("gemm").num_rows == 1


def test_an_unwritable_root_is_a_clear_error(tmp_path, make, provenance):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot write"):
        Store(tmp_path / "file" / "rows").append([make()], provenance)


def test_a_second_campaign_is_told_who_holds_the_device(tmp_path):
    store = Store(tmp_path)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, cwd=tmp_path)  # fmt: skip
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreError, match=f"being measured by process {holder.pid}"), store.lock("gpu0"):
            pass
        with store.lock("gpu1"):
            pass
    finally:
        holder.kill()
        holder.communicate()
    # A killed campaign lets go by itself.
    with store.lock("gpu0"), pytest.raises(StoreError, match=str(os.getpid())), store.lock("gpu0"):
        pass


def test_compact_sorts_and_merges_provenance(store, make, tmp_path):
    store.append([make(m=9), make(m=2)], Provenance("b1", {"host": "one"}))
    store.append([make(m=5, block="b2"), make(m=1, block="b2", device="a-machine")], Provenance("b2", {"host": "two"}))
    (path,) = store.compact(tmp_path / "out")
    assert path == tmp_path / "out" / "gemm.parquet"
    table = pq.ParquetFile(path).read()
    assert table["m"].to_pylist() == [1, 2, 5, 9]
    assert provenance_of(table) == {"b1": {"host": "one"}, "b2": {"host": "two"}}
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"
    assert sorted(table.to_pylist(), key=str) == sorted(store.read("gemm").to_pylist(), key=str)


def test_reading_imports_no_pandas(store, make, provenance):
    store.append([make()], provenance)
    code = (
        "import sys; from pathlib import Path; from kernelcast.datasets.store.store import Store;"
        f"assert Store(Path({str(store.root)!r})).read('gemm').num_rows == 1; assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=store.root)


def test_bounds_are_asked_for_measured_rows_only(tmp_path, make, provenance):
    query = []

    def bounds(specs, devices):
        query.extend(specs)
        return np.full(len(specs), 1e-6)

    store = Store(tmp_path, lower_bounds=bounds)
    store.append([make(m=1), make(m=2, status="timeout", latency_s=None)], provenance)
    assert [spec["m"] for spec in query] == [1]
