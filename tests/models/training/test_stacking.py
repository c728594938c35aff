"""Stacking: weights follow held-out answers, add up to 1, and leave out what says nothing."""

from __future__ import annotations

import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.models.regressor import Graph
from kernelcast.models.training.fitting import Fit, TrainingTable
from kernelcast.models.training.stacking import combined, stacking_weights, unneeded, weighed_members

from ..conftest import _made_up


@pytest.fixture(scope="module")
def table() -> TrainingTable:
    return TrainingTable.of(_made_up(200, power=0.0), catalogue())


def test_the_better_member_gets_the_weight(table: TrainingTable) -> None:
    rng = np.random.default_rng(0)
    truth = table.log_labels["latency"]
    answers = {"latency": {"good": truth + rng.normal(0, 0.05, 200), "bad": truth + rng.normal(0, 0.8, 200)}}
    weights = stacking_weights(table, answers)["latency"]
    assert weights["good"] > 0.9
    assert sum(weights.values()) == pytest.approx(1.0)


def test_equally_good_members_share_and_beat_each(table: TrainingTable) -> None:
    rng = np.random.default_rng(1)
    truth = table.log_labels["latency"]
    answers = {"latency": {name: truth + rng.normal(0, 0.2, 200) for name in "abc"}}
    weights = stacking_weights(table, answers)
    assert all(0.2 < weight < 0.5 for weight in weights["latency"].values())
    together = np.abs(combined(table, answers, weights)["latency"] - truth).mean()
    assert together < min(np.abs(column - truth).mean() for column in answers["latency"].values())


def test_combined_answers_are_never_below_the_bound(table: TrainingTable) -> None:
    answers = {"latency": {"low": table.log_bound - 1.0}}
    result = combined(table, answers, {"latency": {"low": 1.0}})
    np.testing.assert_array_equal(result["latency"], table.log_bound)


def test_members_without_weight_are_not_kept() -> None:
    graphs = tuple(Graph(("latency",), b"", name) for name in ("boosted", "forest", "network"))
    weights = {"latency": {"boosted": 0.7, "forest": 0.0, "network": 0.3}}
    remaining, members = weighed_members(Fit(graphs, None), weights)
    assert [graph.member for graph in remaining.graphs] == ["boosted", "network"]
    assert members == {"latency": ((0, 0, 0.7), (1, 0, 0.3))}
    assert unneeded(weights) == {("forest", "latency")}


def test_a_graph_of_two_targets_is_kept_for_the_one_it_has_a_weight_for() -> None:
    graphs = (Graph(("latency", "power"), b"", "boosted"), Graph(("latency",), b"", "network"))
    weights = {"latency": {"boosted": 0.0, "network": 1.0}, "power": {"boosted": 1.0}}
    remaining, members = weighed_members(Fit(graphs, None), weights)
    assert len(remaining.graphs) == 2
    assert members == {"power": ((0, 1, 1.0),), "latency": ((1, 0, 1.0),)}


def test_odd_rows_do_not_rule(table: TrainingTable) -> None:
    """A member that is better on nine rows of ten gets the weight, however far it is off on the tenth."""
    rng = np.random.default_rng(2)
    truth = table.log_labels["latency"]
    error = np.where(np.arange(200) % 10 == 0, 1.5, 0.02) * rng.choice((-1, 1), 200)
    answers = {"latency": {"usually good": truth + error, "steady": truth + rng.normal(0, 0.3, 200)}}
    assert stacking_weights(table, answers)["latency"]["usually good"] > 0.6


def test_rows_without_an_answer_do_not_count(table: TrainingTable) -> None:
    truth = table.log_labels["latency"].copy()
    half = truth.copy()
    half[::2] = np.nan
    weights = stacking_weights(table, {"latency": {"a": half, "b": truth + 0.3}})
    assert weights["latency"]["a"] > 0.9
