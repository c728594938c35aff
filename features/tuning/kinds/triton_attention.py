"""Fused attention by Triton: tiles of queries and keys, warps and pipeline stages."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from ...device import catalogue
from ...kernel import KernelSpec
from ..formula import Value, ceil_div, divide, equal, less, less_equal, log2, maximum, minimum, mod, sqrt, where
from ..gpu_block import (
    FACTS,
    LOAD_CLOCKS,
    SHARED_B_PER_CLOCK,
    buffers,
    by_warpgroups,
    facts_of,
    given_stages,
    given_warps,
    registers_per_lane,
    resident_blocks,
    tile_rows,
)
from ..kind import Candidates, Task, TuningKind

_SIZES = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "causal")
"""`causal` is 1 where a query sees no later position, 0 where it sees all; queries are the last of the positions."""

_MEASURED_KNOBS = ("tile_m", "tile_n", "warps", "stages")
_KNOBS = (*_MEASURED_KNOBS, "ctas", "max_registers")
"""The last two are `num_ctas` and `maxnreg`: no row was measured with them, so only the formulas know what they do."""

_EXP_PER_CLOCK = 16.0
_VECTOR_PER_CLOCK = 128.0
"""Exponentials and additions per clock of one multiprocessor (CUDA C++ Programming Guide 12.9, "Arithmetic Instructions")."""

_SOFTMAX_OPERATIONS = 5.0
"""Beside its exponential every score is scaled, compared, shifted, summed and made narrow."""

_WIDTHS = (16.0, 32.0, 64.0, 128.0, 256.0)


def staged_b(v: Mapping[str, Value]) -> Value:
    """Bytes of shared memory in which a block keeps queries, keys and values, `(n,)` for columns of sizes, knobs and facts.

    Warps that multiply by themselves hand probabilities over through shared memory too; with one stage, keys and values
    take turns. Within 2 % for 404 of the campaign's 413 rows and 486 of the sweep's 495.
    """
    tile_m, tile_n, width = tile_rows(v), v["tile_n"], _width(v["head_dim"])
    stages, grouped = given_stages(v["stages"]), by_warpgroups(v, tile_m, given_warps(v["warps"]))
    copies = buffers(stages, grouped)
    local = where(less(stages, 2.0), 1.0, 2.0 * copies) * tile_n * width + tile_m * tile_n
    return (tile_m * width + where(grouped, 2.0 * copies * tile_n * width, local)) * v["element_b"]


def _features(v: Mapping[str, Value]) -> dict[str, Value]:
    """What an engineer works out of a configuration; ratios of times are to the bound, so that they carry no size.

    The rows of a block's tile are queries of all heads that share a key head. The bound is that of the configuration: what
    its blocks multiply, padding included, spread evenly or by the longest block; keys and values fetched by every block
    from L2, operands beyond L2 from memory; the launch. Models predict the ratio to the estimate instead, which also counts the
    steps of a block one after another.
    """
    q_len, kv_len, head_dim, element = v["q_len"], v["kv_len"], v["head_dim"], v["element_b"]
    tile_m, tile_n = tile_rows(v), v["tile_n"]
    warps, stages = given_warps(v["warps"]), given_stages(v["stages"])
    clock, units = v["clock_hz"], v["units"]

    shared_by = divide(v["heads"], v["kv_heads"])
    pairs = v["batch"] * v["kv_heads"]
    rows = q_len * shared_by
    width = _width(head_dim)
    tiles = ceil_div(rows, tile_m)
    blocks = pairs * tiles
    lanes = warps * v["lanes"]

    # Keys a block goes through: all of them, or under a causal mask up to its last query.
    longest = ceil_div(kv_len, tile_n)
    earlier = kv_len - q_len
    seen = minimum(kv_len, earlier + (q_len + minimum(divide(tile_m, shared_by), q_len)) / 2.0)
    mean = where(v["causal"], minimum(longest, seen / tile_n + 0.5), longest)
    scores = where(v["causal"], q_len * earlier + q_len * (q_len + 1.0) / 2.0, q_len * kv_len)

    # How a block keeps its operands, and how many blocks run beside each other.
    sums = tile_m * (width + tile_n) / lanes
    grouped = by_warpgroups(v, tile_m, warps)
    copies = buffers(stages, grouped)
    key_tile_b, kept_b = tile_n * width * element, staged_b(v)
    registers, pressure = registers_per_lane(sums, grouped, v, v["max_registers"])
    resident = resident_blocks(v, warps, registers, kept_b)

    # How blocks fill the device.
    rounds = ceil_div(blocks, units)
    slots = resident * units
    slot_rounds = ceil_div(blocks, slots)
    waves = blocks / units

    # One step of a block in clocks: two products, the softmax between them, operands from shared memory.
    step_mma = 4.0 * tile_m * tile_n * width / (v["peak_flops_per_s"] / units) * clock
    step_softmax = tile_m * tile_n * (1.0 / _EXP_PER_CLOCK + _SOFTMAX_OPERATIONS / _VECTOR_PER_CLOCK)
    own_reads = maximum(2.0 * sqrt(warps * tile_m * tile_n), tile_m + tile_n)
    group_reads = ceil_div(tile_m, 64.0) * tile_n + tile_m
    step_shared = 2.0 * where(grouped, group_reads, own_reads) * width * element / SHARED_B_PER_CLOCK
    step = maximum(step_mma, maximum(step_shared, step_softmax))

    # Times on paper.
    flops = 4.0 * v["batch"] * v["heads"] * head_dim * scores
    keys_b, queries_b = 2.0 * pairs * kv_len * head_dim * element, 2.0 * pairs * rows * head_dim * element
    footprint_b = keys_b + queries_b
    fetched_b = blocks * mean * 2.0 * tile_n * head_dim * element + queries_b
    compute_s = maximum(waves * mean, longest) * step_mma / clock
    l2_s = fetched_b / v["l2_b_per_s"]
    dram_s = maximum(footprint_b - v["l2_b"], 0.0) / v["dram_b_per_s"]
    bound_s = v["launch_s"] + maximum(compute_s, maximum(l2_s, dram_s))
    through_s = maximum(rounds * mean, longest) * step / clock
    serial = step_mma + step_softmax + step_shared
    chain_s = maximum(slot_rounds * mean, longest) * (serial + LOAD_CLOCKS / copies) / clock
    # Little's law: bytes under way over the time they take.
    under_way_b = minimum(blocks, slots) * copies * 2.0 * key_tile_b
    flight_s = fetched_b / minimum(under_way_b * clock / LOAD_CLOCKS, v["l2_b_per_s"])
    busy_s = v["launch_s"] + maximum(maximum(through_s, chain_s), maximum(flight_s, dram_s))

    return {
        "bound_s": busy_s,
        "log rows": log2(rows), "log pairs": log2(pairs), "log kv_len": log2(kv_len), "log head_dim": log2(head_dim),
        "log shared by": log2(shared_by), "log queries": log2(q_len), "causal": v["causal"],
        "log tile_m": log2(tile_m), "log tile_n": log2(tile_n), "log warps": log2(warps), "stages": stages,
        "element": element, "tensor": v["tensor"], "warp groups": grouped,
        "aligned": equal(mod(head_dim, 16.0), 0.0), "padding width": width / head_dim,
        "log waves": log2(waves), "wave filling": waves / rounds, "slot filling": blocks / slots / slot_rounds,
        "log rounds": log2(rounds), "log longest": log2(longest), "log mean": log2(mean),
        "resident": resident, "resident warps": resident * warps,
        "log sums": log2(sums), "log pressure": log2(pressure), "log staged": log2(kept_b),
        "log staged over shared": log2(kept_b / v["shared_b"]), "log in flight": log2(resident * kept_b),
        "log intensity": log2(flops / footprint_b), "log footprint over l2": log2(footprint_b / v["l2_b"]),
        "log flops": log2(flops), "padding rows": tiles * tile_m / rows, "padding keys": longest * tile_n / kv_len,
        "log compute over bound": log2(flops / v["peak_flops_per_s"] / bound_s),
        "log own compute over bound": log2(compute_s / bound_s), "log l2 over bound": log2(l2_s / bound_s),
        "log memory over bound": log2(footprint_b / v["dram_b_per_s"] / bound_s),
        "log launch over bound": log2(v["launch_s"] / bound_s),
        "log step": log2(step), "log softmax over multiplying": log2(step_softmax / step_mma),
        "log shared over multiplying": log2(step_shared / step_mma),
        "log through over bound": log2(through_s / bound_s), "log chain over bound": log2(chain_s / bound_s),
        "log chain over through": log2(chain_s / through_s), "log flight over bound": log2(flight_s / bound_s),
        "log busy over bound": log2(busy_s / bound_s), "log peak": log2(v["peak_flops_per_s"]),
    }  # fmt: skip


def _width(head_dim: Value) -> Value:
    """The head's size rounded up to a power of two, as tiles are."""
    width: Value = _WIDTHS[-1] * 2.0
    for size in reversed(_WIDTHS):
        width = where(less_equal(head_dim, size), size, width)
    return width


