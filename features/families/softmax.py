"""Softmax along the last dimension of a [rows, cols] array."""

from __future__ import annotations

from ..kernel import Array, Dim, KernelFamily, View


def _array(v: View) -> tuple[Array, ...]:
    return (Array((v["rows"], v["cols"]), v.dtype),)


FAMILY = KernelFamily(
    name="softmax",
    doc=__doc__,
    dims=(Dim("rows", "independent rows"), Dim("cols", "elements normalised together")),
    inputs=_array,
    outputs=_array,
    # One subtraction, exponential, addition, comparison and scaling per element, each counted once.
    flops=lambda v: 5.0 * v["rows"] * v["cols"],
    run={"torch": lambda torch, spec, x: lambda: torch.softmax(x, -1)},
    by_row=True,
    mlir_ops=("linalg.softmax", "torch.aten.softmax.int"),
    ranges={"rows": (1, 65536), "cols": (2, 65536)},
    model_shapes=[
        {"rows": rows, "cols": cols}
        for rows, cols in (
            (1, 50257),
            (12, 77),
            (144, 384),
            (12 * 197, 197),
            (16 * 512, 512),
            (32, 32000),
            (8, 128256),
            (3072, 1024),
            (768, 300),
            (4, 151936),
        )
    ],
)
