"""What a step of a model costs on a device: latency, power and energy with intervals, tokens per second, memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ...features.device import Device
from ...features.dtypes import DTYPES
from ...features.errors import SpecError
from ...features.kernel import KernelSpec
from ...models.predict.named_impl import check_name
from ...models.predict.prediction import Interval, Prediction, Predictor
from ..memory_reads import cpu_stream, streamed, weights_b
from ..units import checked_price, counted, joules, num_bytes, plain, seconds, watts, with_ends
from ..whole_model import WholeModelPrediction, compose
from .facts import ModelFacts
from .forward import Forward, forward
from .kernel_list import ROUTING, StandIn
from .memory import Memory, memory, ways_to_fit
from .plan import ONE_DEVICE, Collective, ParallelPlan
from .step import Formats, Step
from .training import training_step

HOST_NOTE = "the host's share of a step (scheduling, launches that nothing hides) is not included"


@dataclass(frozen=True, slots=True, repr=False)
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
        impl: What runs products, attention and experts; empty: the usual one.
        training: Whether the step trains: with gradients and the optimiser.
        recompute: Whether it runs its layers forwards again in place of keeping their activations.
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
    impl: str
    training: bool
    recompute: bool = False

    def cost_per_million_tokens(self, price_per_hour: float) -> Interval:
        """Price of a million new tokens on all devices of the plan, at a price of one device and hour.

        Raises:
            SpecError: the price is negative or no number.
        """
        price = checked_price(price_per_hour, "price_per_hour")
        return self.whole.latency_s.scaled(1e6 * price * self.plan.devices / 3600 / self.step.tokens)

    @property
    def _title(self) -> str:
        devices = "" if self.plan.devices == 1 else f"{self.plan.devices} × "
        return f"{self.facts.name}, {self.step}, on {devices}{self.device}"

    def __repr__(self) -> str:
        return f"{self._title}: {with_ends(self.whole.latency_s, seconds)}"

    def __str__(self) -> str:
        memory, whole = self.memory, self.whole
        room = "" if memory.usable_b is None else f" of {num_bytes(memory.usable_b)}"
        return "\n  ".join([
            self._title, f"a step    {with_ends(whole.latency_s, seconds)}", f"tokens/s  {with_ends(self.tokens_per_s, plain)}",
            f"power     {with_ends(whole.power_w, watts)}", f"a token   {with_ends(self.energy_per_token_j, joules)}",
            f"memory    {num_bytes(memory.total_b)}{room}: {memory.parts_text}",
            "time      " + ", ".join(f"{part.family} {100 * part.time_share:.0f} %" for part in whole.families),
            f"{100 * whole.coverage:g} % intervals", *self.notes,
        ])  # fmt: skip


def estimate(
    predictor: Predictor, facts: ModelFacts, step: Step, device: str, *, formats: Formats | None = None,
    plan: ParallelPlan = ONE_DEVICE, impl: str = "", threads: int | None = None, fused_attention: bool = True,
    routing: str = ROUTING, coverage: float = 0.9, training: bool = False, recompute: bool = False,
) -> Estimate:  # fmt: skip
    """What a step of a model costs; arguments and errors are those of `estimate_steps`.

    Raises:
        SpecError: likewise, nothing in the step was measured in any version of the library `impl`, or the plan has more
            data parallel groups than the step has sequences (engines do run such steps, with groups that wait).
    """
    if step.sequences < plan.dp:
        raise SpecError(
            f"dp {plan.dp} leaves devices idle, as a step has {counted(step.sequences, 'sequence')}; use at most so many, "
            "or a larger batch", field="dp",
        )  # fmt: skip
    result = estimate_steps(
        predictor, facts, [step], device, formats=formats, plan=plan, impl=impl, threads=threads,
        fused_attention=fused_attention, routing=routing, coverage=coverage, training=training, recompute=recompute,
    )[0]  # fmt: skip
    if impl:
        families = dict.fromkeys(part.kernel.spec.family for part in result.whole.parts)
        known = dict.fromkeys(name for family in families for name in predictor.impls(family))
        check_name(impl, list(known), "kernel of the step")
    return result


def estimate_steps(
    predictor: Predictor, facts: ModelFacts, steps: Sequence[Step], device: str, *, formats: Formats | None = None,
    plan: ParallelPlan = ONE_DEVICE, impl: str = "", threads: int | None = None, fused_attention: bool = True,
    routing: str = ROUTING, coverage: float = 0.9, training: bool = False, recompute: bool = False, unpacks: bool = False,
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
        training: whether steps train: every position, with gradients and a step of AdamW.
        recompute: of steps that train, whether layers keep their inputs alone and run forwards again (activation
            checkpointing).
        unpacks: whether weights are unpacked before the products where quantised ones of `impl` are slower, as is done
            without `impl`.

    Raises:
        SpecError: `recompute` without `training`, the model cannot run a step, the plan cannot split it, or a kernel cannot be
            predicted.
    """
    on = predictor.devices.get(device)
    if threads is not None and on.kind == "gpu":
        raise SpecError(f"{on.name} is a GPU; threads are those of a CPU", field="threads")
    if recompute and not training:
        raise SpecError("only a step that trains keeps activations; give recompute with train", field="recompute")
    formats = formats_of(facts) if formats is None else formats
    listing: Callable[..., Forward] = partial(training_step, recompute=recompute) if training else forward
    rate_b_per_s = cpu_stream(predictor, on, threads, coverage)

    def run(some: Sequence[Step], formats: Formats, *, unpack: bool = False) -> list[Estimate]:
        runs = [
            listing(facts, step, formats, plan, device=on, impl=impl, threads=threads, fused_attention=fused_attention,
                    routing=routing, unpack=unpack)
            for step in some
        ]  # fmt: skip
        specs = list(dict.fromkeys(kernel.spec for each in runs for kernel in each.kernels))
        answers = predictor.in_long_loops().predict(specs, [on.name] * len(specs), coverage=coverage)
        by_spec = dict(zip(specs, answers, strict=True))
        read_b = dict(zip(specs, weights_b(specs, on).tolist(), strict=True))
        return [
            _estimate(facts, step, formats, plan, on, each, by_spec, read_b, rate_b_per_s, impl, training, recompute)
            for step, each in zip(some, runs, strict=True)
        ]

    results = run(steps, formats)
    plain = Formats.of(formats.dtype, kv=formats.kv)
    native = [name for name in {formats.weights, formats.experts} & DTYPES.keys() if on.runs(name, "matrix")]
    if (impl and not unpacks) or formats == plain or not native:
        return results
    return _no_slower(results, run(steps, plain), lambda some: run(some, formats, unpack=True))


