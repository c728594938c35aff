"""The pairs that ship, and the law's error on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kernelcast.datasets.records.kernel_pairs import read_pairs, write_pairs
from kernelcast.datasets.store.errors import StoreError
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec, View, get_family
from kernelcast.models.predict.neighbours import law, memory_want


def want(spec: KernelSpec, seconds: float | None, device: str) -> float:
    assert seconds is not None
    family, view = get_family(spec.family), View.of(spec)
    rate = float(family.bytes_moved(view)) / seconds
    return float(memory_want(float(family.footprint_b(view)), rate, catalogue().get(device)))


def test_the_shipped_pairs_are_of_nine_families_on_the_device_of_the_law() -> None:
    rows, facts = read_pairs()
    good = [row for row in rows if row.status == "ok"]
    assert {row.device for row in rows} == {law().device}
    assert len({spec.family for row in good for spec in (row.a, row.b)}) == 9
    assert len({row.key for row in rows}) == len(rows) >= 180
    assert all(facts[block]["versions"]["torch"] for block in facts)
    assert str(len(good)) in law().source


def test_the_law_errs_by_less_than_eight_percent_on_them_and_less_than_no_law() -> None:
    good = [row for row in read_pairs()[0] if row.status == "ok"]
    a = np.array([want(row.a, row.a_alone_s, row.device) for row in good])
    b = np.array([want(row.b, row.b_alone_s, row.device) for row in good])
    measured = np.array([[row.a_slowdown, row.b_slowdown] for row in good]).T
    errors = np.abs(np.exp(law().log_slowdown(a, b)) / measured - 1)
    assert errors.mean() < 0.08
    assert errors.mean() < np.abs(1 / measured - 1).mean()


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows, facts = read_pairs()
    path = tmp_path / "pairs.parquet"
    write_pairs(path, rows[::-1], facts)
    again, facts_again = read_pairs(path)
    assert sorted(again, key=lambda row: row.key) == sorted(rows, key=lambda row: row.key)
    assert facts_again == facts


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pairs.parquet"
    path.write_bytes(b"brew")
    with pytest.raises(StoreError, match=r"cannot read"):
        read_pairs(path)
