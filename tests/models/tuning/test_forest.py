"""Trees judged 64 rows at a time give what walking them gives, and what xgboost gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernelcast.models.tuning.forest import Forest, ForestEvaluator, forest_of

from .made_up import judged, random_forest, walked


def rows_of(n: int, seed: int = 0) -> Any:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(n, 12)) * 20
    rows[:, ::2] = np.round(rows[:, ::2])
    return rows


@pytest.mark.parametrize("depth", [0, 1, 2, 5, 6, 9])
@pytest.mark.parametrize("n", [0, 1, 63, 64, 65])
def test_judging_is_walking(n: int, depth: int) -> None:
    forest = random_forest(depth=depth, trees=9)
    np.testing.assert_allclose(judged(forest, rows_of(n)), walked(forest, rows_of(n)), rtol=0, atol=1e-12)


def test_many_rows_give_each_row_what_it_gets_alone() -> None:
    forest, rows = random_forest(), rows_of(700)
    together = judged(forest, rows)
    alone = [judged(forest, rows[i : i + 1])[0] for i in range(0, 700, 41)]
    assert together[::41].tolist() == alone
    judge = ForestEvaluator(forest)
    numbers = [judge.sums([float(value) for value in rows[i]], 1)[0] for i in range(0, 700, 41)]
    assert numbers == alone


def test_numbers_among_columns_hold_for_all_rows() -> None:
    forest, rows = random_forest(), rows_of(90)
    mixed = [rows[:, i].copy() if i % 3 else float(rows[0, i]) for i in range(12)]
    rows[:, ::3] = rows[0, ::3]
    np.testing.assert_array_equal(ForestEvaluator(forest).sums(mixed, 90), judged(forest, rows))


def test_thresholds_are_met_as_float32() -> None:
    forest = Forest(
        0.0,
        1,
        np.array([0], np.uint32),
        np.array([0.1], np.float32),
        np.zeros((1, 1), np.uint32),
        np.array([[1.0, 2.0]], np.float32),
    )
    below = float(np.nextafter(np.float32(0.1), np.float32(0)))
    # 0.1 as float64 is below float32's 0.1, and rounds to it.
    values = np.array([below, 0.1, float(np.float32(0.1)), np.nan, np.inf, -np.inf, 1e300])
    assert judged(forest, values[:, None]).tolist() == [1.0, 2.0, 2.0, 2.0, 2.0, 1.0, 2.0]


def test_no_trees_are_the_bias() -> None:
    forest = random_forest(trees=0, bias=1.5)
    assert judged(forest, rows_of(3)).tolist() == [1.5] * 3


def test_places_tell_rows_apart_as_trees_do() -> None:
    judge = ForestEvaluator(random_forest())
    rows = rows_of(2)
    places = judge.places(list(np.vstack([rows[:1], rows[:1], rows[1:]]).T), 3)
    assert np.isfinite(places).all()
    assert np.linalg.norm(places[0] - places[1]) == 0.0
    assert 0.0 < np.linalg.norm(places[0] - places[2]) <= 1.0


@pytest.fixture(scope="module")
def fitted() -> Any:
    xgboost = pytest.importorskip("xgboost")
    draw = np.random.default_rng(0)
    rows = np.round(np.exp2(draw.normal(size=(900, 6)) * 3), 2) + 0.01
    labels = np.sin(np.log2(rows[:, 0])) + 0.2 * np.log2(rows[:, 1]) + (rows[:, 2] > rows[:, 3]) + 3.0
    parameters = {"max_depth": 6, "eta": 0.2, "nthread": 1, "max_bin": 64}
    return rows, labels, xgboost.train(parameters, xgboost.DMatrix(rows, labels), 40), xgboost


def test_a_converted_booster_answers_as_xgboost_does_on_and_beside_thresholds(fitted: Any) -> None:
    rows, _, booster, xgboost = fitted
    forest = forest_of(booster)
    on = rows.copy()
    for i, threshold in enumerate(forest.thresholds):
        on[i % len(on), forest.features[i]] = threshold
    single = on.astype(np.float32)
    for these in (rows, on, np.nextafter(single, np.float32(0)), np.nextafter(single, np.float32(np.inf))):
        expected = booster.predict(xgboost.DMatrix(these))
        np.testing.assert_allclose(judged(forest, these), expected, rtol=0, atol=2e-6)


def test_leaves_are_xgboosts_to_the_last_bit(fitted: Any) -> None:
    rows, _, booster, xgboost = fitted
    item = booster[7:8]
    forest = forest_of(item)
    leaf = judged(forest, rows) - forest.bias
    margin = item.predict(xgboost.DMatrix(rows)) - np.float32(forest.bias)
    np.testing.assert_allclose(leaf, margin, rtol=0, atol=3e-7)
    assert set(forest.leaves.ravel()) >= set(np.unique(leaf.astype(np.float32)))


def test_trees_that_stop_early_are_filled_up(fitted: Any) -> None:
    rows, labels, _, xgboost = fitted
    parameters = {"max_depth": 5, "gamma": 3.0, "min_child_weight": 80, "nthread": 1}
    booster = xgboost.train(parameters, xgboost.DMatrix(rows, labels), 12)
    np.testing.assert_allclose(judged(forest_of(booster), rows), booster.predict(xgboost.DMatrix(rows)), atol=2e-6)
    stump = xgboost.train({"max_depth": 3, "gamma": 1e9, "nthread": 1}, xgboost.DMatrix(rows, labels), 2)
    np.testing.assert_allclose(judged(forest_of(stump), rows), stump.predict(xgboost.DMatrix(rows)), atol=2e-6)


def test_trees_too_deep_for_a_file_are_refused(fitted: Any) -> None:
    rows, labels, _, xgboost = fitted
    deep = xgboost.train({"max_depth": 20, "nthread": 1, "min_child_weight": 0}, xgboost.DMatrix(rows, labels), 1)
    with pytest.raises(ValueError, match="more than a model file holds"):
        forest_of(deep)
