"""Plans: what divides, how many devices, which ranks split experts."""

from __future__ import annotations

from typing import Any

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.architectures.plan import ParallelPlan


def test_devices_and_the_ranks_that_split_an_expert() -> None:
    plan = ParallelPlan(tp=4, pp=2, dp=2, ep=2)
    assert (plan.devices, plan.stage_ranks, plan.expert_tp) == (16, 8, 4)
    assert ParallelPlan(tp=4, dp=2).expert_tp == 4
    assert ParallelPlan(tp=4, dp=2, ep=8).expert_tp == 1


@pytest.mark.parametrize(
    ("sizes", "field"),
    [
        ({"tp": 0}, "tp"),
        ({"tp": True}, "tp"),
        ({"pp": 1.5}, "pp"),
        ({"tp": 2, "ep": 4}, "ep"),
        ({"tp": 4096, "pp": 2}, "plan"),
    ],
)
def test_impossible_plans_are_refused(sizes: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        ParallelPlan(**sizes)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("model", "plan", "field", "size"),
    [
        ("llama-3.1-8b", ParallelPlan(tp=3), "tp", "32 attention heads; use 2 or 4"),
        ("qwen2.5-7b", ParallelPlan(tp=8), "tp", "28 attention heads"),
        ("llama-3.1-8b", ParallelPlan(pp=33), "pp", "32 layers"),
        ("llama-3.1-8b", ParallelPlan(tp=2, ep=2), "ep", "no experts"),
        ("mixtral-8x7b", ParallelPlan(tp=16, ep=16), "ep", "8 experts"),
        ("deepseek-v3", ParallelPlan(tp=256), "tp", "128 attention heads"),
        ("whisper-large-v3", ParallelPlan(pp=2), "pp", "encoder"),
        ("mamba-codestral-7b", ParallelPlan(tp=3), "tp", "128 state-space heads"),
    ],
)  # fmt: skip
def test_a_model_refuses_a_plan_by_the_size_that_does_not_divide(
    model: str, plan: ParallelPlan, field: str, size: str
) -> None:
    with pytest.raises(SpecError, match=size) as refused:
        model_facts(model).check_plan(plan)
    assert refused.value.field == field


def test_more_ranks_than_key_heads_are_a_multiple_of_them() -> None:
    facts = model_facts("llama-3.1-70b")
    facts.check_plan(ParallelPlan(tp=16))
    with pytest.raises(SpecError, match="key and value heads"):
        model_facts("qwen2.5-0.5b").check_plan(ParallelPlan(tp=7))
