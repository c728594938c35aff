"""The standing GPU campaign: within a budget of minutes, the cases worth most that are not yet measured, then energy.

    start the worker | plan | latency: block, block ... (tiled kernels compile behind it) | energy: block, block ... | end

What is stored stays; the next run, on this machine or another, goes on from the rows of its store and of the shipped tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...datasets.rows.schema import message_kind
from ...datasets.shipped import read_shipped, shipped_families
from ...datasets.store.store import FINAL_STATUSES, Store
from ...features.device import Device
from ...features.kernel import KernelSpec
from ...features.spec_io.rows import spec_from_row
from ...files import home_dir
from ...process import core_count
from ..campaign import CampaignSummary, Progress
from ..collector import Pace
from ..kernel_campaign import run_campaign, store_sink
from ..meters.find import GpuReader, gpu_facts, gpu_state
from ..meters.protocol import NoMeter
from ..runner import gpu_runners, runners_on
from .kernels.compile_ahead import cache_environment, compile_ahead
from .measure.worker import GpuCollector, GpuWorkerOptions
from .plan.cutlass_tiles import cutlass_gpu_plan
from .plan.plan import energy_cases, energy_order, gpu_plan, seed_after
from .plan.sweeps import SWEEPS
from .plan.tiled_kernels import tiled_gpu_plan
from .runners.cutlass import has_cutlass

SENTINELS = (
    KernelSpec.of("gemm", "bf16", impl="torch", m=1024, n=1024, k=1024),
    KernelSpec.of("copy", "fp32", impl="torch", rows=4096, cols=16384),
)
"""One of arithmetic, one of memory (268 MB in, as much out, beyond any cache). The product is too short to reach the power
limit: one of 4096³ moved by up to 15 % with what had run before it, and said nothing about the machine."""

LATENCY_PACE = Pace(chunk_cases=10, chunk_b=float("inf"), block_cases=60, block_s=20.0)
# After seconds at the power limit clocks take a while to recover: here drift is recorded, not a reason to measure again, since
# energy has checks of its own.
ENERGY_PACE = Pace(chunk_cases=1, chunk_b=float("inf"), block_cases=10, block_s=60.0, drift=0.25, calibration=2)

SECONDS_PER_CASE = 0.1
"""About what the latency of a case takes on an H200; plans hold twice as many as would fit."""

SETTLE_S, WINDOW_S = 0.5, 0.5
"""Shorter than the meter's own rule, so that a budget of minutes gives twice as many rows; windows still grow until
their edges are known to 1 %, to about a second. What that costs in accuracy is in docs/decisions/005-energy-windows.md."""

SECONDS_PER_ENERGY_CASE = 10.0
"""The longest an energy case takes: three windows of a kernel of 30 ms, which grow until their edges are known."""

TILED_SHARE = 0.25
ENERGY_SHARE = 0.15
REPEATED_SHARE = 10
"""Every tenth energy case gets three windows, so that their spread is known."""


@dataclass(frozen=True, slots=True)
class GpuBudget:
    """Seconds of a campaign; each phase ends inside its own.

    Attributes:
        total_s: Of both phases.
        energy_s: Of these, for energy.
        rows: Most cases of either phase; None for as many as there is time for.
    """

    total_s: float
    energy_s: float
    rows: int | None = None

    @property
    def latency_s(self) -> float:
        """What is left for latency."""
        return self.total_s - self.energy_s


@dataclass(frozen=True, slots=True)
class GpuCampaignSummary:
    """What the two phases did.

    Attributes:
        latency: The latency phase; None where it had no budget.
        energy: The energy phase; None where it had no budget or no sensor.
        no_energy: Why there is no energy.
    """

    latency: CampaignSummary | None
    energy: CampaignSummary | None
    no_energy: str | None = None

    @property
    def interrupted(self) -> bool:
        """Whether someone stopped it."""
        return any(phase.interrupted for phase in (self.latency, self.energy) if phase is not None)

    def __str__(self) -> str:
        named = (("latency", self.latency), ("energy", self.energy))
        words = [f"{name}: {phase}" for name, phase in named if phase is not None]
        return "; ".join(words if self.no_energy is None else [*words, f"energy was not measured: {self.no_energy}"])


@dataclass(frozen=True, slots=True)
class Known:
    """Cases of a device whose latency need not be measured again, each in one list.

    Attributes:
        with_energy: Cases with all that can be measured.
        without: Cases with a latency alone.
        impossible: Cases that are not tried again: they are unsupported, too large or too slow, or their energy was
            refused.
    """

    with_energy: list[KernelSpec]
    without: list[KernelSpec]
    impossible: list[KernelSpec]

    @property
    def all(self) -> list[KernelSpec]:
        """Every case."""
        return [*self.with_energy, *self.without, *self.impossible]

    @property
    def possible(self) -> list[KernelSpec]:
        """Cases among which those with energy are chosen."""
        return [*self.with_energy, *self.without]


def measured_specs(store: Store, device: str) -> Known:
    """Cases of the device that need not be measured again, in the store or shipped."""
    tables = [store.read(family, [device]) for family in store.families()]
    tables += [read_shipped(family, [device]) for family in shipped_families()]
    # A case has one row of latency and perhaps one of the attempt at its energy, which then decides.
    places: dict[KernelSpec, int] = {}
    for table in tables:
        for row in table.filter(pc.is_in(table["status"], pa.array(FINAL_STATUSES))).to_pylist():
            spec = spec_from_row(row)
            places[spec] = max(_place(row), places.get(spec, _WITHOUT))
    return Known(
        *([spec for spec, at in places.items() if at == place] for place in (_WITH_ENERGY, _WITHOUT, _IMPOSSIBLE))
    )


# Rising: what is known of a case from several rows is the highest of them.
_WITHOUT, _IMPOSSIBLE, _WITH_ENERGY = range(3)


def _place(row: Mapping[str, Any]) -> int:
    if row["energy_j"] is not None:
        return _WITH_ENERGY
    refused = message_kind(row["message"]) == "no energy"
    return _WITHOUT if row["status"] == "ok" and not refused else _IMPOSSIBLE


def run_gpu_campaign(
    store: Store, device: Device, reader: GpuReader | None, budget: GpuBudget, *, seed: int = 0, index: int = 0,
    families: Sequence[str] = (), progress: Callable[[str], AbstractContextManager[Progress]] | None = None,
    collector: Callable[[Mapping[str, int]], GpuCollector] | None = None, processes: int | None = None,
) -> GpuCampaignSummary:  # fmt: skip
    """Measure what is worth most on this machine's GPU and store every row.

    Args:
        store: where rows go.
        device: the GPU; rows carry its name.
        reader: reads the board's clocks and temperature for the blocks' provenance; None: they are not recorded.
        budget: seconds for both phases.
        seed: of the plan.
        index: which GPU.
        families: only these; empty: all.
        progress: gives a progress bar for a phase's name.
        collector: makes the collector of the cases with energy given (id to windows); default: a worker process.
        processes: how many compile tiled kernels in the background; default: all cores but two.

    Raises:
        CampaignError: nothing more can be stored, or the GPU cannot be used; rows stored before stay.
    """
    began = time.monotonic()
    cache = home_dir() / "compiled"
    make = collector or (lambda energy: GpuCollector(
        GpuWorkerOptions(device.name, index, bool(energy), SETTLE_S, WINDOW_S, device.fact("l3_b") or 0.0), energy=energy,
        env=cache_environment(cache),
        until=began + (budget.total_s - SECONDS_PER_ENERGY_CASE if energy else budget.latency_s),
    ))  # fmt: skip
    bar = progress or (lambda _: nullcontext(lambda done, total: None))
    note = {"gpu": {} if reader is None else gpu_facts(reader), "campaign_seed": seed}
    state = dict if reader is None else partial(gpu_state, reader)
    known = measured_specs(store, device.name)
    skip = {spec.case_id for spec in known.all}
    latency = energy = None
    planned = latency_plan(budget.total_s, seed, known.all, device, families)[: budget.rows]
    common: dict[str, Any] = {"device": device.name, "sink": store_sink(store), "sentinels": SENTINELS, "note": note,
                              "key_of": one_worker, "state": state}  # fmt: skip
    if budget.latency_s > 0:
        with _ahead(planned, reader, cache, processes), bar("latency") as advance:
            worker = make({})
            worker.start(device)
            latency = run_campaign(planned, collector_for=worker, skip=skip, pace=LATENCY_PACE,
                                   progress=advance, until=began + budget.latency_s, **common)  # fmt: skip
    if budget.energy_s > 0 and not (latency is not None and latency.interrupted):
        known = measured_specs(store, device.name)
        wanted = [spec for spec in known.possible or planned if not families or spec.family in families]
        chosen = energy_plan(wanted, known.with_energy, device, seed)[: budget.rows]
        worker = make(energy_windows(chosen))
        worker.start(device)
        if worker.facts().get("energy_source") == NoMeter.name:
            worker.close()
            return GpuCampaignSummary(latency, None, str(worker.facts().get("energy_source_reason")))
        with bar("energy") as advance:
            energy = run_campaign(chosen, collector_for=worker, pace=ENERGY_PACE, progress=advance,
                                  skip={spec.case_id for spec in known.impossible},
                                  until=began + budget.total_s - SECONDS_PER_ENERGY_CASE, **common)  # fmt: skip
    return GpuCampaignSummary(latency, energy)


def latency_plan(
    budget_s: float, seed: int, measured: Sequence[KernelSpec], device: Device, families: Sequence[str] = ()
) -> list[KernelSpec]:
    """Twice as many unmeasured cases as the budget has time for, those worth most first; other ones the more are measured.

    Args:
        budget_s: Seconds there are to measure.
        seed: Seed of the candidates.
        measured: Cases measured before.
        device: The GPU.
        families: Kernel families; empty is all.
    """
    rows = max(50, round(2 * budget_s / SECONDS_PER_CASE))
    chosen = list(families) or list(SWEEPS)
    drawn_from = seed_after(seed, {spec.case_id for spec in measured})
    tiled = tiled_gpu_plan(round(2 * TILED_SHARE * rows), drawn_from)
    if has_cutlass():
        # A fifth, in random places: every fifth binary is CUTLASS's, which takes several times as long to compile.
        tiled += cutlass_gpu_plan(len(tiled) // 4, drawn_from)
        tiled = [tiled[i] for i in np.random.default_rng(drawn_from).permutation(len(tiled))]
    tiled = [spec for spec in tiled if spec.family in chosen and spec.impl in runners_on(device.vendor)]
    return gpu_plan(rows, seed, device=device, measured=measured, tiled=tiled, families=chosen)


def energy_plan(
    candidates: Sequence[KernelSpec], done: Sequence[KernelSpec], device: Device, seed: int
) -> list[KernelSpec]:
    """The stratified share of `candidates` that gets energy and has none yet, in the order it is worth."""
    chosen = energy_cases(candidates, device=device, share=ENERGY_SHARE)
    unique = {spec.case_id: spec for spec in candidates if spec.case_id in chosen}
    return energy_order(list(unique.values()), seed, device=device, measured=done)


def energy_windows(chosen: Sequence[KernelSpec]) -> dict[str, int]:
    """Windows of each energy case: three for every tenth, by its id, one for the rest."""
    return {spec.case_id: 3 if int(spec.case_id, 16) % REPEATED_SHARE == 0 else 1 for spec in chosen}


def one_worker(spec: KernelSpec) -> tuple[str, int]:  # noqa: ARG001
    """The key of every case: one process serves every impl."""
    return "gpu", 0


def _ahead(
    planned: Sequence[KernelSpec], reader: GpuReader | None, cache: Path, processes: int | None
) -> AbstractContextManager[Any]:
    """Background compiles of the planned cases that need one; none where the device does not say what to compile for."""
    capability = None if reader is None else reader.compute_capability()
    runners = gpu_runners()
    compiled = [spec for spec in planned if spec.impl in runners and runners[spec.impl].compile is not None]
    count = max(0, core_count() - 2) if processes is None else processes
    if capability is None or not compiled or not count:
        return nullcontext()
    return compile_ahead(compiled, capability, count, cache)
