"""Whole models: sums, shares, and intervals of correlated errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.predict.prediction import Interval, Prediction
from kernelcast.workloads.whole_model import (
    MAX_COUNT,
    ErrorCorrelation,
    Kernel,
    WholeModelPrediction,
    compose,
    predict_whole,
)

INDEPENDENT, EQUAL = {"seen": ErrorCorrelation(0.0, 0.0)}, {"seen": ErrorCorrelation(1.0, 1.0)}


def gemm(m: int) -> KernelSpec:
    return KernelSpec.of("gemm", "fp32", m=m, n=64, k=64)


def softmax(rows: int) -> KernelSpec:
    return KernelSpec.of("softmax", "fp32", rows=rows, cols=64)


def around(value: float, factor: float) -> Interval:
    return Interval(value, value / factor, value * factor)


def prediction(latency_s: float, power_w: float | None = 100.0, factor: float = 1.2, **other: Any) -> Prediction:
    power = None if power_w is None else around(power_w, factor)
    energy = None if power_w is None else around(latency_s * power_w, factor**2)
    return replace(
        Prediction(
            around(latency_s, factor), power, energy, 0.9, "made up", True, (), "dram", {"dram": latency_s / 2}, "seen"
        ),
        **other,
    )


def composed(lines: Sequence[tuple[KernelSpec, int, Prediction]], **options: Any) -> WholeModelPrediction:
    kernels = [Kernel(spec, count) for spec, count, _ in lines]
    return compose(kernels, [item for *_, item in lines], **options)


def test_latency_and_energy_add_up_and_power_is_their_ratio() -> None:
    whole = composed([(gemm(1), 3, prediction(1e-3, 200.0)), (softmax(1), 2, prediction(5e-4, 50.0))])
    assert whole.latency_s.value == pytest.approx(4e-3)
    assert whole.energy_j is not None
    assert whole.power_w is not None
    assert whole.energy_j.value == pytest.approx(0.65)
    assert whole.power_w.value == pytest.approx(0.65 / 4e-3)
    assert whole.bound_s == pytest.approx(2e-3)
    assert (whole.launches, whole.launch_s, whole.coverage, whole.in_domain) == (5, 0.0, 0.9, True)


def test_one_kernel_keeps_its_own_interval_however_often_it_runs() -> None:
    item = prediction(1e-3)
    for shared in (INDEPENDENT, EQUAL, {"seen": ErrorCorrelation(0.5, 0.2)}):
        whole = composed([(gemm(1), 7, item)], shared=shared)
        assert whole.latency_s.lower == pytest.approx(7 * item.latency_s.lower)
        assert whole.latency_s.upper == pytest.approx(7 * item.latency_s.upper)
        # A mean over one kernel's time is that kernel's power.
        assert whole.power_w is not None
        assert whole.power_w.upper == pytest.approx(120.0)


def test_the_same_kernel_listed_twice_is_one_kernel_run_twice() -> None:
    item = prediction(1e-3)
    twice = composed([(gemm(1), 1, item), (gemm(1), 1, item)], shared=INDEPENDENT)
    assert twice.latency_s.upper == pytest.approx(composed([(gemm(1), 2, item)], shared=INDEPENDENT).latency_s.upper)


def test_independent_errors_average_out_with_the_root_of_their_number() -> None:
    n = 16
    whole = composed([(gemm(m), 1, prediction(1e-3)) for m in range(1, n + 1)], shared=INDEPENDENT)
    assert math.log(whole.latency_s.upper / whole.latency_s.value) == pytest.approx(math.log(1.2) / math.sqrt(n))
    assert math.log(whole.latency_s.value / whole.latency_s.lower) == pytest.approx(math.log(1.2) / math.sqrt(n))


def test_equal_errors_do_not_average_out() -> None:
    whole = composed([(gemm(m), 1, prediction(1e-3)) for m in range(1, 9)], shared=EQUAL)
    assert whole.latency_s.upper == pytest.approx(8 * 1.2e-3)
    assert whole.latency_s.lower == pytest.approx(8e-3 / 1.2)


def test_the_width_is_the_variance_of_the_sum_worked_out_pair_by_pair() -> None:
    shared = {"seen": ErrorCorrelation(0.6, 0.2), "unseen_device": ErrorCorrelation(0.8, 0.5)}
    specs = [gemm(1), gemm(2), softmax(1), softmax(2)]
    kinds = ["seen", "seen", "unseen_device", "unseen_device"]
    counts, values, factors = [1, 4, 2, 3], [1e-3, 2e-3, 5e-4, 4e-3], [1.1, 1.3, 1.5, 1.05]
    rows = zip(specs, counts, values, factors, kinds, strict=True)
    lines = [(s, c, prediction(v, None, f, regime=kind)) for s, c, v, f, kind in rows]
    w = np.array(counts) * values * np.log(factors) / np.dot(counts, values)
    across = math.sqrt(0.2 * 0.5)
    rho = np.array(
        [[1, 0.6, across, across], [0.6, 1, across, across], [across, across, 1, 0.8], [across, across, 0.8, 1]]
    )
    result = composed(lines, shared=shared).latency_s
    assert math.log(result.upper / result.value) == pytest.approx(math.sqrt(w @ rho @ w))


def test_simulated_errors_fall_inside_as_often_as_said() -> None:
    rng = np.random.default_rng(0)
    shared, n, coverage_z = ErrorCorrelation(0.6, 0.3), 20, 1.6449
    sigma = math.log(1.2) / coverage_z
    specs = [gemm(m) for m in range(1, n // 2 + 1)] + [softmax(m) for m in range(1, n // 2 + 1)]
    values = rng.uniform(1e-4, 1e-3, n)
    whole = composed([(s, 1, prediction(v, None)) for s, v in zip(specs, values, strict=True)], shared={"seen": shared})
    device, family = rng.normal(size=(4000, 1)), np.repeat(rng.normal(size=(4000, 2)), n // 2, axis=1)
    own = rng.normal(size=(4000, n))
    errors = sigma * (math.sqrt(0.3) * device + math.sqrt(0.3) * family + math.sqrt(0.4) * own)
    totals = (values * np.exp(errors)).sum(axis=1)
    inside = np.mean((totals >= whole.latency_s.lower) & (totals <= whole.latency_s.upper))
    assert inside == pytest.approx(0.9, abs=0.02)


def test_ends_go_up_and_down_by_what_they_did_apart() -> None:
    skewed = replace(prediction(1e-3, None), latency_s=Interval(1e-3, 0.9e-3, 3e-3))
    result = composed([(gemm(m), 1, skewed) for m in (1, 2)], shared=INDEPENDENT).latency_s
    assert math.log(result.upper / result.value) == pytest.approx(math.log(3) / math.sqrt(2))
    assert math.log(result.value / result.lower) == pytest.approx(math.log(1 / 0.9) / math.sqrt(2))


def test_no_end_beyond_the_sums_of_ends_nor_below_the_bound() -> None:
    at_bound = replace(prediction(1e-3, None), latency_s=Interval(1e-3, 1e-3, 1.1e-3), breakdown={"dram": 1e-3})
    wide = replace(prediction(1e-6, None), latency_s=Interval(1e-6, 0.0, 1e-4))
    whole = composed([(gemm(1), 1, at_bound), (gemm(2), 1, wide)], shared=EQUAL)
    assert 1e-3 <= whole.latency_s.lower <= whole.latency_s.value <= whole.latency_s.upper <= 1.2e-3
    assert whole.latency_s.lower >= whole.bound_s - 1e-6
    assert np.isfinite(whole.latency_s.upper)


def test_unknown_energy_is_none_and_says_of_which_kernel() -> None:
    whole = composed([(gemm(1), 1, prediction(1e-3)), (softmax(1), 3, prediction(1e-3, None))])
    assert whole.energy_j is None
    assert whole.power_w is None
    assert whole.without_energy == (str(softmax(1)),)
    assert [part.energy_share for part in whole.parts] == [None, None]
    assert [part.energy_j for part in whole.parts] == [pytest.approx(0.1), None]
    assert [item.energy_j for item in whole.families] == [None, pytest.approx(0.1)]


def test_mean_power_stays_within_that_of_the_kernels() -> None:
    lines = [(gemm(1), 1, prediction(1e-3, 300.0, 2.0)), (softmax(1), 1, prediction(1e-3, 100.0, 1.1))]
    power = composed(lines, shared=EQUAL).power_w
    assert power is not None
    assert 100 / 1.1 <= power.lower <= power.value <= power.upper <= 600
    assert power.value == pytest.approx(200)


def test_latency_errors_move_the_mean_power_of_unlike_kernels_only() -> None:
    cool, hot = (replace(prediction(1e-3, w), power_w=Interval(w, w, w)) for w in (100.0, 300.0))
    alike = composed([(gemm(1), 1, cool), (gemm(2), 1, cool)], shared=INDEPENDENT).power_w
    assert alike is not None
    assert alike.upper == pytest.approx(alike.value)
    unlike = composed([(gemm(1), 1, cool), (gemm(2), 1, hot)], shared=INDEPENDENT).power_w
    assert unlike is not None
    assert math.log(unlike.upper / unlike.value) == pytest.approx(0.25 * math.sqrt(2) * math.log(1.2))


def test_gaps_add_time_but_no_energy() -> None:
    lines = [(gemm(1), 10, prediction(1e-4, 100.0))]
    tight, gaps = composed(lines), composed(lines, launch_s=1e-4)
    assert gaps.launch_s == pytest.approx(1e-3)
    assert gaps.latency_s.value == pytest.approx(tight.latency_s.value + 1e-3)
    assert gaps.latency_s.lower > tight.latency_s.lower + 0.9e-3
    assert gaps.energy_j == tight.energy_j
    assert gaps.power_w is not None
    assert gaps.power_w.value == pytest.approx(50.0)
    assert sum(part.time_share for part in gaps.parts) == pytest.approx(1.0)


def test_shares_families_and_what_dominates() -> None:
    lines = [(softmax(1), 1, prediction(1e-4)), (gemm(1), 2, prediction(3e-4)), (gemm(2), 1, prediction(3e-4))]
    whole = composed(lines)
    assert [part.time_share for part in whole.parts] == [pytest.approx(x) for x in (0.1, 0.6, 0.3)]
    assert [(item.family, item.launches) for item in whole.families] == [("gemm", 3), ("softmax", 1)]
    assert whole.families[0].time_share == pytest.approx(0.9)
    assert whole.families[0].energy_share == pytest.approx(0.9)
    assert whole.dominant == (1, 2)


def test_notes_are_merged_with_how_many_kernels_they_are_about() -> None:
    odd = prediction(1e-3, in_domain=False, notes=("far", "odd"))
    whole = composed([(gemm(1), 1, odd), (gemm(2), 5, replace(odd, notes=("odd",))), (gemm(3), 1, prediction(1e-3))])
    assert not whole.in_domain
    assert whole.notes == ("odd (2 of 3 kernels)", "far (1 of 3 kernels)")


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2", MAX_COUNT + 1])
def test_counts_are_whole_and_positive(count: Any) -> None:
    with pytest.raises(SpecError, match="count must be") as caught:
        Kernel(gemm(1), count)
    assert caught.value.field == "count"


@pytest.mark.parametrize("launch_s", [-1e-6, 2.0, math.nan, "1", True])
def test_gaps_are_seconds(launch_s: Any) -> None:
    with pytest.raises(SpecError, match="launch_s must be"):
        composed([(gemm(1), 1, prediction(1e-3))], launch_s=launch_s)


def test_nothing_is_no_model() -> None:
    with pytest.raises(SpecError, match="at least one kernel"):
        compose([], [])


@pytest.mark.parametrize("pair", [(0.5, 0.6), (1.1, 0.5), (0.5, -0.1)])
def test_correlations_make_sense(pair: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="cross_family"):
        ErrorCorrelation(*pair)


class OneAtATime:
    """Predicts 20 µs plus 1 ms per row; trained on gemm of a T4."""

    devices = catalogue()

    def in_long_loops(self) -> OneAtATime:
        return self

    def predict(
        self, specs: Sequence[KernelSpec], devices: Sequence[str], *, coverage: float = 0.9
    ) -> list[Prediction]:
        def seconds(spec: KernelSpec) -> float:
            return 20e-6 + (0.0 if spec.family == "elementwise" else dict(spec.dims)["m"] * 1e-3)

        return [
            replace(prediction(seconds(spec)), coverage=coverage, breakdown={"launch": 1e-6},
                    regime="seen" if device == "nvidia-t4" else "unseen_device")
            for spec, device in zip(specs, devices, strict=True)
        ]  # fmt: skip


def test_a_device_never_measured_is_less_certain_as_a_whole() -> None:
    predictor: Any = OneAtATime()
    kernels = [Kernel(gemm(m)) for m in range(1, 20)]
    seen, unseen = (predict_whole(predictor, kernels, name).latency_s for name in ("nvidia-t4", "nvidia-l4"))
    assert seen.value == unseen.value
    assert unseen.upper > seen.upper
    assert unseen.lower < seen.lower


def test_a_queue_asks_for_kernels_alone() -> None:
    asked: list[str] = []

    class Recording(OneAtATime):
        def predict(
            self, specs: Sequence[KernelSpec], devices: Sequence[str], *, coverage: float = 0.9
        ) -> list[Prediction]:
            asked.extend(spec.timing for spec in specs)
            return super().predict(specs, devices, coverage=coverage)

    predictor: Any = Recording()
    kernels = [Kernel(gemm(1), 10), Kernel(replace(gemm(1), timing="call"))]
    for queued in (False, True):
        predict_whole(predictor, kernels, "nvidia-t4", queued=queued)
    assert asked == ["", "call", "device", "call"]
