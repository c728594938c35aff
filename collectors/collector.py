"""What a campaign hands its cases to: a worker process, a device elsewhere, or a replay of recorded rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

from ..datasets.rows.schema import Measurement
from ..features.kernel import KernelSpec


class WorkerLostError(Exception):
    """The worker is gone: it crashed, or was killed for its silence. `case_id` is what it was working on."""

    def __init__(self, status: Literal["timeout", "crashed"], case_id: str | None, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.case_id = case_id


class Collector(Protocol):
    """Something that turns specs into rows: a worker process, or a replay of recorded rows."""

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        """One row per spec, in order; fewer where its time ran out.

        Raises:
            WorkerLostError: the process that measured them is gone; the next call starts another.
            ChildStartError: no process can be started; it carries the rows measured before.
        """
        ...

    def facts(self) -> Mapping[str, Any]:
        """What to record about it beside the machine: library versions, threads, cores. Empty before the first use."""
        ...

    def close(self) -> None:
        """End it, at once."""
        ...


class ReplayCollector:
    """Gives the recorded row of each case; a case without one is a failed row that says so."""

    def __init__(self, rows: Iterable[Measurement], device: str) -> None:
        self._rows = {row.case_id: row for row in rows}
        self._device = device

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        """One row per spec, in order, named after this collector's device."""
        return [self._row(spec) for spec in specs]

    def facts(self) -> Mapping[str, Any]:
        """Says that rows were replayed, so that they are never taken for fresh ones."""
        return {"replayed_rows": len(self._rows)}

    def close(self) -> None:
        """Nothing to end."""

    def __call__(self, impl: str, threads: int) -> Collector:  # noqa: ARG002  one recording serves all
        """Itself, as `run_campaign`'s `collector_for`."""
        return self

    def _row(self, spec: KernelSpec) -> Measurement:
        recorded = self._rows.get(spec.case_id)
        if recorded is None:
            return Measurement(spec, self._device, "failed", block="", message="no recorded row to replay")
        return replace(recorded, device=self._device, block="")
