"""What the next tokens begin, as far as one can tell without knowing the operation."""

from __future__ import annotations

import re

from .tokens import Tokens

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
