"""Making few files of many, in place: safe to kill at any moment, and beside collectors that append and readers that read.

Of one family on one device, small files are read in turn, sorted a part at a time, and written as packed files of up to
`TARGET_ROWS` rows; the provenance of their blocks goes into a file beside them. Then one record makes the packed files take the
place of what they were made of (`replacing`). Replaced files stay for `KEEP_S`, for readers that began before; the next
compaction removes them. Rows are never changed, merged or left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..features.kernel import families
from .committing import StoreError, UnreachableError, VanishedError
from .files import WRITE_OPTIONS, family_schema, file_metadata, provenance_in, read_file, reading, version_in
from .listing import Folder, Listing, write_record
from .locking import held
from .naming import BLOCKS, PACKED, age_s, digest_in, digest_of, new_name
from .packing import sort_keys
from .replacing import Replacement
from .roots import CHUNK_B, TEMPORARY, Root
from .scanning import BATCH_ROWS, WHOLE_B, checked_source, packed_provenance, scan_source
from .schema import FORMAT_VERSION
from .store import Store

TARGET_ROWS = 250_000
"""Most rows of a packed file, and of what is sorted in memory at once. A packed file of half of it is left alone from then on,
so that a row is written anew a few times in its life, not every night."""

ROW_GROUP_ROWS = 2**16
"""Rows that are read and filtered together: small enough that a reader holds little, large enough to compress."""

KEEP_S = 3600.0
"""How long replaced files stay, for readers that listed them."""

LEFTOVER_S = 86400.0
"""Age from which files of killed writers and compactions are removed: nothing writes one file for a day."""

BLOCKS_AT_ONCE = 1000
JOINED_AT = 200

BLOCK_SCHEMA = pa.schema([("block", pa.string()), ("facts", pa.string())])

Progress = Callable[[str, int, int], None]
"""Called with a folder's name, files packed so far, and files in all."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did: folders packed, files read and written, their rows, files removed, and files it left alone because
    they are damaged, with the reason.
    """

    folders: int = 0
    read: int = 0
    written: int = 0
    rows: int = 0
    removed: int = 0
    damaged: tuple[tuple[str, str], ...] = ()


def compact_in_place(
    store: Store, *, target_rows: int = TARGET_ROWS, keep_s: float = KEEP_S, progress: Progress | None = None
) -> Compacted:
    """Pack the small files of every family and device, and remove what earlier compactions have replaced.

    Raises:
        StoreError: another compaction runs, the store cannot be read or written, or the disk is full; nothing is lost.
    """
    root, listing = store.place, Listing(store.place)
    done = Compacted()
    with held(root.lock_file(".compaction"), f"{root.name} is being compacted by"):
        folders = [one for one in listing.folders() if one.family in families()]
        total, packed = sum(len(one.rows) for one in folders), 0
        for folder in folders:
            removed = _sweep(listing, root, folder, keep_s)
            one = _Packing(root, folder, target_rows).run(listing)
            if not keep_s:
                removed += _sweep(listing, root, folder, keep_s)
            done = Compacted(
                done.folders + bool(one.written), done.read + one.read, done.written + one.written, done.rows + one.rows,
                done.removed + removed, done.damaged + one.damaged,
            )  # fmt: skip
            packed += len(folder.rows)
            if progress is not None:
                progress(folder.name, packed, total)
    return done


@dataclass(slots=True)
class _Packing:
    """Packs the files of one folder."""

    root: Root
    folder: Folder
    target_rows: int
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_rows: int = 0
    read: list[str] = field(default_factory=list)
    packed: list[tuple[str, int]] = field(default_factory=list)
    published: list[str] = field(default_factory=list)
    damaged: list[tuple[str, str]] = field(default_factory=list)

    def run(self, listing: Listing) -> Compacted:
        """Pack what is worth packing."""
        names = self._candidates()
        if not names:
            return Compacted()
        try:
            with self.root.scratch(self.folder.name) as path:
                with _Blocks(path) as blocks:
                    for name in names:
                        self._take(name, blocks)
                    if set(names) & self._packed_before():
                        for block, said in packed_provenance(self.root, self.folder):
                            blocks.add(block, said)
                self._write(0)
                if self.read:
                    self._commit(listing, self._publish(path, BLOCKS))
        except BaseException:
            for name in self.published:
                with contextlib.suppress(StoreError):
                    self.root.remove(f"{self.folder.name}/{name}")
            raise
        rows = sum(count for _, count in self.packed)
        return Compacted(int(bool(self.read)), len(self.read), len(self.packed), rows, 0, tuple(self.damaged))

    def _packed_before(self) -> set[str]:
        return {f"{self.folder.name}/{name}" for name in self.folder.live.sizes()}

    def _candidates(self) -> list[str]:
        sizes = self.folder.live.sizes()
        found = []
        for name in self.folder.live.rows:
            full = f"{self.folder.name}/{name}"
            if sizes.get(name, 0) < self.target_rows / 2 or self._is_old(full):
                found.append(full)
        return found if len(found) > 1 or (found and self._is_old(found[0])) else []

    def _is_old(self, name: str) -> bool:
        shown = f"{self.root.name}/{name}"
        try:
            with self.root.open(name) as source, reading(shown), pq.ParquetFile(source) as file:
                return version_in(file.schema_arrow.metadata, shown) < FORMAT_VERSION
        except (VanishedError, UnreachableError):
            raise
        except StoreError as error:
            self.damaged.append((name, str(error)))
            return False

    def _take(self, name: str, blocks: _Blocks) -> None:
        """Read one file. Damage must not get into a file whose own digest is right: all of it is checked before use."""
        shown, whole = f"{self.root.name}/{name}", family_schema(self.folder.family)
        said = digest_in(name.rpartition("/")[2])
        try:
            with checked_source(self.root, name) as source:
                small = source.size() <= WHOLE_B
                tables = (
                    [read_file(shown, whole, source)] if small
                    else (pa.Table.from_batches([one]) for one in scan_source(source, shown, whole, whole, None, BATCH_ROWS))
                )  # fmt: skip
                if said is None and not small:
                    for _ in scan_source(source, shown, whole, whole, None, BATCH_ROWS):
                        pass
                for table in tables:
                    self._add(table.replace_schema_metadata(None))
                for block, facts in provenance_in(pq.ParquetFile(source).schema_arrow.metadata).items():
                    blocks.add(block, json.dumps(facts, sort_keys=True))
        except (VanishedError, UnreachableError):
            raise
        except StoreError as error:
            self.damaged.append((name, str(error)))
            return
        self.read.append(name)

    def _add(self, table: pa.Table) -> None:
        self.waiting.append(table)
        self.waiting_rows += table.num_rows
        if len(self.waiting) > JOINED_AT:
            # Thousands of tables of a few rows each take several times the memory of one.
            self.waiting = [pa.concat_tables(self.waiting).combine_chunks()]
        if self.waiting_rows >= self.target_rows:
            self._write(self.target_rows)

    def _write(self, least: int) -> None:
        """Write what waits as packed files of `target_rows`; the last, of fewer, only where `least` is 0."""
        rows = pa.concat_tables(self.waiting) if self.waiting else None
        while rows is not None and rows.num_rows and rows.num_rows >= least:
            part = rows.slice(0, self.target_rows).sort_by(
                [(one, "ascending") for one in sort_keys(self.folder.family)]
            )
            rows = rows.slice(self.target_rows)
            with self.root.scratch(self.folder.name) as path:
                pq.write_table(
                    part.replace_schema_metadata(file_metadata({})), path, row_group_size=ROW_GROUP_ROWS, **WRITE_OPTIONS
                )  # fmt: skip
                self.packed.append((self._publish(path, PACKED), part.num_rows))
        self.waiting = [rows] if rows is not None and rows.num_rows else []
        self.waiting_rows = sum(one.num_rows for one in self.waiting)

    def _publish(self, path: Path, kind: str) -> str:
        with path.open("rb") as file:
            name = new_name(digest_of(iter(lambda: file.read(CHUNK_B), b"")), kind)
        # Noted first: a publication that fails half way may have left something.
        self.published.append(name)
        self.root.publish(path, f"{self.folder.name}/{name}")
        return name

    def _commit(self, listing: Listing, blocks: str) -> None:
        now = listing.folder(self.folder.family, self.folder.device)
        if not set(self.read) <= set(now.rows):
            raise StoreError(
                f"{self.folder.name} of {self.root.name} was compacted from elsewhere meanwhile; run again"
            )
        replaced = frozenset(name.rpartition("/")[2] for name in self.read)
        # From here on the packed files may count; nothing takes them back.
        published, self.published = self.published, []
        record = Replacement("", tuple(self.packed), blocks, replaced)
        try:
            write_record(self.root, self.folder.name, record)
        except StoreError:
            self.published = published
            raise
        # A copy, as without any record that can be read the packed files would count for nothing.
        write_record(self.root, self.folder.name, record)


class _Blocks:
    """Writes the provenance of blocks as it comes: a row for each block and what is said of it, each once."""

    def __init__(self, path: Path) -> None:
        self._path, self._seen = path, set[bytes]()
        self._rows: list[tuple[str, str]] = []

    def __enter__(self) -> _Blocks:
        schema = BLOCK_SCHEMA.with_metadata(file_metadata({}))
        self._writer = pq.ParquetWriter(self._path, schema, **WRITE_OPTIONS)
        return self

    def add(self, block: str, said: str) -> None:
        """Note what is said of a block, as JSON."""
        key = hashlib.blake2b(f"{block}\0{said}".encode(), digest_size=16).digest()
        if key not in self._seen:
            self._seen.add(key)
            self._rows.append((block, said))
        if len(self._rows) == BLOCKS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        # Blocks after one another say nearly the same, which a page of many compresses to little.
        names, facts = zip(*self._rows, strict=True)
        self._writer.write_table(pa.table([pa.array(names), pa.array(facts)], schema=self._writer.schema))
        self._rows = []

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._rows and kind is None:
            self._flush()
        self._writer.close()


def _sweep(listing: Listing, root: Root, folder: Folder, keep_s: float) -> int:
    """Remove what no reader needs any more; how many files. The order keeps what counts the same after every step."""
    names = listing.names(folder.name)
    held_now = listing.live(folder.name, names)
    present, removed = set(names), 0

    def remove(name: str) -> int:
        root.remove(f"{folder.name}/{name}")
        return 1

    # Void records first: they are void only as long as the record they came second to lists what it replaced.
    removed += sum(remove(one.name) for one in held_now.void if age_s(one.name) >= keep_s)
    due = [one for one in held_now.records if one.replaced and age_s(one.name) >= keep_s]
    gone = {name for one in due for name in one.replaced}
    removed += sum(remove(name) for name in sorted(gone & present))
    for record in held_now.records:
        # Older records first: one whose packed files are gone must not name them when the record that replaced them is cleared.
        packed = tuple(one for one in record.packed if one[0] not in gone)
        cleared = frozenset() if record in due else record.replaced
        after = replace(record, packed=packed, blocks=record.blocks if packed else None, replaced=cleared)
        if after == record:
            continue
        if after.packed or after.replaced:
            write_record(root, folder.name, after, stamp=record.name.partition("-")[0])
        removed += remove(record.name)
    unused = () if held_now.unread else held_now.unused
    for name in (*unused, *(one for one in names if one.endswith(TEMPORARY))):
        if age_s(name.removeprefix(".")) >= LEFTOVER_S:
            removed += remove(name)
    return removed
