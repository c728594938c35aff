"""Energy of AMD GPUs by AMD SMI's energy accumulator (`amdsmi`, part of ROCm; rocm.docs.amd.com/projects/amdsmi).

Zero, negative and non-numeric answers of the library ("N/A") are missing values.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

from .protocol import SensorMissingError

THROTTLE_COUNTERS = (
    ("prochot_residency_acc", "thermal"),
    ("socket_thm_residency_acc", "thermal"),
    ("vr_thm_residency_acc", "thermal"),
    ("hbm_thm_residency_acc", "thermal"),
    ("ppt_residency_acc", "power_cap"),
)
"""Counters of `amdsmi_get_gpu_metrics_info` that advance while clocks are limited, and our words for why."""

_POWERS = ("current_socket_power", "average_socket_power")  # MI300 and newer tell the first, older boards the second
_INSTALL = "install ROCm with its amdsmi package, and check that amd-smi runs"


class AmdMissingError(SensorMissingError):
    """AMD SMI cannot be used on this machine; the message says why in one sentence."""


class AmdReader:
    """Readings of one AMD GPU. Every method gives None where the board or the driver does not know, and never raises.

    `library` is the `amdsmi` module or a double of it, already initialised; `handle` what it calls the GPU.
    """

    def __init__(self, library: Any, handle: Any) -> None:
        self._amdsmi, self._handle = library, handle
        self._limited: dict[str, float] = {}
        self.throttle()  # what the counters held before counts for nothing

    def energy_j(self) -> float | None:
        """Energy drawn since the driver was loaded: accumulator times its resolution, which is in microjoules."""
        counted = self._call("amdsmi_get_energy_count") or {}
        # Until ROCm 6.2 the accumulator was called `power`.
        steps = _number(counted.get("energy_accumulator", counted.get("power")))
        resolution_uj = _number(counted.get("counter_resolution"))
        return None if steps is None or resolution_uj is None else steps * resolution_uj * 1e-6

    def power_w(self) -> float | None:
        """Power of the socket: now, or the driver's average where only that is told."""
        info = self._call("amdsmi_get_power_info") or {}
        return next((watts for name in _POWERS if (watts := _number(info.get(name))) is not None), None)

    def throttle(self) -> tuple[str, ...] | None:
        """Words for what limited the clocks since the call before, by `THROTTLE_COUNTERS`."""
        metrics = self._call("amdsmi_get_gpu_metrics_info") or {}
        now = {name: value for name, _ in THROTTLE_COUNTERS if isinstance(value := metrics.get(name), int)}
        before, self._limited = self._limited, dict(now)
        if not now:
            return None
        words = dict.fromkeys(word for name, word in THROTTLE_COUNTERS if now.get(name, 0) > before.get(name, 0))
        return tuple(words)

    def _call(self, function: str, *arguments: Any) -> Any:
        try:
            # Releases differ in which functions they have.
            return getattr(self._amdsmi, function)(self._handle, *arguments)
        except (self._amdsmi.AmdSmiException, AttributeError):
            return None


def amd_reader(index: int = 0, *, library: Any = None) -> AmdReader:
    """The reader of GPU `index` in AMD SMI's order, which is that of the ROCm runtime unless devices are hidden from it.

    Raises:
        AmdMissingError: the package, its shared library, the driver or the device is missing.
    """
    if library is None:
        try:
            # Where its shared library is missing it prints so, and then fails as it pleases.
            with contextlib.redirect_stdout(io.StringIO()):
                import amdsmi
        except (ImportError, OSError, KeyError) as error:
            raise AmdMissingError(f"amdsmi cannot be imported ({type(error).__name__}: {error}); {_INSTALL}") from None
        library = amdsmi
    try:
        library.amdsmi_init()
        handles = library.amdsmi_get_processor_handles()
    except library.AmdSmiException as error:
        raise AmdMissingError(f"AMD SMI does not start ({' '.join(str(error).split())}); {_INSTALL}") from None
    if index >= len(handles):
        raise AmdMissingError(f"AMD SMI knows no GPU {index}, there are {len(handles)}; see amd-smi list")
    return AmdReader(library, handles[index])


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None
