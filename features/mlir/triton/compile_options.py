"""What a Triton function is compiled for, and which function of a text that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import SpecError, listed
from ..types.graph import Function, Module
from .layouts import WARP
from .program_order import flow_of

TARGETS: Mapping[str, int] = {"sm_80": 80, "sm_90": 90}
"""Targets that can be asked about, with their compute capability."""

WARP_COUNTS = (1, 2, 4, 8, 16, 32)
"""Warps of a block that Triton takes: powers of two."""

MOST_STAGES = 16

REGISTERS = 65536
MOST_REGISTERS = 255
"""Registers of a multiprocessor, and the most of a thread (CUDA C++ Programming Guide, "Technical Specifications per
Compute Capability")."""


def register_limit(num_warps: int) -> int:
    """The most registers a thread of a block of so many warps can have: one block must fit, in units of eight."""
    return min(MOST_REGISTERS, REGISTERS // (WARP * num_warps) // 8 * 8)


@dataclass(frozen=True, slots=True)
class Options:
    """What a Triton function is compiled for.

    Attributes:
        target: Compute capability, such as `sm_90`.
        num_warps: Warps of a block, a power of two.
        num_stages: Stages that loops keep in flight.

    Raises:
        SpecError: a target, a number of warps or of stages that does not exist.
    """

    target: str
    num_warps: int = 4
    num_stages: int = 3

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise SpecError(f"no target {self.target!r}; targets: {listed(TARGETS)}", field="target")
        if isinstance(self.num_warps, bool) or self.num_warps not in WARP_COUNTS:
            raise SpecError(
                f"num_warps is {self.num_warps!r}; it is one of {listed(map(str, WARP_COUNTS))}", field="num_warps"
            )
        whole = isinstance(self.num_stages, int) and not isinstance(self.num_stages, bool)
        if not whole or not 1 <= self.num_stages <= MOST_STAGES:
            raise SpecError(
                f"num_stages is {self.num_stages!r}; it is a whole number from 1 to {MOST_STAGES}", field="num_stages"
            )


def triton_function(module: Module, name: str | None) -> Function:
    """The function of that name, or the only public one, of a module in Triton IR.

    Raises:
        SpecError: there is none, more than one without a name given, or it is no Triton IR.
    """
    bodies = [function for function in module.functions if function.body is not None]
    items = [body for body in bodies if _is_triton(body)]
    if not items:
        raise SpecError(
            "the text is no Triton IR: no operation of it is one of Triton's (tt.…); give a .ttir", field="mlir"
        )
    if name is not None:
        result = [item for item in items if item.name == name]
        if not result:
            raise SpecError(
                f"no Triton function {name!r}; functions: {listed(item.name for item in items)}", field="function"
            )
        return result[0]
    public = [item for item in items if item.is_public] or items
    if len(public) > 1:
        raise SpecError(f"{len(public)} functions; name one: {listed(item.name for item in public)}", field="function")
    return public[0]


def _is_triton(function: Function) -> bool:
    return any(op.dialect == "tt" for op in flow_of(function).steps)
