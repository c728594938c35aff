"""Energy of NVIDIA GPUs by NVML's total energy counter (`nvmlDeviceGetTotalEnergyConsumption`, millijoules)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from .protocol import GpuIdentity, SensorMissingError

THROTTLE_BITS = (
    (0x1, "idle"),
    (0x2, "clock_setting"),
    (0x4, "power_cap"),
    (0x8, "hardware_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "thermal"),
    (0x40, "thermal"),
    (0x80, "brake"),
    (0x100, "display_clock"),
)
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h, nvmlClocksEventReasons) and our words for them.

0x20 is the driver's thermal slowdown, 0x40 the hardware's. 0x8 says that clocks are halved or worse, for heat, an external
power brake, or a power draw that is too fast, and comes with 0x40 or 0x80 where it is one of the first two."""

_INSTALL = "install nvidia-ml-py and an NVIDIA driver, and check that nvidia-smi runs"
_POWER_SCOPE_GPU = 0  # NVML_POWER_SCOPE_GPU of nvml.h; absent from older bindings


class NvmlMissingError(SensorMissingError):
    """NVML cannot be used on this machine; the message says why in one sentence."""


class NvmlReader:
    """Readings of one GPU. Every method gives None where the device or the driver does not know, and never raises.

    `library` is the `pynvml` module or a double of it, already initialised; `handle` what it calls the GPU.
    """

    def __init__(self, library: Any, handle: Any) -> None:
        self._nvml, self._handle = library, handle
        # The field's 1 s average is what nvmlDeviceGetPowerUsage gives since Ampere (but GA100); before, it is instantaneous.
        sources: dict[str, Callable[[], float | None]] = {
            "instant": self._power_instant_w, "power_usage": self._power_usage_w,
        }  # fmt: skip
        self.power_source: str | None = next((name for name, read in sources.items() if read() is not None), None)
        """What `power_w` reads: `instant` (NVML_FI_DEV_POWER_INSTANT), `power_usage` (nvmlDeviceGetPowerUsage), None."""
        self._power_w = sources.get(self.power_source or "", _nothing)

    def energy_j(self) -> float | None:
        """Energy drawn since the driver was loaded; advances in steps (some 100 ms on data-centre boards)."""
        return self._device("nvmlDeviceGetTotalEnergyConsumption", scale=1e-3)

    def power_w(self) -> float | None:
        """Power now, by `power_source`."""
        return self._power_w()

    def power_limit_w(self) -> float | None:
        """The limit in force."""
        return self._device("nvmlDeviceGetEnforcedPowerLimit", scale=1e-3)

    def temperature_c(self) -> float | None:
        """Temperature of the GPU's die."""
        return self._device("nvmlDeviceGetTemperature", 0)  # NVML_TEMPERATURE_GPU

    def sm_clock_hz(self) -> float | None:
        """Clock of the multiprocessors."""
        return self._device("nvmlDeviceGetClockInfo", 1, scale=1e6)  # NVML_CLOCK_SM

    def memory_clock_hz(self) -> float | None:
        """Clock of the memory."""
        return self._device("nvmlDeviceGetClockInfo", 2, scale=1e6)  # NVML_CLOCK_MEM

    def memory_b(self) -> float | None:
        """Size of the device's memory."""
        memory = self._call("nvmlDeviceGetMemoryInfo", self._handle)
        return None if memory is None else float(memory.total)

    def throttle(self) -> tuple[str, ...] | None:
        """What limits the clocks now, in the words of `THROTTLE_BITS`; empty for nothing."""
        bits = self._call("nvmlDeviceGetCurrentClocksEventReasons", self._handle)
        if bits is None:  # the name before driver 535
            bits = self._call("nvmlDeviceGetCurrentClocksThrottleReasons", self._handle)
        return None if bits is None else throttle_words(int(bits))

    def name(self) -> str | None:
        """The product's name."""
        return _text(self._call("nvmlDeviceGetName", self._handle))

    def identity(self) -> GpuIdentity:
        """Its name, which is enough."""
        return GpuIdentity(self.name())

    def compute_capability(self) -> int | None:
        """The compute capability as one number: 90 for 9.0."""
        capability = self._call("nvmlDeviceGetCudaComputeCapability", self._handle)
        return None if capability is None else 10 * int(capability[0]) + int(capability[1])

    def driver(self) -> str | None:
        """The driver's version."""
        return _text(self._call("nvmlSystemGetDriverVersion"))

    def cuda_driver(self) -> str | None:
        """The newest CUDA version the driver supports, as `13.0`."""
        number = self._call("nvmlSystemGetCudaDriverVersion_v2")
        return None if number is None else f"{number // 1000}.{number % 1000 // 10}"

    def _device(self, function: str, *arguments: int, scale: float = 1.0) -> float | None:
        value = self._call(function, self._handle, *arguments)
        return None if value is None else float(value) * scale

    def _power_instant_w(self) -> float | None:
        return self._field_w("NVML_FI_DEV_POWER_INSTANT")

    def _power_usage_w(self) -> float | None:
        return self._device("nvmlDeviceGetPowerUsage", scale=1e-3)

    def _field_w(self, field: str) -> float | None:
        """A power field, kept by NVML in milliwatts as an unsigned int."""
        number = getattr(self._nvml, field, None)
        values = None if number is None else self._call(
            "nvmlDeviceGetFieldValues", self._handle, [(number, _POWER_SCOPE_GPU)],
        )  # fmt: skip
        # Each field carries its own status: 0 is NVML_SUCCESS.
        return None if values is None or values[0].nvmlReturn != 0 else values[0].value.uiVal * 1e-3

    def _call(self, function: str, *arguments: Any) -> Any:
        try:
            # Bindings older than a function lack its name; drivers older than it raise.
            return getattr(self._nvml, function)(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None


def nvml_reader(
    index: int = 0, *, library: Any = None, environment: Mapping[str, str] = os.environ, uuid: str | None = None
) -> NvmlReader:
    """The reader of CUDA device `index`, which `CUDA_VISIBLE_DEVICES` may put elsewhere among NVML's devices.

    `uuid` names the GPU beyond doubt where the caller knows it; it is used to find it and not kept.

    Raises:
        NvmlMissingError: the package, the library, the driver or the device is missing.
    """
    if library is None:
        try:
            import pynvml
        except ImportError:
            raise NvmlMissingError(f"the package nvidia-ml-py is not installed; {_INSTALL}") from None
        library = pynvml
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        raise NvmlMissingError(f"NVML does not start ({error}); {_INSTALL}") from None
    named = uuid or visible(index, environment.get("CUDA_VISIBLE_DEVICES"))
    try:
        if named.isdecimal():
            handle = library.nvmlDeviceGetHandleByIndex(int(named))
        else:
            handle = library.nvmlDeviceGetHandleByUUID(named)
    except library.NVMLError as error:
        raise NvmlMissingError(f"NVML knows no GPU for CUDA device {index} ({error}); see nvidia-smi -L") from None
    return NvmlReader(library, handle)


def throttle_words(bits: int) -> tuple[str, ...]:
    """The words of a bit mask of clock limits, each once, in the order of `THROTTLE_BITS`."""
    return tuple(dict.fromkeys(word for bit, word in THROTTLE_BITS if bits & bit))


def visible(index: int, listed: str | None) -> str:
    """Entry `index` of a list of visible devices such as `CUDA_VISIBLE_DEVICES`, an index or a UUID; else `index` itself."""
    entries = [entry.strip() for entry in (listed or "").split(",") if entry.strip()]
    return entries[index] if index < len(entries) else str(index)


def _text(value: Any) -> str | None:
    """Bindings gave bytes before version 11."""
    return value.decode() if isinstance(value, bytes) else value


def _nothing() -> None:
    """What reads power where nothing can."""
