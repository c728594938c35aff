"""Mixed fleets: buckets of sizes, and the cheapest replicas for them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.workloads.serving.planning.fleet import MAX_BUCKETS, Bucket, buckets_of, plan_fleet
from kernelcast.workloads.serving.planning.space import Refusals
from kernelcast.workloads.serving.planning.sweep import candidates, replicas_of
from kernelcast.workloads.serving.predict import ServingPredictor

BUCKETS = (Bucket(128, 64, 0.8), Bucket(4096, 256, 0.2))


def test_buckets_keep_the_mean_and_are_few() -> None:
    random = np.random.default_rng(0)
    inputs, outputs = random.lognormal(6, 1.5, 5000) + 1, random.lognormal(5, 1, 5000) + 1
    buckets = buckets_of(inputs, outputs)
    assert len(buckets) <= MAX_BUCKETS
    assert sum(item.share for item in buckets) == pytest.approx(1)
    assert sum(item.share * item.input_tokens for item in buckets) == pytest.approx(inputs.mean())
    assert sum(item.share * item.output_tokens for item in buckets) == pytest.approx(outputs.mean())


def test_weights_are_counts() -> None:
    one = np.array([100.0, 1000.0])
    assert buckets_of(one, one, np.array([3.0, 1.0]))[0].share == pytest.approx(0.75)


@pytest.mark.parametrize("value", [math.nan, 0.0, -1.0, math.inf])
def test_what_is_no_length_is_refused(value: float) -> None:
    with pytest.raises(SpecError, match="input_tokens") as refused:
        buckets_of(np.array([1.0, value]), np.array([1.0, 1.0]))
    assert refused.value.field == "sizes"
    with pytest.raises(SpecError, match="nothing"):
        buckets_of(np.array([1.0]), np.array([1.0]), np.array([0.0]))


def test_a_fleet_serves_every_bucket_at_least_cost(service: ServingPredictor, ask: Any) -> None:
    pytest.importorskip("scipy", reason="the integer program needs the extra calibrate")
    question = ask(
        devices=("h100-sxm", "l40s"), gpus=16, rate=60.0, prices={"h100-sxm": 2.5, "l40s": 0.9}, tpot_s=0.05, ttft_s=1.0
    )  # fmt: skip
    fleet = plan_fleet(service, question, BUCKETS)
    assert fleet.gpus <= 16
    assert sum(kind.shares for kind in fleet.kinds) == pytest.approx(np.ones(2), abs=1e-6)
    for kind in fleet.kinds:
        rates = np.array([60 * bucket.share for bucket in BUCKETS])
        used = kind.shares > 1e-9
        assert (rates[used] * kind.shares[used] / kind.capacity[used]).sum() <= kind.replicas + 1e-6
    assert fleet.one_kind is not None
    assert fleet.cost_per_hour <= fleet.one_kind + 1e-9
    assert fleet.probability is None or 0.5 <= fleet.probability < 1
    tokens_s = 60 * (0.8 * 64 + 0.2 * 256)
    assert fleet.cost_per_million_tokens == pytest.approx(1e6 * fleet.cost_per_hour / 3600 / tokens_s)


def test_a_fleet_takes_no_more_of_a_kind_than_there_are(service: ServingPredictor, ask: Any) -> None:
    pytest.importorskip("scipy", reason="the integer program needs the extra calibrate")
    prices = {"h100-sxm": 9.0, "l40s": 0.9}
    free, few = (
        plan_fleet(service, ask(devices=devices, gpus=16, rate=40.0, prices=prices), BUCKETS)
        for devices in (("h100-sxm", "l40s"), ("h100-sxm", "l40s:2"))
    )
    assert sum(kind.gpus for kind in free.kinds if kind.setting.device == "nvidia-l40s") > 2
    assert 0 < sum(kind.gpus for kind in few.kinds if kind.setting.device == "nvidia-l40s") <= 2
    assert few.cost_per_hour > free.cost_per_hour


def test_replicas_of_a_fleet_keep_the_limits_exactly(service: ServingPredictor, ask: Any) -> None:
    pytest.importorskip("scipy", reason="the integer program needs the extra calibrate")
    limit_s = 0.012
    question = ask(gpus=8, rate=20.0, tpot_s=limit_s, weights=["bf16"])
    fleet = plan_fleet(service, question, (Bucket(1024, 256, 1.0),))
    alone = ask(gpus=fleet.kinds[0].setting.plan.devices, input_tokens=1024, output_tokens=256, weights=["bf16"])
    replicas = replicas_of(service, alone, [fleet.kinds[0].setting], Refusals())
    kept = [item for item in candidates(alone, replicas, Refusals()) if item.tpot_s <= limit_s]
    assert fleet.kinds[0].capacity[0] == pytest.approx(max(item.throughput_tok_s for item in kept) / 256, rel=0.01)


def test_fleets_that_cannot_be_say_why(service: ServingPredictor, ask: Any) -> None:
    pytest.importorskip("scipy", reason="the integer program needs the extra calibrate")
    with pytest.raises(SpecError, match="rate") as refused:
        plan_fleet(service, ask(), BUCKETS)
    assert refused.value.field == "rate"
    with pytest.raises(SpecError, match="do not serve 100000 requests/s") as refused:
        plan_fleet(service, ask(gpus=1, rate=1e5), BUCKETS)
    assert refused.value.field == "gpus"
    with pytest.raises(SpecError, match="tokens in and"):
        plan_fleet(service, ask(rate=1.0, ttft_s=1e-4), BUCKETS)
