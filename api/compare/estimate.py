"""POST /v1/estimate: what a step of a model, or one run of a captured program, costs on devices side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import cast

import msgspec

from ...client.estimate_answers import (
    DeviceEstimate,
    Difference,
    EstimatedMemory,
    EstimatedPart,
    EstimatedSaving,
    Estimates,
)
from ...features.device import Device
from ...features.errors import SpecError
from ...models.predict.prediction import Interval
from ...models.predict.predictor import ArtifactPredictor
from ...workloads.answers import footprint_answer, interval_answer, known_interval, model_summary
from ...workloads.architectures.estimate import Estimate, estimate
from ...workloads.architectures.savings import savings
from ...workloads.savings import Saving
from ...workloads.torch_program.answers import Answers
from ...workloads.torch_program.answers import answer as answer_program
from ...workloads.torch_program.captured import Program
from ...workloads.torch_program.shares import Share
from ...workloads.whole_model import Part
from ..predict.thread_endpoint import Call, refusal_problem
from .estimate_request import ModelStep, Wanted, read_estimate

_SECONDS_PER_HOUR = 3600.0
_MILLION = 1e6
_MOST_KERNELS = 100
"""Kernels or operators listed of a device, the longest; a program may have thousands."""


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request of `/v1/estimate`.

    Raises:
        ProblemError: the request is not acceptable.
    """
    wanted, source = read_estimate(body, call.loaded.catalogue)
    estimates = _of_program(call, wanted, source) if isinstance(source, Program) else _of_model(call, wanted, source)
    return msgspec.json.encode(estimates)


def _of_model(call: Call, wanted: Wanted, item: ModelStep) -> Estimates:
    formats = item.formats
    return Estimates(
        model=model_summary(item.facts), phase=item.phase, batch=item.batch, length=item.length, step=str(item.step),
        formats={"dtype": formats.dtype, "weights": formats.weights, "experts": formats.experts, "kv": formats.kv},
        devices=item.plan.devices, answers=[_model_on(call, wanted, item, device) for device in wanted.devices],
    )  # fmt: skip


def _model_on(call: Call, wanted: Wanted, item: ModelStep, device: Device) -> DeviceEstimate:
    if device.name in wanted.refusals:
        return _refused(device, wanted, wanted.refusals[device.name])
    predictor = call.loaded.predictor
    if wanted.setting is not None:
        predictor = cast("ArtifactPredictor", predictor).under(wanted.setting)
    try:
        result = estimate(
            predictor, item.facts, item.step, device.name, formats=item.formats, plan=item.plan, impl=item.impl,
            threads=wanted.threads if device.kind == "cpu" else None, coverage=wanted.coverage, training=item.phase == "train",
            recompute=item.recompute,
        )  # fmt: skip
    except SpecError as error:
        if error.field in ("coverage", "impl"):
            raise refusal_problem(error, error.field) from error
        return _refused(device, wanted, str(error))
    _count(call, device, result.whole.parts)
    whole, parts = result.whole, result.whole.parts
    kernels = _kernels(parts)
    energy = None if whole.energy_j is None else whole.energy_j.scaled(item.plan.stage_ranks)
    cost = _cost(whole.latency_s, wanted.prices.get(device.name), item.plan.devices)
    return DeviceEstimate(
        device=device.name, title=device.title, kind=device.kind, refusal=None, coverage=wanted.coverage,
        latency_s=interval_answer(whole.latency_s), power_w=known_interval(whole.power_w), energy_j=known_interval(energy),
        tokens_per_s=interval_answer(result.tokens_per_s), samples_per_s=interval_answer(item.batch / whole.latency_s),
        energy_per_token_j=known_interval(result.energy_per_token_j), cost=known_interval(cost),
        cost_per_million_tokens=known_interval(None if cost is None else cost.scaled(_MILLION / item.step.tokens)),
        bound_by="device", idle_share=None, bound=_bounds(parts),
        bound_s=whole.bound_s, launches=whole.launches, memory=_memory(result),
        modules=_grouped(kernels, _place), kernels=kernels[:_MOST_KERNELS], phases=_grouped(kernels, _phase),
        savings=_savings(savings(predictor, result, coverage=wanted.coverage)), in_domain=whole.in_domain,
        notes=[*result.notes, *whole.notes], footprint=footprint_answer(wanted.electricity, energy),
    )  # fmt: skip


def _of_program(call: Call, wanted: Wanted, program: Program) -> Estimates:
    devices = [device for device in wanted.devices if device.name not in wanted.refusals]
    try:
        result = answer_program(
            call.loaded.predictor, program, devices, threads=wanted.threads, coverage=wanted.coverage,
            setting=wanted.setting,
        )  # fmt: skip
    except SpecError as error:
        raise refusal_problem(error, "program") from error
    step = f"{program.operators} operators"
    answers = [_program_on(call, wanted, result, device) for device in wanted.devices]
    return Estimates(None, None, program.batch, None, step, {}, 1, answers)


