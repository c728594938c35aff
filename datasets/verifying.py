"""Whether what is stored is still what was written, and can be true: every file of a store is read, every row judged.

A file is *damaged* when its content is not what its name says, when it cannot be read as Parquet, has columns of other types
than its format, lies in another folder than its rows say, or when a row's `case_id` is not that of its columns. Rows that break
the physical checks (`checks`), or are there twice in one block, are told of and stay: the file is what was written.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..features.cases import Cases
from ..features.device import Catalogue, catalogue
from ..features.errors import SpecError
from ..features.kernel import families, get_family
from ..features.work import work
from .checks import Refusals, check_bounds, check_labels, check_statuses
from .committing import StoreError, UnreachableError, VanishedError
from .files import METADATA_KEY, family_schema, reading, version_in
from .identity import case_ids_of
from .listing import MISSING, Folder, Listing, write_record
from .naming import RECORD, digest_in, stamp_in
from .roots import Root
from .scanning import BATCH_ROWS, checked_source, scan_source
from .schema import FORMAT_VERSION
from .store import Store
from .tables import numbers, text

QUARANTINE = ".quarantine"
"""Folder below the root that damaged files are moved to; hidden, so that nothing ever lists it as rows."""

_CHECKED = ("latency_s", "latency_q1_s", "latency_q3_s", "latency_min_s", "power_w", "power_limit_w", "energy_j")
_NEEDED = ("family", "device", "dtype", "impl", "status", "block", "case_id")

Progress = Callable[[str, int, int], None]
"""Called with a folder's name, files read so far, and files in all."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found. Names are below the root; `damaged`, `newer` and `refused` pair each with the reason.

    `newer` are files of a later format, which a newer kernelcast reads, `missing` packed files that a record names. `refused`
    are rows that cannot be true, the first of each file with how many there are. `twice` counts rows that share block, device,
    case and time with another. `leftovers` are what killed writers left, and packed files that no record names. `replaced`
    files wait for a compaction to remove them; `unnamed` files carry no digest in their names.
    """

    files: int = 0
    rows: int = 0
    content_b: int = 0
    unnamed: int = 0
    damaged: tuple[tuple[str, str], ...] = ()
    missing: tuple[str, ...] = ()
    newer: tuple[tuple[str, str], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    twice: tuple[tuple[str, int], ...] = ()
    unknown_families: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    replaced: int = 0

    @property
    def clean(self) -> bool:
        """Whether nothing was found that a person should look at; leftovers and replaced files are nothing."""
        return not (self.damaged or self.missing or self.newer or self.refused or self.twice or self.unknown_families)


@dataclass(slots=True)
class _Found:
    files: int = 0
    rows: int = 0
    content_b: int = 0
    unnamed: int = 0
    damaged: list[tuple[str, str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    newer: list[tuple[str, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    twice: list[tuple[str, int]] = field(default_factory=list)


def verify(
    store: Store, *, devices: Catalogue | None = None, progress: Progress | None = None,
    wanted: Callable[[str], bool] | None = None,
) -> Verified:  # fmt: skip
    """Read every file that counts and judge every row; memory is that of a batch, and 8 bytes a row of one family and device.

    `devices` are those whose datasheets bound what rows may say; default: the shipped catalogue. `wanted` is asked of each
    file below the root, just before it would be read, whether it is; without it all are. Rows are told to be there twice among
    the files read.

    Raises:
        StoreError: the store cannot be reached.
    """
    root, known, found = store.place, devices or catalogue(), _Found()

    def told(name: str, said: str) -> None:
        if said == MISSING:
            found.missing.append(name)
        else:
            found.damaged.append((name, said))

    listing = Listing(root, told)
    folders = listing.folders(idle=True)
    total = sum(len(one.live.rows) + len(one.live.blocks) for one in folders)
    unknown = sorted({one.family for one in folders} - set(families()))
    for folder in folders:
        seen: list[npt.NDArray[np.uint64]] = []
        for name in (*folder.rows, *folder.blocks):
            if wanted is not None and not wanted(name):
                continue
            try:
                _verify_file(root, folder, name, found, seen, known)
            except VanishedError:
                # Compacted meanwhile: what took its place was written by a process that checked it.
                continue
            except UnreachableError:
                raise
            except StoreError as error:
                found.damaged.append((name, str(error)))
            if progress is not None:
                progress(folder.name, found.files, total)
        if seen and (twice := _repeated(np.concatenate(seen))):
            found.twice.append((folder.name, twice))
    return Verified(
        found.files, found.rows, found.content_b, found.unnamed, tuple(found.damaged),
        tuple(sorted(set(found.missing))), tuple(found.newer),
        tuple(found.refused), tuple(found.twice), tuple(unknown),
        (*listing.leftovers(), *(f"{one.name}/{name}" for one in folders for name in one.live.unused)),
        sum(len(one.live.replaced) for one in folders),
    )  # fmt: skip


def quarantine(store: Store, damaged: Sequence[tuple[str, str]]) -> list[str]:
    """Move damaged files to `QUARANTINE` below the root, each with a JSON file beside it that says why; the new names.

    Where all that a damaged packed file was made of is still there, the record that put it in their place goes with it: the
    rows are then read from the files they were in before. Else the record is written anew without the damaged file.

    Raises:
        StoreError: a file cannot be moved.
    """
    root = store.place
    reasons = dict(damaged)
    # Damaged records are told of by what found them, and are among `damaged` where they are to go.
    listing = Listing(root, lambda name, said: None)
    for folder in listing.folders(idle=True):
        present = set(listing.names(folder.name))
        for record in folder.live.records:
            bad = {one for one in record.files() if f"{folder.name}/{one}" in reasons}
            if bad and record.replaced and record.replaced <= present:
                reasons[f"{folder.name}/{record.name}"] = (
                    f"it names {min(bad)}, which is damaged; what it replaced is there"
                )
            elif bad:
                kept = tuple(one for one in record.packed if one[0] not in bad)
                without = replace(record, packed=kept, blocks=None if record.blocks in bad else record.blocks)
                write_record(root, folder.name, without, stamp=stamp_in(record.name))
                root.remove(f"{folder.name}/{record.name}")
    # Records first: what they replaced counts again before what they named is gone.
    return [
        _move_away(root, name, reasons[name])
        for name in sorted(reasons, key=lambda one: (not one.endswith(RECORD), one))
    ]


def _move_away(root: Root, name: str, reason: str) -> str:
    to = f"{QUARANTINE}/{name}"
    said = {"file": name, "reason": reason, "moved_at": datetime.now(UTC).isoformat(timespec="seconds")}
    root.write([(f"{to}.reason.json", json.dumps(said, indent=2).encode())])
    root.move(name, to)
    return to


def _verify_file(
    root: Root, folder: Folder, name: str, found: _Found, seen: list[npt.NDArray[np.uint64]], known: Catalogue
) -> None:
    found.files += 1
    shown = name
    found.unnamed += digest_in(name.rpartition("/")[2]) is None
    with checked_source(root, name) as source:
        found.content_b += source.size()
        if name in folder.blocks:
            with reading(shown), pq.ParquetFile(source, page_checksum_verification=True) as blocks:
                for _ in blocks.iter_batches():
                    pass
            return
        if folder.family not in families():
            return
        if newer := _check_schema(source, shown, folder.family):
            found.newer.append((name, newer))
            return
        source.seek(0)
        _verify_rows(source, shown, folder, name, found, seen, known)


def _check_schema(source: pa.NativeFile, shown: str, family: str) -> str | None:
    """Raise a `StoreError` for columns of wrong types; the reason for a file of a newer format."""
    with reading(shown):
        schema = pq.ParquetFile(source).schema_arrow
        raw = (schema.metadata or {}).get(METADATA_KEY)
        version = json.loads(raw).get("format_version") if raw else None
        if isinstance(version, int) and version > FORMAT_VERSION:
            return f"format version {version}; this kernelcast reads up to {FORMAT_VERSION}, a newer one may read it"
        version_in(schema.metadata, shown)
    expected = family_schema(family)
    for name in _NEEDED:
        if name not in schema.names:
            raise StoreError(f"it has no column {name}")
    for name in schema.names:
        if name in expected.names and schema.field(name).type != expected.field(name).type:
            raise StoreError(
                f"column {name} holds {schema.field(name).type}, its format has {expected.field(name).type} there"
            )
    return None


def _verify_rows(
    source: pa.NativeFile, shown: str, folder: Folder, name: str, found: _Found, seen: list[npt.NDArray[np.uint64]],
    known: Catalogue,
) -> None:  # fmt: skip
    whole, at = family_schema(folder.family), 0
    refused: list[str] = []
    for batch in scan_source(source, shown, whole, whole, None, BATCH_ROWS):
        rows = pa.Table.from_batches([batch])
        for column, wanted in (("family", folder.family), ("device", folder.device)):
            if others := [one for one in pc.unique(rows[column]).to_pylist() if one != wanted]:
                raise StoreError(f"it holds rows of {column} {others[0]!r} but lies in {folder.name}")
        ids = case_ids_of(rows, folder.family)
        stored = rows["case_id"].to_pylist()
        if ids != stored:
            row = next(i for i, (a, b) in enumerate(zip(ids, stored, strict=True)) if a != b)
            raise StoreError(f"row {at + row + 1} is called {stored[row]} but its columns are those of {ids[row]}")
        seen.append(_fingerprints(rows))
        refused.extend(f"row {at + one.row + 1}: {one.column}: {one.reason}" for one in _refusals(rows, known))
        at += rows.num_rows
    found.rows += at
    if refused:
        found.refused.append((name, f"{len(refused)} of {at} rows cannot be true, the first: {refused[0]}"))


def _refusals(rows: pa.Table, known: Catalogue) -> Iterator[Any]:
    refusals = Refusals(rows.num_rows)
    columns: dict[str, Any] = {name: numbers(rows, name).values for name in _CHECKED}
    columns |= {name: text(rows, name) for name in ("status", "energy_source")}
    check_statuses(columns, refusals)
    check_labels(columns, refusals)
    timed = np.flatnonzero(~refusals.bad & ~np.isnan(columns["latency_s"]))
    bounds = np.full(rows.num_rows, np.nan)
    bounds[timed] = _bounds(rows.take(pa.array(timed)), known)
    check_bounds(columns["latency_s"], bounds, refusals)
    return iter(refusals)


def _bounds(rows: pa.Table, known: Catalogue) -> npt.NDArray[np.float64]:
    """Seconds no run of the rows can beat, NaN where the catalogue does not know their device or its peak."""
    bounds = np.full(rows.num_rows, np.nan)
    if not rows.num_rows:
        return bounds
    cases = _cases(rows)
    try:
        return work(cases, known).lower_bound_s
    except SpecError:
        # A user's own machine need not be in the catalogue, nor all number formats of one that is: what is known is judged.
        for dtype in np.unique(cases.dtype):
            at = np.flatnonzero(cases.dtype == dtype)
            with contextlib.suppress(SpecError):
                bounds[at] = work(cases.take(at), known).lower_bound_s
    return bounds


def _cases(rows: pa.Table) -> Cases:
    fam = get_family(str(rows["family"][0].as_py()))
    dtype, kv_dtype = text(rows, "dtype"), text(rows, "kv_dtype")
    return Cases(
        family=fam, device=text(rows, "device"), dtype=dtype, kv_dtype=np.where(kv_dtype == "", dtype, kv_dtype),
        variant=text(rows, "variant"), impl=text(rows, "impl"), cache_state=text(rows, "cache_state"),
        threads=numbers(rows, "threads").values,
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
