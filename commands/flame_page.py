"""Where a program's time goes, as a picture of its own: the program, its kinds, its kernels and their operations.

The picture is SVG without a script: pointing at a part shows its figures. It is readable in light and dark, alone or in
a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from ..features.errors import SpecError, listed
from .flame import by_kind
from .units import flops, joules, num_bytes, seconds

if TYPE_CHECKING:
    from ..features.device import Device
    from ..models.mlir.prediction import GroupCost, ModulePrediction

SUFFIXES = (".html", ".svg")
_WIDTH, _ROW, _GAP = 1120.0, 27.0, 1.0
_LEAST_PX = 0.4
"""Parts narrower than this cannot be seen; leaving them out keeps the picture of a long program small."""
_CHARACTER_PX, _PADDING_PX = 6.4, 5.0
_LEAST_LABEL = 3
_LEAST_WIDTH = 800
"""Pixels below which a page scrolls the picture rather than draw it smaller: words would be too small to read."""
_HUES = {
    "contraction": 212, "convolution": 190, "attention": 275, "normalization": 145, "softmax": 40, "reduction": 172,
    "elementwise": 95, "movement": 58, "gather": 320, "sort": 240, "random": 255, "unknown": 4,
}  # fmt: skip
"""Hues of kinds, degrees; any other kind is grey."""
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
    from ..models.report_page import write_page

    check_flame(path, len(answers))
    if path.suffix.lower() == ".svg":
        device, found = answers[0]
        write_page(picture(found, device.title, _OUTSIDE_PAGE), path)
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
    from ..models.report_page import head, page

    first = answers[0][1]
    facts = {
        "function": first.function, "read by": first.reader, "arithmetic": flops(first.flops),
        "moved": num_bytes(first.bytes), "kernels": len(first.groups),
    }  # fmt: skip
    parts = [head(name, facts, ())]
    for device, found in answers:
        notes = "".join(f'<p class="note">{escape(note)}</p>' for note in found.notes)
        parts.append(
            f"<section><h2>{escape(device.title)}</h2><p class=small>{escape(_total(found))}</p>"
            f'<div class="frame">{picture(found, device.title, _IN_PAGE)}</div>{_left_out(found)}{notes}</section>'
        )
    return page(f"{name} · {first.function}", parts)


def picture(found: ModulePrediction, device: str, style: str = "") -> str:
    """The SVG of a program on one device: widths are times, kinds and kernels the longest first."""
    kinds = by_kind(found.groups)
    total = sum(kinds.values())
    parts = [_box(0, 0.0, _WIDTH, "", _total(found), f"{found.function} on {device}: {_total(found)}")]
    start = 0.0
    for kind, share in kinds.items():
        own = sorted((g for g in found.groups if g.kind == kind), key=lambda group: group.latency_s, reverse=True)
        width = _WIDTH * share / total if total else 0.0
        told = f"{kind}: {_percent(share)} of the time, {len(own)} kernels"
        parts.append(_box(1, start, width, kind, f"{kind} {_percent(share)}", told))
        place = start
        for group in own:
            part = _WIDTH * group.time_share / total if total else 0.0
            if part < _LEAST_PX:
                break
            parts.extend(_kernel(group, place, part))
            place += part
        start += width
    hues = "".join(_hue(kind) for kind in kinds if kind in _HUES)
    height = 4 * _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="flame" viewBox="0 0 {_WIDTH:g} {height:g}" role="img" '
        f'aria-label="{_safe(f"time of {found.function} on {device}")}">'
        f"<style>{_STYLE}{hues}{style}</style>{''.join(parts)}</svg>\n"
    )


def _kernel(group: GroupCost, start: float, width: float) -> list[str]:
    """A kernel and, under it, its operations: fused, they have no times of their own and share its width evenly."""
    told = [group.title, f"{seconds(group.latency_s)}, {_percent(group.time_share)} of the time, {group.runs:g} runs"]
    if group.energy_j is not None:
        told.append(joules(group.energy_j))
    told.append(f"{flops(group.flops)}, {num_bytes(group.bytes)}, bound by {group.bound}")
    if group.spec:
        told.append(f"predicted as {group.spec}" + (f" ({group.stand_in})" if group.stand_in else ""))
    if not group.understood:
        told.append("its cost is a guess")
    if group.lines:
        told.append(f"lines {', '.join(map(str, group.lines))}")
    parts = [_box(2, start, width, group.kind, group.title, "\n".join(told))]
    each = width / max(len(group.ops), 1)
    if each >= _LEAST_PX:
        parts.extend(
            _box(3, start + i * each, each, f"{group.kind} op", op, f"{op}, in {group.title}")
            for i, op in enumerate(group.ops)
        )
    return parts


def _box(level: int, start: float, width: float, kind: str, label: str, told: str) -> str:
    room = int((width - 2 * _PADDING_PX) / _CHARACTER_PX)
    short = label if len(label) <= room else f"{label[: room - 1]}…"
    y = level * _ROW
    words = "" if room < _LEAST_LABEL else f'<text x="{start + _PADDING_PX:.2f}" y="{y + 17:g}">{_safe(short)}</text>'
    gap = min(_GAP, width / 4)
    return (
        f'<g><title>{_safe(told)}</title><rect class="{_safe(kind)}" x="{start:.2f}" y="{y:g}" '
        f'width="{width - gap:.2f}" height="{_ROW - _GAP:g}" rx="2"/>{words}</g>'
    )


def _left_out(found: ModulePrediction) -> str:
    total = sum(group.time_share for group in found.groups)
    thin = [group for group in found.groups if not total or _WIDTH * group.time_share / total < _LEAST_PX]
    if not thin:
        return ""
    share = _percent(sum(group.time_share for group in thin))
    return f"<p class=small>{len(thin)} kernels, {share} of the time together, are too short to be drawn.</p>"


def _total(found: ModulePrediction) -> str:
    said = f"{seconds(found.latency_s.value)} [{seconds(found.latency_s.lower)} … {seconds(found.latency_s.upper)}]"
    return said if found.energy_j is None else f"{said}, {joules(found.energy_j.value)}"


def _hue(kind: str) -> str:
    hue = _HUES[kind]
    dark = f"@media (prefers-color-scheme: dark) {{ .flame .{kind} {{ fill: hsl({hue} 38% 33%); }} }}"
    return f".flame .{kind} {{ fill: hsl({hue} 60% 77%); }} {dark}\n"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _safe(words: str) -> str:
    """Words as XML: marked up, and without the control characters that XML has no form for."""
    return escape("".join(one if one.isprintable() or one == "\n" else "�" for one in words), quote=True)
