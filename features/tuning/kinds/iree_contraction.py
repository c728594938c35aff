"""Tile sizes of a matrix product that IREE compiles for a CPU (`llvm-cpu`), with its own two choices beside them.

    tile_m, tile_n     distribution             block of C that one workgroup computes
    tile_k             cache_reduction          slice of K that a block works through before the next (left out: all)
    inner_m, inner_n   vector_common_parallel   register tile of C
    inner_k            vector_reduction         unrolled steps of K inside it
    data_tiling        1, alone                 operands packed in every call, for a register-tiled kernel

No knob at all is IREE's own choice of tile sizes. Loops are peeled: remainders are a loop of their own. What such a loop
costs was measured on Zen 5 with IREE 3.13: sizes that the compiler knows (the block covers the whole dimension) make it run
nearly as the main loop does, sizes it does not know make it keep sums in memory, and every step of K pays for that.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ...cost.device_limits import LAUNCH_FLOOR_S
from ...device import catalogue
from ...kernel import KernelSpec
from ..cpu_block import (
    AVX2_REGISTERS,
    FACTS,
    LINE_B,
    MAX_BLOCKS,
    MAX_FILLED,
    MAX_REGISTER_TILE,
    MAX_UNROLLED,
    PAGE_B,
    alignment,
    crowding,
    facts_of,
    largest_divisor,
    seconds_per_byte,
    spilled,
    step_cost,
)
from ..formula import Value, ceil_div, equal, floor, less, log2, maximum, minimum, mod, where
from ..kind import Candidates, Task, TuningKind, near, spread

SIZES = ("batch", "m", "n", "k", "a_transposed", "b_transposed", "threads")
TILES = ("tile_m", "tile_n", "tile_k", "inner_m", "inner_n", "inner_k")
KNOBS = (*TILES, "data_tiling")

_VARIANTS: Mapping[str, tuple[int, int]] = {"": (0, 0), "batched": (0, 0), "tn": (1, 0), "nt": (0, 1)}
"""Variants of the family `gemm` that are this kind, and whether a and b lie transposed in them."""

_DEFAULT_TILE, _DEFAULT_INNER_M, _DEFAULT_INNER = 64.0, 8, 16
"""IREE 3.13's own choice for AVX-512 (`--compile-to=executable-configurations`): blocks of 64 x 64, and the largest divisors
of m and of n and k up to these as register tile, however small they are."""

_AVX2_INNER = 8.0
"""The register tile of IREE 3.13 for AVX2, whether or not it divides the block, and of its data tiling there."""

_UNEVEN = 1.9
"""Time of IREE's own register tiles of a whole vector in blocks that they do not divide. Its blocks have as many columns as the
largest divisor of n up to 64: 40 of 160, say."""

_PACKED_ROWS = 16.0
"""Rows of the register tile that data tiling packs for; products of fewer rows have the power of two that covers them."""

_SLICE_MOVES = 5.4
"""Loading and storing the sums of a register tile once per slice of K, in multiply-adds per sum. This and the constants below
describe 3,255 rows of 150 products on Zen 5: least squares, and medians of what remainders cost by themselves."""

_MAIN, _SPILL, _MEMORY = 1.25, 2.5, 1.6
"""Time of a main loop over that at the peak of the boost clock; of a sum that has no register, in multiply-adds; of traffic
over that at the bandwidths of the data sheet."""

_OPEN_M, _OPEN_M_STEP, _KNOWN_M, _KNOWN_M_WIDE = 4.0, 9.0, 5.0, 2.0
_OPEN_N, _OPEN_N_SLICED_STEP = 3.5, 18.0
_OPEN_N_WIDE, _OPEN_N_WIDE_STEP, _OPEN_N_WIDE_SLICED, _OPEN_N_WIDE_SLICED_STEP = 2.0, 85.0, 7.0, 10.0
_KNOWN_N, _KNOWN_N_WIDE, _PART_K = 4.0, 6.0, 1.5
"""Time per multiply-add of a remainder over that of the main loop: of a size known only when it runs (open) or when it is
compiled, of register tiles of several vectors (wide), in slices of K, per step of K where a step adds something; and of the
last slice of K where it is shorter."""

_PACKED, _PACKED_ROW, _PACKING, _PACKED_B = 0.71, 14.3, 8.0, 2.0
"""Data tiling: time of its multiply-adds over that at the peak, and what a row of its register tile adds; bytes at L2's
bandwidth that packing takes per byte of operands and result, and bytes of B from where it lies. They describe it within 10 %
in the median."""

_TURNED, _TURNED_STEP = 4.0, 20.0
"""Turning a transposed B into vectors, in multiply-adds per vector: it is done again for every row of register tiles."""

_TURNED_REST_STEP = 350.0
"""What a transposed B adds per step of K to remainders of register tiles of several vectors, whose elements are gathered."""

_RAGGED, _RAGGED_STEP = 3.0, 45.0
"""The same of the main loop itself where its register tile is no power of two wide: IREE takes its sums apart and puts them
together again in every step."""


def _features(v: Mapping[str, Value]) -> dict[str, Value]:
    """What an engineer works out of a configuration; times are relative to the bound or to the multiply-adds alone."""
    batch, m, n, k, threads = v["batch"], v["m"], v["n"], v["k"], v["threads"]
    element, lanes = v["element_b"], v["vector_b"] / v["element_b"]
    packed, tuned, b_turned = v["data_tiling"], less(0.5, v["inner_m"]), v["b_transposed"]

    # Tiles, IREE's own where none are given.
    few = where(less(m, 4.5), where(less(m, 2.5), m, 4.0), 8.0)
    avx2 = equal(v["registers"], AVX2_REGISTERS)
    packed_rows = where(less(m, 8.5), few, where(avx2, _AVX2_INNER, _PACKED_ROWS))
    own_m = where(avx2, minimum(m, _AVX2_INNER), largest_divisor(m, _DEFAULT_INNER_M))
    own_n = where(avx2, minimum(n, _AVX2_INNER), largest_divisor(n, _DEFAULT_INNER))
    own_k = where(avx2, minimum(k, _AVX2_INNER), largest_divisor(k, _DEFAULT_INNER))
    inner_m = where(tuned, v["inner_m"], where(packed, packed_rows, own_m))
    inner_n = where(tuned, v["inner_n"], where(packed, lanes, own_n))
    inner_k = where(tuned, v["inner_k"], where(packed, 1.0, own_k))
    tile_m, tile_n = where(tuned, v["tile_m"], _DEFAULT_TILE), where(tuned, v["tile_n"], _DEFAULT_TILE)
    sliced = less(0.5, v["tile_k"]) * less(v["tile_k"], k)
    tile_k = where(sliced, v["tile_k"], k)

    # Blocks, and what is left beyond whole register tiles in the last of them.
    blocks_m, blocks_n, slices = ceil_div(m, tile_m), ceil_div(n, tile_n), ceil_div(k, tile_k)
    last_m, last_n = m - (blocks_m - 1.0) * tile_m, n - (blocks_n - 1.0) * tile_n
    last_k = k - (slices - 1.0) * tile_k
    open_m = less(1.5, blocks_m) * less(last_m, tile_m)
    open_n = less(1.5, blocks_n) * less(last_n, tile_n)
    open_k = sliced * less(last_k, tile_k)
    part_k = open_k * last_k / k
    rest_m, rest_n = mod(last_m, inner_m) / m, mod(last_n, inner_n) / n

    # The register tile.
    vectors = ceil_div(inner_n, lanes)
    sums = inner_m * vectors
    spill = spilled(v, inner_m, vectors)
    filled = inner_n / (vectors * lanes)
    wide = less(1.5, vectors)
    # Powers of two are whole in log2; not so 24 and 48, and most divisors that IREE picks.
    ragged = 1.0 - equal(floor(log2(inner_n)), log2(inner_n))
    main = step_cost(v, inner_m, vectors) / filled * (_MAIN + _SPILL * spill / sums) + _SLICE_MOVES / tile_k
    turning = b_turned * (1.0 - packed) * (_TURNED + _TURNED_STEP / inner_k) / inner_m
    main = main + turning + ragged * (_RAGGED + _RAGGED_STEP / inner_k)
    wide_n = where(
        sliced, _OPEN_N_WIDE_SLICED + _OPEN_N_WIDE_SLICED_STEP / inner_k, _OPEN_N_WIDE + _OPEN_N_WIDE_STEP / inner_k
    )
    open_cost = where(wide, wide_n, _OPEN_N + _OPEN_N_SLICED_STEP * sliced / inner_k)
    partly = less(0.5, mod(mod(last_n, inner_n), lanes))
    cost_n = where(open_n, open_cost, where(partly, where(wide, _KNOWN_N_WIDE, _KNOWN_N), 1.0))
    cost_m = where(open_m, _OPEN_M + _OPEN_M_STEP / inner_k, where(wide, _KNOWN_M_WIDE, _KNOWN_M))
    gathered = b_turned * wide * _TURNED_REST_STEP / inner_k
    cost_m, cost_n = cost_m + gathered, cost_n + gathered
    both = rest_m * rest_n
    rest = (rest_m - both) * cost_m + (rest_n - both) * cost_n + both * maximum(cost_m, cost_n)
    whole = main * (1.0 - rest_m - rest_n + both) + rest
    padded = ceil_div(m, inner_m) * inner_m / m * (ceil_div(n, inner_n) * inner_n / n)
    even = maximum(equal(mod(n, _DEFAULT_TILE), 0.0), maximum(equal(mod(n, 48.0), 0.0), less(n, _DEFAULT_TILE)))
    local = where(
        packed, padded * (_PACKED + _PACKED_ROW / inner_m), main * where(even, 1.0, where(ragged, 1.0, _UNEVEN))
    )
    compute = where(tuned, whole * (1.0 + (_PART_K - 1.0) * part_k), local)

    # Memory: blocks bring their operands from where all of them lie, strips of a block what the block holds.
    flops = 2.0 * batch * m * n * k
    a_b, b_b, c_b = m * k * element, k * n * element, m * n * element
    data_b = a_b + b_b + c_b
    cut_m, cut_n = minimum(tile_m, m), minimum(tile_n, n)
    b_block, b_panel, b_row = tile_k * cut_n * element, tile_k * inner_n * element, where(b_turned, k, n) * element
    a_block, a_strip, c_block = cut_m * tile_k * element, inner_m * tile_k * element, cut_m * cut_n * element
    first_b = (blocks_m * b_b + blocks_n * a_b) * batch
    again_b = maximum(m / inner_m - blocks_m, 0.0) * b_b * batch
    far = seconds_per_byte(v, data_b)
    packing_s = batch * (_PACKING * data_b / v["l2_b_per_s"] + _PACKED_B * b_b * far)
    memory_s = where(packed, packing_s, first_b * far + again_b * seconds_per_byte(v, b_block + a_strip))
    one_core_s = flops / v["peak_flops_per_s"]
    memory = memory_s / one_core_s
    b_rows = where(b_turned, inner_n, tile_k)
    b_segment = where(b_turned, inner_k, inner_n) * element
    pages = minimum(b_rows, maximum(1.0, b_rows * b_row / PAGE_B))

    blocks = batch * blocks_m * blocks_n
    rounds = ceil_div(blocks, threads) * threads / blocks
    dram_s = maximum(batch * data_b - v["l3_b"], 0.0) / v["dram_b_per_s"]
    bound_s = maximum(maximum(one_core_s / threads, dram_s), LAUNCH_FLOOR_S["cpu"])
    expected = (compute + _MEMORY * memory) * rounds
    return {
        "bound_s": bound_s, "lanes": lanes,
        "expected": expected, "compute": compute, "memory": memory, "main": main, "rest": rest,
        "m": m, "n": n, "k": k, "flops": flops, "intensity": flops / (batch * data_b),
        "threads": threads, "rounds": rounds, "a transposed": v["a_transposed"], "b transposed": b_turned, "turning": turning,
        "path": packed + 2.0 * tuned, "inner_m": inner_m, "inner_n": inner_n, "inner_k": inner_k,
        "tile_m": tile_m, "tile_n": tile_n, "tile_k": tile_k, "sliced": sliced,
        "blocks m": blocks_m, "blocks n": blocks_n, "slices": slices,
        "vectors": vectors, "sums": sums, "spilled": spill, "filled": filled, "ragged": ragged, "unrolled": sums * inner_k,
        "rest m": rest_m, "rest n": rest_n, "open": open_m + 2.0 * open_n, "partly filled": partly, "part k": part_k,
        "open rest m": rest_m * open_m, "open rest n": rest_n * open_n,
        "b block over l1": b_block / v["l1_b"], "b panel over l1": b_panel / v["l1_b"], "a strip over l1": a_strip / v["l1_b"],
        "block over l2": (a_block + b_block + c_block) / v["l2_b"],
        "data over l2": data_b / v["l2_b"], "data over l3": batch * data_b / v["l3_b"],
        "first": first_b / flops, "again": again_b / flops, "pages": pages,
        "b alignment": alignment(b_row),
        "crowding": crowding(v, b_rows, b_segment, b_row), "row": b_row / LINE_B,
        "calls over bound": blocks * LAUNCH_FLOOR_S["cpu"] / bound_s,
    }  # fmt: skip


def sensible(sizes: Mapping[str, int], knobs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.bool_]:
    """Which tile configurations compile in about a second and run within some tens of times the best, `(n,)`.

    `knobs` are columns of `TILES`; a configuration without tiles is not asked about.
    """
    register_tile = knobs["inner_m"] * knobs["inner_n"]
    block = knobs["tile_m"] * knobs["tile_n"]
    blocks = sizes["batch"] * -(-sizes["m"] // knobs["tile_m"]) * -(-sizes["n"] // knobs["tile_n"])
    sliced = knobs["tile_k"] > 0
    known: NDArray[np.bool_] = (
        (register_tile <= MAX_REGISTER_TILE)
        & (register_tile * knobs["inner_k"] <= MAX_UNROLLED)
        & (blocks <= MAX_BLOCKS)
        & ~(sliced & (block > MAX_FILLED))
        & ~(sliced & (knobs["tile_k"] >= sizes["k"]))
    )
    return known


MOST_CANDIDATES = 300
_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
_VECTORS = (1, 2, 4)
_STEPS = (1, 2, 4, 8, 16)
_BLOCK_M, _BLOCK_N = (1, 16, 32, 64, 128, 256), (1, 64, 128, 256, 512)
_SLICES = (0, 16, 32, 64, 128, 256)
_SUMS = (6, 32)


def _space(task: Task) -> Candidates:
    """IREE's own two choices, and the tile configurations of a grid that the formulas expect most of."""
    facts = facts_of(catalogue().get(task.device), task.dtype)
    lanes = int(facts["vector_b"] / facts["element_b"])
    grid = _grid(task.sizes, lanes)
    columns = dict(zip(TILES, grid.T, strict=True))
    values = {**task.sizes, **facts, **{name: column.astype(np.float64) for name, column in columns.items()}}
    expected = np.broadcast_to(_features({**values, "data_tiling": 0.0})["expected"], len(grid))
    chosen = spread(grid[:, 3:5], expected, MOST_CANDIDATES - 2)
    knobs = {name: np.concatenate(([0, 0], column[chosen])) for name, column in columns.items()}
    packed = np.zeros(len(chosen) + 2, dtype=np.int64)
    packed[1] = 1
    return Candidates(task, {**knobs, "data_tiling": packed})


