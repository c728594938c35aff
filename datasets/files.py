"""Parquet files that are either complete or not there: writing, naming their provenance, and reading with care."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..features.errors import SpecError, listed
from .schema import FORMAT_VERSION, arrow_schema

METADATA_KEY = b"kernelcast"
"""Key of the files' schema metadata: JSON `{"format_version": int, "provenance_zlib": text}`.

The text is base64 of zlib of JSON `{block: facts}`: blocks of a campaign differ in a few numbers, and uncompressed their facts
took ten times the room of the rows. Version 1 kept them as `"provenance": {block: facts}`.
"""


class StoreError(RuntimeError):
    """The store cannot do what was asked; the message says why and what to do. Rows stored before are untouched."""


class StoreWarning(UserWarning):
    """A file of the store could not be read and was skipped; it is never deleted."""


def file_metadata(provenance: Mapping[str, Mapping[str, Any]]) -> dict[bytes, bytes]:
    """Schema metadata that holds the format version and `{block: facts}`.

    Raises:
        StoreError: the facts are not plain JSON.
    """
    try:
        plain = json.dumps({block: dict(facts) for block, facts in provenance.items()}, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"provenance facts must be plain JSON (numbers, text, lists, mappings): {error}") from error
    packed = base64.b64encode(zlib.compress(plain.encode(), level=9)).decode()
    return {METADATA_KEY: json.dumps({"format_version": FORMAT_VERSION, "provenance_zlib": packed}).encode()}


def provenance_of(table: pa.Table) -> dict[str, dict[str, Any]]:
    """`{block: facts}` from a table's metadata; empty for a table that has none."""
    raw = (table.schema.metadata or {}).get(METADATA_KEY)
    if raw is None:
        return {}
    content = json.loads(raw)
    if "provenance_zlib" not in content:
        return dict(content["provenance"])
    return dict(json.loads(zlib.decompress(base64.b64decode(content["provenance_zlib"]))))


def parquet_bytes(table: pa.Table) -> bytes:
    """The table as one zstd Parquet file in memory."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", compression_level=9)
    return bytes(sink.getvalue())


def commit_files(files: Sequence[tuple[Path, bytes]]) -> None:
    """Write every file under a temporary name beside its own, flush all to disk, then rename them.

    Raises:
        StoreError: the disk is full or not writable; the temporary files are removed.
    """
    written: list[tuple[Path, Path]] = []
    try:
        for path, content in files:
            # Hidden and not ending in .parquet, so that no reader ever takes it for a stored file.
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            written.append((temporary, path))
            with clear_os_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                _write_flushed(temporary, content)
        for temporary, path in written:
            with clear_os_errors(path):
                temporary.rename(path)
    except BaseException:
        for temporary, _ in written:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        raise
    for folder in sorted({parent for path, _ in files for parent in list(path.parents)[:3]}):
        # A rename is on disk only once its folder is, and so is a folder that was just made.
        with clear_os_errors(folder):
            _flush_folder(folder)


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


def read_file(path: Path, schema: pa.Schema) -> pa.Table:
    """The file's rows with the columns and types of `schema`, and the file's own metadata.

    Columns the file lacks (written before they existed) are null; columns `schema` lacks are left out.

    Raises:
        StoreError: the file is damaged, not one of kernelcast's, or of a newer format.
    """
    try:
        with pq.ParquetFile(path) as file:
            raw = (file.schema_arrow.metadata or {}).get(METADATA_KEY)
            version = json.loads(raw)["format_version"] if raw is not None else None
            if version is None or version > FORMAT_VERSION:
                have = "no format version" if version is None else f"format version {version}"
                raise StoreError(f"{path} has {have}; this kernelcast reads up to {FORMAT_VERSION}")
            present = set(file.schema_arrow.names)
            table = file.read([name for name in schema.names if name in present])
        columns = [
            table[field.name].cast(field.type) if field.name in present else pa.nulls(table.num_rows, field.type)
            for field in schema
        ]
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StoreError(f"cannot read {path}: {reason}") from error
    return pa.table(columns, schema=schema.with_metadata(table.schema.metadata))


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


@contextlib.contextmanager
def clear_os_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says about `path` into a `StoreError` that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(
                f"no space left to write {path}; nothing of this block was stored, earlier rows are safe. Free some "
                "space or set KERNELCAST_HOME to another disk, then run again"
            ) from error
        raise StoreError(f"cannot write {path}: {error.strerror or error}; check that it is writable") from error


def _write_flushed(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
