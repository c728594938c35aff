"""Replicas share loads that do not divide, and together give no more than their requests ask for."""

from __future__ import annotations

from typing import Any

import pytest
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.serving.batching.load import Load
from kernelcast.workloads.serving.predict import ServingPrediction, ServingPredictor
from kernelcast.workloads.serving.replicas import loads_of, simulated_requests
from kernelcast.workloads.serving.request import serving_request
from kernelcast.workloads.serving.service_steps import service_steps

FACTS = model_facts("llama-3.1-8b")


@pytest.fixture(scope="module")
def service() -> ServingPredictor:
    return ServingPredictor(load_predictor(default_model_dir()))


def predicted(service: ServingPredictor, device: str = "h100-sxm", **load: Any) -> ServingPrediction:
    return service.predict(
        serving_request(FACTS, device, **({"input_tokens": 1024, "output_tokens": 64} | load))  # type: ignore[arg-type]
    )


def test_shares_of_loads() -> None:
    def sizes(load: Load, replicas: int) -> list[tuple[int, float]]:
        return [(count, share.size) for count, share in loads_of(load, replicas)]

    assert sizes(Load("closed", 9, 100, 10), 8) == [(1, 2), (7, 1)]
    assert sizes(Load("static", 16, 100, 10), 8) == [(8, 2)]
    assert sizes(Load("closed", 1, 100, 10), 8) == [(1, 1)]
    assert sizes(Load("open", 2.0, 100, 10), 8) == [(8, 0.25)]
    trace = Load.of_trace([0.0, 1.0, 2.0], [1, 2, 3], [1, 1, 1])
    assert [share.trace for _, share in loads_of(trace, 2)] == [((0.0, 1, 1), (2.0, 3, 1)), ((1.0, 2, 1),)]


def test_as_many_requests_are_counted_as_are_simulated() -> None:
    assert simulated_requests(Load("closed", 1, 100, 10), 1) == 10
    assert simulated_requests(Load("closed", 9, 100, 10), 8) == 30
    assert simulated_requests(Load("closed", 5000, 100, 10), 1) == 5000
    assert simulated_requests(Load("open", 3.5, 100, 10), 2) == 1000
    assert simulated_requests(Load.of_trace([0.0, 1.0, 2.0], [1, 2, 3], [1, 1, 1]), 2) == 3


def test_replicas_without_requests_give_nothing_and_draw_idle_power(service: ServingPredictor) -> None:
    one, eight = predicted(service, concurrency=1), predicted(service, concurrency=1, gpus=8)
    assert eight.throughput_tok_s.value == pytest.approx(one.throughput_tok_s.value)
    assert eight.ttft_s == one.ttft_s
    assert one.power_w is not None
    assert eight.power_w is not None
    idle_w = service_steps(service.predictor, eight.request).resting_w
    assert eight.power_w.value == pytest.approx((one.power_w.value + 7 * idle_w) / 8)
    assert "7 of 8 replicas have no requests and draw idle power" in eight.notes


def test_a_number_that_does_not_divide_adds_up_over_replicas(service: ServingPredictor) -> None:
    one, two = (predicted(service, concurrency=size) for size in (1, 2))
    nine = predicted(service, concurrency=9, gpus=8)
    rates = [7 * one.throughput_tok_s.value, two.throughput_tok_s.value]
    assert nine.throughput_tok_s.value == pytest.approx(sum(rates))
    watts = [answer.power_w.value for answer in (one, two, nine) if answer.power_w is not None]
    assert watts[2] == pytest.approx((7 * watts[0] + watts[1]) / 8)
    means = [answer.ttft_s.mean.value for answer in (one, two)]
    assert nine.ttft_s.mean.value == pytest.approx((rates[0] * means[0] + rates[1] * means[1]) / sum(rates))
    assert any("9 requests among 8 replicas: 1 × 2 and 7 × 1" in note for note in nine.notes)


def test_a_batch_lasts_as_long_as_its_slowest_replica(service: ServingPredictor) -> None:
    three, two = predicted(service, batch=3, gpus=2), predicted(service, batch=2)
    assert three.throughput_tok_s.value == pytest.approx(1.5 * two.throughput_tok_s.value)


def test_replicas_give_no_more_than_a_trace_asks_for(service: ServingPredictor) -> None:
    sizes = [(8000, 512) if turn % 2 == 0 else (100, 32) for turn in range(100)]
    load = Load.of_trace([0.25 * turn for turn in range(100)], *zip(*sizes, strict=True))
    answer = service.predict(serving_request(FACTS, "h100-sxm", input_tokens=1, output_tokens=1, load=load, gpus=2))
    assert 0.7 * 1088 < answer.throughput_tok_s.value < 1.01 * 1088


def test_requests_wait_where_a_replica_has_no_room(service: ServingPredictor) -> None:
    long: dict[str, Any] = {"device": "l4", "gpus": 8, "input_tokens": 8192, "output_tokens": 64, "rounds": 1}
    fits, waits = predicted(service, concurrency=16, **long), predicted(service, concurrency=64, **long)
    assert not any("wait for room" in note for note in fits.notes)
    assert any(f"of a replica holds {waits.fitting} sequences" in note for note in waits.notes)


def test_answers_of_one_token_have_no_time_per_token(service: ServingPredictor) -> None:
    answer = predicted(service, concurrency=2, output_tokens=1)
    assert (answer.tpot_s, answer.itl_s) == (None, None)
    assert "a token (medians)" not in repr(answer)
