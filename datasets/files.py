"""Parquet files of rows: naming their provenance, and reading with care, whatever format they were written in."""

from __future__ import annotations

import base64
import contextlib
import json
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..features.errors import SpecError, listed
from .committing import StoreError, StoreWarning, clear_os_errors, commit_files
from .schema import FORMAT_VERSION, arrow_schema
from .upgrading import needed, upgraded

METADATA_KEY = b"kernelcast"
"""Key of the files' schema metadata: JSON `{"format_version": int, "provenance_zlib": text}`.

The text is base64 of zlib of JSON `{block: facts}`: blocks of a campaign differ in a few numbers, and uncompressed their facts
took ten times the room of the rows. Version 1 kept them as `"provenance": {block: facts}`.
"""

__all__ = [
    "METADATA_KEY",
    "StoreError",
    "StoreWarning",
    "clear_os_errors",
    "commit_files",
    "family_schema",
    "file_metadata",
    "parquet_bytes",
    "provenance_in",
    "provenance_of",
    "read_file",
    "read_files",
    "reading",
    "version_in",
]  # fmt: skip

WRITE_OPTIONS: Mapping[str, Any] = {"compression": "zstd", "compression_level": 9, "write_page_checksum": True}


def file_metadata(provenance: Mapping[str, Mapping[str, Any]], *, level: int = 9) -> dict[bytes, bytes]:
    """Schema metadata that holds the format version and `{block: facts}`, compressed by zlib at `level`.

    Raises:
        StoreError: the facts are not plain JSON.
    """
    try:
        plain = json.dumps({block: dict(facts) for block, facts in provenance.items()}, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"provenance facts must be plain JSON (numbers, text, lists, mappings): {error}") from error
    packed = base64.b64encode(zlib.compress(plain.encode(), level=level)).decode()
    return {METADATA_KEY: json.dumps({"format_version": FORMAT_VERSION, "provenance_zlib": packed}).encode()}


def provenance_of(table: pa.Table) -> dict[str, dict[str, Any]]:
    """`{block: facts}` from a table's metadata; empty for a table that has none."""
    return provenance_in(table.schema.metadata)


def provenance_in(metadata: Mapping[bytes, bytes] | None) -> dict[str, dict[str, Any]]:
    """`{block: facts}` from schema metadata; empty where there is none."""
    raw = (metadata or {}).get(METADATA_KEY)
    if raw is None:
        return {}
    content = json.loads(raw)
    if "provenance_zlib" not in content:
        return dict(content.get("provenance", {}))
    return dict(json.loads(zlib.decompress(base64.b64decode(content["provenance_zlib"]))))


def version_in(metadata: Mapping[bytes, bytes] | None, shown: str) -> int:
    """The format version of a file that messages call `shown`.

    Raises:
        StoreError: there is none, or it is newer than what this kernelcast reads.
    """
    raw = (metadata or {}).get(METADATA_KEY)
    version = json.loads(raw)["format_version"] if raw is not None else None
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        have = "no format version" if version is None else f"format version {version}"
        raise StoreError(f"{shown} has {have}; this kernelcast reads up to {FORMAT_VERSION}, a newer one may read it")
    return version


def parquet_bytes(table: pa.Table) -> bytes:
    """The table as one zstd Parquet file in memory, with a checksum in every page."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **WRITE_OPTIONS)
    return bytes(sink.getvalue())


def family_schema(family: str, columns: Sequence[str] | None = None) -> pa.Schema:
    """`schema.arrow_schema`, or the named columns of it in the order given.

    Raises:
        SpecError: unknown family or column.
    """
    schema = arrow_schema(family)
    if columns is None:
        return schema
    if unknown := sorted(set(columns) - set(schema.names)):
        raise SpecError(
            f"{family} rows have no column {unknown[0]!r}; they have: {listed(schema.names)}", field=unknown[0]
        )
    return pa.schema([schema.field(name) for name in columns])


def read_file(path: Path | str, schema: pa.Schema, source: pa.NativeFile | None = None) -> pa.Table:
    """The file's rows with the columns and types of `schema`, and the file's own metadata.

    Columns the file lacks (written before they existed) are made by `upgrading` or null; columns `schema` lacks are left out.
    `source` is the open file where it does not lie at `path`, which then only names it.

    Raises:
        StoreError: the file is damaged, not one of kernelcast's, or of a newer format.
    """
    shown = str(path)
    with reading(shown), pq.ParquetFile(path if source is None else source, page_checksum_verification=True) as file:
        metadata = file.schema_arrow.metadata
        version = version_in(metadata, shown)
        table = file.read(needed(version, schema.names, file.schema_arrow.names))
        table = upgraded(table, version, schema.names, facts_once(metadata))
        return fitted(table, schema).replace_schema_metadata(metadata)


def facts_once(metadata: Mapping[bytes, bytes] | None) -> Callable[[], dict[str, dict[str, Any]]]:
    """A function that unpacks the provenance when it is first asked for."""
    return cache(lambda: provenance_in(metadata))


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the columns and types of `schema`; null where it lacks one."""
    present = set(table.schema.names)
    columns = [
        table[field.name].cast(field.type) if field.name in present else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


@contextlib.contextmanager
def reading(shown: str) -> Iterator[None]:
    """Turn what Parquet says about a damaged file into a `StoreError`."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, zlib.error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StoreError(f"cannot read {shown}: {reason}") from error


def read_files(paths: Iterable[Path], schema: pa.Schema) -> pa.Table:
    """The rows of several files, in order, with merged provenance (`provenance_of`) in the metadata.

    A file that cannot be read gives a `StoreWarning` that names it and is left out.
    """
    tables: list[pa.Table] = []
    merged: dict[str, dict[str, Any]] = {}
    for path in paths:
        try:
            table = read_file(path, schema)
        except StoreError as error:
            warnings.warn(f"skipped a file, the others were read: {error}", StoreWarning, stacklevel=3)
            continue
        merged.update(provenance_of(table))
        tables.append(table.replace_schema_metadata(None))
    return pa.concat_tables(tables or [schema.empty_table()]).replace_schema_metadata(file_metadata(merged))
