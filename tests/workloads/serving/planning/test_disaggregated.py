"""Prompts and answers on devices of their own."""

from __future__ import annotations

from typing import Any

import pytest
from kernelcast.workloads.serving.planning.disaggregated import Split, best_split
from kernelcast.workloads.serving.planning.space import Refusals, settings
from kernelcast.workloads.serving.planning.sweep import replicas_of
from kernelcast.workloads.serving.predict import ServingPredictor


def split_of(service: ServingPredictor, question: Any) -> Split | None:
    refusals = Refusals()
    every = settings(question, service.predictor.devices, refusals)
    return best_split(service, question, replicas_of(service, question, every, refusals))


def test_the_cheapest_split_keeps_the_limits(service: ServingPredictor, ask: Any) -> None:
    question = ask(gpus=4, input_tokens=4096, output_tokens=256, tpot_s=0.01, ttft_s=0.5, prices={"h100-sxm": 2.0})
    split = split_of(service, question)
    assert split is not None
    assert split.gpus <= 4
    assert split.tpot_s <= 0.01
    assert split.ttft_s <= 0.5 * (1 + 1e-9)
    assert split.cost_per_million_tokens == pytest.approx(1e6 * 2 * split.gpus / 3600 / split.throughput_tok_s)
    # 4,096 positions of 128 kB over 450 GB/s at most.
    assert 4096 * 131072 / 4.5e11 < split.transfer_s < 0.05
    assert split.energy_per_token_j > 0
    service = split.service
    assert service is not None
    assert service.ttft_s.p50.value <= 0.5
    assert split.tpot_s / 2 < service.tpot_s.p50.value <= 0.01
    # Times of prompts at random times are near the formula's; the slowest wait longer.
    assert service.ttft_s.mean.value == pytest.approx(split.ttft_s, rel=0.5)
    assert service.ttft_s.p50.value < service.ttft_s.p99.value


def test_a_tighter_first_token_serves_less(service: ServingPredictor, ask: Any) -> None:
    loose, tight = (
        split_of(service, ask(gpus=2, input_tokens=4096, ttft_s=limit, weights=["bf16"])) for limit in (2.0, 0.25)
    )  # fmt: skip
    assert loose is not None
    assert tight is not None
    assert tight.ttft_s <= 0.25 * (1 + 1e-9)
    assert tight.throughput_tok_s < loose.throughput_tok_s


def test_a_rate_takes_as_many_machines_as_it_needs(service: ServingPredictor, ask: Any) -> None:
    few, many = (split_of(service, ask(gpus=64, rate=rate, input_tokens=2048)) for rate in (5.0, 200.0))
    assert few is not None
    assert many is not None
    assert few.gpus < many.gpus <= 64
    assert many.throughput_tok_s == pytest.approx(200 * 64)


def test_what_cannot_be_split_is_none(service: ServingPredictor, ask: Any) -> None:
    assert split_of(service, ask(gpus=1)) is None
    assert split_of(service, ask(output_tokens=1)) is None
    assert split_of(service, ask(concurrency=8.0)) is None
    assert split_of(service, ask(ttft_s=1e-4)) is None
    assert split_of(service, ask(rate=1e5)) is None
