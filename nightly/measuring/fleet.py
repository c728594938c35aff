"""The devices of a Ray cluster, measured side by side; every row comes back here and is stored by this process alone."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...collectors.campaign import CampaignError, Progress
from ...collectors.fleet.cluster import FleetError, connect, instances
from ...collectors.fleet.driver import TIME_OVER, run_fleet
from ...collectors.kernel_campaign import Sink
from ...datasets.rows.schema import Measurement, Provenance
from ...datasets.store.store import Store
from ...features.device import Catalogue
from ...features.errors import SpecError, listed
from ...features.kernel import KernelSpec
from ..record.plan import Plan
from ..record.record import Finding
from .cpu import CpuMeasurer
from .gpu import GpuMeasurer
from .protocol import CollectingEnd, DeviceReading, Measurer


class FleetMeasurer:
    """Measures on the cluster of the plan; `device_files` are texts of device files that its nodes need."""

    def __init__(self, plan: Plan, known: Catalogue, device_files: Sequence[str] = ()) -> None:
        """The cluster is asked which devices it has.

        Raises:
            SpecError: no cluster is named or reached, or it lacks a device of the plan.
        """
        if plan.fleet.address is None:
            raise SpecError(
                "fleet.address is missing; give the cluster's HOST:PORT, see `kernelcast measure fleet`", field="fleet"
            )
        self._known, self._files, self._address = known, tuple(device_files), plan.fleet.address
        try:
            present = sorted({instance.device for instance in instances(connect(self._address))})
        except FleetError as error:
            raise SpecError(str(error), field="fleet.address") from error
        wanted = [known.get(name).name for name in plan.fleet.devices] or present
        if missing := sorted(set(wanted) - set(present)):
            raise SpecError(
                f"the cluster has no {listed(missing)}; it has {listed(present) or 'no device'}", field="fleet.devices"
            )
        if not wanted:
            raise SpecError(f"the cluster at {self._address} has no device that it names", field="fleet.address")
        self.devices = tuple(wanted)
        self._planners: dict[str, Measurer] = {}
        for name in wanted:
            device = known.get(name)
            gpu = device.kind == "gpu"
            self._planners[name] = GpuMeasurer(plan, device, None) if gpu else CpuMeasurer(plan, device.name)

    def characterise(self) -> None:
        """Devices of other machines are characterised there."""

    def look(self, cases: Mapping[str, Sequence[KernelSpec]], times: int) -> Mapping[str, DeviceReading]:  # noqa: ARG002
        """Nothing: each device's sentinels are read where it is, between blocks."""
        return {}

    def candidates(self, device: str, wanted: int, seed: int, measured: Sequence[KernelSpec]) -> list[KernelSpec]:
        """As a machine with this device alone would."""
        return self._planners[device].candidates(device, wanted, seed, measured)

    def can(self, device: str, spec: KernelSpec) -> bool:
        """As a machine with this device alone would."""
        return self._planners[device].can(device, spec)

    def collect(
        self, cases: Mapping[str, Sequence[KernelSpec]], *, sink: Sink, until: float, note: Mapping[str, Any],
        progress: Progress | None = None,
    ) -> CollectingEnd:  # fmt: skip
        """One campaign over all devices."""
        done: Counter[str] = Counter()
        totals: Counter[str] = Counter()

        def tell(device: str, count: int, total: int) -> None:
            done[device], totals[device] = count, total
            if progress is not None:
                progress(done.total(), totals.total())

        wanted = {device: specs for device, specs in cases.items() if specs}
        try:
            summary = run_fleet(
                wanted, store=_Through(sink), address=self._address, until=until, known=self._known,
                device_files=self._files, progress=tell, note=note,
            )  # fmt: skip
        except FleetError as error:
            raise CampaignError(str(error)) from error
        findings = tuple(
            Finding("device", "warning", device, f"{summary.left[device]} cases of {device} were left: {why}.")
            for device, why in summary.why_left.items()
            if why != TIME_OVER
        )
        return CollectingEnd(summary.interrupted, findings)


class _Through(Store):
    """What a fleet takes for its store: blocks go to a sink, and nothing counts as stored, since cases were chosen already.

    Devices store from threads of their own; a night's journal takes one block after the other.
    """

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink, self._one_at_a_time = sink, threading.Lock()

    def append(self, measurements: Sequence[Measurement], provenance: Provenance, **_: Any) -> list[Any]:
        """Hand the block on."""
        with self._one_at_a_time:
            self._sink(list(measurements), provenance)
        return []

    def case_ids(self, device: str) -> set[str]:  # noqa: ARG002
        """None."""
        return set()
