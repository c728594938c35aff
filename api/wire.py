"""What the service answers: the types that are encoded and, from the same fields, described in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..features.kernel import KernelSpec
from ..models.composition import Part, Whole
from ..models.prediction import Interval, Prediction


class IntervalAnswer(msgspec.Struct, frozen=True):
    """A predicted value with its interval, lower ≤ value ≤ upper, in the SI unit the field's name ends in."""

    value: Annotated[float, Meta(description="The prediction", ge=0)]
    lower: Annotated[float, Meta(description="Lower end of the interval", ge=0)]
    upper: Annotated[float, Meta(description="Upper end of the interval", ge=0)]


class PredictionAnswer(msgspec.Struct, frozen=True):
    """What one kernel costs on one device."""

    family: Annotated[str, Meta(description="Kernel family")]
    device: Annotated[str, Meta(description="Catalogue name the request's device stands for")]
    latency_s: Annotated[IntervalAnswer, Meta(description="Time of one run in seconds")]
    power_w: Annotated[
        IntervalAnswer | None, Meta(description="Mean power in watts; null where no model has seen power")
    ]
    energy_j: Annotated[IntervalAnswer | None, Meta(description="Energy of one run in joules: latency times power")]
    coverage: Annotated[float, Meta(description="Share of cases the intervals are built to contain")]
    bound: Annotated[str, Meta(description="The limit that binds on paper: compute, dram, cache, launch …")]
    breakdown: Annotated[dict[str, float], Meta(description="Seconds that each limit alone would take")]
    method: Annotated[str, Meta(description="How the prediction came about, with any stand-in")]
    in_domain: Annotated[bool, Meta(description="Whether the model was trained on cases like this one")]
    notes: Annotated[list[str], Meta(description="Why a case is out of domain, and other cautions")]


class BatchAnswer(msgspec.Struct, frozen=True):
    """Predictions in the order of the request."""

    predictions: list[PredictionAnswer]


class KernelPartAnswer(msgspec.Struct, frozen=True):
    """One kernel of a whole model; latency, power and energy are those of a single run."""

    name: Annotated[str, Meta(description="What the model calls it, or else what it is")]
    count: Annotated[int, Meta(description="How many times the model runs it")]
    family: Annotated[str, Meta(description="Kernel family")]
    latency_s: Annotated[IntervalAnswer, Meta(description="Time of one run in seconds")]
    power_w: Annotated[IntervalAnswer | None, Meta(description="Mean power in watts; null where it is unknown")]
    energy_j: Annotated[IntervalAnswer | None, Meta(description="Energy of one run in joules")]
    time_share: Annotated[float, Meta(description="Share of all kernels' time that its runs take")]
    energy_share: Annotated[float | None, Meta(description="Share of the model's energy; null where it is unknown")]
    bound: Annotated[str, Meta(description="The limit that binds on paper: compute, dram, cache, launch …")]
    method: Annotated[str, Meta(description="How the prediction came about, with any stand-in")]
    in_domain: Annotated[bool, Meta(description="Whether the model was trained on cases like this one")]
    notes: Annotated[list[str], Meta(description="Why a case is out of domain, and other cautions")]


class FamilyPartAnswer(msgspec.Struct, frozen=True):
    """All kernels of one family in a whole model."""

    family: Annotated[str, Meta(description="Kernel family")]
    launches: Annotated[int, Meta(description="Runs of its kernels")]
    latency_s: Annotated[float, Meta(description="Time they take together in seconds")]
    energy_j: Annotated[float | None, Meta(description="Energy they take together in joules")]
    time_share: Annotated[float, Meta(description="Share of all kernels' time")]
    energy_share: Annotated[float | None, Meta(description="Share of the model's energy; null where it is unknown")]


class WholeAnswer(msgspec.Struct, frozen=True):
    """What a whole model costs on one device."""

    device: Annotated[str, Meta(description="Catalogue name the request's device stands for")]
    latency_s: Annotated[IntervalAnswer, Meta(description="Time of one run of the model in seconds")]
    power_w: Annotated[
        IntervalAnswer | None, Meta(description="Energy over latency in watts; null where it is unknown")
    ]
    energy_j: Annotated[IntervalAnswer | None, Meta(description="Energy of one run; null where a kernel's is unknown")]
    coverage: Annotated[float, Meta(description="Share of cases the intervals are built to contain")]
    bound_s: Annotated[float, Meta(description="Seconds that no run of these kernels can beat")]
    launch_s: Annotated[float, Meta(description="Seconds of the latency that are gaps between kernels")]
    launches: Annotated[int, Meta(description="Runs of all kernels")]
    in_domain: Annotated[bool, Meta(description="Whether the model was trained on cases like all of these")]
    notes: Annotated[list[str], Meta(description="The kernels' notes, each once, with how many it is about")]
    without_energy: Annotated[list[str], Meta(description="Kernels whose energy is unknown")]
    dominant: Annotated[list[int], Meta(description="Positions of the fewest kernels that take 80 % of the time")]
    families: Annotated[list[FamilyPartAnswer], Meta(description="Per family, the slowest first")]
    kernels: Annotated[list[KernelPartAnswer], Meta(description="Per kernel, in the order of the request")]


