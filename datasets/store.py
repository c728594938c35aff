"""The append-only store of measured rows: immutable Parquet files, one per family, device and collected block.

    root/family=gemm/device=nvidia-h200/20250131T101500.123456Z-9f86d081884c.parquet
    root/.locks/nvidia-h200.lock

A file appears under its final name only when it is complete and on disk, so a killed collector, a full disk or two
collectors at once can never damage rows that were stored before.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ..features.errors import listed
from ..features.kernel import families
from ..home import home_dir
from .checks import LowerBounds, Refused, check_measurements
from .files import (
    StoreError,
    StoreWarning,
    clear_os_errors,
    commit_files,
    family_schema,
    file_metadata,
    parquet_bytes,
    read_files,
)
from .packing import pack
from .schema import Measurement, Provenance, to_table

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
    """Measured rows under one folder, `KERNELCAST_HOME/measurements` unless another is given."""

    def __init__(self, root: Path | None = None, *, lower_bounds: LowerBounds | None = None) -> None:
        """`lower_bounds` replaces the catalogue's physical bounds, which rows may not beat."""
        self.root = Path(root) if root is not None else home_dir() / "measurements"
        self._lower_bounds = lower_bounds

    def append(
        self,
        measurements: Sequence[Measurement],
        provenance: Provenance,
        *,
        on_refused: Callable[[list[Refused]], None] | None = None,
    ) -> list[Path]:
        """Store a block of rows, one new file per family and device.

        Every file is written in full before the first gets its final name, so a full disk commits none of the block.
        `on_refused` is called with the rows that are not accepted (positions in `measurements`) and the rest is
        stored; without it a single refused row stores nothing. `checks.as_failed` turns a refused row into one that
        can be stored.

        Returns:
            The new files; none for no rows.

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
        groups: dict[tuple[str, str], list[Measurement]] = {}
        for i, m in enumerate(measurements):
            if i not in bad:
                groups.setdefault((m.spec.family, m.device), []).append(m)
        metadata = file_metadata({provenance.block: provenance.facts})
        files = []
        for (family, device), rows in groups.items():
            content = parquet_bytes(to_table(rows, family).replace_schema_metadata(metadata))
            files.append((self._new_path(family, device, content), content))
        commit_files(files)
        return [path for path, _ in files]

    def _refused(self, measurements: Sequence[Measurement], block: str) -> list[Refused]:
        found = {one.row: one for one in check_measurements(measurements, self._lower_bounds)}
        for i, m in enumerate(measurements):
            if m.block != block:
                found[i] = Refused(i, "block", f"is {m.block!r} but the provenance given is of {block!r}")
        return [found[row] for row in sorted(found)]

    def _new_path(self, family: str, device: str, content: bytes) -> Path:
        if not _SAFE_NAME.fullmatch(device):
            raise StoreError(f"device name {device!r} cannot name a folder; use letters, digits, '.', '_', '+' and '-'")
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        # Salted: two collectors that store equal rows in the same microsecond still get two names.
        digest = hashlib.blake2b(content, digest_size=6, salt=os.urandom(16)).hexdigest()
        return self.root / f"family={family}" / f"device={device}" / f"{stamp}-{digest}.parquet"

    def families(self) -> list[str]:
        """Names of the families that have rows, sorted; a `StoreWarning` names what this kernelcast does not know."""
        found = {path.parent.parent.name.removeprefix("family=") for path in self.files()}
        if unknown := sorted(found - set(families())):
            warnings.warn(f"{self.root} has rows of unknown families: {listed(unknown)}", StoreWarning, stacklevel=2)
        return sorted(found & set(families()))

    def files(self, family: str = "*", device: str = "*") -> list[Path]:
        """Committed files, in the order they were stored within a family and device."""
        return sorted(self.root.glob(f"family={family}/device={device}/[!.]*.parquet"))

    def leftovers(self) -> list[Path]:
        """Temporary files of collectors that were killed while writing. They hold no committed rows."""
        return sorted(self.root.glob("family=*/device=*/.*.tmp"))

    def read(self, family: str, devices: Iterable[str] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of one family, of all devices or of those named, as a table of `schema.arrow_schema(family)`.

        The metadata of the table merges the provenance of the files read (`provenance_of`). A file that cannot be read
        gives a `StoreWarning` naming it and is skipped.

        Raises:
            SpecError: unknown family or column.
        """
        wanted = None if devices is None else {f"device={name}" for name in devices}
        paths = (path for path in self.files(family) if wanted is None or path.parent.name in wanted)
        return read_files(paths, family_schema(family, columns))

    def read_all(self, devices: Iterable[str] | None = None) -> dict[str, pa.Table]:
        """`read` of every family that has rows, by family name."""
        names = None if devices is None else list(devices)
        return {family: self.read(family, names) for family in self.families()}

    def case_ids(self, device: str) -> set[str]:
        """Cases of the device that need not be measured again: see `FINAL_STATUSES`."""
        found: set[str] = set()
        for family in self.families():
            table = self.read(family, [device], ["status", "case_id"])
            final = pc.is_in(table["status"], pa.array(FINAL_STATUSES))
            found.update(table.filter(final)["case_id"].to_pylist())
        return found

    @contextlib.contextmanager
    def lock(self, device: str) -> Iterator[None]:
        """Hold the device for one campaign on this machine; the operating system lets go when the process ends.

        Raises:
            StoreError: another campaign holds it; the message names its process.
        """
        # Unix only, and only needed where something is measured.
        import fcntl

        if not _SAFE_NAME.fullmatch(device):
            raise StoreError(f"device name {device!r} cannot name a file; use letters, digits, '.', '_', '+' and '-'")
        path = self.root / ".locks" / f"{device}.lock"
        with clear_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(handle, 200).decode(errors="replace").strip() or "an unknown process"
                raise StoreError(f"{device} is being measured by {holder}; wait for it or stop it ({path})") from None
            # The file stays when the lock is released: removing it would let two campaigns lock two different files.
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {os.uname().nodename}".encode())
            yield
        finally:
            os.close(handle)

    def compact(self, out_dir: Path, *, beside: Mapping[str, pa.Table] | None = None) -> list[Path]:
        """Write one sorted table per family, see `packing.pack`; the store itself is not changed.

        `beside` are further rows by family, of the shipped tables say; a row that is in both is written once.

        Raises:
            StoreError: the disk is full or not writable.
        """
        tables = {family: [table] for family, table in self.read_all().items()}
        for family, table in (beside or {}).items():
            tables.setdefault(family, []).insert(0, table)
        return pack(tables, out_dir)
