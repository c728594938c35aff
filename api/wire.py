"""What the service answers: the types that are encoded and, from the same fields, described in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..features.kernel import KernelSpec
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


ANSWERS = (PredictionAnswer, BatchAnswer, ModelsAnswer, DevicesAnswer, DeviceAnswer, HealthAnswer)
"""Types that the OpenAPI document describes."""


def prediction_answer(spec: KernelSpec, device: str, found: Prediction) -> PredictionAnswer:
    """A prediction as it is sent."""
    return PredictionAnswer(
        family=spec.family,
        device=device,
        latency_s=_interval(found.latency_s),
        power_w=None if found.power_w is None else _interval(found.power_w),
        energy_j=None if found.energy_j is None else _interval(found.energy_j),
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


def _interval(found: Interval) -> IntervalAnswer:
    return IntervalAnswer(found.value, found.lower, found.upper)
