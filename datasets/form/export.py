"""Rows of a store as files for others: Parquet with their provenance, CSV, or the bring-your-own-measurements form.

Rows are streamed: memory does not grow with them. A file has its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from ...features.errors import SpecError, listed
from ...features.kernel import get_family
from ...files import whole_file
from ..store.errors import StoreError, clear_os_errors
from ..store.parquet_files import WRITE_OPTIONS, family_schema, file_metadata, provenance_in, reading
from ..store.sql import MEMORY_B, StoreQuery, open_query
from ..store.store import Store

FORMATS = ("parquet", "csv", "form")
FORM_ROWS = 100_000
"""Rows of a file of the form in a folder: `import` judges a file as a whole, in memory."""

SHIPPED_HINT = "; `kernelcast data compact --with-shipped --out DIR` writes the rows that come with kernelcast"
"""What helps where a store has none."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, rows done, and 0, since nobody knows of how many."""

_FORM_HEAD = ("family", "device", "dtype", "kv_dtype", "variant", "impl", "threads", "cache_state", "timing")
_FORM_LABELS = ("latency_s", "power_w", "power_limit_w", "energy_j", "source", "split")


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote.

    Attributes:
        files: The files.
        rows: Rows in all of them.
        families: Rows by family.
    """

    files: tuple[Path, ...]
    rows: int
    families: MappingProxyType[str, int]


def export(
    store: Store,
    out: Path,
    *,
    fmt: str | None = None,
    families: Sequence[str] = (),
    devices: Sequence[str] = (),
    where: str | None = None,
    memory_b: float = MEMORY_B,
    progress: Progress = lambda what, done, total: None,
) -> Exported:
    """Write rows of a store to `out`: one file where it ends in .parquet or .csv, else a folder with a file per family.

    Args:
        store: what to read.
        out: a file, for one family, or a folder.
        fmt: `parquet` (all columns and the provenance of the rows), `csv` (all columns), or `form` (measured rows only, the
            columns of the form; a file's suffix says whether it is CSV or Parquet, in a folder it is Parquet, in files of
            `FORM_ROWS`); default: what the file's suffix says, `parquet` for a folder.
        families: only these; default: all that the store has.
        devices: only these, as the store names them.
        where: only rows for which this SQL condition holds, see `datasets.store.sql`.
        memory_b: bytes that a condition may take to judge.
        progress: called with the rows written.

    Raises:
        SpecError: no such family, no row, a condition that cannot be understood, or a format that does not go with `out`.
        StoreError: the store cannot be read, or `out` not written.
        ImportError: `where` without DuckDB.
    """
    store.check_outside(out)
    wanted = sorted({get_family(name).name for name in families} or set(store.families()))
    form, suffix = _format(out, fmt)
    single = out.suffix.lower() in SUFFIXES
    if single and len(wanted) > 1:
        raise SpecError(
            f"{out} is one file and there are {len(wanted)} families ({listed(wanted)}); name one with --family, or give a "
            "folder", field="out",
        )  # fmt: skip
    if not single:
        with clear_os_errors(out):
            out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, int] = {}
    files: list[Path] = []
    with contextlib.nullcontext() if where is None else open_query(store, memory_b=memory_b) as query:
        source = _Source(store, tuple(devices), where, form, query)
        for family in wanted:
            parted = form and not single
            # Asked before the rows are: a connection answers one question at a time.
            metadata = source.metadata(family) if suffix == ".parquet" else None
            tables = regrouped(source.batches(family), source.schema(family), FORM_ROWS if parted else GROUP_ROWS)
            for path, part in _placed(tables, out, family, suffix, single=single, parted=parted):
                with row_file(path, source.schema(family), metadata) as file:
                    for table in part:
                        progress(f"writing {family}", rows.get(family, 0), 0)
                        file.write_table(table)
                        rows[family] = rows.get(family, 0) + table.num_rows
                files.append(path)
    if not files:
        there = sorted({folder.device for family in wanted for folder in store.folders(family)})
        raise SpecError(
            f"no {'measured ' if form else ''}row of {store.location.name} is of {listed(wanted)}"
            f"{f' and {listed(devices)}' if devices else ''}{'' if where is None else f' with {where}'}; nothing was written; "
            f"devices there: {listed(there) or 'none'}{'' if there else SHIPPED_HINT}", field="where",
        )  # fmt: skip
    return Exported(tuple(files), sum(rows.values()), MappingProxyType(rows))


def form_columns(family: str) -> list[str]:
    """Columns of the form for one family, in order."""
    fam = get_family(family)
    return [*_FORM_HEAD, *fam.dim_names, *fam.config, *_FORM_LABELS]


@dataclass(frozen=True, slots=True)
class _Source:
    """Which rows, and where from: by SQL where there is a condition, else by `Store.scan`."""

    store: Store
    devices: tuple[str, ...]
    where: str | None
    form: bool
    query: StoreQuery | None

    def schema(self, family: str) -> pa.Schema:
        return family_schema(family, form_columns(family) if self.form else None)

    def batches(self, family: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        names = list(columns or self.schema(family).names)
        if self.query is not None:
            return self._queried(family, names, self.query)
        measured = pc.field("status") == "ok" if self.form else None
        return self.store.scan(family, self.devices or None, names, where=measured)

    def metadata(self, family: str) -> dict[bytes, bytes]:
        """The provenance of the rows' blocks, and of no others, as `parquet_files.file_metadata` packs it."""
        used: set[str] = set()
        for batch in self.batches(family, ["block"]):
            used.update(batch["block"].unique().to_pylist())
        facts: dict[str, Any] = {}
        for name in (name for device in self.devices or ("*",) for name in self.store.names(family, device)):
            # A file that cannot be read was named when its rows were asked for.
            with (
                contextlib.suppress(StoreError), reading(name), self.store.location.open(name) as source,
                pq.ParquetFile(source) as file,
            ):  # fmt: skip
                of_file = provenance_in(file.schema_arrow.metadata)
                facts.update((block, content) for block, content in of_file.items() if block in used)
        return file_metadata(facts)

    def _queried(self, family: str, names: Sequence[str], query: StoreQuery) -> Iterator[pa.RecordBatch]:
        if family not in query.views:
            return
        conditions = [f"(\n{self.where}\n)"]
        if self.devices:
            conditions.append(
                "device IN (" + ", ".join("'" + name.replace("'", "''") + "'" for name in self.devices) + ")"
            )
        if self.form:
            conditions.append("status = 'ok'")
        columns = ", ".join(f'"{name}"' for name in names)
        answer = query.ask(f'SELECT {columns} FROM "{family}" WHERE {" AND ".join(conditions)}')  # noqa: S608 - see `datasets.store.sql`
        schema = family_schema(family, names)
        for batch in answer.batches:
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _format(out: Path, fmt: str | None) -> tuple[bool, str]:
    """Whether it is the form, and the suffix of its files."""
    suffix = out.suffix.lower()
    single = suffix in SUFFIXES
    if fmt is not None and fmt not in FORMATS:
        raise SpecError(f"format {fmt!r} is not known; formats: {listed(FORMATS)}", field="format")
    if fmt in ("parquet", "csv") and single and suffix != f".{fmt}":
        raise SpecError(f"{out} does not end in .{fmt}; rename it, or leave --format out", field="format")
    if out.is_dir() and single:
        raise SpecError(f"{out} is a folder with a file's name; give a file, or a folder of another name", field="out")
    if out.exists() and not out.is_dir() and not single:
        raise SpecError(f"{out} is a file; give a folder, or a file that ends in .parquet or .csv", field="out")
    return fmt == "form", suffix if single else ".csv" if fmt == "csv" else ".parquet"


