"""Learning curves as inline SVG: errors against rows trained on, or against the seconds it took to measure them."""

from __future__ import annotations

from collections.abc import Callable

from .learning_curve import Band, Curve, CurvePoint
from .svg import BASE, END, LEFT, TOP, LogAxis, circle, grid, line, svg, ticks_of

_LEAST_PCT = 0.05
_KINDS = (("p90", "mean_ape_pct", "mean"), ("median", "median_ape_pct", "median"))
"""Class of the line in the style sheet, field of the point, and word."""


def errors_by_rows(curve: Curve) -> str:
    """Mean and median error against the number of rows trained on, with the band over orders."""
    return _chart(curve, "count", "rows trained on", lambda point: float(point.rows))


def errors_by_seconds(curve: Curve) -> str:
    """Mean and median error against seconds of measuring (the median over orders), with the band over orders."""
    return _chart(curve, "seconds", "seconds of measuring", lambda point: point.seconds.median)


def _chart(curve: Curve, unit: str, name: str, at: Callable[[CurvePoint], float]) -> str:
    bands = [getattr(point, field) for point in curve.points for _, field, _ in _KINDS]
    x = LogAxis.of([at(point) for point in curve.points], LEFT, END)
    y = LogAxis.of([max(end, _LEAST_PCT) for band in bands for end in (band.low, band.high)], BASE, TOP)
    parts = [grid(x, y, ticks_of(x, unit), ticks_of(y, "percent"), (name, "absolute error"))]

    def height(value: float) -> float:
        return y(max(value, _LEAST_PCT))

    for kind, field, word in _KINDS:
        points: list[tuple[float, CurvePoint, Band]] = [(x(at(one)), one, getattr(one, field)) for one in curve.points]
        low, high = [(a, height(band.low)) for a, _, band in points], [(a, height(band.high)) for a, _, band in points]
        middle = [(a, height(band.median)) for a, _, band in points]
        parts.append(f'<path class="spread {kind}" d="{line([*low, *reversed(high)])}z"/>')
        parts.append(f'<path class="line {kind}" d="{line(middle)}"/>')
        parts += [circle(where, kind, f"{one.rows} rows, {one.seconds.median:.0f} s: {word} {band.median:.1f} %, "
                                      f"{band.low:.1f} to {band.high:.1f} %")
                  for where, (_, one, band) in zip(middle, points, strict=True)]  # fmt: skip
    return svg(parts, f"{curve.family}: error of {curve.target} against {name}")
