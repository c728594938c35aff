"""Predictions of services and plans for them, as the service sends them and `--json` prints them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from ...client import llm_answers as sent
from ...models.predict.prediction import Interval
from ..answers import interval_answer, known_interval

if TYPE_CHECKING:
    from .planning.disaggregated import Split
    from .planning.planner import Choice, PlanAnswer
    from .planning.sweep import Candidate
    from .predict import Latency, ServingPrediction


def serving_answer(answer: ServingPrediction, price: float | None = None) -> sent.ServingPrediction:
    """A prediction as it is sent, with a cost where the price of one device for an hour is given.

    Raises:
        SpecError: the price is no price.
    """
    request, memory = answer.request, answer.memory
    cost = None if price is None else answer.cost_per_million_tokens(price)
    return sent.ServingPrediction(
        model=request.facts.name, device=request.device, gpus=request.gpus,
        plan=msgspec.convert(request.plan, sent.SplitPlan, from_attributes=True), replicas=request.replicas,
        engine=request.engine, engine_version=request.engine_version,
        formats=msgspec.convert(request.formats, sent.NumberFormats, from_attributes=True),
        load=msgspec.convert(request.load, sent.RequestLoad, from_attributes=True), ttft_s=_latency(answer.ttft_s),
        tpot_s=_latency(answer.tpot_s), itl_s=_latency(answer.itl_s), e2e_s=_latency(answer.e2e_s),
        throughput_tok_s=interval_answer(answer.throughput_tok_s),
        throughput_per_gpu_tok_s=interval_answer(answer.throughput_tok_s.scaled(1 / request.gpus)),
        tokens_per_user_s=known_interval(inverse(answer.tpot_s.mean)), total_tok_s=interval_answer(answer.total_tok_s),
        requests_s=interval_answer(answer.requests_s), power_w=known_interval(answer.power_w),
        energy_per_token_j=known_interval(answer.energy_per_token_j),
        energy_per_request_j=known_interval(answer.energy_per_request_j), cost_per_million_tokens=known_interval(cost),
        memory=sent.ServingMemory(
            memory.weights_b, memory.cache_per_token_b, memory.activations_b, memory.device_b, memory.usable_b, answer.fitting
        ),
        batch=answer.batch, step_parts=dict(answer.parts), coverage=answer.coverage, notes=list(answer.notes),
    )  # fmt: skip


def inverse(interval: Interval) -> Interval | None:
    """One over an interval; None of 0."""
    return Interval(1 / interval.value, 1 / interval.upper, 1 / interval.lower) if interval.lower > 0 else None


def plans_answer(answer: PlanAnswer) -> sent.ServicePlans:
    """Plans as they are sent."""
    question = answer.question
    return sent.ServicePlans(
        model=question.facts.name, devices=list(question.devices), gpus=question.gpus, cost_unit=question.cost_unit,
        plans=answer.plans, possible=answer.possible,
        refusals=[sent.PlanRefusal(kind, item.count, item.nearest) for kind, item in answer.refusals.items()],
        choices=[_choice(item, question.price(item.plan.setting.device)) for item in answer.choices],
        front=[point_answer(item) for item in answer.front], by_gpus=[point_answer(item) for item in answer.by_gpus],
        disaggregated=None if answer.split is None else _split(answer.split),
    )  # fmt: skip


def point_answer(item: Candidate) -> sent.PlanPoint:
    """A plan in closed form as it is sent."""
    setting = item.setting
    return sent.PlanPoint(
        setting.device, item.gpus, item.replicas, msgspec.convert(setting.plan, sent.SplitPlan, from_attributes=True),
        msgspec.convert(setting.formats, sent.NumberFormats, from_attributes=True), setting.engine, item.concurrency,
        item.chunk, item.ttft_s, item.tpot_s, item.throughput_tok_s, _known(item.energy_per_token_j), _known(item.power_w),
        item.cost_per_million_tokens,
    )  # fmt: skip


def _split(item: Split) -> sent.DisaggregatedPlan:
    return sent.DisaggregatedPlan(
        item.decode.device, item.gpus, item.decode.engine,
        msgspec.convert(item.decode.formats, sent.NumberFormats, from_attributes=True),
        msgspec.convert(item.prefill.plan, sent.SplitPlan, from_attributes=True), item.prefill_workers,
        msgspec.convert(item.decode.plan, sent.SplitPlan, from_attributes=True), item.decode_workers, item.concurrency,
        item.transfer_s, item.ttft_s, item.tpot_s, item.throughput_tok_s, _known(item.energy_per_token_j),
        item.cost_per_million_tokens,
    )  # fmt: skip


def _choice(item: Choice, price: float) -> sent.PlanChoice:
    return sent.PlanChoice(
        item.aim, point_answer(item.plan), serving_answer(item.service, price),
        None if item.runner_up is None else point_answer(item.runner_up), item.probability, item.command, list(item.notes),
    )  # fmt: skip


def _latency(item: Latency) -> sent.LatencyPercentiles:
    return sent.LatencyPercentiles(*(interval_answer(point) for point in (item.mean, item.p50, item.p90, item.p99)))


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
