"""Whether what is stored is still what was written, and can be true: every file of a store is read, every row judged.

A file is *damaged* when its content is not what its name says, when it cannot be read as Parquet, has columns of other types
than its format, lies in another folder than its rows say, or when a row's `case_id` is not that of its columns. Rows that break
the physical checks (`checks`), or are there twice in one block, are reported and stay: the file is what was written.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...features.batch.cases import Cases
from ...features.device import Catalogue, catalogue
from ...features.kernel import families, get_family
from ..rows.checks import Refusals, check_rows, paper_bounds
from ..rows.schema import case_ids_of
from ..rows.table_columns import numbers, text
from .errors import FormatError, MissingFileError, StoreError, UnreachableError
from .location import Folder, Location, digest_in, digest_of
from .parquet_files import BATCH_ROWS, check_format, family_schema, reading, scan_source
from .store import Store

QUARANTINE = ".quarantine"
"""Folder below the root that damaged files are moved to; hidden, so that nothing ever lists it as rows."""

WHOLE_B = 64 * 2**20
"""Files up to this size are held in memory while they are checked."""

_CHUNK_B = 4 * 2**20
_CHECKED = ("latency_s", "latency_q1_s", "latency_q3_s", "latency_min_s", "power_w", "power_limit_w", "energy_j")
_NEEDED = ("family", "device", "dtype", "impl", "status", "block", "case_id")

Progress = Callable[[str, int, int], None]
"""Called with a folder's name, files read so far, and files in all."""


