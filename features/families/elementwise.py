"""Element-by-element operators on [rows, cols]: one tensor, two tensors, or a tensor and a scalar (names ending in u)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..kernel import Array, Dim, KernelFamily, KernelSpec, View

# Arithmetic per element, a transcendental counted as one operation: the fewest a machine could spend, since the count
# feeds a lower bound. gelu is x·Φ(x) (erf form), silu x·σ(x).
_UNARY = {"relu": 1, "gelu": 4, "silu": 4, "tanh": 1, "exp": 1, "sigmoid": 3, "sqrt": 1, "log": 1, "neg": 1, "abs": 1}
_SCALAR = {"addu": 1, "mulu": 1, "divu": 1, "powu": 1}
_BINARY = {"add": 1, "sub": 1, "mul": 1, "div": 1, "pow": 1, "maximum": 1}
FLOPS_PER_ELEMENT = {**_UNARY, **_SCALAR, **_BINARY}
_POSITIVE_ONLY = frozenset({"sqrt", "log", "pow", "powu", "div"})
_SCALAR_OPERAND = 1.5


def _inputs(v: View) -> tuple[Array, ...]:
    count = 2 if v.variant in _BINARY else 1
    fill = "positive" if v.variant in _POSITIVE_ONLY else "normal"
    return tuple(Array((v["rows"], v["cols"]), v.dtype, fill) for _ in range(count))  # type: ignore[arg-type]


def _torch(torch: Any, spec: KernelSpec, x: Any, y: Any = None) -> Callable[[], Any]:
    if spec.variant in _SCALAR:
        operator = getattr(torch, spec.variant.removesuffix("u"))
        return lambda: operator(x, _SCALAR_OPERAND)
    if spec.variant in ("relu", "gelu", "silu"):
        operator = getattr(torch.nn.functional, spec.variant)
    else:
        operator = getattr(torch, spec.variant)
    return (lambda: operator(x)) if y is None else (lambda: operator(x, y))


FAMILY = KernelFamily(
    name="elementwise",
    doc=__doc__,
    dims=(Dim("rows", "rows of the tensor"), Dim("cols", "columns of the tensor")),
    variants=tuple(FLOPS_PER_ELEMENT),
    inputs=_inputs,
    outputs=lambda v: (Array((v["rows"], v["cols"]), v.dtype, "zeros"),),
    flops=lambda v: float(FLOPS_PER_ELEMENT[v.variant]) * v["rows"] * v["cols"],
    run={"torch": _torch},
    mlir_ops=("linalg.add", "linalg.mul", "linalg.exp", "linalg.tanh", "stablehlo.add", "tosa.add"),
    ranges={"rows": (1, 65536), "cols": (1, 65536)},
    model_shapes=[
        {"rows": rows, "cols": cols}
        for rows, cols in (
            (1, 768),
            (16, 3072),
            (77, 3072),
            (197, 768),
            (384, 4096),
            (512, 5120),
            (1500, 1280),
            (300, 8960),
            (2048, 2048),
            (64 * 56 * 56, 64),
        )
    ],
)
