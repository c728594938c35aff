"""Charts of nights side by side, as inline SVG: errors of the served model, rows measured, sentinels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from statistics import median

from ..models.svg import BASE, END, LEFT, TOP, LinearAxis, circle, clipped, dots, grid, line, svg

MOST_NIGHTS = 60
_WORDS = 5
"""Nights that are named on the axis."""
_LEAST_MOVE_PCT = 5.0
"""Sentinels are drawn to at least this far each way, so that noise does not look like drift."""
_MOST_MOVE_PCT = 100.0


def errors_by_night(names: Sequence[str], errors: Sequence[float | None]) -> str:
    """Mean error of the served model on each night's rows, in percent; nights without one are left out."""
    known = [error for error in errors if error is not None]
    if not known:
        return ""
    x, y = _nights(len(names)), LinearAxis(0.0, max(max(known) * 1.15, 1.0), BASE, TOP)
    points = [((x(i), y(error)), names[i], error) for i, error in enumerate(errors) if error is not None]
    ticks = [(value, f"{value:g} %") for value in _steps(y.high)]
    parts = [
        grid(x, y, _named(names), ticks, ("night", "mean error")),
        f'<path class="line median" d="{line([at for at, _, _ in points])}"/>',
        *(circle(at, "median", f"{name}: {error:.1f} %") for at, name, error in points),
    ]
    return svg(parts, f"Mean error of the served model by night, {len(points)} nights")


def rows_by_night(names: Sequence[str], good: Sequence[float], other: Sequence[float]) -> str:
    """Rows measured each night: those that are fine, and on top of them the others."""
    most = max((a + b for a, b in zip(good, other, strict=True)), default=0.0)
    if not most:
        return ""
    x, y = _nights(len(names)), LinearAxis(0.0, max(most * 1.1, 1.0), BASE, TOP)
    width = max(1.0, 0.7 * (END - LEFT) / max(len(names), 2))
    parts = [grid(x, y, _named(names), [(value, f"{value:g}") for value in _steps(y.high)], ("night", "rows"))]
    for i, (ok, bad) in enumerate(zip(good, other, strict=True)):
        for kind, low, high in (("bar", 0.0, ok), ("bar bad", ok, ok + bad)):
            if high > low:
                parts.append(
                    f'<rect class="{kind}" x="{x(i) - width / 2:.1f}" y="{y(high):.1f}" width="{width:.1f}" '
                    f'height="{y(low) - y(high):.1f}"><title>{_title(names[i], ok, bad)}</title></rect>'
                )
    return svg(parts, f"Rows measured by night, {len(names)} nights")


def sentinels_by_night(names: Sequence[str], ratios: Sequence[Mapping[str, float]]) -> str:
    """Every sentinel's time against what was expected of it, in percent, and their median; further off is drawn at the edge."""
    moves = [[_percent(ratio) for ratio in night.values()] for night in ratios]
    drawn = [move for night in moves for move in night]
    if not drawn:
        return ""
    most = min(max(_LEAST_MOVE_PCT, *(abs(move) * 1.15 for move in drawn)), _MOST_MOVE_PCT)
    x, y = _nights(len(names)), LinearAxis(-most, most, BASE, TOP)
    points = [(x(i), y(min(max(move, -most), most))) for i, night in enumerate(moves) for move in night]
    middles = [((x(i), y(min(max(median(night), -most), most))), names[i], median(night), len(night))
               for i, night in enumerate(moves) if night]  # fmt: skip
    steps = [step for step in _steps(most) if step]
    ticks = [(0.0, "0 %"), *((way * step, f"{way * step:+g} %") for step in steps for way in (1, -1))]
    marks = [
        f'<path class="equal" d="M{LEFT} {y(0):.1f}H{END}"/>',
        dots(points, "seen"),
        f'<path class="line bias" d="{line([at for at, _, _, _ in middles])}"/>',
        *(circle(at, "bias", f"{name}: median of {n} {move:+.1f} %") for at, name, move, n in middles),
    ]
    return svg(
        [grid(x, y, _named(names), ticks, ("night", "slower than expected")), clipped(marks, "sentinels")],
        f"Sentinels against what was expected of them, {len(middles)} nights",
    )


def _nights(n: int) -> LinearAxis:
    return LinearAxis(-0.6, max(n - 1, 0) + 0.6, LEFT, END)


def _named(names: Sequence[str]) -> list[tuple[float, str]]:
    """A few of the nights, the newest among them."""
    step = max(1, math.ceil(len(names) / _WORDS))
    return [(float(i), names[i]) for i in range(len(names) - 1, -1, -step)]


def _steps(top: float) -> list[float]:
    """Round values from zero up to `top`, six at most."""
    raw = top / 5
    power: float = 10.0 ** math.floor(math.log10(raw))
    step = next(one * power for one in (1, 2, 5, 10) if one * power >= raw)
    return [round(i * step, 12) for i in range(int(top / step) + 1)]


def _percent(ratio: float) -> float:
    return 100.0 * (ratio - 1.0)


def _title(name: str, good: float, other: float) -> str:
    return escape(f"{name}: {good:g} rows" + (f", {other:g} of another status" if other else ""))
