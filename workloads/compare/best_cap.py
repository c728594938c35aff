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
from pathlib import Path
from statistics import NormalDist
from typing import Protocol

import numpy as np

from ...features.device import Device
from ...features.errors import SpecError
from ...features.kernel import KernelSpec
from ...models.evaluation.charts import Axis, Chart, style, write_page
from ...models.predict.named_impl import check_specs
from ...models.predict.power_cap import prediction_under
from ...models.predict.power_law import LEAST_CLOCK, Board, PowerSetting, log_error, program_response
from ...models.predict.prediction import Interval
from ...models.predict.predictor import ArtifactPredictor
from ..serving.predict import ServingPredictor
from ..serving.request import ServingRequest
from ..whole_model import Kernel, predict_whole

POINTS = 24
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

    def save(self, path: str | Path) -> Path:
        """Write the curves as a picture, an SVG that needs nothing else.

        Raises:
            SpecError: the path does not end in .svg, or cannot be written.
        """
        check_picture(path := Path(path))
        write_page(_picture(self), path)
        return path


CostUnder = Callable[[PowerSetting | None], Cost]
"""The cost of a run under a setting; None: by default."""


def best_cap(
    cost: CostUnder, device: Device, *, slowdown: float | None = None, budget: Budget | None = None, points: int = POINTS,
) -> BestCap:  # fmt: skip
    """The most efficient setting of a device for what costs `cost` under a setting.

    Args:
        cost: a run under a setting; None: by default.
        device: the device.
        slowdown: longest time accepted over that of the default, less 1 (0.05: 5 % longer); None: any.
        budget: power that servers share: then limits alone are compared, by throughput.
        points: fewest limits tried; as many clocks.

    Raises:
        SpecError: the device has no power limit to set, the power of the run is unknown, `slowdown` is negative, or no server
            fits the budget.
    """
    if slowdown is not None and not 0 <= slowdown < math.inf:
        raise SpecError(f"slowdown must be at least 0, such as 0.05 or 5%, got {slowdown:g}", field="slowdown")
    board = Board.of(device)
    limits = [PowerSetting(value) for value in steps(board.idle_w, board.limit_w, _NICE_W, points)]
    low_hz = LEAST_CLOCK * board.boost_hz
    clocks = [PowerSetting(None, value) for value in steps(low_hz, board.boost_hz, _NICE_HZ, points)]
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


def steps(low: float, high: float, nice: Sequence[float], points: int = POINTS) -> list[float]:
    """Whole multiples of the largest of `nice` that gives at least `points` values from `low` to `high`, with `high`."""
    step = max((size for size in nice if (high - low) / size >= points), default=nice[0])
    values = (step * np.arange(math.ceil(low / step), math.floor(high / step) + 1)).tolist()
    return values if values and values[-1] == high else [*values, high]


def kernel_cost(predictor: ArtifactPredictor, spec: KernelSpec, device: Device) -> CostUnder:
    """The cost of one kernel under settings.

    Raises:
        SpecError: the model does not know it.
    """
    check_specs(predictor, [spec])
    usual = predictor.predict([spec], [device.name])[0]
    return lambda setting: prediction_under(usual, device, setting)


def model_cost(predictor: ArtifactPredictor, kernels: Sequence[Kernel], device: Device) -> CostUnder:
    """The cost of kernels one after the other under settings."""
    return lambda setting: predict_whole(predictor.under(setting), kernels, device.name)


def service_cost(service: ServingPredictor, request: ServingRequest) -> CostUnder:
    """The cost of a request of a service under settings: its time from end to end, power of a GPU, energy of all.

    Raises:
        SpecError: the request has a setting of its own.
    """
    if (setting := request.setting) is not None:
        name = "clock_hz" if setting.power_limit_w is None else "power_limit_w"
        raise SpecError(f"{name} is what is chosen here, so it cannot be given; leave it out", field=name)

    def cost(setting: PowerSetting | None) -> Cost:
        answer = service.predict(replace(request, setting=setting))
        return RunCost(answer.e2e_s.mean, answer.power_w, answer.energy_per_request_j)

    return cost


def measured_cost(time_s: float, power_w: float, device: Device) -> CostUnder:
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


_PANEL = 300
"""Pixels of a panel's height; panels stand under each other."""


def check_picture(path: Path) -> None:
    """Refuse a path that is none of a picture, before the work is done.

    Raises:
        SpecError: it does not end in .svg.
    """
    if path.suffix.lower() != ".svg":
        raise SpecError(f"the curves are written as an .svg, got {path.name}", field="out")


def _picture(result: BestCap) -> str:
    """Time and energy over the default's by power limit and by clock, with the interval of the energy."""
    panels = [
        _panel(result, points, name, scale)
        for points, name, scale in ((result.limits, "power limit in W", 1.0), (result.clocks, "clock in MHz", 1e-6))
        if points
    ]
    inner = "".join(
        f'<svg y="{_PANEL * place}" width="520" height="{_PANEL}"{panel.removeprefix("<svg")}'
        for place, panel in enumerate(panels)
    )
    size = f'viewBox="0 0 520 {_PANEL * len(panels)}"'
    rules = f"{style()} svg {{ background: var(--panel); }}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{rules}</style>{inner}</svg>\n'


def _panel(result: BestCap, points: Sequence[CapPoint], name: str, scale: float) -> str:
    places = [scale * (point.power_limit_w or point.clock_hz or 0.0) for point in points]
    usual_j = result.usual.energy_j.value
    ends = [(point.energy_j.lower / usual_j, point.energy_j.upper / usual_j) for point in points]
    most = max(max(point.time for point in points), max(upper for _, upper in ends))
    step = next((size for size in (0.25, 0.5, 1.0) if most / size <= 8), 2.0)
    across = places[:: max(1, len(places) // 6)]
    chart = Chart(
        Axis(name, places[0], places[-1], [(place, f"{place:.0f}") for place in across]),
        Axis("over the default's", 0.0, most, [(k * step, f"{k * step:g}") for k in range(int(most / step) + 1)]),
        f"time and energy over the default's by {name} on {result.device}", width=520, height=_PANEL,
    )  # fmt: skip
    lower, upper = ([(place, end[k]) for place, end in zip(places, ends, strict=True)] for k in (0, 1))
    chart.band(lower, upper)
    for kind, field in (("unseen", "time"), ("seen", "energy")):
        values = [getattr(point, field) for point in points]
        titles = [f"{field} {value:.2f} × at {place:.0f}" for place, value in zip(places, values, strict=True)]
        chart.line(list(zip(places, values, strict=True)), kind, titles)
        chart.text(500, 24 if kind == "unseen" else 40, field, "end", f"tick dot {kind}")
    for place, point in zip(places, points, strict=True):
        if point == result.best:
            chart.text(300, 24, f"best: {place:.0f}, energy {point.energy:.2f} ×, time {point.time:.2f} ×", kind="axis")
    return chart.svg()
