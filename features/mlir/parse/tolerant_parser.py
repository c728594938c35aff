"""The reader of last resort: takes MLIR text of any dialect and version, and says what it could not make anything of.

It knows how MLIR looks, not what operations mean: results and an equals sign begin an operation, a colon begins types, braces
are regions or attributes. What it gets wrong is a type or an attribute, never the text as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..types.graph import Block, Module, Op, Region, value_type
from .generic_form import Scopes, functions_of
from .text_limits import MAX_DEPTH, MAX_OPS, too_deep, too_many_ops
from .tolerant_attributes import applied, attributes_of, result_types
from .tolerant_statement import Statement
from .tolerant_tokens import (
    OLD_NAMES,
    Tokens,
    is_region_owner,
    opens_region,
    starts_alias,
    starts_next,
    starts_operation,
)

_RESOURCES = "\n{-#"
_ALIAS = re.compile(r"[!#][\w$.\-]+")
_LONGEST_ALIAS, _LONGEST_ATTRIBUTES = 4096, 1 << 16
_MAX_UNREAD, _MAX_PIECE = 1000, 200
_MAY_BEGIN = frozenset(("value", "word"))
_OPENING, _CLOSING = frozenset("([<"), frozenset(")]>")


def read_tolerant(text: str, reader: str, refusals: Sequence[tuple[str, str]] = ()) -> Module:
    """The graph of any text; a module without functions when it has no operation at all.

    Raises:
        SpecError: it has more than `MAX_OPS` operations.
    """
    end = text.find(_RESOURCES)
    reading = _Reading(text if end < 0 else text[:end])
    ops = [op for block in reading.body(is_nested=False) for op in block.ops]
    types = reading.scopes.types
    return Module(functions_of(ops, types), types, reader, tuple(refusals), tuple(reading.unread))


class _Reading:
    """One reading of a text: the tokens ahead, the names known, and what could not be read."""

    def __init__(self, text: str) -> None:
        self.unread: list[str] = []
        self.scopes = Scopes()
        self._text = text
        self._tokens = Tokens(text)
        self._aliases: dict[str, str] = {}
        self._count = 0
        self._depth = 0

    def body(self, *, is_nested: bool) -> list[Block]:
        """The blocks up to the brace that closes a region, or to the end of the text."""
        blocks = [Block((), [])]
        peek = self._tokens.peek
        while (token := peek()).kind != "end":
            if token.text == "}" and is_nested:
                self._tokens.take()
                break
            if token.kind == "label":
                self._label(blocks)
            elif starts_alias(self._tokens):
                self._alias()
            elif starts_operation(self._tokens, anywhere=True):
                blocks[-1].ops.append(self._operation())
            else:
                self._skip()
        if self._tokens.is_cut and not is_nested:
            self._note("what follows line " + str(token.line))
        return blocks if len(blocks) > 1 or blocks[0].ops or blocks[0].arguments else []

    def _operation(self) -> Op:
        self._count += 1
        if self._count > MAX_OPS:
            raise too_many_ops()
        results = self._results()
        token = self._tokens.take()
        name = token.text.strip('"')
        statement = Statement(OLD_NAMES.get(name, name), self._text, self._expand)
        regions, defined = self._rest(statement)
        arrow, written = statement.types()
        attributes = attributes_of(statement, written)[:_LONGEST_ATTRIBUTES]
        operands = tuple([self.scopes.use(operand) for operand in statement.operands(defined)])
        kinds = result_types(statement.name, len(results), arrow, written)
        outputs = tuple([self.scopes.define(result, kind) for result, kind in zip(results, kinds, strict=True)])
        if (operator := applied(statement.name, attributes)) and operands:
            # A reduction combines two values; a map has one of each input, and its destination comes last.
            count = len(operands) - 1 if statement.name == "linalg.map" else 2
            regions.append(self._applying(operator, operands[-1], count, token.line))
        return Op(statement.name, operands, outputs, attributes, tuple(regions), token.line)

    def _applying(self, operator: str, like: int, count: int, line: int) -> Region:
        """The region that one operation of `count` values is the whole of; all have the type of the value `like`."""
        types = self.scopes.types
        *inputs, out = range(len(types), len(types) + count + 1)
        types += [types[like]] * (count + 1)
        ops = [Op(operator, tuple(inputs), (out,), line=line), Op("stablehlo.return", (out,), (), line=line)]
        return Region([Block(tuple(inputs), ops)])

    def _results(self) -> list[str]:
        """The names it defines, `%a, %b:2 =`; a name with a number stands for so many values."""
        take, peek = self._tokens.take, self._tokens.peek
        names: list[str] = []
        if peek().kind != "value":
            return names
        while (token := take()).text != "=":
            if token.kind != "value":
                continue
            count = peek(1).text if peek().text == ":" else ""
            if count.isdecimal() and len(count) < 5:
                names += [f"{token.text}#{position}" for position in range(int(count))]
            else:
                names.append(token.text)
        return names

    def _rest(self, statement: Statement) -> tuple[list[Region], list[str]]:
        """Everything of an operation after its name; regions, and the names its short form gives what they are entered with."""
        tokens = self._tokens
        regions: list[Region] = []
        definitions: list[tuple[str, str]] = []
        depth = braces = 0
        last = ""
        while (token := tokens.peek()).kind != "end":
            if (token.is_first or token.kind in _MAY_BEGIN or last == "}") and starts_next(
                tokens, last, is_closed=not (depth or braces)
            ):
                break
            if token.text == "}" and not braces:
                break
            if (
                token.text == "{"
                and not braces
                and opens_region(tokens, statement.name, last, is_body=not (depth or regions))
            ):
                definitions = definitions or statement.definitions()
                statement.add(token._replace(kind="region", text=""), depth)
                regions.append(self._region(statement, definitions))
                last = "}"
                continue
            tokens.take()
            if token.text == "}":
                braces -= 1
            elif token.text in _CLOSING:
                depth = max(0, depth - 1)
            statement.add(token, depth + braces)
            if token.text == "{":
                braces += 1
            elif token.text in _OPENING:
                depth += 1
            last = token.text
        if statement.is_function and not regions:
            definitions = statement.definitions()
        return regions, [name for name, _ in definitions]

    def _region(self, statement: Statement, definitions: Sequence[tuple[str, str]]) -> Region:
        self._tokens.take()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise too_deep()
        self.scopes.enter(is_isolated=is_region_owner(statement.name))
        arguments = tuple([self.scopes.define(name, value_type(kind)) for name, kind in definitions])
        blocks = self.body(is_nested=True)
        if arguments and blocks and not blocks[0].arguments:
            blocks[0].arguments = arguments
        elif arguments and not blocks:
            blocks = [Block(arguments, [])]
        self.scopes.next_region()
        self.scopes.leave()
        self._depth -= 1
        return Region(blocks)

    def _label(self, blocks: list[Block]) -> None:
        """`^bb0(%a: t, %b: t):`"""
        take, peek = self._tokens.take, self._tokens.peek
        take()
        statement = Statement("func", self._text, self._expand)
        depth = 0
        while peek().kind != "end" and not (depth == 0 and peek().text != "("):
            token = take()
            depth -= token.text in _CLOSING
            statement.add(token, max(depth, 0))
            depth += token.text in _OPENING
            if depth <= 0:
                break
        if peek().text == ":":
            take()
        arguments = tuple([self.scopes.define(name, value_type(kind)) for name, kind in statement.definitions()])
        if len(blocks) == 1 and not blocks[0].ops and not blocks[0].arguments:
            blocks.clear()
        blocks.append(Block(arguments, []))

    def _alias(self) -> None:
        """`#map = affine_map<…>` or `!t = tensor<…>`: kept, to be put in where it is used."""
        take, peek = self._tokens.take, self._tokens.peek
        name = take().text
        take()
        start = end = peek().start
        depth = 0
        while (token := peek()).kind != "end" and not (depth == 0 and token.is_first and end > start):
            end = take().end
            depth += (token.text in _OPENING or token.text == "{") - (token.text in _CLOSING or token.text == "}")
        meaning = self._expand(self._text[start:end])
        if len(meaning) <= _LONGEST_ALIAS:
            self._aliases[name] = meaning

    def _expand(self, text: str) -> str:
        """`text` with aliases replaced by what they stand for."""
        if not self._aliases or ("#" not in text and "!" not in text):
            return text
        return _ALIAS.sub(lambda item: self._aliases.get(item[0], item[0]), text)

    def _skip(self) -> None:
        """Pass over what begins no operation, to where one may begin."""
        first = last = self._tokens.take()
        while (token := self._tokens.peek()).kind not in ("end", "label") and token.text != "}":
            if token.is_first or (token.kind == "value" and starts_operation(self._tokens)):
                break
            last = self._tokens.take()
        self._note(self._text[first.start : last.end])

    def _note(self, piece: str) -> None:
        if len(self.unread) < _MAX_UNREAD:
            self.unread.append(piece[:_MAX_PIECE])
