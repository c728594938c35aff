"""The client's answers have the fields of the service's, though they share no code."""

from __future__ import annotations

import types
import typing

import msgspec
import pytest
from kernelcast.api.columns_wire import ColumnsAnswer
from kernelcast.api.compare_route import CompareAnswer
from kernelcast.api.mlir_wire import ProgramsAnswer
from kernelcast.api.rank_route import RankAnswer
from kernelcast.api.roofline_route import RooflineAnswer
from kernelcast.api.sweep_route import SweepAnswer
from kernelcast.api.wire import DeviceAnswer, PredictionAnswer, WholeAnswer
from kernelcast.client import Columns, Comparison, Device, Prediction, Programs, Ranking, Roofline, Sweep, Whole


def shape(kind: object) -> object:
    """A type as plain data: structs by their fields, whatever they are called."""
    while typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {field.name: shape(field.type) for field in msgspec.structs.fields(kind)}
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return ["any of", *sorted(map(repr, map(shape, typing.get_args(kind))))]
    if typing.get_origin(kind) is not None:
        return [str(typing.get_origin(kind)), *map(shape, typing.get_args(kind))]
    return str(kind)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Prediction, PredictionAnswer), (Columns, ColumnsAnswer), (Whole, WholeAnswer), (Programs, ProgramsAnswer),
        (Device, DeviceAnswer), (Ranking, RankAnswer), (Comparison, CompareAnswer), (Sweep, SweepAnswer),
        (Roofline, RooflineAnswer),
    ],
    ids=lambda kind: kind.__name__,
)  # fmt: skip
def test_answers_are_those_of_the_service(ours, theirs):
    assert shape(ours) == shape(theirs)
