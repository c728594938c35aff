"""Tiled matrix products by Triton: block tile, warps, pipeline stages, program order and split along k."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from ...device import Device, catalogue
from ...dtypes import itemsize_b
from ...families.gemm import output_dtype
from ...kernel import KernelSpec, View
from ..formula import Value, ceil_div, divide, equal, less, log2, maximum, minimum, mod, sqrt, where
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

_SIZES = ("batch", "m", "n", "k")
_MEASURED_KNOBS = ("tile_m", "tile_n", "tile_k", "group_m", "warps", "stages", "split_k")
_KNOBS = (*_MEASURED_KNOBS, "ctas", "max_registers")
"""The last two are `num_ctas` and `maxnreg`: no row was measured with them, so only the formulas know what they do."""

_SUM_LAUNCH_S = 1.5e-6
"""Time of the smallest second kernel, which adds the partial products: an H200's `launch_graph_triton_bf16_s`."""

_PARTIAL_B = 4.0
"""Bytes of a partial sum: they are kept in 32 bits."""

_ALIGNED = 16.0
"""Elements that must divide a row's length for Triton to load it in the widest words."""

_WIDEST_B = 16.0
_ASYNC_B = 4.0
"""Bytes of the widest load of a lane, and of the narrowest copy to shared memory that needs no registers (`cp.async`)."""


def staged_b(v: Mapping[str, Value]) -> Value:
    """Bytes of shared memory in which a block keeps tiles of both operands, `(n,)` for columns of sizes, knobs and facts.

    Within 2 % for 1,034 of the campaigns' 1,241 rows and 1,249 of the sweep's 1,275; 169 of the campaigns' others needed more
    room, in which a result is turned before it is written. Of 64 with 8-bit operands whose k is not aligned 15 needed a quarter
    less, or half: tiles of a stay in registers.
    """
    tile_m, warps = tile_rows(v), given_warps(v["warps"])
    grouped = by_warpgroups(v, tile_m, warps)
    copies = buffers(given_stages(v["stages"]), grouped)
    _, _, a_async, b_async = _rows_of(v, grouped)
    rows = where(a_async, copies, 1.0) * tile_m + where(b_async, copies, 1.0) * v["tile_n"]
    return rows * v["tile_k"] * v["element_b"]


def _rows_of(v: Mapping[str, Value], grouped: Value) -> tuple[Value, Value, Value, Value]:
    """Whether rows of a (of k elements) and of b (of n) start aligned, and whether tiles are copied without registers.

    Warp groups take 8-bit operands only with k innermost; b has n innermost and is turned on its way, in registers.
    """
    wide = less(_ASYNC_B - 1.0, v["element_b"])
    k_aligned, n_aligned = equal(mod(v["k"], _ALIGNED), 0.0), equal(mod(v["n"], _ALIGNED), 0.0)
    turned = less(v["element_b"], 2.0) * grouped
    return k_aligned, n_aligned, maximum(wide, k_aligned), maximum(wide, n_aligned) * (1.0 - turned)


