"""The limits a case meets on a device: peaks, rates and capacities, by the case's dtype and threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch.category import CaseCategory
from ..device import Device

LAUNCH_FLOOR_S = {"gpu": 0.7e-6, "cpu": 1.0e-7}
"""Least time from start to end of any kernel. GPU: the shortest kernels measured here take 0.79 µs each, one after another
in a CUDA graph on an H200; public microbenchmarks report about 1 µs (Zhang et al., "Understanding the overheads of
launching CUDA kernels", ICPP 2019). CPU: a call through a framework takes at least a few hundred instructions."""

GPU_L2_BYTES_PER_CLOCK_PER_UNIT = 64.0
"""Bytes per clock one SM or CU can receive from L2 (Jia et al., arXiv 1804.06826, table 3.1: 64 B/clk/SM on Volta; AMD
CDNA whitepapers: 64 B/clk/CU)."""


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """A device as cases of one category meet it, a number each; of many cases, columns of shape `(n,)`.

    Rates are already the share that the threads can use. NaN where no figure is public.

    Attributes:
        peak_flops_per_s: Dense peak for the dtype.
        bandwidth_b_per_s: Memory bandwidth.
        launch_s: Least time of a kernel.
        units: Compute units.
        clock_hz: Boost clock.
        l1_per_unit_b: L1 cache of a compute unit.
        l2_b: L2 cache.
        last_level_b: The largest cache in front of memory.
        memory_b: Memory.
        tdp_w: Power limit.
        shared_per_unit_b: Shared memory of a compute unit.
        hot: 1 where a run may find its operands cached.
        l2_rate: Bytes per second from L2.
        l1_holds_b: Footprints up to this come at `l1_rate`.
        l1_rate: Bytes per second from L1.
        l3_from_b: Footprints above this come at `l3_rate`.
        l3_rate: Bytes per second from L3.
        all_l1_b: The L1 caches of all units, 0 where no figure is public.
    """

    peak_flops_per_s: Any
    bandwidth_b_per_s: Any
    launch_s: Any
    units: Any
    clock_hz: Any
    l1_per_unit_b: Any
    l2_b: Any
    last_level_b: Any
    memory_b: Any
    tdp_w: Any
    shared_per_unit_b: Any
    hot: Any
    l2_rate: Any
    l1_holds_b: Any
    l1_rate: Any
    l3_from_b: Any
    l3_rate: Any
    all_l1_b: Any


def device_limits(category: CaseCategory, device: Device, unit: str) -> DeviceLimits:
    """The limits that a category meets on its device; `unit` is that of its family.

    Raises:
        SpecError: the device has no peak for the dtype.
    """
    units = device.required("compute_units")
    clock = device.required("boost_clock_hz")
    # A CPU's cores that the threads can use; all of a GPU, and all where threads are not given.
    share = min(category.threads / units, 1.0) if device.kind == "cpu" and category.threads is not None else 1.0
    peak, _ = device.peak_flops_per_s(category.dtype, unit)
    l2_b, l2_rate = device.required("l2_b"), device.fact("l2_bandwidth_b_per_s")
    if l2_rate is None:
        l2_rate = units * GPU_L2_BYTES_PER_CLOCK_PER_UNIT * clock
    l1_b, l1_unit_rate = device.fact("l1_per_unit_b"), device.fact("l1_bandwidth_per_unit_b_per_s")
    l1_known = l1_b is not None and l1_unit_rate is not None
    l3_rate = device.fact("l3_bandwidth_b_per_s")
    return DeviceLimits(
        peak_flops_per_s=peak * share,
        bandwidth_b_per_s=device.required("memory_bandwidth_b_per_s"),
        launch_s=LAUNCH_FLOOR_S[device.kind],
        units=units,
        clock_hz=clock,
        l1_per_unit_b=_or_nan(device, "l1_per_unit_b"),
        l2_b=l2_b,
        last_level_b=device.last_level_cache_b,
        memory_b=_or_nan(device, "memory_b"),
        tdp_w=_or_nan(device, "tdp_w"),
        shared_per_unit_b=_or_nan(device, "shared_memory_per_unit_b"),
        hot=float(category.cache_state == "hot"),
        l2_rate=l2_rate * share,
        l1_holds_b=l1_b * units * share if l1_known and l1_b is not None else -1.0,
        l1_rate=l1_unit_rate * units * share if l1_known and l1_unit_rate is not None else math.nan,
        l3_from_b=math.inf if l3_rate is None else l2_b * share,
        l3_rate=math.nan if l3_rate is None else l3_rate * share,
        all_l1_b=(l1_b or 0.0) * units,
    )


def limit_columns(limits: Sequence[DeviceLimits], code: npt.NDArray[np.intp]) -> DeviceLimits:
    """The limits of every case, from those of every category; `code` says which each case has. One category gives `(1,)`."""
    table = np.array([limit_numbers(entry) for entry in limits], dtype=np.float64)
    return DeviceLimits(*(table.T if len(limits) == 1 else table.T[:, code]))


limit_numbers = attrgetter(*(field.name for field in fields(DeviceLimits)))
"""The figures of `DeviceLimits` in the order of its fields."""


def _or_nan(device: Device, fact: str) -> float:
    value = device.fact(fact)
    return math.nan if value is None else value


def call_floor_s(device: Device, impl: str, dtype: str) -> float:
    """The least time in seconds of a call of an implementation's kernel, as the device file says, or 0 where it says nothing.

    The measured figure is that of a library in one dtype, `launch_vllm_fp8_block_s`, or in all of them, `launch_torch_s`.
    """
    library = impl.partition("-")[0]
    for name in (f"launch_{library}_{dtype}_s", f"launch_{library}_s"):
        if name in device.measured:
            return device.measured[name].value
    return 0.0
