"""The minutes of a night: what is reserved for training and what follows, and what is left for measuring."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .record import NightRecord

AFTER = ("check", "train", "gate", "promote", "report")
"""The stages that follow measuring."""

_FIRST_SHARE = 0.4
"""Kept back in a first night, when nothing is known of how long training takes here."""

_LEAST_S, _MOST_SHARE = 5.0, 0.6
_HEADROOM = 1.25
"""Earlier nights' longest is taken a quarter longer: rows grow from night to night."""

_NIGHTS = 3


def reserve_s(budget_s: float, earlier: Iterable[NightRecord]) -> float:
    """Seconds to keep back for the stages after measuring, by what they took in earlier nights of the plan (newest first).

    Only nights that trained count; between five seconds and three fifths of the night.
    """
    took = [
        sum(stage.seconds for stage in record.stages if stage.name in AFTER)
        for record in earlier
        if record.stage("train").status == "done"
    ][:_NIGHTS]
    wanted = _HEADROOM * max(took) if took else _FIRST_SHARE * budget_s
    return min(max(wanted, _LEAST_S), _MOST_SHARE * budget_s)


@dataclass(slots=True)
class Budget:
    """The time of one night.

    Attributes:
        total_s: Seconds of the whole night.
        used_s: Seconds of them used before this process began.
        reserved_s: Seconds reserved for the stages after measuring.
        clock: Gives the time in seconds, only ever forward.
        began: When this process began, by the clock.
    """

    total_s: float
    used_s: float
    reserved_s: float
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def ends(self) -> float:
        """When the night has to be over, on the monotonic clock: a wall clock that is set changes no budget."""
        return self.began + self.total_s - self.used_s

    @property
    def left_s(self) -> float:
        """Seconds left of the night, not below 0."""
        return max(0.0, self.ends - self.clock())

    @property
    def measuring_until(self) -> float:
        """When no further case may be begun."""
        return self.ends - self.reserved_s

    @property
    def measuring_s(self) -> float:
        """Seconds left for measuring, not below 0."""
        return max(0.0, self.measuring_until - self.clock())


_AFTER_TRAINING = ("gate", "promote", "report")
_FIRST_AFTER_SHARE = 0.08


def after_training_s(budget_s: float, earlier: Iterable[NightRecord]) -> float:
    """Seconds of `reserve_s` that training must leave to what follows it, by what that took in earlier nights."""
    took = [
        sum(stage.seconds for stage in record.stages if stage.name in _AFTER_TRAINING)
        for record in earlier
        if record.stage("gate").status == "done"
    ][:_NIGHTS]
    wanted = _HEADROOM * max(took) if took else _FIRST_AFTER_SHARE * budget_s
    return min(wanted, _FIRST_SHARE * budget_s)
