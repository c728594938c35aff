"""A fast reader of MLIR's generic form as native parsers print it: an operation a line, every type written out.

One regular expression takes the whole text apart in C; types and signatures, which repeat, are read once. What does not look
like generic form is refused: this is no reader of what people write. Functions are every operation that is one by name, however
deep in modules, and loose operations. A name is good for the region that defines it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..types.graph import (
    Block,
    Function,
    Module,
    Op,
    Region,
    ValueType,
    first_of_list,
    sides_of_function_type,
    split_function_type,
    split_types,
    value_type,
)
from .text_limits import MAX_OPS, too_many_ops

_SYMBOL = re.compile(r'\bsym_name = "((?:[^"\\]|\\.)*)"')
_PRIVATE = re.compile(r'\bsym_visibility = "(?:private|nested)"|\blinkage = #llvm\.linkage<(?:private|internal)>')
_FUNCTION_TYPE = re.compile(r"\bfunction_type = ")
_ARGUMENT_ATTRIBUTES = re.compile(r"(?:^|, )arg_attrs = \[")
_BRACES = re.compile(r"\{((?:[^{}]|\{[^{}]*\})*)\}")
_LLVM_FUNCTION = "!llvm.func<"


def functions_of(ops: Sequence[Op], types: list[ValueType]) -> tuple[Function, ...]:
    """The functions among `ops` and in the modules among them, in order.

    Operations outside all functions are one public function without a name. Arguments of declarations get values of their own,
    appended to `types`.
    """
    functions: list[Function] = []
    loose: list[Op] = []
    _collect(ops, types, functions, loose)
    if loose:
        functions.append(Function("", True, (), (), Region([Block((), loose)])))
    return tuple(functions)


def _collect(ops: Sequence[Op], types: list[ValueType], functions: list[Function], loose: list[Op]) -> None:
    for op in ops:
        symbol = _SYMBOL.search(op.attributes)
        if symbol and (op.name.endswith(".func") or _FUNCTION_TYPE.search(op.attributes)):
            functions.append(_function(op, symbol[1], types))
        elif op.regions and not op.operands and not op.results and (symbol or op.name.endswith("module")):
            for region in op.regions:
                for block in region.blocks:
                    _collect(block.ops, types, functions, loose)
        elif not symbol:
            loose.append(op)


def _function(op: Op, name: str, types: list[ValueType]) -> Function:
    inputs, outs = _signature(op.attributes)
    body = op.regions[0] if op.regions and op.regions[0].blocks else None
    if body is not None:
        arguments = body.blocks[0].arguments
    else:
        declared = split_types(inputs)
        arguments = tuple(range(len(types), len(types) + len(declared)))
        types.extend(map(value_type, declared))
    results = tuple(value_type(text) for text in outs if text not in ("", "!llvm.void"))
    about = _argument_attributes(op.attributes, len(arguments))
    return Function(name, _PRIVATE.search(op.attributes) is None, arguments, results, body, about)


def _argument_attributes(attributes: str, count: int) -> tuple[str, ...]:
    """What `arg_attrs = [{…}, {}]` says of each argument; empty where it says nothing, or of another number of them."""
    match = _ARGUMENT_ATTRIBUTES.search(attributes)
    if match is None:
        return ()
    parts = _BRACES.findall(first_of_list(attributes[match.end() - 1 :]))
    return tuple(parts) if len(parts) == count else ()


def _signature(attributes: str) -> tuple[str, list[str]]:
    """Argument types, a list to split, and result types of `function_type = (a, b) -> c`, or LLVM's `!llvm.func<c (a, b)>`."""
    match = _FUNCTION_TYPE.search(attributes)
    if match is None:
        return "", []
    text = first_of_list(attributes[match.end() :])
    if not text.startswith(_LLVM_FUNCTION):
        inputs, outs = sides_of_function_type(text)
        return inputs, split_types(outs)
    result, _, inputs = text.removeprefix(_LLVM_FUNCTION).removesuffix(">").partition(" (")
    return sides_of_function_type(inputs.removesuffix(")"))[1], [result]


UNTYPED = value_type("")
"""The type of a value that a reader found no type for."""


