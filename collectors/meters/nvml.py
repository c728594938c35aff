"""Energy of NVIDIA GPUs by NVML's total energy counter (`nvmlDeviceGetTotalEnergyConsumption`, millijoules)."""

from __future__ import annotations

from ..gpu.nvml import nvml_reader
from .board import BoardMeter, EnergyRule
from .clock import Clock, MonotonicClock


def nvml_meter(
    index: int = 0, rule: EnergyRule | None = None, clock: Clock | None = None, *, uuid: str | None = None
) -> BoardMeter | None:
    """The meter of CUDA device `index`; None where the board has no energy counter (before Volta, or on a MIG slice).

    `uuid` names the board where the caller knows it: CUDA counts the fastest first, NVML by PCI address.

    Raises:
        NvmlMissingError: see `nvml_reader`.
    """
    reader = nvml_reader(index, uuid=uuid)
    if reader.energy_j() is None:
        return None
    return BoardMeter("nvml", reader, rule or EnergyRule(), clock or MonotonicClock())
