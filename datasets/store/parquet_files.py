"""Parquet files of rows: their provenance and format version, and reading them whole or in batches of bounded memory."""

from __future__ import annotations

import base64
import contextlib
import json
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...features.errors import SpecError, listed
from ..rows.schema import FORMAT_VERSION, READ_VERSIONS, arrow_schema
from .errors import FormatError, StoreError, StoreWarning, UnreachableError
from .location import Location, digest_of, list_folders, new_name

METADATA_KEY = b"kernelcast"
"""Key of the files' schema metadata: JSON `{"format_version": int, "provenance_zlib": text}`.

The text is base64 of zlib of JSON `{block: facts}`: blocks of a campaign differ in a few numbers, and uncompressed their facts
took ten times the room of the rows.
"""

WRITE_OPTIONS: Mapping[str, Any] = {"compression": "zstd", "compression_level": 9, "write_page_checksum": True}

BATCH_ROWS = 2**16
"""Rows of a batch; some 30 MB with all columns of the widest family."""

_SKIPPED = "skipped a file, the others were read"


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
    return dict(json.loads(zlib.decompress(base64.b64decode(json.loads(raw)["provenance_zlib"]))))


def check_format(metadata: Mapping[bytes, bytes] | None, shown: str) -> None:
    """That a file, which messages call `shown`, has a row format that this kernelcast reads.

    Raises:
        StoreError: it has no format version, so that kernelcast did not write it.
        FormatError: it has another one.
    """
    raw = (metadata or {}).get(METADATA_KEY)
    version = json.loads(raw)["format_version"] if raw is not None else None
    if not isinstance(version, int):
        raise StoreError(
            f"{shown} has no format version; kernelcast did not write it. Bring rows in with `kernelcast data import`"
        )
    if version not in READ_VERSIONS:
        bring = (
            "install the newer kernelcast that wrote it"
            if version > FORMAT_VERSION
            else "export its rows with the kernelcast that wrote it (`kernelcast data export --format form --out DIR`) and "
            "bring them in with `kernelcast data import DIR/*`"
        )
        raise FormatError(
            f"{shown} has format version {version}, this kernelcast reads {listed(map(str, READ_VERSIONS))}; {bring}"
        )


def parquet_bytes(table: pa.Table) -> bytes:
    """The table as one zstd Parquet file in memory, with a checksum in every page."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **WRITE_OPTIONS)
    return bytes(sink.getvalue())


def sorted_bytes(table: pa.Table, by: Sequence[str]) -> bytes:
    """`parquet_bytes` of the rows in order of the columns `by`: like rows compress well, and no order of collecting is left."""
    return parquet_bytes(table.sort_by([(name, "ascending") for name in by]))


def block_file(folder: Path, table: pa.Table, facts: Mapping[str, Mapping[str, Any]]) -> tuple[Path, bytes]:
    """A new name in `folder` and the content of a file of rows with `{block: facts}`.

    Raises:
        StoreError: the facts are not plain JSON.
    """
    content = parquet_bytes(table.replace_schema_metadata(file_metadata(facts)))
    return folder / new_name(digest_of([content])), content


def latest_rows(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last of the rows that are equal in the columns `key`, in the table's order."""
    keys = zip(*(table[name].to_pylist() for name in key), strict=True)
    last = dict(zip(keys, range(table.num_rows), strict=False))
    return table.take(pa.array(sorted(last.values()), pa.int64()))


