"""The append-only store of measured rows: immutable Parquet files, one per family, device and collected block.

    root/family=gemm/device=nvidia-h200/20250131T101500.123456Z-2c26b46b68ffc68ff99b453c1d304134-9f86d081.parquet
    root/.locks/nvidia-h200.lock

The root is a folder or a URL (`location`). A file appears under its final name only when it is complete, so a killed collector,
a full disk or two collectors at once can never damage rows that were stored before; its name carries a digest of its content
(`listing`), by which `verify` finds damage.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...features.errors import SpecError, listed
from ...features.kernel import families, get_family
from ...files import LockedError, lock
from ..rows.checks import LowerBounds, Refused, check_measurements
from ..rows.schema import Measurement, Provenance, software_of, to_table
from ..rows.table_columns import text
from .errors import StoreBusyError, StoreError, StoreFullError, StoreWarning, os_error
from .location import (
    Folder,
    LocalLocation,
    commit_files,
    digest_of,
    folder_name,
    list_families,
    list_folders,
    list_leftovers,
    location_of,
    new_name,
)
from .parquet_files import (
    BATCH_ROWS,
    family_schema,
    file_metadata,
    parquet_bytes,
    provenance_in,
    provenance_of,
    read_rows,
    scan_rows,
    sorted_bytes,
    with_own_provenance,
)

Mask = npt.NDArray[np.bool_]

FINAL_STATUSES = ("ok", "unsupported", "out_of_memory", "timeout")
"""Rows a resumed campaign skips. `crashed` and `failed` may have been an accident of that day and are tried again."""

__all__ = [
    "FINAL_STATUSES",
    "RowsRefused",
    "Store",
    "StoreBusyError",
    "StoreError",
    "StoreFullError",
    "StoreWarning",
    "block_facts",
    "pack",
]

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_SHOWN = 10


class RowsRefused(StoreError):  # noqa: N818 - it names what happened
    """Rows that break physics or lack provenance; nothing of the block was written. `refused` lists them."""

    def __init__(self, refused: Sequence[Refused], total: int) -> None:
        shown = "; ".join(str(item) for item in refused[:_SHOWN])
        more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        super().__init__(f"{len(refused)} of {total} rows refused, nothing written (rows count from 1): {shown}{more}")
        self.refused = list(refused)


class Store:
    """Measured rows under one root, `KERNELCAST_HOME/measurements` unless another is given."""

    def __init__(self, root: Path | str | None = None, *, lower_bounds: LowerBounds | None = None) -> None:
        """`root` is a folder or a URL; `lower_bounds` replaces the catalogue's physical bounds, which rows may not beat.

        Raises:
            StoreError: a URL of an unknown protocol, whose package is missing, or with a password in it.
        """
        self.location = location_of(root)
        self._lower_bounds = lower_bounds

    @property
    def root(self) -> Path:
        """The folder of a store on this machine.

        Raises:
            StoreError: it lies at a URL.
        """
        if not isinstance(self.location, LocalLocation):
            raise StoreError(f"{self.location.name} is no folder of this machine")
        return self.location.folder

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
        bad = {refusal.row for refusal in refused}
        software = software_of(provenance.facts) or None
        groups: dict[tuple[str, str], list[Measurement]] = {}
        for i, m in enumerate(measurements):
            if i not in bad:
                row = m if m.software or not software else replace(m, software=software)
                groups.setdefault((m.spec.family, _safe(m.device, "folder")), []).append(row)
        metadata = file_metadata({provenance.block: provenance.facts})
        files = []
        for (family, device), rows in groups.items():
            content = parquet_bytes(to_table(rows, family).replace_schema_metadata(metadata))
            files.append((f"{folder_name(family, device)}/{new_name(digest_of([content]))}", content))
        self.location.write(files)
        return [self._path(name) for name, _ in files]

    def _refused(self, measurements: Sequence[Measurement], block: str) -> list[Refused]:
        by_row = {refusal.row: refusal for refusal in check_measurements(measurements, self._lower_bounds)}
        for i, m in enumerate(measurements):
            if m.block != block:
                by_row[i] = Refused(i, "block", f"is {m.block!r} but the provenance given is of {block!r}")
        return [by_row[row] for row in sorted(by_row)]

    def _path(self, name: str) -> PurePath:
        return self.location.folder / name if isinstance(self.location, LocalLocation) else PurePosixPath(name)

    def families(self) -> list[str]:
        """Names of the families that have rows, sorted; a `StoreWarning` names what this kernelcast does not know."""
        stored = {folder.family for folder in self.folders()}
        if unknown := sorted(stored - set(families())):
            message = f"{self.location.name} has rows of unknown families: {listed(unknown)}"
            warnings.warn(message, StoreWarning, stacklevel=2)
        return sorted(stored & set(families()))

    def folders(self, family: str = "*", device: str = "*") -> list[Folder]:
        """The folders with rows, of all families and devices or of those named.

        Raises:
            StoreError: the location cannot be reached, or an earlier kernelcast packed the store in place.
        """
        return list_folders(self.location, family, device)

    def names(self, family: str = "*", device: str = "*") -> list[str]:
        """Committed files as paths below the root, in the order they were stored within a family and device."""
        return [name for folder in self.folders(family, device) for name in folder.files]

    def files(self, family: str = "*", device: str = "*") -> list[Path]:
        """`names` as paths of a folder of this machine.

        Raises:
            StoreError: the store lies at a URL, whose files have names only.
        """
        folder = str(self.root)
        return [Path(f"{folder}/{name}") for name in self.names(family, device)]

    def leftovers(self) -> list[PurePath]:
        """Temporary files of collectors that were killed while writing. They hold no committed rows."""
        return [self._path(name) for name in list_leftovers(self.location)]

    def read(self, family: str, devices: Iterable[str] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of one family, of all devices or of those named, as a table of `schema.arrow_schema(family)`.

        The metadata of the table merges the provenance of the files read (`provenance_of`). A file that cannot be read
        gives a `StoreWarning` naming it and is skipped. `scan` does the same in bounded memory.

        Raises:
            SpecError: unknown family or column.
            StoreError: a URL cannot be reached.
        """
        return read_rows(self.location, family, devices, family_schema(family, columns))

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
            StoreError: a URL cannot be reached, or a file is damaged after some of its rows were given.
        """
        schema = family_schema(family, columns)
        return scan_rows(self.location, family, devices, schema, where, batch_rows)

    def read_all(self, devices: Iterable[str] | None = None) -> dict[str, pa.Table]:
        """`read` of every family that has rows, by family name."""
        names = None if devices is None else list(devices)
        return {family: self.read(family, names) for family in self.families()}

    def case_ids(self, device: str) -> set[str]:
        """Cases of the device that need not be measured again: see `FINAL_STATUSES`."""
        final = pa.array(FINAL_STATUSES)
        cases: set[str] = set()
        for family in sorted(set(list_families(self.location)) & set(families())):
            # Filtered here: of many small files, handing the filter down costs more than it saves.
            for batch in self.scan(family, [device], ["case_id", "status"]):
                cases.update(batch["case_id"].filter(pc.is_in(batch["status"], final)).to_pylist())
        return cases

    @contextlib.contextmanager
    def lock(self, device: str, wait_s: float = 0.0) -> Iterator[None]:
        """Hold the device for one campaign on this machine; the operating system lets go when the process ends.

        Another holder is waited for `wait_s` seconds. The lock is a file of this machine, also of a store at a URL.

        Raises:
            StoreBusyError: another campaign holds it; the message names its process.
        """
        path = self.location.lock_file(_safe(device, "file"))
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(lock(path, holder=f"process {os.getpid()} on {os.uname().nodename}", wait_s=wait_s))
            except LockedError as error:
                by = error.holder or "an unknown process"
                raise StoreBusyError(f"{device} is being measured by {by}; wait for it or stop it ({path})") from None
            except OSError as error:
                raise os_error(path, error) from error
            yield

    def check_outside(self, out: Path) -> None:
        """That a file or folder for others does not lie in the store, whose rows it would be counted among.

        Raises:
            SpecError: it does.
        """
        if isinstance(self.location, LocalLocation) and out.resolve().is_relative_to(self.location.folder.resolve()):
            raise SpecError(f"{out} lies in the store {self.location.name}; name a place outside of it", field="out")

    def compact(self, out_dir: Path, *, beside: Mapping[str, pa.Table] | None = None) -> list[Path]:
        """Write one sorted table per family, see `pack`; the store itself is not changed.

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


