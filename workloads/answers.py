"""Predictions as the service sends them and `--json` prints them: the types of `client.answers` and its neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from ..client import answers, llm_answers
from ..client.estimate_answers import ModelSummary
from ..features.batch.categorical import Categorical
from ..features.device import Device
from ..features.kernel import KernelSpec

if TYPE_CHECKING:
    from ..features.mlir.types.graph import Module
    from ..models.predict.carbon import Electricity
    from ..models.predict.prediction import Interval, Prediction, TargetColumns
    from .architectures.facts import ModelFacts
    from .mlir.prediction import ModulePrediction
    from .serving.planning.disaggregated import Split
    from .serving.planning.fleet import Fleet
    from .serving.planning.mixed_pipeline import MixedPipeline
    from .serving.planning.planner import Choice, PlanAnswer
    from .serving.planning.question import PlanQuestion
    from .serving.planning.space import Setting
    from .serving.planning.sweep import Candidate
    from .serving.predict import Latency
    from .serving.predict import ServingPrediction as Service
    from .serving.speculation import SpeculationResult
    from .whole_model import Part, WholeModelPrediction

A = TypeVar("A", bound=msgspec.Struct)


def interval_answer(interval: Interval) -> answers.Interval:
    """A value and its interval as they are sent."""
    return answers.Interval(interval.value, interval.lower, interval.upper)


def known_interval(interval: Interval | None) -> answers.Interval | None:
    """The same for a value that may be unknown."""
    return None if interval is None else answers.Interval(interval.value, interval.lower, interval.upper)


def interval_columns(columns: TargetColumns) -> answers.Intervals:
    """Columns as lists; a NaN is encoded as null."""
    return answers.Intervals(columns.value.tolist(), columns.lower.tolist(), columns.upper.tolist())


def known_columns(columns: TargetColumns) -> answers.Intervals | None:
    """Columns as lists, None where no row is known."""
    return None if np.isnan(columns.value).all() else interval_columns(columns)


def text_column(column: Any) -> answers.Words:
    """A column of words, each word once."""
    if isinstance(column, Categorical):
        return answers.Words(list(column.words), column.code.tolist())
    number = {text: i for i, text in enumerate(dict.fromkeys(column))}
    return answers.Words(list(number), list(map(number.__getitem__, column)))


def footprint_answer(
    electricity: Electricity | None, energy_j: Interval | None, times: float = 1.0
) -> answers.Footprint | None:
    """What so many times an energy emits and costs as it is sent; None where nobody says where the electricity is from."""
    if electricity is None:
        return None
    return msgspec.convert(electricity.footprint(energy_j, times), answers.Footprint, from_attributes=True)


def prediction_answer(
    spec: KernelSpec, device: str, prediction: Prediction, electricity: Electricity | None = None
) -> answers.Prediction:
    """A prediction as it is sent."""
    latency, power, energy = prediction.latency_s, prediction.power_w, prediction.energy_j
    return answers.Prediction(
        family=spec.family,
        device=device,
        latency_s=answers.Interval(latency.value, latency.lower, latency.upper),
        power_w=None if power is None else answers.Interval(power.value, power.lower, power.upper),
        energy_j=None if energy is None else answers.Interval(energy.value, energy.lower, energy.upper),
        coverage=prediction.coverage,
        bound=prediction.bound,
        breakdown=dict(prediction.breakdown),
        method=prediction.method,
        timing=prediction.timing,
        in_domain=prediction.in_domain,
        notes=list(prediction.notes),
        footprint=None if electricity is None else footprint_answer(electricity, energy),
    )


def whole_answer(
    device: str, whole: WholeModelPrediction, electricity: Electricity | None = None
) -> answers.WholeModelPrediction:
    """A whole model on one device as it is sent."""
    return _answer(
        answers.WholeModelPrediction, whole, device=device, kernels=[_kernel_part(part) for part in whole.parts],
        footprint=footprint_answer(electricity, whole.energy_j),
    )  # fmt: skip


def _answer(kind: type[A], source: object, **fields: Any) -> A:
    """`source` as it is sent: `fields`, and its attributes for the others."""
    same_fields = {name: getattr(source, name) for name in kind.__struct_fields__ if name not in fields}
    return msgspec.convert({**same_fields, **fields}, kind, from_attributes=True)


def _kernel_part(part: Part) -> answers.KernelPart:
    run = part.prediction
    return answers.KernelPart(
        part.kernel.title, part.kernel.count, part.kernel.spec.family, interval_answer(run.latency_s),
        known_interval(run.power_w), known_interval(run.energy_j), part.time_share, part.energy_share, run.bound, run.method,
        run.in_domain, list(run.notes),
    )  # fmt: skip


def programs_answer(
    module: Module, functions: Sequence[str], predictions: Sequence[ModulePrediction]
) -> answers.Programs:
    """Predictions for one module as they are sent; `functions` are those that can be asked about."""
    return answers.Programs(
        reader=module.reader,
        refusals=[answers.ReaderRefusal(reader, reason) for reader, reason in module.refusals],
        functions=list(functions),
        answers=[program_answer(prediction) for prediction in predictions],
    )


def program_answer(prediction: ModulePrediction) -> answers.Program:
    """A program on one device as it is sent."""
    not_understood = [{"op": op, "reason": reason} for op, reason in prediction.not_understood]
    characteristics = dict(prediction.characteristics)
    return _answer(answers.Program, prediction, not_understood=not_understood, characteristics=characteristics)


def device_answer(device: Device) -> answers.Device:
    """A device with every fact and its source."""
    return msgspec.convert(device, answers.Device, from_attributes=True)


def device_line(device: Device) -> answers.Device:
    """A device in the list of all: its facts without their sources, which are three quarters of the bytes."""
    full = device_answer(device)
    tables = ("facts", "matrix_flops_per_s", "vector_flops_per_s", "measured")
    bare = {table: {name: answers.Fact(fact.value) for name, fact in getattr(full, table).items()} for table in tables}
    return msgspec.structs.replace(full, **bare)


def model_summary(facts: ModelFacts) -> ModelSummary:
    """A model as it is sent."""
    return ModelSummary(
        facts.name, facts.architecture, facts.parameters, facts.active_parameters, facts.layers, facts.hidden, facts.dtype,
        facts.weights or facts.dtype, facts.generates, facts.encoder is not None, facts.fixed_length,
        facts.max_length, facts.source,
    )  # fmt: skip


def serving_answer(
    answer: Service, price: float | None = None, electricity: Electricity | None = None
) -> llm_answers.ServingPrediction:
    """A prediction as it is sent, with a cost where the price of one device for an hour is given.

    Raises:
        SpecError: the price is no price.
    """
    request, memory = answer.request, answer.memory
    cost = None if price is None else answer.cost_per_million_tokens(price)
    of_user = None if answer.tpot_s is None else inverse(answer.tpot_s.mean)
    return llm_answers.ServingPrediction(
        model=request.facts.name, device=request.device, gpus=request.gpus,
        plan=msgspec.convert(request.plan, llm_answers.SplitPlan, from_attributes=True), replicas=request.replicas,
        engine=request.engine, engine_version=request.engine_version,
        formats=msgspec.convert(request.formats, llm_answers.NumberFormats, from_attributes=True),
        load=msgspec.convert(request.load, llm_answers.RequestLoad, from_attributes=True), ttft_s=_latency(answer.ttft_s),
        tpot_s=None if answer.tpot_s is None else _latency(answer.tpot_s),
        itl_s=None if answer.itl_s is None else _latency(answer.itl_s), e2e_s=_latency(answer.e2e_s),
        throughput_tok_s=interval_answer(answer.throughput_tok_s),
        throughput_per_gpu_tok_s=interval_answer(answer.throughput_tok_s.scaled(1 / request.gpus)),
        tokens_per_user_s=known_interval(of_user), total_tok_s=interval_answer(answer.total_tok_s),
        requests_s=interval_answer(answer.requests_s), power_w=known_interval(answer.power_w),
        energy_per_token_j=known_interval(answer.energy_per_token_j),
        energy_per_request_j=known_interval(answer.energy_per_request_j), cost_per_million_tokens=known_interval(cost),
        memory=llm_answers.ServingMemory(
            memory.weights_b, memory.cache_per_token_b, memory.activations_b, memory.device_b, memory.usable_b, answer.fitting,
            memory.host_b,
        ),
        batch=answer.batch, preemptions=answer.preemptions, speculation=_speculation(answer.speculation),
        step_parts=dict(answer.parts), coverage=answer.coverage, notes=list(answer.notes),
        footprint_per_request=footprint_answer(electricity, answer.energy_per_request_j),
        footprint_per_million_tokens=footprint_answer(electricity, answer.energy_per_token_j, 1e6),
        prefill_workers=request.prefill_workers, prefill_plan=None if not request.prefill_workers else msgspec.convert(
            request.prefill_plan, llm_answers.SplitPlan, from_attributes=True
        ),
    )  # fmt: skip


def _speculation(item: SpeculationResult | None) -> llm_answers.SpeculativeDecoding | None:
    if item is None:
        return None
    guesses = item.speculation
    return llm_answers.SpeculativeDecoding(
        guesses.tokens, guesses.acceptance, None if guesses.draft is None else guesses.draft.name,
        interval_answer(item.tokens_per_step), item.best_tokens,
    )  # fmt: skip


def inverse(interval: Interval) -> Interval | None:
    """One over an interval; None of 0."""
    return type(interval)(1 / interval.value, 1 / interval.upper, 1 / interval.lower) if interval.lower > 0 else None


def plans_answer(answer: PlanAnswer, electricity: Electricity | None = None) -> llm_answers.ServicePlans:
    """Plans as they are sent."""
    question = answer.question
    return llm_answers.ServicePlans(
        model=question.facts.name, devices=list(question.devices), gpus=question.gpus, cost_unit=question.cost_unit,
        plans=answer.plans, possible=answer.possible,
        refusals=[llm_answers.PlanRefusal(kind, item.count, item.nearest) for kind, item in answer.refusals.items()],
        choices=[_choice(item, question.price(item.plan.setting.device), electricity) for item in answer.choices],
        front=[point_answer(item, electricity) for item in answer.front],
        by_gpus=[point_answer(item, electricity) for item in answer.by_gpus],
        disaggregated=_split(answer.split), pipeline=_pipeline(answer.pipeline),
    )  # fmt: skip


def point_answer(item: Candidate, electricity: Electricity | None = None) -> llm_answers.PlanPoint:
    """A plan in closed form as it is sent."""
    setting, energy_j = item.setting, _known(item.energy_per_token_j)
    carbon_g = None if electricity is None or energy_j is None else electricity.carbon_g(energy_j, 1e6)
    return llm_answers.PlanPoint(
        setting.device, item.gpus, item.replicas, msgspec.convert(setting.plan, llm_answers.SplitPlan, from_attributes=True),
        msgspec.convert(setting.formats, llm_answers.NumberFormats, from_attributes=True), setting.engine, _guesses(setting),
        item.concurrency, item.chunk, item.ttft_s, item.tpot_s, item.throughput_tok_s, energy_j,
        _known(item.power_w), item.cost_per_million_tokens, carbon_g,
    )  # fmt: skip


def _guesses(setting: Setting) -> int:
    return 0 if setting.speculation is None else setting.speculation.tokens


def fleet_answer(question: PlanQuestion, answer: Fleet) -> llm_answers.ServiceFleet:
    """A fleet as it is sent."""
    kinds = [
        llm_answers.FleetKind(
            kind.setting.device, msgspec.convert(kind.setting.plan, llm_answers.SplitPlan, from_attributes=True),
            msgspec.convert(kind.setting.formats, llm_answers.NumberFormats, from_attributes=True), kind.setting.engine,
            _guesses(kind.setting), kind.replicas, kind.gpus, kind.capacity.tolist(), kind.shares.tolist(),
        )
        for kind in answer.kinds
    ]  # fmt: skip
    return llm_answers.ServiceFleet(
        question.facts.name, answer.gpus, question.cost_unit, answer.cost_per_hour, answer.cost_per_million_tokens,
        answer.one_kind, answer.probability,
        [msgspec.convert(bucket, llm_answers.FleetBucket, from_attributes=True) for bucket in answer.buckets], kinds,
        list(answer.notes),
    )  # fmt: skip


def _split(item: Split | None) -> llm_answers.DisaggregatedPlan | None:
    if item is None or item.service is None:
        return None
    return llm_answers.DisaggregatedPlan(
        item.decode.device, item.gpus, item.decode.engine,
        msgspec.convert(item.decode.formats, llm_answers.NumberFormats, from_attributes=True),
        msgspec.convert(item.prefill.plan, llm_answers.SplitPlan, from_attributes=True), item.prefill_workers,
        msgspec.convert(item.decode.plan, llm_answers.SplitPlan, from_attributes=True), item.decode_workers, item.concurrency,
        item.transfer_s, item.ttft_s, item.tpot_s, _latency(item.service.ttft_s), _latency(item.service.tpot_s),
        item.throughput_tok_s, _known(item.energy_per_token_j), item.cost_per_million_tokens,
    )  # fmt: skip


def _pipeline(item: MixedPipeline | None) -> llm_answers.MixedPipeline | None:
    if item is None:
        return None
    plan, setting = item.plan, item.plan.setting
    return llm_answers.MixedPipeline(
        [llm_answers.PipelineStage(stage.device, stage.layers) for stage in item.stages], setting.plan.tp, plan.replicas,
        item.devices, msgspec.convert(setting.formats, llm_answers.NumberFormats, from_attributes=True), setting.engine,
        plan.concurrency, plan.ttft_s, plan.tpot_s, _latency(item.service.ttft_s), _latency(item.service.tpot_s),
        plan.throughput_tok_s, _known(plan.energy_per_token_j), plan.cost_per_million_tokens, item.command, list(item.notes),
    )  # fmt: skip


def _choice(item: Choice, price: float, electricity: Electricity | None) -> llm_answers.PlanChoice:
    return llm_answers.PlanChoice(
        item.aim, point_answer(item.plan, electricity), serving_answer(item.service, price, electricity),
        None if item.runner_up is None else point_answer(item.runner_up, electricity), item.probability, item.command,
        list(item.notes),
    )  # fmt: skip


def _latency(item: Latency) -> llm_answers.LatencyPercentiles:
    return llm_answers.LatencyPercentiles(
        *(interval_answer(point) for point in (item.mean, item.p50, item.p90, item.p99))
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
