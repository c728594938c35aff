"""Energy of NVIDIA GPUs by NVML's total energy counter (`nvmlDeviceGetTotalEnergyConsumption`, millijoules)."""

from __future__ import annotations

from ..gpu.nvml import nvml_reader
from .board import BoardMeter, EnergyRule
from .clock import Clock, MonotonicClock


def nvml_meter(index: int = 0, rule: EnergyRule | None = None, clock: Clock | None = None) -> BoardMeter | None:
    """The meter of CUDA device `index`; None where the board has no energy counter (before Volta, or on a MIG slice).

    Raises:
        NvmlMissingError: see `nvml_reader`.
    """
    reader = nvml_reader(index)
    if reader.energy_j() is None:
        return None
    return BoardMeter("nvml", reader, rule or EnergyRule(), clock or MonotonicClock())
