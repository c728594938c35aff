"""Charts as inline SVG for reports and pages: axes from the data, then points, lines, bands and bars.

Below them those of an evaluation's report: parity, residuals, errors and coverage. Colours are the page's: every mark has a
class for the style sheet (`report.css`). Nothing is drawn outside the axes: what lies beyond them is drawn on their edge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from ..metrics import wilson_pct
from .scoring import APE_EDGES_PCT, Plot, Reliability

UNITS = {"latency_s": "s", "power_w": "W", "energy_j": "J", "seconds": "s", "count": ""}
_PREFIXES = {-9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M"}
_TOP, _RIGHT, _BOTTOM = 12, 12, 40
"""Pixels around the plotted area."""

Point = tuple[float, float]
Ticks = Sequence[tuple[float, str]]
"""Values with a grid line, and their labels."""


def quantity(value: float, unit: str) -> str:
    """A value with its unit, a key of `UNITS` or `percent`, short: `1.2e-5` of `latency_s` is `12 µs`."""
    if unit == "percent":
        return f"{value:g} %"
    power = 3 * math.floor(math.log10(value) / 3 + 1e-9)
    # A count has no thousandths, and a second no thousands.
    least, most = (0 if unit == "count" else min(_PREFIXES)), (0 if unit == "seconds" else max(_PREFIXES))
    power = min(max(power, least), most)
    return f"{value / 10.0**power:.4g} {_PREFIXES[power]}{UNITS[unit]}".strip()


def round_steps(top: float, most: int = 6) -> list[float]:
    """Round values from zero up to `top`, about `most` at most."""
    least_step = top / (most - 1)
    power: float = 10.0 ** math.floor(math.log10(least_step))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least_step)
    return [round(i * step, 12) for i in range(int(top / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a chart.

    Attributes:
        name: What it shows; empty for none.
        low: Value at the left or lower end.
        high: Value at the other end; may be the smaller one.
        ticks: Labelled values.
        log: Whether the scale is logarithmic.
        grid: Whether ticks have grid lines.
    """

    name: str
    low: float
    high: float
    ticks: Ticks
    log: bool = False
    grid: bool = True

    @classmethod
    def logarithmic(cls, name: str, values: Iterable[float], unit: str, least: float = 0.0) -> Axis:
        """An axis that holds all (positive) values with some room; values below `least` count as that."""
        logs = [math.log10(max(value, least)) for value in values]
        pad = max(0.04 * (max(logs) - min(logs)), 0.1)
        low, high = min(logs) - pad, max(logs) + pad
        decades = range(math.ceil(low), math.floor(high) + 1)
        # Every decade, every few where there are many, with 2 and 5 in between where there are few.
        step = math.ceil(len(decades) / 6)
        ticks = [10.0**decade for decade in decades if decade % step == 0]
        if len(decades) < 3:
            every = [m * 10.0**d for d in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)]
            ticks = [value for value in every if low <= math.log10(value) <= high]
        return cls(name, 10.0**low, 10.0**high, [(value, quantity(value, unit)) for value in ticks], log=True)

    @classmethod
    def percent(cls, name: str, high: float, low: float = 0.0) -> Axis:
        """A linear axis of percentages that starts at a multiple of ten, or is the same both ways from zero."""
        steps = round_steps(high - max(low, 0.0))
        signed = low < 0
        values = [*(-step for step in steps[:0:-1]), *steps] if signed else [low + step for step in steps]
        return cls(
            name, low, high, [(value, f"{value:+g} %" if signed and value else f"{value:g} %") for value in values]
        )

    def share(self, value: float) -> float:
        """Where a value lies, from 0 at `low` to 1 at `high`; values beyond an end lie on it."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, 1e-300))
        return min(max((value - low) / (high - low), 0.0), 1.0)


class Chart:
    """A chart that is drawn mark by mark; coordinates of all marks are values on its axes."""

    def __init__(
        self, x: Axis, y: Axis, label: str, *, width: int = 340, height: int = 300, left: int = 58, kind: str = ""
    ) -> None:
        """Draw the axes.

        Args:
            x: the horizontal axis.
            y: the vertical axis.
            label: what the chart shows, for readers who cannot see it.
            width: of all in pixels.
            height: of all in pixels.
            left: pixels for the labels of the vertical axis.
            kind: class of the whole for the style sheet.
        """
        self._x, self._y, self._left, self._right = x, y, left, width - _RIGHT
        self._base = height - _BOTTOM
        mark = f' class="{kind}"' if kind else ""
        self._parts = [f'<svg{mark} viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">']
        for value, word in x.ticks:
            if x.grid:
                self._add(f'<path class="grid" d="M{self._across(value):.1f} {_TOP}V{self._base}"/>')
            self.text(self._across(value), self._base + 15, word)
        for value, word in y.ticks:
            if y.grid:
                self._add(f'<path class="grid" d="M{left} {self._up(value):.1f}H{self._right}"/>')
            self.text(left - 6, self._up(value) + 4, word, "end")
        self.text((left + self._right) / 2, height - 6, x.name, kind="axis")
        if y.name:
            turned = f'transform="translate(11 {(_TOP + self._base) / 2}) rotate(-90)"'
            self._add(f'<text class="axis" text-anchor="middle" {turned}>{escape(y.name)}</text>')

    def text(self, x: float, y: float, words: str, anchor: str = "middle", kind: str = "tick") -> None:
        """Words at a place in pixels."""
        self._add(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>')

    def path(self, points: Iterable[Point], kind: str, *, closed: bool = False) -> None:
        """A line through points, or the area within them."""
        places = "L".join(f"{self._across(x):.1f} {self._up(y):.1f}" for x, y in points)
        self._add(f'<path class="{kind}" d="M{places}{"z" if closed else ""}"/>')

    def line(self, points: Sequence[Point], kind: str, titles: Iterable[str] = ()) -> None:
        """A line through points, and dots on it that show a title when pointed at."""
        self.path(points, f"line {kind}")
        for point, title in zip(points, titles, strict=False):
            self.dot(point, kind, title)

    def band(self, lower: Sequence[Point], upper: Sequence[Point], kind: str = "band") -> None:
        """The area between two lines."""
        self.path([*lower, *reversed(upper)], kind, closed=True)

    def dot(self, point: Point, kind: str, title: str) -> None:
        """A dot that shows a title when pointed at."""
        x, y = self._across(point[0]), self._up(point[1])
        self._add(f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(title)}</title></circle>')

    def points(self, points: Iterable[Point], kind: str) -> None:
        """Many small points as one path."""
        places = "".join(f"M{self._across(x):.1f} {self._up(y):.1f}h0" for x, y in points)
        self._add(f'<path class="points {kind}" d="{places}"/>')

    def box(self, low: Point, high: Point, kind: str, title: str = "") -> None:
        """A bar between two corners."""
        (x, y), (right, top) = ((self._across(point[0]), self._up(point[1])) for point in (low, high))
        self._add(f'<rect class="{kind}" x="{x:.1f}" y="{top:.1f}" width="{right - x:.1f}" height="{y - top:.1f}">'
                  f"<title>{escape(title)}</title></rect>")  # fmt: skip

    def svg(self) -> str:
        """The chart so far as one element."""
        return "".join([*self._parts, "</svg>"])

    def _add(self, part: str) -> None:
        self._parts.append(part)

    def _across(self, value: float) -> float:
        return self._left + self._x.share(value) * (self._right - self._left)

    def _up(self, value: float) -> float:
        return self._base - self._y.share(value) * (self._base - _TOP)


_FACTORS = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1e3, 1e4)
"""Where a residual chart may have grid lines, each way from the measurement."""

_APART = 0.22
"""Least distance of its grid lines as a share of half its height, so that their labels do not touch."""

_LEAST_APE_PCT = 0.05
"""Smaller errors are drawn here: a logarithm has no zero."""


def parity(plot: Plot) -> str:
    """Predicted against measured, both logarithmic, with the line of equality and the ±10 % band."""
    both = (*plot.measured, *plot.predicted)
    x, y = (Axis.logarithmic(name, both, plot.target) for name in ("measured", "predicted"))
    chart = Chart(x, y, f"{plot.family}: predicted against measured {plot.target}, {len(plot.measured)} rows")
    lower, upper = ([(end, end * factor) for end in (x.low, x.high)] for factor in (0.9, 1.1))
    chart.band(lower, upper)
    chart.path([(x.low, x.low), (x.high, x.high)], "equal")
    _points(chart, plot, list(plot.predicted))
    return chart.svg()


def residual(plot: Plot) -> str:
    """Predicted over measured against the predicted value, with its median and middle 80 % by half decade.

    A flat median at 1 means no bias that depends on size. The error stands against what is predicted, not against what was
    measured: noise alone slopes the latter.
    """
    ratios = [b / a for a, b in zip(plot.measured, plot.predicted, strict=True)]
    ordered = sorted(abs(math.log(ratio)) for ratio in ratios)
    most = math.exp(max(ordered[int(0.98 * (len(ordered) - 1))], math.log(1.1)) * 1.15)
    ticks = [(1.0, "0"), *((factor**way, _ratio(factor, way)) for factor in _lines(math.log(most)) for way in (1, -1))]
    x = Axis.logarithmic("predicted", [edge for part in plot.bias for edge in (part.low, part.high)], plot.target)
    y = Axis("predicted over measured", 1 / most, most, ticks, log=True)
    chart = Chart(x, y, f"{plot.family}: signed error of {plot.target} against its prediction")
    chart.path([(x.low, 1.0), (x.high, 1.0)], "equal")
    _points(chart, plot, ratios, across=plot.predicted)
    middles = [math.sqrt(part.low * part.high) for part in plot.bias]
    lower, median, upper = ([(at, math.exp(getattr(part, name))) for at, part in zip(middles, plot.bias, strict=True)]
                            for name in ("p10", "median", "p90"))  # fmt: skip
    chart.band(lower, upper)
    chart.line(median, "bias", (f"{part.n} rows: median {_signed(part.median)}, middle 80 % from {_signed(part.p10)} to "
                                f"{_signed(part.p90)}" for part in plot.bias))  # fmt: skip
    return chart.svg()


def histogram(plot: Plot) -> str:
    """Share of rows by absolute percentage error."""
    total = max(sum(plot.ape_counts), 1)
    edges = [f"{edge:g}" for edge in APE_EDGES_PCT]
    words = [f"<{edges[0]}", *(f"–{edge}" for edge in edges[1:]), f">{edges[-1]}"]
    x = Axis("absolute error, %", 0, len(words), [(i + 0.5, word) for i, word in enumerate(words)], grid=False)
    y = Axis.percent("", max(*plot.ape_counts, 0.01 * total) / total * 112)
    chart = Chart(x, y, f"{plot.family}: share of rows by error")
    for i, count in enumerate(plot.ape_counts):
        kind = "bar" if i <= APE_EDGES_PCT.index(10.0) else "bar bad"
        share = count / total * 100
        chart.box((i + 0.07, 0.0), (i + 0.93, share), kind, f"{count} rows, {share:.1f} %")
    return chart.svg()


def error_by_size(plot: Plot) -> str:
    """Median and 90th percentile of the error against the measured value, by half decade."""
    bins = plot.by_size
    x = Axis.logarithmic("measured", [edge for part in bins for edge in (part.low, part.high)], plot.target)
    errors = [value for part in bins for value in (part.median_ape_pct, part.p90_ape_pct)]
    y = Axis.logarithmic("absolute error", [*errors, 1.0, 20.0], "percent", _LEAST_APE_PCT)
    chart = Chart(x, y, f"{plot.family}: error against size")
    titles = [
        f"{part.n} rows: median {part.median_ape_pct:.1f} %, 90th percentile {part.p90_ape_pct:.1f} %" for part in bins
    ]
    for kind in ("p90", "median"):
        chart.line([(math.sqrt(part.low * part.high), getattr(part, f"{kind}_ape_pct")) for part in bins], kind, titles)
    return chart.svg()


def coverage(rows: Sequence[tuple[str, float, int]], wanted: float) -> str:
    """Share of measurements inside their interval, a row per `(name, percent, n)`, with what chance allows.

    The band is `wanted` (percent) ± 2.
    """
    low = max(0.0, min([wanted - 20, *(math.floor(share / 10) * 10 for _, share, _ in rows)]))
    names = [(float(i), f"{name}  {share:.1f} %") for i, (name, share, _) in enumerate(rows)]
    y = Axis("", len(rows) - 0.5, -0.5, names, grid=False)
    chart = Chart(
        Axis.percent("", 100.0, low), y, "interval coverage by slice", width=860, height=19 * len(rows) + 52, left=380,
        kind="wide",
    )  # fmt: skip
    chart.box((wanted - 2, y.low), (wanted + 2, y.high), "good")
    for i, (_, share, n) in enumerate(rows):
        least, most = wilson_pct(share, n)
        kind = "in" if abs(share - wanted) <= 2 else "out" if least > wanted + 2 or most < wanted - 2 else "open"
        chart.path([(least, i), (most, i)], "whisker")
        chart.dot((share, i), kind, f"{share:.1f} % of {n}")
    return chart.svg()


def reliability(curves: Sequence[Reliability]) -> str:
    """Coverage found against the nominal coverage, a line for seen and one for unseen devices, with what chance allows.

    On the diagonal intervals hold what they promise; below it they are too narrow, above it too wide.
    """
    levels = [level for curve in curves for level in curve.levels]
    nominal = [level.asked_pct for level in levels]
    low = max(0.0, math.floor((min([*(level.covered_pct for level in levels), *nominal]) - 2) / 10) * 10)
    ticks = [(float(tick), f"{tick} %") for tick in range(50, 101, 10)]
    x = Axis("nominal coverage", min(nominal) - 2, 101.0, ticks)
    y = Axis("measured inside", low, 101.0, [(low + step, f"{low + step:g} %") for step in round_steps(100 - low)])
    chart = Chart(x, y, f"{curves[0].family}: coverage found against nominal coverage, {curves[0].target}")
    chart.path([(value, value) for value in (max(x.low, low), 101.0)], "equal")
    for curve in curves:
        for level in curve.levels:
            chart.path([(level.asked_pct, end) for end in wilson_pct(level.covered_pct, curve.n)], "whisker")
        chart.line(
            [(level.asked_pct, level.covered_pct) for level in curve.levels], "seen" if curve.seen else "unseen",
            (f"nominal {level.asked_pct:g} %, found {level.covered_pct:.1f} % of {curve.n}, median width "
             f"{level.width_pct:.0f} %" for level in curve.levels),
        )  # fmt: skip
    return chart.svg()


def _points(chart: Chart, plot: Plot, up: Sequence[float], across: Sequence[float] | None = None) -> None:
    """The rows of a plot, those of devices not seen in training in another colour."""
    places = list(zip(across or plot.measured, up, plot.unseen, strict=True))
    for kind, wanted in (("seen", False), ("unseen", True)):
        chart.points([(x, y) for x, y, unseen in places if unseen == wanted], kind)


def _lines(most: float) -> list[float]:
    """Factors with a grid line, from the largest whose logarithm is below `most` down to the first near zero."""
    chosen: list[float] = []
    last = most * (1 + _APART)
    for factor in reversed(_FACTORS):
        at = math.log(factor)
        if at < most and last - at >= _APART * most and at >= _APART * most:
            chosen.append(factor)
            last = at
    return chosen


def _ratio(factor: float, way: int) -> str:
    """The label of a grid line: a percentage while that is easily read, a factor beyond."""
    if factor < 2:
        return f"{'+' if way > 0 else '−'}{((factor if way > 0 else 1 - 1 / factor) - (way > 0)) * 100:.0f} %"
    return f"{'×' if way > 0 else '÷'}{factor:g}"


def _signed(log_error: float) -> str:
    return f"{math.expm1(log_error) * 100:+.1f} %"
