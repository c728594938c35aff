"""Kinds without anything to tune: what one operation of a kernel family costs, from its sizes and facts of the device.

Compilers ask these for the time of an operation as it stands. The bounds are those of `features.cost.bounds`, written as a
formula so that they are evaluated where no Python is: `bound_compute_s`, `bound_dram_s`, `bound_cache_s` and `bound_launch_s`,
and `bound_s`, the largest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from ..cost.bounds import BOUNDS
from ..cost.device_limits import GPU_L2_BYTES_PER_CLOCK_PER_UNIT, LAUNCH_FLOOR_S
from ..device import Device
from ..dtypes import itemsize_b
from ..kernel import KernelFamily, KernelSpec, View, get_family
from .formula import Value, ceil_div, equal, less, maximum, minimum, mod, where
from .kind import Candidates, Task, TuningKind

PREFIX = "op-"
"""What the names of these kinds begin with; the family's name follows."""

THREADS = "threads"
"""The last size of every kind: CPU threads, 0 for all cores and on a GPU."""

VARIANT = "variant"
"""The size that tells a family's variants apart, by its code; families with one variant lack it."""

VARIANT_CODES: Mapping[str, Mapping[str, int]] = MappingProxyType({
    "gemm": {"": 0, "bias": 1, "batched": 2, "nt": 3, "tn": 4, "tt": 5},
    "conv2d": {},
    "elementwise": {
        "relu": 0, "gelu": 1, "silu": 2, "tanh": 3, "exp": 4, "sigmoid": 5, "sqrt": 6, "log": 7, "neg": 8, "abs": 9,
        "addu": 10, "mulu": 11, "divu": 12, "powu": 13,
        "add": 14, "sub": 15, "mul": 16, "div": 17, "pow": 18, "maximum": 19,
    },
    "reduction": {"sum": 0, "mean": 1, "max": 2, "sum_rows": 3, "mean_rows": 4, "max_rows": 5},
    "softmax": {},
    "layernorm": {"layernorm": 0, "rmsnorm": 1},
    "copy": {"": 0, "transpose": 1},
})  # fmt: skip
"""The families that have a kind, and the codes of their variants. Model files hold the codes, so none may ever change.

Products: plain, plus a bias row, several products, operands that come transposed (a, then b). Element operators: on one
tensor; on a tensor and a number from 10 on; on two tensors from 14 on. Reductions: of the last axis; of the first from 3 on.
"""

BOUND_NAMES = MappingProxyType({f"bound_{name}_s": name for name in BOUNDS})
"""The named bounds in seconds and the limits they are of, in the order of `features.cost.bounds.BOUNDS`."""

FACTS = (
    "element_b", "output_b", "peak_flops", "dram_bandwidth_b_s", "l1_b", "l1_bandwidth_b_s", "l2_b", "l2_bandwidth_b_s",
    "l3_bandwidth_b_s", "last_level_b", "launch_s", "units", "clock_hz", "is_cpu",
)  # fmt: skip
"""Facts of a device and a dtype: bytes of an element read and written, the dense peak of the family's units, bandwidths and
sizes of memory levels over all units, the launch floor, units and their clock, and 1 for a CPU."""

WEIGHTS = (
    "weight_launch", "weight_pieces", "weight_compute", "weight_filling", "weight_memory", "weight_cache",
)  # fmt: skip
"""Facts that are fitted, not published: what the terms of `estimate_s` are weighed with on a device in a dtype. 1 on paper."""

HAS_POWER, LOG_LOWER, LOG_UPPER = "has_power", "log_lower", "log_upper"
OF_ANSWERS = (HAS_POWER, LOG_LOWER, LOG_UPPER)
"""Facts of what was taught, each an output of the formula as well: 1 where power was taught for a device in a dtype, so that
the second output means something; and ln of how many times shorter and longer a time typically may be than predicted, its 90 %
interval. All 0 on paper: not known."""


