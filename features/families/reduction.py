"""Sum, mean or maximum of a [rows, cols] array along its rows (`sum`), or down its columns (`sum_rows`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..kernel import Array, Dim, KernelFamily, KernelSpec, View

_OPERATORS = ("sum", "mean", "max")


def _outputs(v: View) -> tuple[Array, ...]:
    return (Array((v["cols"] if v.variant.endswith("_rows") else v["rows"],), v.dtype, "zeros"),)


def _torch(torch: Any, spec: KernelSpec, x: Any) -> Callable[[], Any]:
    operator = getattr(
        torch, {"max": "amax"}.get(spec.variant.removesuffix("_rows"), spec.variant.removesuffix("_rows"))
    )
    axis = 0 if spec.variant.endswith("_rows") else 1
    return lambda: operator(x, axis)


FAMILY = KernelFamily(
    name="reduction",
    doc=__doc__,
    dims=(Dim("rows", "rows of the input"), Dim("cols", "columns of the input")),
    variants=(*_OPERATORS, *(f"{operator}_rows" for operator in _OPERATORS)),
    default_variant="sum",
    inputs=lambda v: (Array((v["rows"], v["cols"]), v.dtype),),
    outputs=_outputs,
    flops=lambda v: 1.0 * v["rows"] * v["cols"],
    run={"torch": _torch},
    mlir_ops=("linalg.reduce", "stablehlo.reduce", "tosa.reduce_sum"),
    ranges={"rows": (1, 65536), "cols": (2, 65536)},
    model_shapes=[
        {"rows": rows, "cols": cols}
        for rows, cols in (
            (197, 768),
            (512, 1024),
            (64 * 49, 512),
            (16, 50257),
            (2048, 49),
            (1000, 384),
            (8192, 64),
            (77, 1280),
        )
    ],
)
