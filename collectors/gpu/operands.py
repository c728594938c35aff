"""Operands of a case on the device: seeded standard-normal data in the formats a GPU reads, and further sets of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...features.kernel import Array, KernelSpec, View, get_family
from ..runner import UnsupportedCaseError
from .runner import Tensor

TORCH_DTYPES = {
    "fp64": "float64", "fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16",
    "fp8": "float8_e4m3fn", "int8": "int8",
}  # fmt: skip

_INT8_STANDARD_DEVIATION = 32.0
"""Standard deviation of int8 operands: a quarter of the range, as quantised activations have, clipped at four of them."""

ROTATED_OVER_CACHE = 3.0
"""Sets of operands used in turn outgrow the last-level cache by this factor, so that none is found there."""

MAX_ROTATED_B = 8e9
"""Most bytes of all sets of one cold case together."""


def make_operands(torch: Any, spec: KernelSpec, device: str) -> tuple[Tensor, ...]:
    """The inputs of `spec` on `device`, filled from a seed that is the case's own.

    Raises:
        UnsupportedCaseError: a dtype torch cannot hold.
    """
    generator = torch.Generator(device).manual_seed(int(spec.case_id, 16) % 2**63)
    return tuple(
        _filled(torch, operand, generator, device) for operand in get_family(spec.family).inputs(View.of(spec))
    )


def footprint_b(spec: KernelSpec) -> float:
    """Bytes of the case's operands, inputs and outputs."""
    return float(get_family(spec.family).footprint_b(View.of(spec)))


def sets_for(spec: KernelSpec, calls: int, cache_b: float) -> int:
    """How many sets of operands `calls` cold calls need: one each, or as many as outgrow the cache; memory permitting."""
    size = footprint_b(spec)
    outgrow = math.ceil(ROTATED_OVER_CACHE * cache_b / size) + 1
    return max(1, min(calls, outgrow, int(MAX_ROTATED_B // size)))


def copies(operands: Sequence[Tensor], count: int) -> list[tuple[Tensor, ...]]:
    """`count` sets of equal operands, the first being the one given; strides are kept."""
    return [tuple(operands), *(tuple(operand.clone() for operand in operands) for _ in range(count - 1))]


def _filled(torch: Any, operand: Array, generator: Any, device: str) -> Tensor:
    if operand.dtype not in TORCH_DTYPES:
        raise UnsupportedCaseError(f"torch holds {', '.join(TORCH_DTYPES)}, not {operand.dtype}")
    dtype = getattr(torch, TORCH_DTYPES[operand.dtype])
    # Sizes split over ranks come as floats.
    shape = [int(size) for size in operand.shape]
    if operand.fill == "zeros":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Formats without a generator of their own are drawn in fp32 and converted.
    drawn = dtype if dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64) else torch.float32
    values = torch.empty(shape, dtype=drawn, device=device).normal_(generator=generator)
    if operand.fill == "positive":
        values.abs_().add_(0.5)
    if dtype == torch.int8:
        values.mul_(_INT8_STANDARD_DEVIATION).round_().clamp_(-127, 127)
    return values.to(dtype)
