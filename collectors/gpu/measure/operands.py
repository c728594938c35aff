"""Operands of a case on the device: seeded standard-normal data in the formats a GPU reads, and further sets of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....features.kernel import Array, KernelSpec, View, get_family
from ...runner import Tensor, UnsupportedCaseError

TORCH_DTYPES = {
    "fp64": "float64", "fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16",
    "fp8": "float8_e4m3fn", "int8": "int8", "int64": "int64",
}  # fmt: skip

_INT8_STANDARD_DEVIATION = 32.0
"""Standard deviation of int8 operands: a quarter of the range, as quantised activations have, clipped at four of them."""

ROTATED_OVER_CACHE = 3.0
"""Sets of operands used in turn outgrow the last-level cache by this factor, so that none is found there."""

MAX_ROTATED_B = 8e9
"""Most bytes of all sets of one cold case together: filling more takes longer than measuring the case."""

ROTATED_SHARE = 1 / 8
"""Most of a device's memory that those sets may take: outputs, workspaces and the allocator's own need the rest."""


def make_operands(
    torch: Any, spec: KernelSpec, device: str, formats: Mapping[str, str] = TORCH_DTYPES
) -> tuple[Tensor, ...]:
    """The inputs of `spec` on `device`, filled from a seed that is the case's own; `formats` are torch's names of dtypes there.

    Raises:
        UnsupportedCaseError: a dtype that is not among `formats`.
    """
    generator = torch.Generator(device).manual_seed(int(spec.case_id, 16) % 2**63)
    return tuple(
        _filled(torch, operand, generator, device, formats) for operand in get_family(spec.family).inputs(View.of(spec))
    )


@dataclass(frozen=True, slots=True)
class SetCounts:
    """Sets of a case's operands.

    Attributes:
        outgrow: How many outgrow the last-level cache.
        affordable: How many there is memory for.
    """

    outgrow: int
    affordable: int

    @classmethod
    def of(cls, spec: KernelSpec, cache_b: float, memory_b: float) -> SetCounts:
        """The counts on a device with that much cache and memory.

        Only what a call touches takes up cache: experts no token reaches, or pixels a stride skips, never come in.
        """
        family, view = get_family(spec.family), View.of(spec)
        footprint_b = float(family.footprint_b(view))
        touched_b = max(1.0, min(footprint_b, float(family.bytes_moved(view))))
        budget_b = min(MAX_ROTATED_B, ROTATED_SHARE * memory_b)
        return cls(math.ceil(ROTATED_OVER_CACHE * cache_b / touched_b) + 1, max(1, int(budget_b // footprint_b)))

    @property
    def most_calls(self) -> int | None:
        """Most calls a cold graph may have; None where sets can be used again, since they outgrow the cache.

        With less memory than that a set would come back while it is still cached, so each is used once.
        """
        return None if self.affordable >= self.outgrow else self.affordable

    def needed(self, calls: int) -> int:
        """How many sets `calls` cold calls need: one each, or as many as outgrow the cache; memory permitting."""
        return min(calls, self.outgrow, self.affordable)


@dataclass(slots=True)
class Rotation:
    """The calls of a cold case on sets of operands used in turn; sets are made once, as they are first needed.

    Attributes:
        operands: The first set.
        launch: Gives the call on a further set.
        counts: How many sets to use.
        calls: The call on each set made so far, at first that on `operands`.
    """

    operands: Sequence[Tensor]
    launch: Callable[[tuple[Tensor, ...]], Callable[[], Any]]
    counts: SetCounts
    calls: list[Callable[[], Any]] = field(default_factory=list)

    def in_turn(self, n: int) -> list[Callable[[], Any]]:
        """`n` calls, each on the set that was used longest ago."""
        wanted = self.counts.needed(n)
        missing = copies(self.operands, wanted - len(self.calls) + 1)[1:]
        self.calls.extend(self.launch(further) for further in missing)
        return [self.calls[i % wanted] for i in range(n)]


def copies(operands: Sequence[Tensor], count: int) -> list[tuple[Tensor, ...]]:
    """`count` sets of equal operands, the first being the one given; strides are kept."""
    return [tuple(operands), *(tuple(operand.clone() for operand in operands) for _ in range(count - 1))]


def _filled(torch: Any, operand: Array, generator: Any, device: str, formats: Mapping[str, str]) -> Tensor:
    if operand.dtype not in formats:
        raise UnsupportedCaseError(f"torch runs {', '.join(formats)} on this device, not {operand.dtype}")
    dtype = getattr(torch, formats[operand.dtype])
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
