"""Which energy sensor this machine has, and why that one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from .amdsmi import amd_reader
from .board import BoardMeter, BoardReader, EnergyRule, idle_power_w, sensor_period_s
from .nvml import nvml_reader
from .protocol import Clock, EnergyMeter, NoMeter, SensorMissingError
from .rapl import POWERCAP, RaplMeter, packages

Open = Callable[[int], BoardReader]
"""Opens the sensors of a GPU; SensorMissingError where they are not there."""


def gpu_sensors(uuid: str | None = None) -> Mapping[str, Open]:
    """How to open each GPU sensor, in the order they are tried; `uuid` names the board to those that know boards by it."""
    return {"nvml": partial(nvml_reader, uuid=uuid), "amdsmi": amd_reader}


def find_meter(root: Path = POWERCAP) -> EnergyMeter:
    """The CPU's: RAPL when `root` holds a package zone this user may read, else `NoMeter`."""
    zones = packages(root)
    return RaplMeter(zones) if zones else NoMeter()


def find_gpu_meter(
    index: int = 0, *, rule: EnergyRule | None = None, clock: Clock | None = None, calibrate: bool = True,
    uuid: str | None = None, sensors: Mapping[str, Open] | None = None,
) -> tuple[EnergyMeter, str]:  # fmt: skip
    """The meter of GPU `index`, the first of `sensors` that is there, and one sentence on which it is and why.

    `uuid` says which board that is, beyond doubt: NVML may count boards in another order than CUDA. Without `sensors`,
    `gpu_sensors(uuid)` are tried. With `calibrate` it measures the board's idle power and its counter's step first, some
    10 s during which nothing else may run on the board.
    """
    rule, clock = rule or EnergyRule(), clock or Clock()
    reasons: list[str] = []
    for name, open_reader in (gpu_sensors(uuid) if sensors is None else sensors).items():
        try:
            reader = open_reader(index)
        except SensorMissingError as missing:
            reasons.append(str(missing))
            continue
        # Boards before Volta and MIG slices have none.
        if reader.energy_j() is None:
            reasons.append(f"{name} is there, but GPU {index} has no energy counter")
            continue
        otherwise = f" ({'; '.join(reasons)})" if reasons else ""
        why = f"energy of GPU {index} is read by {name}: it has an energy counter{otherwise}"
        if not calibrate:
            return BoardMeter(name, reader, rule, clock), why
        period_s = sensor_period_s(reader, clock)
        return BoardMeter(name, reader, rule, clock, idle_power_w(reader, clock), period_s), why
    return NoMeter(), f"energy of GPU {index} is not read: {'; '.join(reasons) or 'no sensor was asked for'}"