def facts_of(family: str, device: Device, dtype: str) -> Mapping[str, float]:
    """The facts of a device and a dtype, by the names of `FACTS`, `WEIGHTS` and `OF_ANSWERS`.

    A level of which nothing is public has no bytes, or the bandwidth of the level before it, as in `features.cost.bounds`.

    Raises:
        SpecError: the device has no peak for the dtype.
    """
    known = get_family(family)
    units, clock = device.required("compute_units"), device.required("boost_clock_hz")
    l1_b, l1_rate = device.fact("l1_per_unit_b"), device.fact("l1_bandwidth_per_unit_b_per_s")
    l2_rate = device.fact("l2_bandwidth_b_per_s") or units * GPU_L2_BYTES_PER_CLOCK_PER_UNIT * clock
    return {
        "element_b": itemsize_b(dtype),
        "output_b": itemsize_b(_written(known, dtype)),
        "peak_flops": device.peak_flops_per_s(dtype, known.unit)[0],
        "dram_bandwidth_b_s": device.required("memory_bandwidth_b_per_s"),
        "l1_b": 0.0 if l1_b is None or l1_rate is None else l1_b * units,
        "l1_bandwidth_b_s": l2_rate if l1_b is None or l1_rate is None else l1_rate * units,
        "l2_b": device.required("l2_b"),
        "l2_bandwidth_b_s": l2_rate,
        "l3_bandwidth_b_s": device.fact("l3_bandwidth_b_per_s") or l2_rate,
        "last_level_b": device.last_level_cache_b,
        "launch_s": LAUNCH_FLOOR_S[device.kind],
        "units": units,
        "clock_hz": clock,
        "is_cpu": float(device.kind == "cpu"),
        **dict.fromkeys(WEIGHTS, 1.0),
        **dict.fromkeys(OF_ANSWERS, 0.0),
    }


def _written(family: KernelFamily, dtype: str) -> str:
    """Dtype of the family's result; sizes and variants make no difference to it."""
    return family.outputs(View(dtype, dtype, family.variants[0], dict.fromkeys(family.dim_names, 1)))[0].dtype


def bounds(v: Mapping[str, Value], flops: Value, moved_b: Value, footprint_b: Value) -> dict[str, Value]:
    """`bound_s` and the bounds it is the largest of, for operands that may be in cache from the run before.

    `flops` is the cheapest algorithm's arithmetic, `moved_b` the compulsory traffic, `footprint_b` all operands; the bounds
    are explained in `features.cost.bounds`. Threads fewer than a CPU's cores have their share of its peaks.
    """
    share = share_of_units(v)
    near = where(less(v["l1_b"] * share, footprint_b), v["l2_bandwidth_b_s"], v["l1_bandwidth_b_s"])
    rate = where(less(v["l2_b"] * share, footprint_b), v["l3_bandwidth_b_s"], near) * share
    limits = {
        "bound_compute_s": flops / (v["peak_flops"] * share),
        "bound_dram_s": maximum(moved_b - v["last_level_b"], 0.0) / v["dram_bandwidth_b_s"],
        "bound_cache_s": moved_b / rate,
        "bound_launch_s": v["launch_s"],
    }
    largest: Value = 0.0
    for limit in limits.values():
        largest = maximum(largest, limit)
    return {"bound_s": largest, **limits}


def share_of_units(v: Mapping[str, Value]) -> Value:
    """Share of a CPU's cores that the threads can use; 1 on a GPU and for all cores."""
    values = where(v[THREADS], minimum(v[THREADS] / v["units"], 1.0), 1.0)
    return where(v["is_cpu"], values, 1.0)


def chosen(code: Value, numbers: Mapping[int, float], otherwise: float) -> Value:
    """The number that goes with a code; the one given last for a code that has none."""
    out: Value = otherwise
    for item, number in numbers.items():
        out = where(equal(code, float(item)), number, out)
    return out


def work_features(
    v: Mapping[str, Value], flops: Value, moved_b: Value, footprint_b: Value, least_flops: Value | None = None
) -> dict[str, Value]:
    """The features every operation has: its bounds, its work in numbers, and what of the device they are set against.

    `least_flops` is the cheapest algorithm's arithmetic where that is less than `flops`.
    """
    limits = bounds(v, flops if least_flops is None else least_flops, moved_b, footprint_b)
    share = share_of_units(v)
    return limits | {
        "flops": flops,
        "moved_b": moved_b,
        "memory_s": moved_b / v["dram_bandwidth_b_s"],
        "compute_to_memory": limits["bound_compute_s"] / limits["bound_cache_s"],
        "over_l1": footprint_b / (v["l1_b"] * share),
        "over_l2": footprint_b / (v["l2_b"] * share),
        "over_last_level": footprint_b / v["last_level_b"],
        "share": share,
        "element_b": v["element_b"],
        "peak_flops": v["peak_flops"],
        "dram_bandwidth_b_s": v["dram_bandwidth_b_s"],
        "l2_bandwidth_b_s": v["l2_bandwidth_b_s"],
        "last_level_b": v["last_level_b"],
        "units": v["units"],
        "clock_hz": v["clock_hz"],
        **{name: v[name] for name in OF_ANSWERS},
    }


