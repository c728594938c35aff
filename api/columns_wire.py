"""Answers in columns: the types that are encoded, with lists of numbers and no object per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from ..features.coded import Words
from ..models.prediction import Predictions, TargetColumns


class IntervalColumns(msgspec.Struct, frozen=True):
    """Predicted values with their intervals, one per row, in the SI unit the field's name ends in; null where unknown."""

    value: list[float | None]
    lower: list[float | None]
    upper: list[float | None]


class WordsColumn(msgspec.Struct, frozen=True):
    """Words, each once, and which of them each row has."""

    words: list[str]
    codes: Annotated[list[int], Meta(description="Positions in `words`, one per row")]


class RowNotes(msgspec.Struct, frozen=True):
    """Notes that rows share."""

    rows: Annotated[list[int], Meta(description="Positions of the rows")]
    notes: list[str]


class ColumnsAnswer(msgspec.Struct, frozen=True):
    """Predictions in columns, in the order of the request's rows."""

    family: Annotated[str, Meta(description="Kernel family")]
    n: Annotated[int, Meta(description="Number of rows")]
    coverage: Annotated[float, Meta(description="Share of cases the intervals are built to contain")]
    latency_s: Annotated[IntervalColumns, Meta(description="Time of one run in seconds")]
    power_w: Annotated[IntervalColumns | None, Meta(description="Mean power in watts; null where no row's is known")]
    energy_j: Annotated[IntervalColumns | None, Meta(description="Energy of one run; null where no row's is known")]
    bound: Annotated[WordsColumn, Meta(description="The limit that binds on paper: compute, dram, cache, launch")]
    method: Annotated[WordsColumn, Meta(description="How the prediction came about, with any stand-in")]
    in_domain: Annotated[list[bool], Meta(description="Whether the model was trained on cases like each row")]
    notes: Annotated[
        list[RowNotes], Meta(description="Why rows are out of domain, and other cautions; equal ones together")
    ]


def columns_answer(family: str, found: Predictions) -> ColumnsAnswer:
    """Predictions of one family as they are sent in columns."""
    return ColumnsAnswer(
        family=family,
        n=len(found),
        coverage=found.coverage,
        latency_s=interval_columns(found.targets["latency_s"]),
        power_w=known_columns(found.targets["power_w"]),
        energy_j=known_columns(found.targets["energy_j"]),
        bound=_column(found.bound),
        method=_column(found.method),
        in_domain=found.in_domain.tolist(),
        notes=_grouped(found.notes),
    )


def interval_columns(found: TargetColumns) -> IntervalColumns:
    """Columns as lists; a NaN is encoded as null."""
    return IntervalColumns(found.value.tolist(), found.lower.tolist(), found.upper.tolist())


def known_columns(found: TargetColumns) -> IntervalColumns | None:
    """Columns as lists, None where no row is known."""
    return None if np.isnan(found.value).all() else interval_columns(found)


def _column(found: Any) -> WordsColumn:
    if isinstance(found, Words):
        return WordsColumn(list(found.words), found.code.tolist())
    number = {word: i for i, word in enumerate(dict.fromkeys(found))}
    return WordsColumn(list(number), list(map(number.__getitem__, found)))


def _grouped(notes: Sequence[tuple[str, ...]]) -> list[RowNotes]:
    rows: dict[tuple[str, ...], list[int]] = {}
    for i, said in enumerate(notes):
        if said:
            rows.setdefault(said, []).append(i)
    return [RowNotes(where, list(said)) for said, where in rows.items()]
