"""Measured rows that are like a spec: along one size or knob, or nearest to it. Runs in the process that reads rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from math import log2
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...features.kernel import get_family
from .measurements_wire import (
    MAX_POINTS,
    NONE_WORD,
    LikeAnswer,
    LikeDevice,
    LikeQuestion,
    MeasuredPoint,
    NearestAnswer,
    NearestCase,
    NearestQuestion,
    SpecQuestion,
)


def is_one_of(column: pa.ChunkedArray, values: Sequence[str]) -> pa.ChunkedArray:
    """Whether each cell is one of the names; `none` is an empty or a missing one."""
    names = ["" if value == NONE_WORD else value for value in values]
    return pc.is_in(pc.fill_null(column.cast(pa.string()), ""), pa.array(names, pa.string()))


def like(tables: Sequence[pa.Table], question: LikeQuestion) -> LikeAnswer:
    """Measured points along one dimension, the median over runs of equal cases.

    A row is counted once although it may be both shipped and in the store. Threads not given are all cores of a CPU, in the
    question as in the rows; a GPU has none.
    """
    runs: dict[tuple[str, str, int, int], dict[tuple[Any, ...], dict[str, Any]]] = {}
    for device in question.devices:
        for table in tables:
            for row in _equal(table, question, device, question.dim).to_pylist():
                threads = _threads(row, device)
                case = (device.name, row["impl"] or "", row[question.dim], threads)
                runs.setdefault(case, {})[row["measured_at"], row["block"], row["latency_s"]] = row
    points = [
        MeasuredPoint(
            device, value, median(row["latency_s"] for row in rows.values()), _median(row["power_w"] for row in rows.values()),
            _median(row["energy_j"] for row in rows.values()), threads or None, question.cache_state, impl, len(rows),
        )
        for (device, impl, value, threads), rows in sorted(runs.items())
    ]  # fmt: skip
    return LikeAnswer(question.dim, question.timing, points[:MAX_POINTS], max(0, len(points) - MAX_POINTS))


def nearest(tables: Sequence[pa.Table], question: NearestQuestion) -> NearestAnswer:
    """The measured case on each device that is nearest to a spec: the size that differs most differs least.

    Ties go to the case with the most runs.
    """
    names = list(question.sizes)
    defaults = _defaults(question.family)
    cases = []
    for device in question.devices:
        runs: dict[tuple[Any, ...], dict[tuple[Any, ...], dict[str, Any]]] = {}
        for table in tables:
            for row in _equal(table, question, device, None).to_pylist():
                sizes = tuple(row[name] or defaults.get(name, 0) for name in names)
                case = (sizes, row["impl"] or "", _threads(row, device))
                runs.setdefault(case, {})[row["measured_at"], row["block"], row["latency_s"]] = row
        away = {case: _doublings(case[0], question.sizes.values()) for case in runs}
        if not runs:
            continue
        best = min(runs, key=lambda case: (away[case], -len(runs[case]), case))
        rows = runs[best].values()
        sizes, impl, threads = best
        cases.append(NearestCase(
            device.name, away[best], dict(zip(names, sizes, strict=True)), median(row["latency_s"] for row in rows),
            _median(row["power_w"] for row in rows), _median(row["energy_j"] for row in rows), threads or None, impl, len(rows),
        ))  # fmt: skip
    return NearestAnswer(question.timing, cases)


def _doublings(sizes: Iterable[int], wanted: Iterable[int]) -> float:
    """By how many doublings the size that differs most differs; a size of 0, such as no window, differs from any other by one
    more than from 1.
    """
    return max((abs(_log2(size) - _log2(other)) for size, other in zip(sizes, wanted, strict=True)), default=0.0)


def _log2(size: int) -> float:
    return log2(size) if size > 0 else -1.0


def _threads(row: Mapping[str, Any], device: LikeDevice) -> int:
    return (row["threads"] or device.cores or 0) if device.cores else 0


def _defaults(family: str) -> dict[str, int]:
    return {dim.name: dim.default for dim in get_family(family).dims if dim.default is not None}


def _equal(table: pa.Table, question: SpecQuestion, device: LikeDevice, dim: str | None) -> pa.Table:
    """The rows on a device that equal the question's spec in everything but a dimension; None: but all sizes."""
    family = get_family(question.family)
    defaults = _defaults(question.family)
    varying = [dim] if dim else list(family.dim_names)
    timings = ["call"] if question.timing == "call" else ["device", NONE_WORD]
    texts = {
        "device": device.names, "status": ["ok"], "dtype": [question.dtype], "kv_dtype": [question.kv_dtype or NONE_WORD],
        "variant": [question.variant or NONE_WORD],
    } | ({"impl": [question.impl]} if question.impl else {}) | ({} if device.cores else {"timing": timings})  # fmt: skip
    hot = pc.fill_null(table["cache_state"].cast(pa.string()), "hot")
    masks = [pc.is_valid(table["latency_s"]), pc.equal(hot, question.cache_state)]
    masks += [pc.is_valid(table[dim])] if dim else []
    masks += [is_one_of(table[name], values) for name, values in texts.items()]
    for name, size in question.sizes.items() if dim else ():
        column = pc.fill_null(table[name], defaults[name]) if name in defaults else table[name]
        masks.append(pc.fill_null(pc.equal(column, size), False))
    for name in family.config:
        if name != dim:
            knob = question.config.get(name)
            masks.append(pc.is_null(table[name]) if knob is None else pc.fill_null(pc.equal(table[name], knob), False))
    if device.cores:
        masks.append(pc.equal(pc.fill_null(table["threads"], device.cores), question.threads or device.cores))
    names = {"impl", "threads", "measured_at", "block", "latency_s", "power_w", "energy_j", *varying}
    return table.select(sorted(names)).filter(reduce(pc.and_, masks))


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
