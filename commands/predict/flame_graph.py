"""Where a program's time goes, drawn in a terminal: a bar of its kernels in order, and one of what kinds they are.

Widths are shares of time. Kinds are told apart by colour and by shade, and kernels by the numbers under them, so that the
picture can be read without colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from ...features.errors import SpecError, listed
from ..console import flops, joules, num_bytes, seconds

if TYPE_CHECKING:
    from rich.text import Text

    from ...features.device import Device
    from ...workloads.mlir.prediction import GroupCost, ModulePrediction


LABEL_CELLS = 10
"""Columns before a bar, where the other rows of the answer have their names."""

_LOOKS: Mapping[str, tuple[str, str, int]] = {
    "contraction": ("█", "blue", 212),
    "convolution": ("█", "cyan", 190),
    "attention": ("█", "magenta", 275),
    "normalization": ("▓", "green", 145),
    "softmax": ("▓", "yellow", 40),
    "reduction": ("▓", "bright_cyan", 172),
    "elementwise": ("▒", "bright_green", 95),
    "movement": ("░", "bright_yellow", 58),
    "gather": ("░", "bright_magenta", 320),
    "sort": ("▒", "bright_blue", 240),
    "random": ("▒", "bright_black", 255),
    "unknown": ("?", "red", 4),
}
"""How kinds look: a shade and a colour in the terminal, and the hue of an SVG in degrees; there, any other kind is grey."""
_OTHER_LOOK = ("·", "white", 0)
_EDGE = "▏"


@dataclass(frozen=True, slots=True)
class _Segment:
    label: str
    kind: str
    start: int
    end: int


def flame(groups: Sequence[GroupCost], width: int) -> list[Text]:
    """The lines of the picture, `width` columns wide: kernels in order, their numbers, kinds, and what the shades mean.

    Numbers are positions in `groups`, counted from 1. Empty where nothing takes time.
    """
    cells = max(width - LABEL_CELLS, 10)
    shares = [(str(i + 1), group.kind, group.time_share) for i, group in enumerate(groups)]
    if not sum(share for _, _, share in shares):
        return []
    kinds = by_kind(groups)
    kernels = _segments(shares, cells)
    return [
        _bar("kernels", kernels),
        _labels(kernels, cells),
        _bar("kinds", _segments([(kind, kind, share) for kind, share in kinds.items()], cells)),
        _legend(kinds),
    ]


def by_kind(groups: Iterable[GroupCost]) -> dict[str, float]:
    """Shares of time by kind, the largest first."""
    shares: dict[str, float] = {}
    for group in groups:
        shares[group.kind] = shares.get(group.kind, 0.0) + group.time_share
    return dict(sorted(shares.items(), key=lambda item: item[1], reverse=True))


def _segments(shares: Iterable[tuple[str, str, float]], cells: int) -> list[_Segment]:
    """Parts of a bar; rounding is of where they end, so that together they fill it. What takes no whole cell is not drawn."""
    parts = list(shares)
    total = sum(share for _, _, share in parts)
    segments, done = [], 0.0
    for label, kind, share in parts:
        start = round(cells * done / total)
        done += share
        end = round(cells * done / total)
        if end > start:
            segments.append(_Segment(label, kind, start, end))
    return segments


def _bar(name: str, segments: Iterable[_Segment]) -> Text:
    from rich.text import Text

    line = Text.assemble((name.ljust(LABEL_CELLS), "dim"), no_wrap=True)
    for place, segment in enumerate(segments):
        shade, colour, _ = _LOOKS.get(segment.kind, _OTHER_LOOK)
        # The edge is where one kernel ends and the next, often of the same kind, begins.
        edge = _EDGE if place and segment.end - segment.start > 1 else ""
        line.append(edge + shade * (segment.end - segment.start - len(edge)), colour)
    return line


def _labels(segments: Iterable[_Segment], cells: int) -> Text:
    """The numbers of segments under their beginnings, where they fit."""
    from rich.text import Text

    line = [" "] * cells
    free = 0
    for segment in segments:
        start = max(segment.start, free)
        if start + len(segment.label) <= min(segment.end + 1, cells):
            line[start : start + len(segment.label)] = segment.label
            free = start + len(segment.label) + 1
    return Text(" " * LABEL_CELLS + "".join(line).rstrip(), "dim", no_wrap=True)


def _legend(kinds: Mapping[str, float]) -> Text:
    from rich.text import Text

    line = Text(" " * LABEL_CELLS)
    for kind, share in kinds.items():
        shade, colour, _ = _LOOKS.get(kind, _OTHER_LOOK)
        line.append(f"{shade}{shade} ", colour)
        line.append(f"{kind} {100 * share:.1f} %   ")
    line.rstrip()
    return line


SUFFIXES = (".html", ".svg")
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


def write_flame(path: Path, name: str, answers: Sequence[tuple[Device, ModulePrediction]]) -> None:
    """Write the picture of a program on each device: a page (.html), or for one device the bare picture (.svg).

    Raises:
        SpecError: the path ends in neither, is an .svg for several devices, or cannot be written.
    """
    from ...models.evaluation.charts import write_page

    check_flame(path, len(answers))
    if path.suffix.lower() == ".svg":
        device, prediction = answers[0]
        write_page(picture(prediction, device.title, _OUTSIDE_PAGE), path)
        return
    write_page(_page(name, answers), path)


def check_flame(path: Path, devices: int) -> None:
    """Refuse a path that no picture can be written to, before the work is done.

    Raises:
        SpecError: it ends in neither suffix, or is an .svg for several devices.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise SpecError(f"--flame writes {listed(SUFFIXES)}; got {path.name}", field="flame")
    if devices > 1 and path.suffix.lower() == ".svg":
        raise SpecError("an .svg holds one device; give one --device, or an .html", field="flame")


