"""Where a program's time goes, drawn in a terminal: a bar of its kernels in order, and one of what kinds they are.

Widths are shares of time. Kinds are told apart by colour and by shade, and kernels by the numbers under them, so that the
picture can be read without colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

    from ..models.mlir.prediction import GroupCost

LABEL_CELLS = 10
"""Columns before a bar, where the other rows of the answer have their names."""

_LOOKS: Mapping[str, tuple[str, str]] = {
    "contraction": ("█", "blue"),
    "convolution": ("█", "cyan"),
    "attention": ("█", "magenta"),
    "normalization": ("▓", "green"),
    "softmax": ("▓", "yellow"),
    "reduction": ("▓", "bright_cyan"),
    "elementwise": ("▒", "bright_green"),
    "movement": ("░", "bright_yellow"),
    "gather": ("░", "bright_magenta"),
    "sort": ("▒", "bright_blue"),
    "random": ("▒", "bright_black"),
    "unknown": ("?", "red"),
}
"""How kinds look: a shade and a colour."""
_OTHER_LOOK = ("·", "white")
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
    found: dict[str, float] = {}
    for group in groups:
        found[group.kind] = found.get(group.kind, 0.0) + group.time_share
    return dict(sorted(found.items(), key=lambda one: one[1], reverse=True))


def _segments(shares: Iterable[tuple[str, str, float]], cells: int) -> list[_Segment]:
    """Parts of a bar; rounding is of where they end, so that together they fill it. What takes no whole cell is not drawn."""
    parts = list(shares)
    total = sum(share for _, _, share in parts)
    found, done = [], 0.0
    for label, kind, share in parts:
        start = round(cells * done / total)
        done += share
        end = round(cells * done / total)
        if end > start:
            found.append(_Segment(label, kind, start, end))
    return found


def _bar(name: str, segments: Iterable[_Segment]) -> Text:
    from rich.text import Text

    line = Text.assemble((name.ljust(LABEL_CELLS), "dim"), no_wrap=True)
    for place, one in enumerate(segments):
        shade, colour = _LOOKS.get(one.kind, _OTHER_LOOK)
        # The edge is where one kernel ends and the next, often of the same kind, begins.
        edge = _EDGE if place and one.end - one.start > 1 else ""
        line.append(edge + shade * (one.end - one.start - len(edge)), colour)
    return line


def _labels(segments: Iterable[_Segment], cells: int) -> Text:
    """The numbers of segments under their beginnings, where they fit."""
    from rich.text import Text

    line = [" "] * cells
    free = 0
    for one in segments:
        start = max(one.start, free)
        if start + len(one.label) <= min(one.end + 1, cells):
            line[start : start + len(one.label)] = one.label
            free = start + len(one.label) + 1
    return Text(" " * LABEL_CELLS + "".join(line).rstrip(), "dim", no_wrap=True)


def _legend(kinds: Mapping[str, float]) -> Text:
    from rich.text import Text

    line = Text(" " * LABEL_CELLS)
    for kind, share in kinds.items():
        shade, colour = _LOOKS.get(kind, _OTHER_LOOK)
        line.append(f"{shade}{shade} ", colour)
        line.append(f"{kind} {100 * share:.1f} %   ")
    line.rstrip()
    return line
