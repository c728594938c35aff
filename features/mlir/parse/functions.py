"""The functions of a module: every operation that is a function by name, however deep in modules, and loose operations."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..types.graph import Block, Function, Op, Region, ValueType
from ..types.value_types import first_of_list, split_function_type, value_type

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
