"""What the service says of one device (facts, what its answers rest on, what adapting to it would bring) and of itself."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from .answers import Device


class AnswerError(msgspec.Struct, frozen=True):
    """Errors of predictions of rows that the model which predicted them had not seen, in percent."""

    of: Annotated[str, Meta(description="What was held out: shapes (held_out), devices (device_left_out), own_rows")]
    n: Annotated[int, Meta(description="Number of predictions")]
    mean_ape_pct: float
    median_ape_pct: float
    within_10_pct: Annotated[float, Meta(description="Share of predictions within 10 %")]


class SourceWeight(msgspec.Struct, frozen=True):
    """A device from which answers are carried over."""

    device: str
    distance: Annotated[
        float, Meta(description="Doublings of datasheet facts, more for other architectures and makers")
    ]
    weight: Annotated[float, Meta(description="Share of the answer, the mean over the kernels")]


class KernelGroup(msgspec.Struct, frozen=True):
    """Kernels of one implementation and dtype."""

    impl: str
    dtype: Annotated[str, Meta(description="dtype, or dtype/kv_dtype where these differ")]
    rows: Annotated[int | None, Meta(description="Training rows of them on this device; null where not counted")]
    is_whole: Annotated[
        bool, Meta(description="Whether this is so of every variant, cache state and knob; else of some")
    ]


class DeviceBasis(msgspec.Struct, frozen=True):
    """What the answers for some kernels of a family rest on."""

    family: str
    target: Annotated[str, Meta(description="latency_s, power_w or energy_j")]
    basis: Annotated[
        str,
        Meta(description="measured, calibrated, itself (other kernels of this device), edition (of the same chip), "
             "carried over, utilisation (how busy the device is), scaled bound, law (bytes and operations), or not answered"),
    ]  # fmt: skip
    rows: Annotated[int | None, Meta(description="Rows of this device; null where they are not counted")]
    kernels: Annotated[list[KernelGroup], Meta(description="The kernels that the model knows; empty: all")]
    sources: list[SourceWeight]
    general_weight: Annotated[float, Meta(description="Share of the answer from laws that hold for every device")]
    error: Annotated[
        AnswerError | None, Meta(description="Errors of this kind of answer on all devices; null where unknown")
    ]
    error_here: Annotated[
        AnswerError | None, Meta(description="Errors on this device's own rows held out; null where unknown")
    ] = None


class MeasuredAdaptation(msgspec.Struct, frozen=True):
    """Mean and median error in percent before and after a model was calibrated to a machine, as it was measured."""

    machine: str
    kind: Annotated[str, Meta(description="gpu or cpu")]
    base: Annotated[str, Meta(description="The model that was calibrated")]
    rows: int
    before: tuple[float, float]
    after: tuple[float, float]
    doc: str
    minutes: Annotated[float | None, Meta(description="Minutes of `kernelcast adapt`; null where rows were given")] = (
        None
    )


class TenMinutes(msgspec.Struct, frozen=True):
    """What ten minutes of `kernelcast adapt` on the device would bring."""

    command: Annotated[str | None, Meta(description="The command; null where it cannot measure such a device")]
    says: Annotated[list[str], Meta(description="What is known of it, in sentences")]
    measured: Annotated[list[MeasuredAdaptation], Meta(description="Adaptations that were measured, on any machine")]


class DevicePage(Device, frozen=True):
    """A device with every fact, what its answers rest on, and what adapting to it would bring."""

    model: Annotated[str | None, Meta(description="Name of the model that answers; null where none does")] = None
    basis: Annotated[
        list[DeviceBasis] | None,
        Meta(description="What the model's answers for the device rest on; null for a model that does not say"),
    ] = None
    ten_minutes: TenMinutes | None = None


class ServedModel(msgspec.Struct, frozen=True):
    """A model that answers requests."""

    name: Annotated[str, Meta(description="Name of the artifact")]
    path: Annotated[str | None, Meta(description="Directory it was loaded from")]
    loaded_at: Annotated[str, Meta(description="UTC, ISO 8601")]
    manifest: Annotated[dict[str, Any], Meta(description="The artifact's manifest without what only a machine reads")]
    problem: Annotated[str | None, Meta(description="Why a newer artifact was not taken, null when there is none")]


class ServedModels(msgspec.Struct, frozen=True):
    """Loaded models."""

    models: list[ServedModel]


class Health(msgspec.Struct, frozen=True):
    """State of the service."""

    status: str
