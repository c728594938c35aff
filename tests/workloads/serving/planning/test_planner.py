"""Whole answers: the best of each aim keeps the limits, beats the next, and says how sure that is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import kernelcast
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.workloads.answers import plans_answer
from kernelcast.workloads.serving.planning.choice import AIMS, COST, GPUS
from kernelcast.workloads.serving.planning.planner import as_simulated, plan_service
from kernelcast.workloads.serving.predict import ServingPredictor

TWO = ("h100-sxm", "l40s")
PRICES = {"h100-sxm": 2.5, "l40s": 0.9}


def test_the_best_for_each_aim(service: ServingPredictor, ask: Any) -> None:
    question = ask(devices=TWO, prices=PRICES, tpot_s=0.02, ttft_s=0.5, engines=["vllm", "trtllm"])
    answer = plan_service(service, question)
    assert answer.plans == answer.possible + sum(item.count for item in answer.refusals.values())
    assert [choice.aim for choice in answer.choices] == ["cost", "latency", "energy", "throughput"]
    for choice in answer.choices:
        assert choice.service.tpot_s.p50.value <= 0.02
        assert choice.service.ttft_s.p50.value <= 0.5
        assert choice.runner_up is not None
        assert choice.runner_up.setting != choice.plan.setting
        assert choice.runner_up_service is not None
        measure = AIMS[choice.aim].measure
        mine = measure(as_simulated(question, choice.plan, choice.service))
        assert mine <= measure(as_simulated(question, choice.runner_up, choice.runner_up_service))
        assert choice.probability is not None
        assert 0.5 <= choice.probability <= 1
        assert choice.plan.setting.engine.replace("trtllm", "trtllm-serve") in choice.command
    cost = answer.choices[0].cost_per_million_tokens
    assert cost.lower < cost.value < cost.upper
    assert answer.front
    assert {item.gpus for item in answer.by_gpus} == {2}


def test_fewest_gpus_for_a_rate_and_limits(service: ServingPredictor, ask: Any) -> None:
    answer = plan_service(service, ask(gpus=4, rate=60.0, tpot_s=0.015))
    fewest = next(choice for choice in answer.choices if choice.aim == GPUS)
    assert fewest.plan.gpus == answer.by_gpus[0].gpus
    assert fewest.probability is None
    assert [item.gpus for item in answer.by_gpus] == sorted(item.gpus for item in answer.by_gpus)
    # The open load is simulated: as many requests are answered as come.
    assert fewest.service.requests_s.value == pytest.approx(60, rel=0.15)


def test_a_pipeline_is_an_answer_where_no_choice_keeps_the_limits_as_simulated(
    service: ServingPredictor, ask: Any
) -> None:
    question = {"devices": ("h100-sxm:1", "l40s:2"), "gpus": None, "weights": ["fp8"], "concurrency": 1.0}
    for tpot_s in (0.055, 0.06, 0.08):
        answer = plan_service(service, ask("meta-llama/Llama-3.1-70B", tpot_s=tpot_s, **question))
        assert answer.choices or answer.pipeline is not None
        if answer.choices and answer.pipeline is not None:
            least = min(choice.cost_per_million_tokens.value for choice in answer.choices)
            assert answer.pipeline.plan.cost_per_million_tokens < least


def test_limits_that_no_plan_keeps_say_the_nearest(service: ServingPredictor, ask: Any) -> None:
    with pytest.raises(SpecError, match=r"none of \d+ plans .* nearest .* s per token, of 1e-05") as refused:
        plan_service(service, ask(tpot_s=1e-5))
    assert refused.value.field == "tpot_s"
    with pytest.raises(SpecError, match="memory") as refused:
        plan_service(service, ask("meta-llama/Llama-3.1-405B", gpus=1))
    assert refused.value.field == "gpus"


def test_a_choice_keeps_limits_as_simulated_where_the_closed_form_alone_keeps_them(
    service: ServingPredictor, ask: Any
) -> None:
    # Requests of equal lengths come in waves, whose prompts wait for each other: the closed form knows none.
    answer = plan_service(service, ask(gpus=1, ttft_s=0.08, tpot_s=0.02))
    cost = answer.choices[0]
    assert cost.service.ttft_s.p50.value <= 0.08
    assert cost.service.tpot_s.p50.value <= 0.02
    assert any(item.cost_per_million_tokens < cost.plan.cost_per_million_tokens for item in answer.front)


def test_a_limit_that_only_the_closed_form_keeps_is_refused(service: ServingPredictor, ask: Any) -> None:
    question = ask(gpus=1, weights=["bf16"], concurrency=32.0)
    steady_s = min(item.ttft_s for item in plan_service(service, question).front)
    with pytest.raises(SpecError, match="miss them when simulated") as refused:
        plan_service(service, replace(question, ttft_s=1.02 * steady_s))
    assert refused.value.field == "ttft_s"


def test_a_concurrency_is_shared_by_replicas(service: ServingPredictor, ask: Any) -> None:
    answer = plan_service(service, ask(gpus=2, concurrency=16.0))
    for choice in answer.choices:
        assert choice.service.request.load.size == 16
        assert choice.plan.concurrency * choice.plan.replicas == 16
    assert {item.gpus for item in answer.by_gpus} == {1, 2}


def test_answers_of_one_token_have_no_time_per_token(service: ServingPredictor, ask: Any) -> None:
    answer = plan_service(service, ask(output_tokens=1))
    latency = next(choice for choice in answer.choices if choice.aim == "latency")
    assert latency.probability is None
    assert answer.choices[0].aim == COST


def test_the_answer_as_it_is_sent(service: ServingPredictor, ask: Any) -> None:
    sent = plans_answer(plan_service(service, ask()))
    assert sent.cost_unit == "GPU hours"
    assert sent.choices[0].service.cost_per_million_tokens is not None
    assert sent.front[0].energy_per_token_j is not None


def test_the_functions_of_the_package() -> None:
    lengths: dict[str, Any] = {"input_tokens": 256, "output_tokens": 32}
    service = kernelcast.llm_predict(
        "meta-llama/Llama-3.1-8B", "h100", concurrency=4, gpus=2, tp=2, weights="fp8", **lengths
    )
    assert service.request.plan.tp == 2
    assert service.ttft_s.p50.value > 0
    answer = kernelcast.llm_plan(
        "meta-llama/Llama-3.1-8B", ["h100"], gpus=1, engines=["vllm"], prices={"h100-sxm": 2.0}, **lengths
    )  # fmt: skip
    assert answer.question.cost_unit == "price"
    with pytest.raises(SpecError, match="say what load there is"):
        kernelcast.llm_predict("meta-llama/Llama-3.1-8B", "h100", **lengths)


def test_a_lower_limit_fits_more_replicas_into_a_budget(service: ServingPredictor, ask: Any) -> None:
    usual, limited = (
        plan_service(service, ask(power_budget_w=700.0, weights=["bf16"], **setting))
        for setting in ({}, {"power_limit_w": 300})
    )
    most = [next(item for item in answer.choices if item.aim == "throughput").service for answer in (usual, limited)]
    assert most[1].throughput_tok_s.value > most[0].throughput_tok_s.value
    assert all(choice.service.request.setting == limited.question.setting for choice in limited.choices)