def _features(v: Mapping[str, Value]) -> dict[str, Value]:
    """What an engineer works out of a configuration; ratios of times are to the bound, so that they carry no size.

    The bound is that of the configuration: blocks in whole rounds over the multiprocessors with their padding, every block
    fetching its own operands from L2, operands beyond L2 from memory, the launch, and the pass that adds partial products.
    Models predict the ratio to the estimate instead, which also counts the steps of a block one after another: what is left to
    learn then depends less on sizes ([decision 012](../../../docs/decisions/012-tuning.md)).
    """
    batch, m, n, k = v["batch"], v["m"], v["n"], v["k"]
    tile_m, tile_n, tile_k = tile_rows(v), v["tile_n"], v["tile_k"]
    warps, stages = given_warps(v["warps"]), given_stages(v["stages"])
    group, parts = maximum(v["group_m"], 1.0), maximum(v["split_k"], 1.0)
    element, clock, units = v["element_b"], v["clock_hz"], v["units"]

    tiles_m, tiles_n, steps = ceil_div(m, tile_m), ceil_div(n, tile_n), ceil_div(k, tile_k * parts)
    tiles = batch * tiles_m * tiles_n
    blocks = tiles * parts
    lanes = warps * v["lanes"]

    # How a block keeps its operands, and how many blocks run beside each other.
    sums = divide(tile_m * tile_n, lanes)
    grouped = by_warpgroups(v, tile_m, warps)
    copies = buffers(stages, grouped)
    a_tile_b, b_tile_b = tile_m * tile_k * element, tile_n * tile_k * element
    k_aligned, n_aligned, a_async, b_async = _rows_of(v, grouped)
    kept_b = staged_b(v)
    registers, pressure = registers_per_lane(sums, grouped, v, v["max_registers"])
    resident = resident_blocks(v, warps, registers, kept_b)

    # How blocks fill the device.
    waves = divide(blocks, units)
    rounds = ceil_div(blocks, units)
    slots = resident * units
    slot_rounds = ceil_div(blocks, slots)

    # Times on paper.
    flops = 2.0 * batch * m * n * k
    result_b = batch * m * n * v["output_b"]
    footprint_b = batch * k * (m + n) * element + result_b
    unit_peak = v["peak_flops_per_s"] / units
    step_mma = 2.0 * tile_m * tile_n * tile_k / unit_peak * clock
    fetched_b = blocks * (tile_m + tile_n) * steps * tile_k * element
    partial_b = where(less(1.0, parts), 2.0 * _PARTIAL_B * parts * batch * m * n, 0.0)
    sum_s = where(
        less(1.0, parts),
        _SUM_LAUNCH_S + partial_b / v["l2_b_per_s"] + maximum(partial_b - v["l2_b"], 0.0) / v["dram_b_per_s"],
        0.0,
    )
    compute_s = rounds * steps * step_mma / clock
    l2_s = (fetched_b + result_b) / v["l2_b_per_s"]
    dram_s = maximum(footprint_b - v["l2_b"], 0.0) / v["dram_b_per_s"]
    bound_s = v["launch_s"] + sum_s + maximum(compute_s, maximum(l2_s, dram_s))

    # One step of a block's loop in clocks: multiplying, reading operands from shared memory, bringing them there.
    own_reads = maximum(2.0 * sqrt(warps * tile_m * tile_n), tile_m + tile_n)
    group_reads = ceil_div(tile_m, 64.0) * tile_n + tile_m
    step_shared = where(grouped, group_reads, own_reads) * tile_k * element / SHARED_B_PER_CLOCK
    a_word, b_word = _word_b(k_aligned, element, a_tile_b, lanes), _word_b(n_aligned, element, b_tile_b, lanes)
    step_loads = _load_clocks(a_tile_b, a_word, a_async, v) + _load_clocks(b_tile_b, b_word, b_async, v)
    step = maximum(step_mma, maximum(step_shared, step_loads))
    through_s = rounds * steps * step / clock
    chain_s = slot_rounds * steps * (step + LOAD_CLOCKS / copies) / clock
    # Little's law: bytes under way over the time they take.
    flight_rate = minimum(resident * units * copies * (a_tile_b + b_tile_b) * clock / LOAD_CLOCKS, v["l2_b_per_s"])
    flight_s = fetched_b / flight_rate
    busy_s = v["launch_s"] + sum_s + maximum(maximum(through_s, 0.7 * chain_s), maximum(flight_s, dram_s))

    # Operands that the blocks running together share: `group_m` rows of tiles go down before the next column.
    together = minimum(slots, tiles_m * tiles_n)
    rows = minimum(tiles_m, group * ceil_div(together, minimum(group, tiles_m) * tiles_n))
    columns = minimum(tiles_n, ceil_div(together, rows))
    wave_b = (rows * tile_m + columns * tile_n) * k * element
    refetched = tiles_m * tiles_n / together * wave_b / (k * (m + n) * element)

    return {
        "bound_s": busy_s,
        "log m": log2(m), "log n": log2(n), "log k": log2(k),
        "log tile_m": log2(tile_m), "log tile_n": log2(tile_n), "log tile_k": log2(tile_k),
        "log warps": log2(warps), "stages": stages, "log parts": log2(parts), "log group_m": log2(group),
        "element": element, "output": v["output_b"], "tensor": v["tensor"], "warp groups": grouped,
        "k aligned": k_aligned, "n aligned": n_aligned, "turned": less(element, 2.0) * grouped,
        "log waves": log2(waves), "wave filling": waves / rounds, "slot filling": blocks / slots / slot_rounds,
        "log rounds": log2(rounds), "log steps": log2(steps),
        "resident": resident, "resident warps": resident * warps,
        "log sums": log2(sums), "log pressure": log2(pressure), "log staged": log2(kept_b),
        "log staged over shared": log2(kept_b / v["shared_b"]), "log in flight": log2(resident * kept_b),
        "log tile intensity": log2(tile_m * tile_n / (tile_m + tile_n)), "log intensity": log2(flops / footprint_b),
        "log footprint over l2": log2(footprint_b / v["l2_b"]), "log flops": log2(flops),
        "padding m": tiles_m * tile_m / m, "padding n": tiles_n * tile_n / n, "padding k": steps * parts * tile_k / k,
        "log compute over bound": log2(flops / v["peak_flops_per_s"] / bound_s),
        "log own compute over bound": log2(compute_s / bound_s), "log l2 over bound": log2(l2_s / bound_s),
        "log memory over bound": log2(footprint_b / v["dram_b_per_s"] / bound_s),
        "log launch over bound": log2(v["launch_s"] / bound_s), "sum over bound": sum_s / bound_s,
        "log step": log2(step), "log step multiplying": log2(step_mma),
        "log loads over multiplying": log2(step_loads / step_mma), "log shared over multiplying": log2(step_shared / step_mma),
        "a word": a_word, "b word": b_word,
        "log through over bound": log2(through_s / bound_s), "log chain over bound": log2(chain_s / bound_s),
        "log chain over through": log2(chain_s / through_s), "log flight over bound": log2(flight_s / bound_s),
        "log busy over bound": log2(busy_s / bound_s),
        "log wave over l2": log2(wave_b / v["l2_b"]), "log refetched": log2(refetched),
        "log peak": log2(v["peak_flops_per_s"]),
    }  # fmt: skip


