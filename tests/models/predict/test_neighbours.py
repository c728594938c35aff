"""Kernels beside each other: the laws' shape, bounds of many on a GPU, and what does not fit."""

from __future__ import annotations

from dataclasses import replace

import kernelcast
import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.predict.neighbours import (
    Colocation,
    beside_each_other,
    check_fit,
    filled_share,
    launches_of,
    law,
    memory_want,
    stream_law,
)
from kernelcast.models.predict.prediction import Interval

CPU, GPU, H200 = "amd-epyc-7003-vm-2c", "nvidia-h100-sxm-80gb", "nvidia-h200-sxm-141gb"
LARGE = KernelSpec.of("copy", "fp32", rows=2048, cols=2048, threads=1)
SMALL = KernelSpec.of("softmax", "fp32", rows=16, cols=64, threads=1)


def beside(device: str, *specs: KernelSpec, coverage: float = 0.9) -> Colocation:
    alone = kernelcast.load().predict(specs, [device] * len(specs), coverage=coverage)
    return beside_each_other(specs, alone, catalogue().get(device))


def test_the_law_is_of_a_device_with_a_source_and_leaves_small_kernels_alone() -> None:
    numbers = law()
    assert catalogue().get(numbers.devices[0]).kind == "cpu"
    assert numbers.source
    place = catalogue().get(numbers.devices[0])
    sizes = np.geomspace(1e3, 1e9, 50)
    slower = numbers.log_slowdown(memory_want(sizes, 1e10, place), memory_want(1e9, 1e10, place))
    assert (np.diff(slower) >= 0).all()
    assert slower[0] < 1e-3
    assert memory_want(1e12, 1e15, place) == 1
    assert numbers.log_slowdown(1.0, 1.0) == numbers.strength


def test_both_take_longer_and_intervals_hold_their_values() -> None:
    result = beside(CPU, LARGE, LARGE)
    for item in result.kernels:
        assert item.slowdown is not None
        assert item.latency_s is not None
        assert 1.02 < item.slowdown.value < 1.6
        assert item.latency_s.value == pytest.approx(item.alone.latency_s.value * item.slowdown.value)
        assert 1 <= item.slowdown.lower <= item.slowdown.value < item.slowdown.upper
        assert item.alone.latency_s.lower <= item.latency_s.lower * 1.001
        assert item.latency_s.upper > item.alone.latency_s.upper
    assert (result.method, result.source, result.notes) == ("law", law().source, ())
    assert result.all_shortest_s <= result.kernels[0].latency_s.value <= result.all_longest_s  # type: ignore[union-attr]


def test_two_streams_are_slowed_as_the_bandwidths_of_the_device_say() -> None:
    # A measure of its own, on the days of the pairs: what a stream got on one core, and two streams on both.
    one_b_per_s, both_b_per_s = 11.39e9, 14.85e9
    expected = 2 * one_b_per_s / both_b_per_s
    alone_s = 2 * 4 * 2048**2 / one_b_per_s
    alone = replace(
        beside(CPU, LARGE, LARGE).kernels[0].alone, latency_s=Interval(alone_s, 0.9 * alone_s, 1.1 * alone_s)
    )
    slowdown = beside_each_other([LARGE, LARGE], [alone, alone], catalogue().get(CPU)).kernels[0].slowdown
    assert slowdown is not None
    assert slowdown.value == pytest.approx(expected, rel=0.12)


def test_a_small_kernel_neither_disturbs_nor_is_disturbed() -> None:
    for item in beside(CPU, LARGE, SMALL).kernels:
        assert item.slowdown is not None
        assert item.slowdown.value < 1.001


def test_other_cpus_threads_and_numbers_of_kernels_are_said_and_have_wider_intervals() -> None:
    here, there = beside(CPU, LARGE, LARGE), beside("amd-epyc-7713", LARGE, LARGE)
    (item, *_), (other, *_) = here.kernels, there.kernels
    assert item.slowdown is not None
    assert other.slowdown is not None
    # A core of 64 asks for a small share of their memory.
    assert 1 < other.slowdown.value < item.slowdown.value
    assert other.slowdown.upper / other.slowdown.value > 1.08
    assert CPU in there.notes[0]
    more = beside("amd-epyc-7713", LARGE, LARGE, KernelSpec.of("copy", "fp32", rows=2048, cols=2048, threads=4))
    assert "one thread each" in more.notes[1]
    assert more.kernels[0].slowdown.value > other.slowdown.value  # type: ignore[union-attr]


COPY, GEMM = KernelSpec.of("copy", "fp32", rows=2048, cols=2048), KernelSpec.of("gemm", "bf16", m=512, n=512, k=512)


def test_streams_take_turns_launch_by_launch() -> None:
    numbers = stream_law()
    assert all(catalogue().get(name).kind == "gpu" for name in numbers.devices)
    # Long launches of one length: each waits for one of the other's.
    assert numbers.log_slowdown(1.0, 1, 1.0, 1) == pytest.approx(np.log(2), abs=1e-4)
    short, long = np.exp(numbers.log_slowdown(1e-4, 1, 1e-3, 1)), np.exp(numbers.log_slowdown(1e-3, 1, 1e-4, 1))
    assert 1 < long < 2 < short < 11
    # The device is shared: what one gets, the other lacks, but for the time in which neither fills it.
    assert 1 <= 1 / short + 1 / long < 1.1
    # A call of many launches waits for each of them.
    assert numbers.log_slowdown(1e-3, 100, 1e-3, 1) > numbers.log_slowdown(1e-3, 1, 1e-3, 1) + 1
    # It may wait for the last blocks of a long launch alone.
    assert np.exp(numbers.log_slowdown(1e-5, 1, 1.0, 1)) < 2 + 1 / numbers.passed


