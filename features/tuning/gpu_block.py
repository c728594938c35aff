"""What a block of a tiled kernel takes of a GPU's multiprocessor: facts of the device, and formulas over them.

Shared by the kinds whose kernels Triton compiles. What Triton does with a block is taken from its 3.6 compiler and checked
against the shared memory and registers it reported for 1,355 kernels (`shared_b`, `registers` of the shipped rows).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..cost.device_limits import GPU_L2_BYTES_PER_CLOCK_PER_UNIT, LAUNCH_FLOOR_S
from ..cost.occupancy import LIMITS, MAX_THREADS_PER_BLOCK, WARP_SIZE
from ..device import Device
from ..dtypes import itemsize_b
from ..errors import SpecError
from .formula import Value, divide, equal, floor, less, less_equal, maximum, minimum, mod, where

FACTS = (
    "units", "clock_hz", "peak_flops_per_s", "dram_b_per_s", "l2_b_per_s", "l2_b", "shared_b", "shared_block_b", "unit_warps",
    "unit_blocks", "unit_registers", "registers_per_lane", "lanes", "launch_s", "element_b", "tensor", "warpgroup",
)  # fmt: skip
"""units: multiprocessors; peak: of the dtype; shared_b, unit_…: what one multiprocessor holds, registers of 32 bits;
shared_block_b, registers_per_lane: the most a block or a lane can have; lanes: threads of a warp; tensor: 1 where matrix
units take the dtype, else 0; warpgroup: 1 where matrix units read tiles from shared memory by themselves (Hopper's wgmma,
Blackwell's tcgen05), else 0."""

BLOCK_THREADS = MAX_THREADS_PER_BLOCK
"""Threads a block can have on any GPU of the catalogue."""

SHARED_B_PER_CLOCK = 128.0
"""Bytes per clock that shared memory and the first-level cache of one multiprocessor deliver (32 banks of 4 bytes)."""

LOAD_CLOCKS = 600.0
"""Clocks from asking for a tile to having it: what loads from L2 and memory were measured to take on an H200 (280 and 680)."""

_KIB = 1024
_RESERVED_SHARED_B = 1024.0
"""Of every block's shared memory the system keeps this much (cuda_occupancy.h, compute capability 8.0 and later)."""

_WARPGROUP_ROWS = 64.0
_WARPGROUP_WARPS = 4.0
"""wgmma works on 64 rows, with 4 warps (PTX ISA 8.8, "Asynchronous warpgroup level matrix instructions")."""

DEFAULT_WARPS = 4.0
DEFAULT_STAGES = 3.0
"""What `triton.Config` takes when `num_warps` and `num_stages` are not given."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """What a multiprocessor holds; `shared_block_b` is the most of it that one block can have."""

    warps: int
    blocks: int
    shared_b: int
    shared_block_b: int
    lanes: int = WARP_SIZE
    registers: int = 65536
    registers_per_lane: int = 255


# CUDA C++ Programming Guide 12.9, "Technical Specifications per Compute Capability"; 10.3 has the limits of 10.0. AMD: CDNA
# and RDNA instruction set manuals (wavefronts per SIMD, 512 registers per lane with accumulators on CDNA, 256 on RDNA, whose
# wavefronts have 32 lanes) and the ROCm hardware table (LDS, registers). GPUs that Triton does not compile for have none.
_UNITS: Mapping[str, _Unit] = MappingProxyType(
    {f"{number // 10}.{number % 10}": _Unit(item.warps, item.blocks, item.shared_b, item.shared_per_block_b)
     for number, item in LIMITS.items()}
    | {
        "6.0": _Unit(64, 32, 64 * _KIB, 48 * _KIB),
        "6.1": _Unit(64, 32, 96 * _KIB, 48 * _KIB),
        "7.0": _Unit(64, 32, 96 * _KIB, 96 * _KIB),
        "7.5": _Unit(32, 16, 64 * _KIB, 64 * _KIB),
        "8.7": _Unit(48, 16, 164 * _KIB, 163 * _KIB),
        "10.3": _Unit(64, 32, 228 * _KIB, 227 * _KIB),
        "gfx908": _Unit(40, 40, 64 * _KIB, 64 * _KIB, 64, 131072, 512),
        "gfx90a": _Unit(32, 32, 64 * _KIB, 64 * _KIB, 64, 131072, 512),
        "gfx942": _Unit(32, 32, 64 * _KIB, 64 * _KIB, 64, 131072, 512),
        "gfx950": _Unit(32, 32, 160 * _KIB, 160 * _KIB, 64, 131072, 512),
        "gfx1030": _Unit(32, 32, 64 * _KIB, 64 * _KIB, 32, 65536, 256),
        "gfx1032": _Unit(32, 32, 64 * _KIB, 64 * _KIB, 32, 65536, 256),
        "gfx1100": _Unit(32, 32, 64 * _KIB, 64 * _KIB, 32, 98304, 256),
        "gfx1201": _Unit(32, 32, 64 * _KIB, 64 * _KIB, 32, 98304, 256),
    }
)  # fmt: skip
_WARPGROUPS = frozenset({"9.0", "10.0", "10.3"})


def facts_of(device: Device, dtype: str) -> Mapping[str, float]:
    """The facts `FACTS` of a GPU for a dtype.

    Raises:
        SpecError: no GPU, a compute capability whose limits are not known here, or a dtype it has no peak for.
    """
    if device.kind != "gpu":
        raise SpecError(f"{device.name} is a {device.kind}; Triton kernels are tuned for GPUs", field="device")
    capability = device.compute_capability or ""
    if capability not in _UNITS:
        raise SpecError(
            f"no limits known for compute capability {capability or '(none)'} of {device.name}; known: "
            f"{', '.join(sorted(_UNITS))}",
            field="device",
        )
    unit = _UNITS[capability]
    peak, ran = device.peak_flops_per_s(dtype, "matrix")
    units, clock = device.required("compute_units"), device.required("boost_clock_hz")
    vector = device.vector_flops_per_s.get(ran)
    tensor = ran in device.matrix_flops_per_s and (vector is None or peak > vector.value)
    return {
        "units": units, "clock_hz": clock, "peak_flops_per_s": peak,
        "dram_b_per_s": device.required("memory_bandwidth_b_per_s"),
        "l2_b_per_s": device.fact("l2_bandwidth_b_per_s") or units * GPU_L2_BYTES_PER_CLOCK_PER_UNIT * clock,
        "l2_b": device.last_level_cache_b, "shared_b": float(unit.shared_b), "shared_block_b": float(unit.shared_block_b),
        "unit_warps": float(unit.warps), "unit_blocks": float(unit.blocks), "unit_registers": float(unit.registers),
        "registers_per_lane": float(unit.registers_per_lane), "lanes": float(unit.lanes),
        "launch_s": LAUNCH_FLOOR_S["gpu"], "element_b": itemsize_b(dtype), "tensor": float(tensor),
        "warpgroup": float(capability in _WARPGROUPS),
    }  # fmt: skip


def tile_rows(v: Mapping[str, Value]) -> Value:
    """Rows of a block's tile: the blocks of a cluster share a tile, each working on its part of the rows."""
    return v["tile_m"] / maximum(v["ctas"], 1.0)


def given_warps(warps: Value) -> Value:
    """`num_warps`, Triton's default where it is left out."""
    return where(less(warps, 1.0), DEFAULT_WARPS, warps)


def given_stages(stages: Value) -> Value:
    """`num_stages`, Triton's default where it is left out."""
    return where(less(stages, 1.0), DEFAULT_STAGES, stages)


def by_warpgroups(v: Mapping[str, Value], tile_m: Value, warps: Value) -> Value:
    """1 where Triton lets whole warp groups multiply, operands read from shared memory; else 0."""
    able = v["tensor"] * v["warpgroup"] * less_equal(_WARPGROUP_ROWS, tile_m)
    return able * equal(mod(warps, _WARPGROUP_WARPS), 0.0)


def buffers(stages: Value, grouped: Value) -> Value:
    """Copies of an operand's tile that a loop of `num_stages` keeps in shared memory.

    Warp groups read a tile while it lies there, so it takes one more than warps that copy it to registers first.
    """
    return where(less(stages, 2.0), 1.0, stages - 1.0 + grouped)


def registers_per_lane(sums: Value, grouped: Value, v: Mapping[str, Value], cap: Value) -> tuple[Value, Value]:
    """Registers a lane gets, and those it wants, for `sums` accumulators; `cap` is `maxnreg`, 0 for none.

    Warps that multiply by themselves hold both operands too. The factors are medians over the shipped rows.
    """
    wanted = 32.0 + sums * where(grouped, 1.5, 3.0)
    most = where(less(cap, 1.0), v["registers_per_lane"], minimum(cap, v["registers_per_lane"]))
    return minimum(wanted, most), divide(wanted, most)


def resident_blocks(v: Mapping[str, Value], warps: Value, registers: Value, shared_b: Value) -> Value:
    """Blocks on one multiprocessor at once, by CUDA's occupancy rules without their rounding; at least 1.

    Args:
        v: Facts of the device.
        warps: Warps of a block.
        registers: Registers of a thread.
        shared_b: Shared memory of a block, bytes.
    """
    by_registers = floor(divide(v["unit_registers"], registers * warps * v["lanes"]))
    by_shared = floor(divide(v["shared_b"], shared_b + _RESERVED_SHARED_B))
    by_warps = floor(divide(v["unit_warps"], warps))
    return maximum(1.0, minimum(minimum(v["unit_blocks"], by_warps), minimum(by_registers, by_shared)))
