"""The pairs that ship, and the laws' errors on them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from kernelcast.datasets.records.kernel_pairs import GPU_PAIRS, read_pairs, write_pairs
from kernelcast.datasets.store.errors import StoreError
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec, View, get_family
from kernelcast.features.spec_io.rows import spec_from_row
from kernelcast.models.predict.neighbours import filled_share, launches_of, law, memory_want, stream_law


def want(spec: KernelSpec, seconds: float | None, device: str) -> float:
    assert seconds is not None
    family, view = get_family(spec.family), View.of(spec)
    rate = float(family.bytes_moved(view)) / seconds
    return float(memory_want(float(family.footprint_b(view)), rate, catalogue().get(device)))


def test_the_shipped_pairs_are_of_nine_families_on_the_device_of_the_law() -> None:
    rows, facts = read_pairs()
    good = [row for row in rows if row.status == "ok"]
    assert {row.device for row in rows} == set(law().devices)
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


def test_the_pairs_of_a_gpu_are_of_the_device_of_its_law() -> None:
    rows, facts = read_pairs(GPU_PAIRS)
    good = [row for row in rows if row.status == "ok"]
    other, _ = read_pairs(GPU_PAIRS.with_name("h100-pairs.parquet"))
    both = len(good) + sum(row.status == "ok" for row in other)
    assert [rows[0].device, other[0].device] == list(stream_law().devices)
    assert {row.device for row in (*rows, *other)} == set(stream_law().devices)
    assert len({row.key for row in rows}) == len(rows) == 766
    assert all(facts[block]["gpu"]["name"] == "NVIDIA H200" for block in facts)
    assert stream_law().source.startswith(f"{both} pairs")
    assert f"({len(good)})" in stream_law().source


def test_the_law_of_streams_errs_by_less_than_no_law_and_turns_and_its_intervals_hold() -> None:
    # Launches of these families' calls are those that ran; of others, that engines fuse, the benchmark knows them.
    good = [
        row for row in read_pairs(GPU_PAIRS)[0]
        if row.status == "ok" and not any(get_family(spec.family).launches for spec in (row.a, row.b))
    ]  # fmt: skip
    a_s, b_s = (np.array([getattr(row, name) for row in good], dtype=float) for name in ("a_alone_s", "b_alone_s"))
    a_n, b_n = np.array([[launches_of(row.a), launches_of(row.b)] for row in good]).T
    device = catalogue().get(stream_law().devices[0])
    a_f, b_f = np.array([[filled_share(spec, device) for spec in (row.a, row.b)] for row in good]).T
    numbers = stream_law()
    logs = np.stack([numbers.log_slowdown(a_s, a_n, b_s, b_n, b_f), numbers.log_slowdown(b_s, b_n, a_s, a_n, a_f)])
    measured = np.log(np.array([[row.a_slowdown, row.b_slowdown] for row in good]).T)
    errors = np.abs(logs - measured)
    assert len(good) == 318
    assert np.median(np.abs(np.expm1(logs - measured))) < 0.15
    turns = np.log1p(np.stack([b_s / a_s, a_s / b_s]))
    assert errors.mean() < 0.6 * min(np.abs(turns - measured).mean(), measured.mean())
    assert 0.8 < (errors <= 1.645 * stream_law().deviation(logs)).mean() < 0.97


def test_launches_are_those_that_a_profiler_counted() -> None:
    counted = pq.read_table(GPU_PAIRS.with_name("h200-launches.parquet")).to_pylist()
    ratios = np.array([
        launches_of(spec) / row["launches"]
        for row in counted
        if get_family((spec := spec_from_row(json.loads(row["spec"]))).family).launches is None
    ])  # fmt: skip
    assert len(ratios) >= 90
    assert np.median(np.abs(np.log(ratios))) == 0
    assert np.mean(np.abs(np.log(ratios)) < 0.25) > 0.75


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
