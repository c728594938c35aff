"""Continuous batching: what is sent is answered, in the order and times that the steps give; and it is fast."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.workloads.serving.batching.simulation import (
    Arrivals,
    Scheduling,
    Service,
    lengths,
    poisson,
    simulate,
    weighted_quantiles,
)

from .test_step_table import table

HOW = Scheduling(chunk=2048, sequences=256, cache_tokens=1e6)


def closed(count: int, concurrency: int, inputs: int = 512, outputs: int = 64, how: Scheduling = HOW) -> Service:
    return simulate(table(), Arrivals(np.full(count, inputs), np.full(count, outputs), None, concurrency), how)


def test_a_lone_request_takes_its_steps() -> None:
    service, steps = closed(1, 1), table()
    assert service.first_s[0] == pytest.approx(steps.mixed(0, 0, [(512, 0)]))
    assert service.last_s[0] - service.first_s[0] == pytest.approx(
        sum(steps.decoding(1)(512 + i) for i in range(63)), rel=1e-6
    )
    assert service.steps == 64


@pytest.mark.parametrize(
    "how", [HOW, Scheduling(2048, 256, 1e6, mixes=False), Scheduling(2048, 256, 1e6, splits=False)]
)
def test_every_request_is_answered_after_it_is_sent(how: Scheduling) -> None:
    service = closed(50, 8, how=how)
    assert np.all(service.first_s > service.sent_s)
    assert np.all(service.last_s > service.first_s)
    assert service.weights.sum() == pytest.approx(50 * 63)
    assert service.duration_s == pytest.approx(service.last_s.max())


def test_no_more_run_than_the_cache_holds() -> None:
    room_for_four = Scheduling(2048, 256, 4 * 576)
    assert closed(40, 16, how=room_for_four).tokens <= 4
    assert closed(40, 16).tokens > 4


def test_the_youngest_is_preempted_where_the_cache_is_full_and_computed_again() -> None:
    # Both prompts fit, and some 20 tokens of each answer.
    room, steps = 2 * 512 + 40, table()
    service = closed(2, 2, how=replace(HOW, cache_tokens=room, reserved=0.0))
    assert service.preemptions == 1
    # The one admitted first is answered as if nothing had happened: some of its steps are of two sequences.
    together = 20
    alone_s = [steps.decoding(1)(512 + i) for i in range(together, 63)]
    both_s = [steps.decoding(2)(512 + i) for i in range(together)]
    assert service.last_s[0] - service.first_s[0] == pytest.approx(sum(both_s) + sum(alone_s), rel=1e-3)
    # The other waits for it, computes its prompt and 21 tokens again, of which the last gives the next token, and goes on.
    again_s = steps.mixed(0, 0, [(512 + together + 1, 0)])
    rest_s = [steps.decoding(1)(512 + i) for i in range(together + 1, 63)]
    assert service.last_s[1] - service.last_s[0] == pytest.approx(again_s + sum(rest_s), rel=1e-3)
    assert service.weights.sum() == pytest.approx(2 * 63)
    assert service.gaps_s.max() == pytest.approx(sum(alone_s) + again_s, rel=1e-3)


@pytest.mark.parametrize("mixes", [True, False])
@pytest.mark.parametrize("reserved", [0.0, 0.1, 0.5])
def test_a_cache_that_is_often_full_answers_every_request(mixes: bool, reserved: float) -> None:
    how = replace(HOW, cache_tokens=4 * 576, reserved=reserved, mixes=mixes, chunk=700, cached=0.2)
    random = np.random.default_rng(0)
    sent = np.sort(random.uniform(0, 0.5, 60))
    arrivals = Arrivals(random.integers(16, 512, 60), random.integers(1, 64, 60), sent)
    service = simulate(table(), arrivals, how)
    assert np.all(service.last_s >= service.first_s)
    assert np.all(service.first_s > sent)
    assert service.weights.sum() == pytest.approx((arrivals.outputs - 1).sum())
    burst = closed(60, 30, 100, 400, how)
    assert burst.preemptions > 0
    assert burst.weights.sum() == pytest.approx(60 * 399)


def test_nothing_is_preempted_where_all_have_room() -> None:
    unlimited = closed(64, 16, how=replace(HOW, cache_tokens=float("inf"), reserved=0.0))
    exact = closed(64, 16, how=replace(HOW, cache_tokens=16 * 576, reserved=0.0))
    assert exact.preemptions == 0
    assert exact.last_s == pytest.approx(unlimited.last_s)
    assert closed(64, 16, how=replace(HOW, cache_tokens=5 * 576)).preemptions == 0


def test_requests_come_after_a_delay_and_a_step_late() -> None:
    steps = table()
    late = closed(1, 1, how=replace(HOW, between_s=0.5))
    assert late.first_s[0] == pytest.approx(0.5 + steps.mixed(0, 0, [(512, 0)]))
    assert late.busy_s == pytest.approx(late.duration_s - 0.5)
    # The second comes while the first decodes; what is formed ahead takes it a step later.
    arrivals = Arrivals(np.full(2, 512), np.full(2, 64), np.array([0.0, steps.mixed(0, 0, [(512, 0)]) + 1e-9]))
    at_once, ahead = (simulate(steps, arrivals, replace(HOW, ahead=ahead)).first_s[1] for ahead in (False, True))
    assert ahead - at_once == pytest.approx(steps.decoding(1)(513), rel=0.02)


def test_a_sequence_that_never_fits_is_refused() -> None:
    with pytest.raises(SpecError, match="576 tokens does not fit") as refused:
        closed(1, 1, how=Scheduling(2048, 256, 500))
    assert refused.value.field == "memory"


def test_requests_that_come_too_fast_are_an_overload() -> None:
    def overload(rate: float) -> float:
        at_s = np.arange(400) / rate
        return simulate(table(), Arrivals(np.full(400, 512), np.full(400, 64), at_s), HOW).overload

    most = closed(400, 256)
    served = 400 / most.duration_s
    assert overload(served / 4) == pytest.approx(1, abs=0.02)
    assert overload(2 * served) > 1.5
    assert closed(4, 4).overload == 1


def test_the_opening_burst_waits_longer_than_later_rounds() -> None:
    service = closed(160, 16)
    waits = service.first_s - service.sent_s
    assert waits[:16].mean() > 2 * waits[32:].mean()


def test_prompts_first_stall_the_others() -> None:
    mixed, first = (closed(64, 16, how=Scheduling(2048, 256, 1e6, mixes=mixes)) for mixes in (True, False))
    assert (
        weighted_quantiles(first.gaps_s, first.weights, [1.0])[0]
        > weighted_quantiles(mixed.gaps_s, mixed.weights, [0.5])[0]
    )


def test_a_cached_prefix_is_not_computed() -> None:
    assert closed(16, 4, how=Scheduling(2048, 256, 1e6, cached=0.9)).busy_s < 0.8 * closed(16, 4).busy_s


def test_arrivals_at_a_low_rate_do_not_wait() -> None:
    random = np.random.default_rng(1)
    sent = poisson(0.5, 40, random)
    service = simulate(table(), Arrivals(np.full(40, 512), np.full(40, 16), sent), HOW)
    assert np.median(service.first_s - service.sent_s) == pytest.approx(table().mixed(0, 0, [(512, 0)]), rel=0.01)
    assert service.duration_s > 60


def test_lengths_are_spread_about_their_mean() -> None:
    drawn = lengths(1000, 0.2, 2000, np.random.default_rng(0))
    assert drawn.min() >= 800
    assert drawn.max() <= 1200
    assert drawn.mean() == pytest.approx(1000, rel=0.02)


def test_two_hundred_thousand_steps_a_second() -> None:
    random, steps = np.random.default_rng(0), table()
    arrivals = Arrivals(lengths(1024, 0.1, 400, random), lengths(1024, 0.1, 400, random), None, 32)
    best = 0.0
    for _ in range(3):
        start = time.process_time()
        service = simulate(steps, arrivals, HOW)
        best = max(best, service.steps / (time.process_time() - start))
    assert best >= 200_000


def test_requests_that_bring_their_prompts_are_only_decoded() -> None:
    steps, how = table(), replace(HOW, decode_only=True)
    service = simulate(steps, Arrivals(np.full(1, 512), np.full(1, 64), np.zeros(1)), how)
    assert service.last_s[0] == pytest.approx(sum(steps.decoding(1)(512 + i) for i in range(63)), rel=1e-6)
    assert service.steps == 63
    room = replace(how, cache_tokens=2 * 576)
    many = simulate(steps, Arrivals(np.full(4, 512), np.full(4, 64), np.zeros(4)), room)
    assert many.last_s[3] > many.last_s[0]
    assert many.tokens <= 2
