"""From MLIR text to what a function of it does: native parsers read it first, a tolerant reader where none takes it; then one
function is walked, costed and grouped into kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from ..errors import SpecError, listed
from .kernels.all_layers import WholeTextNeeded, layer_inputs, with_all_layers
from .parse.generic_form import NotGenericForm, read_generic
from .parse.native_parsers import NativeReading, read_native
from .parse.repeated_layers import repeated_layers
from .parse.text_limits import checked_text, no_collection
from .parse.tolerant_parser import read_tolerant
from .program import Node, Program
from .semantics.dead_code import operations_inside, that_do_something, without_dead_code
from .semantics.dynamic_sizes import bound, bound_sizes
from .types.graph import Function, Module, Op, Shortened, ValueType, is_beyond_numbers
from .walk.walk import Walk

NativeParsers = Callable[[str], NativeReading]
"""Asks the native parsers to read a text."""

TOLERANT = "tolerant"
"""The reader of last resort: kernelcast's own, which takes any text and says what it could not read."""


def no_native_parser(_text: str) -> NativeReading:
    """Takes no text: given to `read` as `native`, the tolerant reader alone is asked."""
    return NativeReading(None, "")


def read(text: str | bytes, *, native: NativeParsers | None = None) -> Module:
    """The op graph of MLIR text.

    `native` asks the native parsers (`parser_process.NativeReader` does it in a child process, safe from texts that crash
    them); in this process when None. The tolerant reader takes what they refuse.

    Raises:
        SpecError: the text is empty or no MLIR, too large, or nested too deep.
    """
    checked, native = checked_text(text), native or read_native
    layers = repeated_layers(checked)
    if layers is not None:
        module = _graph(layers.text, native(layers.text))
        if module.functions and not module.unread and not (module.refusals and module.reader == TOLERANT):
            return replace(module, shortened=Shortened(layers, cache(partial(_whole, checked, native))))
    return _whole(checked, native)


def _whole(text: str, native: NativeParsers) -> Module:
    module = _graph(text, native(text))
    if not module.functions:
        raise SpecError("there is no operation in the MLIR text; give a module or a function", field="mlir")
    return module


def _graph(text: str, reading: NativeReading) -> Module:
    refusals = reading.refusals
    if reading.generic is not None:
        try:
            with no_collection():
                return read_generic(reading.generic, reading.reader, refusals)
        except NotGenericForm as error:
            refusals = (*refusals, (reading.reader, f"printed what is no generic form: {error}"))
    return read_tolerant(text, TOLERANT, refusals)


ENTRIES = ("main", "forward")
"""Names of the function a module is called through: JAX's and torch-mlir's, and torch.nn.Module's."""

_SHOWN = 8
_LONGEST_TYPE = 80


def functions(module: Module) -> list[str]:
    """Names of the functions that can be understood: public ones with a body; all with a body where none is public."""
    bodies = [function for function in module.functions if function.body is not None and function.name]
    result = [function.name for function in bodies if function.is_public] or [function.name for function in bodies]
    return result or [function.name for function in module.functions if function.body is not None]


def understand(module: Module, function: str | None = None, bind: Mapping[str, int] | None = None) -> Program:
    """What a function of the module does and costs.

    `function` is its name; None means the one public function there is, or the one called main or forward. `bind` gives
    dynamic sizes of the arguments numbers, by `dim0`, `dim1` … in order of appearance or by place, `arg0.1`; `arg2` gives an
    argument that is an integer its value.

    Raises:
        SpecError: no such function, one without a body, several to choose from, or dynamic sizes that are not bound; a function
            that comes to too many operations; an array of more elements than there are numbers for.
    """
    # Types are kept once, so that few are left of however many values.
    for kind in {id(kind): kind for kind in module.types}.values():
        if is_beyond_numbers(kind):
            raise SpecError(
                f"{kind.text[:_LONGEST_TYPE]} has more than 2**62 elements; no device holds it", field="mlir"
            )
    with no_collection():
        try:
            return _understood(module, function, bind or {})
        except WholeTextNeeded as error:
            return _understood(error.shortened.read_whole(), function, bind or {})


