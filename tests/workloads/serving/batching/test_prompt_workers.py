"""Prompts and answers on workers of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from kernelcast.features.batch.cases import Floats
from kernelcast.workloads.architectures.step import Step
from kernelcast.workloads.serving.batching.prompt_workers import Workers, simulate_apart
from kernelcast.workloads.serving.batching.simulation import Arrivals, Scheduling
from kernelcast.workloads.serving.batching.step_table import StepTable


class _Linear:
    """Steps of 10 ms, and 10 µs for each new token of a prompt; 1 J each."""

    def seconds(self, steps: Sequence[Step]) -> tuple[Floats, Floats, Floats]:
        value = np.array(
            [
                0.01 + sum(1e-5 * group.count * group.new_tokens * (not group.decodes) for group in step)
                for step in steps
            ]
        )
        return value, value, value

    def energy_j(self, steps: Sequence[Step]) -> Floats:
        return np.ones(len(steps))


def workers(count: int) -> Workers:
    table = StepTable(_Linear(), batch=64, length=4096, prompt=2048, chunk=8192)
    return Workers(count, table, Scheduling(chunk=8192, sequences=64, cache_tokens=1e9))


def arrivals(gap_s: float, count: int = 24) -> Arrivals:
    inputs, outputs = np.full(count, 1000), np.full(count, 11)
    return Arrivals(inputs, outputs, gap_s * np.arange(count, dtype=np.float64))


def test_a_request_takes_its_prompt_its_transfer_and_its_steps() -> None:
    runs, work = simulate_apart(workers(1), workers(1), arrivals(1.0), np.full(24, 0.005))
    ((rows, run),) = runs
    assert sorted(rows.tolist()) == list(range(24))
    assert run.first_s - run.sent_s == pytest.approx(np.full(24, 0.02), rel=0.02)
    # The transfer, and ten steps.
    assert run.last_s - run.first_s == pytest.approx(np.full(24, 0.005 + 0.1), rel=0.02)
    assert work.steps == 24
    assert work.busy_s == pytest.approx(24 * 0.02, rel=0.02)
    assert work.energy_j == pytest.approx(24, rel=0.02)


def test_every_request_is_answered_once_by_some_worker() -> None:
    runs, _ = simulate_apart(workers(3), workers(2), arrivals(0.004), np.zeros(24))
    assert sorted(row for rows, _ in runs for row in rows.tolist()) == list(range(24))
    for _, run in runs:
        assert (run.sent_s < run.first_s).all()
        assert (run.first_s < run.last_s).all()


def test_prompts_wait_for_each_other_and_not_for_answers() -> None:
    few, many = (simulate_apart(workers(count), workers(1), arrivals(0.004), np.zeros(24))[0][0][1] for count in (1, 8))
    assert (few.first_s - few.sent_s).mean() > 2 * (many.first_s - many.sent_s).mean()


def test_gaps_have_the_transfer_and_the_wait_for_a_place() -> None:
    ((_, run),), _ = simulate_apart(workers(8), workers(1), arrivals(0.004), np.full(24, 0.3))
    mean_s = float(run.gaps_s @ run.weights / run.weights.sum())
    assert mean_s == pytest.approx(float(((run.last_s - run.first_s) / (run.outputs - 1)).mean()), rel=0.01)
    assert run.gaps_s.max() > 0.3


def test_answers_that_wait_ever_longer_are_an_overload() -> None:
    narrow = workers(1)
    one = Workers(1, narrow.table, replace(narrow.how, sequences=1))
    ((_, run),), _ = simulate_apart(workers(8), one, arrivals(0.05, 200), np.zeros(200))
    # An answer takes 0.1 s, and one comes every 0.05.
    assert run.overload == pytest.approx(2, rel=0.1)
    ((_, calm),), _ = simulate_apart(workers(8), workers(1), arrivals(0.05, 200), np.zeros(200))
    assert calm.overload < 1.05


def test_answers_of_one_token_end_with_their_prompt() -> None:
    alone = Arrivals(np.full(4, 1000), np.ones(4, dtype=np.int64), np.arange(4.0))
    ((_, run),), _ = simulate_apart(workers(1), workers(1), alone, np.full(4, 0.5))
    assert run.last_s == pytest.approx(run.first_s)


def test_requests_without_times_are_no_question() -> None:
    with pytest.raises(ValueError, match="have times"):
        simulate_apart(
            workers(1),
            workers(1),
            Arrivals(np.ones(2, dtype=np.int64), np.ones(2, dtype=np.int64), None, 2),
            np.zeros(2),
        )
