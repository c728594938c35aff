"""Filtering, sorting and paging of measured rows, and the rows that equal a spec but for one dimension; with pyarrow.

Runs in the child process only, see `measured_child.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..features.errors import SpecError, listed
from ..features.kernel import families, get_family
from .measured_tables import HeldSet, HeldTables, columns_of, distinct
from .measured_wire import (
    FILTERS,
    MAX_POINTS,
    NONE_WORD,
    LikeAnswer,
    LikeDevice,
    LikeQuestion,
    MeasuredPoint,
    MeasuredSetsAnswer,
    MeasurementsAnswer,
    Question,
    RowsQuestion,
    SetsQuestion,
)

_OBJECTS = ("sizes", "config")
_AFTER = "cache_state"
"""Column the sizes stand behind."""


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one set and family that pass the filters, by position in its table."""

    set_name: str
    family: str
    table: pa.Table
    rows: pa.Array


def answer(held: HeldTables, question: Question) -> MeasuredSetsAnswer | MeasurementsAnswer | LikeAnswer:
    """The answer to any question.

    Raises:
        SpecError: a value or column there is none of; `field` is the parameter.
    """
    sets = held.sets()
    if isinstance(question, SetsQuestion):
        return MeasuredSetsAnswer([one.described() for one in sets])
    return page(sets, question) if isinstance(question, RowsQuestion) else like(sets, question)


def page(sets: Sequence[HeldSet], question: RowsQuestion) -> MeasurementsAnswer:
    """One page of the rows that pass the filters.

    Raises:
        SpecError: a filter's value is in none of the rows, or there is no such column to sort by.
    """
    wanted = question.filters.get("family", [])
    family = wanted[0] if len(wanted) == 1 else None
    chosen = [one for one in sets if one.name in (question.filters.get("set") or [one.name])]
    _check_values(chosen, question)
    columns = _columns(family)
    sortable = [name for name in columns if name not in _OBJECTS]
    if question.sort is not None and question.sort not in sortable:
        hint = "" if family else "; with one family given, its sizes too"
        raise SpecError(
            f"rows cannot be sorted by {question.sort!r}; possible are: {listed(sortable)}{hint}", field="sort"
        )
    parts = [
        Part(one.name, name, table, _passing(table, question))
        for one in chosen
        for name, table in one.tables.items()
        if not wanted or name in wanted
    ]
    total = sum(len(part.rows) for part in parts)
    rows: list[list[Any]] = [[] for _ in range(min(question.limit, max(0, total - question.offset)))]
    for part, places, positions in _on_page(parts, question):
        for place, row in zip(places, _cells(part, columns, positions), strict=True):
            rows[place] = row
    return MeasurementsAnswer(total, question.offset, columns, rows)


def _columns(family: str | None) -> list[str]:
    """Columns of an answer: those of the family, or those all families share with two for what differs."""
    if family is not None:
        return ["set", *columns_of(family)]
    known = list(families())
    shared = [name for name in columns_of(known[0]) if all(name in columns_of(one) for one in known[1:])]
    place = shared.index(_AFTER) + 1
    return ["set", *shared[:place], *_OBJECTS, *shared[place:]]


def _check_values(chosen: Sequence[HeldSet], question: RowsQuestion) -> None:
    """Refuse values that none of the rows has, for which an empty page would be a poor answer."""
    tables = [table for one in chosen for table in one.tables.values()]
    for name in FILTERS[1:]:
        possible = None
        for value in question.filters.get(name, ()):
            if possible is None:
                possible = distinct(tables, name)
            if value not in possible:
                where = f" in {listed(question.filters['set'])}" if question.filters.get("set") else ""
                what = f"those rows have: {listed(possible)}" if possible else "there are no rows yet"
                raise SpecError(f"no measured row{where} has the {name} {value!r}; {what}", field=name)


def _passing(table: pa.Table, question: RowsQuestion) -> pa.Array:
    """Positions of the rows that pass every filter."""
    mask = None
    for name in FILTERS[2:]:
        if values := question.filters.get(name):
            own = _is_one_of(table[name], values)
            mask = own if mask is None else pc.and_(mask, own)
    return _every(table) if mask is None else pc.indices_nonzero(mask)


def _every(table: pa.Table) -> pa.Array:
    return pc.indices_nonzero(pa.repeat(True, table.num_rows))


def _is_one_of(column: pa.ChunkedArray, values: Sequence[str]) -> pa.ChunkedArray:
    """Whether each cell is one of the names; `none` is an empty or a missing one."""
    names = ["" if value == NONE_WORD else value for value in values]
    return pc.is_in(pc.fill_null(column.cast(pa.string()), ""), pa.array(names, pa.string()))


def _on_page(parts: Sequence[Part], question: RowsQuestion) -> Iterable[tuple[Part, list[int], pa.Array]]:
    """For every part with rows on the page: where on the page each goes, and which rows of its table they are."""
    if question.sort is None:
        ends, chosen = 0, []
        for number, part in enumerate(parts):
            first = max(question.offset - ends, 0)
            last = min(question.offset + question.limit - ends, len(part.rows))
            chosen += [(number, at) for at in range(first, last)]
            ends += len(part.rows)
    else:
        chosen = _sorted(parts, question)
    by_part: dict[int, list[tuple[int, int]]] = {}
    for place, (number, at) in enumerate(chosen):
        by_part.setdefault(number, []).append((place, at))
    for number, pairs in by_part.items():
        positions = parts[number].rows.take(pa.array([at for _, at in pairs], pa.int64()))
        yield parts[number], [place for place, _ in pairs], positions


