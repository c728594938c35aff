"""AMD GPUs by AMD SMI (`amdsmi`, part of ROCm; rocm.docs.amd.com/projects/amdsmi): energy, clocks, temperature, limits, names.

Zero, negative and non-numeric answers of the library ("N/A") are missing values.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from .nvml import visible
from .protocol import GpuIdentity, SensorMissingError

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
        powers = self._call("amdsmi_get_power_info") or {}
        self.power_source: str | None = next((name for name in _POWERS if _number(powers.get(name)) is not None), None)
        """What `power_w` reads: a key of `amdsmi_get_power_info`; None where neither is told."""

    def energy_j(self) -> float | None:
        """Energy drawn since the driver was loaded: accumulator times its resolution, which is in microjoules."""
        counted = self._call("amdsmi_get_energy_count") or {}
        # Until ROCm 6.2 the accumulator was called `power`.
        steps = _number(counted.get("energy_accumulator", counted.get("power")))
        resolution_uj = _number(counted.get("counter_resolution"))
        return None if steps is None or resolution_uj is None else steps * resolution_uj * 1e-6

    def power_w(self) -> float | None:
        """Power of the socket: now, or the driver's average where only that is told."""
        return _number((self._call("amdsmi_get_power_info") or {}).get(self.power_source))

    def power_limit_w(self) -> float | None:
        """The limit in force, which the library tells in microwatts."""
        return _scaled((self._call("amdsmi_get_power_cap_info") or {}).get("power_cap"), 1e-6)

    def temperature_c(self) -> float | None:
        """Temperature of the hottest place of the die."""
        return _number(
            self._call("amdsmi_get_temp_metric", "AmdSmiTemperatureType.HOTSPOT", "AmdSmiTemperatureMetric.CURRENT")
        )

    def sm_clock_hz(self) -> float | None:
        """Clock of the compute units."""
        return self._clock_hz("AmdSmiClkType.GFX")

    def memory_clock_hz(self) -> float | None:
        """Clock of the memory."""
        return self._clock_hz("AmdSmiClkType.MEM")

    def memory_b(self) -> float | None:
        """Size of the device's memory."""
        return _number(self._call("amdsmi_get_gpu_memory_total", "AmdSmiMemoryType.VRAM"))

    def name(self) -> str | None:
        """The product's name."""
        return _text((self._call("amdsmi_get_gpu_asic_info") or {}).get("market_name"))

    def identity(self) -> GpuIdentity:
        """Its name, which is not always the data sheet's, and what its compute units are."""
        asic = self._call("amdsmi_get_gpu_asic_info") or {}
        units = _number(asic.get("num_compute_units"))
        return GpuIdentity(
            self.name(), _text(asic.get("target_graphics_version")), None if units is None else int(units)
        )

    def driver(self) -> str | None:
        """The driver's version."""
        return _text((self._call("amdsmi_get_gpu_driver_info") or {}).get("driver_version"))

    def cuda_driver(self) -> str | None:
        """None: it is not NVIDIA's."""
        return None

    def compute_capability(self) -> int | None:
        """None: it is not NVIDIA's, and nothing is compiled for it ahead of its launch."""
        return None

    def throttle(self) -> tuple[str, ...] | None:
        """Words for what limited the clocks since the call before, by `THROTTLE_COUNTERS`."""
        metrics = self._call("amdsmi_get_gpu_metrics_info") or {}
        now = {name: value for name, _ in THROTTLE_COUNTERS if isinstance(value := metrics.get(name), int)}
        before, self._limited = self._limited, dict(now)
        if not now:
            return None
        words = dict.fromkeys(word for name, word in THROTTLE_COUNTERS if now.get(name, 0) > before.get(name, 0))
        return tuple(words)

    def runtime_names(self, place: int) -> tuple[str, str]:
        """What the ROCm runtime calls it, in lower case: its number there, and `gpu-` with its serial number.

        Before ROCm 6.4 AMD SMI does not tell the number; `place` in its own order stands for it, the same on most machines.
        """
        number = (self._call("amdsmi_get_gpu_enumeration_info") or {}).get("hip_id")
        serial = str((self._call("amdsmi_get_gpu_asic_info") or {}).get("asic_serial")).lower().removeprefix("0x")
        return str(number if isinstance(number, int) else place), f"gpu-{serial}"

    def _clock_hz(self, kind: str) -> float | None:
        clock = self._call("amdsmi_get_clock_info", kind) or {}
        # Until ROCm 6.2 it was called `cur_clk`.
        return _scaled(clock.get("clk", clock.get("cur_clk")), 1e6)

    def _call(self, function: str, *words: str) -> Any:
        """What a function says of the GPU; `words` name members of the library's enumerations."""
        try:
            # Releases differ in which functions and members they have.
            return getattr(self._amdsmi, function)(self._handle, *(attrgetter(word)(self._amdsmi) for word in words))
        except (self._amdsmi.AmdSmiException, AttributeError):
            return None


def amd_reader(index: int = 0, *, library: Any = None, environment: Mapping[str, str] = os.environ) -> AmdReader:
    """The reader of the ROCm runtime's GPU `index`, which variables of the environment may put elsewhere.

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
    wanted = visible(index, environment.get("HIP_VISIBLE_DEVICES") or environment.get("CUDA_VISIBLE_DEVICES"))
    if wanted.isdecimal():
        # What ROCR hides, HIP does not count.
        wanted = visible(int(wanted), environment.get("ROCR_VISIBLE_DEVICES"))
    for place, handle in enumerate(handles):
        reader = AmdReader(library, handle)
        if wanted.lower() in reader.runtime_names(place):
            return reader
    raise AmdMissingError(f"AMD SMI knows no GPU {wanted}, there are {len(handles)}; see amd-smi list")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value not in ("", "N/A") else None


def _scaled(value: Any, scale: float) -> float | None:
    number = _number(value)
    return None if number is None else number * scale


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None
