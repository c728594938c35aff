from __future__ import annotations

import math

import numpy as np
import pytest
from kernelcast.collectors.gpu.measure.timing import COLD, HOT, GraphRule, median_half_width, sample


def same(seconds: float):
    return lambda n: [lambda: seconds] * n


@pytest.mark.parametrize("seconds", [2e-6, 40e-6, 3e-3, 30e-3])
def test_label_is_the_time_on_the_device_not_on_the_host(fake_gpu, seconds: float) -> None:
    gpu = fake_gpu(host_s=8e-6, spread=0.002)
    result = sample(gpu, same(seconds), HOT)
    assert result.median_s == pytest.approx(seconds, rel=0.005)
    assert result.converged
    assert not result.noisy


def test_graph_is_long_enough_to_hide_its_launch(fake_gpu) -> None:
    gpu = fake_gpu(replay_overhead_s=4e-6)
    result = sample(gpu, same(3e-6), HOT)
    assert result.calls * 3e-6 >= HOT.sample_s * 0.9
    assert result.median_s == pytest.approx(3e-6, rel=0.003)


def test_number_of_calls_in_a_graph_is_bounded() -> None:
    assert HOT.calls_for(1e-9) == HOT.max_calls
    assert HOT.calls_for(1.0) == 1
    assert COLD.calls_for(1e-6) == COLD.max_calls


def test_sampling_covers_the_least_gpu_time_and_samples(fake_gpu) -> None:
    short = sample(fake_gpu(), same(5e-6), HOT)
    assert len(short.samples_s) * short.calls * 5e-6 >= HOT.gpu_s
    long = sample(fake_gpu(), same(20e-3), HOT)
    assert len(long.samples_s) == HOT.samples


def test_a_case_that_never_settles_ends_at_its_budget_and_says_so(fake_gpu) -> None:
    gpu = fake_gpu(spread=0.3)
    result = sample(gpu, same(1e-3), HOT)
    assert not result.converged
    assert result.noisy
    assert result.samples_s.sum() * result.calls < 1.2 * HOT.case_s


def test_a_kernel_longer_than_the_budget_still_gives_samples(fake_gpu) -> None:
    result = sample(fake_gpu(), same(1.0), HOT)
    assert len(result.samples_s) == HOT.warm_up_calls
    assert result.median_s == pytest.approx(1.0)
    assert not result.converged


def test_clocks_are_looked_at_once_while_a_replay_runs(fake_gpu) -> None:
    gpu = fake_gpu()
    looks: list[int] = []
    sample(gpu, same(1e-4), HOT, in_flight=lambda: looks.append(gpu.launched))
    assert looks == [1]


@pytest.mark.parametrize("seconds", [0.13, 0.2, 1.0])
def test_clocks_are_looked_at_under_load_in_cases_too_long_to_reach_half_way(fake_gpu, seconds: float) -> None:
    gpu = fake_gpu()
    looks: list[int] = []
    result = sample(gpu, same(seconds), HOT, in_flight=lambda: looks.append(gpu.launched))
    assert len(result.samples_s) < HOT.samples // 2
    assert looks == [1]


def test_the_replay_looked_at_is_over_before_anything_else(fake_gpu) -> None:
    gpu = fake_gpu()
    order: list[str] = []
    sync, launch = gpu.call_s, "launch"
    gpu.call_s = lambda call: (order.append("wait"), sync(call))[1]
    sample(gpu, same(1.0), HOT, in_flight=lambda: order.append(launch))
    assert order[-2:] == [launch, "wait"]


def test_cold_case_is_flushed_before_every_replay(fake_gpu) -> None:
    gpu = fake_gpu()
    sample(gpu, same(1e-5), COLD, flush=gpu.flush)
    assert gpu.flushes == gpu.replays > COLD.samples


def test_cold_case_asks_for_as_many_different_calls_as_it_captures(fake_gpu) -> None:
    query: list[int] = []

    def calls(n: int):
        query.append(n)
        return [lambda: 1e-5] * n

    gpu = fake_gpu()
    sample(gpu, calls, COLD, flush=gpu.flush)
    assert query[1:] == gpu.captured


def test_half_width_of_the_median_is_that_of_the_normal_distribution_for_many_samples() -> None:
    draws = np.random.default_rng(0).normal(1.0, 0.1, 4000)
    # The median's standard error is 1.2533 sigma / sqrt(n).
    assert median_half_width(draws.tolist()) == pytest.approx(1.96 * 1.2533 * 0.1 / math.sqrt(4000), rel=0.2)


def test_half_width_covers_the_true_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(400):
        draws = rng.exponential(1.0, 25)
        half = median_half_width(draws.tolist()) * np.median(draws)
        hits += abs(np.median(draws) - math.log(2)) <= half
    assert hits / 400 > 0.9


def test_few_samples_have_no_interval() -> None:
    assert median_half_width([1.0] * 5) == math.inf
    assert not GraphRule(samples=3, gpu_s=0.0).settled([1.0] * 5, 1)
