"""The process that reads measured rows, so that the server needs no Arrow and a damaged table brings nothing else down.

It gets one question at a time on standard input and answers on standard output; `measurements.py` is the other side and
`measurements_wire.py` what they say. It ends by itself when its input does, and when nobody asked anything for a while. Rows
are in memory as Arrow: shipped tables are read once; the store is looked at before every question, and only new files are read.
"""

from __future__ import annotations

import logging
import os
import resource
import select
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ...datasets.shipped import SHIPPED_DIR, TILES_DIR, dataset_card, shipped_families
from ...datasets.store.errors import StoreError
from ...datasets.store.parquet_files import family_schema, file_metadata, provenance_of, read_file
from ...datasets.store.store import Store
from ...features.errors import SpecError, listed
from ...features.kernel import families, get_family
from ...process import private_stdout
from .measurements_like import is_one_of, like, nearest
from .measurements_wire import (
    FILTERS,
    HEAD,
    NONE_WORD,
    SHIPPED,
    STORE,
    TILES,
    LikeAnswer,
    LikeQuestion,
    MeasuredCard,
    MeasuredSet,
    MeasuredSetsAnswer,
    MeasurementsAnswer,
    NearestAnswer,
    Question,
    Refused,
    RowsQuestion,
    SetsQuestion,
)

TITLES: Mapping[str, str] = {
    SHIPPED: "Kernels measured by kernelcast",
    TILES: "Tile configurations measured by kernelcast",
    STORE: "Your own measurements",
}
CODED = ("family", "device", "dtype", "kv_dtype", "variant", "impl", "cache_state", "timing", "status", "energy_source",
         "energy_mode", "throttle", "source", "split", "block", "software")  # fmt: skip
"""Text columns with few distinct values, held as codes into a dictionary."""

_EMPTY = "No rows yet: `kernelcast measure cpu` measures this machine, `kernelcast data import` takes rows you have."
_Signature = tuple[Path, int, int]


@dataclass(slots=True)
class RowSet:
    """One set of measured rows.

    Attributes:
        name: Its name, one of `answer.SETS`.
        tables: A table per family, with the columns of `datasets.rows.schema.arrow_schema`.
        cards: Its cards.
        notes: Files that could not be read, and why.
    """

    name: str
    tables: dict[str, pa.Table] = field(default_factory=dict)
    cards: list[MeasuredCard] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def summary(self) -> MeasuredSet:
        """What is in it. The store's card is written when it is first asked for: counting a million rows takes seconds."""
        if self.name == STORE and self.tables and not self.cards:
            text = dataset_card(
                TITLES[STORE], self.tables, what="Rows of the store this server was started with.",
                licence="Whatever you decide: these rows are yours.", gaps=[f"Not read: {note}" for note in self.notes],
            )  # fmt: skip
            self.cards.append(MeasuredCard(TITLES[STORE], text))
        rows = sum(table.num_rows for table in self.tables.values())
        column = partial(distinct, self.tables.values())
        notes = self.notes if rows or self.notes else [_EMPTY]
        return MeasuredSet(
            self.name, TITLES[self.name], rows, sorted(self.tables), column("device"), column("dtype"), column("impl"),
            column("variant"), column("status"), self.cards, notes,
        )  # fmt: skip


class MeasuredTables:
    """All sets by name, the store's as it is now."""

    def __init__(self) -> None:
        self._store = Store()
        self._shipped = [_folder(SHIPPED, SHIPPED_DIR), _folder(TILES, TILES_DIR)]
        self._files: dict[_Signature, pa.Table | str] = {}
        self._user_rows = RowSet(STORE)

    def sets(self) -> list[RowSet]:
        """Every set, in the order they are listed."""
        files = list(_signatures(self._store.files()))
        if files != list(self._files):
            self._user_rows = self._read(files)
        return [*self._shipped, self._user_rows]

    def _read(self, files: list[_Signature]) -> RowSet:
        rows = RowSet(STORE)
        parts: dict[str, list[pa.Table]] = {}
        # Tables of files that were compacted or removed are dropped.
        self._files = {file: self._files[file] if file in self._files else self._table(file[0]) for file in files}
        for (path, _, _), table in self._files.items():
            if isinstance(table, str):
                rows.notes.append(table)
            else:
                parts.setdefault(_family_of(path), []).append(table)
        for family, tables in sorted(parts.items()):
            facts = {block: about for table in tables for block, about in provenance_of(table).items()}
            plain = [table.replace_schema_metadata(None) for table in tables]
            joined = pa.concat_tables(plain).unify_dictionaries().combine_chunks()
            rows.tables[family] = joined.replace_schema_metadata(file_metadata(facts))
        return rows

    def _table(self, path: Path) -> pa.Table | str:
        """A file's rows, or why they cannot be read."""
        family = _family_of(path)
        if family in families():
            try:
                return _coded(path, family)
            except StoreError as error:
                problem = str(error)
        else:
            problem = f"{path} is of the family {family!r}, which this kernelcast does not know"
        # Files are named as they lie in the store; where the store is on this machine is not for a client.
        return problem.replace(f"{self._store.root}/", "")


