"""Tiles of matrix products in mlir-opt: one level of loops around plain loops that LLVM compiles, on one CPU core.

What the pass kernelcast-tile chooses from. `tile_m`, `tile_n`, `tile_k` are the steps of the loops around the product, in
this order, remainders peeled; every knob 0 leaves the product as it is. Nothing asks for vectors here: LLVM unrolls the
loops of a small tile and keeps its results in registers, or it does not, which makes a difference of hundreds of times.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from ...cost.device_limits import LAUNCH_FLOOR_S
from ...device import Device
from ...dtypes import itemsize_b
from ...errors import SpecError
from ...kernel import KernelSpec
from ..cpu_block import PAGE_B, l1_b_of, vectors_of
from ..formula import Value, ceil_div, equal, floor, less, maximum, minimum, mod, where
from ..kind import Candidates, Task, TuningKind

_KNOBS = ("tile_m", "tile_n", "tile_k")
_TILE_M = (1, 2, 4, 6, 8, 12, 16, 32, 64)
_TILE_N = (16, 32, 48, 64, 128, 256)
_TILE_K = (1, 2, 4, 8, 32)
"""What the choices are; plugins/mlir_opt/tile.cpp has the same, which a test holds them to."""

_LAYOUTS = {"": (0, 0), "batched": (0, 0), "nt": (0, 1), "tn": (1, 0)}
"""Variants of the family gemm as (a_transposed, b_transposed)."""


def _features(v: Mapping[str, Value]) -> dict[str, Value]:
    """What decides how LLVM compiles a tile, and how often what it works on comes from where."""
    batch, m, n, k, element_b = v["batch"], v["m"], v["n"], v["k"], v["element_b"]
    flops = 2.0 * batch * m * n * k
    bound_s = maximum(flops / v["core_flops"], LAUNCH_FLOOR_S["cpu"])
    tile_m, tile_n, tile_k = (
        where(v[knob], minimum(v[knob], size), size) for knob, size in zip(_KNOBS, (m, n, k), strict=True)
    )
    tiles_m, tiles_n, tiles_k = ceil_div(m, tile_m), ceil_div(n, tile_n), ceil_div(k, tile_k)
    vectors = tile_n / v["lanes"]
    footprint_b = batch * (m * k + k * n + m * n) * element_b
    b_block_b, a_block_b = k * tile_n * element_b, tile_m * k * element_b
    b_read_b = where(less(n * k * element_b, v["l1_b"]), n * k, tiles_m * n * k) * element_b
    row_b = where(v["b_transposed"], k, n) * element_b
    whole_m, whole_n, whole_k = (
        floor(m / tile_m) * tile_m / m,
        floor(n / tile_n) * tile_n / n,
        floor(k / tile_k) * tile_k / k,
    )
    left_n, left_k = mod(n, tile_n), mod(k, tile_k)
    return {
        "bound_s": bound_s,
        "batch": batch,
        "m": m,
        "n": n,
        "k": k,
        "tile_m": tile_m,
        "tile_n": tile_n,
        "tile_k": tile_k,
        "untiled": equal(v["tile_m"], 0.0),
        # What tiles do not cover is peeled off and compiled on its own, with tiles of the sizes that are left.
        "whole_m": whole_m,
        "whole_n": whole_n,
        "whole_k": whole_k,
        "left_work": 1.0 - whole_m * whole_n * whole_k,
        "left_m": mod(m, tile_m),
        "left_n": left_n,
        "left_k": left_k,
        "left_vectors": ceil_div(left_n, v["lanes"]),
        # Columns that fill no vector are worked on one by one.
        "single_left": mod(left_n, v["lanes"]) / n,
        "single_in_tile": mod(tile_n, v["lanes"]) / tile_n,
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "tiles_k": tiles_k,
        "steps": tile_m * tile_n * tile_k,
        "results": tile_m * tile_n,
        "vectors": vectors,
        "registers": tile_m * vectors,
        "rows_and_depth": tile_m * tile_k,
        # LLVM unrolls from the inside, up to a size: what one row of a tile comes to decides what it makes of the rest.
        "row_steps": tile_n * tile_k,
        "row_steps_left_n": left_n * tile_k,
        "row_steps_left_k": tile_n * left_k,
        "tile_b": (tile_m * tile_k + tile_k * tile_n + tile_m * tile_n) * element_b,
        "b_block_over_l1": b_block_b / v["l1_b"],
        "a_block_over_l1": a_block_b / v["l1_b"],
        "footprint_over_l2": footprint_b / v["l2_b"],
        "b_read_over_flops": b_read_b / flops,
        "results_read_over_flops": batch * m * n * tiles_k * element_b / flops,
        # Rows whole multiples of a page apart compete for the same few places of a first-level cache.
        "row_in_page": mod(row_b, PAGE_B),
        "a_transposed": v["a_transposed"],
        "b_transposed": v["b_transposed"],
        "flops": flops,
    }


def _space(task: Task) -> Candidates:
    """The product as it is, then every tile of the grid; a tile larger than its size is the whole of it."""
    m, n, k = (task.sizes[name] for name in ("m", "n", "k"))
    tiles = dict.fromkeys(
        (min(tile_m, m), min(tile_n, n), min(tile_k, k))
        for tile_m, tile_n, tile_k in itertools.product(_TILE_M, _TILE_N, _TILE_K)
    )
    return Candidates.of(task, [dict(zip(_KNOBS, each, strict=True)) for each in ((0, 0, 0), *tiles)])


def _facts_of(device: Device, dtype: str) -> Mapping[str, float]:
    """Facts of one core.

    Raises:
        SpecError: the device is no CPU, or has no peak for the dtype.
    """
    if device.kind != "cpu":
        raise SpecError(
            f"mlir-opt-tiles is about loops on a CPU core; {device.name} is a {device.kind}", field="device"
        )
    units = device.required("compute_units")
    peak, ran = device.peak_flops_per_s(dtype, "vector")
    return {
        "element_b": itemsize_b(dtype),
        "core_flops": peak / units,
        "lanes": vectors_of(device, dtype).width_b / itemsize_b(ran),
        "l1_b": l1_b_of(device),
        "l2_b": device.required("l2_b") / units,
    }


def _task_of(spec: KernelSpec, device: str) -> tuple[Task, dict[str, int]] | None:
    if spec.family != "gemm" or spec.impl != "mlir-opt" or spec.threads != 1 or spec.variant not in _LAYOUTS:
        return None
    a_transposed, b_transposed = _LAYOUTS[spec.variant]
    sizes = {**dict(spec.dims), "a_transposed": a_transposed, "b_transposed": b_transposed}
    return Task("mlir-opt-tiles", sizes, spec.dtype, device), dict(spec.config)


KIND = TuningKind(
    name="mlir-opt-tiles",
    compiler="mlir-opt",
    sizes=("batch", "m", "n", "k", "a_transposed", "b_transposed"),
    knobs=_KNOBS,
    facts=("element_b", "core_flops", "lanes", "l1_b", "l2_b"),
    features=_features,
    space=_space,
    facts_of=_facts_of,
    task_of=_task_of,
)
