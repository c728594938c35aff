"""Operators that compute much as kernels: products, convolutions, attention and recurrent layers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import ceil, expm1, log1p, prod
from typing import Any

from ....features.errors import SpecError
from ....features.families.moe import MAX_EXPERTS
from ....features.kernel import KernelSpec
from ..operation import REAL_DTYPES, Operation, TensorInfo, float_dtype
from .kernel_use import (
    UNKNOWN,
    KernelUse,
    Uses,
    by_bytes,
    last_size,
    scaled,
    small_kernels,
    streamed,
)

_HALF = frozenset({"bf16", "fp16", "fp8", "int8"})

_WHOLE = {"int64": "fp64", "int32": "fp32", "int16": "fp32", "uint8": "fp32", "bool": "fp32"}
"""Whole numbers whose products nobody measured, and the dtype of the product in their place."""
_INT64_LOOPS = 31.0
"""How many times as long PyTorch's loops over int64 take as a product of fp64: 0.70 and 22 billion operations a second at a
size of 256 on one core of a Zen 3. Fewer bits take as long as fp32, and products with a vector as those of fp64."""


def _gemm(
    operation: Operation, kind: str, a: TensorInfo, b: TensorInfo, m: int, n: int, k: int, batch: int = 1, bias: bool = False
) -> Uses:  # fmt: skip
    if not m * n * k * batch:
        return []
    real = REAL_DTYPES.get(a.dtype)
    dtype = real or _WHOLE.get(a.dtype) or a.kernel_dtype
    if dtype is None:
        return by_bytes(operation, kind)
    batch *= 4 if real else 1
    if batch > 1:
        variant = "batched"
    elif kind == "gpu" and dtype in _HALF:
        # Most rows of half precision are layers of inference engines, x·Wᵀ with the bias behind it: the plain variant.
        variant = ""
    elif bias and kind == "gpu":
        variant = "bias"
    else:
        # On a CPU the layout decides, most of all where a dtype has no instructions; a bias costs a pass over its row.
        variant = ("t" if _is_transposed(a) else "n") + ("t" if _is_transposed(b) else "n")
        variant = ("bias" if bias else "") if variant == "nn" else variant
    spec = KernelSpec.of("gemm", dtype, variant=variant, timing="device", batch=batch, m=m, n=n, k=k)
    if real:
        return [KernelUse(spec, widening=2.0, stand_in="a complex product as four real ones")]
    if a.dtype in _WHOLE:
        name = f"a product of {a.dtype}, which PyTorch has on CPUs alone, as one of {dtype}"
        loops = _INT64_LOOPS if a.dtype == "int64" and n > 1 else 1.0
        return scaled([KernelUse(spec)], loops, name, UNKNOWN)
    return [KernelUse(spec)]


def _check(a: TensorInfo, b: TensorInfo) -> None:
    """Read from a file, operands may be of anything."""
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise SpecError(f"the shapes {list(a.shape)} and {list(b.shape)} do not fit together", field="program")


def _is_transposed(matrix: TensorInfo) -> bool:
    """Whether neighbours along the first of the last two dimensions lie together."""
    return len(matrix.shape) > 1 and matrix.strides[-2] == 1 and matrix.strides[-1] != 1 and matrix.shape[-2] > 1


def matrix_product(operation: Operation, kind: str) -> Uses:
    """`mm`, `addmm`, `_scaled_mm`, `_int_mm`."""
    named = operation.arguments
    a, b = named.get("mat1", named["self"]), named["mat2"]
    _check(a, b)
    added = named["self"] if "mat1" in named else None
    uses = _gemm(operation, kind, a, b, a.shape[0], b.shape[1], a.shape[1], bias=added is not None)
    if added is not None and len(added.shape) == 2 and min(added.shape) > 1:
        # A whole matrix is added, not a row: it is read besides.
        uses += streamed(added.nbytes, float_dtype(added), last_size(added), stand_in="the matrix that addmm adds")
    return uses


def matrix_vector(operation: Operation, kind: str) -> Uses:
    """`mv`, `addmv`, `dot`: products with one column, of which the last two tensors are the operands."""
    a, b = operation.inputs[-2:]
    return _gemm(operation, kind, a, b, prod(a.shape[:-1]), 1, a.shape[-1])


def convolution_of_steps(operation: Operation, kind: str) -> Uses:
    """`conv_tbc`, a convolution along the first of three dimensions, as the product it amounts to."""
    x, weight = operation.inputs[:2]
    (size, channels, n), out = weight.shape, operation.outputs[0]
    uses = _gemm(operation, kind, x, weight, out.shape[0] * out.shape[1], n, size * channels)
    return scaled(uses, 1.0, "a convolution as the product it amounts to", 2.0)


def batched_product(operation: Operation, kind: str) -> Uses:
    """`bmm`, `baddbmm`, of which the last two tensors are the operands."""
    a, b = operation.inputs[-2:]
    _check(a, b)
    batch, m, n, k = a.shape[0], a.shape[1], b.shape[2], a.shape[2]
    # One matrix for the whole batch is one product.
    if b.strides[0] == 0:
        return _gemm(operation, kind, a, b, batch * m, n, k)
    if a.strides[0] == 0:
        return _gemm(operation, kind, a, b, m, batch * n, k)
    return _gemm(operation, kind, a, b, m, n, k, batch=batch)


def packed_product(operation: Operation, kind: str, *, bits: int) -> Uses:
    """`_weight_int8pack_mm` and its like: a product in the dtype of `self`, whose weights are stored in fewer bits."""
    (a, b), n = operation.inputs[:2], operation.outputs[0].shape[1]
    uses = _gemm(operation, kind, a, b, a.shape[0], n, a.shape[1])
    return scaled(uses, 1.0, "a product with packed weights as one with plain ones", 8.0 * a.itemsize_b / bits)


_GROUP_SETUP = 6.0
"""Kernels of no work that take as long as a grouped product beyond its groups: some 7 µs on an H200, whose mixtures of experts
take 27 µs and more for some tokens, where products, gathers and activations take 12 µs."""

_MATRICES_OVER_ROWS, _OF_A_MIXTURE = 4.0, 2.0 / 3.0
"""A grouped product of few rows is predicted as two thirds of a mixture of experts whose gate and up matrices are its own,
since the down matrices are half as many again. Such mixtures in bf16 stream at half of an H200's memory's rate after 34 µs (fit
to the 140 balanced ones of few rows among 530), and batched products of as many matrices at nearly all of it. Rows are few
where the elements of all matrices are at least four times those of the rows read and written; with more, gathers and sums by
row are most of a mixture. Four was taken and not tuned."""


def grouped_product(operation: Operation, kind: str) -> Uses:
    """`_grouped_mm`: groups of rows, each with a matrix of its own. Which rows is in values: they are taken as drawn evenly.

    In bf16 on a GPU few rows are part of a mixture of experts, see `_OF_A_MIXTURE`; all else is a batched product. There few
    rows leave groups out: of G groups G (1 - (1 - 1/G)^rows) have any, and only their matrices are read.
    """
    a, b = operation.inputs[:2]
    groups = b.shape[0] if len(b.shape) == 3 else a.shape[0] if len(a.shape) == 3 else operation.inputs[-1].shape[0]
    if kind == "gpu" and a.kernel_dtype == "bf16" and len(a.shape) == 2 and len(b.shape) == 3:
        rows, k, n = a.shape[0], a.shape[1], b.shape[2]
        is_mixture = 1 < groups <= MAX_EXPERTS and n % 2 == 0
        if is_mixture and groups * k * n >= _MATRICES_OVER_ROWS * rows * (k + n) > 0:
            mixture = KernelSpec.of(
                "moe", "bf16", impl="torch-grouped", timing="device", tokens=rows, hidden=k, inter=n // 2, topk=1,
                experts=groups,
            )  # fmt: skip
            return scaled(
                [KernelUse(mixture)], _OF_A_MIXTURE, "groups of rows drawn evenly, as in a mixture of experts"
            )
    if len(b.shape) == 3 and len(a.shape) == 2:
        groups = max(1, round(-groups * expm1(a.shape[0] * log1p(-1 / groups)))) if groups > 1 else 1
    share = 1 if len(a.shape) == 3 else groups
    if len(b.shape) == 2 and len(a.shape) == 2:
        m, n, k = a.shape[0], b.shape[1], ceil(a.shape[1] / groups)
    else:
        m, n, k = ceil(a.shape[-2] / share), b.shape[-1], a.shape[-1]
    uses = scaled(_gemm(operation, kind, a, b, m, n, k, batch=groups), 1.0, "groups of rows drawn evenly")
    return uses + (small_kernels(_GROUP_SETUP, "the addresses and sizes of groups") if kind == "gpu" else [])


def convolution(operation: Operation, kind: str) -> Uses:
    """One convolution. A GPU adds the bias in a pass of its own, but to depthwise ones (`_convolution` in
    aten/src/ATen/native/Convolution.cpp).
    """
    named, out = operation.arguments, operation.outputs[0]
    uses = _convolution(operation, named["input"], named["weight"], out)
    if kind == "gpu" and named.get("bias") is not None and not _is_depthwise(operation):
        uses += streamed(
            2.0 * out.nbytes, float_dtype(out), last_size(out), "addu", stand_in="the bias of a convolution"
        )
    return uses


def _is_depthwise(operation: Operation) -> bool:
    named = operation.arguments
    return bool(named["weight"].shape[1] == 1 and named["groups"] > 1)


def convolution_backward(operation: Operation, kind: str) -> Uses:
    """The gradients of input and weight, each a convolution of the same arithmetic, and that of the bias, a sum."""
    named = operation.arguments
    grad, wanted = named["grad_output"], named["output_mask"]
    whole = _convolution(operation, named["input"], named["weight"], grad)
    like = scaled(whole, 1.0, "the gradient of a convolution as one like it")
    uses = [use for is_wanted in wanted[:2] if is_wanted for use in like]
    return uses + (streamed(grad.nbytes * 1.0, float_dtype(grad), last_size(grad)) if wanted[2] else [])


def _convolution(operation: Operation, x: TensorInfo, weight: TensorInfo, out: TensorInfo) -> Uses:
    named = operation.arguments
    stride, padding, dilation, groups = (named[name] for name in ("stride", "padding", "dilation", "groups"))
    kernel, transposed = weight.shape[2:], bool(named["transposed"])
    if not prod(out.shape) or not prod(x.shape):
        return []
    dtype = float_dtype(x)
    # Convolutions of integers were not measured, products were.
    product_dtype = "int8" if x.kernel_dtype == "int8" else dtype
    # The contracted side of a transposed convolution is the other one: it is the gradient of a convolution from out to x.
    source, target = (out, x) if transposed else (x, out)
    plain = (
        product_dtype == dtype and len(kernel) == 2 and groups == 1 and kernel[0] == kernel[1]
        and all(size == 1 for size in dilation) and len(set(stride)) == 1 and len(set(padding)) == 1
    )  # fmt: skip
    if plain:
        layout = "nhwc" if source.strides[1] == 1 and source.shape[1] > 1 else ""
        sizes = {
            "batch": source.shape[0], "in_channels": source.shape[1], "out_channels": target.shape[1],
            "height": source.shape[2], "width": source.shape[3], "kernel": kernel[0], "stride": stride[0],
            "padding": padding[0],
        }  # fmt: skip
        spec = KernelSpec.of("conv2d", dtype, variant=layout, timing="device", **sizes)
        return (
            scaled([KernelUse(spec)], 1.0, "a transposed convolution as one like it")
            if transposed
            else [KernelUse(spec)]
        )
    if _is_depthwise(operation):
        moved = x.nbytes + out.nbytes + weight.nbytes
        return streamed(
            moved, dtype, last_size(out), widening=2.0, stand_in="a depthwise convolution by the bytes it moves"
        )
    positions = prod(target.shape[2:]) * target.shape[0]
    spec = KernelSpec.of(
        "gemm", product_dtype, variant="batched" if groups > 1 else "", timing="device", batch=groups, m=positions,
        n=target.shape[1] // groups, k=source.shape[1] // groups * prod(kernel),
    )  # fmt: skip
    return [KernelUse(spec, widening=2.0, stand_in="a convolution as the product it amounts to")]


def attention(operation: Operation, kind: str) -> Uses:
    """Fused attention. Masks that hide nothing known, and none, are priced by all pairs of query and key."""
    return _attention(operation, kind, *operation.inputs[:3])


_BACKWARDS = {"gpu": 2.5, "cpu": 3.0}
"""Times of the forward that the backward of attention takes: five products for two (Dao et al., FlashAttention, 2022, algorithm
4); of fp32 on one core of a Zen 3 2.9 to 3.2 times, four shapes."""


def attention_backward(operation: Operation, kind: str) -> Uses:
    """`_BACKWARDS` times the forward, with a pass that adds to a learned mask.

    On a CPU in 16 bits PyTorch computes the forward in fp32 and the backward as five products, so that these are priced.
    """
    named = operation.arguments
    query, key, value = named["query"], named["key"], named["value"]
    forward = _attention(operation, kind, query, key, value)
    if kind == "cpu" and float_dtype(query) in _HALF and forward[0].spec.family == "attention":
        return _products_of_backward(operation, query, key, value)
    times = _BACKWARDS[kind]
    return scaled(forward, times, f"the backward of attention as {times:g} times the forward")


def _products_of_backward(operation: Operation, query: TensorInfo, key: TensorInfo, value: TensorInfo) -> Uses:
    """Scores, their gradient, and the gradients of values, queries and keys, in the layouts of those, for each head."""
    (batch, heads, queries, size), keys, wide = query.shape, key.shape[2], value.shape[3]
    if operation.arguments.get("is_causal", False):
        keys = max(1, round(min(keys, queries) * _causal_share(queries, min(keys, queries))))
    products = (("nt", queries, keys, size), ("nt", queries, keys, wide), ("tn", keys, wide, queries),
                ("", queries, size, keys), ("tn", keys, size, queries))  # fmt: skip
    uses = [
        KernelUse(
            KernelSpec.of("gemm", float_dtype(query), variant=layout, timing="device", m=m, n=n, k=k), batch * heads
        )
        for layout, m, n, k in products
    ]
    return scaled(uses, 1.0, "the backward of attention as its five products")


def flex_attention(operation: Operation, kind: str, *, backward: bool = False) -> Uses:
    """FlexAttention: attention over all pairs of query and key, times the share of blocks that its mask leaves."""
    share = operation.arguments["share"]
    uses = attention_backward(operation, kind) if backward else attention(operation, kind)
    return scaled(uses, float(share), "FlexAttention as attention over the blocks of its mask", 2.0)


def _attention(operation: Operation, kind: str, query: TensorInfo, key: TensorInfo, value: TensorInfo) -> Uses:
    dtype = float_dtype(query)
    if len(query.shape) != 4 or not prod(query.shape) or not prod(key.shape):
        return by_bytes(operation, "")
    (batch, heads, queries, size), (_, kv_heads, keys, _) = query.shape, key.shape
    if heads % kv_heads:
        return by_bytes(operation, "")
    causal = bool(operation.arguments.get("is_causal", False))
    # PyTorch's causal mask begins at the first key: those behind the last query are not seen.
    keys = min(keys, queries) if causal else keys
    # Scores take the size of keys, their sums that of values.
    mean = round((size + value.shape[3]) / 2)
    sizes: dict[str, Any] = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": mean}
    variant = "" if queries == 1 or (causal and queries == keys) else "full"
    spec = KernelSpec.of("attention", dtype, variant=variant, timing="device", **sizes, q_len=queries, kv_len=keys)
    uses = [KernelUse(spec)]
    if causal and not variant and queries > 1:
        # It leaves tiles out that the mask hides; many of its rows are of engines, which look up pages of a cache besides.
        hidden = KernelUse(spec)
        if kind == "gpu":
            # PyTorch's own where measured: on an H100 its rows say 127 µs of 4 × 16 heads of 64, 2,048 long, vLLM's 170.
            hidden = KernelUse(replace(spec, impl="torch"), otherwise=(hidden,))
        uses = [KernelUse(replace(spec, variant="full"), otherwise=(hidden,), at_most=True)]
    if mean != size:
        uses = scaled(uses, 1.0, "attention with values of another size as with the mean of both")
    if causal and variant:
        uses = scaled(uses, _causal_share(queries, keys), "causal attention of unequal lengths")
    mask = operation.arguments.get("attn_mask", operation.arguments.get("attn_bias"))
    if isinstance(mask, TensorInfo):
        uses += streamed(mask.nbytes, float_dtype(mask), last_size(mask), stand_in="the mask of attention")
    return uses


def _causal_share(queries: int, keys: int) -> float:
    """Pairs that PyTorch's causal mask leaves of more queries than keys, query i with the keys up to i, over all."""
    return ((keys + 1) / 2 + queries - keys) / queries


