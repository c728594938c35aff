"""Attributes of operations, read from their text on demand: one value by its name, its integers, its affine maps."""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod

_OPEN, _CLOSE = "([{<", ")]}>"
_STOP = re.compile(r'->|[\[\](){}<>,"]')
_INTEGER = re.compile(r"(?<![\w.])-?\d+(?![\w.])")
_SHAPED = re.compile(r":\s*(?:tensor|vector)<((?:\d+x)*)")
_TRUTH = {"true": 1, "false": 0, "unit": 1}
_REMEMBERED = 8192
"""Texts kept: more than the distinct attributes of a large model, and little memory."""

_LONGEST_LIST = 4096
"""Most integers expanded from one splat: sizes, strides and permutations are far shorter."""


def end_of_value(text: str, start: int) -> int:
    """Position after the value that starts at `start`: the next comma or closing bracket outside of its own brackets."""
    depth, position = 0, start
    while found := _STOP.search(text, position):
        mark, position = found[0], found.end()
        if mark == '"':
            position = _end_of_string(text, position)
        elif mark in _OPEN:
            depth += 1
        elif mark in _CLOSE:
            if depth == 0:
                return found.start()
            depth -= 1
        elif mark == "," and depth == 0:
            return found.start()
    return len(text)


def _end_of_string(text: str, position: int) -> int:
    while (quote := text.find('"', position)) > 0 and text[quote - 1] == "\\":
        position = quote + 1
    return quote + 1 if quote >= 0 else len(text)


@lru_cache(_REMEMBERED)
def value(text: str, name: str) -> str | None:
    """The text of attribute `name` wherever in `text` it stands, nested attributes included; None where there is none."""
    found = re.search(rf"(?<![\w.]){re.escape(name)}\s*=\s*", text)
    if found is not None:
        return text[found.end() : end_of_value(text, found.end())].strip()
    return "unit" if re.search(rf"(?:^|, ){re.escape(name)}(?:,|$)", text) else None


@lru_cache(_REMEMBERED)
def numbers(written: str) -> tuple[int, ...] | None:
    """The integers of an attribute's text: `array<i64: 1, 2>`, `[1, 2]`, `dense<1> : tensor<2xi64>`, `3 : i64`, `true`.

    Nested lists come out flat, splats as often as they have elements. None for what holds no integers.
    """
    written = written.strip()
    if written in _TRUTH:
        return (_TRUTH[written],)
    body = written
    if written.startswith("array<"):
        body = written[6:].partition(":")[2]
    elif written.startswith("dense<"):
        body = written[6 : end_of_value(written, 6)]
    elif not written.startswith("["):
        body = written.partition(":")[0]
    if any(mark in body for mark in ('"', ".", "0x", "#")):
        return None
    found = tuple(_TRUTH[word] if word in _TRUTH else int(word) for word in re.findall(r"true|false|-?\d+", body))
    shaped = _SHAPED.search(written) if written.startswith("dense<") else None
    if shaped is not None:
        count = prod(int(size) for size in shaped[1].split("x") if size)
        if len(found) == 1 and "[" not in body:
            return found * count if count <= _LONGEST_LIST else None
        return found if len(found) == count else None
    return found if found or body.strip() in ("", "[]") else None


def integers(text: str, *names: str) -> tuple[int, ...] | None:
    """The integers of the first of these attributes that there is."""
    for name in names:
        written = value(text, name)
        if written is not None and (found := numbers(written)) is not None:
            return found
    return None


def integer(text: str, *names: str) -> int | None:
    """The one integer of the first of these attributes that there is."""
    found = integers(text, *names)
    return found[0] if found is not None and len(found) == 1 else None


def word(text: str, name: str) -> str:
    """The last word of an attribute: `LT` of `#stablehlo<comparison_direction LT>`; empty where there is none."""
    found = re.findall(r"\w+", value(text, name) or "")
    return found[-1] if found else ""


@lru_cache(_REMEMBERED)
def pieces(written: str) -> tuple[str, ...]:
    """The pieces of a list's inside, split at its own commas."""
    found, position = [], 0
    while position < len(written):
        end = end_of_value(written, position)
        found.append(written[position:end].strip())
        position = end + 1
    return tuple(piece for piece in found if piece)


@lru_cache(_REMEMBERED)
def groups(written: str) -> tuple[tuple[int, ...], ...]:
    """The lists of a list of lists: `[[0, 1], [2]]`."""
    inner = written.strip().removeprefix("[").removesuffix("]")
    return tuple(tuple(int(n) for n in _INTEGER.findall(piece)) for piece in pieces(inner))