def _page(name: str, answers: Sequence[tuple[Device, ModulePrediction]]) -> str:
    from ...models.evaluation.charts import head, page

    first = answers[0][1]
    facts = {
        "function": first.function, "read by": first.reader, "arithmetic": flops(first.flops),
        "moved": num_bytes(first.bytes), "kernels": len(first.groups),
    }  # fmt: skip
    parts = [head(name, facts, ())]
    for device, prediction in answers:
        notes = "".join(f'<p class="note">{escape(note)}</p>' for note in prediction.notes)
        parts.append(
            f"<section><h2>{escape(device.title)}</h2><p class=small>{escape(_total(prediction))}</p>"
            f'<div class="frame">{picture(prediction, device.title, _IN_PAGE)}</div>{_left_out(prediction)}{notes}</section>'
        )
    return page(f"{name} · {first.function}", parts)


def picture(prediction: ModulePrediction, device: str, style: str = "") -> str:
    """The SVG of a program on one device: widths are times, kinds and kernels the longest first."""
    kinds = by_kind(prediction.groups)
    total = sum(kinds.values())
    parts = [_box(0, 0.0, _WIDTH, "", _total(prediction), f"{prediction.function} on {device}: {_total(prediction)}")]
    start = 0.0
    for kind, share in kinds.items():
        members = sorted(
            (g for g in prediction.groups if g.kind == kind), key=lambda group: group.latency_s, reverse=True
        )
        width = _WIDTH * share / total if total else 0.0
        tooltip = f"{kind}: {_percent(share)} of the time, {len(members)} kernels"
        parts.append(_box(1, start, width, kind, f"{kind} {_percent(share)}", tooltip))
        place = start
        for group in members:
            part = _WIDTH * group.time_share / total if total else 0.0
            if part < _LEAST_PX:
                break
            parts.extend(_kernel(group, place, part))
            place += part
        start += width
    hues = "".join(_hue(kind) for kind in kinds if kind in _LOOKS)
    height = 4 * _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="flame" viewBox="0 0 {_WIDTH:g} {height:g}" role="img" '
        f'aria-label="{_safe(f"time of {prediction.function} on {device}")}">'
        f"<style>{_STYLE}{hues}{style}</style>{''.join(parts)}</svg>\n"
    )


def _kernel(group: GroupCost, start: float, width: float) -> list[str]:
    """A kernel and, under it, its operations: fused, they have no times of their own and share its width evenly."""
    facts = [group.title, f"{seconds(group.latency_s)}, {_percent(group.time_share)} of the time, {group.runs:g} runs"]
    if group.energy_j is not None:
        facts.append(joules(group.energy_j))
    facts.append(f"{flops(group.flops)}, {num_bytes(group.bytes)}, bound by {group.bound}")
    if group.spec:
        facts.append(f"predicted as {group.spec}" + (f" ({group.stand_in})" if group.stand_in else ""))
    if not group.understood:
        facts.append("its cost is a guess")
    if group.lines:
        facts.append(f"lines {', '.join(map(str, group.lines))}")
    parts = [_box(2, start, width, group.kind, group.title, "\n".join(facts))]
    each = width / max(len(group.ops), 1)
    if each >= _LEAST_PX:
        parts.extend(
            _box(3, start + i * each, each, f"{group.kind} op", op, f"{op}, in {group.title}")
            for i, op in enumerate(group.ops)
        )
    return parts


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


def _left_out(prediction: ModulePrediction) -> str:
    total = sum(group.time_share for group in prediction.groups)
    thin = [group for group in prediction.groups if not total or _WIDTH * group.time_share / total < _LEAST_PX]
    if not thin:
        return ""
    share = _percent(sum(group.time_share for group in thin))
    return f"<p class=small>{len(thin)} kernels, {share} of the time together, are too short to be drawn.</p>"


def _total(prediction: ModulePrediction) -> str:
    latency = prediction.latency_s
    text = f"{seconds(latency.value)} [{seconds(latency.lower)} … {seconds(latency.upper)}]"
    return text if prediction.energy_j is None else f"{text}, {joules(prediction.energy_j.value)}"


def _hue(kind: str) -> str:
    hue = _LOOKS[kind][2]
    dark = f"@media (prefers-color-scheme: dark) {{ .flame .{kind} {{ fill: hsl({hue} 38% 33%); }} }}"
    return f".flame .{kind} {{ fill: hsl({hue} 60% 77%); }} {dark}\n"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _safe(text: str) -> str:
    """Words as XML: marked up, and without the control characters that XML has no form for."""
    return escape(
        "".join(character if character.isprintable() or character == "\n" else "�" for character in text), quote=True
    )
