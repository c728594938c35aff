"""The GPU of this machine, measured by the GPU campaign's worker: latency of what was chosen, then energy of a share of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...collectors.campaign import CampaignSummary, Progress
from ...collectors.gpu.campaign import (
    ENERGY_PACE,
    LATENCY_PACE,
    SECONDS_PER_ENERGY_CASE,
    SENTINELS,
    SETTLE_S,
    WINDOW_S,
    energy_plan,
    energy_windows,
    latency_plan,
    one_worker,
)
from ...collectors.gpu.characterize.characterize import characterize
from ...collectors.gpu.kernels.compile_ahead import cache_environment
from ...collectors.gpu.measure.worker import GpuCollector, GpuWorkerOptions
from ...collectors.host import machine_facts
from ...collectors.kernel_campaign import Sink, run_campaign
from ...collectors.meters.find import GpuReader, gpu_facts, gpu_state
from ...collectors.meters.protocol import NoMeter
from ...collectors.runner import WITHOUT_CUDA, runners_on
from ...features.device import Device
from ...features.kernel import CACHE_STATES, KernelSpec
from ...files import home_dir
from ..record.plan import Plan
from ..record.record import Finding
from .protocol import CollectingEnd, DeviceReading

_SECONDS_PER_CANDIDATE = 0.05
"""`latency_plan` gives twenty cases for each second of its budget: two for every 0.1 s."""


class GpuMeasurer:
    """Measures on one GPU, the first by default. `reader` reads its board, `collector` replaces its worker process."""

    def __init__(
        self, plan: Plan, device: Device, reader: GpuReader | None,
        collector: Callable[[Mapping[str, int], float | None], GpuCollector] | None = None, index: int = 0,
    ) -> None:  # fmt: skip
        self._plan, self._device, self._reader, self._index = plan, device, reader, index
        self._make = collector or self._worker
        self.devices = (device.name,)

    def characterise(self) -> Mapping[str, Mapping[str, Any]] | None:
        """One to two minutes of probes; None where a GPU cannot run them, since they are written in CUDA."""
        return None if self._device.vendor in WITHOUT_CUDA else characterize().facts

    def look(self, cases: Mapping[str, Sequence[KernelSpec]], times: int) -> Mapping[str, DeviceReading]:
        """The cases, and the facts of the board and the worker."""
        wanted = list(cases.get(self._device.name, ()))
        collector = self._make({}, None)
        collector.start(self._device)
        try:
            readings = tuple({str(row.spec): row.latency_s for row in collector.collect(wanted)} for _ in range(times))
            facts = {**machine_facts(self._device.name), **self._note, "workers": {"gpu/0": dict(collector.facts())}}
        finally:
            collector.close()
        reader = self._reader
        clock, warm = (None, None) if reader is None else (reader.sm_clock_hz(), reader.temperature_c())
        return {self._device.name: DeviceReading(readings, facts, clock, warm)}

    def candidates(self, device: str, wanted: int, seed: int, measured: Sequence[KernelSpec]) -> list[KernelSpec]:
        """The standing campaign's plan of what is worth most, tiled kernels among it."""
        planned = latency_plan(wanted * _SECONDS_PER_CANDIDATE, seed, measured, self._device, self._plan.families)
        states = self._plan.cache_states or CACHE_STATES
        return [spec for spec in planned if self.can(device, spec) and spec.cache_state in states]

    def can(self, device: str, spec: KernelSpec) -> bool:  # noqa: ARG002
        """A case of an impl that runs on GPUs, within the plan's families and impls; not the time of a call."""
        plan = self._plan
        return (
            spec.impl in runners_on(self._device.vendor)
            and spec.timing != "call"
            and (not plan.families or spec.family in plan.families)
            and (not plan.impls or spec.impl in plan.impls)
        )

    def collect(
        self, cases: Mapping[str, Sequence[KernelSpec]], *, sink: Sink, until: float, note: Mapping[str, Any],
        progress: Progress | None = None,
    ) -> CollectingEnd:  # fmt: skip
        """Latency of the cases; energy of a stratified share of them in the plan's `energy_minutes`, which end at `until`."""
        specs = list(cases.get(self._device.name, ()))
        latency_until = until - 60.0 * self._plan.energy_minutes
        done = self.campaign(specs, {}, latency_until, sink, note, progress)
        if done.interrupted or not self._plan.energy_minutes or not specs:
            return CollectingEnd(done.interrupted)
        chosen = energy_plan(specs, (), self._device, self._plan.seed)
        # An energy case is begun only where it can end in time: it may take ten seconds.
        try:
            energy = self.campaign(
                chosen, energy_windows(chosen), until - SECONDS_PER_ENERGY_CASE, sink, note, progress
            )
        except NoSensorError as missing:
            message = f"Energy was not measured: {missing}. Latency was. Repair the sensor before the next night."
            return CollectingEnd(findings=(Finding("sensor", "needs-person", self._device.name, message),))
        return CollectingEnd(energy.interrupted)

    def campaign(
        self, specs: Sequence[KernelSpec], windows: Mapping[str, int], until: float, sink: Sink, note: Mapping[str, Any],
        progress: Progress | None,
    ) -> CampaignSummary:  # fmt: skip
        """Measure the cases in order; of those in `windows`, by id, the energy too, in so many windows.

        Raises:
            CampaignError: nothing more can be stored or measured; what was stored stays.
            NoSensorError: energy is asked for, and the GPU has no counter that can be read.
        """
        worker = self._make(windows, until)
        worker.start(self._device)
        if windows and worker.facts().get("energy_source") == NoMeter.name:
            worker.close()
            raise NoSensorError(str(worker.facts().get("energy_source_reason")))
        return run_campaign(
            specs, device=self._device.name, sink=sink, collector_for=worker, sentinels=SENTINELS,
            pace=ENERGY_PACE if windows else LATENCY_PACE, note={**self._note, **note}, key_of=one_worker,
            state=dict if self._reader is None else partial(gpu_state, self._reader), until=until, progress=progress,
        )  # fmt: skip

    @property
    def _note(self) -> dict[str, Any]:
        return {"gpu": {} if self._reader is None else gpu_facts(self._reader), "campaign_seed": self._plan.seed}

    def _worker(self, windows: Mapping[str, int], until: float | None) -> GpuCollector:
        l3_b = self._device.fact("l3_b") or 0.0
        options = GpuWorkerOptions(self._device.name, self._index, bool(windows), SETTLE_S, WINDOW_S, l3_b)
        cache = cache_environment(home_dir() / "compiled")
        return GpuCollector(options, energy=windows, env=cache, until=until)


class NoSensorError(Exception):
    """The GPU has no energy counter that can be read."""
