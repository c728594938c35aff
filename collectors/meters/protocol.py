"""What an energy meter is: it drives a steady loop of one kernel and says what a call of it costs, in joules.

With the meter of a machine without a sensor, and the clock that meters read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

SLOWDOWNS = frozenset({"thermal", "brake"})
"""Words of clock limits that say something of the machine's cooling or supply, for which a reading is rejected; a power cap is
how large kernels behave on a board."""


class EnergyRefusedError(Exception):
    """The sensor was read, but its reading is not to be trusted; the message says why.

    It costs a row its energy, never its latency.
    """


class SensorMissingError(Exception):
    """A sensor cannot be used on this machine; the message says why in one sentence."""


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """What a GPU says it is; None where its library does not tell.

    Attributes:
        name: What it calls itself.
        architecture: As device files write it, such as `gfx942`.
        compute_units: How many it has; one die of a board with two has half of the board's.
    """

    name: str | None
    architecture: str | None = None
    compute_units: int | None = None


class SteadyLoop(Protocol):
    """A kernel called again and again without a pause. One loop serves one measurement: its count starts at 0."""

    def turn(self) -> int:
        """Keep the device busy for some 5-20 ms more (one call, where that is longer); returns calls completed so far.

        A turn ends as a call completes, so that the count is exact, with work for the next turn already queued, so that
        reading a sensor in between idles nothing.
        """
        ...


@dataclass(frozen=True, slots=True)
class Energy:
    """What measuring a loop gave; None where something is not known.

    Attributes:
        energy_j: Joules per call, gross, the label: all the device drew, idling included.
        power_w: Mean power over all windows.
        window_s: Seconds of all windows together.
        calls: Calls of all windows together.
        windows: Number of windows.
        idle_power_w: Power at rest.
        net_energy_j: Joules per call above `idle_power_w`.
        power_integrated_w: Mean of power readings over the same time, a check on the counter.
        spread: (largest - smallest) / median of the windows' energies per call; None for one window.
    """

    energy_j: float
    power_w: float
    window_s: float
    calls: float
    windows: int = 1
    idle_power_w: float | None = None
    net_energy_j: float | None = None
    power_integrated_w: float | None = None
    spread: float | None = None


class EnergyMeter(Protocol):
    """An energy sensor. `name` is what rows call it (`energy_source`), `none` where there is none."""

    @property
    def name(self) -> str:
        """What rows call the sensor."""
        ...

    def measure(self, loop: SteadyLoop, *, windows: int = 1) -> Energy | None:
        """Energy per call of `loop` over `windows` windows; None where there is no sensor.

        Raises:
            EnergyRefusedError: the reading is not to be trusted.
        """
        ...


class NoMeter:
    """Every measurement is None, and costs nothing: the loop is not even turned."""

    name = "none"

    def measure(self, loop: SteadyLoop, *, windows: int = 1) -> None:
        """Always None."""


class Clock:
    """Monotonic time: `time.perf_counter` and `time.sleep`; tests play one."""

    def now_s(self) -> float:
        """Seconds since some fixed moment."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
