"""The main dialect of a module's text: what decides which compiler takes it, and how."""

from __future__ import annotations

import re
from collections import Counter

MAIN_DIALECTS = ("torch", "stablehlo", "chlo", "tosa", "linalg")
"""Dialects that programs are written in, in the order in which they are looked for; others only help."""

_OPERATION = re.compile(r"(?:^|=)\s*\"?([a-z_]+)\.[a-z_][\w.]*", re.MULTILINE)


def main_dialect(text: str) -> str:
    """The first of `MAIN_DIALECTS` that has an operation in `text`, else the one with most operations; `builtin` for none."""
    counts = Counter(_OPERATION.findall(text))
    counts.pop("func", None)
    present = [name for name in MAIN_DIALECTS if counts[name]]
    if present:
        return "stablehlo" if present[0] == "chlo" else present[0]
    return counts.most_common(1)[0][0] if counts else "builtin"
