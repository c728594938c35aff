"""How sure a ranking is: what plans share cancels."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernelcast.workloads.architectures.plan import ParallelPlan
from kernelcast.workloads.serving.planning.certainty import SPREADS, probability_less, spread

from .test_choice import candidate


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