def _placed(
    tables: Iterator[pa.Table], out: Path, family: str, suffix: str, *, single: bool, parted: bool
) -> Iterator[tuple[Path, Iterator[pa.Table]]]:
    """Each file with the tables that go into it; none for no rows."""
    if parted:
        yield from (
            (out / f"{family}-{number:04d}{suffix}", iter([table])) for number, table in enumerate(tables, start=1)
        )
        return
    first = next(tables, None)
    if first is not None:
        yield out if single else out / f"{family}{suffix}", itertools.chain([first], tables)


SUFFIXES = (".parquet", ".csv")
GROUP_ROWS = 2**17
"""Rows of a row group: some 60 MB in memory with all columns of the widest family."""


def write_answer(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path) -> int:
    """Write rows of any columns to a .csv or .parquet file in bounded memory; returns how many.

    Raises:
        SpecError: another suffix, or a column that the format has no form for.
        StoreError: the file cannot be written.
    """
    check_suffix(path)
    for field in schema:
        nested = pa.types.is_nested(field.type) and path.suffix.lower() == ".csv"
        if nested or _without_form(field.type):
            raise SpecError(
                f"column {field.name!r} holds {field.type}, for which {path.suffix} has no form; make text or numbers of it",
                field="sql",
            )
    rows = 0
    with row_file(path, schema) as file:
        for table in regrouped(batches, schema, GROUP_ROWS):
            file.write_table(table)
            rows += table.num_rows
    return rows


