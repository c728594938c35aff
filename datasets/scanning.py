"""Rows in batches or as one table: columns and filters go down into Parquet, older formats come up as the newest."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .committing import StoreError, StoreWarning, UnreachableError, VanishedError
from .files import facts_once, family_schema, file_metadata, fitted, provenance_of, read_file, reading, version_in
from .listing import CHANGED, Folder, Listing
from .naming import digest_in, digest_of
from .roots import CHUNK_B, Root
from .schema import FORMAT_VERSION
from .upgrading import needed, upgraded

BATCH_ROWS = 2**16
"""Rows of a batch; some 30 MB with all columns of the widest family."""

WHOLE_B = 64 * 2**20
"""Files up to this size are held in memory while they are checked."""

_TRIES = 3
"""How often a folder is listed anew when files vanish between listing and reading, before that is an error."""

_SKIPPED = "skipped a file, the others were read"


def read_rows(listing: Listing, root: Root, family: str, devices: Iterable[str] | None, schema: pa.Schema) -> pa.Table:
    """The table of `Store.read`."""
    for attempt in range(_TRIES):
        tables: list[pa.Table] = []
        merged: dict[str, Any] = {}
        try:
            for folder in _folders(listing, family, devices):
                _read_folder(root, folder, schema, tables, merged)
        except VanishedError:
            # Compacted between listing and reading: what takes the place of the files is listed now.
            if attempt == _TRIES - 1:
                raise
            continue
        break
    # Of ten thousand blocks, compressing well for a table that stays in memory takes longer than reading its rows.
    metadata = file_metadata(merged, level=1)
    return pa.concat_tables(tables or [schema.empty_table()]).replace_schema_metadata(metadata)


def _read_folder(root: Root, folder: Folder, schema: pa.Schema, tables: list[pa.Table], merged: dict[str, Any]) -> None:
    for name in folder.rows:
        with root.open(name) as source:
            try:
                table = read_file(f"{root.name}/{name}", schema, source)
            except (VanishedError, UnreachableError):
                raise
            except StoreError as error:
                warnings.warn(f"{_SKIPPED}: {error}", StoreWarning, stacklevel=4)
                continue
        merged.update(provenance_of(table))
        tables.append(table.replace_schema_metadata(None))
    for block, said in packed_provenance(root, folder):
        merged[block] = json.loads(said)


def packed_provenance(root: Root, folder: Folder) -> Iterator[tuple[str, str]]:
    """(block, facts as JSON) of the packed rows of a folder."""
    for name in folder.blocks:
        shown = f"{root.name}/{name}"
        with root.open(name) as source:
            try:
                with reading(shown), pq.ParquetFile(source, page_checksum_verification=True) as file:
                    for batch in file.iter_batches(columns=["block", "facts"]):
                        yield from zip(batch["block"].to_pylist(), batch["facts"].to_pylist(), strict=True)
            except (VanishedError, UnreachableError):
                raise
            except StoreError as error:
                warnings.warn(f"provenance of packed rows is missing: {error}", StoreWarning, stacklevel=4)


def scan_rows(
    listing: Listing, root: Root, family: str, devices: Iterable[str] | None, schema: pa.Schema,
    where: pc.Expression | None, batch_rows: int,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The batches of `Store.scan`."""
    whole = family_schema(family)
    for folder in _folders(listing, family, devices):
        yield from _scan_folder(listing, root, folder, schema, whole, where, batch_rows)


