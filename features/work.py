"""What a kernel costs on paper: flops, bytes, and the times no run can beat, each with the limit it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .cases import Cases, Floats
from .device import Catalogue, Device
from .kernel import KernelSpec

BOUNDS = ("compute", "dram", "cache", "launch")
"""Limits a kernel can hit, in the order of `Work.bounds_s`."""

LAUNCH_FLOOR_S = {"gpu": 0.7e-6, "cpu": 1.0e-7}
"""Least time from start to end of any kernel. GPU: the shortest kernels measured here take 0.79 µs each, one after another
in a CUDA graph on an H200; public microbenchmarks report about 1 µs (Zhang et al., "Understanding the overheads of
launching CUDA kernels", ICPP 2019). CPU: a call through a framework takes at least a few hundred instructions."""

GPU_L2_BYTES_PER_CLOCK_PER_UNIT = 64.0
"""Bytes per clock one SM or CU can receive from L2 (Jia et al., arXiv 1804.06826, table 3.1: 64 B/clk/SM on Volta; AMD
CDNA whitepapers: 64 B/clk/CU)."""


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
    runs_as: tuple[str, ...]
    """What each case's dtype runs as on its device, shape `(n,)`."""

    @property
    def intensity(self) -> Floats:
        """Arithmetic intensity, flops per byte."""
        return self.flops / self.bytes

    @property
    def lower_bound_s(self) -> Floats:
        """The largest of the bounds, seconds."""
        bound: Floats = np.maximum.reduce([self.bounds_s[name] for name in BOUNDS])
        return bound

    def binding(self) -> list[str]:
        """Name of the bound that binds each case."""
        return [BOUNDS[i] for i in np.argmax([self.bounds_s[name] for name in BOUNDS], axis=0)]


def work(cases: Cases, catalogue: Catalogue) -> Work:
    """The work of cases on their devices.

    Bounds: compute is the cheapest algorithm's flops over the dense peak (Williams et al., CACM 2009); dram is the
    traffic that cannot come from a cache, since a hot run may find up to the last-level cache's size there; cache is all
    traffic at the fastest rate the level that holds it delivers.

    Raises:
        SpecError: unknown device, or a dtype it has no peak for.
    """
    n = len(cases)
    flops, least_flops, moved, footprint, written = (np.empty(n) for _ in range(5))
    least = cases.family.least_flops or cases.family.flops
    for index, view in cases.views():
        least_flops[index] = least(view)
        flops[index] = cases.family.flops(view)
        moved[index] = cases.family.bytes_moved(view)
        footprint[index] = cases.family.footprint_b(view)
        written[index] = sum(operand.nbytes for operand in cases.family.outputs(view))
    peak, bandwidth, launch = np.empty(n), np.empty(n), np.empty(n)
    cached_b, cache_bandwidth = np.empty(n), np.empty(n)
    runs_as = np.empty(n, dtype=object)
    for index, (name, dtype) in cases.groups("device", "dtype"):
        device = catalogue.get(name)
        share = _unit_share(device, cases.threads[index])
        peak_dense, ran = device.peak_flops_per_s(dtype, cases.family.unit)
        peak[index] = peak_dense * share
        runs_as[index] = ran
        bandwidth[index] = device.required("memory_bandwidth_b_per_s")
        launch[index] = LAUNCH_FLOOR_S[device.kind]
        hot = cases.cache_state[index] == "hot"
        # Even of a cold run, what it writes last may still be in the cache when it ends.
        cached_b[index] = np.minimum(device.last_level_cache_b, np.where(hot, np.inf, written[index]))
        cache_bandwidth[index] = _cache_bandwidth_b_per_s(device, footprint[index], share)
    return Work(
        flops=flops,
        bytes=moved,
        footprint_b=footprint,
        bounds_s={
            "compute": least_flops / peak,
            "dram": np.maximum(moved - cached_b, 0.0) / bandwidth,
            "cache": moved / cache_bandwidth,
            "launch": launch,
        },
        dram_all_s=moved / bandwidth,
        peak_flops_per_s=peak,
        bandwidth_b_per_s=bandwidth,
        runs_as=tuple(runs_as),
    )


def lower_bound_s(spec: KernelSpec, device: Device) -> float:
    """The time in seconds that no run of `spec` on `device` can beat."""
    found = work(Cases.of([spec], [device.name]), Catalogue(extra=(device,)))
    return float(found.lower_bound_s[0])


def _unit_share(device: Device, threads: Floats) -> Floats:
    """Share of a CPU's cores that `threads` can use; 1 on a GPU and where threads are not given."""
    if device.kind != "cpu":
        return np.ones(len(threads))
    return np.minimum(np.nan_to_num(threads / device.required("compute_units"), nan=1.0), 1.0)


def _cache_bandwidth_b_per_s(device: Device, footprint_b: Floats, share: Floats) -> Floats:
    """Fastest rate at which operands of that size can reach the units: that of the smallest level that holds them."""
    units = device.required("compute_units")
    l2 = device.fact("l2_bandwidth_b_per_s")
    if l2 is None:
        l2 = units * GPU_L2_BYTES_PER_CLOCK_PER_UNIT * device.required("boost_clock_hz")
    rate = np.full(len(footprint_b), l2) * share
    l1_b, l1_rate = device.fact("l1_per_unit_b"), device.fact("l1_bandwidth_per_unit_b_per_s")
    if l1_b is not None and l1_rate is not None:
        rate = np.where(footprint_b <= l1_b * units * share, l1_rate * units * share, rate)
    l3_rate = device.fact("l3_bandwidth_b_per_s")
    if l3_rate is not None:
        rate = np.where(footprint_b > device.required("l2_b") * share, l3_rate * share, rate)
    return rate
