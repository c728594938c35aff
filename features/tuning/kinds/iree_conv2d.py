"""Tile sizes of a two-dimensional convolution that IREE compiles for a CPU (`llvm-cpu`), with its own choice beside them.

    tile_h, tile_w, tile_c   distribution             rows, columns and channels of the result that one workgroup computes
    inner_w, inner_c         vector_common_parallel   register tile: columns and channels of one row of the result
    inner_k                  vector_reduction         unrolled input channels, at one position of the filter

No knob is IREE's own choice. Channels are a vector's lanes where they lie innermost (layout 0, nhwc with the filter hwcf),
columns where those do (layout 1, nchw with fchw). Loops are peeled (pipeline ConvTileAndDecomposeExpert). What is left beyond
whole register tiles was measured on Zen 5 with IREE 3.13 to run scalar, seventy times slower, unless the block covers the whole
dimension, so that the compiler knows its size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from ...cost.device_limits import LAUNCH_FLOOR_S
from ...device import catalogue
from ...families.conv2d import output_size
from ...kernel import KernelSpec
from ..cpu_block import (
    AVX2_REGISTERS,
    FACTS,
    LINE_B,
    MAX_BLOCKS,
    MAX_REGISTER_TILE,
    MAX_UNROLLED,
    alignment,
    facts_of,
    largest_divisor,
    seconds_per_byte,
    spilled,
    step_cost,
)
from ..formula import Value, ceil_div, equal, less, maximum, minimum, mod, where
from ..kind import Candidates, Task, TuningKind, near, spread

SIZES = ("batch", "out_h", "out_w", "out_c", "kernel_h", "kernel_w", "in_c", "stride", "layout", "threads")
TILES = ("tile_h", "tile_w", "tile_c", "inner_w", "inner_c", "inner_k")

_VARIANTS: Mapping[str, int] = {"nhwc": 0, "": 1}
"""Variants of the family `conv2d`, and their layout."""

_OWN_STEPS, _OWN_LANES = 8, 16
"""IREE 3.13's own choice: the largest divisors of columns, input channels and (nchw; nhwc for AVX2) channels up to 8, and
of channels (nhwc) up to 16 for AVX-512, however small they are."""

_MAIN = 1.45
"""Time of a main loop over that at the peak of the boost clock. This and the constants below are medians of 1,200 rows of 90
convolutions on Zen 5."""

_OPEN, _KNOWN, _CROSSED, _PARTLY_FILLED, _PARTLY_FILLED_STEP = 72.0, 1.5, 50.0, 4.0, 25.0
"""Time per multiply-add of a remainder over that of the main loop: of a size known only when it runs (open), of one known
when it is compiled, and of channels that do not fill their vectors: where columns remain too (crossed), and where none do,
when steps of input channels add to it."""

_RAGGED, _RAGGED_STEP = 3.0, 45.0
"""The same of a main loop whose channels are three times a power of two: IREE takes its sums apart and puts them together
again in every step."""

_GATHERED, _GATHERED_ELEMENT = 12.0, 70.0
"""The same of columns that do not lie side by side, since the convolution strides over them: in all, and per column."""

_SINGLE = 3.5
"""Tiles of one column, which have no vectors at all."""

_SLICE_MOVES = 2.0
"""Loading and storing the sums of a register tile once per position of the filter, in multiply-adds per sum."""


def _pieces(along: Value, lanes: Value) -> Value:
    """Vectors of powers of two that `along` elements are cut into beyond whole ones: LLVM moves 19 as 16, 2 and 1.

    On Zen 5 (nchw) 16 and 32 columns take 1.5 times the bound in the median, 17 to 55 others from 9 to 50 times.
    """
    left = mod(along, lanes)
    result: Value = 0.0
    for power in (1.0, 2.0, 4.0, 8.0):
        result = result + less(power - 0.5, mod(left, 2.0 * power))
    return result


def _features(v: Mapping[str, Value]) -> dict[str, Value]:
    """What an engineer works out of a configuration; times are relative to the bound or to the multiply-adds alone."""
    batch, rows, columns, channels = v["batch"], v["out_h"], v["out_w"], v["out_c"]
    inputs, stride, planar, threads = v["in_c"], v["stride"], v["layout"], v["threads"]
    element, lanes = v["element_b"], v["vector_b"] / v["element_b"]
    taps = v["kernel_h"] * v["kernel_w"]
    tuned = less(0.5, v["inner_w"])

    # Tiles, IREE's own where none are given.
    avx2 = equal(v["registers"], AVX2_REGISTERS)
    own_c = where(maximum(planar, avx2), largest_divisor(channels, _OWN_STEPS), largest_divisor(channels, _OWN_LANES))
    inner_w = where(tuned, v["inner_w"], largest_divisor(columns, _OWN_STEPS))
    inner_c = where(tuned, v["inner_c"], own_c)
    inner_k = where(tuned, v["inner_k"], largest_divisor(inputs, _OWN_STEPS))
    tile_h = where(tuned, minimum(v["tile_h"], rows), minimum(rows, 4.0))
    tile_w = where(tuned, v["tile_w"], columns)
    tile_c = where(tuned, v["tile_c"], minimum(channels, 64.0))

    # Blocks, and what is left beyond whole register tiles.
    blocks_h, blocks_w, blocks_c = ceil_div(rows, tile_h), ceil_div(columns, tile_w), ceil_div(channels, tile_c)
    last_w, last_c = columns - (blocks_w - 1.0) * tile_w, channels - (blocks_c - 1.0) * tile_c
    open_w = less(1.5, blocks_w) * less(last_w, tile_w)
    open_c = less(1.5, blocks_c) * less(last_c, tile_c)
    rest_w, rest_c = mod(last_w, inner_w) / columns, mod(last_c, inner_c) / channels
    # The register tile: lanes along the innermost dimension, scalars along the other.
    along, across = where(planar, inner_w, inner_c), where(planar, inner_c, inner_w)
    vectors = ceil_div(along, lanes)
    sums = across * vectors
    spill = spilled(v, across, vectors)
    filled = along / (vectors * lanes)
    step = step_cost(v, across, vectors)
    pieces = _pieces(along, lanes)
    ragged = tuned * (1.0 - planar) * equal(mod(2.0 * inner_c / lanes, 3.0), 0.0)
    gathered = planar * less(1.5, stride)
    main = step / filled * (1.0 + spill / sums) * where(less(along, 1.5), _SINGLE, 1.0) + _SLICE_MOVES / inputs
    main = where(
        gathered, _GATHERED + _GATHERED_ELEMENT / along, _MAIN * main + ragged * (_RAGGED + _RAGGED_STEP / inner_k)
    )
    partly = less(0.5, mod(mod(where(planar, last_w, last_c), along), lanes))
    partly = partly * (1.0 - planar)
    both = rest_w * rest_c
    crossed = partly * less(0.0, both)
    known = where(crossed, _CROSSED, _KNOWN)
    cost_w = where(open_w, _OPEN, known)
    cost_c = where(
        open_c, _OPEN, where(partly * (1.0 - crossed), _PARTLY_FILLED + _PARTLY_FILLED_STEP / inner_k, known)
    )
    rest = (rest_w - both) * cost_w + (rest_c - both) * cost_c + both * maximum(cost_w, cost_c)
    compute = where(tuned, main * (1.0 - rest_w - rest_c + both) + rest, main)

    # Memory: what a block reads and writes, how often all of it is read again.
    flops = 2.0 * batch * rows * columns * channels * taps * inputs
    cut_w, cut_c = minimum(tile_w, columns), minimum(tile_c, channels)
    patch_b = ((tile_h - 1.0) * stride + v["kernel_h"]) * ((cut_w - 1.0) * stride + v["kernel_w"]) * inputs * element
    image_b = ((rows - 1.0) * stride + v["kernel_h"]) * ((columns - 1.0) * stride + v["kernel_w"]) * inputs * element
    filter_b = taps * inputs * channels * element
    panel_b, slice_b = taps * inputs * cut_c * element, taps * inputs * inner_c * element
    result_b = tile_h * cut_w * cut_c * element
    blocks = batch * blocks_h * blocks_w * blocks_c
    data_b = batch * (image_b + rows * columns * channels * element) + filter_b
    first_b = blocks * (patch_b + panel_b)
    again_b = batch * rows * columns / inner_w * filter_b
    one_core_s = flops / v["peak_flops_per_s"]
    memory = (first_b * seconds_per_byte(v, data_b) + again_b * seconds_per_byte(v, panel_b + patch_b)) / one_core_s

    rounds = ceil_div(blocks, threads) * threads / blocks
    dram_s = maximum(data_b - v["l3_b"], 0.0) / v["dram_b_per_s"]
    bound_s = maximum(maximum(one_core_s / threads, dram_s), LAUNCH_FLOOR_S["cpu"])
    return {
        "bound_s": bound_s, "lanes": lanes,
        "expected": (compute + memory) * rounds, "compute": compute, "memory": memory, "main": main,
        "out_h": rows, "out_w": columns, "out_c": channels, "taps": taps, "in_c": inputs, "stride": stride, "layout": planar,
        "flops": flops, "intensity": flops / data_b, "threads": threads, "rounds": rounds, "tuned": tuned,
        "inner_w": inner_w, "inner_c": inner_c, "inner_k": inner_k, "tile_h": tile_h, "tile_w": tile_w, "tile_c": tile_c,
        "vectors": vectors, "sums": sums, "across": across, "along": along, "gathered": gathered,
        "partly filled": partly, "spilled": spill, "filled": filled, "step": step, "ragged": ragged, "pieces": pieces,
        "pieces across": pieces * across, "beyond": less(lanes, along) * less(0.5, mod(along, lanes)),
        "unrolled": sums * inner_k,
        "rest": rest, "rest w": rest_w, "rest c": rest_c, "rest k": mod(inputs, inner_k), "open": open_w + 2.0 * open_c,
        "open rest w": rest_w * open_w, "open rest c": rest_c * open_c,
        "last w": last_w / tile_w, "last c": last_c / tile_c,
        "panel over l2": panel_b / v["l2_b"], "slice over l1": slice_b / v["l1_b"], "patch over l1": patch_b / v["l1_b"],
        "result over l1": result_b / v["l1_b"], "block over l2": (patch_b + panel_b + result_b) / v["l2_b"],
        "data over l2": data_b / v["l2_b"], "first": first_b / flops, "again": again_b / flops,
        "alignment": alignment(where(planar, columns, channels) * element), "row": columns * inputs * element / LINE_B,
        "blocks": blocks, "calls over bound": blocks * LAUNCH_FLOOR_S["cpu"] / bound_s,
    }  # fmt: skip


MOST_CANDIDATES = 250
_ACROSS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 28)
_VECTORS = (1, 2, 3, 4)
_STEPS = (1, 2, 3, 4, 8, 16)
_BLOCK_H, _BLOCK_W, _BLOCK_C = (1, 2, 4, 8, 16, 32), (8, 16, 32, 64), (32, 64, 128, 256)
_SUMS = (4, 32)


def _space(task: Task) -> Candidates:
    """IREE's own choice, and the tile configurations of a grid that the formulas expect most of."""
    facts = facts_of(catalogue().get(task.device), task.dtype)
    grid = _grid(task.sizes, int(facts["vector_b"] / facts["element_b"]))
    if not len(grid):
        return Candidates.of(task, [{}])
    columns = dict(zip(TILES, grid.T, strict=True))
    values = {**task.sizes, **facts, **{name: column.astype(np.float64) for name, column in columns.items()}}
    expected = np.broadcast_to(_features(values)["expected"], len(grid))
    chosen = spread(grid[:, 3:5], expected, MOST_CANDIDATES - 1)
    return Candidates(task, {name: np.concatenate(([0], column[chosen])) for name, column in columns.items()})


