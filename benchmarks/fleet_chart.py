"""The chart of docs/scale.md: rows a second over devices, for several ways to organise a fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelcast.models.svg import BASE, END, LEFT, TOP, LogAxis, Point, grid, line, quantity, svg, text

_COLOURS = ("#888", "#c0392b", "#d68910", "#2471a3", "#1e8449")
_STYLE = (
    "<style>text{font:11px sans-serif;fill:#333}.grid{stroke:#ddd;fill:none}.line{fill:none;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}.grid{stroke:#444}}</style>"
)


def chart(series: Mapping[str, Sequence[Point]]) -> str:
    """An SVG document: one line per way, of (devices, rows a second)."""
    points = [point for way in series.values() for point in way]
    x = LogAxis.of((point[0] for point in points), LEFT, END)
    y = LogAxis.of((point[1] for point in points), BASE, TOP)
    axes = grid(x, y, [(value, f"{value:,.0f}") for value in x.ticks()],
                [(value, quantity(value, "count")) for value in y.ticks()], ("devices", "rows a second"))  # fmt: skip
    parts = [_STYLE, axes]
    for i, (colour, (name, way)) in enumerate(zip(_COLOURS, series.items(), strict=False)):
        dashes = ' stroke-dasharray="5 4"' if i == 0 else ""
        parts.append(f'<path class="line" stroke="{colour}"{dashes} d="{line([(x(a), y(b)) for a, b in way])}"/>')
        parts.append(f'<rect x="{LEFT + 8}" y="{TOP + 7 + 15 * i}" width="10" height="3" fill="{colour}"/>')
        parts.append(text(LEFT + 23, TOP + 12 + 15 * i, name, "start"))
    return (
        svg(parts, "Rows a second over devices").replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"
    )
