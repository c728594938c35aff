"""Normalisation of each row of [rows, cols] with a learned scale: LayerNorm (with shift) or RMSNorm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..kernel import Array, Dim, KernelFamily, KernelSpec, View


def _inputs(v: View) -> tuple[Array, ...]:
    vectors = 1 if v.variant == "rmsnorm" else 2
    return (Array((v["rows"], v["cols"]), v.dtype), *(Array((v["cols"],), v.dtype) for _ in range(vectors)))


def _torch(torch: Any, spec: KernelSpec, x: Any, weight: Any, bias: Any = None) -> Callable[[], Any]:
    shape = (spec["cols"],)
    if spec.variant == "rmsnorm":
        return lambda: torch.nn.functional.rms_norm(x, shape, weight)
    return lambda: torch.nn.functional.layer_norm(x, shape, weight, bias)


FAMILY = KernelFamily(
    name="layernorm",
    doc=__doc__,
    dims=(Dim("rows", "independent rows"), Dim("cols", "elements normalised together")),
    variants=("layernorm", "rmsnorm"),
    default_variant="layernorm",
    inputs=_inputs,
    outputs=lambda v: (Array((v["rows"], v["cols"]), v.dtype, "zeros"),),
    # Mean, squared difference, its sum, scale and shift for layernorm; square, sum and two scalings for rmsnorm.
    flops=lambda v: (4.0 if v.variant == "rmsnorm" else 7.0) * v["rows"] * v["cols"],
    run={"torch": _torch},
    by_row=True,
    mlir_ops=("torch.aten.layer_norm", "torch.aten.native_layer_norm"),
    ranges={"rows": (1, 65536), "cols": (8, 16384)},
    model_shapes=[
        {"rows": rows, "cols": cols}
        for cols in (384, 768, 896, 1024, 1280, 2048, 3584, 4096)
        for rows in (1, 16, 77, 197, 512, 1500)
    ],
)