class Scopes:
    """Values by name and types by value.

    `ids` are the names that can be seen here. `hidden` is what names defined in the current region meant before it, to be
    restored at its end; None where all names are new, in a function's body. `awaited` are values used before they were defined,
    as blocks and graph regions allow.
    """

    def __init__(self) -> None:
        self.types: list[ValueType] = []
        self.ids: dict[str, int] = {}
        self.hidden: list[tuple[str, int | None]] | None = None
        self.awaited: dict[str, int] = {}
        self._outer: list[tuple[dict[str, int], list[tuple[str, int | None]] | None]] = []

    def enter(self, *, is_isolated: bool) -> None:
        """Begin the regions of an operation; of one that is isolated they see no values from outside."""
        self._outer.append((self.ids, self.hidden))
        self.ids, self.hidden = ({}, None) if is_isolated else (self.ids, [])

    def next_region(self) -> None:
        """A region ends: names it defined mean again what they meant before it."""
        if self.hidden is None:
            self.ids.clear()
            return
        for name, before in reversed(self.hidden):
            if before is None:
                self.ids.pop(name, None)
            else:
                self.ids[name] = before
        self.hidden.clear()

    def leave(self) -> None:
        """The regions of an operation end."""
        self.ids, self.hidden = self._outer.pop()

    def define(self, name: str, kind: ValueType) -> int:
        """A value of type `kind`, called `name` from here on."""
        value = self.awaited.pop(name, None) if self.awaited else None
        if self.hidden is not None:
            self.hidden.append((name, None if value is not None else self.ids.get(name)))
        if value is None:
            value = len(self.types)
            self.types.append(kind)
        elif kind is not UNTYPED:
            self.types[value] = kind
        self.ids[name] = value
        return value

    def use(self, name: str, kind: ValueType = UNTYPED) -> int:
        """The value that `name` means; one of type `kind` that is defined further down, if none yet."""
        value = self.ids.get(name)
        if value is None:
            value = self.ids[name] = self.awaited[name] = len(self.types)
            self.types.append(kind)
        return value


_PLACE = r' loc\((?:"[^"\n]*":(\d++):\d++|unknown)\)'
_END = r"(?: \{(.*)\})?(?: : (\(.*)PLACE| \(\{|, \{)"
"""` {attributes} : (types) -> types loc("-":3:10)`, or the start of regions, or of one more."""
_LINE = (
    # `%0:2 = "dialect.op"(%a, %b)` and the rest of the line, the same for every operation alike but for its place
    r'^ *+(?:(?:(%[^ \n]++) = )?+"([^"\n]++)"\(([^)\n]*+)\)(REST$'
    # or the end of regions, or anything else but an empty line
    r"|\}\)?" + _END + r"$|(.+)$)"
)
_REST = r"(?:\[[^\]\n]*+\])?+(?: <\{(.*)\}>)?" + _END
"""`[^bb1] <{properties}>`, attributes and types."""


