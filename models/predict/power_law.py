"""What a power limit or a locked clock does to time, power and energy of a kernel, or of a program whose default is measured.

A board under a limit lowers its clock until it draws no more. With x the clock over that of the default run,

    V(x) = max(0.75, 1 - 1.2 (1 - x))                     voltage over that of the default run
    P(x) = S + (P(1) - S) x V(x)²                         power while busy; S does not follow the clock
    T(x) = sqrt((1 + (c / x)²) / (1 + c²))                time over that of the default run

The power is that of CMOS logic, C V² f (Chandrakasan, Sheng, Brodersen, "Low-power CMOS digital design", JSSC 1992) above a
floor of the voltage; the time is a smooth maximum of what follows the clock and what does not, with c the former over the
latter, as a roofline has it. Numbers, errors and where it fails: docs/decisions/017-power-caps.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...features.batch.cases import Floats
from ...features.device import Device
from ...features.errors import SpecError

LEAST_CLOCK = 0.2
"""The lowest clock that the law is for, over the boost clock: where limits of 100 W of 250 to 300 leave public boards."""


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """The numbers of the law that rows under limits say; u is the share of the range from S to the limit that a mean power is.

    Attributes:
        least_voltage: Lowest voltage over that of the default run.
        voltage_slope: What the voltage loses per share of the clock above it.
        least_clock: Lowest clock that a limit leads to, over that of the default run.
        busy_exponent: Of programs, which wait between kernels: they draw S + (limit - S) u^`busy_exponent` while busy.
        on_clock: Their c is `on_clock` u^`clock_exponent`.
        clock_exponent: See `on_clock`.
    """

    least_voltage: float = 0.75
    voltage_slope: float = 1.2
    least_clock: float = LEAST_CLOCK
    busy_exponent: float = 0.25
    on_clock: float = 1.24
    clock_exponent: float = 0.8

    def voltage(self, x: Any) -> Any:
        """V at clocks over the default's."""
        return np.maximum(self.least_voltage, 1.0 - self.voltage_slope * (1.0 - x))

    def clock_under(self, power_w: Any, static_w: Any, limit_w: Any) -> Floats:
        """The highest clock over the default's at which a busy board draws no more than its limit, at least the lowest."""
        clocks = np.geomspace(1.0, self.least_clock, 1024)
        room = (limit_w - static_w) / np.maximum(power_w - static_w, 1e-9)
        x: Floats = np.interp(-room, -clocks * self.voltage(clocks) ** 2, clocks)
        return x


LAW = PowerLaw()
"""Rounded from a fit to training epochs of Zeus (A40, V100, Quadro RTX 6000)."""

_STATIC_SHARE = {"hbm": 0.15, "gddr": 0.25}
"""S over the power limit by kind of memory: 0.14 on V100 and 0.16 on H200, 0.24 on Quadro RTX 6000 and 0.27 on A40."""
_STATIC_OF_IDLE = 0.9
"""S over the power of a board whose clocks are up and that computes nothing."""

_DRAM_ON_CLOCK = 0.7
"""What follows the clock of a kernel that only moves bytes, over its time in memory: caches and the paths between. Published
decode steps have 0.62 to 0.74 (RTX PRO 6000, RTX 5000 Ada and RTX 4000 Ada under limits)."""

_LEAST_ERROR, _ERROR_PER_LOG, _MOST_ERROR = 0.03, 0.4, 0.28
"""Deviation of ln of time and of energy: 0.03 to 0.05 where time hardly changes, 0.28 where it more than doubles."""


@dataclass(frozen=True, slots=True)
class PowerSetting:
    """How a board is set.

    Attributes:
        power_limit_w: Power limit in watts; None: the board's own.
        clock_hz: Locked clock of the compute units in hertz; None: as high as the limit allows.
    """

    power_limit_w: float | None = None
    clock_hz: float | None = None

    @property
    def title(self) -> str:
        """The setting in words."""
        limit = [] if self.power_limit_w is None else [f"{self.power_limit_w:g} W"]
        clock = [] if self.clock_hz is None else [f"{self.clock_hz / 1e6:g} MHz"]
        return " and ".join([*limit, *clock]) or "default"


