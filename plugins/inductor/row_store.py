"""Measured choices kept in the user's store, in batches of one Parquet file a device.

A compilation may hand back hundreds of lists of a dozen choices, and a file each would make the store slow to read: rows are
stored when a batch is full and when the process ends.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...datasets.rows.checks import Refused
from ...datasets.rows.schema import Measurement, Provenance
from ...datasets.store.errors import StoreError
from ...datasets.store.parquet_files import provenance_of
from ...datasets.store.store import Store
from ...features.errors import SpecError
from ...features.spec_io.rows import spec_from_row
from .choices import FAMILY
from .ranking import Measured, stack_of
from .reporting import say_once

SOURCE = "inductor"
"""`source` of the rows, and the `kind` of their provenance."""

BATCH = 512
"""Rows that are stored at once: about 30 lists of 16 choices."""

_Key = tuple[str, str, float | None, str | None]


class StoredRows:
    """Keeps measured choices under one store's folder; one object per process and store."""

    def __init__(self, root: Path | None = None) -> None:
        """`root` is the store's folder, by default the user's own.

        Raises:
            SpecError: `root` can be no store: a file stands there.
        """
        try:
            self.store = Store(root)
        except StoreError as error:
            raise SpecError(str(error), field="store") from error
        self._pending: list[Measurement] = []
        self._facts: dict[str, Mapping[str, Any]] = {}
        self._seen: dict[str, set[_Key]] = {}

    def keep(self, rows: Sequence[Measured], device: str, facts: Mapping[str, Any]) -> None:
        """Take rows of one device, as far as they are not in the store yet, with the facts that are their provenance.

        Raises:
            StoreError: the batch is full and the disk is too, or not writable.
        """
        if device not in self._seen:
            self.remembered(device)
        self._facts.setdefault(device, facts)
        for row in map(_measurement, rows):
            key = _key(row.case_id, row.status, row.latency_s, row.measured_at)
            if key not in self._seen[device]:
                self._seen[device].add(key)
                self._pending.append(row)
        if len(self._pending) >= BATCH:
            self.flush()

    def remembered(self, device: str) -> list[Measured]:
        """Every row of the device in the store that Inductor measured."""
        import pyarrow.compute as pc

        table = self.store.read(FAMILY, [device])
        blocks = provenance_of(table)
        rows = table.filter(pc.equal(table["source"], SOURCE)).to_pylist()
        seen = self._seen.setdefault(device, set())
        seen.update(_key(row["case_id"], row["status"], row["latency_s"], row["measured_at"]) for row in rows)
        results = []
        for row in rows:
            facts = blocks.get(row["block"]) or {}
            with contextlib.suppress(SpecError):
                # A row of a later kernelcast may say what this one does not know.
                results.append(_measured(row, device, stack_of(facts.get("versions") or {})))
        return results

    def flush(self) -> None:
        """Store what was taken.

        Raises:
            StoreError: the disk is full or not writable; what is not stored yet stays for the next time.
        """
        for device in dict.fromkeys(row.device for row in self._pending):
            block = f"{SOURCE}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
            rows = [replace(row, block=block) for row in self._pending if row.device == device]
            refused: list[Refused] = []
            self.store.append(rows, Provenance(block, self._facts[device]), on_refused=refused.extend)
            self._pending = [row for row in self._pending if row.device != device]
            if refused:
                say_once(
                    f"{len(refused)} of {len(rows)} times that Inductor measured on {device} cannot be true and are not "
                    f"kept; the first: {refused[0].column} {refused[0].reason}"
                )


def _measurement(row: Measured) -> Measurement:
    return Measurement(
        spec=row.spec, device=row.device, status="ok" if row.latency_s is not None else "failed", block="",
        latency_s=row.latency_s, latency_min_s=row.latency_s if row.least else None, source=SOURCE,
        message=row.note or None, measured_at=row.measured_at,
    )  # fmt: skip


def _measured(row: Mapping[str, Any], device: str, stack: str) -> Measured:
    return Measured(
        spec=spec_from_row(row), device=device, status=row["status"], latency_s=row["latency_s"], note=row["message"] or "",
        stack=stack, measured_at=row["measured_at"] or "", least=row["latency_min_s"] is not None,
    )  # fmt: skip


def _key(case_id: str, status: str, latency_s: float | None, measured_at: str | None) -> _Key:
    """A time that Inductor's cache hands back again is the same to the last digit; a failure is one each time."""
    return case_id, status, latency_s, measured_at if latency_s is None else None
