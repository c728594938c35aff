"""How alike two devices are, from their datasheets: which measured device says most about one never measured."""

from __future__ import annotations

import math

from ..features.device import Device

_FACTS = ("compute_units", "boost_clock_hz", "memory_bandwidth_b_per_s", "l2_b", "tdp_w")

_OTHER_ARCHITECTURE = 0.5
_OTHER_VENDOR = 1.0
"""What another architecture or vendor adds, in doublings of every fact: kernels are written anew for each. Chosen once, with
`REACH`, on devices left out of public tables (docs/decisions/009-unseen-devices.md)."""

_TWIN_WITHIN, _STRANGER_BEYOND = 0.15, 0.5
"""Devices this near are one chip in two editions (another memory, another board: A100 40 and 80 GB are 0.10 apart, H100 and
H200 SXM 0.16); beyond the second figure nothing but the general laws carries over."""

REACH = 0.3
"""Distance at which a source's say falls to 1/e."""


def distance(a: Device, b: Device) -> float:
    """Mean difference of the datasheet facts both have, in doublings, and more for another architecture or vendor."""
    steps = [
        abs(math.log2(a.required(name) / b.required(name)))
        for name in _FACTS
        if a.fact(name) is not None and b.fact(name) is not None
    ]
    apart = sum(steps) / len(steps) if steps else 1.0
    apart += _OTHER_ARCHITECTURE if a.architecture != b.architecture else 0.0
    return apart + (_OTHER_VENDOR if a.vendor != b.vendor else 0.0)


def twinness(apart: float) -> float:
    """1 for devices that are editions of one chip, 0 for strangers, linear between."""
    return min(max((_STRANGER_BEYOND - apart) / (_STRANGER_BEYOND - _TWIN_WITHIN), 0.0), 1.0)