@dataclass(frozen=True, slots=True)
class Board:
    """What the law takes from a device, in watts and hertz.

    Attributes:
        limit_w: Its own power limit.
        static_w: Power that does not follow the clock.
        idle_w: Power with clocks up and nothing to compute: no limit below it can be kept.
        boost_hz: Its highest clock.
    """

    limit_w: float
    static_w: float
    idle_w: float
    boost_hz: float

    @classmethod
    def of(cls, device: Device) -> Board:
        """The board of a device.

        Raises:
            SpecError: it is no GPU, or its power limit is not public.
        """
        if device.kind != "gpu":
            raise SpecError(
                f"{device.name} is a CPU, whose power is not measured; leave power_limit_w and clock_hz out",
                field="power_limit_w",
            )
        limit_w = device.fact("tdp_w")
        if limit_w is None:
            raise SpecError(
                f"the power limit of {device.name} is not public, so what a lower one or a clock does is unknown; leave "
                "power_limit_w and clock_hz out, or give a device file with tdp_w",
                field="power_limit_w",
            )
        measured = device.measured.get("power_idle_w")
        static_w = (
            _STATIC_SHARE[_memory_kind(device)] * limit_w if measured is None else _STATIC_OF_IDLE * measured.value
        )
        return cls(limit_w, static_w, static_w / _STATIC_OF_IDLE, device.required("boost_clock_hz"))

    def check(self, setting: PowerSetting, name: str) -> None:
        """That the board, of the device `name`, can be set so.

        Raises:
            SpecError: a limit below what it draws idle or above its own, or a clock that it does not have.
        """
        limit_w, clock_hz = setting.power_limit_w, setting.clock_hz
        if limit_w is not None and not self.idle_w <= limit_w <= self.limit_w:
            side = "above its own limit" if limit_w > self.limit_w else "below what it draws with nothing to compute"
            raise SpecError(
                f"power_limit_w is {limit_w:g} W for {name}, {side}; give {math.ceil(self.idle_w)} to {self.limit_w:g} W",
                field="power_limit_w",
            )
        low = LEAST_CLOCK * self.boost_hz
        if clock_hz is not None and not low <= clock_hz <= self.boost_hz:
            unit = " (clock_hz is in hertz: 1200 MHz are 1.2e9)" if clock_hz < 1e5 else ""
            side = "above its boost clock" if clock_hz > self.boost_hz else "below the clocks that the law is for"
            raise SpecError(
                f"clock_hz is {clock_hz:g} Hz for {name}, {side}; give {low:.4g} to {self.boost_hz:.4g} Hz{unit}",
                field="clock_hz",
            )


def _memory_kind(device: Device) -> str:
    """Whether its memory is stacked, which no device file says: such boards have much bandwidth, or halve fp64 and no more."""
    bandwidth = device.required("memory_bandwidth_b_per_s")
    fp64, fp32 = (device.vector_flops_per_s.get(dtype) for dtype in ("fp64", "fp32"))
    halves = fp64 is not None and fp32 is not None and fp64.value >= 0.24 * fp32.value
    return "hbm" if bandwidth >= 2e12 or (halves and bandwidth >= 5e11) else "gddr"


def checked_setting(power_limit_w: Any, clock_hz: Any, *devices: Device) -> PowerSetting | None:
    """The setting of devices from plain values; None where both are.

    Raises:
        SpecError: one is no positive number, or a device cannot be set so.
    """
    setting = read_setting(power_limit_w, clock_hz)
    if setting is not None:
        for device in devices:
            Board.of(device).check(setting, device.name)
    return setting


def read_setting(power_limit_w: Any, clock_hz: Any) -> PowerSetting | None:
    """A setting from plain values; None where both are.

    Raises:
        SpecError: one is no positive number.
    """
    for name, value in (("power_limit_w", power_limit_w), ("clock_hz", clock_hz)):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and (not is_number or not math.isfinite(value) or value <= 0):
            raise SpecError(f"{name} must be a positive number, got {str(value)[:40]!r}", field=name)
    return None if power_limit_w is clock_hz is None else PowerSetting(power_limit_w, clock_hz)