def _word_b(aligned: Value, element_b: Value, tile_b: Value, lanes: Value) -> Value:
    """Bytes of one lane's load: the widest where rows are aligned, one element where not, no more than a lane has."""
    return maximum(element_b, minimum(where(aligned, _WIDEST_B, element_b), tile_b / lanes))


def _load_clocks(tile_b: Value, word_b: Value, direct: Value, v: Mapping[str, Value]) -> Value:
    """Clocks in which a tile is fetched: one per load of a warp or per 128 bytes; again as many through registers."""
    loads = tile_b / (word_b * v["lanes"])
    return loads * maximum(1.0, word_b * v["lanes"] / SHARED_B_PER_CLOCK) * where(direct, 1.0, 2.0)


def _facts_of(device: Device, dtype: str) -> dict[str, float]:
    return {**facts_of(device, dtype), "output_b": itemsize_b(output_dtype(View(dtype, dtype, "", {})))}


def _space(task: Task) -> Candidates:
    """Tiles of 16 to 256, small ones for small results; warps by the sums a lane holds; what fits the device only."""
    facts = _facts_of(catalogue().get(task.device), task.dtype)
    m, n, k = (task.sizes[name] for name in ("m", "n", "k"))
    configs = []
    for tile_m, tile_n, tile_k, stages in itertools.product(_TILES, _TILES, (32, 64, 128), (2, 3, 4)):
        staged_b = stages * (tile_m + tile_n) * tile_k * facts["element_b"]
        if (
            staged_b > facts["shared_block_b"]
            or _oversized(tile_m, m)
            or _oversized(tile_n, n)
            or _oversized(tile_k, k)
        ):
            continue
        warps = 8 if tile_m * tile_n >= _SUMS_OF_EIGHT_WARPS else 4
        if not _LEAST_SUMS <= tile_m * tile_n / (warps * facts["lanes"]) <= _MOST_SUMS:
            continue
        blocks = -(-m // tile_m) * -(-n // tile_n) * task.sizes["batch"]
        # Few blocks leave multiprocessors idle unless k is split among more of them.
        parts = 4 if blocks * 2 <= facts["units"] and k >= 8 * tile_k else 1
        configs += [
            {"tile_m": tile_m, "tile_n": tile_n, "tile_k": tile_k, "group_m": 8, "warps": warps, "stages": stages,
             "split_k": split}
            for split in sorted({1, parts})
        ]  # fmt: skip
    return Candidates.of(task, configs[:_MOST_CONFIGS])


_TILES = (16, 32, 64, 128, 256)
_SUMS_OF_EIGHT_WARPS = 128 * 128
"""Tiles of at least so many sums get eight warps, smaller ones four."""
_LEAST_SUMS, _MOST_SUMS = 2, 128
_MOST_CONFIGS = 300


def _oversized(tile: int, size: int) -> bool:
    """Whether a tile is mostly padding; the smallest tile never is."""
    return tile > 2 * size and tile > _TILES[0] and tile > 32


def _task_of(spec: KernelSpec, device: str) -> tuple[Task, dict[str, int]] | None:
    knobs = dict(spec.config)
    if spec.family != "gemm" or spec.impl != "triton" or spec.variant or set(knobs) != set(_MEASURED_KNOBS):
        return None
    return Task(KIND.name, {name: spec[name] for name in _SIZES}, spec.dtype, device), knobs


KIND = TuningKind(
    name="triton-gemm",
    compiler="triton",
    sizes=_SIZES,
    knobs=_KNOBS,
    facts=(*FACTS, "output_b"),
    features=_features,
    space=_space,
    facts_of=_facts_of,
    task_of=_task_of,
)
