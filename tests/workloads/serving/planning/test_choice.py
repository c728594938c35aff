"""Ranking, the Pareto front, and how sure a ranking is: what plans share cancels."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from kernelcast.workloads.architectures.plan import ParallelPlan
from kernelcast.workloads.architectures.step import Formats
from kernelcast.workloads.serving.planning.choice import (
    AIMS,
    COST,
    ENERGY,
    FRONT,
    LATENCY,
    SPREADS,
    pareto_front,
    probability_less,
    ranked,
    spread,
)
from kernelcast.workloads.serving.planning.space import Setting
from kernelcast.workloads.serving.planning.sweep import Candidate
from kernelcast.workloads.serving.speculation import UNMEASURED, Speculation


def candidate(cost: float, tpot_s: float, energy_j: float, *, tp: int = 1, concurrency: int = 1) -> Candidate:
    setting = Setting("nvidia-h100-sxm-80gb", ParallelPlan(tp=tp), Formats.of("bf16"), "vllm")
    return Candidate(setting, 1, concurrency, concurrency, 8192, 0.1, tpot_s, 1 / cost, energy_j, energy_j / cost, cost)


def test_the_front_is_what_no_other_beats() -> None:
    draw = random.Random(0)
    items = [candidate(*(draw.uniform(1, 2) for _ in range(3))) for _ in range(300)]
    front = pareto_front(items)

    def beats(one: Candidate, other: Candidate) -> bool:
        pairs = [(measure(one), measure(other)) for measure in FRONT]
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    assert {id(item) for item in front} == {
        id(item) for item in items if not any(beats(other, item) for other in items)
    }  # fmt: skip
    assert [item.cost_per_million_tokens for item in front] == sorted(item.cost_per_million_tokens for item in front)


def test_equals_are_on_the_front_once_and_unknown_energy_is_the_most() -> None:
    best, same = candidate(1, 1, 1), candidate(1, 1, 1)
    unknown = candidate(1, 1, math.nan)
    assert pareto_front([best, same, unknown]) == [best]
    assert pareto_front([unknown, candidate(2, 2, 1)]) == [unknown, candidate(2, 2, 1)]


def test_ranked_has_the_best_first() -> None:
    slow, fast = candidate(1, 3, 1, concurrency=8), candidate(2, 1, 1, concurrency=1)
    other = candidate(1.5, 2, math.nan, tp=2)
    items = [fast, slow, other]
    assert ranked(items, AIMS[COST]) == [slow, other, fast]
    assert ranked(items, AIMS[LATENCY]) == [fast, other, slow]
    # Of unknown energy nothing is ranked.
    assert ranked([other], AIMS[ENERGY]) == []


def test_only_what_differs_counts() -> None:
    one = candidate(1, 1, 1)
    assert spread(one, one, "throughput") == 0
    split = candidate(1, 1, 1, tp=2)
    assert spread(one, split, "tpot") == SPREADS["tpot"]["plan"]
    moved = replace(split, setting=replace(split.setting, device="nvidia-l40s", plan=ParallelPlan()))
    assert spread(one, moved, "tpot") == SPREADS["tpot"]["device"]
    both = replace(split, setting=replace(split.setting, device="nvidia-l40s"))
    assert spread(one, both, "tpot") ** 2 == pytest.approx(
        SPREADS["tpot"]["plan"] ** 2 + SPREADS["tpot"]["device"] ** 2
    )  # fmt: skip


def test_a_wider_gap_is_surer_and_both_ways_add_up() -> None:
    assert probability_less(1.0, 0.3) == pytest.approx(0.5)
    assert probability_less(0.8, 0.3) > probability_less(0.9, 0.3) > 0.5
    assert probability_less(0.8, 0.3) + probability_less(1.25, 0.3) == pytest.approx(1)
    # 90 % of a two-sided interval leaves 5 % at one side.
    assert probability_less(2.718281828**-0.3, 0.3) == pytest.approx(0.95, abs=1e-3)
    assert probability_less(0.9, 0.0) == 1


def test_guesses_make_a_ranking_less_sure() -> None:
    plain, other = candidate(1, 1, 1), candidate(1, 1, 1, tp=2)
    first, second = (
        replace(item, setting=replace(item.setting, speculation=Speculation(4, 0.7))) for item in (plain, other)
    )
    assert spread(plain, first, "tpot") == pytest.approx(SPREADS["tpot"]["speculation"])
    assert spread(first, second, "tpot") == pytest.approx(UNMEASURED * spread(plain, other, "tpot"))
    assert spread(first, first, "tpot") == 0
