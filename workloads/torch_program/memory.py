"""Memory of a recorded program: its peak with what is in it at that moment, and how long ago each tensor was last touched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

from .operation import (
    ACTIVATIONS,
    GRADIENTS,
    INPUTS,
    OPTIMIZER,
    OPTIMIZER_STATE,
    WEIGHTS,
    WORKSPACE,
    Operation,
    Recording,
    TensorInfo,
)

_ALWAYS = frozenset({WEIGHTS, OPTIMIZER_STATE})
"""What stays from one step to the next: a later step starts with the state that the first one makes."""


_ROWS_OF = frozenset({"aten.embedding", "aten.index_select", "aten.index", "aten.gather"})
"""Operators that read of their first tensor no more than they write."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes at the moment at which most are needed, of a step that is not the first.

    The allocator's fragments and what the runtime and cuBLAS keep to themselves are not counted: some hundred MB of a GPU.

    Attributes:
        peak_b: All together.
        weights_b: Parameters and buffers.
        gradients_b: Gradients of parameters.
        optimizer_state_b: State of optimisers.
        activations_b: Everything else the program makes: what is kept for the backward pass, and what is soon dropped.
        inputs_b: Tensors the program was given.
        at: The operator that runs at that moment, with its module.
        workspace_b: What the kernel that runs at that moment needs on a GPU besides its tensors.
        states_b: Weights, all gradients and the optimiser's state, which are the same for any batch.
        of_batch_b: Most bytes of the rest at any moment before the optimiser, which grow with the batch.
    """

    peak_b: int
    weights_b: int
    gradients_b: int
    optimizer_state_b: int
    activations_b: int
    inputs_b: int
    at: str
    workspace_b: int = 0
    states_b: int = 0
    of_batch_b: int = 0


def relief(memory: Memory, device_b: float) -> str:
    """What to do where a program does not fit into a device's memory, in words."""
    states_b = memory.weights_b + memory.gradients_b + memory.optimizer_state_b
    if states_b < device_b:
        return "a smaller batch or activation checkpointing needs less"
    return (
        f"weights, gradients and optimiser state alone need {ceil(states_b / device_b)} such devices, over which "
        "FullyShardedDataParallel or tensor parallelism split them; narrower formats and smaller optimisers need fewer"
    )


def peak_memory(recording: Recording) -> Memory:
    """The peak of a recording: at each operation, the storages that have come and not yet gone."""
    earlier = _compiled_ends(recording)
    changes = [0] * (len(recording.operations) + 2)
    steady: dict[str, int] = dict.fromkeys((WEIGHTS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, INPUTS, WORKSPACE), 0)
    passing: list[tuple[int, int, int, str]] = []
    for storage, (size_b, came, went) in recording.lifetimes.items():
        role = recording.roles.get(storage, ACTIVATIONS)
        if role in _ALWAYS:
            steady[role] += size_b
            continue
        until = len(recording.operations) + 1 if went is None else went
        until = max(came + 1, min(until, earlier.get(storage, until)))
        passing.append((came, until, size_b, role))
        changes[came] += size_b
        changes[until] -= size_b
    for i, operation in enumerate(recording.operations):
        if size_b := _workspace_b(operation):
            passing.append((i, i + 1, size_b, WORKSPACE))
            changes[i] += size_b
            changes[i + 1] -= size_b
    now = most = at = 0
    for i, change in enumerate(changes):
        now += change
        if now > most:
            most, at = now, i
    for came, until, size_b, role in passing:
        if came <= at < until:
            steady[role] += size_b
    operation = recording.operations[min(at, len(recording.operations) - 1)]
    return Memory(
        peak_b=sum(steady.values()),
        weights_b=steady[WEIGHTS],
        gradients_b=steady[GRADIENTS],
        optimizer_state_b=steady[OPTIMIZER_STATE],
        activations_b=steady[ACTIVATIONS],
        inputs_b=steady[INPUTS],
        at=f"{operation.name} in {operation.module}" if operation.module else operation.name,
        workspace_b=steady[WORKSPACE],
        states_b=steady[WEIGHTS]
        + steady[OPTIMIZER_STATE]
        + sum(size_b for *_, size_b, role in passing if role == GRADIENTS),
        of_batch_b=_of_batch_b(recording, passing),
    )


def _of_batch_b(recording: Recording, passing: Sequence[tuple[int, int, int, str]]) -> int:
    """The most that is there at once, before the optimiser, of what is neither weights, gradients nor state."""
    ends = [i for i, operation in enumerate(recording.operations) if operation.phase == OPTIMIZER]
    last = ends[0] if ends else len(recording.operations)
    changes = [0] * (last + 1)
    for came, until, size_b, role in passing:
        if role != GRADIENTS and came < last:
            changes[came] += size_b
            changes[min(until, last)] -= size_b
    return max(accumulate(changes))


_IN_FP32 = frozenset({
    "aten._scaled_dot_product_flash_attention_backward", "aten._scaled_dot_product_flash_attention_for_cpu_backward",
})  # fmt: skip
"""Backwards of attention that add up in fp32 on a GPU, where they read 16 bits."""