def with_own_provenance(table: pa.Table, facts: Mapping[str, Mapping[str, Any]] | None = None) -> pa.Table:
    """The table with the facts of the blocks that its rows name, and of no others; by default out of its own metadata."""
    known = provenance_of(table) if facts is None else facts
    blocks = table["block"].unique().to_pylist()
    return table.replace_schema_metadata(file_metadata({block: known[block] for block in blocks if block in known}))


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

    Columns the file lacks are null; columns `schema` lacks are left out.

    Args:
        path: Where the file lies.
        schema: The columns.
        source: The open file where it does not lie at `path`, which then only names it.

    Raises:
        StoreError: the file is damaged, not one of kernelcast's, or of another format.
    """
    shown = str(path)
    with reading(shown), pq.ParquetFile(path if source is None else source, page_checksum_verification=True) as file:
        metadata = file.schema_arrow.metadata
        check_format(metadata, shown)
        present = set(file.schema_arrow.names)
        table = file.read([name for name in schema.names if name in present])
        return _fitted(table, schema).replace_schema_metadata(metadata)


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
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


def read_columns(path: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """The columns `names` of any Parquet file, which has them, row by row.

    Raises:
        SpecError: the file cannot be read or lacks a column.
    """
    try:
        with pq.ParquetFile(path) as file:
            if missing := sorted(set(names) - set(file.schema_arrow.names)):
                raise SpecError(f"{path} has no column {missing[0]!r}; it needs: {listed(names)}", field="texts")
            rows: list[dict[str, Any]] = file.read(list(names)).to_pylist()
            return rows
    except (pa.ArrowException, OSError) as error:
        raise SpecError(f"cannot read {path}: {str(error).splitlines()[0]}", field="texts") from error


def read_files(paths: Iterable[Path], schema: pa.Schema) -> pa.Table:
    """The rows of several files, in order, with merged provenance (`provenance_of`) in the metadata.

    A file that cannot be read gives a `StoreWarning` that names it and is left out.
    """
    return _concatenated((partial(read_file, path, schema) for path in paths), schema)


def read_rows(location: Location, family: str, devices: Iterable[str] | None, schema: pa.Schema) -> pa.Table:
    """The table of `Store.read`."""
    names = stored_files(location, family, devices)
    # Of ten thousand blocks, compressing well for a table that stays in memory takes longer than reading its rows.
    return _concatenated((partial(_read_stored, location, name, schema) for name in names), schema, level=1)


def _read_stored(location: Location, name: str, schema: pa.Schema) -> pa.Table:
    with location.open(name) as source:
        return read_file(f"{location.name}/{name}", schema, source)


def _concatenated(reads: Iterable[Callable[[], pa.Table]], schema: pa.Schema, level: int = 9) -> pa.Table:
    tables: list[pa.Table] = []
    facts: dict[str, dict[str, Any]] = {}
    for read in reads:
        try:
            table = read()
        except UnreachableError:
            raise
        except StoreError as error:
            warnings.warn(f"{_SKIPPED}: {error}", StoreWarning, stacklevel=4)
            continue
        facts.update(provenance_of(table))
        tables.append(table.replace_schema_metadata(None))
    metadata = file_metadata(facts, level=level)
    return pa.concat_tables(tables or [schema.empty_table()]).replace_schema_metadata(metadata)


def stored_files(location: Location, family: str, devices: Iterable[str] | None) -> Iterator[str]:
    """Names of the files with rows of a family, of all devices or of those named."""
    # An empty name would list the family's folder, and no device is called that.
    names = ["*"] if devices is None else [name for name in sorted(set(devices)) if name and "/" not in name]
    for name in names:
        for folder in list_folders(location, family, name):
            yield from folder.files


def scan_rows(
    location: Location, family: str, devices: Iterable[str] | None, schema: pa.Schema, where: pc.Expression | None,
    batch_rows: int,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The batches of `Store.scan`."""
    whole = family_schema(family)
    for name in stored_files(location, family, devices):
        begun = False
        try:
            with location.open(name) as source:
                for batch in scan_source(source, f"{location.name}/{name}", schema, whole, where, batch_rows):
                    begun = True
                    yield batch
        except UnreachableError:
            raise
        except StoreError as error:
            if begun:
                # Some of its rows are out already: the reader must not take them for all of the file.
                raise StoreError(f"{error}; `kernelcast data verify --quarantine` puts it aside") from error
            warnings.warn(f"{_SKIPPED}: {error}", StoreWarning, stacklevel=3)


def scan_source(
    source: pa.NativeFile, shown: str, schema: pa.Schema, whole: pa.Schema, where: pc.Expression | None, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Batches with exactly the columns of `schema`, of rows for which `where` holds; memory is that of one row group.

    Args:
        source: The open file.
        shown: What messages call it.
        schema: The columns.
        whole: The schema of all columns that `where` may speak of.
        where: Which rows; None for all. Row groups whose statistics rule it out are not read.
        batch_rows: Most rows of a batch.

    Raises:
        StoreError: the file is damaged, not one of kernelcast's, or of another format.
    """
    with reading(shown):
        file = pq.ParquetFile(source, page_checksum_verification=True)
        check_format(file.schema_arrow.metadata, shown)
        if where is None:
            columns = [name for name in schema.names if name in file.schema_arrow.names]
            batches = file.iter_batches(batch_size=batch_rows, columns=columns, use_threads=False)
        else:
            # Imported here: it costs a third of a second, and most readers never filter.
            import pyarrow.dataset as pads

            checked = pads.ParquetFragmentScanOptions(page_checksum_verification=True)
            fragment = pads.ParquetFileFormat(default_fragment_scan_options=checked).make_fragment(source)
            batches = fragment.to_batches(
                schema=whole, columns=schema.names, filter=where, batch_size=batch_rows, batch_readahead=1,
                fragment_readahead=1, use_threads=False,
            )  # fmt: skip
    while True:
        with reading(shown):
            batch = next(batches, None)
            if batch is None:
                return
            rows = _fitted(pa.Table.from_batches([batch]), schema)
        yield from rows.combine_chunks().to_batches()
