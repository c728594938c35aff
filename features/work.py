"""What a kernel costs on paper: flops, bytes, and the times no run can beat, each with the limit it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .cases import Cases, Floats
from .coded import Words
from .counts import Counts, counts
from .device import Catalogue, Device
from .kernel import KernelSpec
from .machine import Machine, columns, machine_of

BOUNDS = ("compute", "dram", "cache", "launch")
"""Limits a kernel can hit, in the order of `Work.bounds_s`."""


@dataclass(frozen=True, slots=True)
class Work:
    """Cost on paper of `n` cases; every column has shape `(n,)`.

    `flops` counts arithmetic, `bytes` compulsory traffic, `footprint_b` all operands. `bounds_s` maps each of `BOUNDS` to
    seconds that no run can beat; their maximum is the lower bound. `dram_all_s` is the time to move all bytes through
    memory, which a cache may save a hot run; `peak_flops_per_s` and `bandwidth_b_per_s` are the peaks used.
    """

    flops: Floats
    bytes: Floats
    footprint_b: Floats
    bounds_s: Mapping[str, Floats]
    dram_all_s: Floats
    peak_flops_per_s: Floats
    bandwidth_b_per_s: Floats
    runs_as: Words
    """What each case's dtype runs as on its device."""

    @property
    def intensity(self) -> Floats:
        """Arithmetic intensity, flops per byte."""
        return self.flops / self.bytes

    @property
    def lower_bound_s(self) -> Floats:
        """The largest of the bounds, seconds."""
        compute, dram, cache, launch = (self.bounds_s[name] for name in BOUNDS)
        bound: Floats = np.maximum(np.maximum(compute, dram), np.maximum(cache, launch))
        return bound

    def binding(self) -> list[str]:
        """Name of the bound that binds each case."""
        return [BOUNDS[i] for i in np.argmax([self.bounds_s[name] for name in BOUNDS], axis=0).tolist()]


def work(cases: Cases, catalogue: Catalogue) -> Work:
    """The work of cases on their devices.

    Raises:
        SpecError: unknown device, or a dtype it has no peak for.
    """
    kinds = cases.kinds()
    machines = [machine_of(kind, cases.family, catalogue) for kind in kinds.kinds]
    return work_on(counts(cases), columns([machine for machine, _ in machines], kinds),
                   kinds.word_list([runs_as for _, runs_as in machines]))  # fmt: skip


def work_on(counted: Counts, machine: Machine, runs_as: Words) -> Work:
    """The work of cases that were counted, on their machines.

    Bounds: compute is the cheapest algorithm's flops over the dense peak (Williams et al., CACM 2009); dram is the
    traffic that cannot come from a cache, since a hot run may find up to the last-level cache's size there; cache is all
    traffic at the fastest rate the level that holds it delivers.
    """
    moved = counted.bytes
    # Even of a cold run, what it writes last may still be in the cache when it ends.
    cached_b = np.where(machine.hot > 0, machine.last_level_b, np.minimum(machine.last_level_b, counted.operand_b[2]))
    rate = np.where(counted.footprint_b <= machine.l1_holds_b, machine.l1_rate, machine.l2_rate)
    rate = np.where(counted.footprint_b > machine.l3_from_b, machine.l3_rate, rate)
    return Work(
        flops=counted.flops,
        bytes=moved,
        footprint_b=counted.footprint_b,
        bounds_s={
            "compute": counted.least_flops / machine.peak_flops_per_s,
            "dram": np.maximum(moved - cached_b, 0.0) / machine.bandwidth_b_per_s,
            "cache": moved / rate,
            "launch": machine.launch_s,
        },
        dram_all_s=moved / machine.bandwidth_b_per_s,
        peak_flops_per_s=machine.peak_flops_per_s,
        bandwidth_b_per_s=machine.bandwidth_b_per_s,
        runs_as=runs_as,
    )


def lower_bound_s(spec: KernelSpec, device: Device) -> float:
    """The time in seconds that no run of `spec` on `device` can beat."""
    found = work(Cases.of([spec], [device.name]), Catalogue(extra=(device,)))
    return float(found.lower_bound_s[0])
