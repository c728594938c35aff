"""Predictions as the service sends them and `--json` prints them: the types of `client.answers` and its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..client import answers
from ..client.estimate_answers import ModelSummary
from ..features.device import Device
from ..features.kernel import KernelSpec

if TYPE_CHECKING:
    from ..features.mlir.types.graph import Module
    from ..models.predict.prediction import Interval, Prediction
    from .architectures.facts import ModelFacts
    from .mlir.prediction import ModulePrediction
    from .whole_model import Part, WholeModelPrediction

A = TypeVar("A", bound=msgspec.Struct)


def interval_answer(interval: Interval) -> answers.Interval:
    """A value and its interval as they are sent."""
    return answers.Interval(interval.value, interval.lower, interval.upper)


def known_interval(interval: Interval | None) -> answers.Interval | None:
    """The same for a value that may be unknown."""
    return None if interval is None else answers.Interval(interval.value, interval.lower, interval.upper)


def prediction_answer(spec: KernelSpec, device: str, prediction: Prediction) -> answers.Prediction:
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
        in_domain=prediction.in_domain,
        notes=list(prediction.notes),
    )


def whole_answer(device: str, whole: WholeModelPrediction) -> answers.WholeModelPrediction:
    """A whole model on one device as it is sent."""
    return _answer(
        answers.WholeModelPrediction, whole, device=device, kernels=[_kernel_part(part) for part in whole.parts]
    )


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


def model_summary(facts: ModelFacts) -> ModelSummary:
    """A model as it is sent."""
    return ModelSummary(
        facts.name, facts.architecture, facts.parameters, facts.active_parameters, facts.layers, facts.hidden, facts.dtype,
        facts.weights or facts.dtype, facts.generates, facts.encoder is not None, facts.fixed_length,
        facts.max_length, facts.source,
    )  # fmt: skip
