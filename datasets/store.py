"""The append-only store of measured rows: immutable Parquet files, one per family, device and collected block.

    root/family=gemm/device=nvidia-h200/20250131T101500.123456Z-2c26b46b68ffc68ff99b453c1d304134-9f86d081.parquet
    root/.locks/nvidia-h200.lock

The root is a folder or a URL (`roots`). A file appears under its final name only when it is complete, so a killed collector, a
full disk or two collectors at once can never damage rows that were stored before; its name carries a digest of its content
(`naming`), by which `verifying` finds damage. `compaction` makes few files of many, `replacing` says which then count.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath, PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc

from ..features.errors import SpecError, listed
from ..features.kernel import families
from .checks import LowerBounds, Refused, check_measurements
from .committing import StoreError, StoreWarning
from .files import family_schema, file_metadata, parquet_bytes
from .listing import Listing, folder_name
from .locking import held
from .naming import ROWS, digest_of, new_name
from .packing import pack
from .roots import LocalRoot, root_of
from .scanning import BATCH_ROWS, read_rows, scan_rows
from .schema import Measurement, Provenance, to_table
from .software import software_of

FINAL_STATUSES = ("ok", "unsupported", "out_of_memory", "timeout")
"""Rows a resumed campaign skips. `crashed` and `failed` may have been an accident of that day and are tried again."""

__all__ = ["FINAL_STATUSES", "RowsRefused", "Store", "StoreError", "StoreWarning"]

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_SHOWN = 10


class RowsRefused(StoreError):  # noqa: N818 - it names what happened
    """Rows that break physics or lack provenance; nothing of the block was written. `refused` lists them."""

    def __init__(self, refused: Sequence[Refused], total: int) -> None:
        shown = "; ".join(str(one) for one in refused[:_SHOWN])
        more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        super().__init__(f"{len(refused)} of {total} rows refused, nothing written (rows count from 1): {shown}{more}")
        self.refused = list(refused)


class Store:
    """Measured rows under one root, `KERNELCAST_HOME/measurements` unless another is given."""

    def __init__(self, root: Path | str | None = None, *, lower_bounds: LowerBounds | None = None) -> None:
        """`root` is a folder or a URL; `lower_bounds` replaces the catalogue's physical bounds, which rows may not beat.

        Raises:
            StoreError: a URL of a protocol nobody knows, whose package is missing, or with a password in it.
        """
        self.place = root_of(root)
        self.listing = Listing(self.place)
        self._lower_bounds = lower_bounds

    @property
    def root(self) -> Path:
        """The folder of a store on this machine.

        Raises:
            StoreError: it lies at a URL.
        """
        if not isinstance(self.place, LocalRoot):
            raise StoreError(f"{self.place.name} is no folder of this machine")
        return self.place.folder

    @property
    def root_name(self) -> str:
        """Where the store lies, as messages show it: no secrets."""
        return self.place.name

    def append(
        self,
        measurements: Sequence[Measurement],
        provenance: Provenance,
        *,
        on_refused: Callable[[list[Refused]], None] | None = None,
    ) -> list[PurePath]:
        """Store a block of rows, one new file per family and device.

        In a folder every file is written in full before the first gets its final name, so a full disk commits none of the
        block. At a URL each file is there whole or not at all, but a block of several is written one after the other.
        `on_refused` is called with the rows that are not accepted (positions in `measurements`) and the rest is
        stored; without it a single refused row stores nothing. `checks.as_failed` turns a refused row into one that
        can be stored.

        Returns:
            The new files, below the root where that is a URL; none for no rows.

        Raises:
            RowsRefused: rows fail the physical checks or name another block, and `on_refused` was not given.
            StoreError: provenance without facts, a device name unfit for a folder, a full or unwritable disk.
        """
        if not provenance.block or not provenance.facts:
            raise StoreError("rows are stored only with their provenance: a block name and at least one fact")
        refused = self._refused(measurements, provenance.block)
        if refused and on_refused is None:
            raise RowsRefused(refused, len(measurements))
        if refused and on_refused is not None:
            on_refused(refused)
        bad = {one.row for one in refused}
        software = software_of(provenance.facts) or None
        groups: dict[tuple[str, str], list[Measurement]] = {}
        for i, m in enumerate(measurements):
            if i not in bad:
                named = m if m.software or not software else replace(m, software=software)
                groups.setdefault((m.spec.family, _safe(m.device, "folder")), []).append(named)
        metadata = file_metadata({provenance.block: provenance.facts})
        files = []
        for (family, device), rows in groups.items():
            content = parquet_bytes(to_table(rows, family).replace_schema_metadata(metadata))
            files.append((f"{folder_name(family, device)}/{new_name(digest_of([content]), ROWS)}", content))
        self.place.write(files)
        return [self._path(name) for name, _ in files]

    def _refused(self, measurements: Sequence[Measurement], block: str) -> list[Refused]:
        found = {one.row: one for one in check_measurements(measurements, self._lower_bounds)}
        for i, m in enumerate(measurements):
            if m.block != block:
                found[i] = Refused(i, "block", f"is {m.block!r} but the provenance given is of {block!r}")
        return [found[row] for row in sorted(found)]

    def _path(self, name: str) -> PurePath:
        return self.place.folder / name if isinstance(self.place, LocalRoot) else PurePosixPath(name)

    def families(self) -> list[str]:
        """Names of the families that have rows, sorted; a `StoreWarning` names what this kernelcast does not know."""
        found = {folder.family for folder in self.listing.folders()}
        if unknown := sorted(found - set(families())):
            warnings.warn(
                f"{self.root_name} has rows of unknown families: {listed(unknown)}", StoreWarning, stacklevel=2
            )
        return sorted(found & set(families()))

    def names(self, family: str = "*", device: str = "*") -> list[str]:
        """Committed files as paths below the root, in the order they were stored within a family and device."""
        return [name for folder in self.listing.folders(family, device) for name in folder.rows]

    def files(self, family: str = "*", device: str = "*") -> list[Path]:
        """`names` as paths of a folder of this machine.

        Raises:
            StoreError: the store lies at a URL, whose files have names only.
        """
        folder = str(self.root)
        return [Path(f"{folder}/{name}") for name in self.names(family, device)]

    def leftovers(self) -> list[PurePath]:
        """Temporary files of collectors that were killed while writing. They hold no committed rows."""
        return [self._path(name) for name in self.listing.leftovers()]

    def read(self, family: str, devices: Iterable[str] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of one family, of all devices or of those named, as a table of `schema.arrow_schema(family)`.

        The metadata of the table merges the provenance of the files read (`provenance_of`). A file that cannot be read
        gives a `StoreWarning` naming it and is skipped. `scan` does the same in bounded memory.

        Raises:
            SpecError: unknown family or column.
            StoreError: a URL cannot be reached.
        """
        return read_rows(self.listing, self.place, family, devices, family_schema(family, columns))

    def scan(
        self,
        family: str,
        devices: Iterable[str] | None = None,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> Iterator[pa.RecordBatch]:
        """The rows `read` gives, in batches of at most `batch_rows`, without provenance; memory is that of one row group.

        `where` may speak of any column of the family (`pyarrow.compute.field("status") == "ok"`); row groups that it rules
        out are not read.

        Raises:
            SpecError: unknown family or column.
            StoreError: a URL cannot be reached, a file is damaged after some of its rows were given, or a compaction removed
                files that had yet to be read.
        """
        schema = family_schema(family, columns)
        return scan_rows(self.listing, self.place, family, devices, schema, where, batch_rows)

    def read_all(self, devices: Iterable[str] | None = None) -> dict[str, pa.Table]:
        """`read` of every family that has rows, by family name."""
        names = None if devices is None else list(devices)
        return {family: self.read(family, names) for family in self.families()}

    def case_ids(self, device: str) -> set[str]:
        """Cases of the device that need not be measured again: see `FINAL_STATUSES`."""
        final = pa.array(FINAL_STATUSES)
        found: set[str] = set()
        for family in sorted(set(self.listing.families()) & set(families())):
            # Filtered here: of many small files, handing the filter down costs more than it saves.
            for batch in self.scan(family, [device], ["case_id", "status"]):
                found.update(batch["case_id"].filter(pc.is_in(batch["status"], final)).to_pylist())
        return found

    def lock(self, device: str) -> contextlib.AbstractContextManager[None]:
        """Hold the device for one campaign on this machine; the operating system lets go when the process ends.

        The lock is a file of this machine also where the rows go to a URL: what it guards is the device.

        Raises:
            StoreError: another campaign holds it; the message names its process.
        """
        return held(self.place.lock_file(_safe(device, "file")), f"{device} is being measured by")

    def check_outside(self, out: Path) -> None:
        """That a file or folder for others does not lie in the store, whose rows it would be counted among.

        Raises:
            SpecError: it does.
        """
        if isinstance(self.place, LocalRoot) and out.resolve().is_relative_to(self.place.folder.resolve()):
            raise SpecError(f"{out} lies in the store {self.root_name}; name a place outside of it", field="out")

    def compact(self, out_dir: Path, *, beside: Mapping[str, pa.Table] | None = None) -> list[Path]:
        """Write one sorted table per family, see `packing.pack`; the store itself is not changed.

        `beside` are further rows by family, of the shipped tables say; a row that is in both is written once.

        Raises:
            SpecError: `out_dir` lies in the store.
            StoreError: the disk is full or not writable.
        """
        self.check_outside(out_dir)
        tables = {family: [table] for family, table in self.read_all().items()}
        for family, table in (beside or {}).items():
            tables.setdefault(family, []).insert(0, table)
        return pack(tables, out_dir)


def _safe(device: str, what: str) -> str:
    if not _SAFE_NAME.fullmatch(device):
        raise StoreError(f"device name {device!r} cannot name a {what}; use letters, digits, '.', '_', '+' and '-'")
    return device
