"""Energy sensors of this machine: RAPL through powercap where it exists, nothing otherwise, a replay for tests.

A missing sensor gives None, never an estimate from a datasheet's TDP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

POWERCAP = Path("/sys/class/powercap")


class EnergyMeter(Protocol):
    """Energy between `start()` and `stop()`, in joules, or None where it is not known. `name` is the energy source."""

    @property
    def name(self) -> str:
        """What rows call the sensor; `none` where there is none."""
        ...

    def start(self) -> None:
        """Begin a window."""
        ...

    def stop(self) -> float | None:
        """Joules since `start()`, None when they could not be read."""
        ...


class NoMeter:
    """A machine without a sensor: every window is None."""

    name = "none"

    def start(self) -> None:
        """Begin a window."""

    def stop(self) -> float | None:
        """Always None."""
        return None


class RaplMeter:
    """RAPL package energy through Linux powercap (Documentation/power/powercap/powercap.rst), summed over packages.

    `energy_uj` counts microjoules and wraps to 0 after `max_energy_range_uj`; a window must be shorter than one wrap
    (minutes at full load).
    """

    name = "rapl"

    def __init__(self, packages: Sequence[Path]) -> None:
        self._packages = tuple(packages)
        self._before: list[int] | None = None

    def start(self) -> None:
        """Begin a window; one whose start cannot be read has no energy."""
        try:
            self._before = [_number(package / "energy_uj") for package in self._packages]
        except (OSError, ValueError):
            self._before = None

    def stop(self) -> float | None:
        """Joules since `start()` over all packages; None when a counter could not be read at either end."""
        if self._before is None:
            return None
        total_uj = 0
        try:
            for package, before in zip(self._packages, self._before, strict=True):
                spent = _number(package / "energy_uj") - before
                total_uj += spent if spent >= 0 else spent + _number(package / "max_energy_range_uj") + 1
        except (OSError, ValueError):
            return None
        return total_uj * 1e-6


class ReplayMeter:
    """Plays recorded windows, in joules, one per `stop()`; None once they run out."""

    def __init__(self, joules: Iterable[float | None], name: str = "replay") -> None:
        self.name = name
        self._joules = iter(joules)

    def start(self) -> None:
        """Begin a window."""

    def stop(self) -> float | None:
        """The next recorded window."""
        return next(self._joules, None)


def find_meter(root: Path = POWERCAP) -> EnergyMeter:
    """RAPL when `root` holds a package zone this user may read, else `NoMeter`."""
    packages = [zone for zone in sorted(root.glob("intel-rapl:*")) if zone.name.count(":") == 1 and _is_package(zone)]
    return RaplMeter(packages) if packages else NoMeter()


def _is_package(zone: Path) -> bool:
    try:
        _number(zone / "energy_uj")  # readable by root only on many systems
        _number(zone / "max_energy_range_uj")
        return (zone / "name").read_text().startswith("package")
    except (OSError, ValueError):
        return False


def _number(path: Path) -> int:
    return int(path.read_text())
