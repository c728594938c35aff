"""Dense matrix multiply: C[b,m,n] = A[b,m,k] · B[b,k,n], optionally plus a bias row.

Bytes moved follow from the operands (`KernelFamily.bytes_moved`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..kernel import Array, Dim, KernelFamily, KernelSpec, View

# What a product of quantised operands is written as: PyTorch's torch._scaled_mm and torch._int_mm documentation.
_OUTPUT_DTYPE = {"fp8": "bf16", "fp8_block": "bf16", "nvfp4": "bf16", "int8": "int32", "tf32": "fp32"}

# Projections, MLPs and heads of published models (hidden sizes of BERT, GPT-2, Llama 3, Qwen 2.5, ViT-B) at token counts
# met in decode and prefill.
_LAYERS = ((768, 768), (768, 3072), (3072, 768), (1024, 4096), (1280, 1280), (896, 4864), (1536, 8960), (2048, 2560))
_TOKENS = (1, 3, 16, 77, 197, 384, 512)


def _inputs(v: View) -> tuple[Array, ...]:
    a = (v["batch"], v["m"], v["k"])
    b = (v["batch"], v["k"], v["n"])
    operands = (Array(a, v.dtype), Array(b, v.dtype))
    return (*operands, Array((v["n"],), output_dtype(v))) if v.variant == "bias" else operands


def output_dtype(v: View) -> str:
    """Dtype of the product."""
    return _OUTPUT_DTYPE.get(v.dtype, v.dtype)


def _torch(torch: Any, spec: KernelSpec, a: Any, b: Any, bias: Any = None) -> Callable[[], Any]:
    layout = spec.variant if spec.variant in _LAYOUTS else "nn"
    if layout[0] == "t":
        a = a.transpose(1, 2).contiguous().transpose(1, 2)
    if layout[1] == "t":
        b = b.transpose(1, 2).contiguous().transpose(1, 2)
    if spec["batch"] > 1 or spec.variant == "batched":
        return lambda: torch.bmm(a, b) if bias is None else torch.baddbmm(bias, a, b)
    a, b = a[0], b[0]
    if bias is not None:
        return lambda: torch.addmm(bias, a, b)
    return lambda: torch.mm(a, b)


_LAYOUTS = ("nt", "tn", "tt")

FAMILY = KernelFamily(
    name="gemm",
    doc=__doc__,
    dims=(
        Dim("batch", "independent products", default=1),
        Dim("m", "rows of A and C"),
        Dim("n", "columns of B and C"),
        Dim("k", "columns of A, rows of B"),
    ),
    variants=("", "bias", "batched", *_LAYOUTS),
    like_variants=dict.fromkeys(("", *_LAYOUTS), "bias"),
    config=(
        "tile_m",
        "tile_n",
        "tile_k",
        "inner_m",
        "inner_n",
        "inner_k",
        "warps",
        "stages",
        "group_m",
        "split_k",
        "data_tiling",
    ),
    inputs=_inputs,
    outputs=lambda v: (Array((v["batch"], v["m"], v["n"]), output_dtype(v), "zeros"),),
    flops=lambda v: 2.0 * v["batch"] * v["m"] * v["n"] * v["k"],
    run={"torch": _torch},
    plain_impl="torch",
    unit="matrix",
    tiles=lambda v: (v["batch"], v["m"], v["n"], v["k"]),
    mlir_ops=("linalg.matmul", "linalg.batch_matmul", "stablehlo.dot_general", "tosa.matmul"),
    ranges={"batch": (1, 16), "m": (1, 4096), "n": (1, 4096), "k": (1, 4096)},
    model_shapes=[{"batch": 1, "m": tokens, "n": n, "k": k} for k, n in _LAYERS for tokens in _TOKENS],
)