def distinct(tables: Iterable[pa.Table], column: str) -> list[str]:
    """Every value of a text column, sorted; `none` stands for the empty one and for null."""
    return sorted({value or NONE_WORD for table in tables for value in pc.unique(table[column]).to_pylist()})


def _folder(name: str, folder: Path) -> RowSet:
    rows = RowSet(name)
    for family in shipped_families(folder):
        try:
            rows.tables[family] = _coded(folder / f"{family}.parquet", family)
        except StoreError as error:
            rows.notes.append(str(error).replace(f"{folder}/", ""))
    for path in sorted(folder.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        rows.cards.append(MeasuredCard(text.partition("\n")[0].removeprefix("# "), text))
    return rows


def _coded(path: Path, family: str) -> pa.Table:
    """A file's rows, `CODED` columns as dictionaries.

    Raises:
        StoreError: it is damaged.
    """
    table = read_file(path, family_schema(family))
    try:
        # Text that is not UTF-8 would only be found when somebody asks for its row.
        table.validate(full=True)
        for place, name in enumerate(table.column_names):
            if name in CODED:
                table = table.set_column(place, name, table[name].combine_chunks().dictionary_encode())
    except pa.ArrowException as error:
        raise StoreError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
    return table.combine_chunks()


def _family_of(path: Path) -> str:
    return path.parent.parent.name.removeprefix("family=")


def _signatures(paths: Iterable[Path]) -> Iterable[_Signature]:
    for path in paths:
        try:
            state = path.stat()
        except FileNotFoundError:  # removed since the folder was listed
            continue
        yield path, state.st_mtime_ns, state.st_size


_OBJECTS = ("sizes", "config")
_BEFORE_SIZES = "timing"


def answer(
    tables: MeasuredTables, question: Question
) -> MeasuredSetsAnswer | MeasurementsAnswer | LikeAnswer | NearestAnswer:
    """The answer to any question.

    Raises:
        SpecError: a value or column there is none of; `field` is the parameter.
    """
    sets = tables.sets()
    if isinstance(question, SetsQuestion):
        return MeasuredSetsAnswer([rows.summary() for rows in sets])
    if isinstance(question, RowsQuestion):
        return page(sets, question)
    tables_of_family = [rows.tables[question.family] for rows in sets if question.family in rows.tables]
    if isinstance(question, LikeQuestion):
        return like(tables_of_family, question)
    return nearest(tables_of_family, question)


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
    parts = [
        (rows.name, name, table)
        for rows in chosen
        for name, table in rows.tables.items()
        if not wanted or name in wanted
    ]
    if not parts:
        return MeasurementsAnswer(0, question.offset, columns, [])
    passing = pa.concat_tables([_passing(i, set_name, table, question) for i, (set_name, _, table) in enumerate(parts)])
    if question.sort is not None:
        # Arrow's sort is stable.
        passing = passing.sort_by([("key", "descending" if question.descending else "ascending")])
    window = passing.slice(question.offset, question.limit)
    places = list(zip(window["part"].to_pylist(), window["row"].to_pylist(), strict=True))
    cells: dict[tuple[int, int], list[Any]] = {}
    for i in {part for part, _ in places}:
        set_name, name, table = parts[i]
        positions = [row for part, row in places if part == i]
        for position, row in zip(positions, table.take(pa.array(positions)).to_pylist(), strict=True):
            cells[i, position] = _cells(row | {"set": set_name}, name, columns)
    return MeasurementsAnswer(passing.num_rows, question.offset, columns, [cells[place] for place in places])


def _passing(part: int, set_name: str, table: pa.Table, question: RowsQuestion) -> pa.Table:
    """The rows that pass every filter: the part they are of, their positions, and what they are sorted by."""
    masks = [is_one_of(table[name], values) for name in FILTERS[2:] if (values := question.filters.get(name))]
    rows = pc.indices_nonzero(reduce(pc.and_, masks)) if masks else pa.array(range(table.num_rows), pa.uint64())
    positions = pa.table({"part": pa.repeat(part, len(rows)), "row": rows})
    if question.sort is None:
        return positions
    if question.sort == "set":
        return positions.append_column("key", pa.repeat(set_name, len(rows)))
    key = table[question.sort].take(rows)
    return positions.append_column("key", key.cast(pa.string()) if pa.types.is_dictionary(key.type) else key)


def _columns(family: str | None) -> list[str]:
    """Columns of an answer: those of the family, or those all families share with two for what differs."""
    if family is not None:
        return ["set", *family_schema(family).names]
    first, *others = (family_schema(name).names for name in families())
    shared = [name for name in first if all(name in other for other in others)]
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


if __name__ == "__main__":
    main(float(sys.argv[1]))
