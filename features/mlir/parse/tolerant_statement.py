"""One operation as people write it: from its tokens to operands, types, attributes, and what its regions are entered with."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..types.graph import split_types
from .tolerant_tokens import Token

_OPENING, _CLOSING = frozenset("([<{"), frozenset(")]>}")
_TYPE_SEPARATORS = frozenset((",", "to", "into", "from", "*"))
_BEGINS_TYPE = frozenset(("word", "type", "alias"))
_AFTER_TYPES = frozenset(("attributes", "loc", "{", ":", "->"))
NO_ATTRIBUTES = frozenset(("value", "region", "label"))
_TAKES_OPERANDS = frozenset(("ins", "outs", "args", "init", "inits"))
_IN_PAIRS = frozenset(("stablehlo.reduce", "mhlo.reduce"))
_BOUND_BY = frozenset(("=", "in"))
_FUNCTION = re.compile(r"(?:^|\.)func$")
BLANKS = re.compile(r"\s+")


@dataclass(slots=True)
class Statement:
    """An operation being read: its name and its tokens so far, without those in its regions.

    Attributes:
        name: Name of the operation, with its dialect.
        source: The whole text.
        expand: Replaces aliases in a text by their meanings.
        tokens: Its tokens; a region is one token of kind `region`.
        depths: For each token the number of brackets around it.
    """

    name: str
    source: str
    expand: Callable[[str], str]
    tokens: list[Token] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)

    @property
    def is_function(self) -> bool:
        """Whether it is a function, by its name."""
        return _FUNCTION.search(self.name) is not None

    def add(self, token: Token, depth: int) -> None:
        """Take one more token, inside `depth` brackets."""
        self.tokens.append(token)
        self.depths.append(depth)

    def definitions(self) -> list[tuple[str, str]]:
        """Values its region is entered with, where the short form names them, with their types (empty where unknown)."""
        typed = self.typed_definitions()
        if typed:
            return typed
        bound = self._bound_definitions()
        arrow, written = self.types()
        kinds = arrow if arrow is not None else written
        if not self.name.endswith("for") or not bound:
            return [(name, kinds[i] if i < len(kinds) else "index") for i, name in enumerate(bound)]
        first = written[0] if arrow is not None and len(written) == 1 else "index"
        carried = arrow or []
        return [
            (bound[0], first),
            *((name, carried[i] if i < len(carried) else "") for i, name in enumerate(bound[1:])),
        ]

    def operands(self, defined: Sequence[str]) -> list[str]:
        """Values it uses, in the order written; `defined` are those it names anew."""
        new = set(defined)
        used = [token.text for token in self.tokens if token.kind == "value" and token.text not in new]
        # `reduce(%a init: %b), (%c init: %d)` has operands a, c, b, d.
        has_inits = any(token.text == "init" for token in self.tokens)
        return used[::2] + used[1::2] if self.name in _IN_PAIRS and has_inits else used

    def types(self) -> tuple[list[str] | None, list[str]]:
        """Types after its last arrow (None without one) and after its last colon."""
        arrow, colon = self.last("->"), self.last(":")
        written = self.types_from(colon + 1) if colon is not None else []
        if arrow is None and not written:
            written = self._types_of_outs()
        return (None if arrow is None else self.types_from(arrow + 1)), written

    def _types_of_outs(self) -> list[str]:
        """The types in `outs(%a, %b : t, u)`, which an operation on tensors without an arrow gives back."""
        for position, token in enumerate(self.tokens[:-1]):
            if token.text == "outs" and self.tokens[position + 1].text == "(" and self.depths[position] == 0:
                end = self.end_of_group(position + 1)
                colon = next(
                    (i for i in range(position, end) if self.tokens[i].text == ":" and self.depths[i] == 1), end
                )
                inner = self.tokens[colon + 1 : end - 1]
                return self.unfolded(f"({self.slice(inner)})") if inner else []
        return []

    def last(self, mark: str) -> int | None:
        """The position of the last `mark` outside of brackets."""
        for position in range(len(self.tokens) - 1, -1, -1):
            if self.tokens[position].text == mark and self.depths[position] == 0:
                return position
        return None

    def types_from(self, start: int) -> list[str]:
        """The types written from token `start` on, to the end of them."""
        kinds: list[str] = []
        begin: int | None = None
        end = start
        for end in range(start, len(self.tokens)):
            token = self.tokens[end]
            if self.depths[end] > 0:
                continue
            if token.text in _TYPE_SEPARATORS:
                if begin is not None:
                    kinds += self.unfolded(self.source[begin : self.tokens[end - 1].end])
                begin = None
            elif token.text in _AFTER_TYPES or token.kind in NO_ATTRIBUTES or self._goes_on(end, begin):
                break
            elif begin is None:
                begin = token.start
        else:
            end = len(self.tokens)
        return kinds if begin is None else kinds + self.unfolded(self.source[begin : self.tokens[end - 1].end])

    def _goes_on(self, position: int, begin: int | None) -> bool:
        """Whether the short form goes on after a type, `-> tensor<f32> reducer(…) {`: another word begins."""
        token = self.tokens[position]
        return begin is not None and token.kind in _BEGINS_TYPE and self.tokens[position - 1].end < token.start

    def unfolded(self, text: str) -> list[str]:
        """A type, or the types in parentheses, their own attributes left off."""
        text = self.expand(BLANKS.sub(" ", text.strip()))
        parts = split_types(text[1:-1]) if text.startswith("(") and text.endswith(")") else [text]
        return [part.partition(" {")[0].partition(" loc(")[0].strip() for part in parts]

    def _bound_definitions(self) -> list[str]:
        """Values that an equals sign follows, or a group of values that `=` or `in` follows."""
        results: list[str] = []
        for position, token in enumerate(self.tokens[:-1]):
            if token.kind == "value" and self.tokens[position + 1].text == "=":
                results.append(token.text)
            elif token.text == ")" and self.tokens[position + 1].text in _BOUND_BY:
                results += [inner.text for inner in self.group_before(position) if inner.kind == "value"]
        return results

    def group_before(self, closing: int) -> list[Token]:
        """The tokens between the bracket that closes at `closing` and where it opened."""
        opening = closing - 1
        while opening >= 0 and self.depths[opening] > self.depths[closing]:
            opening -= 1
        return self.tokens[opening + 1 : closing]

    def typed_definitions(self) -> list[tuple[str, str]]:
        """`(%a: t, %b: t)` of a function, or just before a region where it does not list operands."""
        if self.is_function:
            return self._typed(0, len(self.tokens))
        groups: list[list[tuple[str, str]]] = []
        end = len(self.tokens)
        while end > 0 and self.tokens[end - 1].text == ")":
            start = end - 2 - len(self.group_before(end - 1))  # -1 where nothing opened it
            if start > 0 and self.tokens[start - 1].text in _TAKES_OPERANDS:
                break
            groups.insert(0, self._typed(start, end))
            end = start
        # `reducer(%a: t, %b: t) (%c: t, %d: t)` are accumulators a and c, then elements b and d.
        if len(groups) > 1:
            return [item for column in zip(*groups, strict=False) for item in column]
        return groups[0] if groups else []

    def _typed(self, start: int, end: int) -> list[tuple[str, str]]:
        """Values of tokens `start` to `end` that a colon and a type follow."""
        return [
            (token.text, self._type_at(position + 2, self.depths[position]))
            for position, token in enumerate(self.tokens[max(start, 0) : end - 1], max(start, 0))
            if token.kind == "value" and self.tokens[position + 1].text == ":"
        ]

    def _type_at(self, start: int, depth: int) -> str:
        """The type that starts at token `start`, to the comma or bracket that ends it at `depth`."""
        end = start
        while end < len(self.tokens):
            token = self.tokens[end]
            if self.depths[end] < depth or (self.depths[end] == depth and token.text in (",", "{", "loc")):
                break
            end += 1
        if end == start:
            return ""
        return self.expand(BLANKS.sub(" ", self.source[self.tokens[start].start : self.tokens[end - 1].end]))

    def end_of_group(self, position: int) -> int:
        """The position after the bracket group that starts at `position`, or after the token there."""
        if position >= len(self.tokens) or self.tokens[position].text not in _OPENING:
            return position + 1
        depth, end = self.depths[position], position + 1
        while end < len(self.tokens) and self.depths[end] > depth:
            end += 1
        return min(end + 1, len(self.tokens))

    def slice(self, tokens: Sequence[Token]) -> str:
        """The text from the first of `tokens` to the last."""
        return self.source[tokens[0].start : tokens[-1].end] if tokens else ""
