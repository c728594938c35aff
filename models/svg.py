"""What every chart is drawn with: axes, grids, lines and words as SVG text, colours left to the report's style sheet.

Data are plain numbers in SI units; `percent` stands as the target of a share or an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

UNITS = {"latency_s": "s", "power_w": "W", "energy_j": "J", "seconds": "s", "count": ""}
_PREFIXES = {-9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M"}
WIDTH, HEIGHT = 340, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 40
BASE, END = HEIGHT - BOTTOM, WIDTH - RIGHT
"""Pixels of the lower and the right edge of what is plotted."""

Point = tuple[float, float]


def quantity(value: float, target: str) -> str:
    """A value in the target's SI unit, short and for people: `1.2e-5` seconds as `12 µs`."""
    if target == "percent":
        return f"{value:g} %"
    power = 3 * math.floor(math.log10(value) / 3 + 1e-9)
    # A count has no thousandths, and a second no thousands.
    least, most = (0 if target == "count" else min(_PREFIXES)), (0 if target == "seconds" else max(_PREFIXES))
    power = min(max(power, least), most)
    return f"{value / 10.0**power:.4g} {_PREFIXES[power]}{UNITS[target]}".strip()


@dataclass(frozen=True, slots=True)
class LogAxis:
    """Decades from `low` to `high` (logarithms to base 10) laid out from pixel `start` to pixel `end`."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def of(cls, values: Iterable[float], start: float, end: float) -> LogAxis:
        """The axis that holds all of the (positive) values, with some room on either side."""
        logs = [math.log10(value) for value in values]
        low, high = min(logs), max(logs)
        pad = max(0.04 * (high - low), 0.1)
        return cls(low - pad, high + pad, start, end)

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + (math.log10(value) - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round values: every decade, every few where there are many, with 2 and 5 in between where there are few."""
        decades = range(math.ceil(self.low), math.floor(self.high) + 1)
        if len(decades) >= 3:
            step = math.ceil(len(decades) / 6)
            return [10.0**decade for decade in decades if decade % step == 0]
        found = [m * 10.0**d for d in range(math.floor(self.low), math.ceil(self.high) + 1) for m in (1, 2, 5)]
        return [value for value in found if self.low <= math.log10(value) <= self.high]


@dataclass(frozen=True, slots=True)
class LinearAxis:
    """Values from `low` to `high` laid out from pixel `start` to pixel `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def grid(
    x: Callable[[float], float],
    y: Callable[[float], float],
    x_ticks: Iterable[tuple[float, str]],
    y_ticks: Iterable[tuple[float, str]],
    names: tuple[str, str],
) -> str:
    """Grid lines at the ticks (value and word) and the names of both axes."""
    parts = []
    for value, word in x_ticks:
        parts.append(f'<path class="grid" d="M{x(value):.1f} {TOP}V{BASE}"/>')
        parts.append(text(x(value), BASE + 15, word, "middle"))
    for value, word in y_ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {y(value):.1f}H{END}"/>')
        parts.append(text(LEFT - 6, y(value) + 4, word, "end"))
    parts.append(text((LEFT + END) / 2, HEIGHT - 6, names[0], "middle", "axis"))
    turned = f'transform="translate(11 {(TOP + BASE) / 2}) rotate(-90)"'
    parts.append(f'<text class="axis" text-anchor="middle" {turned}>{escape(names[1])}</text>')
    return "".join(parts)


def ticks_of(axis: LogAxis, target: str) -> list[tuple[float, str]]:
    """An axis's ticks with their words."""
    return [(value, quantity(value, target)) for value in axis.ticks()]


def clipped(parts: Sequence[str], name: str) -> str:
    """Parts of which nothing shows outside the plotted area; `name` must be one of its kind on the page."""
    box = f'<rect x="{LEFT}" y="{TOP}" width="{END - LEFT}" height="{BASE - TOP}"/>'
    found = "".join(parts)
    return f'<clipPath id="{escape(name)}">{box}</clipPath><g clip-path="url(#{escape(name)})">{found}</g>'


def dots(points: Iterable[Point], kind: str) -> str:
    """Many small points as one path."""
    return f'<path class="points {kind}" d="{"".join(f"M{a:.1f} {b:.1f}h0" for a, b in points)}"/>'


def line(points: Sequence[Point]) -> str:
    """The path through points."""
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)


def text(x: float, y: float, words: str, anchor: str, kind: str = "tick") -> str:
    """Words at a place."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def circle(at: Point, kind: str, title: str) -> str:
    """A dot that tells its figures when pointed at."""
    return f'<circle class="dot {kind}" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="3"><title>{escape(title)}</title></circle>'


def svg(parts: Sequence[str], label: str) -> str:
    """One chart of the usual size."""
    found = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{found}</svg>'