def _understood(module: Module, function: str | None, bind: Mapping[str, int]) -> Program:
    from .kernels.grouping import group

    chosen = _chosen(module, function)
    shortened = module.shortened
    inputs: Sequence[Sequence[int]] = () if shortened is None else layer_inputs(shortened, chosen, module.types)
    needed = {value for layer in inputs for value in layer}
    live = {id(function): without_dead_code(function, needed) for function in module.functions}
    module, chosen = replace(module, functions=tuple(function for function, _ in live.values())), live[id(chosen)][0]
    argument_types = [module.types[value] for value in chosen.arguments]
    kinds, scalars = bound(argument_types, bind)
    dead = [op for _, ops in live.values() for op in ops]
    # A number may decide what a layer does, and a note counts what is dead in all layers.
    if shortened and (
        scalars or that_do_something(op for op in dead if shortened.layers.layer_of(op.line) is not None)
    ):
        raise WholeTextNeeded(shortened)
    registers = _is_triton(chosen)
    walk = Walk(module, frozenset(bound_sizes(argument_types, kinds)), registers)
    for value, kind in zip(chosen.arguments, kinds, strict=True):
        if kind is not module.types[value]:
            walk.values.retype(value, kind)
    for position, number in scalars.items():
        walk.values.learn(chosen.arguments[position], number)
    if registers:
        walk.notes[
            f"costs are those of one program of the Triton kernel {chosen.name}; its grid is not in the text"
        ] = None
    returned = walk.function(chosen, {}, 1.0)
    written = [walk.values.latest[value] for value in chosen.arguments if value in walk.values.latest]
    outputs = tuple(dict.fromkeys((*returned, *written)))
    nodes, types = walk.nodes, walk.values.types
    _name_unused_places(nodes, outputs)
    _mark_top_k(nodes, types, outputs)
    groups = group(nodes, types, outputs)
    if shortened is not None:
        nodes, groups, outputs = with_all_layers(shortened, inputs, nodes, groups, types, returned)
    return Program(
        function=chosen.name,
        reader=module.reader,
        nodes=nodes,
        groups=groups,
        types=types,
        arguments=chosen.arguments,
        outputs=outputs,
        unread_share=_unread_share(module),
        notes=(
            *_not_understood(nodes),
            *_not_read(dead),
            *_of_unknown_size(chosen.arguments, outputs, types),
            *dict.fromkeys(node.note for node in nodes if node.note and node.understood) | walk.notes,
        ),
    )


def _of_unknown_size(arguments: Sequence[int], outputs: Sequence[int], types: Sequence[ValueType]) -> list[str]:
    """One note for the arguments and results whose bytes are not known."""
    items = [
        types[value].text for value in (*arguments, *outputs) if types[value].is_array and not types[value].is_static
    ]
    return [f"the size of {listed(dict.fromkeys(items))} is not known, and its bytes are not counted"] if items else []


def _not_read(dead: Iterable[Op]) -> list[str]:
    """One note for operations that are left out because nothing reads their results; constants cost nothing anyway."""
    names = Counter(that_do_something(dead))
    if not names:
        return []
    shown = ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in names.most_common(_SHOWN))
    return [f"nothing reads the results of {shown}; compilers remove such operations, and they are left out"]


def _is_triton(function: Function) -> bool:
    return function.body is not None and any(
        block.ops and block.ops[-1].name == "tt.return" for block in function.body.blocks
    )