def _workspace_b(operation: Operation) -> int:
    """What a kernel of a GPU needs besides its tensors.

    The backward of flash attention adds up the gradient of queries in fp32, with a number of each row, both in whole tiles;
    where heads share keys it writes gradients of keys and values for each head first (`mha_bwd` in
    aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp).
    """
    query, key = operation.arguments.get("query"), operation.arguments.get("key")
    if operation.name not in _IN_FP32 or not isinstance(query, TensorInfo) or not isinstance(key, TensorInfo):
        return 0
    if query.itemsize_b != 2 or len(query.shape) != 4 or len(key.shape) != 4:
        return 0
    (batch, heads, rows, size), (_, kv_heads, keys, _) = query.shape, key.shape
    whole = 32 if size <= 128 else 64
    sums_b = 4 * batch * heads * ceil(rows / 128) * 128 * (ceil(size / whole) * whole + 1)
    return sums_b + (2 * key.itemsize_b * batch * keys * heads * size if kv_heads != heads else 0)


def _compiled_ends(recording: Recording) -> dict[int, int]:
    """Where storages that compiled code makes and reads last end: with that read, whatever names of the program still hold it;
    before it where a pass element by element has a result of as many bytes, which takes their place (`inplace_buffers` in
    torch/_inductor/config.py).
    """
    last: dict[int, int] = {}
    for i, operation in enumerate(recording.operations):
        last.update(dict.fromkeys((tensor.storage for tensor in operation.inputs), i))
    compiled = {
        tensor.storage for operation in recording.operations if operation.compiled for tensor in operation.outputs
    }
    ends = {}
    for storage in compiled & last.keys():
        reader = recording.operations[last[storage]]
        if reader.compiled:
            size_b = recording.lifetimes[storage][0]
            in_place = reader.pointwise and any(recording.lifetimes[t.storage][0] == size_b for t in reader.outputs)
            ends[storage] = last[storage] + (not in_place)
    return ends


def reuse_distances(recording: Recording, operations: Sequence[Operation]) -> list[list[tuple[float, float]]]:
    """Of each operation the blocks it touches: bytes touched since the block last was, its own with them, and its own alone.

    It is one of a step that follows an equal one. A tensor that is made takes the block that one of its size left last, as
    allocators do. `operations` are those of the recording, in order; some may be left out or merged.
    """
    stays = {
        storage for storage, (_, came, _) in recording.lifetimes.items()
        if came == 0 or recording.roles.get(storage) in _ALWAYS
    }  # fmt: skip
    last: dict[int, int] = {}
    whole_b: dict[int, float] = {storage: size_b for storage, (size_b, _, _) in recording.lifetimes.items()}
    for i, operation in enumerate(operations):
        for tensor in (*operation.inputs, *operation.outputs):
            last[tensor.storage] = i
            whole_b.setdefault(tensor.storage, tensor.nbytes)
    touched = _Touched(2 * sum(len(each.inputs) + len(each.outputs) for each in operations))
    free: defaultdict[float, list[int]] = defaultdict(list)
    blocks: dict[int, int] = {}
    results: list[list[tuple[float, float]]] = []
    for _ in range(2):
        results = []
        for i, operation in enumerate(operations):
            sizes_b: dict[int, float] = {}
            for tensor, read_b in _touches(operation):
                storage = tensor.storage
                if storage not in blocks:
                    left = free[whole_b[storage]]
                    blocks[storage] = left.pop() if left and storage not in stays else touched.new_block()
                block = blocks[storage]
                sizes_b[block] = min(whole_b[storage], sizes_b.get(block, 0.0) + read_b)
            results.append([(touched.since(block) + size_b, size_b) for block, size_b in sizes_b.items()])
            for block, size_b in sizes_b.items():
                touched.touch(block, size_b)
            for storage in {tensor.storage for tensor, _ in _touches(operation)} - stays:
                if last[storage] == i:
                    free[whole_b[storage]].append(blocks.pop(storage))
    return results


def _touches(operation: Operation) -> list[tuple[TensorInfo, float]]:
    """Tensors that an operation reads or writes, with how many of their bytes."""
    tensors = [(tensor, float(tensor.nbytes)) for tensor in (*operation.inputs, *operation.outputs)]
    if operation.name in _ROWS_OF and tensors:
        tensors[0] = tensors[0][0], min(tensors[0][1], float(operation.bytes_out))
    return tensors


class _Touched:
    """Blocks by when they were last touched; a binary indexed tree (Fenwick 1994) adds up those touched since.

    Args:
        most: Touches that there will be.
    """

    def __init__(self, most: int) -> None:
        self._sums = [0.0] * (most + 1)
        self._last: dict[int, tuple[int, float]] = {}
        self._now = self._blocks = 0
        self._total = 0.0

    def new_block(self) -> int:
        """The number of a block that was never touched."""
        self._blocks += 1
        return self._blocks

    def since(self, block: int) -> float:
        """Bytes of other blocks touched since a block was; of one never touched, of all."""
        if block not in self._last:
            return self._total
        place, before = self._last[block][0], 0.0
        while place:
            before += self._sums[place]
            place &= place - 1
        return self._total - before

    def touch(self, block: int, size_b: float) -> None:
        """Touch so many bytes of a block now."""
        if block in self._last:
            self._add(*self._last[block], sign=-1.0)
        self._now += 1
        self._last[block] = (self._now, size_b)
        self._add(self._now, size_b)

    def _add(self, place: int, size_b: float, sign: float = 1.0) -> None:
        self._total += sign * size_b
        while place < len(self._sums):
            self._sums[place] += sign * size_b
            place += place & -place
