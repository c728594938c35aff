"""What a device can do, as programs need it: peaks by dtype, and how fast bytes come from the level that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from ...batch.cases import Floats
from ...cost.device_limits import GPU_L2_BYTES_PER_CLOCK_PER_UNIT, LAUNCH_FLOOR_S
from ...device import Device
from ...dtypes import DTYPES
from ...errors import SpecError

MATRIX_KINDS = frozenset({"contraction", "convolution", "attention"})
"""Kinds of `program.KINDS` that run on matrix units."""

LEVELS = ("l1", "l2", "l3", "dram")
"""Where bytes can come from, nearest first. A GPU has no l3 of its own kind; its l1 is taken as its l2."""

_NAMES: Mapping[str, str] = MappingProxyType(
    {"i1": "int8", "i4": "int8", "i16": "fp16", "index": "int64", "complex<f32>": "fp32", "complex<f64>": "fp64"}
)
"""What element types that are no dtype of kernels compute as."""

_DISPATCH_S = {"gpu": 3.0e-6, "cpu": 2.0e-6}
"""What a kernel with nothing to do takes where work is queued: 2.2 µs for a product in a CUDA graph (docs/h200.md),
2.0 µs for a call of torch on the CPU measured here (`launch_torch_s` in features/devices)."""


_PER_CORE_B_PER_S = np.array([2.6e11, 1.05e11, 8.0e10, 1.9e10])
"""What one core reads and writes from each of `LEVELS`: medians of the four CPUs measured on one thread (features/devices:
Zen 3, 4 and 5, Emerald Rapids), from 176 to 325, 83 to 257, 30 to 126 and 11 to 37 GB/s. Datasheets tell what all cores get of
memory together, 461 GB/s on an EPYC 9654."""


_MOST_L1_B_PER_CLOCK = 192.0
"""Two loads and a store of 512 bits a clock, the most that a core of the catalogue does (AMD publication 58455, Zen 5)."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device with a number of threads. Rates are measured ones where the device was characterised, else those that cores
    usually have, and no more than its datasheet's.

    Attributes:
        device: The device.
        threads: CPU threads, None on a GPU.
        sizes_b: Capacity of each level of memory, shape `(len(LEVELS),)`; the last level holds everything.
        rates_b_per_s: Bandwidth of each level, likewise.
        datasheet_rates_b_per_s: Bandwidth by the datasheet, likewise.
        launch_s: The shortest time any kernel takes.
        dispatch_s: Time of a kernel with nothing to do.
    """

    device: Device
    threads: int | None
    sizes_b: Floats
    rates_b_per_s: Floats
    datasheet_rates_b_per_s: Floats
    launch_s: float
    dispatch_s: float

    @property
    def is_cpu(self) -> bool:
        """Whether it is a CPU."""
        return self.device.kind == "cpu"

    @property
    def share(self) -> float:
        """Share of the device's units in use."""
        if self.threads is None:
            return 1.0
        return min(self.threads / self.device.required("compute_units"), 1.0)

    def peak_flops_per_s(self, dtype: str, kind: str) -> float:
        """Dense peak for a kind of operation, in FLOP/s; a dtype no table has computes as what is nearest to it, fp32
        at last.
        """
        unit = "matrix" if kind in MATRIX_KINDS else "vector"
        name = dtype if dtype in DTYPES else _NAMES.get(dtype, "fp32")
        return _peak(_ByIdentity(self.device), name, unit) * self.share

    def level(self, footprint_b: Any) -> Any:
        """Position in `LEVELS` of the nearest that holds so many bytes, a number or of shape `(n,)`."""
        return np.minimum(np.searchsorted(self.sizes_b[:-1], footprint_b), len(LEVELS) - 1)

    def bounds_s(self, flops: float, bytes_: float, dtype: str, kind: str) -> dict[str, float]:
        """Seconds that no run can beat, by the names of `features.cost.bounds.BOUNDS`; operands may be in the last cache
        before.

        Args:
            flops: Arithmetic.
            bytes_: Bytes moved.
            dtype: Number format.
            kind: Kind of the kernel, which says whose peak applies.
        """
        cached = float(self.sizes_b[-2])  # a NumPy scalar is no float to what encodes answers
        return {
            "compute": flops / self.peak_flops_per_s(dtype, kind),
            "dram": max(bytes_ - cached, 0.0) / float(self.datasheet_rates_b_per_s[-1]),
            "cache": bytes_ / float(self.datasheet_rates_b_per_s[self.level(bytes_)]) if bytes_ <= cached else 0.0,
            "launch": self.launch_s,
        }


