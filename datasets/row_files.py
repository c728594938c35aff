"""Files written row group by row group, which have their name only when they are complete: CSV and Parquet."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from ..features.errors import SpecError
from .committing import clear_os_errors
from .files import WRITE_OPTIONS

SUFFIXES = (".parquet", ".csv")
GROUP_ROWS = 2**17
"""Rows of a row group: some 60 MB in memory with all columns of the widest family."""


class RowFile(Protocol):
    """A file that takes rows table by table."""

    def write_table(self, table: pa.Table) -> None:
        """Add rows; a row group of their own in Parquet."""


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
    held = 0
    for batch in batches:
        waiting.append(batch)
        held += batch.num_rows
        if held >= rows:
            table = pa.Table.from_batches(waiting, schema)
            for start in range(0, held - held % rows, rows):
                yield table.slice(start, rows)
            rest = table.slice(held - held % rows)
            waiting, held = rest.to_batches(), rest.num_rows
    if held:
        yield pa.Table.from_batches(waiting, schema)


@contextlib.contextmanager
def row_file(path: Path, schema: pa.Schema, metadata: Mapping[bytes, bytes] | None = None) -> Iterator[RowFile]:
    """A .csv or .parquet file to write, in place of one that is there; nothing is left of it where the body fails.

    Raises:
        StoreError: the file cannot be written.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with clear_os_errors(path):
            if path.suffix.lower() == ".csv":
                with scratch.open("wb") as sink, pa_csv.CSVWriter(sink, schema) as csv_file:
                    yield csv_file
            else:
                with pq.ParquetWriter(scratch, schema.with_metadata(metadata), **WRITE_OPTIONS) as file:
                    yield file
            scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
