"""What the CUDA driver says of a GPU, asked through ctypes: figures for a device that no datasheet was read for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_LIBRARY = "libcuda.so.1"


@dataclass(frozen=True, slots=True)
class _Attribute:
    """Number of a `CUdevice_attribute` in cuda.h, and what its value is multiplied by to be in SI units."""

    number: int
    scale: float = 1.0


_ATTRIBUTES: Mapping[str, _Attribute] = {
    "compute_units": _Attribute(16),
    "boost_clock_hz": _Attribute(13, 1e3),
    "memory_clock_hz": _Attribute(36, 1e3),
    "memory_bus_b": _Attribute(37, 1 / 8),
    "l2_b": _Attribute(38),
    "shared_memory_per_unit_b": _Attribute(81),
    "registers_per_unit_b": _Attribute(82, 4.0),
}


def device_attributes(index: int = 0, load: Callable[[str], Any] = ctypes.CDLL) -> dict[str, float | None]:
    """Attributes of CUDA device `index` by name, in SI units; None for one the driver does not tell, empty without a driver.

    `memory_bus_b` is the width of the memory bus in bytes; memory moves that much twice per clock.
    """
    try:
        driver = load(_LIBRARY)
    except OSError:
        return {}
    device = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(device), index) != 0:
        return {}
    found: dict[str, float | None] = {}
    for name, attribute in _ATTRIBUTES.items():
        value = ctypes.c_int()
        known = driver.cuDeviceGetAttribute(ctypes.byref(value), attribute.number, device) == 0 and value.value > 0
        found[name] = value.value * attribute.scale if known else None
    size = ctypes.c_size_t()
    found["memory_b"] = float(size.value) if driver.cuDeviceTotalMem_v2(ctypes.byref(size), device) == 0 else None
    return found