def _estimate(v: Mapping[str, Value], work: Mapping[str, Value], filling: Value, pieces: Value) -> dict[str, Value]:
    """A time as a weighted sum of what the operation is made of, and how it compares to the lower bound.

    Terms: one launch, the `pieces` in seconds, arithmetic at peak, the same with units left idle as `filling` says, and the
    traffic at the rates of memory and of the cache that holds it. Linear in the weights, so that they can be fitted.
    """
    terms = (
        v["launch_s"],
        pieces,
        work["bound_compute_s"],
        work["bound_compute_s"] / filling,
        work["memory_s"],
        work["bound_cache_s"],
    )
    estimate: Value = 0.0
    for weight, term in zip(WEIGHTS, terms, strict=True):
        estimate = estimate + v[weight] * term
    return {"estimate_s": estimate, "estimate_to_bound": estimate / work["bound_s"]}


def product_features(
    v: Mapping[str, Value],
    work: Mapping[str, Value],
    sides: tuple[Value, Value, Value, Value],
    contiguous: tuple[Value, Value],
) -> dict[str, Value]:
    """What tells matrix products of equal work apart: how they fill units, tiles of 128 and 16, and vectors.

    `work` is what `work_features` gave, `sides` are `(batch, m, n, k)`, `contiguous` the sizes along which the two operands
    lie contiguous in memory.
    """
    batch, m, n, k = sides
    tiles = batch * ceil_div(m, _TILE) * ceil_div(n, _TILE)
    waves = tiles / v["units"]
    last_wave = waves / ceil_div(tiles, v["units"])
    filled = m * n * batch / (tiles * _TILE * _TILE)
    return {
        **_estimate(v, work, last_wave * filled, batch * v["launch_s"]),
        "m": m,
        "n": n,
        "k": k,
        "batch": batch,
        "results": batch * m * n,
        "waves": waves,
        "last_wave": last_wave,
        "filled": filled,
        "filled_16": m * n / (ceil_div(m, 16.0) * ceil_div(n, 16.0) * 256.0),
        "n_alignment": alignment(n),
        "load_alignment": minimum(*map(alignment, contiguous)),
    }


_TILE = 128.0
"""Side of the tiles that products are cut into, a usual one of thread blocks."""


def alignment(size: Value) -> Value:
    """The largest of 8, 4, 2 and 1 that divides a size: how many elements loads and stores of whole rows can take at once."""
    out: Value = 1.0
    for step in (2.0, 4.0, 8.0):
        out = where(mod(size, step), out, step)
    return out


def row_features(v: Mapping[str, Value], work: Mapping[str, Value], rows: Value, cols: Value) -> dict[str, Value]:
    """What tells operations on as many elements apart: rows for every unit, the length of rows, and vectors in them.

    `work` is what `work_features` gave.
    """
    return {
        **_estimate(v, work, cols / (ceil_div(cols, 16.0) * 16.0), rows / (v["units"] * v["clock_hz"])),
        "rows": rows,
        "cols": cols,
        "rows_per_unit": rows / v["units"],
        "elements_per_unit": rows * cols / v["units"],
        "cols_alignment": alignment(cols),
        "row_b": cols * v["element_b"],
    }


def family_kind(family: str, features: Callable[[Mapping[str, Value]], Mapping[str, Value]]) -> TuningKind:
    """The kind of a family: its sizes, the code of its variant where it has several, and threads.

    Such a kind is taught by a trained predictor (`models.tuning.distillation`), not by measured rows of its own: it has no
    `task_of`, which would offer it the rows.
    """
    sizes = (*get_family(family).dim_names, *((VARIANT,) if VARIANT_CODES[family] else ()), THREADS)
    return TuningKind(
        name=PREFIX + family,
        compiler="any",
        sizes=sizes,
        knobs=(),
        facts=(*FACTS, *WEIGHTS, *OF_ANSWERS),
        features=features,
        space=lambda task: Candidates.of(task, [{}]),
        facts_of=partial(facts_of, family),
    )


def task_of(spec: KernelSpec, device: str) -> Task | None:
    """The task a spec stands for, its tuning knobs, implementation and cache state left out.

    None where its family has no kind, or the kind no such variant.
    """
    codes = VARIANT_CODES.get(spec.family)
    if codes is None:
        return None
    sizes = dict(spec.dims)
    if codes:
        if spec.variant not in codes:
            return None
        sizes[VARIANT] = codes[spec.variant]
    return Task(PREFIX + spec.family, sizes | {THREADS: spec.threads or 0}, spec.dtype, device)