def block_facts(store: Store, device: str) -> list[dict[str, Any]]:
    """The facts of every block of a device, those of the file that was stored last first; without files that cannot be read.

    Of a store at a URL it is always empty: fleets write there from many machines.
    """
    if not isinstance(store.location, LocalLocation):
        return []
    facts: list[dict[str, Any]] = []
    for path in sorted(store.files(device=device), key=lambda path: path.name, reverse=True):
        # The check of a store puts damaged files aside and says so.
        with contextlib.suppress(OSError, pa.ArrowException, ValueError, KeyError):
            facts += provenance_in(pq.read_schema(path).metadata).values()
    return facts


def pack(tables: Mapping[str, Sequence[pa.Table]], out_dir: Path) -> list[Path]:
    """Write the rows of each family as `out_dir/<family>.parquet`, with the provenance of all their blocks.

    A row that is there twice is written once, and a failed attempt at a case that succeeded elsewhere is left out.

    Raises:
        StoreError: the disk is full or not writable.
    """
    written = []
    for family, parts in tables.items():
        facts: dict[str, dict[str, Any]] = {}
        for part in parts:
            facts.update(provenance_of(part))
        rows = pa.concat_tables([part.replace_schema_metadata(None) for part in parts])
        rows = rows.filter(pa.array(_first_of_each(rows)))
        rows = with_own_provenance(rows.filter(pa.array(~_superseded(rows))), facts)
        path = Path(out_dir) / f"{family}.parquet"
        commit_files([(path, sorted_bytes(rows, _sort_keys(family)))])
        written.append(path)
    return written


def _sort_keys(family: str) -> list[str]:
    """Columns by which packed rows of a family are sorted."""
    return ["device", "dtype", "variant", *get_family(family).dim_names, "impl", "threads", "cache_state", "measured_at",
            "case_id"]  # fmt: skip


def _first_of_each(table: pa.Table) -> Mask:
    """The first of the rows that share block, device and case, shape `(n,)`."""
    names = np.char.add(np.char.add(text(table, "block"), "|"), _cases(table))
    first: Mask = np.zeros(len(names), dtype=np.bool_)
    first[np.unique(names, return_index=True)[1]] = True
    return first


def _superseded(table: pa.Table) -> Mask:
    """Rows without a measurement of cases that have one, shape `(n,)`."""
    ok = text(table, "status") == "ok"
    cases = _cases(table)
    superseded: Mask = ~ok & np.isin(cases, cases[ok])
    return superseded


def _cases(table: pa.Table) -> npt.NDArray[np.str_]:
    return np.char.add(np.char.add(text(table, "device"), "|"), text(table, "case_id"))


def _safe(device: str, what: str) -> str:
    if not _SAFE_NAME.fullmatch(device):
        raise StoreError(f"device name {device!r} cannot name a {what}; use letters, digits, '.', '_', '+' and '-'")
    return device
