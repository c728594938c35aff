"""The CPU of this machine, measured by its campaign's workers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...collectors.campaign import Progress
from ...collectors.collector import PACE, WorkerLostError
from ...collectors.cpu.characterize import characterize
from ...collectors.cpu.plans.shapes import CPU_LIMITS, plan
from ...collectors.cpu.worker import local_workers
from ...collectors.host import machine_facts, state_facts
from ...collectors.kernel_campaign import Reading, Sink, run_campaign
from ...features.errors import SpecError
from ...features.kernel import CACHE_STATES, KernelSpec, View, get_family
from ...features.kernel import families as all_families
from ...process import core_count
from ..record.plan import Plan
from .protocol import CollectingEnd, DeviceReading

_PACE = replace(PACE, calibration=3)
"""With the plan's `drift`: by a campaign's rule two blocks in three would be measured twice on a busy machine. A night's
minutes are worth more in other cases: calibration doubts rows that stand out."""


class CpuMeasurer:
    """Measures on this machine."""

    def __init__(self, plan_: Plan, device: str) -> None:
        self._plan, self._device = plan_, device
        self.devices = (device,)

    def characterise(self) -> Mapping[str, Mapping[str, Any]]:
        """Half a minute of probes."""
        return characterize(self._device)

    def look(self, cases: Mapping[str, Sequence[KernelSpec]], times: int) -> Mapping[str, DeviceReading]:
        """The cases on one thread, and the facts of the machine and of the worker that read them."""
        wanted = list(cases.get(self._device, ()))
        collector = local_workers(self._device)("torch", 1)
        readings: list[Reading] = []
        try:
            for _ in range(times if wanted else 0):
                with contextlib.suppress(WorkerLostError):
                    readings.append({str(row.spec): row.latency_s for row in collector.collect(wanted)})
            workers = {"torch/1": dict(collector.facts())}
        finally:
            collector.close()
        state = state_facts()
        clock_mhz = state.get("clock_mhz")
        facts = {**machine_facts(self._device), "workers": workers, "before": state}
        return {self._device: DeviceReading(tuple(readings), facts, None if clock_mhz is None else 1e6 * clock_mhz)}

    def candidates(self, device: str, wanted: int, seed: int, measured: Sequence[KernelSpec]) -> list[KernelSpec]:  # noqa: ARG002
        """A plan of the families, dtypes, thread counts and cache states asked for."""
        threads = self._plan.threads or tuple(sorted({1, core_count()}))
        impls = self._plan.impls or ("torch",)
        names = self._plan.families or tuple(all_families())
        dtypes = self._plan.dtypes or ("fp32", "bf16")
        states = self._plan.cache_states or CACHE_STATES
        specs: dict[KernelSpec, None] = {}
        for impl in impls:
            specs |= dict.fromkeys(_most(names, -(-wanted // len(impls)), seed, dtypes, threads, states, impl))
        return list(specs)

    def can(self, device: str, spec: KernelSpec) -> bool:  # noqa: ARG002
        """A case of the plan's impls and dtypes on a thread count of this machine."""
        return (
            self._plan.allows(spec)
            and spec.impl in (self._plan.impls or ("torch",))
            and spec.threads is not None
            and spec.threads <= core_count()
            and CPU_LIMITS.allow(get_family(spec.family), View.of(spec))
        )

    def collect(
        self, cases: Mapping[str, Sequence[KernelSpec]], *, sink: Sink, until: float, note: Mapping[str, Any],
        progress: Progress | None = None,
    ) -> CollectingEnd:  # fmt: skip
        """A campaign of the cases."""
        done = run_campaign(
            cases.get(self._device, ()), device=self._device, sink=sink, pace=replace(_PACE, drift=self._plan.drift),
            note=note, until=until,
            progress=progress,
        )  # fmt: skip
        return CollectingEnd(done.interrupted)


def _most(
    names: Sequence[str], wanted: int, seed: int, dtypes: Sequence[str], threads: Sequence[int], states: Sequence[str],
    impl: str,
) -> list[KernelSpec]:  # fmt: skip
    """As many cases as were wanted, or half, or a quarter …: a family may have too few different ones."""
    while wanted > len(names):
        try:
            return plan(names, wanted, seed, dtypes=dtypes, threads=threads, cache_states=states, impl=impl)
        except SpecError:
            raise
        except ValueError:
            wanted //= 2
    return []
