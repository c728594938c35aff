"""Charts of predictions beside measurements as inline SVG: parity, residuals, shares by error, error by size.

Every function returns one `<svg>` element as text. Data are plain numbers in SI units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .scoring import APE_EDGES_PCT, Plot
from .svg import (
    BASE,
    END,
    HEIGHT,
    LEFT,
    TOP,
    LinearAxis,
    LogAxis,
    Point,
    circle,
    clipped,
    dots,
    grid,
    line,
    svg,
    text,
    ticks_of,
)

_FACTORS = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1e3, 1e4)
"""Where a residual chart may have grid lines, each way from the measurement."""

_APART = 0.22
"""Grid lines of a residual chart are at least this share of half its height apart, so that their words do not touch."""

_LEAST_APE_PCT = 0.05
"""Smaller errors are drawn here: a logarithm has no zero."""


def parity(plot: Plot) -> str:
    """Predicted against measured, both logarithmic, with the line of equality and the ±10 % band."""
    both = (*plot.measured, *plot.predicted)
    x = LogAxis.of(both, LEFT, END)
    y = LogAxis.of(both, BASE, TOP)
    ends = [10**x.low, 10**x.high]
    band = [(x(ends[0]), y(ends[0] * 0.9)), (x(ends[1]), y(ends[1] * 0.9)),
            (x(ends[1]), y(ends[1] * 1.1)), (x(ends[0]), y(ends[0] * 1.1))]  # fmt: skip
    parts = [
        f'<path class="band" d="{line(band)}z"/>',
        f'<path class="equal" d="{line([(x(end), y(end)) for end in ends])}"/>',
        *_points(plot, [(x(a), y(b)) for a, b in zip(plot.measured, plot.predicted, strict=True)]),
    ]
    lines = grid(x, y, ticks_of(x, plot.target), ticks_of(y, plot.target), ("measured", "predicted"))
    return svg([lines, clipped(parts, f"parity-{plot.family}-{plot.target}")],
               f"{plot.family}: predicted against measured {plot.target}, {len(plot.measured)} rows")  # fmt: skip


def residual(plot: Plot) -> str:
    """Signed error ln(predicted / measured) against the predicted value, with its median and middle 80 % by half decade.

    A flat median at zero means no bias that depends on size. The error stands against what is predicted, not against
    what was measured: noise alone slopes the latter. Points beyond the axis are drawn on its edge.
    """
    errors = [math.log(b / a) for a, b in zip(plot.measured, plot.predicted, strict=True)]
    ordered = sorted(abs(error) for error in errors)
    most = max(ordered[int(0.98 * (len(ordered) - 1))], math.log(1.1)) * 1.15
    x = LogAxis.of([edge for one in plot.bias for edge in (one.low, one.high)], LEFT, END)
    y = LinearAxis(-most, most, BASE, TOP)
    ticks = [(0.0, "0"), *((way * math.log(one), _ratio(one, way)) for one in _lines(most) for way in (1, -1))]
    middles = [x(math.sqrt(one.low * one.high)) for one in plot.bias]
    held = [[min(max(value, -most), most) for value in (one.p10, one.median, one.p90)] for one in plot.bias]
    spread = [*((a, y(p10)) for a, (p10, _, _) in zip(middles, held, strict=True)),
              *((a, y(p90)) for a, (_, _, p90) in reversed(list(zip(middles, held, strict=True))))]  # fmt: skip
    median = [(a, y(value)) for a, (_, value, _) in zip(middles, held, strict=True)]
    places = [(x(b), y(min(max(e, -most), most))) for b, e in zip(plot.predicted, errors, strict=True)]
    parts = [
        f'<path class="equal" d="M{LEFT} {y(0):.1f}H{END}"/>',
        *_points(plot, places),
        f'<path class="band" d="{line(spread)}z"/>',
        f'<path class="line bias" d="{line(median)}"/>',
        *(circle(at, "bias", f"{one.n} rows: median {_signed(one.median)}, middle 80 % from {_signed(one.p10)} to "
                             f"{_signed(one.p90)}") for at, one in zip(median, plot.bias, strict=True)),
    ]  # fmt: skip
    lines = grid(x, y, ticks_of(x, plot.target), ticks, ("predicted", "predicted over measured"))
    return svg([lines, clipped(parts, f"residual-{plot.family}-{plot.target}")],
               f"{plot.family}: signed error of {plot.target} against its prediction")  # fmt: skip


def histogram(plot: Plot) -> str:
    """Share of rows by absolute percentage error."""
    total = max(sum(plot.ape_counts), 1)
    shares = [count / total for count in plot.ape_counts]
    edges = [f"{edge:g}" for edge in APE_EDGES_PCT]
    words = [f"<{edges[0]}", *(f"–{edge}" for edge in edges[1:]), f">{edges[-1]}"]
    top = max(*shares, 0.01) * 1.12
    step = (END - LEFT) / len(shares)
    parts = []
    for share in _round_steps(top):
        at = BASE - share / top * (BASE - TOP)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{END}"/>')
        parts.append(text(LEFT - 6, at + 4, f"{share * 100:.0f} %", "end"))
    for i, (share, word, count) in enumerate(zip(shares, words, plot.ape_counts, strict=True)):
        height = share / top * (BASE - TOP)
        left = LEFT + i * step
        parts.append(f'<rect class="bar{"" if i <= APE_EDGES_PCT.index(10.0) else " bad"}" x="{left + 2:.1f}" '
                     f'y="{BASE - height:.1f}" width="{step - 4:.1f}" height="{height:.1f}"><title>{count} rows, '
                     f"{share * 100:.1f} %</title></rect>")  # fmt: skip
        parts.append(text(left + step / 2, BASE + 15, word, "middle"))
    parts.append(text((LEFT + END) / 2, HEIGHT - 6, "absolute error, %", "middle", "axis"))
    return svg(parts, f"{plot.family}: share of rows by error")


def error_by_size(plot: Plot) -> str:
    """Median and 90th percentile of the error against the measured value, by half decade."""
    bins = plot.by_size
    x = LogAxis.of([edge for one in bins for edge in (one.low, one.high)], LEFT, END)
    errors = [max(value, _LEAST_APE_PCT) for one in bins for value in (one.median_ape_pct, one.p90_ape_pct)]
    y = LogAxis.of([*errors, 1.0, 20.0], BASE, TOP)
    parts = [grid(x, y, ticks_of(x, plot.target), ticks_of(y, "percent"), ("measured", "absolute error"))]
    for kind, name in (("p90", "p90_ape_pct"), ("median", "median_ape_pct")):
        points = [(x(math.sqrt(one.low * one.high)), y(max(getattr(one, name), _LEAST_APE_PCT))) for one in bins]
        parts.append(f'<path class="line {kind}" d="{line(points)}"/>')
        parts += [circle(at, kind, f"{one.n} rows: median {one.median_ape_pct:.1f} %, 90th percentile "
                                   f"{one.p90_ape_pct:.1f} %") for at, one in zip(points, bins, strict=True)]  # fmt: skip
    return svg(parts, f"{plot.family}: error against size")


def _points(plot: Plot, places: Sequence[Point]) -> list[str]:
    return [dots([at for at, unseen in zip(places, plot.unseen, strict=True) if unseen == wanted], kind)
            for kind, wanted in (("seen", False), ("unseen", True))]  # fmt: skip


def _lines(most: float) -> list[float]:
    """Factors with a grid line, from the largest that fits (`most` is its logarithm's bound) down to the first near zero."""
    chosen: list[float] = []
    last = most * (1 + _APART)
    for factor in reversed(_FACTORS):
        at = math.log(factor)
        if at < most and last - at >= _APART * most and at >= _APART * most:
            chosen.append(factor)
            last = at
    return chosen


def _ratio(factor: float, way: int) -> str:
    """The words of a grid line: as a percentage while that is easily read, as a factor beyond."""
    if factor < 2:
        return f"{'+' if way > 0 else '−'}{((factor if way > 0 else 1 - 1 / factor) - (way > 0)) * 100:.0f} %"
    return f"{'×' if way > 0 else '÷'}{factor:g}"


def _signed(log_error: float) -> str:
    return f"{math.expm1(log_error) * 100:+.1f} %"


def _round_steps(top: float) -> list[float]:
    step = next(step for step in (0.02, 0.05, 0.1, 0.2, 0.5) if top / step <= 6)
    return [i * step for i in range(int(top / step) + 1)]