def _without_form(kind: pa.DataType) -> bool:
    """Whether it is, or holds, what neither format has a form for."""
    inside = (kind.field(i).type for i in range(kind.num_fields))
    return pa.types.is_interval(kind) or pa.types.is_union(kind) or any(map(_without_form, inside))


def check_suffix(path: Path) -> None:
    """That a file's name says which format it has.

    Raises:
        SpecError: it does not.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise SpecError(f"{path} ends in neither {' nor '.join(SUFFIXES)}", field="out")


def regrouped(batches: Iterable[pa.RecordBatch], schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
    """The rows in tables of `rows`, the last of fewer; none for no rows."""
    waiting: list[pa.RecordBatch] = []
    waiting_rows = 0
    for batch in batches:
        waiting.append(batch)
        waiting_rows += batch.num_rows
        if waiting_rows >= rows:
            table = pa.Table.from_batches(waiting, schema)
            for start in range(0, waiting_rows - waiting_rows % rows, rows):
                yield table.slice(start, rows)
            rest = table.slice(waiting_rows - waiting_rows % rows)
            waiting, waiting_rows = rest.to_batches(), rest.num_rows
    if waiting_rows:
        yield pa.Table.from_batches(waiting, schema)


class _CsvFile:
    """A CSV file in which no cell of text is a formula to a spreadsheet."""

    def __init__(self, writer: pa_csv.CSVWriter) -> None:
        self._writer = writer

    def write_table(self, table: pa.Table) -> None:
        """Append rows."""
        self._writer.write_table(without_formulas(table))


FORMULA = r"^[=+\-@\t\r]"
"""How a cell begins that a spreadsheet computes (OWASP, CSV Injection). Text alone: numbers are no formulas."""


def without_formulas(table: pa.Table) -> pa.Table:
    """The table with an apostrophe before every text that a spreadsheet would compute."""
    for i, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            quoted = pc.binary_join_element_wise(pa.scalar("'", field.type), table[i], pa.scalar("", field.type))
            table = table.set_column(
                i, field, pc.if_else(pc.match_substring_regex(table[i], FORMULA), quoted, table[i])
            )
    return table


@contextlib.contextmanager
def row_file(
    path: Path, schema: pa.Schema, metadata: Mapping[bytes, bytes] | None = None
) -> Iterator[pq.ParquetWriter | _CsvFile]:
    """A .csv or .parquet file to write, in place of one that is there; nothing is left of it where the body fails.

    Raises:
        StoreError: the file cannot be written.
    """
    with clear_os_errors(path), whole_file(path) as temporary:
        if path.suffix.lower() == ".csv":
            with temporary.open("wb") as sink, pa_csv.CSVWriter(sink, schema) as csv_file:
                yield _CsvFile(csv_file)
        else:
            with pq.ParquetWriter(temporary, schema.with_metadata(metadata), **WRITE_OPTIONS) as file:
                yield file
