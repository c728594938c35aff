"""What `/v1/predict/mlir` answers: the types that are encoded and described in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from ..features.mlir.graph import Module
from ..models.mlir.prediction import GroupCost, ModulePrediction
from ..models.prediction import Interval
from .wire import IntervalAnswer, interval_answer


class GroupAnswer(msgspec.Struct, frozen=True):
    """Operations that run as one kernel; latency and energy are those of all its runs."""

    title: Annotated[str, Meta(description="What it is, in words")]
    kind: Annotated[str, Meta(description="contraction, softmax, elementwise … unknown")]
    ops: Annotated[list[str], Meta(description="The operations in it, by name")]
    lines: Annotated[
        list[int], Meta(description="Their lines in the text, from 1; empty where the reader does not tell")
    ]
    runs: Annotated[float, Meta(description="How often it runs, loops multiplied")]
    latency_s: Annotated[float, Meta(description="Seconds that all its runs take")]
    energy_j: Annotated[float | None, Meta(description="Joules that all its runs take; null where it is unknown")]
    time_share: Annotated[float, Meta(description="Share of the program's time")]
    flops: Annotated[float, Meta(description="Arithmetic of all its runs")]
    bytes: Annotated[float, Meta(description="Bytes all its runs move across its border")]
    bound: Annotated[str, Meta(description="The limit that binds on paper")]
    spec: Annotated[str, Meta(description="The kernel it was recognised as; empty where there is no family for it")]
    stand_in: Annotated[str, Meta(description="How that kernel differs from what it does; empty where it does not")]
    understood: Annotated[bool, Meta(description="False where its cost is a guess that widens the interval")]


class NotUnderstoodAnswer(msgspec.Struct, frozen=True):
    """An operation whose cost is unknown."""

    op: Annotated[str, Meta(description="Its name")]
    reason: Annotated[str, Meta(description="Why its cost is unknown")]


class ProgramAnswer(msgspec.Struct, frozen=True):
    """What one run of a function costs on one device."""

    function: Annotated[str, Meta(description="The function that was predicted")]
    device: Annotated[str, Meta(description="Catalogue name the request's device stands for")]
    compiler: Annotated[str, Meta(description="The compiler that was assumed; empty where none matters")]
    threads: Annotated[int | None, Meta(description="CPU threads that were assumed; null on a GPU")]
    latency_s: Annotated[IntervalAnswer, Meta(description="Time of one run of the function in seconds")]
    power_w: Annotated[IntervalAnswer | None, Meta(description="Mean power in watts; null where it is unknown")]
    energy_j: Annotated[
        IntervalAnswer | None, Meta(description="Energy of one run in joules; null where it is unknown")
    ]
    coverage: Annotated[float, Meta(description="Share of cases the intervals are built to contain")]
    method: Annotated[str, Meta(description="How the prediction came about")]
    in_domain: Annotated[bool, Meta(description="Whether the models were trained on cases like this one")]
    notes: Annotated[list[str], Meta(description="What a reader must know of this answer")]
    bound_s: Annotated[float, Meta(description="Seconds that no run of these kernels can beat")]
    breakdown: Annotated[dict[str, float], Meta(description="The parts of that time in seconds, by limit")]
    flops: Annotated[float, Meta(description="Arithmetic of one run; a multiply-add is two")]
    bytes: Annotated[float, Meta(description="Bytes moved between kernels and with arguments and results")]
    footprint_b: Annotated[float, Meta(description="Bytes of arguments and results")]
    intensity: Annotated[float, Meta(description="flops per byte")]
    utilization: Annotated[float | None, Meta(description="Achieved arithmetic over the device's peak, 0 to 1")]
    groups: Annotated[list[GroupAnswer], Meta(description="The kernels, in the order of the program")]
    not_understood: Annotated[list[NotUnderstoodAnswer], Meta(description="Operations whose cost is unknown")]
    characteristics: Annotated[
        dict[str, IntervalAnswer], Meta(description="Further learned targets, such as code_instructions or spills")
    ]


class RefusalAnswer(msgspec.Struct, frozen=True):
    """A reader that was asked first and could not read the text."""

    reader: Annotated[str, Meta(description="Name of the reader")]
    reason: Annotated[str, Meta(description="What it said")]


class ProgramsAnswer(msgspec.Struct, frozen=True):
    """A program on one device after the other, in the order of the request."""

    reader: Annotated[str, Meta(description="The reader that read the text")]
    refusals: Annotated[list[RefusalAnswer], Meta(description="Readers asked before it, and why they did not")]
    functions: Annotated[list[str], Meta(description="Every function of the text that can be asked about")]
    answers: Annotated[list[ProgramAnswer], Meta(description="One per device")]


def programs_answer(module: Module, names: Sequence[str], found: Sequence[ModulePrediction]) -> ProgramsAnswer:
    """Predictions for one module as they are sent; `names` are the functions that can be asked about."""
    return ProgramsAnswer(
        reader=module.reader,
        refusals=[RefusalAnswer(reader, reason) for reader, reason in module.refusals],
        functions=list(names),
        answers=[program_answer(one) for one in found],
    )


def program_answer(found: ModulePrediction) -> ProgramAnswer:
    """A program on one device as it is sent."""
    return ProgramAnswer(
        function=found.function,
        device=found.device,
        compiler=found.compiler,
        threads=found.threads,
        latency_s=interval_answer(found.latency_s),
        power_w=_if_known(found.power_w),
        energy_j=_if_known(found.energy_j),
        coverage=found.coverage,
        method=found.method,
        in_domain=found.in_domain,
        notes=list(found.notes),
        bound_s=found.bound_s,
        breakdown=dict(found.breakdown),
        flops=found.flops,
        bytes=found.bytes,
        footprint_b=found.footprint_b,
        intensity=found.intensity,
        utilization=found.utilization,
        groups=[_group_answer(group) for group in found.groups],
        not_understood=[NotUnderstoodAnswer(op, reason) for op, reason in found.not_understood],
        characteristics=_intervals(found.characteristics),
    )


def _group_answer(group: GroupCost) -> GroupAnswer:
    return GroupAnswer(
        group.title, group.kind, list(group.ops), list(group.lines), group.runs, group.latency_s, group.energy_j,
        group.time_share, group.flops, group.bytes, group.bound, group.spec, group.stand_in, group.understood,
    )  # fmt: skip


def _if_known(found: Interval | None) -> IntervalAnswer | None:
    return None if found is None else interval_answer(found)


def _intervals(found: Mapping[str, Interval]) -> dict[str, IntervalAnswer]:
    return {name: interval_answer(one) for name, one in found.items()}
