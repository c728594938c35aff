"""Affine maps: which dimensions index an operand, and the numbers a map gives for known ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from .attributes import pieces

_MAP = re.compile(r"(?:affine_map<)?\(([^()]*)\)\s*(?:\[([^\]]*)\])?\s*->\s*\((.*)\)>?\s*$", re.S)
_MAPS = re.compile(r"affine_map<.*?\)>", re.S)
_TOKEN = re.compile(r"\d+|\w+|[-+*()]")
_LONGEST = 400
"""Most tokens of one expression evaluated: printed maps are far shorter, and evaluation recurses."""


@dataclass(frozen=True, slots=True)
class AffineMap:
    """`(dims)[symbols] -> (results)`, the results as texts over the names."""

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
        found = re.search(rf"\b{name} \* (\d+)|(\d+) \* {name}\b", self.results[result])
        return int(found[1] or found[2]) if found else 1


@lru_cache(4096)
def parse_map(text: str) -> AffineMap | None:
    """The map of `affine_map<(d0) -> (d0)>`; None for text that is none."""
    found = _MAP.match(text.strip())
    if found is None:
        return None
    dims, symbols, results = (pieces(part or "") for part in found.groups())
    return AffineMap(dims, symbols, results)


@lru_cache(4096)
def parse_maps(text: str) -> tuple[AffineMap, ...]:
    """All maps of a list of maps, in order."""
    found = (parse_map(one) for one in _MAPS.findall(text))
    return tuple(one for one in found if one is not None)


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


def _product(tokens: list[str], names: dict[str, float | None]) -> tuple[float, list[str]]:
    left, rest = _atom(tokens, names)
    while rest and rest[0] in ("*", "floordiv", "ceildiv", "mod"):
        right, after = _atom(rest[1:], names)
        if rest[0] == "*":
            left = left * right
        elif rest[0] == "floordiv":
            left = left // right
        elif rest[0] == "ceildiv":
            left = -(-left // right)
        else:
            left = left % right
        rest = after
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
