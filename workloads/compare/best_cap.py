"""The most efficient power limit or clock of a GPU for a kernel, a list of kernels, or a program whose default was measured.

Zeus (You, Chung, Chowdhury, "Zeus: Understanding and Optimizing GPU Energy Consumption of DNN Training", NSDI 2023) tries
limits on the device; here they are predicted. A budget of a rack is filled as by POLCA (Patel et al., "Characterizing Power
Management Opportunities for LLMs in the Cloud", ASPLOS 2024): every server may draw its limit, so that a lower limit makes room
for more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Protocol

import numpy as np

from ...features.device import Device
from ...features.errors import SpecError
from ...models.predict.power_law import LEAST_CLOCK, Board, PowerSetting, log_error, program_response
from ...models.predict.prediction import Interval

_POINTS = 24
"""Fewest limits tried; as many clocks."""
_NICE_W, _NICE_HZ = (1.0, 2.0, 5.0, 10.0, 20.0, 25.0, 50.0), (15e6, 30e6, 45e6, 60e6, 90e6)
"""Steps between them; clocks of NVIDIA's boards are 15 MHz apart."""
_NEARLY = 1.005
"""A limit is chosen before a clock that saves no more than this: lighter work keeps its clock under it."""
_COVERAGE = 0.9


class Cost(Protocol):
    """What a run costs, as predictions of kernels and of whole models have it."""

    @property
    def latency_s(self) -> Interval:
        """Seconds."""

    @property
    def power_w(self) -> Interval | None:
        """Watts; None where unknown."""

    @property
    def energy_j(self) -> Interval | None:
        """Joules; None likewise."""


@dataclass(frozen=True, slots=True)
class RunCost:
    """The cost of what is no prediction of kernels: a request of a service, or a program that was measured.

    Attributes:
        latency_s: Seconds.
        power_w: Watts; None where unknown.
        energy_j: Joules; None likewise.
    """

    latency_s: Interval
    power_w: Interval | None
    energy_j: Interval | None


