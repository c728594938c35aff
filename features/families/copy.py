"""Copy of a [rows, cols] array: contiguous, or transposed into a new array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..kernel import Array, Dim, KernelFamily, KernelSpec, View


def _torch(torch: Any, spec: KernelSpec, x: Any) -> Callable[[], Any]:
    if spec.variant == "transpose":
        target = torch.empty_like(x.t().contiguous())
        return lambda: target.copy_(x.t())
    target = torch.empty_like(x)
    return lambda: target.copy_(x)


def _outputs(v: View) -> tuple[Array, ...]:
    return (Array((v["cols"], v["rows"]) if v.variant == "transpose" else (v["rows"], v["cols"]), v.dtype, "zeros"),)


FAMILY = KernelFamily(
    name="copy",
    doc=__doc__,
    dims=(Dim("rows", "rows of the source"), Dim("cols", "columns of the source")),
    variants=("", "transpose"),
    inputs=lambda v: (Array((v["rows"], v["cols"]), v.dtype),),
    outputs=_outputs,
    flops=lambda v: 0.0 * v["rows"] * v["cols"],
    run={"torch": _torch},
    mlir_ops=("linalg.copy", "linalg.transpose", "memref.copy", "stablehlo.transpose"),
    ranges={"rows": (1, 65536), "cols": (1, 65536)},
    model_shapes=[
        {"rows": rows, "cols": cols}
        for rows, cols in ((197, 768), (512, 1024), (384, 64), (2048, 128), (300, 4096), (50257, 64), (1500, 1280))
    ],
)
