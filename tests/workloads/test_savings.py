"""Differences of two runs on one device: kernels that both run are off by the same."""

from __future__ import annotations

import kernelcast
import pytest
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.predict.prediction import Interval
from kernelcast.workloads.savings import Saving, saved_time, worthwhile
from kernelcast.workloads.whole_model import Kernel, predict_whole


def test_the_same_run_saves_nothing_for_certain_and_half_of_it_half() -> None:
    predictor = kernelcast.load()
    kernels = [
        Kernel(KernelSpec.of("gemm", "bf16", m=512, n=size, k=4096, timing="device"), 8) for size in (1024, 4096)
    ]
    whole = predict_whole(predictor, kernels, "h200")
    none = saved_time(whole.parts, whole.parts)
    assert (none.value, none.lower, none.upper) == pytest.approx((0.0, 0.0, 0.0), abs=1e-15)
    half = saved_time(whole.parts, whole.parts, 0.5)
    assert half.value == pytest.approx(whole.latency_s.value / 2)
    assert 0 < half.lower < half.value < half.upper
    other = predict_whole(predictor, [Kernel(kernels[0].spec, 8)], "h200")
    saved = saved_time(whole.parts, other.parts)
    assert saved.value == pytest.approx(whole.latency_s.value - other.latency_s.value)
    # The kernel that both run cancels: what is left is as sure as the other kernel alone.
    alone = whole.parts[1].prediction.latency_s
    assert saved.upper - saved.value == pytest.approx(8 * (alone.upper - alone.lower) / 2, rel=1e-6)


def test_only_what_saves_something_is_listed_the_largest_first() -> None:
    items = [Saving("weights", "w", Interval(share, 0, share), share) for share in (0.2, 0.001, -0.3, 0.5)]
    assert [item.share for item in worthwhile(items)] == [0.5, 0.2]