def _grid(sizes: Mapping[str, int], lanes: int) -> NDArray[np.int64]:
    """Sensible tile configurations `(n, 6)` in the order of `TILES`.

    Blocks divide the columns and the channels, register tiles divide blocks, and steps the input channels: what does not divide
    was measured to run up to 36 times slower than IREE's own choice, and is nothing to gamble on.
    """
    rows, columns, channels = sizes["out_h"], sizes["out_w"], sizes["out_c"]
    # Vectors partly filled are better than remainders, where no whole ones divide.
    wide = {width * lanes for width in _VECTORS} | {lanes // 2, 5 * lanes // 2}
    if not _dividing(wide - {lanes // 2}, columns if sizes["layout"] else channels):
        wide = {*range(1, _VECTORS[-1] * lanes + 1)}
    along_c, along_w = (_ACROSS, wide) if sizes["layout"] else (wide, _ACROSS)
    inner_k = [step for step in _STEPS if sizes["in_c"] % step == 0]
    result: dict[tuple[int, ...], None] = {}
    for width, depth in itertools.product(_dividing(along_w, columns), _dividing(along_c, channels)):
        length, across = (width, depth) if sizes["layout"] else (depth, width)
        sums = across * -(-length // lanes)
        if not _SUMS[0] <= sums <= _SUMS[1] or width * depth > MAX_REGISTER_TILE:
            continue
        blocks_w = {near(width, block, columns) for block in (*_BLOCK_W, columns)}
        blocks_c = {near(depth, block, channels) for block in (*_BLOCK_C, channels)}
        for step, tile_h, tile_w, tile_c in itertools.product(
            inner_k, _BLOCK_H, _dividing(blocks_w, columns), _dividing(blocks_c, channels)
        ):
            blocks = sizes["batch"] * -(-rows // tile_h) * (columns // tile_w) * (channels // tile_c)
            if width * depth * step <= MAX_UNROLLED and blocks <= MAX_BLOCKS:
                result[min(tile_h, rows), tile_w, tile_c, width, depth, step] = None
    return np.array(list(result), dtype=np.int64).reshape(len(result), len(TILES))


def _dividing(sizes: Iterable[int], whole: int) -> list[int]:
    """Those sizes that divide `whole`, ascending."""
    return [size for size in sorted(sizes) if size <= whole and whole % size == 0]


def _task_of(spec: KernelSpec, device: str) -> tuple[Task, dict[str, int]] | None:
    knobs = dict(spec.config)
    if spec.family != "conv2d" or spec.impl != "iree" or spec["padding"] or spec.threads is None:
        return None
    if knobs and set(knobs) != {*TILES}:
        return None
    dims = dict(spec.dims)
    sizes = {
        "batch": dims["batch"], "out_h": output_size(dims["height"], dims), "out_w": output_size(dims["width"], dims),
        "out_c": dims["out_channels"], "kernel_h": dims["kernel"], "kernel_w": dims["kernel"], "in_c": dims["in_channels"],
        "stride": dims["stride"], "layout": _VARIANTS[spec.variant], "threads": spec.threads,
    }  # fmt: skip
    return Task(KIND.name, sizes, spec.dtype, device), knobs


def _spec_of(task: Task, config: Mapping[str, int]) -> KernelSpec | None:
    sizes = task.sizes
    if sizes["kernel_h"] != sizes["kernel_w"] or (config and set(config) != {*TILES}):
        return None
    side, step = sizes["kernel_h"], sizes["stride"]
    variant = next((name for name, layout in _VARIANTS.items() if layout == sizes["layout"]), None)
    if variant is None:
        return None
    return KernelSpec.of(
        "conv2d", task.dtype, variant=variant, impl="iree", threads=sizes["threads"], config=config, batch=sizes["batch"],
        in_channels=sizes["in_c"], out_channels=sizes["out_c"], height=(sizes["out_h"] - 1) * step + side,
        width=(sizes["out_w"] - 1) * step + side, kernel=side, stride=step, padding=0,
    )  # fmt: skip


KIND = TuningKind(
    name="iree-conv2d",
    compiler="iree",
    sizes=SIZES,
    knobs=TILES,
    facts=FACTS,
    features=_features,
    space=_space,
    facts_of=facts_of,
    task_of=_task_of,
    spec_of=_spec_of,
)
