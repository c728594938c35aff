"""Operators that read, write or order elements at places that are computed: gathers, scatters, embeddings, sorts."""

from __future__ import annotations

from math import log2

from ....features.kernel import KernelSpec
from ..operation import FLOATS, Operation, TensorInfo, float_dtype
from .kernel_use import LOOPED, SCATTERED, UNKNOWN, KernelUse, Uses, last_size, scaled, small_kernels, streamed
from .traffic import sweep


def embedding(operation: Operation, kind: str) -> Uses:
    """Rows of a table; where the family was not measured on such a device, a gather by its bytes."""
    named, moved = operation.arguments, gather(operation, kind)
    weight, index = named["weight"], named["indices"]
    return _embedding(weight, index.numel, weight.shape[0], "", moved)


def select_rows(operation: Operation, kind: str) -> Uses:
    """`index_select`: of the first dimension it is an embedding, which calls it; of another one a gather."""
    named, moved = operation.arguments, gather(operation, kind)
    table, index = named["self"], named["index"]
    if len(table.shape) != 2 or named["dim"] not in (0, -2):
        return moved
    return _embedding(table, index.numel, table.shape[0], "", moved)


def _embedding(rows: TensorInfo, tokens: int, vocabulary: int, variant: str, otherwise: Uses) -> Uses:
    if not otherwise or rows.kernel_dtype not in FLOATS:
        return otherwise
    spec = KernelSpec.of(
        "embedding", rows.kernel_dtype, variant=variant, timing="device", tokens=tokens, vocabulary=vocabulary,
        cols=last_size(rows),
    )  # fmt: skip
    return [KernelUse(spec, otherwise=tuple(otherwise))]


def gather(operation: Operation, kind: str) -> Uses:
    """Elements or rows at computed places: as many as there are in the answer are read and written."""
    # Of a mask the places that it leaves are written first, and read.
    masks = [tensor for tensor in operation.inputs[1:] if tensor.dtype == "bool"]
    places = sum(2 * 8 * tensor.numel * len(tensor.shape) for tensor in masks)
    uses = _scattered(operation, 2 * operation.bytes_out + _index_bytes(operation) + places)
    # A CPU goes through a mask in a loop over single numbers (`nonzero`).
    return scaled(uses, 8.0, f"{operation.name} by what its mask leaves", LOOPED) if masks and kind == "cpu" else uses


_ADDING = ("index_add", "scatter_add", "scatter_reduce")
_ATOMIC_B = 48.0
"""Bytes of memory traffic that take a GPU as long as adding one element of two bytes to its place: 11.3 ps at 4.27 TB/s. So
long take experts by PyTorch's grouped product on an H200 beyond their products, gathers and activations (26 rows of at least 8
million elements; quartiles 10.6 and 11.6 ps)."""


def scatter(operation: Operation, kind: str) -> Uses:
    """Elements written or added at computed places; a target that is not changed in place is copied first."""
    target, *others = operation.inputs
    floats = [tensor for tensor in others if tensor.dtype not in ("int64", "int32", "bool")]
    is_atomic = kind == "gpu" and target.itemsize_b == 2 and operation.name.split(".")[-1].rstrip("_") in _ADDING
    written = sum(_ATOMIC_B * tensor.numel if is_atomic else 3.0 * tensor.nbytes for tensor in floats)
    whole = 0 if operation.name.endswith("_") else 2 * target.nbytes
    return _scattered(operation, written + whole + _index_bytes(operation))


def embedding_backward(operation: Operation, kind: str) -> Uses:
    """A table of zeros, to which the gradient of each token is added."""
    named, grad = operation.arguments, operation.inputs[0]
    moved = _scattered(operation, operation.bytes_out + 3 * grad.nbytes + _index_bytes(operation))
    return _embedding(grad, named["indices"].numel, int(named["num_weights"]), "backward", moved)


def _index_bytes(operation: Operation) -> int:
    return sum(tensor.nbytes for tensor in operation.inputs if tensor.dtype in ("int64", "int32", "bool"))


def _scattered(operation: Operation, moved: float) -> Uses:
    tensors = (*operation.outputs, *operation.inputs)
    name = f"{operation.name} by the bytes it reads and writes"
    return streamed(moved, float_dtype(*tensors), last_size(tensors[0]), widening=SCATTERED, stand_in=name)


def ordering(operation: Operation, kind: str, *, kernels: float) -> Uses:
    """Sorts, of which radix sorts of GPUs pass over keys and positions some ten times, in `kernels` launches on a GPU."""
    name = f"{operation.name} by the bytes it reads and writes"
    return sweep(operation, kind, passes=10.0, widening=10.0) + (small_kernels(kernels, name) if kind == "gpu" else [])


def selection(operation: Operation, kind: str) -> Uses:
    """What a mask leaves, or where it does: it is counted before it is written, on a GPU in kernels of their own."""
    name = f"{operation.name} by the bytes it reads and writes"
    return sweep(operation, kind, passes=1.5, widening=SCATTERED) + (small_kernels(3.0, name) if kind == "gpu" else [])


def searching(operation: Operation, kind: str) -> Uses:
    """Places of values among ordered ones: as many of these are read for each as halving them takes steps."""
    named, out = operation.arguments, operation.outputs[0]
    ordered = named.get("sorted_sequence", named.get("boundaries", operation.inputs[0]))
    steps = max(1.0, log2(max(1, last_size(ordered))))
    return _scattered(operation, out.nbytes + out.numel * (steps + 1) * ordered.itemsize_b)


_STEP_EXPONENTIALS = 4.0
"""Exponentials and logarithms for each place and step of the sums over alignments (aten/src/ATen/native/LossCTC.cpp)."""


def alignments(operation: Operation, kind: str) -> Uses:
    """The loss of CTC and its backward: sums over all alignments, step by step of the sound, each of which waits for the one
    before it.
    """
    named = operation.arguments
    steps, name = named["log_probs"].shape[0], f"{operation.name} as its steps one after the other"
    sums = named.get("log_alpha") or operation.outputs[1]
    moved = _STEP_EXPONENTIALS * 2.0 * sums.nbytes + operation.bytes_in + operation.bytes_out
    uses = streamed(moved, float_dtype(sums), last_size(sums), "exp", widening=UNKNOWN, stand_in=name)
    waits = scaled(small_kernels(steps, name), 1.0, name, UNKNOWN) if kind == "gpu" else []
    return uses + waits


def per_row(operation: Operation, kind: str) -> Uses:
    """Losses that pick one number of each row: the rows' indices, and as many numbers."""
    target = operation.arguments["target"]
    moved = 2 * target.nbytes + (operation.bytes_out if "backward" in operation.name else 0)
    return _scattered(operation, moved)
