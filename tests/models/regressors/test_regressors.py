"""Every regressor learns, and its ONNX graph answers what the library's own model answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.models.engine.runtime import Runtime
from kernelcast.models.regressor import Problem, get_regressor, regressors
from kernelcast.models.regressors.periodic import Periodic

NAMES = ("analytic", "blend", "periodic", "roofline", "xgboost")


def _run(onnx: bytes, x: Any) -> Any:
    return Runtime([onnx]).run(x)[0]


def _problem(n: int = 300, *, targets: tuple[str, ...] = ("latency", "power"), seed: int = 0) -> Problem:
    """A smooth law of three of five features, one of them missing in every fifth row."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, 5)).astype(np.float32)
    y = 1.0 + 0.5 * x[:, 0] + 0.3 * x[:, 1] * (x[:, 2] > 0) + 0.01 * rng.normal(size=n)
    x[::5, 3] = np.nan
    both = {"latency": np.abs(y), "power": -np.abs(0.2 * y) - 0.1}
    return Problem(x, {name: both[name] for name in targets}, {}, seed)


def test_every_regressor_is_found_and_an_unknown_one_lists_them() -> None:
    assert tuple(regressors()) == NAMES
    with pytest.raises(SpecError, match=", ".join(NAMES)):
        get_regressor("linear")


@pytest.mark.parametrize("name", NAMES)
def test_every_target_is_answered(name: str, small: dict[str, Any]) -> None:
    problem = _problem()
    graphs = small[name].fit(problem)
    assert {target for graph in graphs for target in graph.targets} == {"latency", "power"}
    for graph in graphs:
        answer = _run(graph.onnx, problem.x)
        assert answer.shape == (len(problem.x), len(graph.targets))
        assert np.isfinite(answer).all()


@pytest.mark.parametrize("name", ["blend", "periodic", "xgboost"])
def test_learners_learn(name: str, small: dict[str, Any]) -> None:
    train, other = _problem(800), _problem(200, seed=1)
    for graph in small[name].fit(train):
        for column, target in enumerate(graph.targets):
            wrong = np.abs(_run(graph.onnx, other.x)[:, column] - other.targets[target])
            guess = np.abs(train.targets[target].mean() - other.targets[target])
            assert wrong.mean() < 0.4 * guess.mean()


def test_the_roofline_answers_the_bound_and_the_median_power(small: dict[str, Any]) -> None:
    problem = _problem()
    (graph,) = small["roofline"].fit(problem)
    answer = _run(graph.onnx, problem.x)
    assert (answer[:, 0] == 0.0).all()
    assert answer[:, 1] == pytest.approx(np.full(len(problem.x), np.median(problem.targets["power"])), rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_bytes(name: str, small: dict[str, Any]) -> None:
    first, second = (small[name].fit(_problem()) for _ in range(2))
    assert [graph.onnx for graph in first] == [graph.onnx for graph in second]


def test_a_network_goes_on_from_an_earlier_fit_to_most_of_the_rows() -> None:
    most, all_rows = _problem(700, targets=("latency",)), _problem(800, targets=("latency",))
    quick = Periodic(width=32, depth=2, most_epochs=8, epochs=8, further_epochs=2, least_steps=1)
    (earlier,) = quick.fit(most)
    weights = {name: value.copy() for name, value in earlier.state.weights.items()}

    def wrong(network: Periodic, problem: Problem) -> float:
        (graph,) = network.fit(problem)
        other = _problem(200, seed=1)
        return float(np.abs(_run(graph.onnx, other.x)[:, 0] - other.targets["latency"]).mean())

    gone_on = wrong(quick, replace(all_rows, earlier=(earlier,)))
    assert gone_on < 0.7 * wrong(replace(quick, epochs=2), all_rows), "two passes alone teach little"
    assert all(np.array_equal(value, earlier.state.weights[name]) for name, value in weights.items()), (
        "nor is it changed"
    )


@pytest.mark.parametrize("name", ["blend", "periodic", "xgboost"])
def test_another_seed_gives_another_model(name: str, small: dict[str, Any]) -> None:
    first, second = small[name].fit(_problem()), small[name].fit(replace(_problem(), seed=7))
    assert first[0].onnx != second[0].onnx


def test_xgboost_s_graph_is_the_booster(small: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import xgboost

    remaining: list[Any] = []
    train = xgboost.train
    monkeypatch.setattr(
        xgboost, "train", lambda *args, **kwargs: remaining.append(train(*args, **kwargs)) or remaining[-1]
    )
    problem = _problem(targets=("latency",))
    (graph,) = small["xgboost"].fit(problem)
    own = remaining[0].predict(xgboost.DMatrix(problem.x))
    assert _run(graph.onnx, problem.x)[:, 0] == pytest.approx(own, abs=2e-6)


def test_xgboost_splits_go_the_same_way_at_their_thresholds(
    small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row exactly on a threshold is where `<` and `<=` part."""
    import xgboost

    remaining: list[Any] = []
    train = xgboost.train
    monkeypatch.setattr(
        xgboost, "train", lambda *args, **kwargs: remaining.append(train(*args, **kwargs)) or remaining[-1]
    )
    rng = np.random.default_rng(0)
    x = rng.integers(0, 4, (300, 3)).astype(np.float32)
    problem = Problem(x, {"latency": x[:, 0] + 0.1 * x[:, 1]}, {}, 0)
    (graph,) = small["xgboost"].fit(problem)
    thresholds = np.unique([value for tree in _booster_thresholds(remaining[0]) for value in tree])
    on_them = rng.choice(thresholds, (400, 3)).astype(np.float32)
    assert _run(graph.onnx, on_them)[:, 0] == pytest.approx(remaining[0].predict(xgboost.DMatrix(on_them)), abs=2e-6)


def _booster_thresholds(booster: Any) -> list[list[float]]:
    from kernelcast.models.regressors.xgboost import trees_of

    return [tree.value[tree.left >= 0].tolist() for tree in trees_of(booster)]


def test_the_network_s_graph_is_the_torch_network(small: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    remaining: list[dict[str, Any]] = []
    train = Periodic._train

    def keeping(self: Periodic, *args: Any) -> dict[str, Any]:
        result = train(self, *args)
        remaining.append({name: value.copy() for name, value in result.items()})
        return result

    monkeypatch.setattr(Periodic, "_train", keeping)
    problem = _problem(targets=("latency",))
    (graph,) = small["periodic"].fit(problem)
    mean = np.nanmean(problem.x.astype(np.float64), axis=0)
    filled = np.where(np.isnan(problem.x), mean, problem.x)
    scaled = torch.tensor(np.clip((filled - mean) / filled.std(axis=0), -4, 4), dtype=torch.float32)
    weights = {name: torch.tensor(value) for name, value in remaining[0].items()}
    y = problem.targets["latency"]
    own = small["periodic"]._answer(torch, weights, scaled, 5).numpy() * y.std() + np.median(y)
    assert _run(graph.onnx, problem.x)[:, 0] == pytest.approx(own, abs=2e-5)


def test_the_network_reads_no_column_that_says_nothing(small: dict[str, Any]) -> None:
    problem = _problem(targets=("latency",))
    constant, twice, empty = np.ones(len(problem.x)), problem.x[:, 0], np.full(len(problem.x), np.nan)
    wider = replace(problem, x=np.column_stack([problem.x, constant, twice, empty]).astype(np.float32))
    (graph,) = small["periodic"].fit(wider)
    other = wider.x.copy()
    other[:, 5:] = 7.0
    np.testing.assert_array_equal(_run(graph.onnx, wider.x), _run(graph.onnx, other))