class WholesAnswer(msgspec.Struct, frozen=True):
    """A whole model on one device after the other, in the order of the request."""

    answers: list[WholeAnswer]


class ModelAnswer(msgspec.Struct, frozen=True):
    """A model that answers requests."""

    name: Annotated[str, Meta(description="Name of the artifact")]
    path: Annotated[str | None, Meta(description="Directory it was loaded from")]
    loaded_at: Annotated[str, Meta(description="UTC, ISO 8601")]
    manifest: Annotated[dict[str, Any], Meta(description="Summary of the artifact's manifest")]
    problem: Annotated[str | None, Meta(description="Why a newer artifact was not taken, null when there is none")]


class ModelsAnswer(msgspec.Struct, frozen=True):
    """Loaded models."""

    models: list[ModelAnswer]


class FactAnswer(msgspec.Struct, frozen=True):
    """A number in SI units and where it comes from."""

    value: float
    source: str


class DeviceAnswer(msgspec.Struct, frozen=True):
    """A device of the catalogue; names of facts end in their unit."""

    name: str
    title: str
    vendor: str
    kind: Annotated[str, Meta(description="gpu or cpu")]
    architecture: str
    compute_capability: str | None
    aliases: list[str]
    facts: Annotated[dict[str, FactAnswer], Meta(description="Datasheet facts")]
    matrix_flops_per_s: Annotated[dict[str, FactAnswer], Meta(description="Dense matrix peak by dtype, FLOP/s")]
    vector_flops_per_s: Annotated[
        dict[str, FactAnswer], Meta(description="Peak of the ordinary units by dtype, FLOP/s")
    ]
    measured: Annotated[dict[str, FactAnswer], Meta(description="What characterising the device gave")]


class DevicesAnswer(msgspec.Struct, frozen=True):
    """Every device that can be asked about."""

    devices: list[DeviceAnswer]


class HealthAnswer(msgspec.Struct, frozen=True):
    """State of the service."""

    status: str


ANSWERS = (ModelsAnswer, DevicesAnswer, DeviceAnswer, HealthAnswer)
"""Answers of the framework's routes; those of the others stand in `doors.DOORS`."""


def prediction_answer(spec: KernelSpec, device: str, found: Prediction) -> PredictionAnswer:
    """A prediction as it is sent."""
    return PredictionAnswer(
        family=spec.family,
        device=device,
        latency_s=interval_answer(found.latency_s),
        power_w=None if found.power_w is None else interval_answer(found.power_w),
        energy_j=None if found.energy_j is None else interval_answer(found.energy_j),
        coverage=found.coverage,
        bound=found.bound,
        breakdown=dict(found.breakdown),
        method=found.method,
        in_domain=found.in_domain,
        notes=list(found.notes),
    )


def encode_predictions(specs: Sequence[KernelSpec], devices: Sequence[str], found: Sequence[Prediction],
                       *, single: bool) -> bytes:  # fmt: skip
    """The JSON answer: one prediction, or a batch of them."""
    answers = [prediction_answer(*row) for row in zip(specs, devices, found, strict=True)]
    return msgspec.json.encode(answers[0] if single else BatchAnswer(answers))


def whole_answer(device: str, found: Whole) -> WholeAnswer:
    """A whole model on one device as it is sent."""
    return WholeAnswer(
        device=device,
        latency_s=interval_answer(found.latency_s),
        power_w=None if found.power_w is None else interval_answer(found.power_w),
        energy_j=None if found.energy_j is None else interval_answer(found.energy_j),
        coverage=found.coverage,
        bound_s=found.bound_s,
        launch_s=found.launch_s,
        launches=found.launches,
        in_domain=found.in_domain,
        notes=list(found.notes),
        without_energy=list(found.without_energy),
        dominant=list(found.dominant),
        families=[
            FamilyPartAnswer(one.family, one.launches, one.latency_s, one.energy_j, one.time_share, one.energy_share)
            for one in found.families
        ],
        kernels=[_part_answer(part) for part in found.parts],
    )


def _part_answer(part: Part) -> KernelPartAnswer:
    one = part.prediction
    return KernelPartAnswer(
        part.kernel.title, part.kernel.count, part.kernel.spec.family, interval_answer(one.latency_s),
        None if one.power_w is None else interval_answer(one.power_w),
        None if one.energy_j is None else interval_answer(one.energy_j),
        part.time_share, part.energy_share, one.bound, one.method, one.in_domain, list(one.notes),
    )  # fmt: skip


def interval_answer(found: Interval) -> IntervalAnswer:
    """A value and its interval as they are sent."""
    return IntervalAnswer(found.value, found.lower, found.upper)