def _chosen(module: Module, name: str | None) -> Function:
    by_name = {function.name: function for function in module.functions}
    possible = functions(module)
    if name is not None:
        result = by_name.get(name.removeprefix("@"))
        if result is None:
            raise SpecError(f"no function {name!r} in the module; there are: {_names(by_name)}", field="function")
        if result.body is None:
            raise SpecError(
                f"function {name!r} is declared without a body; with one there are: {_names(possible)}",
                field="function",
            )
        return result
    if not possible:
        declared = f"; declared without a body: {_names(by_name)}" if by_name else ""
        raise SpecError(f"the module has no function with a body{declared}", field="mlir")
    entries = possible if len(possible) == 1 else [entry for entry in ENTRIES if entry in possible]
    if not entries:
        raise SpecError(f"the module has several functions; name one of: {_names(possible)}", field="function")
    return by_name[entries[0]]


def _names(names: Iterable[str]) -> str:
    result = list(names)
    more = f" and {len(result) - _SHOWN} more" if len(result) > _SHOWN else ""
    return listed(result[:_SHOWN]) + more if result else "none"


def _name_unused_places(nodes: Iterable[Node], outputs: Iterable[int]) -> None:
    """A reduction that keeps places along, of which nobody reads them, is the reduction without: exporters write softmax so."""
    items = [node for node in nodes if node.detail.get("operator") == "argmax" and len(node.results) > 1]
    if not items:
        return
    used = {value for node in nodes for value in node.operands} | set(outputs)
    for node in items:
        if not used & set(node.results[1:]):
            node.detail = {**node.detail, "operator": "max"}


def _mark_top_k(nodes: Sequence[Node], types: Sequence[ValueType], outputs: Iterable[int]) -> None:
    """Give sorts that XLA's TopkRewriter makes a top-k of their k as `window`.

    It takes descending sorts of which nothing is read but the first k elements of every row, the same k by every reader.
    """
    sorts = {value: node for node in nodes if node.detail.get("descending") for value in node.results}
    if not sorts:
        return
    counts: dict[int, set[int]] = {id(node): set() for node in sorts.values()}
    for value in outputs:
        if value in sorts:
            counts[id(sorts[value])].add(0)
    for node in nodes:
        for value in node.operands:
            if (sort := sorts.get(value)) is not None:
                counts[id(sort)].add(_prefix_length(node, sort, types))
    for node in sorts.values():
        k = counts[id(node)]
        if len(k) == 1 and 0 not in k:
            node.detail = {**node.detail, "window": tuple(k)}


def _prefix_length(node: Node, sort: Node, types: Sequence[ValueType]) -> int:
    """How many of the first elements of every sorted row a slice reads; 0 for other slices and for what is no slice."""
    along, before, after = sort.detail["along"], types[sort.results[0]].shape or (), types[node.results[0]].shape or ()
    if not node.detail.get("is_prefix") or len(before) != len(after) or not isinstance(along, int):
        return 0
    shorter = [axis for axis in range(len(before)) if before[axis] != after[axis]]
    return int(after[along] or 0) if shorter == [along % len(before)] else 0


def _not_understood(nodes: Iterable[Node]) -> list[str]:
    """One note for all operations whose cost is not known, the most frequent named."""
    names = Counter(node.op for node in nodes if not node.understood)
    if not names:
        return []
    shown = ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in names.most_common(_SHOWN))
    more = f" and {len(names) - _SHOWN} more kinds" if len(names) > _SHOWN else ""
    count = names.total()
    return [
        f"{count} operation{'' if count == 1 else 's'} {'is' if count == 1 else 'are'} not understood; arithmetic and bytes "
        f"are counted without {'it' if count == 1 else 'them'}, a prediction guesses: {shown}{more}"
    ]


def _unread_share(module: Module) -> float:
    if not module.unread:
        return 0.0
    read = sum(_count(block.ops) for item in module.functions if item.body is not None for block in item.body.blocks)
    return len(module.unread) / (len(module.unread) + read)


def _count(ops: Iterable[Op]) -> int:
    waiting, result = list(ops), 0
    while waiting:
        op = waiting.pop()
        result += 1
        waiting += operations_inside(op)
    return result
