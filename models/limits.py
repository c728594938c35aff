"""Power limits of the devices of cases: what a power prediction never leaves."""

from __future__ import annotations

import math

import numpy as np

from ..features.cases import Cases, Floats
from ..features.device import Catalogue, Device

SURE_POWER_S = 333e-6
"""From this kernel time on, power read every 100 ms is trustworthy; of shorter kernels it does not reproduce between
frameworks (public H200 and B200 tables: 40–53 % apart below 30 µs)."""

_IDLE_SHARE = 0.05
"""Least power as a share of the limit where a device's idle power is not known: idle data-centre GPUs draw 6–17 % of
their limit (H100 about 70 of 700 W, A100 about 50 of 400 W in public measurements), so this is below any of them."""


def power_limits_w(cases: Cases, devices: Catalogue) -> tuple[Floats, Floats]:
    """Power limit and least power in watts of each case's device, shape `(n,)`, NaN where no limit is public."""
    words = cases.coded("device")
    limit, idle = np.array([power_limits_of(devices.get(name)) for name in words.words]).reshape(-1, 2)[words.code].T
    return limit, idle


def power_limits_of(device: Device) -> tuple[float, float]:
    """Power limit and least power of a device in watts, NaN where no limit is public."""
    tdp = device.fact("tdp_w")
    return (math.nan, math.nan) if tdp is None else (tdp, device.fact("idle_power_w") or _IDLE_SHARE * tdp)
