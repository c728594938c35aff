"""Measured choices kept in the user's store: at once in a journal, in batches as Parquet.

    KERNELCAST_HOME/measurements/.inductor/20250131T101500Z-4711-9f86d0.jsonl

A compilation may hand back hundreds of lists of a dozen choices, and a Parquet file each would make the store slow to read.
So every list is appended to a journal of this process with one write, which a crash of the process cannot undo, and the
journal is turned into one file per device when a batch is full and when the process ends. A journal whose process is gone
(nobody holds its lock) is taken over by the next one that starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
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
from ...files import LockedError, lock
from .choices import FAMILY
from .measured_choices import Measured, stack_of
from .reporting import say_once

SOURCE = "inductor"
"""`source` of the rows, and the `kind` of their provenance."""

BATCH = 512
"""Rows after which the journal becomes Parquet: about 30 lists of 16 choices."""

JOURNALS = ".inductor"

_Key = tuple[str, str, float | None, str | None]


class StoredRows:
    """Keeps measured choices under one store's folder; one object per process and store.

    Raises:
        OSError: the folder cannot be made or written.
    """

    def __init__(self, root: Path | None = None, *, batch: int = BATCH) -> None:
        """`root` is the store's folder, by default the user's own; journals of earlier processes there are taken over.

        Raises:
            SpecError: `root` can be no store: a file stands there.
        """
        try:
            self.store = Store(root)
        except StoreError as error:
            raise SpecError(str(error), field="store") from error
        self._batch = batch
        self._pending: list[Measurement] = []
        self._facts: dict[str, Mapping[str, Any]] = {}
        self._journal: int | None = None
        self._path: Path | None = None
        self._lock = contextlib.ExitStack()
        self._seen: dict[str, set[_Key]] = {}
        self._adopt()

    def keep(self, rows: Sequence[Measured], device: str, facts: Mapping[str, Any]) -> None:
        """Take rows of one device: what is not in the store yet is in the journal when this returns.

        Raises:
            OSError, StoreError: the disk is full or not writable.
        """
        fresh = self._fresh([_measurement(row) for row in rows], device)
        if not fresh:
            return
        lines: list[dict[str, Any]] = [{"row": _plain(row)} for row in fresh]
        if self._journal is None or device not in self._facts:
            lines.insert(0, {"device": device, "facts": dict(facts)})
        self._write(lines)
        self._facts.setdefault(device, dict(facts))
        self._pending += fresh
        if len(self._pending) >= self._batch:
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
        """Turn the journal into Parquet and empty it.

        Raises:
            StoreError: the disk is full or not writable; the journal stays for the next process.
        """
        rows, self._pending = self._pending, []
        try:
            self._store(rows, self._facts)
        except StoreError:
            self._pending = rows + self._pending
            raise
        if self._journal is not None:
            os.ftruncate(self._journal, 0)
            # The next rows say their facts anew.
            self._facts = {}

    def close(self) -> None:
        """Flush, and remove the journal. Nothing is taken after that, until `keep` begins another."""
        self.flush()
        if self._journal is not None and self._path is not None:
            self._path.unlink(missing_ok=True)
            self._lock.close()
        self._journal = self._path = None

    def _fresh(self, rows: Sequence[Measurement], device: str) -> list[Measurement]:
        if device not in self._seen:
            self.remembered(device)
        fresh = []
        for row in rows:
            key = _key(row.case_id, row.status, row.latency_s, row.measured_at)
            if key not in self._seen[device]:
                self._seen[device].add(key)
                fresh.append(row)
        return fresh

    def _store(self, rows: Sequence[Measurement], facts: Mapping[str, Mapping[str, Any]]) -> None:
        for device in dict.fromkeys(row.device for row in rows):
            block = f"{SOURCE}-{_stamp()}-{secrets.token_hex(3)}"
            of_device = [replace(row, block=block) for row in rows if row.device == device]
            refused: list[Refused] = []
            self.store.append(of_device, Provenance(block, facts[device]), on_refused=refused.extend)
            if refused:
                say_once(
                    f"{len(refused)} of {len(of_device)} times that Inductor measured on {device} cannot be true and are not "
                    f"kept; the first: {refused[0].column} {refused[0].reason}"
                )

    def _write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        journal = self._opened() if self._journal is None else self._journal
        content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        if os.write(journal, content) != len(content):
            raise StoreError(f"{self._path} was written in part only; is the disk full?")

    def _opened(self) -> int:
        while True:
            path = self.store.root / JOURNALS / f"{_stamp()}-{os.getpid()}-{secrets.token_hex(3)}.jsonl"
            with contextlib.ExitStack() as stack:
                handle = stack.enter_context(lock(path, wait_s=None))
                # Another process may have taken it for a dead one's between its making and its locking.
                if os.fstat(handle).st_nlink:
                    self._journal, self._path, self._lock = handle, path, stack.pop_all()
                    return handle

    def _adopt(self) -> None:
        for path in sorted((self.store.root / JOURNALS).glob("*.jsonl")):
            try:
                with lock(path, create=False):
                    rows, facts = _read_journal(path)
                    fresh = [
                        row for device in facts for row in self._fresh([r for r in rows if r.device == device], device)
                    ]
                    self._store(fresh, facts)
                    path.unlink(missing_ok=True)
            except (LockedError, FileNotFoundError):
                # Its process is alive and will see to it, or another process just did.
                continue
            except (OSError, StoreError) as error:
                say_once(f"measurements of an earlier compilation stay in {path}: {error}")


def _read_journal(path: Path) -> tuple[list[Measurement], dict[str, Mapping[str, Any]]]:
    """Rows and facts by device; lines that a crash or a hand has spoilt are left out, and said."""
    rows: list[Measurement] = []
    facts: dict[str, Mapping[str, Any]] = {}
    spoilt = 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            content = json.loads(line)
            if "facts" in content:
                facts[str(content["device"])] = dict(content["facts"])
            else:
                rows.append(from_row(content["row"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            spoilt += 1
    if spoilt:
        say_once(f"{spoilt} lines of {path} cannot be read and are left out")
    return [row for row in rows if facts.get(row.device)], facts


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


def _plain(row: Measurement) -> dict[str, Any]:
    return {name: value for name, value in to_row(row).items() if value is not None}


def _key(case_id: str, status: str, latency_s: float | None, measured_at: str | None) -> _Key:
    """A time that Inductor's cache hands back again is the same to the last digit; a failure is one each time."""
    return case_id, status, latency_s, measured_at if latency_s is None else None


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
