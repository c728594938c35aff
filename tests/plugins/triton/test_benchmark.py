"""The benchmark's arithmetic."""

import importlib.util
import itertools
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "plugins_triton.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("plugins_triton_arithmetic", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def trials(bench, *times):
    return [bench.Trial({"place": i}, time, 2.0) for i, time in enumerate(times)]


def test_what_was_kept_is_compared_with_all(bench):
    result = bench.outcome("a", trials(bench, 4.0, None, 1.0, 2.0), [3, 0], 0.5)
    assert (result.n, result.failed, result.kept) == (4, 1, 2)
    assert (result.best_s, result.chosen_s, result.first_s) == (1.0, 2.0, 4.0)
    assert result.speed == 0.5
    assert (result.all_wall_s, result.kept_wall_s, result.prune_s) == (8.0, 4.0, 0.5)


def test_the_summary_is_over_shapes(bench):
    item = bench.outcome("a", trials(bench, 4.0, 1.0), [0], 0.0)
    two = bench.outcome("b", trials(bench, 1.0, 3.0), [0], 1.0)
    result = bench.summary([item, two])
    assert result["speed_of_best"] == pytest.approx(0.5)
    assert result["speed_of_best_worst_shape"] == 0.25
    assert result["best_found_share"] == 0.5
    assert (result["exhaustive_s"], result["pruned_s"]) == (8.0, 5.0)
    assert result["saved_share"] == pytest.approx(3 / 8)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_blind_choice_is_the_mean_over_all_choices(bench, k):
    times = [5.0, 1.0, 2.0, 9.0]
    every = [min(chosen) for chosen in itertools.combinations(times, k)]
    assert bench.expected_best_s(times, k) == pytest.approx(sum(every) / len(every))
    assert bench.expected_best_s(times, 9) == 1.0


def test_nothing_that_runs_is_an_error(bench):
    with pytest.raises(ValueError, match="0 of 2 configurations ran"):
        bench.outcome("a", trials(bench, None, None), [0], 0.0)
    with pytest.raises(ValueError, match="0 of 1 kept ones"):
        bench.outcome("a", trials(bench, None, 1.0), [0], 0.0)
