"""Measured choices kept in the user's store: at once in a journal, in batches as one Parquet file a device.

    KERNELCAST_HOME/measurements/.inductor.jsonl

A compilation may hand back hundreds of lists of a dozen choices, and a file each would make the store slow to read. So each
list is appended to the journal, which survives the process, and the journal's rows are stored when there is a batch of them,
when the process ends, and before another one reads the store.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...datasets.rows.checks import Refused
from ...datasets.rows.schema import Measurement, Provenance, from_row, to_row
from ...datasets.store.errors import StoreError
from ...datasets.store.parquet_files import provenance_of
from ...datasets.store.store import Store
from ...features.errors import SpecError
from ...features.spec_io.rows import spec_from_row
from ...files import append_line, lock, read_lines
from .choices import FAMILY
from .ranking import Measured, stack_of
from .reporting import say_once

SOURCE = "inductor"
"""`source` of the rows, and the `kind` of their provenance."""

BATCH = 512
"""Rows after which the journal is stored: about 30 lists of 16 choices."""

JOURNAL = ".inductor.jsonl"
"""The journal of all processes, in the store's folder: a line for each row, with the facts that are its provenance."""


class StoredRows:
    """Keeps measured choices under one store's folder."""

    def __init__(self, root: Path | None = None) -> None:
        """`root` is the store's folder, by default the user's own.

        Raises:
            SpecError: `root` can be no store: a file stands there.
        """
        try:
            self.store = Store(root)
        except StoreError as error:
            raise SpecError(str(error), field="store") from error
        self.journal = self.store.root / JOURNAL
        self._unstored = 0

    def keep(self, rows: Sequence[Measured], facts: Mapping[str, Any]) -> None:
        """Write rows to the journal, with the facts that are their provenance.

        Raises:
            OSError, StoreError: the disk is full or not writable.
        """
        if not rows:
            return
        append_line(self.journal, "\n".join(json.dumps({"facts": facts, "row": to_row(_measurement(r))}) for r in rows))
        self._unstored += len(rows)
        if self._unstored >= BATCH:
            self.flush()

    def remembered(self, device: str) -> list[Measured]:
        """Every row of the device that Inductor measured, those that a killed process left in the journal included."""
        try:
            self.flush()
        except (OSError, StoreError) as error:
            say_once(f"measurements of an earlier compilation stay in {self.journal}: {error}")
        rows, facts = self._stored(device)
        results = []
        for row in rows:
            versions = (facts.get(row["block"]) or {}).get("versions") or {}
            with contextlib.suppress(SpecError):
                # A row of a later kernelcast may say what this one does not know.
                results.append(_measured(row, device, stack_of(versions)))
        return results

    def flush(self) -> None:
        """Store what the journal holds, as far as it is not in the store yet, and empty the journal.

        Raises:
            OSError, StoreError: the disk is full or not writable; the journal stays for the next time.
        """
        self._unstored = 0
        if not self.journal.exists():
            return
        # Emptied, not removed: another process may be waiting for its lock to append to it.
        with lock(self.journal, wait_s=None) as handle:
            entries, damaged = read_lines(self.journal, _entry)
            if damaged:
                say_once(f"{damaged} lines of {self.journal} cannot be read and are left out")
            batches: dict[tuple[str, str], list[Measurement]] = {}
            for facts, row in entries:
                batches.setdefault((row.device, facts), []).append(row)
            for (device, facts), rows in batches.items():
                self._store(device, json.loads(facts), rows)
            os.ftruncate(handle, 0)

    def _store(self, device: str, facts: Mapping[str, Any], rows: Sequence[Measurement]) -> None:
        stored = set(map(_key, self._stored(device)[0]))
        fresh = {_key(to_row(row)): row for row in rows}
        block = f"{SOURCE}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
        batch = [replace(row, block=block) for key, row in fresh.items() if key not in stored]
        refused: list[Refused] = []
        if batch:
            self.store.append(batch, Provenance(block, facts), on_refused=refused.extend)
        if refused:
            say_once(
                f"{len(refused)} of {len(batch)} times that Inductor measured on {device} cannot be true and are not "
                f"kept; the first: {refused[0].column} {refused[0].reason}"
            )

    def _stored(self, device: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Inductor's rows of a device in the store, and the facts of the blocks they are of."""
        import pyarrow.compute as pc

        table = self.store.read(FAMILY, [device])
        return table.filter(pc.equal(table["source"], SOURCE)).to_pylist(), provenance_of(table)


def _entry(line: str) -> tuple[str, Measurement]:
    """The facts, as JSON, and the row of a line of the journal."""
    content = json.loads(line)
    return json.dumps(content["facts"]), from_row(content["row"])


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


def _key(row: Mapping[str, Any]) -> tuple[object, ...]:
    """A time that Inductor's cache hands back again is the same to the last digit; a failure is one each time."""
    return row["case_id"], row["status"], row["latency_s"], row["measured_at"] if row["latency_s"] is None else None