_TILES_M, _TILES_N = (16, 32, 64, 128, 256), (16, 32, 64, 128)
_MOST_SUMS = 256


def _space(task: Task) -> Candidates:
    """Query tiles no larger than the rows there are, key tiles of 16 to 128; what fits the device only."""
    facts = facts_of(catalogue().get(task.device), task.dtype)
    sizes = task.sizes
    rows = sizes["q_len"] * sizes["heads"] // sizes["kv_heads"]
    width = int(_width(sizes["head_dim"]))
    configs = []
    for tile_m, tile_n, warps, stages in itertools.product(_TILES_M, _TILES_N, (4, 8), (1, 2, 3, 4)):
        staged_b = (tile_m + 2 * stages * tile_n) * width * facts["element_b"]
        sums = tile_m * (width + tile_n) / (warps * facts["lanes"])
        if staged_b > facts["shared_block_b"] or sums > _MOST_SUMS or (tile_m > 2 * rows and tile_m > _TILES_M[0]):
            continue
        configs.append({"tile_m": tile_m, "tile_n": tile_n, "warps": warps, "stages": stages})
    return Candidates.of(task, configs)


def _task_of(spec: KernelSpec, device: str) -> tuple[Task, dict[str, int]] | None:
    knobs = dict(spec.config)
    if spec.family != "attention" or spec.impl != "triton" or set(knobs) != set(_MEASURED_KNOBS):
        return None
    if spec["window"] or spec.kv_dtype is not None:
        return None
    # One query, the last position, sees all keys with or without a mask; several see fewer under the mask.
    sizes = {name: spec[name] for name in _SIZES if name != "causal"} | {"causal": int(spec["q_len"] > 1)}
    return Task(KIND.name, sizes, spec.dtype, device), knobs


KIND = TuningKind(
    name="triton-attention",
    compiler="triton",
    sizes=_SIZES,
    knobs=_KNOBS,
    facts=FACTS,
    features=_features,
    space=_space,
    facts_of=facts_of,
    task_of=_task_of,
)
