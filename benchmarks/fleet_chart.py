"""The chart of docs/scale.md: rows a second over devices, for several ways to organise a fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelcast.models.evaluation.charts import Axis, Chart, Point

_COLOURS = ("#888", "#c0392b", "#d68910", "#2471a3", "#1e8449")
_STYLE = (
    "<style>text{font:11px sans-serif;fill:#333}.grid{stroke:#ddd;fill:none}.line{fill:none;stroke-width:2}"
    + "".join(f".way{i}{{stroke:{colour};fill:{colour}}}" for i, colour in enumerate(_COLOURS))
    + ".line{fill:none}.way0{stroke-dasharray:5 4}@media(prefers-color-scheme:dark){text{fill:#ccc}.grid{stroke:#444}}</style>"
)


def chart(series: Mapping[str, Sequence[Point]]) -> str:
    """An SVG document: one line per way, of (devices, rows a second)."""
    points = [point for way in series.values() for point in way]
    x, y = (Axis.logarithmic(name, [point[i] for point in points], "count")
            for i, name in enumerate(("devices", "rows a second")))  # fmt: skip
    drawn = Chart(x, y, "Rows a second over devices")
    for i, (name, way) in enumerate(series.items()):
        drawn.line(way, f"way{i}")
        drawn.text(70, 24 + 15 * i, name, "start", f"way{i}")
    return (
        drawn.svg().replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(">", f">{_STYLE}", 1) + "\n"
    )
