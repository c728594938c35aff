"""A fast reader of MLIR's generic form as native parsers print it: an operation a line, every type written out.

One regular expression takes the whole text apart in C; types and signatures, which repeat, are read once. What does not look
like generic form is refused: this is no reader of what people write. Functions are every operation that is one by name, however
deep in modules, and loose operations. A name is good for the region that defines it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..types.graph import Block, Function, Module, Op, Region, ValueType, first_of_list, split_function_type, value_type
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
        arguments = tuple(range(len(types), len(types) + len(inputs)))
        types.extend(value_type(text) for text in inputs)
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


def _signature(attributes: str) -> tuple[list[str], list[str]]:
    """Argument and result types out of `function_type = (a, b) -> c`, or LLVM's `!llvm.func<c (a, b)>`."""
    match = _FUNCTION_TYPE.search(attributes)
    if match is None:
        return [], []
    text = first_of_list(attributes[match.end() :])
    if not text.startswith(_LLVM_FUNCTION):
        return split_function_type(text)
    result, _, inputs = text.removeprefix(_LLVM_FUNCTION).removesuffix(">").partition(" (")
    return split_function_type(inputs.removesuffix(")"))[1], [result]


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
_LINE = (
    # `%0:2 = "dialect.op"(%a, %b)[^bb1] <{properties}>`, or the end of regions
    r'^ *+(?:(?:(?:(%[^ \n]++) = )?+"([^"\n]++)"\(([^)\n]*+)\)(?:\[[^\]\n]*+\])?+(?: <\{(.*)\}>)?|\}\)?)'
    # ` {attributes} : (types) -> types loc("-":3:10)`, or the start of regions, or of one more
    r"(?: \{(.*)\})?(?: : (\(.*)PLACE| \(\{|, \{)$"
    # anything else but an empty line
    r"|(.+)$)"
)
_WITH_LINES = re.compile(_LINE.replace("PLACE", _PLACE), re.MULTILINE)
_WITHOUT_LINES = re.compile(_LINE.replace("PLACE", "()"), re.MULTILINE)
_LABEL = re.compile(r"\^[\w$.]++(?:\((.*)\))?:(?: *//.*+)?")
_ARGUMENT = re.compile(r"(%[^:\n]+): (.*?)(?:" + _PLACE + r")?(?:, (?=%)|$)")
_RESOURCES = "\n{-#"
_CACHED_SIGNATURES = 16384
_ISOLATED = ("func", "module")
"""Operations whose bodies see no values from outside, by the end of their names; numbering starts anew in them."""

_signatures: dict[str, tuple[int, tuple[ValueType, ...]]] = {}
"""From `(a, b) -> c` to the number of operands and the types of results."""


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
    pattern = _WITH_LINES if text.rstrip().endswith(")") and " loc(" in text[-400:] else _WITHOUT_LINES
    lines = pattern.findall(text)
    if len(lines) > MAX_OPS and sum(1 for line in lines if line[1]) > MAX_OPS:
        raise too_many_ops()
    scopes = Scopes()
    ops = _run(lines, scopes)
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


def _run(lines: Sequence[tuple[str, ...]], scopes: Scopes) -> list[Op]:
    """The operations outside all others. The usual line is handled in place: this loop is what reading costs.

    Raises:
        NotGenericForm: a line is something else, or brackets do not match.
    """
    types, ids, known, plain = scopes.types, scopes.ids, _signatures, True
    ops: list[Op] = []
    blocks = [Block((), ops)]
    stack: list[_Open] = []
    for results, name, operands, properties, attributes, signature, place, other in lines:
        if name:
            if properties:
                attributes = f"{properties}, {attributes}" if attributes else properties
            try:
                if "," in operands:
                    inputs = tuple(map(ids.__getitem__, operands.split(", ")))
                else:
                    inputs = (ids[operands],) if operands else ()
            except KeyError:
                inputs = _inputs(operands, signature, scopes)
            if signature:
                count, outs = known.get(signature) or _read_signature(signature)
                if count != len(inputs):
                    raise NotGenericForm(f"{name} has {len(inputs)} operands and types for {count}")
                if plain and len(outs) == 1 and results:
                    value = ids[results] = len(types)
                    types.append(outs[0])
                    outputs: tuple[int, ...] = (value,)
                else:
                    outputs = _outputs(results, outs, scopes)
                    plain = scopes.hidden is None and not scopes.awaited
                ops.append(Op(name, inputs, outputs, attributes, (), int(place) if place else None))
                continue
            stack.append(_Open(name, inputs, results, attributes, [], blocks, ops))
            scopes.enter(is_isolated=name.endswith(_ISOLATED))
            ops = []
            blocks = [Block((), ops)]
        elif other:
            label = _LABEL.fullmatch(other)
            if label is None:
                if other[0] in "#!" and not stack:  # an alias of an attribute, which stays by its name
                    continue
                raise NotGenericForm(other[:200])
            ops = []
            block = Block(_arguments(label[1], scopes) if label[1] else (), ops)
            if len(blocks) == 1 and not blocks[0].ops and not blocks[0].arguments:
                blocks.clear()
            blocks.append(block)
        else:
            if not stack:
                raise NotGenericForm("a region ends that did not begin")
            stack[-1].regions.append(Region(blocks if len(blocks) > 1 or ops or blocks[0].arguments else []))
            scopes.next_region()
            if signature:
                scopes.leave()
                opened = stack.pop()
                blocks, ops = opened.blocks, opened.ops
                ops.append(_closed(opened, attributes, signature, place, scopes))
            else:
                ops = []
                blocks = [Block((), ops)]
        ids, plain = scopes.ids, scopes.hidden is None and not scopes.awaited
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


def _arguments(text: str, scopes: Scopes) -> tuple[int, ...]:
    return tuple([scopes.define(name, value_type(kind)) for name, kind, _ in _ARGUMENT.findall(text)])


def _closed(opened: _Open, more: str, signature: str, place: str, scopes: Scopes) -> Op:
    outs = (_signatures.get(signature) or _read_signature(signature))[1]
    attributes = f"{opened.attributes}, {more}" if opened.attributes and more else opened.attributes or more
    outputs = _outputs(opened.results, outs, scopes)
    return Op(opened.name, opened.inputs, outputs, attributes, tuple(opened.regions), int(place) if place else None)


def _read_signature(text: str) -> tuple[int, tuple[ValueType, ...]]:
    if len(_signatures) >= _CACHED_SIGNATURES:
        _signatures.clear()
    inputs, outs = split_function_type(text)
    entry = _signatures[text] = (len(inputs), tuple([value_type(out) for out in outs]))
    return entry
