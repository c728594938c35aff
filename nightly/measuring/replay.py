"""Recorded rows played in place of a device: for rehearsing a plan, and for tests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...collectors.campaign import Progress
from ...collectors.collector import Pace, ReplayCollector
from ...collectors.kernel_campaign import SENTINEL_CASES, Sink, run_campaign
from ...datasets.rows.schema import Measurement, from_row
from ...datasets.rows.table_columns import read_table
from ...datasets.store.errors import StoreError
from ...datasets.store.parquet_files import family_schema, read_file
from ...datasets.store.store import Store
from ...features.device import Catalogue
from ...features.errors import SpecError, listed
from ...features.kernel import KernelSpec
from ...models.selection.suggest import PROTOCOLS
from ..record.plan import Plan
from .protocol import CollectingEnd, DeviceReading

_PACE = Pace(calibration=1)


def recorded_rows(place: Path, device: str | None) -> list[Measurement]:
    """The `ok` rows of a Parquet file of one family or of a store's folder, of one device or of the only one there is.

    Raises:
        SpecError: there are none, they cannot be read, or they are of several devices and none was named.
    """
    if not place.exists():
        raise SpecError(f"replay.rows: there is nothing at {place}", field="replay.rows")
    if place.is_dir():
        tables = list(Store(place).read_all().values())
    else:
        family = set(read_table(place, frozenset())["family"].to_pylist())
        if len(family) != 1:
            raise SpecError(
                f"replay.rows: {place} is no table of one family and no store's folder", field="replay.rows"
            )
        try:
            tables = [read_file(place, family_schema(str(next(iter(family)))))]
        except StoreError as error:
            raise SpecError(f"replay.rows: {error}", field="replay.rows") from error
    good: list[pa.Table] = [table.filter(pc.equal(table["status"], "ok")) for table in tables]
    known = sorted({str(name) for table in good for name in pc.unique(table["device"]).to_pylist()})
    if device is None and len(known) != 1:
        raise SpecError(f"{place} has rows of {listed(known) or 'no device'}; name one as device", field="device")
    chosen = device or known[0]
    if chosen not in known:
        raise SpecError(
            f"{place} has no rows of {chosen}; it has rows of {listed(known) or 'no device'}", field="device"
        )
    return [from_row(row) for table in good for row in table.filter(pc.equal(table["device"], chosen)).to_pylist()]


class ReplayMeasurer:
    """Plays `rows` as `device`; `speed` times faster than measuring them took, 0 for at once."""

    def __init__(self, plan: Plan, rows: Iterable[Measurement], devices: Catalogue) -> None:
        self._rows = {row.spec: row for row in rows}
        self._plan, self._device = plan, next(iter(self._rows.values())).device
        self.devices = (self._device,)
        protocol = PROTOCOLS.get(devices.get(self._device).kind, PROTOCOLS["gpu"])
        latency = np.array([row.latency_s for row in self._rows.values()], dtype=float)
        first = np.array([row.first_call_s for row in self._rows.values()], dtype=float)
        self._took_s = dict(zip(self._rows, protocol.seconds(latency, first).tolist(), strict=True))

    def characterise(self) -> None:
        """A recording cannot be characterised."""

    def look(self, cases: Mapping[str, Sequence[KernelSpec]], times: int) -> Mapping[str, DeviceReading]:
        """Those of the cases that were recorded, if any."""
        known = [spec for spec in cases.get(self._device, ()) if spec in self._rows]
        reading = {str(spec): self._rows[spec].latency_s for spec in known}
        return {self._device: DeviceReading((reading,) * times if reading else (), {"replayed": True})}

    def candidates(self, device: str, wanted: int, seed: int, measured: Sequence[KernelSpec]) -> list[KernelSpec]:  # noqa: ARG002
        """Recorded cases in random order, of the families, dtypes and threads the plan allows."""
        allowed = [spec for spec in self._rows if self.can(device, spec)]
        order = np.random.default_rng(seed).permutation(len(allowed)).tolist()
        return [allowed[i] for i in order[:wanted]]

    def can(self, device: str, spec: KernelSpec) -> bool:  # noqa: ARG002
        """Whether it was recorded and is of the families, dtypes, threads and impls the plan allows."""
        return spec in self._rows and self._plan.allows(spec)

    def collect(
        self, cases: Mapping[str, Sequence[KernelSpec]], *, sink: Sink, until: float, note: Mapping[str, Any],
        progress: Progress | None = None,
    ) -> CollectingEnd:  # fmt: skip
        """A campaign over the recording; its provenance says so."""
        collector = _Paced(self._rows.values(), self._device, self._took_s, self._plan.replay.speed)
        sentinels = [spec for spec in SENTINEL_CASES if spec in self._rows]
        done = run_campaign(
            cases.get(self._device, ()), device=self._device, sink=sink, collector_for=collector, pace=_PACE,
            sentinels=sentinels, note={**note, "replayed_from": self._plan.replay.rows}, until=until, progress=progress,
        )  # fmt: skip
        return CollectingEnd(done.interrupted)


class _Paced(ReplayCollector):
    """A replay that takes the time measuring took, divided by `speed`."""

    def __init__(
        self, rows: Iterable[Measurement], device: str, took_s: Mapping[KernelSpec, float], speed: float
    ) -> None:
        super().__init__(rows, device)
        self._took_s, self._speed = took_s, speed

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        """One row per spec, after a while."""
        if self._speed > 0:
            time.sleep(sum(self._took_s.get(spec, 0.0) for spec in specs) / self._speed)
        return super().collect(specs)
