"""What reports are made of: charts as inline SVG, and one HTML page that needs nothing else, without scripts, light and dark.

Colours are the page's: every mark has a class for the style sheet (`report.css`). Nothing is drawn outside the axes: what lies
beyond them is drawn on their edge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from ...features.errors import SpecError
from ...files import write_whole

UNITS = {"latency_s": "s", "power_w": "W", "energy_j": "J", "seconds": "s", "count": ""}
_PREFIXES = {-9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M"}
_TOP, _RIGHT, _BOTTOM, _LEFT = 12, 12, 40, 58
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


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a chart.

    Attributes:
        name: What it shows; empty for none.
        low: Value at the left or lower end.
        high: Value at the other end; may be the smaller one.
        ticks: Labelled values.
        log: Whether the scale is logarithmic.
    """

    name: str
    low: float
    high: float
    ticks: Ticks
    log: bool = False

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

    def share(self, value: float) -> float:
        """Where a value lies, from 0 at `low` to 1 at `high`; values beyond an end lie on it."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, 1e-300))
        return min(max((value - low) / (high - low), 0.0), 1.0)


class Chart:
    """A chart that is drawn mark by mark; coordinates of all marks are values on its axes."""

    def __init__(self, x: Axis, y: Axis, label: str, *, width: int = 340, height: int = 300) -> None:
        """Draw the axes.

        Args:
            x: the horizontal axis.
            y: the vertical axis.
            label: what the chart shows, for readers who cannot see it.
            width: of all in pixels.
            height: of all in pixels.
        """
        self._x, self._y, self._right, self._base = x, y, width - _RIGHT, height - _BOTTOM
        self._parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">']
        for value, word in x.ticks:
            self._add(f'<path class="grid" d="M{self._across(value):.1f} {_TOP}V{self._base}"/>')
            self.text(self._across(value), self._base + 15, word)
        for value, word in y.ticks:
            self._add(f'<path class="grid" d="M{_LEFT} {self._up(value):.1f}H{self._right}"/>')
            self.text(_LEFT - 6, self._up(value) + 4, word, "end")
        self.text((_LEFT + self._right) / 2, height - 6, x.name, kind="axis")
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

    def svg(self) -> str:
        """The chart so far as one element."""
        return "".join([*self._parts, "</svg>"])

    def _add(self, part: str) -> None:
        self._parts.append(part)

    def _across(self, value: float) -> float:
        return _LEFT + self._x.share(value) * (self._right - _LEFT)

    def _up(self, value: float) -> float:
        return self._base - self._y.share(value) * (self._base - _TOP)


TARGETS = {"latency_s": "latency", "power_w": "power", "energy_j": "energy"}
"""What targets are called."""

_STYLE = Path(__file__).with_name("report.css")


def style() -> str:
    """The style sheet of charts."""
    return _STYLE.read_text(encoding="utf-8")


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page of sections."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · kernelcast</title>"
        f"<style>{style()}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def head(title: str, facts: Mapping[str, object], notes: Iterable[str]) -> str:
    """The top of a page: what was looked at, and what a reader must know."""
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(words(value))}</dd></div>" for name, value in facts.items()
    )
    remarks = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    return f"<header><p class=brand>kernelcast</p><h1>{escape(title)}</h1><dl>{items}</dl>{remarks}</header>"


def words(value: object) -> str:
    """A fact in words; whole numbers with separators, mappings as pairs."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {words(part)}" for name, part in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def figures(charts: Iterable[tuple[str, str]]) -> str:
    """Charts side by side, each an SVG and its caption (which may hold marks of its own)."""
    drawn = "".join(f"<figure>{svg}<figcaption>{text}</figcaption></figure>" for svg, text in charts)
    return f"<div class=plots>{drawn}</div>"


def table(heads: Iterable[str], body: Iterable[str], kind: str = "") -> str:
    """A table of rows that are already marked up, in a box of its own that scrolls on a narrow screen."""
    titles = "".join(f"<th>{escape(title)}</th>" for title in heads)
    mark = f" class={kind}" if kind else ""
    return (
        f"<div class=scroll><table{mark}><thead><tr>{titles}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def percent(value: float | None, digits: int = 1) -> str:
    """A percentage, or a dash where there is none."""
    return "–" if value is None else f"{value:,.{digits}f} %"


def write_page(html: str, path: Path) -> None:
    """Write a page to `path`, replacing what was there only once the whole file is on disk.

    Raises:
        SpecError: `path` cannot be written.
    """
    try:
        write_whole(path, html)
    except OSError as error:
        raise SpecError(f"cannot write the report {path}: {error.strerror or error}", field="html") from error
