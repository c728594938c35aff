"""Parameters that follow from the facts, whole and on one rank."""

from __future__ import annotations

import pytest
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.architectures.plan import ParallelPlan


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen3-30b-a3b", 3.3),
        ("mixtral-8x7b", 12.9),
        ("deepseek-v3", 37.0),
        ("gpt-oss-120b", 5.1),
        ("llama-3.1-8b", 8.03),
    ],
)
def test_a_token_meets_the_published_parameters(name: str, billions: float) -> None:
    facts = model_facts(name)
    # OpenAI counts without the embedding.
    unembedded = facts.vocabulary * facts.hidden * (name == "gpt-oss-120b")
    assert (facts.active_parameters - unembedded) / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize("name", ["llama-3.1-70b", "deepseek-v3", "qwen3-next-80b-a3b", "nemotron-h-8b"])
def test_ranks_hold_the_model_between_them(name: str) -> None:
    facts = model_facts(name)
    whole, part = facts.weights_of(), facts.weights_of(ParallelPlan(tp=8))
    assert part.experts * 8 == whole.experts
    # Projections into latents are on every rank, key heads at most once each.
    assert whole.products <= part.products * 8 < 1.7 * whole.products
    assert part.total < whole.total / 4


def test_stages_hold_their_layers_and_one_end() -> None:
    facts = model_facts("llama-3.1-8b")
    whole, stage = facts.weights_of(), facts.weights_of(ParallelPlan(pp=4))
    assert stage.products == whole.products / 4
    assert stage.total < whole.total / 3
    # Of 61 layers on four stages the fullest has sixteen.
    deep = model_facts("deepseek-v3")
    assert deep.weights_of(ParallelPlan(pp=4)).experts == pytest.approx(deep.weights_of().experts * 16 / 61)


def test_experts_shared_out_over_groups_of_ranks() -> None:
    facts = model_facts("deepseek-v3")
    whole = facts.weights_of()
    assert facts.weights_of(ParallelPlan(tp=2, dp=8, ep=16)).experts == whole.experts / 16
    assert facts.weights_of(ParallelPlan(tp=2, dp=8)).experts == whole.experts / 2
