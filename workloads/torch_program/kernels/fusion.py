"""What a compiler fuses: chains of element-by-element operators as one pass over what enters and leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..operation import OPTIMIZER, OPTIMIZER_STATE, Operation, Recording, TensorInfo

CHAIN = "compiled.pointwise"
"""Name of a chain."""


_PASSES = frozenset({"aten._to_copy", "aten.native_dropout", "aten.native_dropout_backward"})
"""Passes element by element that PyTorch does not tag as such."""


@dataclass(frozen=True, slots=True)
class Fused:
    """Operations after fusion.

    Attributes:
        operations: In order, each chain as one.
        chained: How many operators are in chains of more than one.
        passes: How many such chains there are.
    """

    operations: tuple[Operation, ...]
    chained: int
    passes: int


@dataclass(frozen=True, slots=True)
class Fusion:
    """What compiling makes one pass of.

    Attributes:
        chained: Element-by-element operators in chains.
        passes: Chains.
    """

    chained: int = 0
    passes: int = 0

    def words(self) -> str:
        """How many become how many."""
        passes = "one pass" if self.passes == 1 else f"{self.passes} passes"
        return f"{self.chained} element-by-element operators in {passes}"


def fused(recording: Recording, operations: Sequence[Operation], *, everything: bool = False) -> Fused:
    """The operations with chains in compiled modules made one; with `everything`, also outside them.

    An operator moves to the one that reads it first; a chain is what is then consecutive. Inductor also fuses into sums: this
    is the least it does.
    """
    operations = _moved(operations, everything)
    last_read: dict[int, int] = {}
    for i, operation in enumerate(operations):
        last_read.update(dict.fromkeys((tensor.storage for tensor in operation.inputs), i))
    results: list[Operation] = []
    chained = passes = start = 0
    while start < len(operations):
        end = start
        while (
            end < len(operations)
            and _fuses(operations[end], everything)
            and operations[end].phase == operations[start].phase
        ):
            end += 1
        if end - start < 2:
            results.append(operations[start])
            start += 1
            continue
        results.append(_chain(recording, operations[start:end], end, last_read))
        chained, passes, start = chained + end - start, passes + 1, end
    return Fused(tuple(results), chained, passes)


def _moved(operations: Sequence[Operation], everything: bool) -> list[Operation]:
    """The operations with those that fuse right before their first reader, where that fuses too and nothing between writes what
    they read.
    """
    before: dict[int, list[int]] = {}
    reader: dict[int, int] = {}
    for i in range(len(operations) - 1, -1, -1):
        operation = operations[i]
        if _fuses(operation, everything):
            at = min((reader[tensor.storage] for tensor in operation.outputs if tensor.storage in reader), default=i)
            read = {tensor.storage for tensor in operation.inputs} | {tensor.storage for tensor in operation.outputs}
            between = operations[i + 1 : at]
            if (
                at > i + 1
                and operations[at].phase == operation.phase
                and _fuses(operations[at], everything)
                and not any(tensor.storage in read for other in between for tensor in other.outputs)
            ):
                before.setdefault(at, []).insert(0, i)
        reader.update({tensor.storage: i for tensor in operation.inputs})
    moved = {i for items in before.values() for i in items}
    order: list[Operation] = []

    def add(i: int) -> None:
        for earlier in before.get(i, ()):
            add(earlier)
        order.append(operations[i])

    for i in range(len(operations)):
        if i not in moved:
            add(i)
    return order


def _fuses(operation: Operation, everything: bool) -> bool:
    """Whether an operator is a pass element by element that a compiler sees; optimisers are mostly left as they are."""
    is_pass = operation.pointwise or operation.name in _PASSES or operation.name.startswith("aten._foreach_")
    return is_pass and (operation.compiled or (everything and operation.phase != OPTIMIZER))


def _chain(recording: Recording, chain: Sequence[Operation], end: int, last_read: dict[int, int]) -> Operation:
    """One pass that reads what the chain does not make itself, and writes what is read after it or stays."""
    inputs: dict[TensorInfo, None] = {}
    outputs: dict[int, TensorInfo] = {}
    for operation in chain:
        inputs.update({tensor: None for tensor in operation.inputs if tensor.storage not in outputs})
        for tensor in operation.outputs:
            # What an optimiser keeps was taken back after the run, as if that had not been.
            is_kept = recording.roles.get(tensor.storage) == OPTIMIZER_STATE
            stays = is_kept or recording.lifetimes[tensor.storage][2] is None
            if stays or last_read.get(tensor.storage, -1) >= end or operation is chain[-1]:
                outputs[tensor.storage] = tensor
            else:
                outputs.setdefault(tensor.storage, replace(tensor, shape=(0,), strides=(1,)))
    written = tuple(tensor for tensor in outputs.values() if tensor.numel)
    return replace(
        chain[0], name=CHAIN, arguments={}, inputs=tuple(inputs), outputs=written, flops=0.0, pointwise=True,
        upper_bound=any(operation.upper_bound for operation in chain),
    )  # fmt: skip