@dataclass(frozen=True, slots=True)
class Response:
    """What a setting does, every column of shape `(n,)`.

    Attributes:
        clock: Clock over that of the default.
        time: Time over that of the default.
        power_w: Mean power in watts.
    """

    clock: Floats
    time: Floats
    power_w: Floats


def kernel_response(power_w: Any, on_clock: Any, boards: Any, limit_w: Any, clock: Any) -> Response:
    """What settings do to kernels.

    Args:
        power_w: Power by default, shape `(n,)` like the rest.
        on_clock: c, what follows the clock over what does not.
        boards: S of the boards, in watts.
        limit_w: Power limits.
        clock: Highest clock allowed over that of the default, at most 1.
    """
    power_w, static_w = np.broadcast_arrays(power_w, np.minimum(boards, power_w))
    x = np.minimum(LAW.clock_under(power_w, static_w, limit_w), clock)
    return Response(x, _time(x, on_clock), static_w + (power_w - static_w) * x * LAW.voltage(x) ** 2)


def responses_together(power_w: Floats, on_clock: Floats, seconds: Floats, static_w: float, limit_w: float) -> Response:
    """What a limit does to kernels of one program, whose clock is one and whose mean power is what counts.

    Args:
        power_w: Power of each at the highest clock, shape `(n,)` like the rest.
        on_clock: c of each, what follows the clock over what does not.
        seconds: What each takes of a run at the highest clock.
        static_w: S of the board.
        limit_w: Power limit.
    """
    clocks = np.linspace(1.0, LEAST_CLOCK, 161)[:, None]
    own_w = np.minimum(static_w, power_w)
    times, powers_w = _time(clocks, on_clock), own_w + (power_w - own_w) * clocks * LAW.voltage(clocks) ** 2
    taken_s = seconds * times
    mean_w = (powers_w * taken_s).sum(1) / taken_s.sum(1)
    at = int(np.argmax(mean_w <= limit_w)) if (mean_w <= limit_w).any() else len(clocks) - 1
    return Response(np.full(len(power_w), clocks[at, 0]), times[at], powers_w[at])


def program_response(power_w: Any, board: Board, limit_w: Any, clock: Any = 1.0, law: PowerLaw = LAW) -> Response:
    """What settings do to whole programs of which only the mean power by default is known; arguments as of `kernel_response`.

    What a program waits for hides a part of what its kernels lose.
    """
    power_w = np.asarray(power_w, dtype=np.float64)
    static_w = np.minimum(board.static_w, 0.98 * power_w)
    share = np.clip((power_w - static_w) / (board.limit_w - static_w), 1e-3, 1.0)
    busy_w = static_w + (board.limit_w - static_w) * share**law.busy_exponent
    x = np.minimum(law.clock_under(busy_w, static_w, limit_w), clock)
    time = _time(x, law.on_clock * share**law.clock_exponent)
    return Response(x, time, static_w + (power_w - static_w) * law.voltage(x) ** 2 / time)


def log_error(time: Any) -> Any:
    """Deviation of ln of time and of energy under a setting that makes a run take `time` times as long."""
    return np.minimum(_LEAST_ERROR + _ERROR_PER_LOG * np.log(np.maximum(time, 1.0)), _MOST_ERROR)


def _time(x: Any, on_clock: Any) -> Any:
    # As a share, c may be infinite: of a kernel that moves nothing.
    share = on_clock**2 / (1.0 + on_clock**2)
    return np.sqrt(1.0 - share + share / x**2)


def on_clock(breakdown: Mapping[str, Any]) -> Any:
    """Of kernels by their bounds in seconds, c: arithmetic and caches follow the clock, memory and launches do not."""
    clocked = breakdown["compute"] + np.maximum(breakdown["cache"], _DRAM_ON_CLOCK * breakdown["dram"])
    fixed = breakdown["dram"] + breakdown["launch"]
    return np.minimum(clocked / np.maximum(fixed, 1e-15), 1e3)
