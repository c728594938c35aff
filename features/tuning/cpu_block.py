"""What a tiled kernel takes of a CPU core: facts of the device, and formulas over register tiles and cache blocks.

Shared by the kinds whose kernels IREE compiles for a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ..device import Device
from ..dtypes import itemsize_b
from ..errors import SpecError
from .formula import Value, ceil_div, equal, floor, less, maximum, mod, where

FACTS = (
    "element_b", "peak_flops_per_s", "vector_b", "registers", "fma_pipes", "l1_b", "l2_b", "l3_b", "l2_b_per_s", "l3_b_per_s",
    "dram_b_per_s", "units",
)  # fmt: skip
"""element_b: bytes of an element; vector_b: bytes of a vector register; registers: how many of them; fma_pipes: whole vectors
multiplied and added per clock; units: cores; l3_b and dram_b_per_s are shared by all cores, everything else is of one core."""

AVX2_REGISTERS = 16.0
"""Vector registers of AVX2 (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 14)."""


class Vectors(NamedTuple):
    """Vector registers of a core.

    Attributes:
        width_b: Bytes of one.
        number: How many there are.
    """

    width_b: float
    number: float


_AVX2, _AVX512, _NEON = Vectors(32.0, AVX2_REGISTERS), Vectors(64.0, 32.0), Vectors(16.0, 32.0)
_VECTORS: Mapping[str, Vectors] = MappingProxyType({
    **dict.fromkeys(("zen", "zen2", "zen3", "haswell", "broadwell", "alder-lake", "raptor-lake", "arrow-lake"), _AVX2),
    **dict.fromkeys(("zen4", "zen5", "skylake-sp", "cascade-lake", "ice-lake", "sapphire-rapids", "emerald-rapids",
                     "granite-rapids"), _AVX512),
    **dict.fromkeys(("neoverse-n1", "neoverse-v2", "firestorm"), _NEON),
    "neoverse-v1": Vectors(32.0, 32.0),
    "a64fx": Vectors(64.0, 32.0),
})  # fmt: skip
"""Vector registers by architecture: 32 of AVX-512 (as above, chapter 15; Zen 4 runs them in two halves) and of AArch64 (Arm
Architecture Reference Manual, B1.2), whose SVE vectors are as wide as the core (Technical Reference Manuals of Neoverse V1, 256
bits, and V2, 128; A64FX Microarchitecture Manual, 512)."""

_USUAL_FMA_PIPES, _MOST_FMA_PIPES = 2, 4
"""Fused multiply-adds of a whole vector that a core starts per clock: two on Zen 5 and most server cores, four on Neoverse V2
and Apple's (sources in device files). They follow from a device's peak where the width of its vectors is known; else
the usual number and the peak tell the width."""

_FMA_CLOCKS = 4.0
"""Latency of a fused multiply-add (AMD, Software Optimization Guide for Zen 5, 58455: 4 clocks)."""

LINE_B = 64.0
PAGE_B = 4096.0
_L1_SETS = 64.0
"""Sets of the L1 of Zen 3 (32 KiB, 8 ways) and of Zen 5 (48 KiB, 12 ways), lines of 64 bytes. Rows that lie a multiple of 4096
bytes apart share one set."""

_USUAL_L1_B, _LARGER_L1_B = 32768.0, 49152.0
_LARGER_L1 = frozenset((
    "ice-lake", "sapphire-rapids", "emerald-rapids", "granite-rapids", "alder-lake", "raptor-lake", "arrow-lake", "zen5",
))  # fmt: skip
"""L1 of a core where its file has none: 32 KiB of Zen 2 to Zen 4 and of Intel's cores before Sunny Cove, 48 KiB since (Intel 64
and IA-32 Architectures Optimization Reference Manual, on Ice Lake and Golden Cove; AMD, 58455)."""

_FILLING = 0.8
"""Share of a cache that one operand's block can count on."""

CORES_FOR_MEMORY = 16.0
"""Cores that it takes to use a chip's whole memory bandwidth: misses under way bound what one gets. The profile of the EPYC
9005 has 37 GB/s for one core, of a chip with 614."""

MAX_REGISTER_TILE = 1024
"""Most results of a register tile: twice the 512 floats that AVX-512's 32 registers hold, so some configurations spill."""

MAX_UNROLLED = 4096
"""Most multiply-adds unrolled into one loop body, results of a register tile times steps; more takes seconds to compile."""

MAX_FILLED = 2**15
"""Largest tile_m · tile_n beside a tile_k: IREE zeroes such a block with unrolled stores, 1.8 s to compile at 512²."""

MAX_BLOCKS = 4096
"""Most blocks a kernel may be cut into: more are so small that handing them out is all the work."""


