"""A meter that plays what was measured before, for tests and for running a campaign's path without a sensor."""

from __future__ import annotations

from collections.abc import Iterable

from .protocol import Energy, EnergyRefusedError, SteadyLoop


class ReplayMeter:
    """Plays recorded measurements, one per `measure`, and raises recorded refusals; None once they run out."""

    def __init__(self, recorded: Iterable[Energy | EnergyRefusedError | None], name: str = "replay") -> None:
        self.name = name
        self._recorded = iter(recorded)

    def measure(self, loop: SteadyLoop, *, windows: int = 1) -> Energy | None:  # noqa: ARG002  what was recorded counts
        """The next recorded measurement; the loop is turned once, as any meter would.

        Raises:
            EnergyRefusedError: that is what was recorded.
        """
        loop.turn()
        measured = next(self._recorded, None)
        if isinstance(measured, EnergyRefusedError):
            raise measured
        return measured