def _patterns(place: str, rest: str, start_of_place: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What takes a text apart into lines, and what takes apart what follows an operation's operands."""
    lines = _LINE.replace("PLACE", place).replace("REST", rest)
    return re.compile(lines, re.MULTILINE), re.compile(_REST.replace("PLACE", start_of_place))


_WITH_LINES = _patterns(_PLACE, r'.*":(?=\d++:\d++\)$)|.*)(?:(\d++)(:\d++\)))?', r' loc\((?:"[^"\n]*":|unknown\))')
_WITHOUT_LINES = _patterns("()", ".*)()()", "")
_LABEL = re.compile(r"\^[\w$.]++(?:\((.*)\))?:(?: *//.*+)?")
_ARGUMENT = re.compile(r"(%[^:\n]+): (.*?)(?:" + _PLACE + r")?(?:, (?=%)|$)")
_RESOURCES = "\n{-#"
_CACHED_SIGNATURES = 16384
_ISOLATED = ("func", "module")
"""Operations whose bodies see no values from outside, by the end of their names; numbering starts anew in them."""

_Signature = tuple[int, tuple[ValueType, ...]]
"""The number of operands and the types of results."""

_signatures: dict[str, _Signature] = {}
"""By `(a, b) -> c`."""


class NotGenericForm(Exception):  # noqa: N818  the caller asks another reader
    """The text is not in generic form; the message is the line that is not."""


def read_generic(text: str, reader: str, refusals: Sequence[tuple[str, str]] = ()) -> Module:
    """The graph of a module that `reader` printed in generic form.

    Raises:
        NotGenericForm: a line is something else.
        SpecError: it has more than `MAX_OPS` operations.
    """
    end = text.find(_RESOURCES)
    text = text if end < 0 else text[:end]
    line, rest = _WITH_LINES if text.rstrip().endswith(")") and " loc(" in text[-400:] else _WITHOUT_LINES
    lines = line.findall(text)
    if len(lines) > MAX_OPS and sum(1 for line in lines if line[1]) > MAX_OPS:
        raise too_many_ops()
    scopes = Scopes()
    ops = _run(lines, rest, scopes)
    return Module(functions_of(ops, scopes.types), scopes.types, reader, tuple(refusals))


@dataclass(slots=True)
class _Open:
    """An operation whose regions are being read, and what to go back to after them."""

    name: str
    inputs: tuple[int, ...]
    results: str
    attributes: str
    regions: list[Region]
    blocks: list[Block]
    ops: list[Op]


def _run(lines: Sequence[tuple[str, ...]], rest_of_line: re.Pattern[str], scopes: Scopes) -> list[Op]:
    """The operations outside all others. The usual line is handled in place: this loop is what reading costs.

    What follows the operands of a line is read once for all operations alike, and a label for all blocks alike.

    Raises:
        NotGenericForm: a line is something else, or brackets do not match.
    """
    types, ids, awaited, hidden, plain = scopes.types, scopes.ids, scopes.awaited, scopes.hidden, True
    known: dict[str, tuple[str, str, int, tuple[ValueType, ...]]] = {}
    labels: dict[str, list[tuple[str, ValueType]]] = {}
    ops: list[Op] = []
    blocks = [Block((), ops)]
    stack: list[_Open] = []
    for results, name, operands, rest, place, column, more, closed, closed_place, other in lines:
        if name:
            entry = known.get(rest)
            if entry is None:
                match = rest_of_line.fullmatch(rest)
                if match is None:
                    left = f"{results} = " if results else ""
                    raise NotGenericForm(f'{left}"{name}"({operands}){rest}{place}{column}'[:200])
                entry = known[rest] = _read_rest(*match.groups(""))
            attributes, signature, count, outs = entry
            try:
                if "," in operands:
                    inputs = tuple(map(ids.__getitem__, operands.split(", ")))
                else:
                    inputs = (ids[operands],) if operands else ()
            except KeyError:
                inputs = _inputs(operands, signature, scopes)
            if signature:
                if count != len(inputs):
                    raise NotGenericForm(f"{name} has {len(inputs)} operands and types for {count}")
                if (
                    len(outs) == 1
                    and results
                    and (plain or (hidden is not None and not awaited and ":" not in results))
                ):
                    if hidden is not None:
                        hidden.append((results, ids.get(results)))
                    value = ids[results] = len(types)
                    types.append(outs[0])
                    outputs: tuple[int, ...] = (value,)
                else:
                    outputs = _outputs(results, outs, scopes)
                    plain = hidden is None and not awaited
                ops.append(Op(name, inputs, outputs, attributes, (), int(place) if place else None))
                continue
            stack.append(_Open(name, inputs, results, attributes, [], blocks, ops))
            scopes.enter(is_isolated=name.endswith(_ISOLATED))
            ops = []
            blocks = [Block((), ops)]
        elif other:
            arguments = labels.get(other)
            if arguments is None:
                label = _LABEL.fullmatch(other)
                if label is None:
                    if other[0] in "#!" and not stack:  # an alias of an attribute, which stays by its name
                        continue
                    raise NotGenericForm(other[:200])
                written = _ARGUMENT.findall(label[1] or "")
                arguments = labels[other] = [(argument, value_type(kind)) for argument, kind, _ in written]
            ops = []
            block = Block(tuple([scopes.define(argument, kind) for argument, kind in arguments]), ops)
            if len(blocks) == 1 and not blocks[0].ops and not blocks[0].arguments:
                blocks.clear()
            blocks.append(block)
        else:
            if not stack:
                raise NotGenericForm("a region ends that did not begin")
            stack[-1].regions.append(Region(blocks if len(blocks) > 1 or ops or blocks[0].arguments else []))
            scopes.next_region()
            if closed:
                scopes.leave()
                opened = stack.pop()
                blocks, ops = opened.blocks, opened.ops
                ops.append(_closed(opened, more, closed, closed_place, scopes))
            else:
                ops = []
                blocks = [Block((), ops)]
        ids, hidden = scopes.ids, scopes.hidden
        plain = hidden is None and not awaited
    if stack:
        raise NotGenericForm("the text ends inside a region")
    return ops


def _inputs(operands: str, signature: str, scopes: Scopes) -> tuple[int, ...]:
    """Operands of which some are defined further down: their types are in the signature."""
    names = operands.split(", ")
    kinds = split_function_type(signature)[0] if signature else []
    kinds += [""] * (len(names) - len(kinds))
    return tuple([scopes.use(name, value_type(kind)) for name, kind in zip(names, kinds, strict=False)])


def _outputs(results: str, outs: Sequence[ValueType], scopes: Scopes) -> tuple[int, ...]:
    """Values for the names of results, `%0` or `%0:2`."""
    if not results and not outs:
        return ()
    base, _, count = results.partition(":")
    names = [f"{base}#{position}" for position in range(len(outs))] if count else [results]
    if not results or len(names) != len(outs) or (count and count != str(len(outs))):
        raise NotGenericForm(f"{results} names other than {len(outs)} results")
    return tuple([scopes.define(name, kind) for name, kind in zip(names, outs, strict=True)])


def _closed(opened: _Open, more: str, signature: str, place: str, scopes: Scopes) -> Op:
    outs = _read_signature(signature)[1]
    attributes = f"{opened.attributes}, {more}" if opened.attributes and more else opened.attributes or more
    outputs = _outputs(opened.results, outs, scopes)
    return Op(opened.name, opened.inputs, outputs, attributes, tuple(opened.regions), int(place) if place else None)


def _read_rest(properties: str, attributes: str, signature: str) -> tuple[str, str, int, tuple[ValueType, ...]]:
    """Attributes, signature, and what that says; of an operation with regions the signature comes at their end."""
    if properties:
        attributes = f"{properties}, {attributes}" if attributes else properties
    return (attributes, signature, *(_read_signature(signature) if signature else (0, ())))


def _read_signature(text: str) -> _Signature:
    entry = _signatures.get(text)
    if entry is None:
        if len(_signatures) >= _CACHED_SIGNATURES:
            _signatures.clear()
        inputs, outs = split_function_type(text)
        entry = _signatures[text] = (len(inputs), tuple([value_type(out) for out in outs]))
    return entry
