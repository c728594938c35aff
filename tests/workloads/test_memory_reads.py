"""Weights of a whole model are read from memory where they outgrow the caches."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import kernelcast
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.predict.prediction import Interval, Prediction
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.workloads.memory_reads import cache_reach, cpu_stream, streamed
from kernelcast.workloads.whole_model import Kernel, predict_whole

L40S = catalogue().get("nvidia-l40s")
SIDE = 4096
WEIGHTS_S = SIDE * SIDE * 2 / L40S.required("memory_bandwidth_b_per_s")
"""Time to read the weights of `product` from memory."""


@pytest.fixture(scope="module")
def predictor() -> ArtifactPredictor:
    return kernelcast.load()


def product(m: int, batch: int = 1) -> KernelSpec:
    return KernelSpec.of("gemm", "bf16", batch=batch, m=m, n=SIDE, k=SIDE, variant="batched" if batch > 1 else "")


def prediction(latency_s: float) -> Prediction:
    around = Interval(latency_s, latency_s / 1.2, latency_s * 1.2)
    energy = Interval(*(100.0 * end for end in (around.value, around.lower, around.upper)))
    return Prediction(
        around,
        Interval(100.0, 90.0, 110.0),
        energy,
        0.9,
        "blend",
        True,
        (),
        "cache",
        {"dram": 0.0, "cache": 1e-6},
        "seen",
    )


def test_layers_whose_weights_outgrow_the_caches_read_them_from_memory() -> None:
    cached = prediction(0.3 * WEIGHTS_S)
    (one,) = streamed([product(1)], [128], [cached], L40S)
    assert one.latency_s.lower >= WEIGHTS_S
    assert one.latency_s.lower < one.latency_s.value < one.latency_s.upper
    assert (one.bound, one.breakdown["dram"]) == ("dram", pytest.approx(WEIGHTS_S))
    assert one.power_w == cached.power_w
    assert one.energy_j is not None
    assert one.energy_j.value == pytest.approx(100.0 * one.latency_s.value)


def test_a_model_that_fits_into_the_caches_is_answered_as_measured() -> None:
    cached = prediction(0.3 * WEIGHTS_S)
    assert streamed([product(1)], [2], [cached], L40S) == [cached]


def test_what_takes_longer_than_its_weights_keeps_its_time() -> None:
    slow = prediction(50.0 * WEIGHTS_S)
    (one,) = streamed([product(8192)], [128], [slow], L40S)
    assert one.latency_s == slow.latency_s


def test_activations_count_as_no_weights() -> None:
    cached = prediction(0.3 * WEIGHTS_S)
    decode = KernelSpec.of(
        "attention",
        "bf16",
        batch=64,
        heads=32,
        kv_heads=8,
        q_len=1,
        kv_len=4096,
        head_dim=128,
        window=0,
        variant="decode",
    )
    prefill = replace(KernelSpec.of(
        "attention", "bf16", batch=64, heads=32, kv_heads=8, q_len=4096, kv_len=4096, head_dim=128, window=0,
        variant="prefill",
    ))  # fmt: skip
    batched, read, written = streamed([product(1, 8), decode, prefill], [128] * 3, [cached] * 3, L40S)
    assert batched == cached
    assert written == cached
    assert read.latency_s.value > cached.latency_s.value


ZEN3 = "amd-epyc-7003-vm-2c"


def test_a_cpu_streams_what_its_long_vectors_were_measured_to(predictor: ArtifactPredictor) -> None:
    on = predictor.devices.get(ZEN3)
    alone, both = (cpu_stream(predictor, on, threads) for threads in (1, 2))
    assert alone is not None
    assert both is not None
    assert alone.lower < alone.value < alone.upper
    # Measured: 8.4 to 14.4 GB/s on one core and 13.3 to 22.3 on two, of 29.7 in the device file.
    assert 7e9 < alone.value < 15e9
    assert alone.value < both.value < on.required("memory_bandwidth_b_per_s")


def test_only_a_cpu_that_was_measured_has_a_stream_of_its_own(predictor: ArtifactPredictor) -> None:
    devices = predictor.devices
    assert cpu_stream(predictor, devices.get("nvidia-l40s"), None) is None
    assert cpu_stream(predictor, devices.get("apple-m1-cpu"), None) is None


def test_caches_reach_as_far_as_sums_of_vectors_were_measured_fast(predictor: ArtifactPredictor) -> None:
    on = predictor.devices.get(ZEN3)
    reach = cache_reach(predictor, on, 1)
    assert reach is not None
    assert all(before <= after for before, after in pairwise(reach.shares))
    assert reach.fetched_b([(2e6, 1e6)], 1e6) < 0.1e6
    assert reach.fetched_b([(1e9, 1e6)], 1e6) > 0.9e6
    # What does not fit by itself was measured from memory.
    assert reach.fetched_b([(1e9, 1e6)], 1e9) == 0.0
    alone = prediction(1e-3)
    fetched = reach.with_fetches(alone, 1e6)
    assert fetched.latency_s.value == pytest.approx(1e-3 + 1e6 / reach.rate_b_per_s.value)
    assert fetched.latency_s.lower < fetched.latency_s.value < fetched.latency_s.upper
    assert fetched.bound == "dram"
    assert reach.with_fetches(alone, 0.0) == alone
    assert cache_reach(predictor, L40S, None) is None


def test_one_core_reads_weights_no_faster_than_it_streams(predictor: ArtifactPredictor) -> None:
    layer = KernelSpec.of("gemm", "fp32", variant="nt", batch=1, m=1, n=4096, k=4096, threads=1)
    weights_b = 32 * 4096 * 4096 * 4
    rate = cpu_stream(predictor, predictor.devices.get(ZEN3), 1)
    whole = predict_whole(predictor, [Kernel(layer, 32)], ZEN3)
    assert rate is not None
    assert whole.latency_s.value >= weights_b / rate.value * (1 - 1e-9)
    assert whole.latency_s.upper >= weights_b / rate.lower * (1 - 1e-9)
    # No run can beat what the whole memory delivers, which more cores may ask for.
    assert whole.bound_s < 0.6 * whole.latency_s.value
