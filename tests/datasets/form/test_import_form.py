from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kernelcast.datasets.form.export import export
from kernelcast.datasets.form.form import judge_form, read_form
from kernelcast.datasets.form.import_form import import_form
from kernelcast.datasets.rows.schema import from_row
from kernelcast.datasets.store.parquet_files import provenance_of
from kernelcast.datasets.store.store import RowsRefused, Store
from kernelcast.datasets.store.verify import verify
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec


def form_file(folder: Path, name: str = "mine.parquet", **changes: list[object]) -> Path:
    columns = {
        "family": ["gemm", "gemm", "gemm"], "device": ["my-gpu", "NVIDIA-T4", "my-gpu"], "dtype": ["bf16"] * 3,
        "m": [1, 2, 3], "n": [8] * 3, "k": [8] * 3, "impl": ["cutlass", None, None], "tile_m": [64, None, None],
        "latency_s": [1e-3, 2e-3, 3e-3], "power_w": [100.0, None, None], "energy_j": [0.1, None, None],
        "source": [None, "lab", None],
    }  # fmt: skip
    pq.write_table(pa.table(columns | changes), folder / name)
    return folder / name


def test_rows_enter_the_store_with_their_origin(tmp_path):
    store = Store(tmp_path / "store")
    report = import_form(form_file(tmp_path), store, "https://example.org/data", licence="MIT")
    assert (report.stored, report.duplicates, report.refused) == (3, 0, ())
    assert len(report.files) == 2
    table = store.read("gemm")
    rows = {row.spec["m"]: row for row in map(from_row, table.to_pylist())}
    assert rows[1].spec.impl == "cutlass"
    assert rows[1].spec.config == (("tile_m", 64),)
    assert rows[1].energy_source == "as reported by https://example.org/data"
    assert rows[1].source == "https://example.org/data"
    assert rows[2].source == "lab"
    assert rows[2].device == "nvidia-t4"
    assert rows[3].energy_j is None
    ((block, facts),) = provenance_of(table).items()
    assert block == f"import-{facts['sha256'][:12]}"
    assert facts["file"] == "mine.parquet"
    assert datetime.fromisoformat(facts["imported_at"]).utcoffset() == timedelta(0)
    assert facts["licence"] == "MIT"


def test_stored_specs_are_what_the_rows_say(tmp_path):
    store = Store(tmp_path / "store")
    import_form(form_file(tmp_path), store, "me")
    for row in store.read("gemm").to_pylist():
        assert from_row(row).case_id == row["case_id"]


def test_a_second_import_adds_nothing(tmp_path):
    store = Store(tmp_path / "store")
    path = form_file(tmp_path)
    import_form(path, store, "me")
    again = import_form(path, store, "me")
    assert (again.stored, again.duplicates, again.files) == (0, 3, ())
    other = form_file(tmp_path, "more.parquet", latency_s=[1e-3, 2e-3, 3.5e-3])
    assert str(import_form(other, store, "me")).startswith("1 rows stored, 2 already there")
    assert store.read("gemm").num_rows == 4


def test_repeats_inside_a_file_count_once(tmp_path):
    same = form_file(tmp_path, m=[1, 1, 1], device=["d"] * 3, impl=[None] * 3, tile_m=pa.nulls(3), source=[None] * 3,
                     latency_s=[1e-3, 1e-3, 2e-3], power_w=pa.nulls(3), energy_j=pa.nulls(3))  # fmt: skip
    report = import_form(same, Store(tmp_path / "store"), "me")
    assert (report.stored, report.duplicates) == (2, 1)


def test_bad_and_impossible_rows_are_reported_at_their_places(tmp_path):
    store = Store(tmp_path / "store")
    path = form_file(tmp_path, m=[0, 2**20, 3], n=[8, 2**15, 8], k=[8, 2**15, 8])
    report = import_form(path, store, "me")
    assert [(item.row, item.column) for item in report.refused] == [(0, "m"), (1, "latency_s")]
    assert "below the lower bound" in report.refused[1].reason
    assert report.stored == 1
    with pytest.raises(SpecError, match="1 of 3 rows are refused"):
        import_form(path, Store(tmp_path / "strict"), "me", skip_bad_rows=False)
    with pytest.raises(RowsRefused, match="below the lower bound"):
        import_form(form_file(tmp_path, m=[1, 2**20, 3], n=[8, 2**15, 8], k=[8, 2**15, 8]),
                    Store(tmp_path / "strict"), "me", skip_bad_rows=False)  # fmt: skip
    assert Store(tmp_path / "strict").files() == []


def test_the_timing_of_a_row_is_kept_from_form_to_form(tmp_path):
    store = Store(tmp_path / "store")
    path = form_file(tmp_path, timing=["call", "device", None])
    report = import_form(path, store, "me", skip_bad_rows=False)
    assert (report.stored, report.refused) == (3, ())
    stored = {row["m"]: row for row in store.read("gemm").to_pylist()}
    assert [stored[m]["timing"] for m in (1, 2, 3)] == ["call", "device", None]
    assert [from_row(stored[m]).spec.timing for m in (1, 2, 3)] == ["call", "device", ""]
    assert verify(store).clean
    export(store, tmp_path / "again.csv", fmt="form", families=["gemm"])
    rows = read_form(tmp_path / "again.csv").parts["gemm"].cases
    assert dict(zip(rows.sizes["m"].tolist(), rows.timing.tolist(), strict=True)) == {1: "call", 2: "device", 3: ""}
    assert import_form(path, store, "me").duplicates == 3


def test_a_call_and_the_kernel_alone_are_two_cases(tmp_path):
    store = Store(tmp_path / "store")
    for timing, latency_s in (("call", 2e-3), ("device", 1e-3), (None, 1e-3)):
        path = form_file(tmp_path, m=[1] * 3, device=["my-gpu"] * 3, impl=["torch"] * 3, tile_m=pa.nulls(3),
                         source=[None] * 3, power_w=pa.nulls(3), energy_j=pa.nulls(3), latency_s=[latency_s] * 3,
                         timing=pa.array([timing] * 3, pa.string()))  # fmt: skip
        assert import_form(path, store, "me").stored == 1
    ids = set(store.read("gemm")["case_id"].to_pylist())
    case = KernelSpec.of("gemm", "bf16", m=1, n=8, k=8, impl="torch")
    assert ids == {replace(case, timing=timing).case_id for timing in ("call", "device", "")}


def test_a_source_is_needed(tmp_path):
    with pytest.raises(SpecError, match="who measured"):
        import_form(form_file(tmp_path), Store(tmp_path / "store"), " ")


def test_imported_rows_read_back_as_a_form(tmp_path):
    store = Store(tmp_path / "store")
    import_form(form_file(tmp_path), store, "me")
    assert len(judge_form(store.read("gemm")).parts["gemm"]) == 3