_GATES = {0: 1, 1: 1, 2: 4, 3: 3}
"""Gates of a recurrent layer by PyTorch's number of its mode: RNN with relu and tanh, LSTM, GRU."""


def recurrent(operation: Operation, kind: str) -> Uses:
    """A layer of an LSTM, a GRU or a plain RNN: one product over all steps, one small product for each step, which has as many
    rows as there are sequences left.
    """
    named: Any = operation.arguments
    x, hidden, gates = named["input"], int(named["hidden_size"]), _GATES.get(int(named["mode"]), 4)
    steps = Counter(map(int, named.get("batch_sizes") or (x.shape[1],) * x.shape[0]))
    rows = sum(batch * count for batch, count in steps.items())
    dtype, name = float_dtype(x), "a recurrent layer by its products"
    shared = KernelSpec.of("gemm", dtype, timing="device", m=rows, n=gates * hidden, k=x.shape[-1])
    return [KernelUse(shared, widening=2.0, stand_in=name)] + [
        KernelUse(
            KernelSpec.of("gemm", dtype, timing="device", m=batch, n=gates * hidden, k=hidden), count=count, widening=2.0,
            stand_in=name,
        )
        for batch, count in steps.items()
    ]  # fmt: skip


def recurrent_backward(operation: Operation, kind: str) -> Uses:
    """Twice the products of the forward."""
    return scaled(recurrent(operation, kind), 2.0, "the backward of a recurrent layer by its products", 2.0)
