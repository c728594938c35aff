"""Charts of intervals as inline SVG: coverage slice by slice, and coverage asked for against coverage found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from .metrics import wilson_pct
from .reliability import Reliability
from .svg import BASE, END, LEFT, TOP, LinearAxis, circle, grid, line, svg, text


def coverage(rows: Sequence[tuple[str, float, int]], wanted: float) -> str:
    """Share of measurements inside their interval, a row per `(name, percent, n)`, with what chance allows.

    The band is `wanted` (percent) ± 2.
    """
    left, width, height_of_row = 330, 860, 19
    low = max(0.0, min([wanted - 20, *(math.floor(share / 10) * 10 for _, share, _ in rows)]))
    height = height_of_row * len(rows) + 34

    def at(percent: float) -> float:
        return left + (percent - low) / (100 - low) * (width - left - 60)

    parts = [f'<rect class="good" x="{at(wanted - 2):.1f}" y="4" width="{at(wanted + 2) - at(wanted - 2):.1f}" '
             f'height="{height - 28}"/>']  # fmt: skip
    for tick in range(int(low), 101, 10):
        parts.append(f'<path class="grid" d="M{at(tick):.1f} 4V{height - 24}"/>')
        parts.append(text(at(tick), height - 8, f"{tick} %", "middle"))
    for i, (name, share, n) in enumerate(rows):
        y = 4 + height_of_row * (i + 0.5)
        least, most = wilson_pct(share, n)
        kind = "in" if abs(share - wanted) <= 2 else "out" if least > wanted + 2 or most < wanted - 2 else "open"
        parts.append(text(left - 10, y + 4, name, "end"))
        parts.append(f'<path class="whisker" d="M{at(max(least, low)):.1f} {y:.1f}H{at(most):.1f}"/>')
        parts.append(circle((at(share), y), kind, f"{share:.1f} % of {n}"))
        parts.append(text(width - 4, y + 4, f"{share:.1f} %", "end"))
    found, label = "".join(parts), "interval coverage by slice"
    return f'<svg class="wide" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">{found}</svg>'


def reliability(curves: Sequence[Reliability]) -> str:
    """Coverage found against coverage asked for, a line for seen and one for unseen devices, with what chance allows.

    On the diagonal intervals hold what they promise; below it they are too narrow, above it too wide.
    """
    shares = [level.covered_pct for curve in curves for level in curve.levels]
    asked = [level.asked_pct for curve in curves for level in curve.levels]
    low = max(0.0, math.floor((min([*shares, *asked]) - 2) / 10) * 10)
    x, y = LinearAxis(min(asked) - 2, 101.0, LEFT, END), LinearAxis(low, 101.0, BASE, TOP)
    step = 10 if low >= 40 else 20
    across = [(float(tick), f"{tick} %") for tick in range(50, 101, 10)]
    up = [(float(tick), f"{tick} %") for tick in range(int(low), 101, step)]
    ends = [(x(value), y(value)) for value in (max(x.low, low), 101.0)]
    parts = [grid(x, y, across, up, ("asked for", "found inside")), f'<path class="equal" d="{line(ends)}"/>']
    for curve in curves:
        kind = "seen" if curve.seen else "unseen"
        points = [(x(level.asked_pct), y(level.covered_pct)) for level in curve.levels]
        for (a, _), level in zip(points, curve.levels, strict=True):
            least, most = wilson_pct(level.covered_pct, curve.n)
            parts.append(f'<path class="whisker" d="M{a:.1f} {y(max(least, low)):.1f}V{y(most):.1f}"/>')
        parts.append(f'<path class="line {kind}" d="{line(points)}"/>')
        parts += [circle(at, kind, f"asked for {level.asked_pct:g} %, found {level.covered_pct:.1f} % of {curve.n}, "
                                   f"median width {level.width_pct:.0f} %")
                  for at, level in zip(points, curve.levels, strict=True)]  # fmt: skip
    return svg(parts, f"{curves[0].family}: coverage found against coverage asked for, {curves[0].target}")
