"""Charts of an evaluation as inline SVG: no script, no outside file; colours come from the report's style sheet.

Every function returns one `<svg>` element as text. Data are plain numbers in SI units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from .metrics import wilson_pct
from .scoring import APE_EDGES_PCT, Plot

_UNITS = {"latency_s": "s", "power_w": "W", "energy_j": "J"}
_PREFIXES = {-9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M"}
_WIDTH, _HEIGHT = 340, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 12, 40


def quantity(value: float, target: str) -> str:
    """A value in the target's SI unit, short and for people: `1.2e-5` seconds as `12 µs`."""
    power = 3 * math.floor(math.log10(value) / 3 + 1e-9)
    power = min(max(power, min(_PREFIXES)), max(_PREFIXES))
    return f"{value / 10.0**power:.3g} {_PREFIXES[power]}{_UNITS[target]}"


@dataclass(frozen=True, slots=True)
class _LogAxis:
    """Decades from `low` to `high` (logarithms to base 10) laid out from pixel `start` to pixel `end`."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def of(cls, values: Iterable[float], start: float, end: float) -> _LogAxis:
        logs = [math.log10(value) for value in values]
        low, high = min(logs), max(logs)
        pad = max(0.04 * (high - low), 0.1)
        return cls(low - pad, high + pad, start, end)

    def __call__(self, value: float) -> float:
        return self.start + (math.log10(value) - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round values: every decade, every few where there are many, with 2 and 5 in between where there are few."""
        decades = range(math.ceil(self.low), math.floor(self.high) + 1)
        if len(decades) >= 3:
            step = math.ceil(len(decades) / 6)
            return [10.0**decade for decade in decades if decade % step == 0]
        found = [m * 10.0**d for d in range(math.floor(self.low), math.ceil(self.high) + 1) for m in (1, 2, 5)]
        return [value for value in found if self.low <= math.log10(value) <= self.high]


def parity(plot: Plot) -> str:
    """Predicted against measured, both logarithmic, with the line of equality and the ±10 % band."""
    both = (*plot.measured, *plot.predicted)
    x = _LogAxis.of(both, _LEFT, _WIDTH - _RIGHT)
    y = _LogAxis.of(both, _HEIGHT - _BOTTOM, _TOP)
    ends = [10**x.low, 10**x.high]
    band = [(x(ends[0]), y(ends[0] * 0.9)), (x(ends[1]), y(ends[1] * 0.9)),
            (x(ends[1]), y(ends[1] * 1.1)), (x(ends[0]), y(ends[0] * 1.1))]  # fmt: skip
    parts = [
        _grid(x, y, plot.target, plot.target, "measured", "predicted"),
        f'<clipPath id="{_id(plot)}"><rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH - _LEFT - _RIGHT}" '
        f'height="{_HEIGHT - _TOP - _BOTTOM}"/></clipPath><g clip-path="url(#{_id(plot)})">',
        f'<path class="band" d="{_line(band)}z"/>',
        f'<path class="equal" d="{_line([(x(end), y(end)) for end in ends])}"/>',
    ]
    for kind, wanted in (("seen", False), ("unseen", True)):
        points = [(x(a), y(b)) for a, b, unseen in zip(plot.measured, plot.predicted, plot.unseen, strict=True)
                  if unseen == wanted]  # fmt: skip
        parts.append(f'<path class="points {kind}" d="{"".join(f"M{a:.1f} {b:.1f}h0" for a, b in points)}"/>')
    return _svg([*parts, "</g>"], f"{plot.family}: predicted against measured {plot.target}, {len(plot.measured)} rows")


def histogram(plot: Plot) -> str:
    """Share of rows by absolute percentage error."""
    total = max(sum(plot.ape_counts), 1)
    shares = [count / total for count in plot.ape_counts]
    edges = [f"{edge:g}" for edge in APE_EDGES_PCT]
    words = [f"<{edges[0]}", *(f"–{edge}" for edge in edges[1:]), f">{edges[-1]}"]
    top, base = max(*shares, 0.01) * 1.12, _HEIGHT - _BOTTOM
    step = (_WIDTH - _LEFT - _RIGHT) / len(shares)
    parts = []
    for share in _round_steps(top):
        at = base - share / top * (base - _TOP)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(_text(_LEFT - 6, at + 4, f"{share * 100:.0f} %", "end"))
    for i, (share, word, count) in enumerate(zip(shares, words, plot.ape_counts, strict=True)):
        height = share / top * (base - _TOP)
        left = _LEFT + i * step
        parts.append(f'<rect class="bar{"" if i <= APE_EDGES_PCT.index(10.0) else " bad"}" x="{left + 2:.1f}" '
                     f'y="{base - height:.1f}" width="{step - 4:.1f}" height="{height:.1f}"><title>{count} rows, '
                     f"{share * 100:.1f} %</title></rect>")  # fmt: skip
        parts.append(_text(left + step / 2, base + 15, word, "middle"))
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, "absolute error, %", "middle", "axis"))
    return _svg(parts, f"{plot.family}: share of rows by error")


