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
        self._matches = _TOKEN.finditer(text)
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
        match = next(self._matches, None)
        self._count += 1
        if match is None or match.lastgroup == "gap" or self._count > _MAX_TOKENS:
            self.is_cut = self.is_cut or (match is not None and match.lastgroup != "gap")
            self._matches = iter(())
            return Token("end", "", len(self.text), len(self.text), self._line, True)
        gap = match["gap"]
        breaks = gap.count("\n")
        self._line += breaks
        kind = match.lastgroup or "end"
        start, end = match.span(kind)
        return Token(kind, match[kind], start, end, self._line, breaks > 0 or start == 0 or self._count == 1)


OLD_NAMES = {
    "module": "builtin.module", "func": "func.func", "return": "func.return", "call": "func.call", "br": "cf.br",
    "cond_br": "cf.cond_br",
}  # fmt: skip
"""Operations that are, or once were, written without a dialect."""

_REGION_OWNER = re.compile(r"(?:^|\.)(?:func|module)$")
_TERMINATOR = re.compile(r"(?:yield|return|terminator|end|stop|unreachable|condition)$")
_OP_NAME = re.compile(r"[A-Za-z_][\w$]*(?:\.[\w$]+)+")
_RETURN = re.compile(r"(?:[\w$]+\.)*(?:return|yield)")
_FURTHEST_EQUALS = 64


def is_region_owner(name: str) -> bool:
    """Whether an operation is a function or module by its name: isolated, and braces after it are a region."""
    return _REGION_OWNER.search(name) is not None


def starts_alias(tokens: Tokens) -> bool:
    """Whether `#name =` or `!name =` comes."""
    return tokens.peek().kind in ("alias", "type") and tokens.peek(1).text == "="


def starts_next(tokens: Tokens, last: str, *, is_closed: bool) -> bool:
    """Whether an operation being read has ended because something else begins.

    `last` is what came before, `is_closed` says that no bracket is open in it. Inside brackets only results and an equals sign
    at the beginning of a line are another operation: a bracket is missing then. Several operations on a line are told apart
    where a region ends, and by the words that end one.
    """
    token = tokens.peek()
    if token.kind == "value":
        return (is_closed or token.is_first) and starts_operation(tokens)
    if not is_closed:
        return False
    if token.is_first or last == "}":
        return token.kind == "label" or starts_alias(tokens) or starts_operation(tokens, anywhere=True)
    return token.kind == "word" and _RETURN.fullmatch(token.text) is not None


def starts_operation(tokens: Tokens, *, anywhere: bool = False) -> bool:
    """Whether an operation begins here; where one is being read, only what begins a line can."""
    token = tokens.peek()
    if token.kind == "value":
        return _defines(tokens, _FURTHEST_EQUALS if anywhere or token.is_first else 4)
    if not (anywhere or token.is_first):
        return False
    if token.kind == "word":
        return _OP_NAME.fullmatch(token.text) is not None or (token.text in OLD_NAMES and tokens.peek(1).text != "=")
    return token.kind == "string" and tokens.peek(1).text == "(" and _OP_NAME.fullmatch(token.text[1:-1]) is not None


def _defines(tokens: Tokens, limit: int) -> bool:
    """Whether values and an equals sign come, and after it the name of an operation."""
    peek = tokens.peek
    for position in range(1, limit):
        token = peek(position)
        if token.text == "=":
            after = peek(position + 1)
            return after.kind == "string" or (after.kind == "word" and not after.is_first)
        if token.kind not in ("value", "number") and token.text not in (":", ","):
            return False
    return False


def opens_region(tokens: Tokens, name: str, last: str, *, is_body: bool) -> bool:
    """Whether the brace that comes opens a region of operation `name`, else attributes; `last` is what came before it.

    `is_body` says that it is outside brackets and the first: a function or a module follows it with its body.
    """
    if last in ("<", "=", "attributes"):
        return False
    if is_body and is_region_owner(name):
        return True
    after, second = tokens.peek(1), tokens.peek(2).text
    if after.kind in ("value", "label"):
        return True
    if after.text == "}":
        return last in ("(", ",", "else", "do")
    if after.kind == "string":
        return second == "("
    if after.kind != "word":
        return False
    if second in ("=", ",", "}"):
        return second == "}" and _TERMINATOR.search(after.text) is not None
    return "." in after.text or after.text in OLD_NAMES
