"""Which energy sensor this machine has, and why that one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from .amdsmi import amd_meter
from .board import BoardMeter, EnergyRule, IdleRule, idle_power_w, sensor_period_s
from .nvml import nvml_meter
from .protocol import Clock, EnergyMeter, MonotonicClock, NoMeter, SensorMissingError
from .rapl import POWERCAP, RaplMeter, packages

Open = Callable[[int, EnergyRule, Clock], EnergyMeter | None]
"""Opens the meter of a GPU; None where the board has no energy counter, SensorMissingError where the sensor is not there."""


def gpu_sensors(uuid: str | None = None) -> Mapping[str, Open]:
    """How to open each GPU sensor, in the order they are tried; `uuid` names the board to those that know boards by it."""
    return MappingProxyType({"nvml": partial(nvml_meter, uuid=uuid), "amdsmi": amd_meter})


GPU_SENSORS = gpu_sensors()
"""The sensors of boards named by their index alone; `zeus.zeus_meter` can be put in their place."""


def find_meter(root: Path = POWERCAP) -> EnergyMeter:
    """The CPU's: RAPL when `root` holds a package zone this user may read, else `NoMeter`."""
    zones = packages(root)
    return RaplMeter(zones) if zones else NoMeter()


def find_gpu_meter(
    index: int = 0,
    *,
    rule: EnergyRule | None = None,
    clock: Clock | None = None,
    idle: IdleRule | None = None,
    calibrate: bool = True,
    uuid: str | None = None,
    sensors: Mapping[str, Open] | None = None,
) -> tuple[EnergyMeter, str]:
    """The meter of GPU `index`, the first of `sensors` that is there, and one sentence on which it is and why.

    `uuid` says which board that is, beyond doubt: NVML may count boards in another order than CUDA. Without `sensors`,
    `gpu_sensors(uuid)` are tried. With `calibrate` it measures the board's idle power and its counter's step first, some
    10 s during which nothing else may run on the board.
    """
    rule, clock = rule or EnergyRule(), clock or MonotonicClock()
    reasons: list[str] = []
    for name, open_meter in (gpu_sensors(uuid) if sensors is None else sensors).items():
        try:
            meter = open_meter(index, rule, clock)
        except SensorMissingError as missing:
            reasons.append(str(missing))
            continue
        if meter is None:
            reasons.append(f"{name} is there, but GPU {index} has no energy counter")
            continue
        if calibrate and isinstance(meter, BoardMeter):
            period_s = sensor_period_s(meter.reader, clock)
            meter = replace(meter, idle_power_w=idle_power_w(meter.reader, idle, clock), period_s=period_s)
        otherwise = f" ({'; '.join(reasons)})" if reasons else ""
        return meter, f"energy of GPU {index} is read by {name}: it has an energy counter{otherwise}"
    return NoMeter(), f"energy of GPU {index} is not read: {'; '.join(reasons) or 'no sensor was asked for'}"