def test_a_neighbour_of_few_blocks_leaves_the_rest_of_the_device_free() -> None:
    device = catalogue().get(H200)
    few = KernelSpec.of("attention", "fp32", batch=3, heads=7, kv_heads=7, q_len=1, kv_len=15472, head_dim=192)
    many = KernelSpec.of("gemm", "bf16", m=8192, n=8192, k=8192)
    assert filled_share(few, device) < 0.2
    assert filled_share(many, device) == filled_share(COPY, device) == 1.0
    numbers = stream_law()
    room = np.exp(numbers.log_slowdown(1e-5, 1, 2e-3, 1, filled_share(few, device)))
    # Measured 1.02 to 1.29 on an H100.
    assert 1 < room < 1.3
    assert np.exp(numbers.log_slowdown(1e-5, 1, 2e-3, 1)) > 10
    (beside_few, _), (beside_many, _) = (beside(H200, COPY, other).kernels for other in (few, many))
    assert beside_few.slowdown.value < 1.3 < beside_many.slowdown.value  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("spec", "launches"),
    [
        (COPY, 1),
        (KernelSpec.of("moe", "bf16", tokens=4096, hidden=64, inter=64, topk=2, experts=4), 25),
        (KernelSpec.of("moe", "bf16", impl="torch-grouped", tokens=64, hidden=64, inter=64, topk=2, experts=4), 7),
        (KernelSpec.of("rope", "fp32", tokens=16, heads=4, head_dim=64), 1),
    ],
)
def test_launches_are_those_of_what_is_predicted(spec: KernelSpec, launches: int) -> None:
    assert launches_of(spec) == pytest.approx(launches)


def test_two_kernels_on_a_gpu_are_answered_by_a_law() -> None:
    result, there = beside(H200, COPY, GEMM), beside("nvidia-a100-sxm-80gb", COPY, GEMM)
    assert (result.method, result.source) == ("law", stream_law().source)
    assert len(result.notes) == 1
    assert "streams of one process" in result.notes[0]
    assert all(name in there.notes[0] for name in (H200, GPU))
    assert len(beside(GPU, COPY, GEMM).notes) == 1, "pairs of an H100 are in the law too"
    for item in result.kernels:
        assert item.slowdown is not None
        assert item.latency_s is not None
        assert 1 <= item.slowdown.lower <= item.slowdown.value < item.slowdown.upper
        assert (item.shortest_s, item.longest_s) == (item.latency_s.lower, item.latency_s.upper)
        assert item.latency_s.value == pytest.approx(item.alone.latency_s.value * item.slowdown.value)
    # One run of each is over after one of both in turn.
    assert result.all_longest_s == sum(item.alone.latency_s.upper for item in result.kernels)


def test_intervals_hold_that_times_alone_are_uncertain() -> None:
    certain = stream_law().deviation(np.log(beside(H200, COPY, GEMM).kernels[1].slowdown.value))  # type: ignore[union-attr]
    slowdown = beside(H200, COPY, GEMM).kernels[1].slowdown
    assert slowdown is not None
    assert np.log(slowdown.upper / slowdown.value) > 1.645 * certain


def test_more_kernels_on_a_gpu_have_bounds_and_say_so() -> None:
    result = beside(GPU, COPY, GEMM, GEMM)
    first, second, third = result.kernels
    assert (result.method, result.source) == ("bounds", None)
    assert "pairs of kernels were measured on a GPU, not more" in result.notes[0]
    assert first.slowdown is first.latency_s is None
    assert first.shortest_s == first.alone.latency_s.lower
    uppers = [item.alone.latency_s.upper for item in (first, second, third)]
    assert first.longest_s == pytest.approx(sum(uppers))
    assert result.all_longest_s == pytest.approx(sum(uppers))
    assert result.all_shortest_s == max(item.shortest_s for item in result.kernels)


@pytest.mark.parametrize(
    ("specs", "device", "field", "words"),
    [
        ([LARGE], CPU, "beside", "at least two"),
        ([LARGE, KernelSpec.of("copy", "fp32", rows=8, cols=8, threads=2)], CPU, "threads", "3 threads.*2 cores"),
        ([LARGE, KernelSpec.of("copy", "fp32", rows=8, cols=8)], CPU, "threads", "on all 2 .threads not given"),
        ([LARGE, KernelSpec.of("copy", "fp32", rows=8, cols=8, threads=1, cache_state="cold")], CPU, "cache_state", "hot"),
        ([KernelSpec.of("copy", "fp32", rows=2**16, cols=2**17)] * 2, GPU, "sizes", "137 GB together.*80 GB"),
    ],
)  # fmt: skip
def test_kernels_that_do_not_fit_are_refused(specs: list[KernelSpec], device: str, field: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as error:
        beside(device, *specs)
    assert error.value.field == field


def test_two_that_fit_are_not_refused() -> None:
    check_fit([LARGE, SMALL], catalogue().get(CPU))
