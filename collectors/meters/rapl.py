"""RAPL package energy through Linux powercap (Documentation/power/powercap/powercap.rst), summed over packages."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from .protocol import Clock, Energy, EnergyRefusedError, SteadyLoop

POWERCAP = Path("/sys/class/powercap")


class RaplMeter:
    """Reads the packages' counters around a loop.

    `energy_uj` counts microjoules and wraps to 0 after `max_energy_range_uj`; a window must be shorter than one wrap
    (minutes at full load). The counters advance every millisecond, so a window of `window_s` = 0.3 s reads them to better
    than 1 % without waiting for a step.
    """

    name = "rapl"

    def __init__(self, packages: Sequence[Path], window_s: float = 0.3, clock: Clock | None = None) -> None:
        self._packages = tuple(packages)
        self._window_s = window_s
        self._clock = clock or Clock()

    def measure(self, loop: SteadyLoop, *, windows: int = 1) -> Energy | None:
        """Energy per call over `windows` windows in a row; None when a counter cannot be read at either end.

        Raises:
            EnergyRefusedError: the counters stood still.
        """
        joules: list[float] = []
        calls, seconds = [0], 0.0
        for _ in range(windows):
            before = self._read()
            began = self._clock.now_s()
            done = loop.turn()
            while self._clock.now_s() - began < self._window_s:
                done = loop.turn()
            seconds += self._clock.now_s() - began
            calls.append(done)
            spent = self._since(before)
            if spent is None:
                return None
            joules.append(spent)
        if not all(joules):
            raise EnergyRefusedError(f"the RAPL counters stood still over {seconds / windows:.2g} s of work")
        each = [spent / (end - begin) for spent, begin, end in zip(joules, calls, calls[1:], strict=False)]
        return Energy(
            energy_j=sum(joules) / calls[-1], power_w=sum(joules) / seconds, window_s=seconds, calls=calls[-1],
            windows=windows, spread=(max(each) - min(each)) / statistics.median(each) if windows > 1 else None,
        )  # fmt: skip

    def _read(self) -> list[int] | None:
        try:
            return [_number(package / "energy_uj") for package in self._packages]
        except (OSError, ValueError):
            return None

    def _since(self, before: list[int] | None) -> float | None:
        """Joules over all packages since `before`."""
        after = self._read()
        if before is None or after is None:
            return None
        total_uj = 0
        for package, begin, end in zip(self._packages, before, after, strict=True):
            try:
                total_uj += end - begin if end >= begin else end - begin + _number(package / "max_energy_range_uj") + 1
            except (OSError, ValueError):
                return None
        return total_uj * 1e-6


def packages(root: Path = POWERCAP) -> list[Path]:
    """The package zones under `root` that this user may read."""
    return [zone for zone in sorted(root.glob("intel-rapl:*")) if zone.name.count(":") == 1 and _is_package(zone)]


def _is_package(zone: Path) -> bool:
    try:
        _number(zone / "energy_uj")  # readable by root only on many systems
        _number(zone / "max_energy_range_uj")
        return (zone / "name").read_text().startswith("package")
    except (OSError, ValueError):
        return False


def _number(path: Path) -> int:
    return int(path.read_text())
