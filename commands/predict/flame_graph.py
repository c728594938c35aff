"""Where a program's time goes, drawn in a terminal: a bar of its kernels in order, and one of what kinds they are.

Widths are shares of time. Kinds are told apart by colour and by shade, and kernels by the numbers under them, so that the
picture can be read without colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..console import flops, joules, num_bytes, seconds

if TYPE_CHECKING:
    from rich.text import Text

    from ...features.device import Device
    from ...workloads.flame import Box
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
HUES = {kind: hue for kind, (_, _, hue) in _LOOKS.items()}
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


def check_flame(path: Path, devices: int) -> None:
    """Refuse a path that no picture can be written to, before the work is done.

    Raises:
        SpecError: it ends in neither suffix, or is an .svg for several devices.
    """
    from ...workloads.flame import check_path

    check_path(path, devices)


def write_flame(path: Path, name: str, answers: Sequence[tuple[Device, ModulePrediction]]) -> None:
    """Write the picture of a program on each device: a page (.html), or for one device the bare picture (.svg).

    Raises:
        SpecError: the path ends in neither, is an .svg for several devices, or cannot be written.
    """
    from ...workloads.flame import Picture, write

    first = answers[0][1]
    facts = {
        "function": first.function, "read by": first.reader, "arithmetic": flops(first.flops),
        "moved": num_bytes(first.bytes), "kernels": len(first.groups),
    }  # fmt: skip
    pictures = [
        Picture(
            device.title,
            _total(prediction),
            boxes(prediction, device.title),
            (*_left_out(prediction), *prediction.notes),
        )
        for device, prediction in answers
    ]
    write(path, f"{name} · {first.function}", facts, pictures, HUES)


def picture(prediction: ModulePrediction, device: str) -> str:
    """The SVG of a program on one device: widths are times, kinds and kernels the longest first."""
    from ...workloads.flame import svg

    return svg(boxes(prediction, device), f"time of {prediction.function} on {device}", HUES)


def boxes(prediction: ModulePrediction, device: str) -> Box:
    """The program, its kinds, their kernels, and the operations of each."""
    from ...workloads.flame import Box

    kinds = by_kind(prediction.groups)
    root = Box(
        _total(prediction), sum(kinds.values()), facts=(f"{prediction.function} on {device}: {_total(prediction)}",)
    )
    for kind, share in kinds.items():
        members = sorted(
            (g for g in prediction.groups if g.kind == kind), key=lambda group: group.latency_s, reverse=True
        )
        words = f"{kind} {_percent(share)}"
        facts = (f"{kind}: {_percent(share)} of the time, {len(members)} kernels",)
        root.children.append(Box(words, share, kind, facts, [_kernel(group) for group in members]))
    return root


def _kernel(group: GroupCost) -> Box:
    """A kernel and, under it, its operations: fused, they share its width as their limits have it."""
    from ...workloads.flame import Box

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
    ops = [
        Box(op, group.time_share * share, f"{group.kind} op", (f"{op}, {_percent(share)} of {group.title}",))
        for op, share in zip(group.ops, group.op_shares, strict=True)
    ]
    return Box(group.title, group.time_share, group.kind, tuple(facts), ops)


def _left_out(prediction: ModulePrediction) -> tuple[str, ...]:
    from ...workloads.flame import is_drawn

    total = sum(group.time_share for group in prediction.groups)
    thin = [group for group in prediction.groups if not total or not is_drawn(group.time_share / total)]
    if not thin:
        return ()
    share = _percent(sum(group.time_share for group in thin))
    return (f"{len(thin)} kernels, {share} of the time together, are too short to be drawn.",)


def _total(prediction: ModulePrediction) -> str:
    latency = prediction.latency_s
    text = f"{seconds(latency.value)} [{seconds(latency.lower)} … {seconds(latency.upper)}]"
    return text if prediction.energy_j is None else f"{text}, {joules(prediction.energy_j.value)}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
