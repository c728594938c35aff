"""Power limits of the devices of cases: what a power prediction never leaves."""

from __future__ import annotations

import numpy as np

from ..features.cases import Cases, Floats
from ..features.device import Catalogue

SURE_POWER_S = 333e-6
"""From this kernel time on, power read every 100 ms is trustworthy; of shorter kernels it does not reproduce between
frameworks (public H200 and B200 tables: 40–53 % apart below 30 µs)."""

_IDLE_SHARE = 0.05
"""Least power as a share of the limit where a device's idle power is not known: idle data-centre GPUs draw 6–17 % of
their limit (H100 about 70 of 700 W, A100 about 50 of 400 W in public measurements), so this is below any of them."""


def power_limits_w(cases: Cases, devices: Catalogue) -> tuple[Floats, Floats]:
    """Power limit and least power in watts of each case's device, shape `(n,)`, NaN where no limit is public."""
    limit, idle = np.full(len(cases), np.nan), np.full(len(cases), np.nan)
    for index, (name,) in cases.groups("device"):
        device = devices.get(name)
        tdp = device.fact("tdp_w")
        if tdp is not None:
            limit[index] = tdp
            idle[index] = device.fact("idle_power_w") or _IDLE_SHARE * tdp
    return limit, idle