def _program_on(call: Call, wanted: Wanted, result: Answers, device: Device) -> DeviceEstimate:
    if device.name in wanted.refusals:
        return _refused(device, wanted, wanted.refusals[device.name])
    item, memory = result.totals[device.name], result.memory
    if item.whole is not None:
        _count(call, device, item.whole.parts)
    sizes_b = {
        "weights": memory.weights_b, "gradients": memory.gradients_b, "optimizer_state": memory.optimizer_state_b,
        "activations": memory.activations_b, "inputs": memory.inputs_b,
        "workspace": memory.workspace_b,
    }  # fmt: skip
    latency = item.latency_s
    return DeviceEstimate(
        device=device.name, title=device.title, kind=device.kind,
        refusal="; ".join(item.unanswered) if item.unanswered else None, coverage=wanted.coverage,
        latency_s=known_interval(latency), power_w=known_interval(item.power_w), energy_j=known_interval(item.energy_j),
        tokens_per_s=None,
        samples_per_s=None if latency is None or result.batch is None else interval_answer(result.batch / latency),
        energy_per_token_j=None,
        cost=None if latency is None else known_interval(_cost(latency, wanted.prices.get(device.name), 1)),
        cost_per_million_tokens=None, bound_by=item.bound_by, idle_share=item.idle_share,
        bound=dict(item.by_bound), bound_s=item.bound_s,
        launches=item.launches,
        memory=EstimatedMemory(memory.peak_b, _present(sizes_b), item.memory_b, item.memory_b, item.fits, None),
        modules=_shares(item.by_module), kernels=_shares(item.by_operator), phases=_shares(item.by_phase),
        savings=_savings(result.savings[device.name]),
        in_domain=item.whole is not None and item.whole.in_domain, notes=[*item.notes, *result.notes],
        footprint=footprint_answer(wanted.electricity, item.energy_j),
    )  # fmt: skip


def _refused(device: Device, wanted: Wanted, reason: str) -> DeviceEstimate:
    """A device that the work cannot be estimated on."""
    return DeviceEstimate(
        device=device.name, title=device.title, kind=device.kind, refusal=reason, coverage=wanted.coverage, latency_s=None,
        power_w=None, energy_j=None, tokens_per_s=None, samples_per_s=None, energy_per_token_j=None, cost=None,
        cost_per_million_tokens=None, bound_by="device", idle_share=None,
        bound={}, bound_s=None, launches=0, memory=None, modules=[],
        kernels=[], phases=[], savings=[], in_domain=False, notes=[],
    )  # fmt: skip


def _count(call: Call, device: Device, parts: Sequence[Part]) -> None:
    call.metrics.count_usage([part.kernel.spec for part in parts], [device.name] * len(parts))
    call.metrics.count_predictions((part.kernel.spec.family, device.name, part.prediction.in_domain) for part in parts)


def _cost(latency: Interval, price: float | None, devices: int) -> Interval | None:
    return None if price is None else latency.scaled(price * devices / _SECONDS_PER_HOUR)


def _bounds(parts: Iterable[Part]) -> dict[str, float]:
    """Share of the time by what binds it, largest first."""
    shares: dict[str, float] = {}
    for part in parts:
        shares[part.prediction.bound] = shares.get(part.prediction.bound, 0.0) + part.time_share
    return dict(sorted(shares.items(), key=lambda item: item[1], reverse=True))


def _memory(result: Estimate) -> EstimatedMemory:
    memory = result.memory
    return EstimatedMemory(
        memory.total_b, dict(memory.parts_b), memory.device_b, memory.usable_b, memory.fits, memory.sequences
    )


def _present(sizes_b: Mapping[str, float]) -> dict[str, float]:
    return {name: size_b for name, size_b in sizes_b.items() if size_b}


def _kernels(parts: Sequence[Part]) -> list[EstimatedPart]:
    """Kernels by name, longest first."""
    by_name = groupby(sorted(parts, key=_title), key=_title)
    return _sorted(_merged(name, [_single(part) for part in some]) for name, some in by_name)


def _title(part: Part) -> str:
    return part.kernel.title


def _single(part: Part) -> EstimatedPart:
    prediction = part.prediction
    return EstimatedPart(
        part.kernel.title, part.kernel.count, part.latency_s, part.energy_j, part.time_share, prediction.bound, ""
    )


def _grouped(kernels: Sequence[EstimatedPart], key: Callable[[str], str]) -> list[EstimatedPart]:
    groups: dict[str, list[EstimatedPart]] = {}
    for kernel in kernels:
        groups.setdefault(key(kernel.name), []).append(kernel)
    return _sorted(_merged(name, members) for name, members in groups.items())


def _place(name: str) -> str:
    """The place of a kernel in the model, the same forwards and backwards: `layers.attention` of `layers.attention.qkv`."""
    names = name.removeprefix("backward.").split(".")
    return ".".join(names[:2]) if names[0] in ("layers", "encoder") else names[0]


def _phase(name: str) -> str:
    first = name.split(".")[0]
    return first if first in ("backward", "optimizer") else "forward"


def _merged(name: str, members: Sequence[EstimatedPart]) -> EstimatedPart:
    longest = max(members, key=lambda part: part.latency_s)
    energies = [part.energy_j for part in members if part.energy_j is not None]
    return EstimatedPart(
        name, sum(part.runs for part in members), sum(part.latency_s for part in members),
        sum(energies) if len(energies) == len(members) else None, sum(part.time_share for part in members), longest.bound,
        next((part.stand_in for part in members if part.stand_in), ""),
    )  # fmt: skip


def _sorted(parts: Iterable[EstimatedPart]) -> list[EstimatedPart]:
    return sorted(parts, key=lambda part: part.latency_s, reverse=True)


def _shares(shares: Sequence[Share]) -> list[EstimatedPart]:
    return [
        EstimatedPart(
            share.name, share.calls, share.latency_s, share.energy_j, share.time_share, share.bound, share.stand_in
        )
        for share in shares[:_MOST_KERNELS]
    ]


def _savings(items: Sequence[Saving]) -> list[EstimatedSaving]:
    return [
        EstimatedSaving(
            item.kind, item.change, Difference(item.saved_s.value, item.saved_s.lower, item.saved_s.upper), item.share
        )
        for item in items
    ]
