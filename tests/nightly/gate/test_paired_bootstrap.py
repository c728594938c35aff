"""Chance is told from change, at the rate that is promised."""

from __future__ import annotations

import numpy as np
import pytest
from kernelcast.nightly.gate.paired_bootstrap import difference, holm, resamples_for


def test_equal_seeds_give_equal_answers_and_the_mean_is_the_mean() -> None:
    values = np.random.default_rng(0).normal(1.0, 3.0, 200)
    clusters = np.arange(200, dtype=np.uint64) // 2
    item = difference(values, clusters)
    assert item == difference(values, clusters)
    assert item.mean == pytest.approx(values.mean())
    assert item.low < item.mean < item.high
    assert item.clusters == 100


def test_rows_of_one_shape_are_no_more_evidence_than_one() -> None:
    rng = np.random.default_rng(1)
    shapes = rng.normal(1.0, 3.0, 20)
    alone = difference(shapes, np.arange(20, dtype=np.uint64))
    repeated = difference(np.repeat(shapes, 50), np.repeat(np.arange(20, dtype=np.uint64), 50))
    assert repeated.low == pytest.approx(alone.low, rel=0.05)
    assert repeated.p_above == pytest.approx(alone.p_above, abs=0.02)


@pytest.mark.parametrize(("values", "above"), [([0.0] * 10, 1.0), ([3.0] * 10, 0.0), ([-3.0] * 10, 1.0), ([9.0], 1.0)])
def test_differences_without_spread(values: list[float], above: float) -> None:
    result = difference(np.array(values), np.arange(len(values), dtype=np.uint64), tolerance=0.5)
    assert result.p_above == above


@pytest.mark.parametrize("shapes", [8, 30])
def test_the_interval_holds_and_chance_is_seldom_called_change(shapes: int) -> None:
    rng = np.random.default_rng(2)
    stored, called = 0, 0
    for i in range(300):
        # Skewed, as differences of absolute errors are.
        values = rng.exponential(5.0, shapes) - 5.0
        result = difference(values, np.arange(shapes, dtype=np.uint64), resamples=499, seed=i)
        stored += result.low <= 0.0 <= result.high
        called += result.p_above <= 0.05
    assert stored / 300 > 0.80
    assert called / 300 < 0.06


def test_holm_rejects_step_by_step() -> None:
    assert holm([0.01, 0.04, 0.03], 0.05) == [True, False, False]
    assert holm([0.01, 0.02, 0.03], 0.05) == [True, True, True]
    assert holm([], 0.05) == []
    assert holm([0.2], 0.05) == [False]


def test_there_are_draws_enough_to_reject_in_any_number_of_slices() -> None:
    for tests in (1, 60, 5000):
        assert 1 / (resamples_for(tests, 0.05) + 1) < 0.05 / tests