def _scan_folder(
    listing: Listing, root: Root, folder: Folder, schema: pa.Schema, whole: pa.Schema, where: pc.Expression | None,
    batch_rows: int,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    for attempt in range(_TRIES):
        given = False
        try:
            for name in folder.rows:
                of_file = False
                try:
                    for batch in scan_file(root, name, schema, whole, where, batch_rows):
                        given = of_file = True
                        yield batch
                except (VanishedError, UnreachableError):
                    raise
                except StoreError as error:
                    if of_file:
                        # Some of its rows are out already: the reader must not take them for all of the file.
                        raise StoreError(f"{error}; `kernelcast data verify --quarantine` puts it aside") from error
                    warnings.warn(f"{_SKIPPED}: {error}", StoreWarning, stacklevel=3)
            return
        except VanishedError as error:
            if given or attempt == _TRIES - 1:
                raise VanishedError(
                    f"{error}: the store was compacted while it was being read, longer than replaced files are kept; "
                    "read again, and give `kernelcast data compact --in-place` a longer --keep-minutes"
                ) from error
            folder = listing.folder(folder.family, folder.device)


def _folders(listing: Listing, family: str, devices: Iterable[str] | None) -> Iterator[Folder]:
    if devices is None:
        yield from listing.folders(family)
        return
    for device in sorted(set(devices)):
        # An empty name would list the family's folder, and no device is called that.
        if device and "/" not in device:
            yield from listing.folders(family, device)


def scan_file(
    root: Root, name: str, schema: pa.Schema, whole: pa.Schema, where: pc.Expression | None, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """`scan_source` of a file of the store.

    Raises:
        StoreError: see `scan_source`.
        VanishedError: the file is not there.
    """
    with root.open(name) as source:
        yield from scan_source(source, f"{root.name}/{name}", schema, whole, where, batch_rows)


@contextlib.contextmanager
def checked_source(root: Root, name: str) -> Iterator[pa.NativeFile]:
    """A file, at its start, whose content is what its name says where it says it.

    What was checked is what is read: a file of up to `WHOLE_B` comes from the same bytes, a larger one is read twice.

    Raises:
        StoreError: the content is another.
        VanishedError: the file is not there.
    """
    said = digest_in(name.rpartition("/")[2])
    with root.open(name) as file:
        content = file.read(WHOLE_B + 1)
        whole = len(content) <= WHOLE_B
        if said is not None:
            chunks = [content] if whole else chain([content], iter(lambda: file.read(CHUNK_B), b""))
            if digest_of(chunks) != said:
                raise StoreError(CHANGED)
    with pa.BufferReader(content) if whole else root.open(name) as source:
        yield source


def scan_source(
    source: pa.NativeFile, shown: str, schema: pa.Schema, whole: pa.Schema, where: pc.Expression | None, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Batches of at most `batch_rows` rows with exactly the columns of `schema`, of rows for which `where` holds.

    `whole` is the schema of all columns that `where` may speak of, `shown` what messages call the file. Memory is that of one
    row group, whatever the file holds.

    Raises:
        StoreError: the file is damaged, not one of kernelcast's, or of a newer format.
    """
    with reading(shown):
        file = pq.ParquetFile(source, page_checksum_verification=True)
        metadata, present = file.schema_arrow.metadata, file.schema_arrow.names
        version = version_in(metadata, shown)
    if where is not None and version == FORMAT_VERSION:
        yield from _filtered(source, shown, schema, whole, where, batch_rows)
        return
    # Of an older format a filter may speak of columns that are yet to be made, so all are read and then filtered.
    wanted = schema if where is None else whole
    columns = needed(version, wanted.names, present)
    facts = facts_once(metadata)
    with reading(shown):
        batches = file.iter_batches(batch_size=batch_rows, columns=columns, use_threads=False)
    while True:
        with reading(shown):
            batch = next(batches, None)
            if batch is None:
                return
            rows = fitted(upgraded(pa.Table.from_batches([batch]), version, wanted.names, facts), wanted)
            if where is not None:
                rows = rows.filter(where).select(schema.names)
        yield from rows.combine_chunks().to_batches()


def _filtered(
    source: pa.NativeFile, shown: str, schema: pa.Schema, whole: pa.Schema, where: pc.Expression, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """As `scan_file` of a file of the newest format; row groups whose statistics rule `where` out are not read."""
    # Imported here: it costs a third of a second, and most readers never filter.
    import pyarrow.dataset as pads

    with reading(shown):
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
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
