"""Operations whose results nothing reads: compilers remove them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..types.graph import Block, Function, Op, Region

_PURE = frozenset({"stablehlo", "mhlo", "chlo", "tosa", "linalg", "tensor", "arith", "math", "torch", "complex"})
"""Dialects whose operations do nothing but make their results, most of them."""

_NOT_PURE = frozenset((
    "custom_call", "custom", "infeed", "outfeed", "send", "recv", "create_token", "after_all", "all_gather", "all_reduce",
    "all_to_all", "collective_broadcast", "collective_permute", "reduce_scatter", "while", "if", "case", "composite",
    "while_loop", "cond_if",
))  # fmt: skip
"""Those of their operations that may do more, or that hold a program of their own."""

_IN_PLACE = re.compile(r"^torch\.(aten\.\w*_(\.|$)|prim|operator|overwrite)")
"""Operations of PyTorch that may write to what they are given: `torch.aten.add_.Tensor`."""


def without_dead_code(function: Function, needed: Iterable[int] = ()) -> tuple[Function, list[Op]]:
    """The function without operations whose results nothing reads, as compilers remove them, and those operations.

    What is not in the text reads the values that are `needed`.

    One without a return of values is a piece of a text and stays as it is; so does what is inside of loops and branches, and
    calls.
    """
    if function.body is None or len(function.body.blocks) != 1:
        return function, []
    block = function.body.blocks[0]
    if not block.ops or not block.ops[-1].operands or not block.ops[-1].name.endswith("return"):
        return function, []
    readers = Counter(value for op in block.ops if op.name not in _NO_READERS for value in values_read(op))
    readers.update(needed)
    dead: list[Op] = []
    for op in reversed(block.ops):
        if op.results and not any(map(readers.__getitem__, op.results)) and _is_pure(op):
            dead.append(op)
            readers.subtract(values_read(op))
    if not dead:
        return function, []
    left_out = set(map(id, dead))
    live = Block(block.arguments, [op for op in block.ops if id(op) not in left_out])
    return replace(function, body=Region([live])), dead[::-1]


_NO_READERS = frozenset({"torch.bind_symbolic_shape"})
"""Operations that say something of a value and do not need it."""


def _is_pure(op: Op) -> bool:
    """Whether an operation does nothing but make its results."""
    if op.dialect not in _PURE or op.name.rpartition(".")[2] in _NOT_PURE or _IN_PLACE.search(op.name):
        return False
    return all(other.name.endswith(("yield", "return")) or _is_pure(other) for other in operations_inside(op))


def values_read(op: Op) -> Sequence[int]:
    """The values that an operation reads, those that its regions read among them."""
    return (
        [*op.operands, *(value for other in operations_inside(op) for value in values_read(other))]
        if op.regions
        else op.operands
    )


def operations_inside(op: Op) -> Iterable[Op]:
    """The operations of its regions; regions of theirs are not entered."""
    return (other for region in op.regions for block in region.blocks for other in block.ops)


def that_do_something(ops: Iterable[Op]) -> list[str]:
    """Names of the operations that are no constants and no room for results."""
    return [op.name for op in ops if not re.search(r"const|empty|literal", op.name)]
