"""What a step of a model costs on a device: latency, power and energy with intervals, tokens per second, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...features.errors import SpecError
from ...models.predict.prediction import Interval, Prediction
from ...models.predict.predictor import ArtifactPredictor
from ..streamed_weights import streamed, weights_b
from ..whole_model import WholeModelPrediction, compose
from .facts import ModelFacts
from .forward import forward
from .kernel_list import ROUTING, StandIn
from .memory import Memory, memory
from .plan import ONE_DEVICE, Collective, ParallelPlan
from .step import Formats, Step

HOST_NOTE = "the host's share of a step (scheduling, launches that nothing hides) is not included"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A step of a model on the devices of a plan, each of one kind.

    Attributes:
        facts: The model.
        device: Name of the device.
        step: What runs.
        plan: How the model is split.
        formats: Number formats.
        whole: Latency of the step, and power and energy of one rank through all stages, kernel by kernel.
        tokens_per_s: New tokens of all sequences in a second, one step after the other.
        energy_per_token_j: Energy of all devices per new token, without what they draw while they wait; None where it is
            unknown.
        memory: Memory of the fullest device.
        collectives: What ranks send each other, which `whole` does not include.
        notes: What to know of the estimate, beside the notes of `whole`.
    """

    facts: ModelFacts
    device: str
    step: Step
    plan: ParallelPlan
    formats: Formats
    whole: WholeModelPrediction
    tokens_per_s: Interval
    energy_per_token_j: Interval | None
    memory: Memory
    collectives: tuple[Collective, ...]
    notes: tuple[str, ...]


def estimate(
    predictor: ArtifactPredictor, facts: ModelFacts, step: Step, device: str, *, formats: Formats | None = None,
    plan: ParallelPlan = ONE_DEVICE, impl: str = "", threads: int | None = None, fused_attention: bool = True,
    routing: str = ROUTING, coverage: float = 0.9,
) -> Estimate:  # fmt: skip
    """What a step of a model costs; arguments and errors are those of `estimate_steps`."""
    return estimate_steps(
        predictor, facts, [step], device, formats=formats, plan=plan, impl=impl, threads=threads,
        fused_attention=fused_attention, routing=routing, coverage=coverage,
    )[0]  # fmt: skip


def estimate_steps(
    predictor: ArtifactPredictor, facts: ModelFacts, steps: Sequence[Step], device: str, *, formats: Formats | None = None,
    plan: ParallelPlan = ONE_DEVICE, impl: str = "", threads: int | None = None, fused_attention: bool = True,
    routing: str = ROUTING, coverage: float = 0.9,
) -> list[Estimate]:  # fmt: skip
    """What each of several steps of a model costs; kernels that steps have in common are predicted once.

    Args:
        predictor: a trained model.
        facts: the model.
        steps: what all devices together work on in each.
        device: the device's name in the catalogue.
        formats: number formats; default: those of the model.
        plan: how the model is split.
        impl: what runs products, attention and experts, such as `vllm-0.24.0`; empty: the usual one.
        threads: threads of a CPU; None is all.
        fused_attention: whether attention is one kernel.
        routing: how evenly tokens choose experts, a variant of `moe`.
        coverage: share of cases the intervals are built to contain.

    Raises:
        SpecError: the model cannot run a step, the plan cannot split it, or a kernel cannot be predicted.
    """
    on = predictor.devices.get(device)
    if threads is not None and on.kind == "gpu":
        raise SpecError(f"{on.name} is a GPU; threads are those of a CPU", field="threads")
    formats = formats_of(facts) if formats is None else formats
    runs = [
        forward(facts, step, formats, plan, device=on, impl=impl, threads=threads, fused_attention=fused_attention,
                routing=routing)
        for step in steps
    ]  # fmt: skip
    specs = list(dict.fromkeys(kernel.spec for run in runs for kernel in run.kernels))
    by_spec = dict(zip(specs, predictor.predict(specs, [on.name] * len(specs), coverage=coverage), strict=True))
    read_b = dict(zip(specs, weights_b(specs, on).tolist(), strict=True))
    results = []
    for step, run in zip(steps, runs, strict=True):
        single = [by_spec[kernel.spec] for kernel in run.kernels]
        parts = streamed(
            [k.spec for k in run.kernels], [k.count for k in run.kernels], single, on,
            np.array([read_b[kernel.spec] for kernel in run.kernels]),
        )  # fmt: skip
        predictions = [
            _read_as(prediction, run.stand_ins.get(kernel.name))
            for kernel, prediction in zip(run.kernels, parts, strict=True)
        ]
        whole = compose(run.kernels, predictions)
        results.append(Estimate(
            facts=facts, device=on.name, step=step, plan=plan, formats=formats, whole=whole,
            tokens_per_s=_rate(step.tokens, whole.latency_s),
            energy_per_token_j=None if whole.energy_j is None else whole.energy_j.scaled(plan.stage_ranks / step.tokens),
            memory=memory(facts, step, formats, plan, on), collectives=run.collectives,
            notes=tuple(_notes(facts, step, plan, run.stand_ins, run.collectives)),
        ))  # fmt: skip
    return results


def formats_of(
    facts: ModelFacts, *, dtype: str | None = None, weights: str | None = None, kv: str | None = None
) -> Formats:
    """A model's number formats, with some of them given; given weights are those of the experts too.

    Raises:
        SpecError: one is unknown, or not one of those possible in its place.
    """
    if weights is not None:
        return Formats.of(dtype or facts.dtype, weights=weights, kv=kv)
    return Formats.of(dtype or facts.dtype, weights=facts.weights, experts=facts.experts, kv=kv)


def _read_as(prediction: Prediction, stands_for: StandIn | None) -> Prediction:
    """A prediction with the wider interval and the remark of a stand-in."""
    if stands_for is None:
        return prediction
    return replace(
        prediction, latency_s=_wider(prediction.latency_s, stands_for.factor),
        energy_j=None if prediction.energy_j is None else _wider(prediction.energy_j, stands_for.factor),
        notes=(*prediction.notes, stands_for.reason),
    )  # fmt: skip


def _wider(interval: Interval, factor: float) -> Interval:
    return Interval(interval.value, interval.lower / factor, interval.upper * factor)


def _rate(tokens: int, latency_s: Interval) -> Interval:
    return Interval(tokens / latency_s.value, tokens / latency_s.upper, tokens / latency_s.lower)


def _notes(
    facts: ModelFacts,
    step: Step,
    plan: ParallelPlan,
    stand_ins: Mapping[str, StandIn],
    collectives: tuple[Collective, ...],
) -> list[str]:
    reasons = dict.fromkeys(stand_ins.values())
    notes = [f"{item.reason}; its interval is wider by {item.factor:g}" for item in reasons]
    notes += facts.notes
    if facts.max_length is not None and step.longest > facts.max_length:
        notes.append(
            f"sequences of {step.longest} positions are longer than the {facts.max_length} the model is made for"
        )
    if collectives:
        sent_b = sum(item.size_b * item.count for item in collectives)
        notes.append(
            f"collectives are not included: {sum(item.count for item in collectives)} of {sent_b / 1e6:.3g} MB together"
        )
    if plan.pp > 1:
        notes.append("a step passes the stages one after the other; batches that fill the pipeline are not included")
    return [*notes, HOST_NOTE]
