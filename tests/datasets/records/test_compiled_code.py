from dataclasses import fields, replace

import pytest
from kernelcast.datasets.records.compiled_code import (
    CompiledCode,
    CompiledKernel,
    append_compiled,
    compact_compiled,
    compiled_schema,
    read_compiled,
    stored_families,
)
from kernelcast.datasets.store.parquet_files import provenance_of, read_file
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.spec_io.rows import spec_from_row

GEMM = KernelSpec.of("gemm", "bf16", impl="triton", m=64, n=64, k=64, config={"tile_m": 64, "warps": 4})
ATTENTION = KernelSpec.of(
    "attention", "fp16", impl="triton", batch=1, heads=1, kv_heads=1, q_len=8, kv_len=8, head_dim=64
)
GOOD = CompiledKernel(
    GEMM, target="sm_90", status="ok", block="b1", registers=120, spill_b=8, shared_b=98304, threads_per_block=128,
    blocks_per_sm=2, warps_per_sm=8, occupancy=0.125, tensor_ops=3, local_ops=0, instructions=500,
    compiler="triton 3.6.0", compile_s=0.5,
)  # fmt: skip
RESULTS = [field.name for field in fields(CompiledCode)]
BROKEN = CompiledKernel(ATTENTION, target="sm_80", status="failed", block="b1", message="no such type")


@pytest.mark.parametrize("kernel", [GOOD, BROKEN], ids=["good", "broken"])
def test_a_stored_row_says_all_of_a_kernel(kernel, tmp_path):
    append_compiled(tmp_path, [kernel], {})
    (row,) = read_compiled(tmp_path, kernel.spec.family).to_pylist()
    assert spec_from_row(row) == kernel.spec
    assert {name: row[name] for name in RESULTS} == {name: getattr(kernel, name) for name in RESULTS}
    assert (row["case_id"], row["target"]) == kernel.key


def test_what_is_missing_is_null(tmp_path):
    append_compiled(tmp_path, [BROKEN], {})
    row = read_compiled(tmp_path, "attention").to_pylist()[0]
    assert row["registers"] is None
    assert row["tensor_ops"] is None
    assert row["message"] == "no such type"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": "fine"}, "status is 'fine'; it is one of ok, unsupported, failed"),
        ({"registers": None}, "only ok rows have them"),
        ({"status": "failed"}, "only ok rows have them"),
    ],
)
def test_refuses_what_cannot_be(change, said):
    with pytest.raises(SpecError, match=said):
        replace(GOOD, **change)


def test_blocks_are_read_together_with_their_provenance_the_latest_row_wins(tmp_path):
    append_compiled(tmp_path, [GOOD, BROKEN], {"compilers": {"triton": "3.6.0"}})
    assert len(list(tmp_path.glob("*/*.parquet"))) == 2
    append_compiled(tmp_path, [replace(GOOD, registers=99, block="b2")], {"compilers": {"triton": "3.7.0"}})
    assert stored_families(tmp_path) == ["attention", "gemm"]
    table = read_compiled(tmp_path, "gemm")
    assert table["registers"].to_pylist() == [99]
    # Nothing of the first block is left, so its provenance goes too.
    assert provenance_of(table) == {"b2": {"compilers": {"triton": "3.7.0"}}}
    assert stored_families(tmp_path / "nothing") == []


def test_compacted_tables_are_equal_whatever_the_order(tmp_path):
    rows = [replace(GOOD, target=target, registers=r) for r, target in ((40, "sm_90"), (50, "sm_80"))]
    for name, order in (("one", rows), ("two", rows[::-1])):
        append_compiled(tmp_path / name, order, {"compilers": {}})
        compact_compiled(tmp_path / name, tmp_path / f"{name}-tables")
    item, two = (
        read_file(tmp_path / f"{name}-tables" / "gemm.parquet", compiled_schema("gemm")) for name in ("one", "two")
    )
    assert item.equals(two)
    assert item["target"].to_pylist() == ["sm_80", "sm_90"]
    assert provenance_of(item) == {"b1": {"compilers": {}}}
