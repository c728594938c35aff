"""Layers that a text repeats: a shorter text with a few of them, and what it takes to put the others back.

Large programs are stacks of equal layers: the same lines but for the names of values. Reading `LAYERS_READ` of them costs a
fraction of reading all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..types.graph import LAYERS_READ, Origin, RepeatedLayers
from .text_limits import MAX_OPS

_Codes = npt.NDArray[np.int64]

_SHORTEST = 4096
"""Characters of the shortest text that is looked at; smaller ones are read in a millisecond or two."""

_LEAST_SAVED = 0.3
"""Least share of a text's names that must be left out: looking costs a tenth of reading."""

_PERIODS_TRIED = 16
_MOST_RESULTS, _LONGEST_LABEL = 64, 64
"""Most results of an operation, and arguments of a block, that are told from operands."""

_SHORTEST_PERIOD = 3
"""Names of the smallest layer."""

_NAME = re.compile(r"(%[\w$.-]+)")
_RESULT = re.compile(r"(?::\d+)? = ")
"""What follows a name where it is defined as a result."""

_FIRST_ARGUMENT = re.compile(r"(?:\^[\w$.-]+|\breducer|\n *)\($")
"""What stands before the first argument of a block."""

_HEADER = re.compile(r"^ *(?:\w+\.)?func .*", re.MULTILINE)
_RESOURCE = re.compile(r'dense_resource<[^<>\n"]{0,200}>')
# The closing quote may be missing: to look for it again from every later quote would take quadratic time.
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*+"?+')
_READ_WHOLE = ("memref", "tt.func", "loc(", "//")
"""Words of texts that are read whole: memory that is written, kernels of Triton, lines of another text, comments."""


class _Stack(NamedTuple):
    """Equal layers in a text: the first name of the first one, names of a layer, and layers."""

    start: int
    period: int
    n_layers: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.n_layers


class _Words:
    """A text taken apart: its names, what stands before each and after the last, and numbers for both."""

    def __init__(self, text: str) -> None:
        self.parts = _NAME.split(text)
        self.pieces, self.names = self.parts[0::2], self.parts[1::2]
        plain = [_RESOURCE.sub("", piece) for piece in self.pieces] if "dense_resource<" in text else self.pieces
        self.codes, numbers = _numbered(plain)
        self.lines = np.array([piece.count("\n") for piece in numbers])[self.codes].cumsum()
        """Line of each name, from 0."""
        self.depths = np.array([piece.count("{") - piece.count("}") for piece in numbers])[self.codes].cumsum()
        self.links = _distances(_numbered(self.names)[0])
        """How many names back each name stands too; 0 where it does not."""
        self.arguments = range(0)
        """Places of the arguments of the function with the layers."""
        self._definitions: dict[int, int | None] = {}

    def definition(self, place: int) -> int | None:
        """Where the name at a place is defined; None for nowhere before. What can be seen is never hidden in MLIR."""
        places = []
        while place not in self._definitions:
            places.append(place)
            if self.is_definition(place):
                self._definitions[place] = place
            elif not self.links[place]:
                self._definitions[place] = None
            else:
                place -= int(self.links[place])
        result = self._definitions[place]
        self._definitions.update(dict.fromkeys(places, result))
        return result

    def is_definition(self, place: int) -> bool:
        """Whether a name stands where it is defined, as a result or as one of a list of arguments with types."""
        if place in self.arguments:
            return True
        after = self.pieces[place + 1]
        if after.startswith(": "):
            first = next((i for i in range(place, place - _MOST_RESULTS, -1) if not self.pieces[i].startswith(": ")), 0)
            return _FIRST_ARGUMENT.search(self.pieces[first][-_LONGEST_LABEL:]) is not None
        if after != ", ":
            return _RESULT.match(after) is not None
        first = self._first_of_line(place)
        results = self.pieces[first + 1 : first + 1 + _MOST_RESULTS]
        last = next((i for i, piece in enumerate(results) if piece != ", "), None)
        begins_line = not self.pieces[first].rpartition("\n")[2].strip()
        return begins_line and last is not None and place <= first + last and _RESULT.match(results[last]) is not None

    def is_returned(self, place: int) -> bool:
        """Whether a name stands in a line that returns values."""
        return "return " in self.pieces[self._first_of_line(place)].rpartition("\n")[2]

    def _first_of_line(self, place: int) -> int:
        return int(np.searchsorted(self.lines, self.lines[place]))


def repeated_layers(text: str) -> RepeatedLayers | None:
    """The layers that a text repeats; None where it has none, where they differ, or where little would be saved."""
    if len(text) < _SHORTEST or text.count("\n") > MAX_OPS or any(word in text for word in _READ_WHOLE):
        return None
    if '"' in text and any("%" in string for string in _STRING.findall(text)):
        return None
    words = _Words(text)
    for period in _periods(words.codes):
        first, end = _longest_run(words.codes, period)
        if (end - first) // period - LAYERS_READ >= max(1, _LEAST_SAVED * len(words.names) / period):
            return _layers(text, words, period, first, end)
    return None


