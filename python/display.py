"""Answers as lines of text, and as HTML with a bar for each interval, for notebooks.

Bars are inline SVG in the colour of the text, so that they are readable on light and dark pages. Nothing is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from ..models.predict.prediction import Interval
from ..workloads.units import joules, seconds, watts

_WIDTH, _HEIGHT, _EDGE = 180.0, 14.0, 6.0
_LEAST_SPAN = math.log(1.25)
"""Narrower intervals than a quarter are not drawn across the whole bar: they would look wide."""
_SHOWN = 30
"""Rows of a table that are shown; it can be iterated and made a DataFrame."""

_UNITS: dict[str, tuple[str, Callable[[float], str]]] = {
    "latency_s": ("latency", seconds), "power_w": ("power", watts), "energy_j": ("energy", joules),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """A named value with its interval.

    Attributes:
        name: What it is.
        interval: The value; None where it is unknown.
        words: Writes a number with its unit.
    """

    name: str
    interval: Interval | None
    words: Callable[[float], str]

    @classmethod
    def of(cls, target: str, interval: Interval | None) -> Line:
        """The line of a predicted target, such as `latency_s`."""
        name, words = _UNITS[target]
        return cls(name, interval, words)

    def cells(self) -> tuple[str, str, str]:
        """Name, value and interval in words."""
        if self.interval is None:
            return self.name, "unknown", ""
        value, lower, upper = (
            self.words(end) for end in (self.interval.value, self.interval.lower, self.interval.upper)
        )
        return self.name, value, f"{lower} to {upper}"


def text_lines(title: str, lines: Sequence[Line], facts: Iterable[str]) -> str:
    """A title, a line for each value, and what else there is to know."""
    return "\n".join([title, *_aligned([line.cells() for line in lines]), *(f"  {fact}" for fact in facts)])


def html_lines(title: str, lines: Sequence[Line], facts: Iterable[str]) -> str:
    """The same as HTML; bars show how far the ends are from the value, all on one scale of ratios."""
    known = [line.interval for line in lines if line.interval is not None]
    relative = [item / item.value for item in known if item.value > 0]
    span = _span(relative)
    body = []
    for line in lines:
        interval = line.interval
        bar = "" if interval is None or interval.value <= 0 else _bar(interval / interval.value, span, line.cells()[2])
        body.append((*map(escape, line.cells()), bar))
    return _table(title, (), body, facts)


def text_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], facts: Iterable[str] = ()) -> str:
    """A title, a line of heads and one for each row, the first `_SHOWN` of them."""
    more = [f"  … {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
    return "\n".join([title, *_aligned([heads, *rows[:_SHOWN]]), *more, *(f"  {fact}" for fact in facts)])


def html_table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], intervals: Sequence[Interval | None] = (),
    facts: Iterable[str] = (),
) -> str:  # fmt: skip
    """The same as HTML; rows with intervals have a bar of each, all on one logarithmic scale."""
    known = [item for item in intervals if item is not None and item.lower > 0]
    body = [tuple(map(escape, row)) for row in rows[:_SHOWN]]
    if known:
        span = _span(known)
        bars = ["" if item is None or item.lower <= 0 else _bar(item, span, repr(item)) for item in intervals]
        body = [(*row, bar) for row, bar in zip(body, bars, strict=False)]
        heads = (*heads, "")
    more = [f"{len(rows) - _SHOWN} more rows"] if len(rows) > _SHOWN else []
    return _table(title, heads, body, [*more, *facts])


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
    return [
        "  " + "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _span(intervals: Sequence[Interval]) -> tuple[float, float]:
    """Ln of the ends of an axis on which all intervals are."""
    low = min((math.log(max(item.lower, item.value * 1e-3)) for item in intervals), default=0.0)
    high = max((math.log(item.upper) for item in intervals), default=0.0)
    room = max(0.0, _LEAST_SPAN - (high - low)) / 2
    return low - room, high + room


def _bar(interval: Interval, span: tuple[float, float], words: str) -> str:
    low, high = span
    scale = (_WIDTH - 2 * _EDGE) / (high - low)
    ends = (interval.lower, interval.value, interval.upper)
    left, middle, right = (_EDGE + (max(math.log(end), low) - low) * scale if end > 0 else _EDGE for end in ends)
    y = _HEIGHT / 2
    return (
        f'<svg width="{_WIDTH:g}" height="{_HEIGHT:g}" role="img" aria-label="{escape(words)}" style="vertical-align:middle">'
        f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{y:g}" y2="{y:g}" stroke="currentColor" stroke-opacity=".45" '
        f'stroke-width="5"/><circle cx="{middle:.1f}" cy="{y:g}" r="4" fill="currentColor"/></svg>'
    )


def _table(title: str, heads: Sequence[str], body: Sequence[Sequence[str]], facts: Iterable[str]) -> str:
    head = f"<tr>{''.join(f'<th>{escape(word)}</th>' for word in heads)}</tr>" if heads else ""
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in body)
    beneath = "".join(f"<div><small>{escape(fact)}</small></div>" for fact in facts)
    return f"<div><b>{escape(title)}</b><table>{head}{rows}</table>{beneath}</div>"
