"""MLIR text cut into tokens, one after the other, whatever the text."""

from __future__ import annotations

import re
from collections import deque
from typing import NamedTuple

_TOKEN = re.compile(
    r"(?P<gap>(?:\s++|//[^\n]*+)*+)(?:"
    r"(?P<value>%[\w$.\-]++(?:\#\d++)?)"
    r'|(?P<string>"(?:[^"\\\n]|\\.)*+")'
    # A type or attribute with what is in its angle brackets, when those are simple; else its name alone.
    # A name is tried from its first character only: from each of them it would take quadratic time.
    r"|(?P<type>(?:[!\#][\w$.\-]++|(?<![\w$.\-])[\w$\-]++)<(?:[^-<>\"{}()/%\n]++|->|-|<(?:[^-<>\"{}()/%\n]++|->|-)*+>)*+>)"
    r"|(?P<label>\^[\w$.\-]++)"
    r'|(?P<symbol>@(?:[\w$.\-]++|"(?:[^"\\\n]|\\.)*+"))'
    r"|(?P<alias>[!\#][\w$.\-]++)"
    r"|(?P<word>[A-Za-z_][\w$.]*+)"
    r"|(?P<number>-?\d[\w.]*+(?:[eE][+\-]\d++)?)"
    # A string without its end is one mark, for the same reason.
    r'|(?P<mark>->|>=|<=|==|::|"(?:[^"\\\n]|\\.)*+|.)'
    r"|$)",
    re.DOTALL,
)
_MAX_TOKENS = 1_000_000
"""Where reading stops, after about a second. The text of a program has one token for more than four characters."""


class Token(NamedTuple):
    """A piece of text: what kind, where, on which line, and whether it is the first on its line."""

    kind: str
    text: str
    start: int
    end: int
    line: int
    is_first: bool


class Tokens:
    """The tokens of a text, with a look ahead. After the last comes one of kind `end`, again and again.

    `is_cut` says that the text had more tokens than are read.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.is_cut = False
        self._found = _TOKEN.finditer(text)
        self._ahead: deque[Token] = deque()
        self._line = 1
        self._count = 0

    def peek(self, distance: int = 0) -> Token:
        """The token `distance` after the next."""
        while len(self._ahead) <= distance:
            self._ahead.append(self._pull())
        return self._ahead[distance]

    def take(self) -> Token:
        """The next token; it is behind then."""
        return self._ahead.popleft() if self._ahead else self._pull()

    def _pull(self) -> Token:
        found = next(self._found, None)
        self._count += 1
        if found is None or found.lastgroup == "gap" or self._count > _MAX_TOKENS:
            self.is_cut = self.is_cut or (found is not None and found.lastgroup != "gap")
            self._found = iter(())
            return Token("end", "", len(self.text), len(self.text), self._line, True)
        gap = found["gap"]
        breaks = gap.count("\n")
        self._line += breaks
        kind = found.lastgroup or "end"
        start, end = found.span(kind)
        return Token(kind, found[kind], start, end, self._line, breaks > 0 or start == 0 or self._count == 1)