def _no_slower(
    results: Sequence[Estimate], plain: Sequence[Estimate], unpacked: Callable[[list[Step]], list[Estimate]]
) -> list[Estimate]:
    """The results, with those that quantised products make slower than unquantised ones taken as products that unpack.

    An engine keeps to those where the library at hand has no fast product of a format. Which library was measured on devices
    like this one decides what an estimate without `impl` is read as.
    """
    slower = [
        item.step
        for item, other in zip(results, plain, strict=True)
        if item.whole.latency_s.value > other.whole.latency_s.value
    ]
    if not slower:
        return list(results)
    by_step = {
        item.step: replace(item, notes=(_SLOWER.format(item.formats.weights, item.device), *item.notes))
        for item in unpacked(slower)
    }
    return [by_step.get(item.step, item) for item in results]


_SLOWER = (
    "products in {0} of the library measured on devices like {1} are predicted slower than unquantised ones: weights are taken "
    "as unpacked before the products, as engines then do; `impl` chooses another library"
)


def _estimate(
    facts: ModelFacts, step: Step, formats: Formats, plan: ParallelPlan, on: Device, run: Forward,
    by_spec: Mapping[KernelSpec, Prediction], read_b: Mapping[KernelSpec, float], rate_b_per_s: Interval | None, impl: str,
    training: bool, recompute: bool,
) -> Estimate:  # fmt: skip
    single = [by_spec[kernel.spec] for kernel in run.kernels]
    parts = streamed(
        [k.spec for k in run.kernels], [k.count for k in run.kernels], single, on,
        np.array([read_b[kernel.spec] for kernel in run.kernels]), rate_b_per_s,
    )  # fmt: skip
    predictions = [
        _read_as(prediction, run.stand_ins.get(kernel.name))
        for kernel, prediction in zip(run.kernels, parts, strict=True)
    ]
    whole = compose(run.kernels, predictions)
    needed = memory(facts, step, formats, plan, on, training=training, recompute=recompute)
    notes = _notes(facts, step, plan, run.stand_ins, run.collectives)
    if needed.fits is False:
        ways = ways_to_fit(facts, step, formats, plan, on, training=training, recompute=recompute)
        notes.append(
            f"it does not fit into {on.name}; it would with {' or '.join(ways) or 'fewer sequences, or pp and tp together'}"
        )
    if plan.dp > 1:
        notes.append(
            f"{counted(step.sequences, 'sequence')} on {plan.dp} groups: {step.share(plan.dp).sequences} on the busiest"
        )
    return Estimate(
        facts=facts, device=on.name, step=step, plan=plan, formats=formats, whole=whole,
        tokens_per_s=step.tokens / whole.latency_s,
        energy_per_token_j=None if whole.energy_j is None else whole.energy_j.scaled(plan.stage_ranks / step.tokens),
        memory=needed, collectives=run.collectives, notes=tuple(notes), impl=impl, training=training, recompute=recompute,
    )  # fmt: skip


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
    """A prediction with the scale, the wider interval and the remark of a stand-in."""
    if stands_for is None:
        return prediction
    return replace(
        prediction, latency_s=_wider(prediction.latency_s, stands_for),
        energy_j=None if prediction.energy_j is None else _wider(prediction.energy_j, stands_for),
        breakdown={name: time_s * stands_for.scale for name, time_s in prediction.breakdown.items()},
        notes=(*prediction.notes, stands_for.reason),
    )  # fmt: skip


def _wider(interval: Interval, by: StandIn) -> Interval:
    scaled = interval.scaled(by.scale)
    return Interval(scaled.value, scaled.lower / by.factor, scaled.upper * by.factor)


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
    if facts.encoder is not None and any(not group.context for group in step):
        notes += facts.encoder.notes
    if facts.max_length is not None and step.longest > facts.max_length:
        notes.append(
            f"sequences of {step.longest} positions are longer than the {facts.max_length} the model is made for "
            "(max_position_embeddings)"
        )
    if collectives:
        sent_b = sum(item.size_b * item.count for item in collectives)
        notes.append(
            f"collectives are not included: {sum(item.count for item in collectives)} of {sent_b / 1e6:.3g} MB together"
        )
    if plan.pp > 1:
        notes.append("a step passes the stages one after the other; batches that fill the pipeline are not included")
    return [*notes, HOST_NOTE]