def error_by_size(plot: Plot) -> str:
    """Median and 90th percentile of the error against the measured value, by half decade."""
    bins = plot.by_size
    x = _LogAxis.of([edge for one in bins for edge in (one.low, one.high)], _LEFT, _WIDTH - _RIGHT)
    floor = 0.05
    errors = [max(value, floor) for one in bins for value in (one.median_ape_pct, one.p90_ape_pct)]
    y = _LogAxis.of([*errors, 1.0, 20.0], _HEIGHT - _BOTTOM, _TOP)
    parts = [_grid(x, y, plot.target, "percent", "measured", "absolute error")]
    for kind, name in (("p90", "p90_ape_pct"), ("median", "median_ape_pct")):
        points = [(x(math.sqrt(one.low * one.high)), y(max(getattr(one, name), floor))) for one in bins]
        parts.append(f'<path class="line {kind}" d="{_line(points)}"/>')
        for (a, b), one in zip(points, bins, strict=True):
            parts.append(f'<circle class="dot {kind}" cx="{a:.1f}" cy="{b:.1f}" r="3"><title>{one.n} rows: '
                         f"median {one.median_ape_pct:.1f} %, 90th percentile {one.p90_ape_pct:.1f} %"
                         "</title></circle>")  # fmt: skip
    return _svg(parts, f"{plot.family}: error against size")


def coverage(rows: Sequence[tuple[str, float, int]], wanted: float) -> str:
    """Share of measurements inside their interval, a row per `(name, percent, n)`, with what chance allows.

    The band is `wanted` (percent) ± 2.
    """
    left, width, line = 330, 860, 19
    low = max(0.0, min([wanted - 20, *(math.floor(share / 10) * 10 for _, share, _ in rows)]))
    height = line * len(rows) + 34

    def at(percent: float) -> float:
        return left + (percent - low) / (100 - low) * (width - left - 60)

    parts = [f'<rect class="good" x="{at(wanted - 2):.1f}" y="4" width="{at(wanted + 2) - at(wanted - 2):.1f}" '
             f'height="{height - 28}"/>']  # fmt: skip
    for tick in range(int(low), 101, 10):
        parts.append(f'<path class="grid" d="M{at(tick):.1f} 4V{height - 24}"/>')
        parts.append(_text(at(tick), height - 8, f"{tick} %", "middle"))
    for i, (name, share, n) in enumerate(rows):
        y = 4 + line * (i + 0.5)
        least, most = wilson_pct(share, n)
        kind = "in" if abs(share - wanted) <= 2 else "out" if least > wanted + 2 or most < wanted - 2 else "open"
        parts.append(_text(left - 10, y + 4, name, "end"))
        parts.append(f'<path class="whisker" d="M{at(max(least, low)):.1f} {y:.1f}H{at(most):.1f}"/>')
        parts.append(f'<circle class="dot {kind}" cx="{at(share):.1f}" cy="{y:.1f}" r="4">'
                     f"<title>{share:.1f} % of {n}</title></circle>")  # fmt: skip
        parts.append(_text(width - 4, y + 4, f"{share:.1f} %", "end"))
    body = "".join(parts)
    return f'<svg class="wide" viewBox="0 0 {width} {height}" role="img" aria-label="interval coverage by slice">{body}</svg>'


def _grid(x: _LogAxis, y: _LogAxis, x_target: str, y_target: str, x_name: str, y_name: str) -> str:
    parts = []
    for value in x.ticks():
        parts.append(f'<path class="grid" d="M{x(value):.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
        parts.append(_text(x(value), _HEIGHT - _BOTTOM + 15, quantity(value, x_target), "middle"))
    for value in y.ticks():
        parts.append(f'<path class="grid" d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}"/>')
        word = f"{value:g} %" if y_target == "percent" else quantity(value, y_target)
        parts.append(_text(_LEFT - 6, y(value) + 4, word, "end"))
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, x_name, "middle", "axis"))
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text class="axis" text-anchor="middle" transform="translate(11 {middle}) rotate(-90)">{y_name}</text>'
    )
    return "".join(parts)


def _round_steps(top: float) -> list[float]:
    step = next(step for step in (0.02, 0.05, 0.1, 0.2, 0.5) if top / step <= 6)
    return [i * step for i in range(int(top / step) + 1)]


def _line(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _id(plot: Plot) -> str:
    return f"clip-{plot.family}-{plot.target}"


def _svg(parts: Sequence[str], label: str) -> str:
    body = "".join(parts)
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">{body}</svg>'