def _grid(sizes: Mapping[str, int], lanes: int) -> NDArray[np.int64]:
    """Sensible tile configurations `(n, 6)` in the order of `TILES`: multiples of register tiles near usual block sizes."""
    m, n, k = sizes["m"], sizes["n"], sizes["k"]
    register_tiles = [(rows, width * lanes) for rows in _ROWS for width in _VECTORS
                      if rows <= m and (width == 1 or width * lanes <= n) and rows * width <= _SUMS[1]
                      and (rows * width >= _SUMS[0] or rows == m)]  # fmt: skip
    axes = (register_tiles, _STEPS, _SLICES, _BLOCK_M, _BLOCK_N)
    places = np.indices([len(axis) for axis in axes]).reshape(len(axes), -1)
    tiles, steps, slices, blocks_m, blocks_n = (np.array(axis)[place] for axis, place in zip(axes, places, strict=True))
    rows, columns = tiles.T
    sliced = np.where(slices > 0, near(steps, slices, k), 0)
    grid = np.stack([near(rows, blocks_m, m), near(columns, blocks_n, n), sliced, rows, columns, steps], axis=1)
    # One number per row tells rows apart faster than comparing them; 2048 is beyond every tile.
    numbers = grid @ 2048 ** np.arange(len(TILES), dtype=np.int64)
    grid = grid[np.sort(np.unique(numbers, return_index=True)[1])]
    return grid[sensible(sizes, dict(zip(TILES, grid.T, strict=True)))]


