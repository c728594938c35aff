"""Curves drawn with characters: one mark and colour a curve, dots where it is outside what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

MARKS = "●▲■◆○△□◇"
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "white", "bright_black")
_OUTSIDE = "·"
_HEIGHT, _LABEL = 16, 9
"""Rows of the plot, and cells of the labels at its left."""


@dataclass(frozen=True, slots=True)
class PlottedCurve:
    """A curve.

    Attributes:
        name: Its name in the legend.
        values: A value above 0 per place, None where it is unknown.
        in_domain: Per place, whether the model was trained on cases like it.
    """

    name: str
    values: Sequence[float | None]
    in_domain: Sequence[bool]


def draw(
    curves: Sequence[PlottedCurve], places: Sequence[int], show: Callable[[float], str], width: int, *, log_x: bool
) -> Text:
    """A plot of at most `width` cells with a logarithmic vertical axis, a legend under it.

    Args:
        curves: At most as many as there are `MARKS`, with at least one known value.
        places: Where the values are, rising.
        show: Writes a value with its unit.
        width: Cells of a line.
        log_x: Whether the horizontal axis is logarithmic, for places above 0.
    """
    from rich.text import Text

    known = [value for curve in curves for value in curve.values if value is not None]
    low, high = _widened(math.log(min(known)), math.log(max(known)))
    columns = max(width - _LABEL - 2, 20)
    along = [math.log(place) if log_x else float(place) for place in places]
    cells: list[list[tuple[str, str]]] = [[(" ", "")] * columns for _ in range(_HEIGHT)]
    for number, curve in enumerate(curves):
        for column, value, is_inside in _columns(curve, along, columns):
            row = round((high - value) / (high - low) * (_HEIGHT - 1))
            cells[row][column] = MARKS[number] if is_inside else _OUTSIDE, COLOURS[number]
    plot = Text()
    for row, line in enumerate(cells):
        is_labelled = row in (0, _HEIGHT // 2, _HEIGHT - 1)
        label = show(math.exp(high - row / (_HEIGHT - 1) * (high - low))) if is_labelled else ""
        plot.append(f"{label:>{_LABEL}} {'┤' if is_labelled else '│'}", "dim")
        for char, colour in line:
            plot.append(char, colour)
        plot.append("\n")
    plot.append(f"{'':{_LABEL + 1}}└{'─' * columns}\n", "dim")
    plot.append(f"{'':{_LABEL + 2}}{_ends(places, along, columns)}\n", "dim")
    for number, curve in enumerate(curves):
        plot.append(f"{'':{_LABEL + 2}}{MARKS[number]} ", COLOURS[number]).append(f"{curve.name}\n")
    if not all(is_inside for curve in curves for is_inside in curve.in_domain):
        plot.append(f"{'':{_LABEL + 2}}{_OUTSIDE} outside what was measured\n")
    plot.rstrip()
    return plot


def _widened(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis, apart even where all values are one."""
    return (low, high) if high - low > 1e-9 else (low - 0.5, high + 0.5)


def _columns(curve: PlottedCurve, along: Sequence[float], columns: int) -> list[tuple[int, float, bool]]:
    """Column, logarithm of the value and whether it is in domain, of every column between known values."""
    first, last = _widened(along[0], along[-1])
    points = [
        (round((at - first) / (last - first) * (columns - 1)), math.log(value), is_inside)
        for at, value, is_inside in zip(along, curve.values, curve.in_domain, strict=True)
        if value is not None
    ]
    cells = points[:1]
    for (start, from_value, _), (end, to_value, is_inside) in pairwise(points):
        cells += [
            (column, from_value + (to_value - from_value) * (column - start) / (end - start), is_inside)
            for column in range(start + 1, end + 1)
        ]
    return cells


def _ends(places: Sequence[int], along: Sequence[float], columns: int) -> str:
    """The first and the last place, and one in the middle, under the axis."""
    middle = min(range(len(places)), key=lambda i: abs(along[i] - (along[0] + along[-1]) / 2))
    left, centre, right = f"{places[0]:,}", f"{places[middle]:,}", f"{places[-1]:,}"
    if len(places) < 3:
        return f"{left}{right:>{columns - len(left)}}" if len(places) > 1 else f"{left:^{columns}}"
    return f"{left}{centre:^{columns - len(left) - len(right)}}{right}"
