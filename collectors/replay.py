"""A collector that plays recorded rows, so that campaigns, the command line and tests run without any library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..datasets.schema import Measurement
from ..features.kernel import KernelSpec
from .process import Collector


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
        found = self._rows.get(spec.case_id)
        if found is None:
            return Measurement(spec, self._device, "failed", block="", message="no recorded row to replay")
        return replace(found, device=self._device, block="")
