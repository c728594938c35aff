"""The meter of a machine without a sensor: nothing is ever estimated from a datasheet's rated power."""

from __future__ import annotations

from .protocol import SteadyLoop


class NoMeter:
    """Every measurement is None, and costs nothing: the loop is not even turned."""

    name = "none"

    def measure(self, loop: SteadyLoop, *, windows: int = 1) -> None:
        """Always None."""
