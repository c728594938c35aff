"""The process that reads measured rows, so that the server needs no Arrow and a damaged table brings nothing else down.

It gets one question at a time on standard input and answers on standard output; `endpoint.py` is the other side and
`answer.py` what they say. It ends by itself when its input does, and when nobody asked anything for a while.
"""

from __future__ import annotations

import logging
import os
import resource
import select
import signal
import sys
from collections.abc import Iterable, Sequence
from functools import reduce
from statistics import median
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....features.errors import SpecError, listed
from ....features.kernel import families, get_family
from ....process import private_stdout
from .answer import (
    FILTERS,
    HEAD,
    MAX_POINTS,
    NONE_WORD,
    LikeAnswer,
    LikeDevice,
    LikeQuestion,
    MeasuredPoint,
    MeasuredSetsAnswer,
    MeasurementsAnswer,
    Question,
    Refused,
    RowsQuestion,
    SetsQuestion,
)
from .tables import MeasuredTables, RowSet, columns_of, distinct

_MEMORY_B = 8 << 30
"""Most address space, most of it reserved rather than used: the shipped rows take about 150 MB in all."""

_MAX_QUESTION_S = 30
"""It ends by itself when a question takes longer, should its parent no longer be there to end it."""


def main(idle_s: float) -> None:
    """Answer questions until standard input ends, or none came for `idle_s` seconds."""
    for limit, maximum in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, _MEMORY_B)):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (maximum if hard < 0 else min(maximum, hard), hard))
    questions, replies = os.fdopen(os.dup(0), "rb"), private_stdout()
    pa.set_cpu_count(1)
    tables = MeasuredTables()
    tables.sets()
    replies.write(HEAD.pack(200, 0))
    replies.flush()
    while select.select([questions], [], [], idle_s)[0]:
        # There is one question at a time, so that none is left in the buffer, where `select` would not see it.
        head = questions.read(HEAD.size)
        if len(head) < HEAD.size:
            return
        question = questions.read(HEAD.unpack(head)[1])
        signal.alarm(_MAX_QUESTION_S)
        status, reply = _reply(tables, question)
        signal.alarm(0)
        replies.write(HEAD.pack(status, len(reply)) + reply)
        replies.flush()


def _reply(tables: MeasuredTables, raw: bytes) -> tuple[int, bytes]:
    try:
        return 200, msgspec.json.encode(answer(tables, msgspec.json.decode(raw, type=Question)))
    except SpecError as error:
        return 422, msgspec.json.encode(Refused(error.field or "", str(error)))
    except MemoryError:
        return 503, msgspec.json.encode(Refused("", "the measured rows exceed their memory limit"))
    except Exception:  # whatever a table brings up, the next question is answered
        logging.getLogger(__name__).exception("a question about measured rows failed")
        return 500, msgspec.json.encode(Refused("", "the measured rows could not be read; it has been logged"))


_OBJECTS = ("sizes", "config")
_BEFORE_SIZES = "cache_state"

Part = tuple[str, str, pa.Table, npt.NDArray[np.int64]]
"""A set's name, a family, its table, and the positions of the rows that pass the filters."""


def answer(tables: MeasuredTables, question: Question) -> MeasuredSetsAnswer | MeasurementsAnswer | LikeAnswer:
    """The answer to any question.

    Raises:
        SpecError: a value or column there is none of; `field` is the parameter.
    """
    sets = tables.sets()
    if isinstance(question, SetsQuestion):
        return MeasuredSetsAnswer([rows.summary() for rows in sets])
    return page(sets, question) if isinstance(question, RowsQuestion) else like(sets, question)


def page(sets: Sequence[RowSet], question: RowsQuestion) -> MeasurementsAnswer:
    """One page of the rows that pass the filters; missing values sort last, equal ones stay as stored.

    Raises:
        SpecError: a filter's value is in none of the rows, or there is no such column to sort by.
    """
    wanted = question.filters.get("family", [])
    family = wanted[0] if len(wanted) == 1 else None
    chosen = [rows for rows in sets if rows.name in (question.filters.get("set") or [rows.name])]
    _check_values(chosen, question)
    columns = _columns(family)
    sortable = [name for name in columns if name not in _OBJECTS]
    if question.sort is not None and question.sort not in sortable:
        hint = "" if family else "; with one family given, its sizes too"
        raise SpecError(
            f"rows cannot be sorted by {question.sort!r}; possible are: {listed(sortable)}{hint}", field="sort"
        )
    parts: list[Part] = [
        (rows.name, name, table, _passing(table, question))
        for rows in chosen
        for name, table in rows.tables.items()
        if not wanted or name in wanted
    ]
    ends = np.cumsum([len(positions) for *_, positions in parts], dtype=np.int64)
    total = int(ends[-1]) if parts else 0
    window = slice(question.offset, question.offset + question.limit)
    order = np.arange(total)[window] if question.sort is None else _sorted(parts, question)[window]
    owners = np.searchsorted(ends, order, side="right")
    cells: dict[int, list[Any]] = {}
    for owner in np.unique(owners).tolist():
        set_name, name, table, positions = parts[owner]
        places = np.flatnonzero(owners == owner)
        rows = positions[order[places] - (ends[owner] - len(positions))]
        for place, row in zip(places.tolist(), table.take(pa.array(rows)).to_pylist(), strict=True):
            cells[place] = _cells(row | {"set": set_name}, name, columns)
    return MeasurementsAnswer(total, question.offset, columns, [cells[place] for place in range(len(order))])


def _columns(family: str | None) -> list[str]:
    """Columns of an answer: those of the family, or those all families share with two for what differs."""
    if family is not None:
        return ["set", *columns_of(family)]
    known = list(families())
    shared = [name for name in columns_of(known[0]) if all(name in columns_of(other) for other in known[1:])]
    place = shared.index(_BEFORE_SIZES) + 1
    return ["set", *shared[:place], *_OBJECTS, *shared[place:]]


