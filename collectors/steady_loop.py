"""Energy of a call on a CPU: the steady loop that a meter drives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from .meters.protocol import Energy, EnergyMeter, EnergyRefusedError

TURN_S = 5e-3
"""Length of a turn of the loop whose energy is measured: reading the clock between turns then costs nothing."""


@dataclass(slots=True)
class _Loop:
    """A `SteadyLoop` of a call that returns when its result is complete."""

    call: Callable[[], Any]
    calls_per_turn: int
    done: int = 0

    def turn(self) -> int:
        for _ in repeat(None, self.calls_per_turn):
            self.call()
        self.done += self.calls_per_turn
        return self.done


def steady_energy(call: Callable[[], Any], call_s: float, meter: EnergyMeter) -> tuple[Energy | None, str | None]:
    """What one call of `call_s` seconds costs in a steady loop, and why that is not known where a reading was refused."""
    loop = _Loop(call, max(1, round(TURN_S / call_s)))
    try:
        return meter.measure(loop), None
    except EnergyRefusedError as refused:
        return None, f"no energy: {refused}"