def facts_of(device: Device, dtype: str) -> Mapping[str, float]:
    """The facts `FACTS` of a CPU for a dtype. A level of which nothing is public is as fast as the one before it.

    Raises:
        SpecError: no CPU, or one without a peak for the dtype.
    """
    if device.kind != "cpu":
        raise SpecError(f"{device.name} is a {device.kind}; IREE's tile sizes are tuned for CPUs", field="device")
    peak, ran = device.peak_flops_per_s(dtype, "vector")
    units, clock = device.required("compute_units"), device.required("boost_clock_hz")
    per_core = peak / units
    vectors = vectors_of(device, dtype)
    pipes = round(per_core / clock / 2 * itemsize_b(ran) / vectors.width_b)
    l2_rate = device.fact("l2_bandwidth_b_per_s") or device.fact("l1_bandwidth_per_unit_b_per_s")
    memory = device.required("memory_bandwidth_b_per_s")
    l2_b = device.required("l2_b")
    return MappingProxyType({
        "element_b": itemsize_b(dtype),
        "peak_flops_per_s": per_core,
        "vector_b": vectors.width_b,
        "registers": vectors.number,
        "fma_pipes": float(min(max(pipes, 1), _MOST_FMA_PIPES)),
        "l1_b": l1_b_of(device),
        "l2_b": l2_b / units,
        "l3_b": device.last_level_cache_b,
        "l2_b_per_s": (l2_rate or memory) / units,
        "l3_b_per_s": (device.fact("l3_bandwidth_b_per_s") or l2_rate or memory) / units,
        "dram_b_per_s": memory,
        "units": units,
    })  # fmt: skip


def vectors_of(device: Device, dtype: str) -> Vectors:
    """The vector registers of a core: of its architecture, else as its peak tells them.

    Raises:
        SpecError: the device has no peak for the dtype.
    """
    known = _VECTORS.get(device.architecture)
    if known is not None:
        return known
    peak, ran = device.peak_flops_per_s(dtype, "vector")
    per_clock = peak / device.required("compute_units") / device.required("boost_clock_hz")
    width_b = 2.0 ** round(math.log2(per_clock / (2 * _USUAL_FMA_PIPES) * itemsize_b(ran)))
    width_b = min(max(width_b, _NEON.width_b), _AVX512.width_b)
    return _AVX2 if width_b == _AVX2.width_b else Vectors(width_b, _AVX512.number)


def l1_b_of(device: Device) -> float:
    """Bytes of a core's L1: of its file, else usual ones of its architecture."""
    return device.fact("l1_per_unit_b") or (_LARGER_L1_B if device.architecture in _LARGER_L1 else _USUAL_L1_B)


def largest_divisor(size: Value, limit: int) -> Value:
    """The largest divisor of `size` up to `limit`."""
    best: Value = 1.0
    for divisor in range(2, limit + 1):
        share = size / float(divisor)
        best = where(equal(share, floor(share)), float(divisor), best)
    return best


def step_cost(v: Mapping[str, Value], rows: Value, vectors: Value) -> Value:
    """Time of one step of a register tile of `rows` x `vectors` accumulators, relative to its multiply-adds alone.

    A step loads `vectors` vectors and broadcasts `rows` scalars, as many per clock as there are multiply-adds (two of each on
    Zen 5, 58455), and each accumulator waits for its last sum.
    """
    sums = rows * vectors
    return maximum(1.0, maximum((rows + vectors) / sums, v["fma_pipes"] * _FMA_CLOCKS / sums))


def spilled(v: Mapping[str, Value], rows: Value, vectors: Value) -> Value:
    """Registers that accumulators, a row of vectors and one scalar want beyond those there are."""
    return maximum(rows * vectors + vectors + 1.0 - v["registers"], 0.0)


def alignment(row_b: Value) -> Value:
    """0 for rows whose length is no multiple of a line, 1 for one that is, up to 7 for a multiple of 4096 bytes."""
    result: Value = 0.0
    for power in range(7):
        result = result + equal(mod(row_b, LINE_B * 2.0**power), 0.0)
    return result


def crowding(v: Mapping[str, Value], rows: Value, segment_b: Value, row_b: Value) -> Value:
    """Lines of `rows` segments, one per row of `row_b` bytes, over the lines of L1 that these addresses can lie in."""
    sets: Value = _L1_SETS
    for power in range(1, 7):
        sets = where(equal(mod(row_b, LINE_B * 2.0**power), 0.0), _L1_SETS / 2.0**power, sets)
    return rows * ceil_div(segment_b, LINE_B) / (v["l1_b"] / (LINE_B * _L1_SETS) * sets)


def seconds_per_byte(v: Mapping[str, Value], footprint_b: Value) -> Value:
    """What a byte costs one core from the level that holds `footprint_b`; nothing where that is L1."""
    beyond = where(less(footprint_b, v["l3_b"] * _FILLING), 1.0 / v["l3_b_per_s"], CORES_FOR_MEMORY / v["dram_b_per_s"])
    level = where(less(footprint_b, v["l2_b"] * _FILLING), 1.0 / v["l2_b_per_s"], beyond)
    return where(less(footprint_b, v["l1_b"] * _FILLING), 0.0, level)
