"""Metrics against values worked out by hand, and the words rows are sliced by."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from kernelcast.features.batch.cases import Cases
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.metrics import (
    Metrics,
    error_summary,
    kendall,
    labels_of,
    power_bands,
    size_bands,
    slices,
    spearman,
    wilson_pct,
)
from kernelcast.models.training.labelled_cases import LabelledCases


def test_metrics_by_hand() -> None:
    measured = np.array([1.0, 2.0, 4.0, 10.0])
    value = np.array([1.06, 1.0, 4.0, 12.0])  # errors of 6, 50, 0 and 20 %
    result = Metrics.of(measured, value, lower=value * 0.8, upper=value * 1.2)
    assert result.n == 4
    assert result.mean_ape_pct == pytest.approx(19.0)
    assert result.median_ape_pct == pytest.approx(13.0)
    assert result.within_10_pct == 50.0
    # Ranks of the values: 2, 1, 3, 4 against 1, 2, 3, 4; 1 - 6 * 2 / (4 * 15), and 5 of 6 pairs in order.
    assert result.spearman == pytest.approx(0.8)
    assert result.kendall == pytest.approx(4 / 6, abs=1e-5)
    assert result.coverage_pct == 75.0  # 2.0 is outside 0.8 to 1.2
    assert result.width_pct == pytest.approx(40.0)


def test_metrics_without_intervals_have_no_coverage() -> None:
    result = Metrics.of(np.array([1.0]), np.array([1.0]))
    assert (result.coverage_pct, result.width_pct) == (None, None)
    assert (result.spearman, result.kendall) == (None, None), "one row has no order"


def test_a_value_on_the_interval_s_end_is_inside() -> None:
    item = np.array([1.0])
    assert Metrics.of(item, item, item, item).coverage_pct == 100.0


@pytest.mark.parametrize(
    ("a", "b", "rho", "tau"),
    [
        ([1, 2, 3, 4, 5], [2, 4, 6, 8, 10], 1.0, 1.0),
        ([1, 2, 3, 4, 5], [5, 4, 3, 2, 1], -1.0, -1.0),
        # Ties share their mean rank: 1, 2.5, 2.5, 4 against 1, 2, 3, 4; tau-b = 5 / sqrt(5 * 6).
        ([1, 2, 2, 3], [1, 2, 3, 4], 4.5 / math.sqrt(4.5 * 5), 5 / math.sqrt(30)),
        # Two pairs tied in both: 4 pairs in order, 0 against, 4 of 6 untied on each side.
        ([1, 1, 2, 2], [3, 3, 7, 7], 1.0, 1.0),
        ([1, 1, 1], [1, 2, 3], None, None),
    ],
)
def test_rank_correlations_by_hand(a: list[float], b: list[float], rho: float | None, tau: float | None) -> None:
    x, y = np.array(a, dtype=float), np.array(b, dtype=float)
    assert spearman(x, y) == (None if rho is None else pytest.approx(rho, abs=1e-5))
    assert kendall(x, y) == (None if tau is None else pytest.approx(tau, abs=1e-5))


def test_kendall_counts_pairs_like_its_definition() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 12, 60).astype(float), rng.integers(0, 9, 60).astype(float)
    signs = np.sign(a[:, None] - a) * np.sign(b[:, None] - b)
    untied = [np.sum(np.sign(column[:, None] - column) != 0) for column in (a, b)]
    assert kendall(a, b) == pytest.approx(signs.sum() / math.sqrt(untied[0] * untied[1]), abs=1e-5)


def test_error_summary_reads_log_errors_and_passes_over_missing_ones() -> None:
    # Predicted 20 % too high, and exact.
    result = error_summary(np.array([np.log(1 / 1.2), 0.0, np.nan]))
    assert result == {"n": 2, "mean_ape_pct": 10.0, "median_ape_pct": 10.0, "within_10_pct": 50.0}
    assert error_summary(np.array([np.nan])) == {"n": 0}


def test_wilson_interval_of_a_textbook_case() -> None:
    # Brown, Cai, DasGupta (2001): 9 of 10 gives 59.6 to 98.2 %.
    assert wilson_pct(90.0, 10) == pytest.approx((59.58, 98.21), abs=0.01)
    assert wilson_pct(100.0, 5)[1] == 100.0


def test_size_bands_are_half_open_decades() -> None:
    times = np.array([9.99e-6, 1e-5, 9.9e-5, 1e-4, 1e-2, 0.5])
    assert size_bands(times).tolist() == [
        "under 10 µs", "10–100 µs", "10–100 µs", "100 µs–1 ms", "10–100 ms", "over 100 ms",
    ]  # fmt: skip
    assert power_bands(np.array([332e-6, 333e-6])).tolist() == ["under 333 µs", "333 µs and up"]


def test_labels_name_everything_a_row_is_sliced_by() -> None:
    specs = [
        KernelSpec.of("gemm", "fp32", m=4, n=4, k=4, threads=1, cache_state="cold", impl="torch"),
        KernelSpec.of("gemm", "fp16", m=4, n=4, k=4, variant="bias"),
    ]
    labels = labels_of(Cases.from_specs(specs, ["a", "b"]), np.array([2e-6, 2e-3]), seen_devices=["a"])
    assert {name: column.tolist() for name, column in labels.items()} == {
        "source": ["not given", "not given"],
        "device": ["a", "b (unseen)"],
        "device seen in training": ["yes", "no"],
        "dtype": ["fp32", "fp16"],
        "variant": ["plain", "bias"],
        "impl": ["torch", "not given"],
        "threads": ["1", "not given"],
        "cache state": ["cold", "hot"],
        "size": ["under 10 µs", "1–10 ms"],
    }


def test_slices_split_all_rows_and_leave_out_what_tells_nothing(made_up: Callable[..., LabelledCases]) -> None:
    rows = made_up(60)
    labels = labels_of(rows.cases, rows.latency_s, ["nvidia-t4"], rows.source)
    result = list(slices(labels))
    assert {item.by for item in result} == {"device", "device seen in training", "impl", "size"}
    for by in {item.by for item in result}:
        assert sum(item.rows.sum() for item in result if item.by == by) == 60
    sizes = [item.name for item in result if item.by == "size"]
    assert sizes == [name for name in ("under 10 µs", "10–100 µs", "100 µs–1 ms", "1–10 ms") if name in sizes]
