"""Which kernel each operation of a function is when it runs on its own, read from the function's text in generic form.

Operations become kernels as everywhere (`features.mlir`): the dialects' rules say what one does and costs, recognition which
family that is. Nothing is fused: a compiler that asks has its operations as they stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..features.kernel import KernelSpec
from ..features.mlir.collection import no_collection
from ..features.mlir.generic_form import read_generic
from ..features.mlir.graph import Function, Module, Op, Region
from ..features.mlir.grouping import group
from ..features.mlir.program import FREE, Node
from ..features.mlir.walk import Walk

NO_KERNEL = "no kernel is known for what it does"
UNKNOWN_SIZES = "its sizes are not known at compile time"


@dataclass(frozen=True, slots=True)
class FoundOperation:
    """One operation that does work: `place` is its position among the operations of its module, in order of the text.

    `runs` is how often it runs when its function does. `spec` is None where there is none; `why` says why. `stand_in` says how
    the kernel differs from what the operation does, empty where it is the same.
    """

    place: int
    runs: float
    spec: KernelSpec | None
    stand_in: str
    why: str


@dataclass(frozen=True, slots=True)
class FoundFunction:
    """A function's operations that do work, those of functions it calls included.

    `names` are the names of all operations inside it, in order of the text, of which the first is at place `first`.
    """

    name: str
    first: int
    names: tuple[str, ...]
    operations: tuple[FoundOperation, ...]

    def own(self) -> dict[int, FoundOperation]:
        """Those that stand in it, by their place; one that is walked several times is there once."""
        places = range(self.first, self.first + len(self.names))
        return {one.place: one for one in reversed(self.operations) if one.place in places}


def functions_in(generic: str) -> list[FoundFunction]:
    """The functions with a body in a text in generic form, in order.

    Raises:
        NotGenericForm: the text is something else.
        SpecError: it has, or comes to, too many operations.
    """
    with no_collection():
        module = read_generic(generic, "the compiler's own")
        numbered: list[tuple[Function, int, tuple[str, ...]]] = []
        place = 0
        for function in module.functions:
            if function.body is None or not function.name:
                continue
            ops = list(_in_order(function.body))
            for number, op in enumerate(ops, start=place):
                # Nodes keep the line of the operation they were made from, and nothing else that tells it.
                op.line = number
            numbered.append((function, place, tuple(op.name for op in ops)))
            place += len(ops)
        return [
            FoundFunction(function.name, first, names, _operations(module, function))
            for function, first, names in numbered
        ]


def _operations(module: Module, function: Function) -> tuple[FoundOperation, ...]:
    walk = Walk(module, frozenset(), False)
    walk.function(function, {}, 1.0)
    free = {value: node for node in walk.nodes if node.kind in FREE for value in node.results}
    return tuple(_found(node, free, walk) for node in walk.nodes if node.kind not in FREE and node.line is not None)


def _found(node: Node, free: Mapping[int, Node], walk: Walk) -> FoundOperation:
    """A node as a kernel of its own; `free` are nodes that cost nothing, by what they make."""
    place = node.line or 0
    kinds = [walk.values.types[value] for value in (*node.operands, *node.results)]
    if any(kind.is_array and not kind.is_static for kind in kinds):
        return FoundOperation(place, node.runs, None, "", UNKNOWN_SIZES)
    if not node.understood:
        return FoundOperation(place, node.runs, None, "", node.note or NO_KERNEL)
    # With the constants and empty arrays it is given: adding a number is another kernel than adding an array. An operation on
    # nothing else is one that compilers are expected to do beforehand; as it stands, it is a kernel.
    given = list({id(free[value]): free[value] for value in node.operands if value in free}.values())
    groups = group((*given, node), walk.values.types, node.results) or group((node,), walk.values.types, node.results)
    if not groups or groups[-1].spec is None:
        return FoundOperation(place, node.runs, None, "", NO_KERNEL)
    return FoundOperation(place, node.runs, groups[-1].spec, groups[-1].stand_in, "")


def _in_order(region: Region) -> Iterator[Op]:
    """Every operation of a region, each before those in its own regions."""
    for block in region.blocks:
        for op in block.ops:
            yield op
            for inner in op.regions:
                yield from _in_order(inner)
