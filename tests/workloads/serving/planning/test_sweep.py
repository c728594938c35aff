"""Plans in closed form: they agree with the simulation, keep limits, and add up."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from kernelcast.workloads.serving.planning.space import Refusals, settings
from kernelcast.workloads.serving.planning.sweep import (
    SLACK,
    Candidate,
    candidates,
    keeps_times,
    load_of,
    replicas_of,
    request_of,
    under_way,
)
from kernelcast.workloads.serving.predict import ServingPredictor


def swept(service: ServingPredictor, question: Any) -> tuple[list[Candidate], Refusals]:
    refusals = Refusals()
    every = settings(question, service.predictor.devices, refusals)
    return candidates(question, replicas_of(service, question, every, refusals), refusals), refusals


def test_the_closed_form_agrees_with_the_simulation(service: ServingPredictor, ask: Any) -> None:
    question = ask(input_tokens=256, output_tokens=256)
    items, _ = swept(service, question)
    for item in [item for item in items if item.concurrency in (1, 16, 64) and item.chunk == 8192][:12]:
        load = load_of(question, item)
        answer = service.predict(request_of(question, item.setting, load, replicas=item.replicas, chunk=item.chunk))
        assert item.tpot_s == pytest.approx(answer.tpot_s.p50.value, rel=0.06)
        assert item.throughput_tok_s == pytest.approx(answer.throughput_tok_s.value, rel=0.10)
        assert answer.energy_per_token_j is not None
        assert item.energy_per_token_j == pytest.approx(answer.energy_per_token_j.value, rel=0.15)


def test_short_answers_share_steps_with_many_prompts(service: ServingPredictor, ask: Any) -> None:
    question = ask(gpus=1, input_tokens=128, output_tokens=16, weights=["bf16"])
    items, _ = swept(service, question)
    for item in [item for item in items if item.concurrency in (256, 1024) and item.chunk == 8192]:
        answer = service.predict(request_of(question, item.setting, load_of(question, item), chunk=item.chunk))
        # Waves of requests move time from their tokens to the first one, which the closed form does not see.
        request_s = item.ttft_s + item.tpot_s * (question.output_tokens - 1)
        assert request_s == pytest.approx(answer.e2e_s.mean.value, rel=0.15)
        assert item.throughput_tok_s == pytest.approx(answer.throughput_tok_s.value, rel=0.1)


def test_numbers_of_a_plan_fit_each_other(service: ServingPredictor, ask: Any) -> None:
    items, _ = swept(service, ask(prices={"h100-sxm": 3.6}))
    assert len(items) > 50
    for item in items:
        assert item.gpus == 2
        assert item.power_w == pytest.approx(item.energy_per_token_j * item.throughput_tok_s)
        assert item.power_w <= 2 * 700
        assert item.cost_per_million_tokens == pytest.approx(1e6 * 2 * 3.6 / 3600 / item.throughput_tok_s)


def test_more_requests_under_way_take_longer_and_give_more(service: ServingPredictor, ask: Any) -> None:
    items, _ = swept(service, ask(gpus=1, weights=["bf16"]))
    some = sorted((item for item in items if item.chunk == 8192), key=lambda item: item.concurrency)
    assert [item.tpot_s for item in some] == sorted(item.tpot_s for item in some)
    # How many prompts share a step is a whole number, at whose jumps a little is lost.
    for fewer, more in pairwise(some):
        assert more.throughput_tok_s > 0.95 * fewer.throughput_tok_s


def test_limits_are_kept_and_what_misses_them_is_counted(service: ServingPredictor, ask: Any) -> None:
    free, _ = swept(service, ask())
    kept, refusals = swept(service, ask(tpot_s=0.008, ttft_s=0.05))
    assert kept
    assert all(item.tpot_s <= SLACK * 0.008 and item.ttft_s <= SLACK * 0.05 for item in kept)
    assert any(keeps_times(ask(tpot_s=0.008, ttft_s=0.05), item) for item in kept)
    assert len(free) == len(kept) + refusals.kinds["tpot"].count + refusals.kinds["ttft"].count


def test_at_a_rate_as_many_replicas_as_it_needs(service: ServingPredictor, ask: Any) -> None:
    items, _ = swept(service, ask(gpus=8, rate=40.0, tpot_s=0.02))
    for item in items:
        assert item.throughput_tok_s == pytest.approx(40 * 64)
        assert item.tpot_s <= SLACK * 0.02
    fewest = min(item.gpus for item in items)
    more, _ = swept(service, ask(gpus=8, rate=200.0, tpot_s=0.02))
    assert min(item.gpus for item in more) > fewest
    none, refusals = swept(service, ask(gpus=1, rate=1e5))
    assert not none
    assert "requests/s" in refusals.kinds["load"].nearest


def test_a_load_that_has_no_room_waits(service: ServingPredictor, ask: Any) -> None:
    few, _ = swept(service, ask(gpus=1, concurrency=100.0, input_tokens=8192, weights=["bf16"]))
    many, _ = swept(service, ask(gpus=1, concurrency=10000.0, input_tokens=8192, weights=["bf16"]))
    assert min(item.ttft_s for item in many) > 20 * min(item.ttft_s for item in few)
    # What runs is limited by the cache.
    assert max(item.throughput_tok_s for item in many) < 2 * max(item.throughput_tok_s for item in few)


def test_requests_that_do_not_divide_are_shared(service: ServingPredictor, ask: Any) -> None:
    question = ask(gpus=8, concurrency=9.0, weights=["bf16"])
    items, _ = swept(service, question)
    for item in items:
        assert under_way(question, item) == 9
        answer = service.predict(request_of(question, item.setting, load_of(question, item), replicas=item.replicas))
        if item.chunk == 8192:
            assert item.throughput_tok_s == pytest.approx(answer.throughput_tok_s.value, rel=0.1)
    assert {item.concurrency for item in items if item.replicas == 5} == {2}


def test_a_power_budget_limits_replicas(service: ServingPredictor, ask: Any) -> None:
    items, _ = swept(service, ask(gpus=8, power_budget_w=1500.0))
    busiest = [item for item in items if item.concurrency == max(item.concurrency for item in items)]
    assert all(item.power_w <= 1500 for item in items)
    assert 0 < max(item.gpus for item in busiest) < 8
    none, refusals = swept(service, ask(gpus=8, power_budget_w=50.0))
    assert not none
    assert "W, of 50" in refusals.kinds["power"].nearest


def test_a_model_that_fits_nowhere_says_what_is_nearest(service: ServingPredictor, ask: Any) -> None:
    items, refusals = swept(service, ask("meta-llama/Llama-3.1-405B", gpus=2))
    assert not items
    assert "405B" in refusals.kinds["memory"].nearest
    assert "fp8" in refusals.kinds["memory"].nearest