def _numbered(words: Sequence[str]) -> tuple[_Codes, dict[str, int]]:
    """A number for each word, the same for the same word, and the numbers by word."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int64), numbers


def _distances(codes: _Codes) -> _Codes:
    order = np.argsort(codes, kind="stable")
    result = np.zeros(len(codes), dtype=np.int64)
    result[order[1:]] = np.where(codes[order[1:]] == codes[order[:-1]], order[1:] - order[:-1], 0)
    return result


def _periods(codes: _Codes) -> Iterator[int]:
    """The commonest distances between equal pieces, the commonest first."""
    counts = np.bincount(_distances(codes))
    counts[:_SHORTEST_PERIOD] = 0
    for period in np.argsort(counts, kind="stable")[::-1][:_PERIODS_TRIED].tolist():
        if counts[period]:
            yield period


def _longest_run(codes: _Codes, period: int) -> tuple[int, int]:
    """The longest stretch of pieces that are the same after `period`: from, and to."""
    breaks = np.flatnonzero(codes[:-period] != codes[period:])
    starts, ends = np.concatenate([[0], breaks + 1]), np.concatenate([breaks, [len(codes) - period]])
    best = int(np.argmax(ends - starts))
    return int(starts[best]), int(ends[best]) + period


def _layers(text: str, words: _Words, period: int, first: int, end: int) -> RepeatedLayers | None:
    """The layers in a stretch of equal pieces, if they are whole lines of one function, wired alike."""
    before = "".join(words.parts[: 2 * first + 1])
    header = next(reversed(list(_HEADER.finditer(before))), None)
    if header is None:
        return None
    arguments = _NAME.findall(header[0])
    entry = len(_NAME.findall(before, 0, header.start()))
    words.arguments = range(entry, entry + len(arguments))
    stack = _stack(words, period, first, end, int(words.depths[min(words.arguments.stop, first)]))
    if stack is None or any(map(_HEADER.search, words.pieces[stack.start + 1 : stack.start + 1 + period])):
        return None
    inside = words.links[stack.start : stack.end].reshape(stack.n_layers, period)
    links = np.where(inside <= np.arange(period) + period, inside, 0)
    if (links[2:] != links[1]).any():
        return None
    inputs = [j for j in np.flatnonzero(links[1] == 0).tolist() if not words.is_definition(stack.start + j)]
    origins = _origins(text, words, stack, inputs)
    after = _after(words, stack)
    if origins is None or after is None:
        return None
    line, after_first = words.lines[[stack.start, stack.start + period]].tolist()
    n_lines = after_first - line
    last_layer = 2 * (stack.start + (LAYERS_READ - 1) * period)
    between = words.parts[last_layer]
    newline = between.rindex("\n")
    blank = "\n" * ((stack.n_layers - LAYERS_READ) * n_lines)
    remaining = [*words.parts[:last_layer], between[:newline], blank, between[newline:]]
    # The last layer that is read has the inputs of the last one of all, which what follows may read too.
    shift = (stack.n_layers - LAYERS_READ) * period
    places = [stack.start + (LAYERS_READ - 1) * period + j for j in inputs]
    names = {words.names[place]: words.names[place + shift] for place in places}
    remaining += [names.get(part, part) for part in words.parts[last_layer + 1 : last_layer + 2 * period]]
    return RepeatedLayers("".join([*remaining, *after]), line + 1, n_lines, stack.n_layers, origins)


def _stack(words: _Words, period: int, first: int, end: int, depth: int) -> _Stack | None:
    """The layers of a stretch, each from the beginning of a line at this depth of braces, the last one as late as possible."""
    pieces, end = words.pieces, min(end, len(words.names))
    for rest in range(period):
        start = first + (end - first - rest) % period
        if words.depths[start] == depth and "\n" in pieces[start] and _RESULT.match(pieces[start + 1]):
            # The piece before a name has the end of the line before; what follows the last layer must end it alike.
            count = (end - start) // period
            ending = pieces[start][: pieces[start].rindex("\n") + 1]
            count -= not pieces[start + count * period].startswith(ending)
            return _Stack(start, period, count) if count > LAYERS_READ else None
    return None


def _origins(text: str, words: _Words, stack: _Stack, inputs: Sequence[int]) -> tuple[tuple[Origin, ...], ...] | None:
    """Where each layer's own values come from; None where they are neither arguments nor constants in lines that say the same.

    What is computed from other values may differ in these.
    """
    lines: list[str] = []
    result: list[tuple[Origin, ...]] = []
    first_definitions: list[str] = []
    for start in range(stack.start, stack.end, stack.period):
        layer: list[Origin] = []
        definitions: list[str] = []
        for j in inputs:
            place = words.definition(start + j)
            if place is None or not words.arguments.start <= place < stack.start:
                return None
            if place in words.arguments:
                layer.append(("argument", place - words.arguments.start))
                definitions.append("")
                continue
            lines = lines or text.split("\n")
            line = int(words.lines[place])
            definition, n_names = _NAME.subn("%", _RESOURCE.sub("", lines[line]))
            if n_names > 1:
                return None
            layer.append(("line", line + 1))
            definitions.append(definition)
        if result and definitions != first_definitions:
            return None
        first_definitions = definitions
        result.append(tuple(layer))
    return tuple(result)


def _after(words: _Words, stack: _Stack) -> list[str] | None:
    """The parts after the last layer, with names of layers that are read; None where others than the last are used there.

    Values of all layers may be returned, in the order of the layers: of those that are not read the one that stands for them.
    """
    after = words.parts[2 * stack.end :]
    names: dict[str, str] = {}
    returned: dict[int, list[int]] = {}
    for place in range(stack.end, len(words.names)):
        name = words.names[place]
        if words.is_definition(place):
            names.pop(name, None)
        elif place - words.links[place] < stack.end:
            origin = words.definition(place)
            if origin is not None and stack.start <= origin < stack.end:
                layer, j = divmod(origin - stack.start, stack.period)
                if layer == stack.n_layers - 1:
                    layer = LAYERS_READ - 1
                elif not words.is_returned(place):
                    return None
                else:
                    returned.setdefault(j, []).append(layer)
                    layer = min(layer, LAYERS_READ - 2)
                names[name] = words.names[stack.start + layer * stack.period + j]
        after[2 * (place - stack.end) + 1] = names.get(name, name)
    inner = list(range(1, stack.n_layers - 1))
    return after if all([layer for layer in layers if layer] == inner for layers in returned.values()) else None
