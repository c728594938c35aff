"""Attributes of operations, read from their text on demand: values by name, integers, affine maps."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

_MAP = re.compile(r"(?:affine_map<)?\(([^()]*)\)\s*(?:\[([^\]]*)\])?\s*->\s*\((.*)\)>?\s*$", re.S)
_MAPS = re.compile(r"affine_map<.*?\)>", re.S)
_TOKEN = re.compile(r"\d+|\w+|[-+*()]")
_LONGEST = 400
"""Most tokens of one expression evaluated: printed maps are far shorter, and evaluation recurses."""


@dataclass(frozen=True, slots=True)
class AffineMap:
    """`(dims)[symbols] -> (results)`.

    Attributes:
        dims: Names of its dimensions.
        symbols: Names of its symbols.
        results: Its results, as texts over the names.
    """

    dims: tuple[str, ...]
    symbols: tuple[str, ...]
    results: tuple[str, ...]

    def positions(self) -> tuple[int | None, ...]:
        """For every result the dimension it is, None where it is an expression of several or a constant."""
        place = {name: position for position, name in enumerate(self.dims)}
        return tuple(place.get(result) for result in self.results)

    def used(self, result: int) -> tuple[int, ...]:
        """Dimensions that a result is made of."""
        words = set(re.findall(r"\w+", self.results[result]))
        return tuple(position for position, name in enumerate(self.dims) if name in words)

    def values(self, known: Sequence[float | None]) -> tuple[float | None, ...]:
        """Every result for these dimensions and symbols, in this order; None where one it needs is not known."""
        names = dict(zip((*self.dims, *self.symbols), known, strict=False))
        return tuple(_evaluated(result, names) for result in self.results)

    def factor(self, result: int, dim: int) -> int:
        """The number a dimension is multiplied by in a result: 2 for d1 in `d0 + d1 * 2`."""
        name = self.dims[dim]
        match = re.search(rf"\b{name} \* (\d+)|(\d+) \* {name}\b", self.results[result])
        return int(match[1] or match[2]) if match else 1


@lru_cache(4096)
def parse_map(text: str) -> AffineMap | None:
    """The map of `affine_map<(d0) -> (d0)>`; None for text that is none."""
    match = _MAP.match(text.strip())
    if match is None:
        return None
    dims, symbols, results = (pieces(part or "") for part in match.groups())
    return AffineMap(dims, symbols, results)


@lru_cache(4096)
def parse_maps(text: str) -> tuple[AffineMap, ...]:
    """All maps of a list of maps, in order."""
    match = (parse_map(item) for item in _MAPS.findall(text))
    return tuple(item for item in match if item is not None)


def _evaluated(text: str, names: dict[str, float | None]) -> float | None:
    tokens = _TOKEN.findall(text)
    if not tokens or len(tokens) > _LONGEST:
        return None
    try:
        result, rest = _sum(tokens, names)
    except (IndexError, KeyError, ZeroDivisionError, ValueError):
        return None
    return None if rest else result


def _sum(tokens: list[str], names: dict[str, float | None]) -> tuple[float, list[str]]:
    left, rest = _product(tokens, names)
    while rest and rest[0] in ("+", "-"):
        right, after = _product(rest[1:], names)
        left, rest = (left + right if rest[0] == "+" else left - right), after
    return left, rest


_TIMES: Mapping[str, Callable[[float, float], float]] = {
    "*": operator.mul,
    "floordiv": operator.floordiv,
    "ceildiv": lambda a, b: -(-a // b),
    "mod": operator.mod,
}


def _product(tokens: list[str], names: dict[str, float | None]) -> tuple[float, list[str]]:
    left, rest = _atom(tokens, names)
    while rest and rest[0] in _TIMES:
        right, after = _atom(rest[1:], names)
        left, rest = _TIMES[rest[0]](left, right), after
    return left, rest


def _atom(tokens: list[str], names: dict[str, float | None]) -> tuple[float, list[str]]:
    first, rest = tokens[0], tokens[1:]
    if first == "-":
        inner, rest = _atom(rest, names)
        return -inner, rest
    if first == "(":
        inner, rest = _sum(rest, names)
        if rest[0] != ")":
            raise ValueError(first)
        return inner, rest[1:]
    if first.isdigit():
        return int(first), rest
    known = names[first]
    if known is None:
        raise ValueError(first)
    return known, rest


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
    while match := _STOP.search(text, position):
        mark, position = match[0], match.end()
        if mark == '"':
            position = _end_of_string(text, position)
        elif mark in _OPEN:
            depth += 1
        elif mark in _CLOSE:
            if depth == 0:
                return match.start()
            depth -= 1
        elif mark == "," and depth == 0:
            return match.start()
    return len(text)


def _end_of_string(text: str, position: int) -> int:
    while (quote := text.find('"', position)) > 0 and text[quote - 1] == "\\":
        position = quote + 1
    return quote + 1 if quote >= 0 else len(text)


@lru_cache(_REMEMBERED)
def value(text: str, name: str) -> str | None:
    """The text of attribute `name` wherever in `text` it stands, nested attributes included; None where there is none."""
    match = re.search(rf"(?<![\w.]){re.escape(name)}\s*=\s*", text)
    if match is not None:
        return text[match.end() : end_of_value(text, match.end())].strip()
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
    match = tuple(_TRUTH[word] if word in _TRUTH else int(word) for word in re.findall(r"true|false|-?\d+", body))
    shaped = _SHAPED.search(written) if written.startswith("dense<") else None
    if shaped is not None:
        count = prod(int(size) for size in shaped[1].split("x") if size)
        if len(match) == 1 and "[" not in body:
            return match * count if count <= _LONGEST_LIST else None
        return match if len(match) == count else None
    return match if match or body.strip() in ("", "[]") else None


def integers(text: str, *names: str) -> tuple[int, ...] | None:
    """The integers of the first of these attributes that there is."""
    for name in names:
        written = value(text, name)
        if written is not None and (match := numbers(written)) is not None:
            return match
    return None


def integer(text: str, *names: str) -> int | None:
    """The one integer of the first of these attributes that there is."""
    match = integers(text, *names)
    return match[0] if match is not None and len(match) == 1 else None


def word(text: str, name: str) -> str:
    """The last word of an attribute: `LT` of `#stablehlo<comparison_direction LT>`; empty where there is none."""
    matches = re.findall(r"\w+", value(text, name) or "")
    return matches[-1] if matches else ""


@lru_cache(_REMEMBERED)
def pieces(written: str) -> tuple[str, ...]:
    """The pieces of a list's inside, split at its own commas."""
    match, position = [], 0
    while position < len(written):
        end = end_of_value(written, position)
        match.append(written[position:end].strip())
        position = end + 1
    return tuple(piece for piece in match if piece)


@lru_cache(_REMEMBERED)
def groups(written: str) -> tuple[tuple[int, ...], ...]:
    """The lists of a list of lists: `[[0, 1], [2]]`."""
    inner = written.strip().removeprefix("[").removesuffix("]")
    return tuple(tuple(int(n) for n in _INTEGER.findall(piece)) for piece in pieces(inner))