@dataclass(frozen=True, slots=True)
class CapPoint:
    """A run under one setting.

    Attributes:
        power_limit_w: The limit; None: the board's own.
        clock_hz: The locked clock; None: none.
        latency_s: Seconds of the run.
        power_w: Watts.
        energy_j: Joules.
        time: Time over that of the default.
        energy: Energy over that of the default.
        servers: Servers under the budget; None without one.
        throughput: Runs per second of all these over those of as many as fit by default; None without a budget.
    """

    power_limit_w: float | None
    clock_hz: float | None
    latency_s: Interval
    power_w: Interval
    energy_j: Interval
    time: float
    energy: float
    servers: int | None = None
    throughput: float | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """Power that servers of a rack share.

    Attributes:
        budget_w: All of it, in watts.
        gpus: GPUs of a server.
        host_w: What a server draws beside its GPUs.
    """

    budget_w: float
    gpus: int = 8
    host_w: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("budget_w", 0.0), ("gpus", 1.0), ("host_w", 0.0)):
            value = getattr(self, name)
            if not math.isfinite(value) or value < least or (name == "budget_w" and not value):
                wanted = "more than 0" if name == "budget_w" else f"at least {least:g}"
                raise SpecError(f"{name} must be {wanted}, got {value:g}", field=name)

    def servers(self, limit_w: float) -> int:
        """Servers whose GPUs may all draw the limit."""
        return int(self.budget_w // (self.gpus * limit_w + self.host_w))


@dataclass(frozen=True, slots=True)
class BestCap:
    """The most efficient setting, and the curves it is chosen from.

    Attributes:
        device: Catalogue name of the device.
        slowdown: Longest time accepted over that of the default, less 1; None: any.
        best: The point of least energy among those accepted; by a budget, of most throughput.
        usual: The default.
        limits: Points of power limits, rising; the last is the default.
        clocks: Points of locked clocks, rising.
    """

    device: str
    slowdown: float | None
    best: CapPoint
    usual: CapPoint
    limits: tuple[CapPoint, ...]
    clocks: tuple[CapPoint, ...]


def best_cap(
    cost: Callable[[PowerSetting | None], Cost], device: Device, *, slowdown: float | None = None,
    budget: Budget | None = None,
) -> BestCap:  # fmt: skip
    """The most efficient setting of a device for what costs `cost` under a setting.

    Args:
        cost: a run under a setting; None: by default.
        device: the device.
        slowdown: longest time accepted over that of the default, less 1 (0.05: 5 % longer); None: any.
        budget: power that servers share: then limits alone are compared, by throughput.

    Raises:
        SpecError: the device has no power limit to set, the power of the run is unknown, `slowdown` is negative, or no server
            fits the budget.
    """
    if slowdown is not None and not 0 <= slowdown < math.inf:
        raise SpecError(f"slowdown must be at least 0, such as 0.05 or 5%, got {slowdown:g}", field="slowdown")
    board = Board.of(device)
    limits = [PowerSetting(value) for value in steps(board.idle_w, board.limit_w, _NICE_W)]
    clocks = [PowerSetting(None, value) for value in steps(LEAST_CLOCK * board.boost_hz, board.boost_hz, _NICE_HZ)]
    default = cost(None)
    if default.power_w is None or default.energy_j is None:
        raise SpecError(
            f"the power of this run on {device.name} is unknown, so no setting can be chosen", field="device"
        )
    usual = _point(None, default, default)
    by_limit, by_clock = (
        tuple(_point(setting, cost(setting), default) for setting in some) for some in (limits, clocks)
    )
    accepted = math.inf if slowdown is None else 1 + slowdown
    if budget is not None:
        by_limit = _under_budget(by_limit, budget, board)
        fitting = [point for point in by_limit if point.servers and point.time <= accepted]
        if not fitting:
            least_w = budget.gpus * (by_limit[0].power_limit_w or board.limit_w) + budget.host_w
            raise SpecError(
                f"budget_w is {budget.budget_w:g}, too little for a server at a limit whose slowdown is accepted; one of "
                f"{budget.gpus} GPUs takes {least_w:g} W at the lowest limit; give more, or accept more slowdown",
                field="budget_w",
            )
        # Of those that give as much, the one that saves most.
        best = max(fitting, key=lambda point: (round(point.throughput or 0.0, 3), -point.energy))
        return BestCap(device.name, slowdown, best, usual, by_limit, ())
    choices = [min((p for p in some if p.time <= accepted), key=lambda p: p.energy) for some in (by_limit, by_clock)]
    best = choices[0] if choices[0].energy <= _NEARLY * choices[1].energy else choices[1]
    return BestCap(device.name, slowdown, usual if best.energy >= 1 else best, usual, by_limit, by_clock)


def _point(setting: PowerSetting | None, run: Cost, default: Cost) -> CapPoint:
    limit_w, clock_hz = (None, None) if setting is None else (setting.power_limit_w, setting.clock_hz)
    assert run.power_w is not None and run.energy_j is not None and default.energy_j is not None  # noqa: S101, PT018
    time, energy = run.latency_s.value / default.latency_s.value, run.energy_j.value / default.energy_j.value
    return CapPoint(limit_w, clock_hz, run.latency_s, run.power_w, run.energy_j, time, energy)


def _under_budget(points: Sequence[CapPoint], budget: Budget, board: Board) -> tuple[CapPoint, ...]:
    # By default servers are counted with the power that their boards may draw.
    usual = budget.budget_w / (budget.gpus * board.limit_w + budget.host_w)
    counts = [budget.servers(point.power_limit_w or board.limit_w) for point in points]
    whole = max(math.floor(usual), 1)
    return tuple(
        replace(point, servers=servers, throughput=servers / point.time / whole)
        for point, servers in zip(points, counts, strict=True)
    )


def steps(low: float, high: float, nice: Sequence[float]) -> list[float]:
    """Whole multiples of the largest of `nice` that gives at least `_POINTS` values from `low` to `high`, with `high`."""
    step = max((size for size in nice if (high - low) / size >= _POINTS), default=nice[0])
    values = (step * np.arange(math.ceil(low / step), math.floor(high / step) + 1)).tolist()
    return values if values and values[-1] == high else [*values, high]


def measured_cost(time_s: float, power_w: float, device: Device) -> Callable[[PowerSetting | None], Cost]:
    """The cost of a whole program under settings, from its time and mean power by default, measured.

    Raises:
        SpecError: a number is not positive, or the power not between what the board draws idle and its limit.
    """
    board = Board.of(device)
    for name, value in (("time_s", time_s), ("power_w", power_w)):
        if not math.isfinite(value) or value <= 0:
            raise SpecError(f"{name} must be positive, got {value:g}", field=name)
    if power_w > 1.05 * board.limit_w:
        raise SpecError(f"power_w is {power_w:g} W, above the {board.limit_w:g} W of {device.name}", field="power_w")

    def cost(setting: PowerSetting | None) -> Cost:
        clock = 1.0 if setting is None or setting.clock_hz is None else setting.clock_hz / board.boost_hz
        limit_w = board.limit_w if setting is None or setting.power_limit_w is None else setting.power_limit_w
        if setting is None or (clock == 1 and limit_w == board.limit_w):
            time, drawn_w, half = 1.0, power_w, 0.0
        else:
            answer = program_response(power_w, board, limit_w, clock)
            time, drawn_w = float(answer.time), float(answer.power_w)
            half = NormalDist().inv_cdf((1 + _COVERAGE) / 2) * float(log_error(time))
        runs = (time_s * time, drawn_w, time_s * time * drawn_w)
        return RunCost(*(Interval(value, value * math.exp(-half), value * math.exp(half)) for value in runs))

    return cost
