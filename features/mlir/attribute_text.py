"""The attributes of an operation as people write it, as text: what is neither value, type nor region."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .pretty import generic_attributes
from .statement import BLANKS, NO_ATTRIBUTES, Statement

_VISIBILITIES = {"private": "private", "nested": "nested", "internal": "private"}
_NAMED = re.compile(r"(?:^|\.)(?:func|module|global|executable|variant|export|named_sequence)$")
_AFTER_TYPE = frozenset((",", "{", ")", "loc"))
_LEFT_OVER_COMMAS = re.compile(r"(?:\s*,){2,}")
_PROPERTIES = re.compile(r"^<\s*(.*?)\s*>(?=$|[\s,])")


def attributes_of(statement: Statement, written: Sequence[str]) -> str:
    """The text of its attributes: what is neither value nor type, braces left off."""
    if statement.is_function and _symbol(statement):
        return _function_attributes(statement)
    text = _attribute_text(statement)
    if statement.name.endswith(".constant") or statement.name == "llvm.mlir.constant":
        of_type = f" : {written[-1]}" if written else ""
        return f"value = {text}{of_type}" if not text.startswith("value =") else text
    symbol = _symbol(statement) if _NAMED.search(statement.name) else ""
    text = generic_attributes(statement.name, text)
    return ", ".join(filter(None, (f'sym_name = "{symbol}"' if symbol else "", text)))


def _function_attributes(statement: Statement) -> str:
    arrow = statement.last("->")
    inputs = [kind for _, kind in statement.typed_definitions()] or _declared(statement)
    outs = statement.types_from(arrow + 1) if arrow is not None else []
    about = _argument_attributes(statement)
    words = [token.text for token in statement.tokens[:4]]
    visibility = next((_VISIBILITIES[word] for word in words if word in _VISIBILITIES), "")
    return ", ".join(filter(None, (
        f'sym_name = "{_symbol(statement)}"',
        f'sym_visibility = "{visibility}"' if visibility else "",
        f"arg_attrs = [{', '.join(about)}]" if any(one != "{}" for one in about) else "",
        f"function_type = ({', '.join(inputs)}) -> ({', '.join(outs)})",
    )))  # fmt: skip


def _argument_attributes(statement: Statement) -> list[str]:
    """The braces after each argument's type, `{}` where there are none."""
    found = []
    for position, token in enumerate(statement.tokens[:-1]):
        if token.kind != "value" or statement.tokens[position + 1].text != ":":
            continue
        end, depth = position + 2, statement.depths[position]
        while end < len(statement.tokens) and (
            statement.depths[end] > depth or statement.tokens[end].text not in _AFTER_TYPE
        ):
            end += 1
        has = end < len(statement.tokens) and statement.tokens[end].text == "{"
        group = statement.tokens[end : statement.end_of_group(end)] if has else []
        found.append(statement.expand(BLANKS.sub(" ", statement.slice(group))) if has else "{}")
    return found


def _declared(statement: Statement) -> list[str]:
    """Argument types of a declaration, which names no arguments."""
    for position, token in enumerate(statement.tokens):
        if token.text == ")" and statement.depths[position] == 0:
            group = statement.group_before(position)
            return statement.unfolded(f"({statement.source[group[0].start : group[-1].end]})") if group else []
    return []


def _attribute_text(statement: Statement) -> str:
    """Its text without values, groups with values in them, types, braces and locations."""
    kept: list[str] = []
    position = 0
    stop = _types_start(statement)
    while position < len(statement.tokens):
        token = statement.tokens[position]
        end = statement.end_of_group(position)
        group = statement.tokens[position:end]
        if token.text == "(" and end == position + 2:
            position = end
            continue
        if token.text == "loc":
            position = statement.end_of_group(position + 1)
            continue
        if token.text == "{" or (token.text == "<" and len(group) > 1 and group[1].text == "{"):
            inner = group[2:-2] if token.text == "<" else group[1:-1]
            kept.append(f", {statement.slice(inner)}, ")
        elif position < stop and not any(inner.kind in NO_ATTRIBUTES for inner in group) and token.text != "attributes":
            gap = "" if position == 0 or statement.tokens[position - 1].end == token.start else " "
            kept.append(gap + statement.slice(group))
        position = end
    text = _LEFT_OVER_COMMAS.sub(",", BLANKS.sub(" ", "".join(kept))).strip(" ,")
    return statement.expand(_PROPERTIES.sub(r"\1", text).replace(" ,", ","))


def _types_start(statement: Statement) -> int:
    """Where types begin, after which nothing but braces is an attribute."""
    arrow, colon = statement.last("->"), statement.last(":")
    starts = [position for position in (arrow, colon) if position is not None]
    return min(starts, default=len(statement.tokens))


def _symbol(statement: Statement) -> str:
    """The name after the first `@` outside of brackets; empty without one, as in generic form."""
    for token, depth in zip(statement.tokens, statement.depths, strict=True):
        if token.kind == "symbol" and depth == 0:
            return token.text[1:].strip('"')
    return ""
