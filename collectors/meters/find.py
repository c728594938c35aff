"""Which energy sensor this machine has, and why that one; what reads a GPU's board, and what it reads in a campaign."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..host import torch_library, utc_now
from .amdsmi import AmdReader, amd_reader
from .board import BoardMeter, BoardReader, EnergyRule, idle_power_w, sensor_period_s
from .nvml import NvmlReader, nvml_reader
from .protocol import Clock, EnergyMeter, NoMeter, SensorMissingError
from .rapl import POWERCAP, RaplMeter, packages

Open = Callable[[int], BoardReader]
"""Opens the sensors of a GPU; SensorMissingError where they are not there."""

GpuReader = NvmlReader | AmdReader
"""What reads a GPU's board."""


def gpu_reader(index: int = 0, *, uuid: str | None = None) -> GpuReader:
    """What reads the board of GPU `index`: AMD SMI beside a torch for ROCm, else NVML, to which `uuid` names the board.

    Raises:
        SensorMissingError: nothing can.
    """
    library = torch_library()
    if library == "xpu":
        raise SensorMissingError("no library reads power, clocks or temperature of an Intel GPU here")
    return amd_reader(index) if library == "hip" else nvml_reader(index, uuid=uuid)


def open_gpu_reader(index: int = 0, *, uuid: str | None = None) -> GpuReader | None:
    """`gpu_reader`, or None where nothing reads the board."""
    try:
        return gpu_reader(index, uuid=uuid)
    except SensorMissingError:
        return None


def gpu_state(reader: GpuReader) -> dict[str, Any]:
    """What changes from block to block: plain JSON; None where the device does not say."""
    throttle = reader.throttle()
    return {
        "sm_clock_hz": reader.sm_clock_hz(),
        "memory_clock_hz": reader.memory_clock_hz(),
        "temperature_c": reader.temperature_c(),
        "power_w": reader.power_w(),
        "power_limit_w": reader.power_limit_w(),
        "throttle": None if throttle is None else list(throttle),
        "utc": utc_now(),
    }


def gpu_facts(reader: GpuReader) -> dict[str, Any]:
    """What stays the same over a campaign: plain JSON; None where the device does not say."""
    return {
        "name": reader.name(),
        "driver": reader.driver(),
        "cuda_driver": reader.cuda_driver(),
        "memory_b": reader.memory_b(),
        "power_limit_w": reader.power_limit_w(),
        "power_source": reader.power_source,
    }


def gpu_sensors(uuid: str | None = None) -> Mapping[str, Open]:
    """How to open this machine's GPU sensor by its name; `uuid` names the board to a library that knows boards by it."""
    return {"amdsmi" if torch_library() == "hip" else "nvml": partial(gpu_reader, uuid=uuid)}


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
