"""What torch needs on a GPU beyond a family's own call: quantised products, and tf32 switched on or off for the call.

Weights of quantised products lie column by column, as every Hopper fp8 kernel wants them and as models store them
transposed anyway; they are brought there before the first call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....features.kernel import KernelSpec, get_family
from ...cpu.runner import UnsupportedCaseError
from ..measure.runner import Tensor

Call = Callable[[], Tensor]

_FP8_CAPABILITY = (8, 9)
"""Least compute capability with fp8 tensor cores (CUDA C++ Programming Guide, "Alternate Floating-Point")."""

_TF32_CAPABILITY = (8, 0)
"""Least compute capability with tf32 tensor cores (CUDA C++ Programming Guide, the same section)."""

_ALIGNMENT = 16
"""Both libraries want n and k in multiples of this (torch._scaled_mm's and cublasLt's IMMA checks)."""

_LEAST_INT8_ROWS = 17
"""torch._int_mm refuses products of 16 rows and fewer on CUDA."""

_WEIGHT_LAYOUTS = ("", "bias", "nt")
"""Variants whose first operand lies row by row; what is not quantised can have others."""

_PRECISION = {"tf32": "tf32", "fp32": "ieee"}
"""torch's words for both (torch.backends, `fp32_precision`, since 2.9)."""


def special_launch(torch: Any, spec: KernelSpec, operands: tuple[Tensor, ...]) -> Call | None:
    """The call of a case that the family's own call does not do right on a GPU; None where it does.

    That is a product in fp8 (unit scales, bf16 result) or int8 (int32 result), and products and convolutions in fp32 or
    tf32, which torch tells apart by a global switch: set around each call and put back.

    Raises:
        UnsupportedCaseError: the variant, a size or the device is one the quantised product does not take.
    """
    if spec.family == "gemm" and spec.dtype in _QUANTISED:
        _check_quantised(torch, spec, operands[0])
        return _QUANTISED[spec.dtype](torch, *operands)
    switches = {"gemm": torch.backends.cuda.matmul, "conv2d": torch.backends.cudnn.conv}
    if spec.dtype not in _PRECISION or spec.family not in switches:
        return None
    if spec.dtype == "tf32" and operands[0].is_cuda:
        capability = tuple(torch.cuda.get_device_capability(operands[0].device))
        if capability < _TF32_CAPABILITY:
            # torch would run it in fp32 without a word, and the row would be an fp32 one under another name.
            raise UnsupportedCaseError(f"tf32 needs compute capability 8.0 or more, this device has {capability}")
    local = get_family(spec.family).run["torch"](torch, spec, *operands)
    return _switched(switches[spec.family], _PRECISION[spec.dtype], local)


def _switched(switch: Any, precision: str, own: Call) -> Call:
    def call() -> Tensor:
        before = switch.fp32_precision
        switch.fp32_precision = precision
        try:
            return own()
        finally:
            switch.fp32_precision = before

    return call


def _fp8(torch: Any, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Call:
    left, right, unit_scale = a[0], _by_columns(b[0]), torch.ones((), device=a.device)
    return lambda: torch._scaled_mm(left, right, unit_scale, unit_scale, bias=bias, out_dtype=torch.bfloat16)


def _int8(torch: Any, a: Tensor, b: Tensor) -> Call:
    left, right = a[0], _by_columns(b[0])
    return lambda: torch._int_mm(left, right)


_QUANTISED: dict[str, Callable[..., Call]] = {"fp8": _fp8, "int8": _int8}


def _by_columns(weights: Tensor) -> Tensor:
    return weights.t().contiguous().t()


def _check_quantised(torch: Any, spec: KernelSpec, a: Tensor) -> None:
    variants = _WEIGHT_LAYOUTS if spec.dtype == "fp8" else tuple(v for v in _WEIGHT_LAYOUTS if v != "bias")
    if spec["batch"] > 1 or spec.variant not in variants:
        raise UnsupportedCaseError(
            f"torch multiplies {spec.dtype} one product at a time, as {', '.join(v or 'plain' for v in variants)}; "
            f"got batch {spec['batch']} and variant {spec.variant or 'plain'}"
        )
    if spec["n"] % _ALIGNMENT or spec["k"] % _ALIGNMENT:
        raise UnsupportedCaseError(
            f"torch multiplies {spec.dtype} with n and k in multiples of {_ALIGNMENT}, got {spec['n']} and {spec['k']}"
        )
    if not a.is_cuda:
        return
    if spec.dtype == "int8" and spec["m"] < _LEAST_INT8_ROWS:
        raise UnsupportedCaseError(f"torch multiplies int8 from {_LEAST_INT8_ROWS} rows on, got {spec['m']}")
    capability = torch.cuda.get_device_capability(a.device)
    if spec.dtype == "fp8" and tuple(capability) < _FP8_CAPABILITY:
        raise UnsupportedCaseError(f"fp8 needs compute capability 8.9 or more, this device has {capability}")
