"""What serving adds to steps: time per request outside them, and how far services are from their simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from ...features.device import Device

PROFILES = Path(__file__).with_name("service_profiles.yaml")


@dataclass(frozen=True, slots=True)
class ServiceProfile:
    """Numbers of an engine.

    Attributes:
        between_s: Seconds per request outside steps: receiving, tokenising, sending the first token.
        host_w: Watts of the host per device.
        step_share: Most of a step's own half-width that goes into an interval, in logarithms: errors of steps partly cancel.
        half_widths: Half-widths of 90 % intervals in logarithms, by target, beyond those of steps.
    """

    between_s: float
    host_w: float
    step_share: float
    half_widths: Mapping[str, float]


@cache
def _profiles() -> Mapping[str, ServiceProfile]:
    entries = yaml.safe_load(PROFILES.read_text(encoding="utf-8"))["engines"]
    return {name: ServiceProfile(**entry) for name, entry in entries.items()}


def service_profile(engine: str, version: str | None) -> ServiceProfile:
    """The profile of a version of an engine, or else of the engine, or else of any."""
    profiles = _profiles()
    return profiles.get(f"{engine} {version}") or profiles.get(engine) or profiles["other"]


IDLE_SHARE = 0.176
"""Power of a GPU that has nothing to run, as a share of its limit, where it is not measured: 123 of 700 W, kernelcast's own
measurement of an H200 (`features/devices/nvidia-h200-sxm-141gb.yaml`)."""


def idle_w(device: Device) -> float | None:
    """Watts of a device that waits for work; None where neither that nor its limit is known."""
    measured = device.measured.get("power_idle_w")
    if measured is not None:
        return measured.value
    limit = device.fact("tdp_w")
    return None if limit is None else IDLE_SHARE * limit