@dataclass(slots=True)
class Verified:
    """What was found; names are below the root.

    Attributes:
        files: Files read.
        rows: Rows judged.
        content_b: Bytes read.
        unnamed: Files that carry no digest in their names, so that flipped bits may go unseen.
        damaged: Files that are damaged, each with the reason.
        other_format: Files of another row format, each with what to do.
        refused: Files with rows that cannot be true: how many, and the first.
        twice: Folders with rows that share block, device, case and time with another, and how many.
        unknown_families: Families this kernelcast does not know; their rows are not judged.
        leftovers: What killed writers left.
    """

    files: int = 0
    rows: int = 0
    content_b: int = 0
    unnamed: int = 0
    damaged: list[tuple[str, str]] = field(default_factory=list)
    other_format: list[tuple[str, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    twice: list[tuple[str, int]] = field(default_factory=list)
    unknown_families: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing was found that a person should look at; leftovers are nothing."""
        return not (self.damaged or self.other_format or self.refused or self.twice or self.unknown_families)


def verify(
    store: Store, *, devices: Catalogue | None = None, progress: Progress | None = None,
    wanted: Callable[[str], bool] | None = None,
) -> Verified:  # fmt: skip
    """Read every file and judge every row; memory is that of a batch, and 8 bytes a row of one family and device.

    Args:
        store: What to read.
        devices: The devices whose datasheets bound what rows may say; default: the shipped catalogue.
        progress: Called after each file.
        wanted: Asked of each file below the root, just before it would be read, whether it is; without it all are. Rows are
            reported as stored twice among the files read.

    Raises:
        StoreError: the store cannot be reached, or an earlier kernelcast packed it in place.
    """
    location, catalog, result = store.location, devices or catalogue(), Verified()
    folders = store.folders()
    total = sum(len(folder.files) for folder in folders)
    for folder in folders:
        seen: list[npt.NDArray[np.uint64]] = []
        for name in folder.files:
            if wanted is not None and not wanted(name):
                continue
            try:
                _verify_file(location, folder, name, result, seen, catalog)
            except MissingFileError:
                # Removed since it was listed; there is nothing to judge.
                continue
            except UnreachableError:
                raise
            except FormatError as error:
                result.other_format.append((name, str(error)))
            except StoreError as error:
                result.damaged.append((name, str(error)))
            if progress is not None:
                progress(folder.name, result.files, total)
        if seen and (twice := _repeated(np.concatenate(seen))):
            result.twice.append((folder.name, twice))
    result.unknown_families = sorted({folder.family for folder in folders} - set(families()))
    result.leftovers = list(map(str, store.leftovers()))
    return result


def quarantine(store: Store, damaged: Sequence[tuple[str, str]]) -> list[str]:
    """Move damaged files to `QUARANTINE` below the root, each with a JSON file beside it that says why; the new names.

    Raises:
        StoreError: a file cannot be moved.
    """
    moved = []
    for name, reason in sorted(damaged):
        to = f"{QUARANTINE}/{name}"
        note = {"file": name, "reason": reason, "moved_at": datetime.now(UTC).isoformat(timespec="seconds")}
        store.location.write([(f"{to}.reason.json", json.dumps(note, indent=2).encode())])
        store.location.move(name, to)
        moved.append(to)
    return moved


def _verify_file(
    location: Location,
    folder: Folder,
    name: str,
    result: Verified,
    seen: list[npt.NDArray[np.uint64]],
    devices: Catalogue,
) -> None:
    result.files += 1
    result.unnamed += digest_in(name) is None
    with _checked_source(location, name) as source:
        result.content_b += source.size()
        if folder.family not in families():
            return
        _check_schema(source, name, folder.family)
        source.seek(0)
        _verify_rows(source, folder, name, result, seen, devices)


@contextlib.contextmanager
def _checked_source(location: Location, name: str) -> Iterator[pa.NativeFile]:
    """A file, at its start, whose content is what its name says where it says it.

    What was checked is what is read: a file of up to `WHOLE_B` comes from the same bytes, a larger one is read twice.

    Raises:
        StoreError: the content is another.
        MissingFileError: the file is not there.
    """
    digest = digest_in(name)
    with location.open(name) as file:
        content = file.read(WHOLE_B + 1)
        whole = len(content) <= WHOLE_B
        if digest is not None:
            chunks = [content] if whole else chain([content], iter(lambda: file.read(_CHUNK_B), b""))
            if digest_of(chunks) != digest:
                raise StoreError("its content is not what its name says")
    with pa.BufferReader(content) if whole else location.open(name) as source:
        yield source


def _check_schema(source: pa.NativeFile, name: str, family: str) -> None:
    """Raise a `StoreError` for columns that are missing or of wrong types, a `FormatError` for a file of another format."""
    with reading(name):
        schema = pq.ParquetFile(source).schema_arrow
        check_format(schema.metadata, name)
    expected = family_schema(family)
    for column in _NEEDED:
        if column not in schema.names:
            raise StoreError(f"it has no column {column}")
    for column in schema.names:
        if column in expected.names and schema.field(column).type != expected.field(column).type:
            raise StoreError(
                f"column {column} holds {schema.field(column).type}, its format has {expected.field(column).type} there"
            )


def _verify_rows(
    source: pa.NativeFile, folder: Folder, name: str, result: Verified, seen: list[npt.NDArray[np.uint64]],
    devices: Catalogue,
) -> None:  # fmt: skip
    whole, start = family_schema(folder.family), 0
    refused: list[str] = []
    for batch in scan_source(source, name, whole, whole, None, BATCH_ROWS):
        rows = pa.Table.from_batches([batch])
        for column, expected in (("family", folder.family), ("device", folder.device)):
            if others := [value for value in pc.unique(rows[column]).to_pylist() if value != expected]:
                raise StoreError(f"it holds rows of {column} {others[0]!r} but lies in {folder.name}")
        ids, stored = case_ids_of(rows, folder.family), rows["case_id"].to_pylist()
        if ids != stored:
            row = next(i for i, (a, b) in enumerate(zip(ids, stored, strict=True)) if a != b)
            raise StoreError(f"row {start + row + 1} is called {stored[row]} but its columns are those of {ids[row]}")
        seen.append(_fingerprints(rows))
        refused += [
            f"row {start + item.row + 1}: {item.column}: {item.reason}"
            for item in _refusals(rows, folder.family, devices)
        ]
        start += rows.num_rows
    result.rows += start
    if refused:
        result.refused.append((name, f"{len(refused)} of {start} rows cannot be true, the first: {refused[0]}"))


def _refusals(rows: pa.Table, family: str, devices: Catalogue) -> Refusals:
    columns: dict[str, Any] = {name: numbers(rows, name).values for name in _CHECKED}
    columns |= {name: text(rows, name) for name in ("status", "energy_source")}
    return check_rows(columns, lambda timed: paper_bounds(_cases(rows.take(pa.array(timed)), family), devices))


def _cases(rows: pa.Table, family: str) -> Cases:
    fam = get_family(family)
    dtype, kv_dtype = text(rows, "dtype"), text(rows, "kv_dtype")
    return Cases(
        family=fam, device=text(rows, "device"), dtype=dtype, kv_dtype=np.where(kv_dtype == "", dtype, kv_dtype),
        variant=text(rows, "variant"), impl=text(rows, "impl"), cache_state=text(rows, "cache_state"),
        timing=text(rows, "timing"), threads=numbers(rows, "threads").values,
        sizes={name: numbers(rows, name).values for name in fam.dim_names},
        config={name: numbers(rows, name).values for name in fam.config},
    )  # fmt: skip


def _fingerprints(rows: pa.Table) -> npt.NDArray[np.uint64]:
    """64 bits of each row's block, case and time, shape `(n,)`; any two of a billion rows meet by chance 1 time in 40."""
    words = pc.binary_join_element_wise(
        *(pc.fill_null(rows[name].combine_chunks(), "") for name in ("block", "case_id", "measured_at")), "|"
    )
    return np.array([hash(word) for word in words.to_pylist()], dtype=np.int64).view(np.uint64)


def _repeated(fingerprints: npt.NDArray[np.uint64]) -> int:
    fingerprints.sort()
    return int(np.count_nonzero(fingerprints[1:] == fingerprints[:-1]))