def _task_of(spec: KernelSpec, device: str) -> tuple[Task, dict[str, int]] | None:
    knobs = dict(spec.config)
    if spec.family != "gemm" or spec.impl != "iree" or spec.variant not in _VARIANTS or spec.threads is None:
        return None
    if not _is_configuration(knobs) or (spec.variant != "batched" and spec["batch"] != 1):
        return None
    a, b = _VARIANTS[spec.variant]
    sizes = {name: spec[name] for name in ("batch", "m", "n", "k")}
    return Task(
        KIND.name, {**sizes, "a_transposed": a, "b_transposed": b, "threads": spec.threads}, spec.dtype, device
    ), knobs


def _spec_of(task: Task, config: Mapping[str, int]) -> KernelSpec | None:
    sizes = task.sizes
    layout = sizes["a_transposed"], sizes["b_transposed"]
    variant = next((name for name, item in _VARIANTS.items() if item == layout), None)
    if variant is None or (variant and sizes["batch"] > 1) or not _is_configuration(config):
        return None
    return KernelSpec.of(
        "gemm", task.dtype, variant="batched" if sizes["batch"] > 1 else variant, impl="iree", threads=sizes["threads"],
        config=config, batch=sizes["batch"], m=sizes["m"], n=sizes["n"], k=sizes["k"],
    )  # fmt: skip


def _is_configuration(config: Mapping[str, int]) -> bool:
    """Whether knobs are one of IREE's own choices, or tiles of which only `tile_k` may be left out."""
    return not config or dict(config) == {"data_tiling": 1} or {*config, "tile_k"} == {*TILES}


KIND = TuningKind(
    name="iree-contraction",
    compiler="iree",
    sizes=SIZES,
    knobs=KNOBS,
    facts=FACTS,
    features=_features,
    space=_space,
    facts_of=facts_of,
    task_of=_task_of,
    spec_of=_spec_of,
)
