"""Quantisation of activations [rows, cols]: scaled and written in the dtype, or (variant `scale`) their scales found first.

`scale` is what a quantisation that finds its scales takes beyond one that is given them: another pass over the activations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..kernel import Array, Dim, KernelFamily, KernelSpec, View
from .moe import activation_dtype


def _inputs(v: View) -> tuple[Array, ...]:
    return (Array((v["rows"], v["cols"]), activation_dtype(v)),)


def _outputs(v: View) -> tuple[Array, ...]:
    # A scale a row, as vLLM's per-token quantisation keeps them (csrc/quantization/w8a8/fp8/common.cu).
    return (
        Array((v["rows"],), "fp32", "zeros")
        if v.variant == "scale"
        else Array((v["rows"], v["cols"]), v.dtype, "zeros"),
    )


def _torch(torch: Any, spec: KernelSpec, x: Any) -> Callable[[], Any]:
    if spec.variant == "scale":
        return lambda: torch.amax(torch.abs(x), -1).float()
    if spec.dtype == "fp8":
        return lambda: (x * 0.5).to(torch.float8_e4m3fn)
    return lambda: x * 0.5


FAMILY = KernelFamily(
    name="quantize",
    doc=__doc__,
    dims=(Dim("rows", "tokens"), Dim("cols", "width of the activations")),
    variants=("", "scale"),
    inputs=_inputs,
    outputs=_outputs,
    # A product with the scale; a comparison with the largest yet.
    flops=lambda v: 1.0 * v["rows"] * v["cols"],
    run={"torch": _torch},
    launches=lambda v: 1,
    ranges={"rows": (1, 32768), "cols": (32, 65536)},
    # Widths that products of Llama 3 8B and 70B, Qwen 2.5 7B and DeepSeek-V3 read.
    model_shapes=[
        {"rows": rows, "cols": cols}
        for cols in (3584, 4096, 7168, 8192, 14336, 18432, 28672)
        for rows in (1, 16, 128, 1024, 4096)
    ],
)