def _cells(row: dict[str, Any], family: str, columns: Sequence[str]) -> list[Any]:
    known = get_family(family)
    for group, names in zip(_OBJECTS, (known.dim_names, known.config), strict=True):
        row[group] = {name: row[name] for name in names if row[name] is not None}
    return [row[name] for name in columns]


def _check_values(chosen: Sequence[RowSet], question: RowsQuestion) -> None:
    """Refuse values that none of the rows has, for which an empty page would be a poor answer."""
    tables = [table for rows in chosen for table in rows.tables.values()]
    for name in FILTERS[1:]:
        values = question.filters.get(name, ())
        possible = distinct(tables, name) if values else []
        if missing := [value for value in values if value not in possible]:
            where = f" in {listed(question.filters['set'])}" if question.filters.get("set") else ""
            what = f"those rows have: {listed(possible)}" if possible else "there are no rows yet"
            raise SpecError(f"no measured row{where} has the {name} {missing[0]!r}; {what}", field=name)


def _passing(table: pa.Table, question: RowsQuestion) -> npt.NDArray[np.int64]:
    """Positions of the rows that pass every filter."""
    masks = [_is_one_of(table[name], values) for name in FILTERS[2:] if (values := question.filters.get(name))]
    if not masks:
        return np.arange(table.num_rows)
    positions: npt.NDArray[np.int64] = np.flatnonzero(reduce(pc.and_, masks).to_numpy())
    return positions


def _is_one_of(column: pa.ChunkedArray, values: Sequence[str]) -> pa.ChunkedArray:
    """Whether each cell is one of the names; `none` is an empty or a missing one."""
    names = ["" if value == NONE_WORD else value for value in values]
    return pc.is_in(pc.fill_null(column.cast(pa.string()), ""), pa.array(names, pa.string()))


def _sorted(parts: Sequence[Part], question: RowsQuestion) -> npt.NDArray[np.int64]:
    """Positions of all passing rows, counted through the parts, in the order asked for. Arrow's sort is stable."""
    keys: list[pa.Array] = []
    for set_name, _, table, positions in parts:
        if question.sort == "set":
            keys.append(pa.repeat(set_name, len(positions)))
        else:
            column = table[question.sort].take(pa.array(positions))
            keys += (column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column).chunks
    if not keys:
        return np.arange(0)
    direction = "descending" if question.descending else "ascending"
    indices = pc.sort_indices(pa.table([pa.chunked_array(keys)], names=["key"]), sort_keys=[("key", direction)])
    return np.asarray(indices.to_numpy(), dtype=np.int64)


def like(sets: Sequence[RowSet], question: LikeQuestion) -> LikeAnswer:
    """Measured points along one dimension, the median over runs of equal cases.

    A row is counted once although it may be both shipped and in the store. Threads not given are all cores of a CPU, in the
    question as in the rows; a GPU has none.
    """
    runs: dict[tuple[str, str, int, int], dict[tuple[Any, ...], dict[str, Any]]] = {}
    tables = [rows.tables[question.family] for rows in sets if question.family in rows.tables]
    for device in question.devices:
        for table in tables:
            for row in _equal(table, question, device).to_pylist():
                threads = (row["threads"] or device.cores or 0) if device.cores else 0
                case = (device.name, row["impl"] or "", row[question.dim], threads)
                runs.setdefault(case, {})[row["measured_at"], row["block"], row["latency_s"]] = row
    points = [
        MeasuredPoint(
            device, value, median(row["latency_s"] for row in rows.values()), _median(row["power_w"] for row in rows.values()),
            _median(row["energy_j"] for row in rows.values()), threads or None, question.cache_state, impl, len(rows),
        )
        for (device, impl, value, threads), rows in sorted(runs.items())
    ]  # fmt: skip
    return LikeAnswer(question.dim, points[:MAX_POINTS], max(0, len(points) - MAX_POINTS))


def _equal(table: pa.Table, question: LikeQuestion, device: LikeDevice) -> pa.Table:
    """The rows on a device that equal the question's spec in everything but its dimension."""
    family = get_family(question.family)
    defaults = {dim.name: dim.default for dim in family.dims if dim.default is not None}
    texts = {
        "device": device.names, "status": ["ok"], "dtype": [question.dtype], "kv_dtype": [question.kv_dtype or NONE_WORD],
        "variant": [question.variant or NONE_WORD],
    } | ({"impl": [question.impl]} if question.impl else {})  # fmt: skip
    hot = pc.fill_null(table["cache_state"].cast(pa.string()), "hot")
    masks = [pc.is_valid(table["latency_s"]), pc.is_valid(table[question.dim]), pc.equal(hot, question.cache_state)]
    masks += [_is_one_of(table[name], values) for name, values in texts.items()]
    for name, size in question.sizes.items():
        column = pc.fill_null(table[name], defaults[name]) if name in defaults else table[name]
        masks.append(pc.fill_null(pc.equal(column, size), False))
    for name in family.config:
        if name != question.dim:
            knob = question.config.get(name)
            masks.append(pc.is_null(table[name]) if knob is None else pc.fill_null(pc.equal(table[name], knob), False))
    if device.cores:
        masks.append(pc.equal(pc.fill_null(table["threads"], device.cores), question.threads or device.cores))
    names = {"impl", "threads", "measured_at", "block", "latency_s", "power_w", "energy_j", question.dim}
    return table.select(sorted(names)).filter(reduce(pc.and_, masks))


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


if __name__ == "__main__":
    main(float(sys.argv[1]))