def _sorted(parts: Sequence[Part], question: RowsQuestion) -> list[tuple[int, int]]:
    """(part, position among its passing rows) of the page's rows; what is missing comes last, equal values as stored."""
    keys, owners, places = [], [], []
    for number, part in enumerate(parts):
        keys += _key(part, question.sort or "").chunks
        owners.append(pa.repeat(pa.scalar(number, pa.int32()), len(part.rows)))
        places.append(pa.array(range(len(part.rows)), pa.int64()))
    if not keys:
        return []
    columns = [pa.chunked_array(keys), pa.chunked_array(owners, pa.int32()), pa.chunked_array(places, pa.int64())]
    table = pa.table(columns, names=["key", "owner", "at"])
    order = pc.sort_indices(
        table,
        sort_keys=[
            ("key", "descending" if question.descending else "ascending"),
            ("owner", "ascending"),
            ("at", "ascending"),
        ],
    )
    shown = table.select(["owner", "at"]).take(order.slice(question.offset, question.limit))
    return list(zip(shown["owner"].to_pylist(), shown["at"].to_pylist(), strict=True))


def _key(part: Part, name: str) -> pa.ChunkedArray:
    if name == "set":
        return pa.chunked_array([pa.repeat(part.set_name, len(part.rows))])
    column = part.table[name].take(part.rows)
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _cells(part: Part, columns: Sequence[str], positions: pa.Array) -> list[list[Any]]:
    table = part.table.take(positions)
    family = get_family(part.family)
    groups = {"sizes": family.dim_names, "config": family.config}
    found: list[list[Any]] = []
    for name in columns:
        if name == "set":
            found.append([part.set_name] * table.num_rows)
        elif name in groups:
            parts = {one: table[one].to_pylist() for one in groups[name]}
            found.append([
                {one: values[row] for one, values in parts.items() if values[row] is not None}
                for row in range(table.num_rows)
            ])  # fmt: skip
        else:
            found.append(table[name].to_pylist())
    return [list(row) for row in zip(*found, strict=True)]


def like(sets: Sequence[HeldSet], question: LikeQuestion) -> LikeAnswer:
    """Measured points along one dimension, the median over runs of equal cases.

    A row is counted once although it may be both shipped and in the store. Threads not given are all cores of a CPU, in the
    question as in the rows; a GPU has none.
    """
    runs: dict[tuple[str, str, int, int], dict[tuple[Any, ...], tuple[float, float | None, float | None]]] = {}
    tables = [one.tables[question.family] for one in sets if question.family in one.tables]
    for device in question.devices:
        for table in tables:
            for row in _equal(table, question, device).to_pylist():
                threads = (row["threads"] or device.cores or 0) if device.cores else 0
                case = (device.name, row["impl"] or "", row[question.dim], threads)
                run = (row["measured_at"], row["block"], row["latency_s"])
                runs.setdefault(case, {})[run] = (row["latency_s"], row["power_w"], row["energy_j"])
    points = [_point(case, question, list(found.values())) for case, found in sorted(runs.items())]
    return LikeAnswer(question.dim, points[:MAX_POINTS], max(0, len(points) - MAX_POINTS))


def _equal(table: pa.Table, question: LikeQuestion, device: LikeDevice) -> pa.Table:
    mask = pc.and_(_is_one_of(table["device"], device.names), pc.and_(
        pc.equal(table["status"].cast(pa.string()), "ok"),
        pc.and_(pc.is_valid(table["latency_s"]), pc.is_valid(table[question.dim])),
    ))  # fmt: skip
    texts = {
        "dtype": question.dtype,
        "kv_dtype": question.kv_dtype or NONE_WORD,
        "variant": question.variant or NONE_WORD,
    }
    if question.impl:
        texts["impl"] = question.impl
    for name, value in texts.items():
        mask = pc.and_(mask, _is_one_of(table[name], [value]))
    mask = pc.and_(mask, pc.equal(pc.fill_null(table["cache_state"].cast(pa.string()), "hot"), question.cache_state))
    family = get_family(question.family)
    defaults = {dim.name: dim.default for dim in family.dims if dim.default is not None}
    for name, size in question.sizes.items():
        column = pc.fill_null(table[name], defaults[name]) if name in defaults else table[name]
        mask = pc.and_(mask, pc.fill_null(pc.equal(column, size), False))
    for name in family.config:
        if name != question.dim:
            knob = question.config.get(name)
            own = pc.is_null(table[name]) if knob is None else pc.fill_null(pc.equal(table[name], knob), False)
            mask = pc.and_(mask, own)
    if device.cores:
        wanted = question.threads or device.cores
        mask = pc.and_(mask, pc.equal(pc.fill_null(table["threads"], device.cores), wanted))
    names = {"impl", "threads", "measured_at", "block", "latency_s", "power_w", "energy_j", question.dim}
    return table.select(sorted(names)).filter(mask)


def _point(
    case: tuple[str, str, int, int], question: LikeQuestion, runs: Sequence[tuple[float, float | None, float | None]]
) -> MeasuredPoint:
    device, impl, value, threads = case
    latencies, powers, energies = zip(*runs, strict=True)
    return MeasuredPoint(
        device, value, median(latencies), _median(powers), _median(energies), threads or None, question.cache_state, impl,
        len(runs),
    )  # fmt: skip


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
