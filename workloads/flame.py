"""Where time goes as a picture: boxes inside boxes whose widths are time, as an SVG of its own or in a page.

What runs stands from left to right in the order in which it first runs, where the caller keeps that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from ..features.errors import SpecError, listed
from ..models.evaluation.charts import head, page, write_page
from .units import seconds

SUFFIXES = (".html", ".svg")
FAMILY_HUES: Mapping[str, int] = {
    "gemm": 212, "conv2d": 190, "attention": 275, "moe": 240, "layernorm": 145, "softmax": 40, "reduction": 172,
    "elementwise": 95, "copy": 58,
}  # fmt: skip
"""Hues of kernel families in degrees; what is no kernel is grey."""

_WIDTH, _ROW, _GAP = 1120.0, 27.0, 1.0
_LEAST_PX = 0.4
"""Parts narrower than this cannot be seen; leaving them out keeps the picture of a long program small."""
_CHARACTER_PX, _PADDING_PX = 6.4, 5.0
_LEAST_LABEL = 3
_LEAST_WIDTH = 800
"""Pixels below which a page scrolls the picture rather than draw it smaller: words would be too small to read."""
_STYLE = """
.flame text { font: 11.5px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1b2026; pointer-events: none; }
.flame rect { fill: hsl(210 8% 84%); }
.flame .op { opacity: .6; }
.flame g:hover > rect { stroke: #1b2026; }
@media (prefers-color-scheme: dark) {
.flame text { fill: #e6eaee; } .flame rect { fill: hsl(210 8% 30%); } .flame g:hover > rect { stroke: #e6eaee; } }
"""
_IN_PAGE = f".frame {{ overflow-x: auto; }} .frame .flame {{ display: block; min-width: {_LEAST_WIDTH}px; }}"
_OUTSIDE_PAGE = (
    ".flame { background: #ffffff; } @media (prefers-color-scheme: dark) { .flame { background: #1a2026; } }"
)


@dataclass(slots=True)
class Box:
    """A part of the time, and what it consists of.

    Attributes:
        label: Words inside.
        size: Its time in seconds, or its share; those of `children` together are no more.
        kind: Kinds with a hue are coloured; `op` beside one is paler.
        facts: Lines that are read on hovering; empty: the place, the time and its share.
        children: Its parts.
        remark: What follows the share on hovering, such as what binds it.
    """

    label: str
    size: float
    kind: str = ""
    facts: tuple[str, ...] = ()
    children: list[Box] = field(default_factory=list)
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """The picture of one device.

    Attributes:
        device: Its full name.
        total: The whole in words.
        root: All boxes.
        notes: What stands under the picture.
    """

    device: str
    total: str
    root: Box
    notes: tuple[str, ...] = ()


def tree(label: str, leaves: Iterable[tuple[Sequence[str], float, str, str]]) -> Box:
    """Boxes by place, in the order in which places first come.

    Args:
        label: of the outermost box.
        leaves: path from the outside in, seconds, kind, and a remark on what binds it.
    """
    root = Box(label, 0.0)
    for path, time_s, kind, remark in leaves:
        root.size += time_s
        here = root
        for depth, name in enumerate(path, 1):
            is_leaf = depth == len(path)
            inner = next((box for box in here.children if box.label == name and bool(box.kind) == is_leaf), None)
            if inner is None:
                inner = Box(name, 0.0, kind, remark=f", {remark}") if is_leaf else Box(name, 0.0)
                here.children.append(inner)
            inner.size += time_s
            here = inner
    return root


def svg(root: Box, label: str, hues: Mapping[str, int] = FAMILY_HUES, style: str = "") -> str:
    """The picture as an SVG; `label` says what it shows, `hues` colours kinds."""
    parts: list[str] = []
    depth = _draw(parts, root, 0, 0.0, _WIDTH, root.size, root.label)
    drawn = "".join(parts)
    rules = "".join(_hue(kind, hue) for kind, hue in hues.items() if f'class="{kind}' in drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="flame" viewBox="0 0 {_WIDTH:g} {depth * _ROW:g}" role="img" '
        f'aria-label="{_safe(label)}"><style>{_STYLE}{rules}{style}</style>{drawn}</svg>\n'
    )


def is_drawn(share: float) -> bool:
    """Whether a part of the whole is wide enough to be seen."""
    return share * _WIDTH >= _LEAST_PX


def _draw(parts: list[str], box: Box, level: int, start: float, width: float, whole: float, place: str) -> int:
    """Append a box and what is in it; returns how many rows they take."""
    share = box.size / whole if whole else 0.0
    facts = box.facts or (place, f"{seconds(box.size)}, {100 * share:.1f} % of the time{box.remark}")
    parts.append(_box(level, start, width, box.kind, box.label, "\n".join(facts)))
    rows = level + 1
    for child in box.children:
        part = width * child.size / box.size if box.size else 0.0
        if part >= _LEAST_PX:
            rows = max(rows, _draw(parts, child, level + 1, start, part, whole, f"{place} › {child.label}"))
        start += part
    return rows


def _box(level: int, start: float, width: float, kind: str, label: str, tooltip: str) -> str:
    room = int((width - 2 * _PADDING_PX) / _CHARACTER_PX)
    short = label if len(label) <= room else f"{label[: room - 1]}…"
    y = level * _ROW
    element = "" if room < _LEAST_LABEL else f'<text x="{start + _PADDING_PX:.2f}" y="{y + 17:g}">{_safe(short)}</text>'
    gap = min(_GAP, width / 4)
    return (
        f'<g><title>{_safe(tooltip)}</title><rect class="{_safe(kind)}" x="{start:.2f}" y="{y:g}" '
        f'width="{width - gap:.2f}" height="{_ROW - _GAP:g}" rx="2"/>{element}</g>'
    )


def in_page(picture: Picture, label: str, hues: Mapping[str, int] = FAMILY_HUES) -> str:
    """The section of a page that shows one device."""
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in picture.notes)
    return (
        f"<section><h2>{escape(picture.device)}</h2><p class=small>{escape(picture.total)}</p>"
        f'<div class="frame">{svg(picture.root, label, hues, _IN_PAGE)}</div>{notes}</section>'
    )


def check_path(path: Path, devices: int) -> None:
    """Refuse a path that no picture can be written to, before the work is done.

    Raises:
        SpecError: it ends in neither suffix, or is an .svg for several devices.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise SpecError(f"--flame writes {listed(SUFFIXES)}; got {path.name}", field="flame")
    if devices > 1 and path.suffix.lower() == ".svg":
        raise SpecError("an .svg holds one device; give one --device, or an .html", field="flame")


def write(
    path: Path, title: str, facts: Mapping[str, object], pictures: Sequence[Picture], hues: Mapping[str, int] = FAMILY_HUES
) -> None:  # fmt: skip
    """Write pictures: a page (.html), or for one device the bare picture (.svg).

    Raises:
        SpecError: the path ends in neither, is an .svg for several devices, or cannot be written.
    """
    check_path(path, len(pictures))
    labels = [f"time of {title} on {picture.device}" for picture in pictures]
    if path.suffix.lower() == ".svg":
        write_page(svg(pictures[0].root, labels[0], hues, _OUTSIDE_PAGE), path)
        return
    sections = [in_page(picture, label, hues) for picture, label in zip(pictures, labels, strict=True)]
    write_page(page(title, [head(title, facts, ()), *sections]), path)


def _hue(kind: str, hue: int) -> str:
    dark = f"@media (prefers-color-scheme: dark) {{ .flame .{kind} {{ fill: hsl({hue} 38% 33%); }} }}"
    return f".flame .{kind} {{ fill: hsl({hue} 60% 77%); }} {dark}\n"


def _safe(text: str) -> str:
    """Words as XML: marked up, and without the control characters that XML has no form for."""
    return escape(
        "".join(character if character.isprintable() or character == "\n" else "�" for character in text), quote=True
    )
