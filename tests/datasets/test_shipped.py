from __future__ import annotations

import pytest
from kernelcast.datasets.rows.schema import Provenance
from kernelcast.datasets.shipped import dataset_card, read_shipped, shipped_families
from kernelcast.datasets.store.errors import StoreError
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec


@pytest.fixture
def filled(store, make):
    rows = [
        make(m=1, latency_q1_s=0.99e-3, latency_q3_s=1.01e-3, noisy=False),
        make(m=2, latency_q1_s=0.9e-3, latency_q3_s=1.1e-3, noisy=True, power_w=10.0),
        make(m=3, status="out_of_memory", latency_s=None),
        make(spec=KernelSpec.of("softmax", "bf16", rows=2, cols=2, threads=4, cache_state="cold"), latency_s=2.5e-6),
    ]
    store.append(rows, Provenance("b1", {"cpu": "Some | CPU", "clocks_hz": [1, 2]}))
    store.append([make(m=4, block="b2", device="other")],
                 Provenance("b2", {"cpu": "Other CPU"}))  # fmt: skip
    return store


def test_a_card_counts_what_the_tables_hold(filled):
    card = dataset_card("Two machines", filled.read_all(), what="A test.", licence="Apache-2.0", gaps=["No fp8."])
    assert card.startswith("# Two machines\n\nA test.\n")
    assert "| gemm | 4 | 4 | 3 | 1 out_of_memory | 1 | 0 |" in card
    assert "| softmax | 1 | 1 | 1 | none | 0 | 0 |" in card
    assert "Rows by device: my-machine 4, other 1." in card
    assert "Rows by dtype: bf16 1, fp32 4." in card
    assert "Rows by threads: 4 1, all 4." in card or "Rows by threads: all 4, 4 1." in card
    assert "Rows by cache state: cold 1, hot 4." in card
    assert "| gemm | 1 ms | 1 ms | 1 ms | 11 % | 18 % | 50 % |" in card
    assert "| softmax | 2.5 µs | 2.5 µs | 2.5 µs | unknown | unknown | unknown |" in card
    assert "2 blocks of rows were collected." in card
    assert "| cpu | Some \\| CPU; Other CPU |" in card
    assert "* No fp8." in card
    assert card.endswith("## Licence\n\nApache-2.0\n")


def test_a_card_of_failures_only(store, make, provenance):
    store.append([make(status="crashed", latency_s=None)], provenance)
    card = dataset_card("T", store.read_all(), what="w", licence="MIT")
    assert "No row has a latency." in card
    assert "None known." in card


def test_shipped_tables_are_found_and_read(filled, tmp_path):
    filled.compact(tmp_path / "shipped")
    assert shipped_families(tmp_path / "shipped") == ["gemm", "softmax"]
    table = read_shipped("gemm", ["other"], ["m"], directory=tmp_path / "shipped")
    assert table.to_pylist() == [{"m": 4}]
    assert read_shipped("gemm", directory=tmp_path / "shipped").num_rows == 4


def test_a_table_that_is_not_shipped(tmp_path):
    with pytest.raises(SpecError, match="no shipped table for 'gemm'; shipped: none"):
        read_shipped("gemm", directory=tmp_path)


def test_a_damaged_shipped_table_is_an_error(tmp_path):
    (tmp_path / "gemm.parquet").write_bytes(b"PAR1")
    with pytest.raises(StoreError, match=r"cannot read .*gemm.parquet"):
        read_shipped("gemm", directory=tmp_path)


def test_everything_shipped_reads():
    for family in shipped_families():
        assert read_shipped(family).num_rows > 0