def hardware(device: Device, threads: int | None) -> Hardware:
    """The device with that many threads; None on a CPU means all its cores."""
    if device.kind != "cpu":
        return _gpu(_ByIdentity(device))
    return _cpu(_ByIdentity(device), threads or int(device.required("compute_units")))


class _ByIdentity:
    """A device as a key: devices hold mappings, which have no hash."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def __hash__(self) -> int:
        return id(self.device)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.device is self.device


@lru_cache(maxsize=1024)
def _peak(key: _ByIdentity, dtype: str, unit: str) -> float:
    tried: str | None = dtype
    while tried is not None:
        with suppress(SpecError):
            return key.device.peak_flops_per_s(tried, unit)[0]
        # Compilers convert what a device has no units for.
        tried = DTYPES[tried].runs_as if tried in DTYPES else None
    # Programs hold integers and formats no datasheet counts; every device file has a peak for fp32.
    return key.device.peak_flops_per_s("fp32", unit)[0]


@lru_cache(maxsize=256)
def _cpu(key: _ByIdentity, threads: int) -> Hardware:
    device = key.device
    units = device.required("compute_units")
    busy = min(float(threads), units)
    share = busy / units
    l2_b = device.required("l2_b") * share
    l1_b = (device.fact("l1_per_unit_b") or 32768.0) * busy
    l3_b = device.fact("l3_b") or l2_b
    dram = device.required("memory_bandwidth_b_per_s")
    l1 = device.fact("l1_bandwidth_per_unit_b_per_s") or _MOST_L1_B_PER_CLOCK * device.required("boost_clock_hz")
    levels = [l1 * busy]
    for name in ("l2", "l3"):
        fact = device.fact(f"{name}_bandwidth_b_per_s")
        # A level of which nothing is known gives no more than the one before it.
        levels.append(levels[-1] if fact is None else fact * share)
    sheet = np.array([*levels, dram])
    usual = np.minimum(sheet, _PER_CORE_B_PER_S * busy)
    rates = np.array([_rate(device, name, busy, rate) for name, rate in zip(LEVELS, usual.tolist(), strict=True)])
    sizes = np.maximum.accumulate(np.array([l1_b, l2_b, l3_b, np.inf]))
    return Hardware(device, threads, sizes, rates, sheet, LAUNCH_FLOOR_S["cpu"], _DISPATCH_S["cpu"])


def _rate(device: Device, level: str, busy: float, usual: float) -> float:
    """What `busy` threads get of a level: as many times what one was measured to get, else `usual`; at most what all were."""
    entry = device.measured.get(f"bandwidth_{level}_b_per_s_1t")
    every = device.measured.get(f"bandwidth_{level}_b_per_s")
    rate = usual if entry is None else entry.value * busy
    if every is None or (entry is not None and busy <= 1.0):
        return rate
    return min(rate, every.value)


@lru_cache(maxsize=256)
def _gpu(key: _ByIdentity) -> Hardware:
    device = key.device
    units, l2_b = device.required("compute_units"), device.required("l2_b")
    l2 = device.fact("l2_bandwidth_b_per_s")
    l2 = l2 or units * GPU_L2_BYTES_PER_CLOCK_PER_UNIT * device.required("boost_clock_hz")
    last_b = device.last_level_cache_b
    l3 = device.fact("l3_bandwidth_b_per_s") or l2
    dram = device.required("memory_bandwidth_b_per_s")
    rates = np.array([l2, l2, l3, dram])
    sizes = np.array([l2_b, l2_b, last_b, np.inf])
    return Hardware(device, None, sizes, rates, rates, LAUNCH_FLOOR_S["gpu"], _DISPATCH_S["gpu"])
