"""Which choices of a list stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from kernelcast.plugins.inductor.choices import ChoiceSpec, Surroundings, product_of, read
from kernelcast.plugins.inductor.ranking import FAILURES, MARGIN, ChoiceHistory, Decision, Measured, decide

STACK = "torch 2.13.0"
TILES = [(16, 16, 16), (32, 32, 16), (64, 64, 16), (128, 128, 16)]


def readings_of(choices: list[Any]) -> list[ChoiceSpec]:
    product = product_of(choices, Surroundings())
    assert product is not None
    return [read(choice, product, Surroundings()) for choice in choices]


def measured(reading: ChoiceSpec, latency_s: float | None, stack: str = STACK) -> Measured:
    assert reading.spec is not None
    return Measured(reading.spec, "gpu", "ok" if latency_s else "failed", latency_s, "", stack, "now")


def backwards(group: Sequence[ChoiceSpec]) -> Sequence[int]:
    """A model that likes the last best."""
    return list(range(len(group)))[::-1]


def unknown(group: Sequence[ChoiceSpec]) -> Sequence[int] | None:
    return None


def judge(readings: list[ChoiceSpec], memory: ChoiceHistory, rank: Any = backwards, *, top_k: int = 2, keep_extern: bool = True,
          on_cpu: bool = False) -> Any:  # fmt: skip
    return decide(readings, memory, rank, top_k=top_k, keep_extern=keep_extern, on_cpu=on_cpu)


def test_the_models_best_stay_in_inductors_order_beside_the_library(make: Any) -> None:
    decision = judge(readings_of(make.mm_list(64, 64, 64, TILES)), ChoiceHistory(STACK))
    assert decision.positions == (0, 3, 4)
    assert (decision.by_model, decision.by_memory, decision.by_failure) == (2, 0, 0)


def test_without_a_model_everything_stays(make: Any) -> None:
    assert judge(readings_of(make.mm_list(64, 64, 64, TILES)), ChoiceHistory(STACK), unknown).positions == (
        0,
        1,
        2,
        3,
        4,
    )


def test_a_list_no_longer_than_asked_for_is_not_ranked(make: Any) -> None:
    def never(group: Sequence[ChoiceSpec]) -> Sequence[int]:
        raise AssertionError("nothing to rank")

    assert judge(readings_of(make.mm_list(64, 64, 64, TILES)), ChoiceHistory(STACK), never, top_k=4).by_model == 0


def test_once_enough_were_measured_their_times_decide(make: Any) -> None:
    readings = readings_of(make.mm_list(64, 64, 64, TILES))
    memory = ChoiceHistory(STACK)
    memory.learn([measured(readings[1], 3e-6), measured(readings[3], 2e-6), measured(readings[4], 4e-6 * MARGIN)])
    decision = judge(readings, memory)
    assert decision.positions == (0, 1, 3)
    assert (decision.by_model, decision.by_memory) == (0, 2)


def test_too_few_measured_ones_do_not_keep_the_model_from_trying_others(make: Any) -> None:
    readings = readings_of(make.mm_list(64, 64, 64, TILES))
    memory = ChoiceHistory(STACK)
    memory.learn([measured(readings[1], 3e-6)])
    assert judge(readings, memory).positions == (0, 3, 4)


def test_times_of_other_versions_decide_nothing(make: Any) -> None:
    readings = readings_of(make.mm_list(64, 64, 64, TILES))
    memory = ChoiceHistory("torch 2.14.0")
    memory.learn([measured(reading, 1e-6) for reading in readings[:3]] + [measured(readings[4], None)] * FAILURES)
    assert judge(readings, memory).positions == (0, 3, 4)


def test_one_failure_may_be_an_accident_and_two_are_not(make: Any) -> None:
    readings = readings_of(make.mm_list(64, 64, 64, TILES))
    memory = ChoiceHistory(STACK)
    memory.learn([measured(readings[4], None)])
    assert judge(readings, memory).positions == (0, 3, 4)
    memory.learn([measured(readings[4], None)])
    decision = judge(readings, memory)
    assert decision.positions == (0, 2, 3)
    assert (decision.by_failure, decision.by_model) == (1, 1)


def test_what_ran_once_is_not_given_up_for_failures(make: Any) -> None:
    readings = readings_of(make.mm_list(64, 64, 64, TILES[:1]))
    memory = ChoiceHistory(STACK)
    memory.learn([measured(readings[1], None), measured(readings[1], None), measured(readings[1], 1e-6)])
    assert judge(readings, memory).positions == (0, 1)


def test_a_failing_list_without_a_library_call_is_left_as_it_is(make: Any) -> None:
    readings = readings_of(make.mm_list(64, 64, 64, TILES))[1:]
    memory = ChoiceHistory(STACK)
    memory.learn([measured(reading, None) for reading in readings] * FAILURES)
    decision = judge(readings, memory)
    assert decision == Decision((0, 1, 2, 3))


def test_library_calls_go_only_when_asked_and_a_template_stays(make: Any) -> None:
    readings = readings_of(make.mm_list(64, 64, 64, TILES))
    assert judge(readings, ChoiceHistory(STACK), keep_extern=False).positions == (3, 4)
    memory = ChoiceHistory(STACK)
    memory.learn([measured(reading, None) for reading in readings[1:]] * FAILURES)
    assert judge(readings, memory, keep_extern=False).positions == (0,)


@pytest.mark.parametrize(("times_slower", "kept"), [(MARGIN * 1.01, (1,)), (MARGIN * 0.99, (0, 1)), (0.1, (0, 1))])
def test_on_a_cpu_a_template_goes_that_lost_clearly_to_the_library(make: Any, times_slower: float, kept: Any) -> None:
    readings = readings_of(make.cpu_list(48, 80, 96))
    memory = ChoiceHistory(STACK)
    memory.learn([measured(readings[0], times_slower * 1e-5), measured(readings[1], 1e-5)])
    assert judge(readings, memory, unknown, on_cpu=True).positions == kept


def test_on_a_gpu_the_library_being_faster_drops_no_template_as_it_may_take_in_what_follows(make: Any) -> None:
    readings = readings_of(make.mm_list(64, 64, 64, TILES[:2]))
    memory = ChoiceHistory(STACK)
    memory.learn([measured(readings[0], 1e-6), measured(readings[1], 5e-6), measured(readings[2], 6e-6)])
    assert judge(readings, memory).positions == (0, 1, 2)


def test_templates_whose_knobs_cannot_be_read_stay(make: Any) -> None:
    choices = make.mm_list(64, 64, 64, TILES)
    choices[1].log_info["tile_shape"] = "unknown"
    assert judge(readings_of(choices), ChoiceHistory(STACK)).positions == (0, 1, 3, 4)


def test_the_least_of_repeated_times_counts(make: Any) -> None:
    readings = readings_of(make.cpu_list(48, 80, 96))
    memory = ChoiceHistory(STACK)
    memory.learn([measured(readings[0], 9e-5), measured(readings[1], 1e-5), measured(readings[0], 1e-5)])
    assert judge(readings, memory, unknown, on_cpu=True).positions == (0, 1)


def test_each_size_hint_has_its_own_best(make: Any) -> None:
    readings = readings_of(make.mm_list(64, 64, 64, TILES))
    both = readings + [replace(reading, hint=4096) for reading in readings[1:]]
    assert judge(both, ChoiceHistory(STACK), top_k=1).positions == (0, 4, 8)
