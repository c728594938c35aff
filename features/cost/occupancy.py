"""How many blocks of a kernel run on one multiprocessor at once, by CUDA's occupancy rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..errors import SpecError, listed

# Of every compute capability so far: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
WARP_SIZE = 32
MAX_THREADS_PER_BLOCK = 1024
_REGISTERS = 65536
_MAX_REGISTERS_PER_THREAD = 255
_KIB = 1024
# Units in which registers and shared memory are handed out, and the shared memory the system keeps of every block
# (CUDA Toolkit 13.0, cuda_occupancy.h; CUDA C++ Programming Guide, "Compute Capability 8.x").
_REGISTER_UNIT = 256
_SHARED_UNIT_B = 128
_RESERVED_SHARED_B = 1024
_PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """What one multiprocessor holds at once.

    Attributes:
        warps: Warps.
        blocks: Blocks.
        shared_b: Shared memory in bytes.
        shared_per_block_b: Shared memory in bytes that one block may take.
    """

    warps: int
    blocks: int
    shared_b: int
    shared_per_block_b: int


LIMITS: Mapping[int, Limits] = MappingProxyType({
    80: Limits(64, 32, 164 * _KIB, 163 * _KIB),
    86: Limits(48, 16, 100 * _KIB, 99 * _KIB),
    89: Limits(48, 24, 100 * _KIB, 99 * _KIB),
    90: Limits(64, 32, 228 * _KIB, 227 * _KIB),
    100: Limits(64, 32, 228 * _KIB, 227 * _KIB),
    120: Limits(48, 24, 100 * _KIB, 99 * _KIB),
})  # fmt: skip
"""By compute capability (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability")."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What runs on a multiprocessor at once.

    Attributes:
        blocks: Blocks.
        warps: Warps.
        share: The warps' share of what the multiprocessor holds, 0 to 1.
    """

    blocks: int
    warps: int
    share: float


def occupancy(capability: int, *, threads: int, registers: int, shared_b: int) -> Occupancy:
    """Occupancy of blocks of `threads` threads with `registers` each and `shared_b` bytes of shared memory.

    All zero where not even one block fits.

    Raises:
        SpecError: a compute capability whose limits are not known here.
    """
    if capability not in LIMITS:
        raise SpecError(
            f"no limits known for compute capability {capability}; known: {listed(map(str, LIMITS))}",
            field="capability",
        )
    limits = LIMITS[capability]
    warps = -(-threads // WARP_SIZE)
    blocks = min(
        limits.blocks,
        limits.warps // warps,
        _by_registers(registers, warps),
        limits.shared_b // _rounded(shared_b + _RESERVED_SHARED_B, _SHARED_UNIT_B),
    )
    if threads > MAX_THREADS_PER_BLOCK or shared_b > limits.shared_per_block_b:
        blocks = 0
    return Occupancy(blocks, blocks * warps, blocks * warps / limits.warps)


def _by_registers(registers: int, warps: int) -> int:
    """Blocks whose registers fit; a block's warps are spread over the partitions, each with its own registers."""
    per_warp = _rounded(max(registers, 1) * WARP_SIZE, _REGISTER_UNIT)
    if registers > _MAX_REGISTERS_PER_THREAD or per_warp * _rounded(warps, _PARTITIONS) > _REGISTERS:
        return 0
    return _REGISTERS // _PARTITIONS // per_warp * _PARTITIONS // warps


def _rounded(value: int, unit: int) -> int:
    return -(-value // unit) * unit
