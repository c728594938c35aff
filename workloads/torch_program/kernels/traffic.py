"""Operators that move data and compute little as kernels: element by element, sums, norms, copies, gathers, optimisers."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2, prod
from typing import Any

from ....features.kernel import KernelSpec
from ..operation import Operation, TensorInfo, float_dtype, itemsize_b
from .kernel_use import (
    ALIKE,
    UNKNOWN,
    KernelUse,
    Uses,
    last_size,
    rows_and_cols,
    scaled,
    streamed,
)

DIRECT: Mapping[str, str] = {
    name: name for name in ("relu", "gelu", "silu", "tanh", "exp", "sigmoid", "sqrt", "log", "neg", "abs", "maximum")
}
_SCALAR_OR_TENSOR: Mapping[str, tuple[str, str]] = {
    "add": ("addu", "add"), "sub": ("addu", "sub"), "rsub": ("addu", "sub"), "mul": ("mulu", "mul"), "div": ("divu", "div"),
    "pow": ("powu", "pow"),
}  # fmt: skip
"""Variants of operators whose second operand may be a number, or a tensor."""

_COMPUTES_LIKE: Mapping[str, str] = {
    "gelu_backward": "gelu", "silu_backward": "silu", "erf": "gelu", "sin": "tanh", "cos": "tanh", "rsqrt": "sqrt",
    "expm1": "exp", "exp2": "exp", "log1p": "log", "log2": "log", "softplus": "log", "log_sigmoid_forward": "log", "elu": "exp",
    "mish": "silu", "mish_backward": "silu", "hardswish": "silu", "logit": "log", "reciprocal": "divu",
}  # fmt: skip
"""Variants that compute as much; all others compute little, and are priced by their bytes."""

_SHORT_POWERS = (2, 3)
"""Powers that PyTorch computes by multiplication (aten/src/ATen/native/cuda/PowKernel.cu)."""


def elementwise(operation: Operation, kind: str) -> Uses:
    """One pass over the operands: the variant of that name, or one that computes and moves as much."""
    moved = operation.bytes_in + operation.bytes_out
    tensors = (*operation.outputs, *operation.inputs)
    dtype = float_dtype(*tensors)
    name = operation.base_name.removeprefix("aten.")
    full = [tensor for tensor in operation.inputs if tensor.nbytes * 2 > max(t.nbytes for t in operation.inputs)]
    many = len(full) > 1
    variant = DIRECT.get(name) or ("add" if many else "mulu")
    if name in _SCALAR_OR_TENSOR:
        variant = _SCALAR_OR_TENSOR[name][many]
        if name == "pow" and operation.arguments.get("exponent") in _SHORT_POWERS:
            variant = "mulu"
    like = _COMPUTES_LIKE.get(name)
    if kind == "cpu" and (name == "gelu_backward" or operation.arguments.get("approximate") == "tanh"):
        # 1.2 million elements in fp32 on a Zen 3: by erf 1.3 ms forwards, 3.1 backwards, by tanh 4.3 and 4.6; tanh itself 4.1.
        like = "tanh"
    variant = like or variant
    same = (
        like is None
        and (name in DIRECT or name in _SCALAR_OR_TENSOR)
        and all(tensor.kernel_dtype == dtype for tensor in tensors)
    )
    stand_in = "" if same else f"{operation.name} as one pass over its tensors"
    return streamed(moved, dtype, last_size(tensors[0]), variant, widening=1.0 if same else ALIKE, stand_in=stand_in)


def reduction(operation: Operation, kind: str) -> Uses:
    """Sums, means and extrema over some dimensions."""
    source = operation.inputs[0]
    if not source.numel:
        return []
    dims = _reduced(operation, source)
    inner = prod(source.shape[dim] for dim in dims)
    name = operation.base_name.removeprefix("aten.")
    operator = {"mean": "mean", "amax": "max", "amin": "max", "max": "max", "min": "max"}.get(name, "sum")
    dtype = float_dtype(source)
    # Integers and booleans are summed as wide as they are, in fp32's kernels.
    size = source.itemsize_b / itemsize_b(dtype)
    outer = source.numel // inner
    sizes: dict[str, Any] = {"rows": outer, "cols": max(1, round(inner * size))}
    variant = operator
    if outer > 1 and len(source.shape) - 1 not in dims:
        sizes, variant = {"rows": max(1, round(inner * size)), "cols": outer}, f"{operator}_rows"
    exact = name in ("sum", "mean", "amax") and size == 1.0
    spec = KernelSpec.of("reduction", dtype, variant=variant, timing="device", **sizes)
    stand_in = "" if exact else f"{operation.name} as a {operator}"
    return [
        KernelUse(spec, widening=1.0 if exact else ALIKE, stand_in=stand_in, otherwise=_as_pass(operation, kind, 2.0))
    ]


def _as_pass(operation: Operation, kind: str, widening: float) -> tuple[KernelUse, ...]:
    """A pass of a GPU over what is read and written: elementwise kernels were measured on many, sums and copies on few."""
    if kind != "gpu":
        return ()
    tensors = (*operation.outputs, *operation.inputs)
    moved = float(operation.bytes_in + operation.bytes_out)
    stand_in = f"{operation.name} as one pass over its tensors"
    return tuple(streamed(moved, float_dtype(*tensors), last_size(tensors[0]), widening=widening, stand_in=stand_in))


def _reduced(operation: Operation, source: TensorInfo) -> set[int]:
    """The dimensions it reduces; all where none is named."""
    named: Any = operation.arguments.get("dim")
    dims = (named,) if isinstance(named, int) else tuple(named or ())
    return {dim % len(source.shape) for dim in dims if source.shape} or set(range(len(source.shape)))


def softmax(operation: Operation, kind: str) -> Uses:
    """Softmax and its logarithm along one dimension."""
    source = operation.inputs[0]
    return _softmax(source, int(operation.arguments.get("dim", -1)))


def _softmax(source: TensorInfo, dim: int) -> Uses:
    if not source.numel:
        return []
    cols = source.shape[dim] if source.shape else 1
    spec = KernelSpec.of("softmax", float_dtype(source), timing="device", rows=source.numel // cols, cols=cols)
    last = not source.shape or dim % len(source.shape) == len(source.shape) - 1
    return (
        [KernelUse(spec)]
        if last
        else scaled([KernelUse(spec)], 1.0, "softmax along a dimension that is not the last", 2.0)
    )


def softmax_backward(operation: Operation, kind: str) -> Uses:
    """It reads gradient and answer where the forward reads one; of softmax a GPU multiplies both first, in a pass of its own
    (`softmax_backward_cuda_out` in aten/src/ATen/native/cuda/SoftMax.cu).
    """
    source = operation.inputs[0]
    uses = scaled(
        _softmax(source, int(operation.arguments.get("dim", -1))),
        1.5,
        "the backward of softmax as 1.5 times the forward",
    )
    if kind == "gpu" and operation.name == "aten._softmax_backward_data":
        uses += streamed(3.0 * source.nbytes, float_dtype(source), last_size(source), "mul", widening=1.0)
    return uses


def _norm(source: TensorInfo, cols: int, variant: str) -> Uses:
    if not source.numel:
        return []
    sizes: dict[str, Any] = {"rows": source.numel // cols, "cols": cols}
    return [KernelUse(KernelSpec.of("layernorm", float_dtype(source), variant=variant, timing="device", **sizes))]


def row_norm(operation: Operation, kind: str, *, variant: str) -> Uses:
    """LayerNorm or RMSNorm over the last dimensions."""
    return _norm(operation.inputs[0], prod(operation.arguments["normalized_shape"]), variant)


def row_norm_backward(operation: Operation, kind: str, *, variant: str) -> Uses:
    """The gradient of the input reads a tensor more than the forward; those of weight and bias sum over the rows."""
    named = operation.arguments
    source, cols = named["input"], prod(named["normalized_shape"])
    wanted = named["output_mask"]
    uses = (
        scaled(_norm(source, cols, variant), 1.5, "the backward of a norm as 1.5 times the forward")
        if wanted[0]
        else []
    )
    if any(wanted[1:]) and source.numel:
        sizes: dict[str, Any] = {"rows": source.numel // cols, "cols": cols}
        summed = KernelSpec.of("reduction", float_dtype(source), variant="sum_rows", timing="device", **sizes)
        uses += scaled([KernelUse(summed)], 2.0, "the gradients of a norm's weights as sums over its rows")
    return uses


def group_norm(operation: Operation, kind: str, *, passes: float = 1.0) -> Uses:
    """GroupNorm as a LayerNorm of a row for each group."""
    named = operation.arguments
    source = named["input"]
    cols = source.numel // max(1, int(named["N"]) * int(named["group"]))
    return scaled(
        _norm(source, max(1, cols), "layernorm"), passes, f"{operation.name} as a norm of a row for each group"
    )


def batch_norm(operation: Operation, kind: str, *, passes: float) -> Uses:
    """BatchNorm: on a GPU tensors that pass memory, on a CPU a LayerNorm of a row for each channel, where statistics of a batch
    are scalar loops, with the factors of two networks on a Xeon (benchmarks/torch_programs.py).
    """
    named = operation.arguments
    source = named["input"]
    if not source.numel:
        return []
    name = f"{operation.name} as a norm of a row for each channel"
    if not named.get("training", named.get("train", False)):
        return streamed(source.nbytes * (1 + passes), float_dtype(source), last_size(source), stand_in=name)
    if kind == "gpu":
        return _batch_norm_of_gpus(operation, source, forward=passes == 1.0)
    return scaled(_norm(source, source.numel // source.shape[1], "layernorm"), 3.0 * passes, name, 2.0)


_FULL_CHANNELS, _FULL_CHANNELS_BF16 = 240, 2400
"""Channels of a BatchNorm from which on a GPU reads them as fast as memory delivers: each is one block's, of cuDNN
(`bn_fw_tr_1C11`) as of PyTorch, which is what bf16 runs as and reads number by number (`_select_batch_norm_backend` in
aten/src/ATen/native/Normalization.cpp, `batch_norm_collect_statistics_kernel` in cuda/Normalization.cuh). A block reads 17 GB/s
and 1.7 GB/s, of 4.1 TB/s: two layers of 64 and 128 channels on an H200 (benchmarks/torch_programs.py)."""


def _batch_norm_of_gpus(operation: Operation, source: TensorInfo, *, forward: bool) -> Uses:
    """Forwards two reads and a write; backwards those of two tensors."""
    is_bf16, channels = source.kernel_dtype == "bf16", source.shape[1]
    reads, others = (1, 2) if forward else (2, 3)
    if len(source.shape) < 3 or (source.strides[1] == 1 and channels > 1):
        slower = 1.0
    else:
        slower = max(1.0, (_FULL_CHANNELS_BF16 if is_bf16 else _FULL_CHANNELS) / channels)
    # What PyTorch writes runs in as many blocks as there are rows.
    moved = source.nbytes * (slower * reads + others * (1.0 if is_bf16 else slower))
    name = f"{operation.name} by its bytes"
    return streamed(moved, float_dtype(source), last_size(source), widening=2.0, stand_in=name)


def pooling(operation: Operation, kind: str) -> Uses:
    """Pooling: what is read and written; on a CPU a scalar loop over the window of each output.

    A CPU takes 6 ns for an element of a window (two networks on a Xeon, benchmarks/torch_programs.py), some twelve times what
    an element of a vectorised pass takes; PyTorch's loop is in aten/src/ATen/native/cpu/MaxPoolKernel.cpp.
    """
    window = operation.arguments.get("kernel_size")
    if kind == "gpu" or not window or "backward" in operation.name:
        return sweep(operation, kind)
    outputs = operation.outputs[0]
    elements = outputs.nbytes * prod(window) * (window[0] if len(window) == 1 else 1)
    name = f"{operation.name} as a loop over windows"
    return scaled(streamed(2.0 * elements, float_dtype(outputs), last_size(outputs)), 12.0, name, 3.0)


def copy(operation: Operation, kind: str) -> Uses:
    """A copy into a new layout or dtype; of source and target, whichever is larger says how much moves."""
    target = operation.outputs[0] if operation.outputs else operation.inputs[0]
    joined = operation.name in ("aten.cat", "aten.stack")
    source = target if joined else operation.inputs[-1] if operation.inputs else target
    moved = float(source.nbytes + target.nbytes)
    if not moved:
        return []
    same = source.dtype == target.dtype and source.kernel_dtype == float_dtype(source)
    dtype = float_dtype(target, source)
    elements = moved / (2 * itemsize_b(dtype))
    # Neighbours of the target lie apart in the source: a transposition.
    turned = (
        min(len(source.shape), len(target.shape)) > 1
        and source.strides[-1] != target.strides[-1]
        and source.strides[-1] != 0
    )
    spec = KernelSpec.of(
        "copy",
        dtype,
        variant="transpose" if turned else "",
        timing="device",
        **rows_and_cols(elements, last_size(target)),
    )
    otherwise = _as_pass(operation, kind, 2.0 if turned else ALIKE)
    if same and source.nbytes == target.nbytes:
        return [KernelUse(spec, otherwise=otherwise)]
    stand_in = f"{operation.name} by the bytes it reads and writes"
    return [KernelUse(spec, widening=ALIKE, stand_in=stand_in, otherwise=otherwise)]


def fill(operation: Operation, kind: str) -> Uses:
    """What is only written: zeros, ones, random numbers."""
    target = operation.outputs[0] if operation.outputs else operation.inputs[0]
    return streamed(
        target.nbytes, float_dtype(target), last_size(target), stand_in=f"{operation.name} by the bytes it writes"
    )


def sweep(operation: Operation, kind: str, *, passes: float = 1.0, widening: float = 2.0) -> Uses:
    """Passes over everything it reads and writes: pooling, interpolation, dropout, scans."""
    tensors = (*operation.outputs, *operation.inputs)
    moved = passes * (operation.bytes_in + operation.bytes_out)
    name = f"{operation.name} by the bytes it reads and writes"
    return streamed(moved, float_dtype(*tensors), last_size(tensors[0]), widening=widening, stand_in=name)


_BITS_OF_A_PASS = {"gpu": 12.0, "cpu": 2.0}
"""Binary digits of the size of a Fourier transform that a pass over memory takes: a block of a GPU has room for 4096 numbers, a
CPU combines four at a time."""


def fourier(operation: Operation, kind: str) -> Uses:
    """Fast Fourier transforms: passes along each dimension, as many as its size takes."""
    whole = max((operation.inputs[0], operation.outputs[0]), key=lambda tensor: tensor.numel)
    passes = sum(
        max(1, ceil(log2(max(1, whole.shape[dim])) / _BITS_OF_A_PASS[kind])) for dim in operation.arguments["dim"]
    )
    return sweep(operation, kind, passes=float(passes), widening=UNKNOWN)


_OPTIMIZERS = {"aten._fused_adam": "adam", "aten._fused_adamw": "adam", "aten._fused_sgd": "sgd"}
"""Variants of the fused steps that the family has."""

_TENSORS_PER_LAUNCH = 36
_BLOCKS_PER_LAUNCH = 320
_CHUNK = 65536
"""Of lists of four tensors per element; blocks of elements (aten/src/ATen/native/cuda/MultiTensorApply.cuh)."""


def over_lists(operation: Operation, kind: str) -> Uses:
    """`_foreach_…` and fused optimisers: on a GPU few launches for all tensors, on a CPU one call for each."""
    targets = next(value for value in operation.arguments.values() if isinstance(value, tuple))
    if kind == "cpu" and operation.name.startswith("aten._foreach"):
        return _one_by_one(operation, targets)
    moved = float(operation.bytes_in + operation.bytes_out)
    chunks = sum(ceil(tensor.numel / _CHUNK) for tensor in targets)
    launches = (
        max(1, ceil(len(targets) / _TENSORS_PER_LAUNCH), ceil(chunks / _BLOCKS_PER_LAUNCH)) if kind == "gpu" else 1
    )
    name = f"{operation.name} by the bytes it reads and writes"
    dtype = float_dtype(*targets)
    each = streamed(moved / launches, dtype, last_size(targets[0]), widening=1.5, stand_in=name)
    by_bytes_moved = [KernelUse(use.spec, launches, widening=use.widening, stand_in=name) for use in each]
    variant = _OPTIMIZERS.get(operation.base_name)
    if variant == "sgd" and operation.arguments.get("momentum"):
        variant = "momentum"
    if variant is None or not by_bytes_moved or any(tensor.kernel_dtype != dtype for tensor in targets):
        return by_bytes_moved
    mean = max(1, round(sum(tensor.numel for tensor in targets) / len(targets)))
    spec = KernelSpec.of("optimizer", dtype, variant=variant, timing="device", tensors=len(targets), elements=mean)
    return [KernelUse(spec, otherwise=tuple(by_bytes_moved))]


def _one_by_one(operation: Operation, targets: tuple[TensorInfo, ...]) -> Uses:
    sizes: dict[tuple[float, int, str], int] = {}
    share = (operation.bytes_in + operation.bytes_out) / max(1, sum(tensor.nbytes for tensor in targets))
    for tensor in targets:
        key = (tensor.nbytes * share, last_size(tensor), float_dtype(tensor))
        sizes[key] = sizes.get(key, 0) + 1
    name = operation.name.removeprefix("aten._foreach_").rstrip("_")
    variant = {"sqrt": "sqrt", "div": "divu", "addcdiv": "div", "exp": "exp"}.get(
        name, "add" if share > 2.5 else "mulu"
    )
    return [
        KernelUse(use.spec, count, widening=ALIKE, stand_in=f"{operation.name} as a pass over each tensor")
        for (moved, cols, dtype), count in sizes.items()
        for use in streamed(moved, dtype, cols, variant)
    ]
