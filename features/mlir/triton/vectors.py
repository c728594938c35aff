"""From a Triton function with its options and target to numbers: the one `extract` that training and serving share.

The numbers follow how the compiler works: blocks are spread over threads, accesses made as wide as is known to be
aligned, products given to tensor cores, loads in loops kept in flight in shared memory, and every operation written
out once per element a thread holds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log2, prod

import numpy as np

from ...batch.cases import Floats
from ..types.graph import Function, Module, Op, ValueType
from .axis_info import Axis, axes_of
from .layouts import Layouts, layouts_of
from .liveness import CLASSES, cost_of, data_of, distinct, liveness_of
from .program_order import (
    COUNTED,
    PAIRS,
    TARGETS,
    WARP,
    Flow,
    Options,
    body_ops,
    counts_of,
    flow_of,
    number_of,
    pointee_b,
    register_limit,
    roots_of,
    shape_of,
)
from .shared_memory import CANDIDATES, DESCRIPTOR_LOADS, candidates, conversions, exchanged, in_flight

EXTRACT_VERSION = 1
"""Raised whenever a number changes its meaning; part of the schema's hash."""

_OPTIONS = ("num_warps", "num_stages", "sm_90", "limit", "arguments", "operations", "loops", "depth", "unknown")
_LIVE = tuple(
    f"{what} {where}" for where in ("most", "most in loops", "at the end", "at fixed points", "at fixed points in loops")
    for what in ("data", "index", "addresses", "truths", "blocks", "products", "kept", "all")
)  # fmt: skip
_WORK = tuple(f"{name} {where}" for where in ("outside", "in loops") for name in CLASSES)
_MEMORY = (
    "loads", "loads in loops", "copies", "stores", "stores in loops", "atomics", "loaded registers",
    "loaded registers in loops", "stored registers", "narrowest load", "narrowest store", "widest load",
    "masked loads", "block of most elements", "held most", "held most in loops", "addresses kept",
    "load bytes a thread", "scalar loads", "replicated",
)  # fmt: skip
_PRODUCTS = (
    "wgmma", "mma", "fma", "products", "products in loops", "accumulators", "accumulators in loops", "left registers",
    "right registers",
    "left computed", "right computed", "m most", "n most", "k most", "k least", "bits", "warps along m", "converted",
)  # fmt: skip
_SHARED = ("in flight loads", "conversions", "converted registers", *(f"{name} b" for name in CANDIDATES))
_REDUCED = ("shuffles", "shuffles in loops", "reduced", "across warps", "combined operations")
_PAPER = ("registers", "demand", "spilled", "instructions", "instructions in loops", "turns")
_RAW = frozenset(("num_warps", "num_stages", "sm_90", "depth"))

NAMES = (
    *_OPTIONS, *_LIVE, *_WORK, *_MEMORY, *_PRODUCTS, *_SHARED, *_REDUCED, *_PAPER, *COUNTED,
    *(f"pair {i}" for i in range(PAIRS)),
)  # fmt: skip
"""The columns of `extract`, in order. All but options are log2(1 + x): registers are per thread and of 32 bits, what
ends in `b` bytes per block."""


@lru_cache(maxsize=1)
def schema_hash() -> str:
    """A hash of everything a model depends on: version and names."""
    dumps = json.dumps([EXTRACT_VERSION, NAMES, sorted(TARGETS)])
    return hashlib.blake2b(dumps.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class _Read:
    """A function as far as it is understood for one set of options; `each[v]` are the different elements of a value a
    thread holds.
    """

    function: Function
    types: Sequence[ValueType]
    flow: Flow
    axes: Mapping[int, Axis]
    layouts: Layouts
    live: Floats
    packed: Floats
    data: set[int]
    options: Options
    in_flight: frozenset[int]

    def each(self, value: int) -> float:
        return distinct(value, self.types, self.axes, self.layouts)


def extract(module: Module, function: Function, options: Options) -> Floats:
    """The numbers of a function, shape `(len(NAMES),)`."""
    types = module.types
    flow = flow_of(function)
    axes = axes_of(function, types, flow)
    layouts = layouts_of(flow, types, axes, TARGETS[options.target], options.num_warps)
    data = data_of(flow)
    live, packed = (
        liveness_of(flow, types, axes, layouts, function.arguments, data, packed=item) for item in (False, True)
    )
    read = _Read(
        function, types, flow, axes, layouts, live, packed, data, options, _in_flight(flow, types, layouts, options)
    )
    work, unknown_ops = _work(read)
    lives = _lives(read)
    memory, products, reduced = _memory(read), _products(read), _reduced(read)
    values = [
        *_option_numbers(read, unknown_ops),
        *lives,
        *work,
        *memory.values(),
        *products.values(),
        *_shared(read),
        *reduced.values(),
        *_paper(read, dict(zip(_LIVE, lives, strict=True)), work, memory, products, reduced),
        *counts_of(flow),
    ]
    result = np.array(values, dtype=np.float64)
    logs = np.log2(1.0 + np.maximum(result, 0.0))
    return np.where(_RAW_COLUMNS, result, logs)


_RAW_COLUMNS = np.array([name in _RAW for name in NAMES])


def _option_numbers(read: _Read, unknown_ops: float) -> list[float]:
    flow, options = read.flow, read.options
    depth = max((flow.depth(item) for item in flow.loop_of), default=0)
    return [options.num_warps, options.num_stages, float(options.target == "sm_90"), register_limit(options.num_warps),
            len(read.function.arguments), len(flow.steps), len(flow.loops), depth, unknown_ops]  # fmt: skip


def _lives(read: _Read) -> list[float]:
    looped = np.array([loop >= 0 for loop in read.flow.loop_of], dtype=bool)
    every = np.ones(len(looped), dtype=bool)
    ends = np.arange(len(looped)) >= max((loop.end for loop in read.flow.loops), default=0)
    fixed = np.array([op.name in _FIXED for op in read.flow.steps], dtype=bool)
    fixed[:-1] |= np.array([op.name in _FIXED_BEFORE for op in read.flow.steps[1:]], dtype=bool)
    plain = [float(row[mask].max(initial=0.0)) for mask in (every, looped, ends) for row in read.live]
    return plain + [float(row[mask].max(initial=0.0)) for mask in (fixed, fixed & looped) for row in read.packed]


_FIXED_BEFORE = frozenset((
    "tt.store", "tt.dot", "tt.scan", "tt.atomic_rmw", "tt.atomic_cas", "scf.for", "scf.while", "scf.yield", "math.sin",
    "math.cos", "tt.precise_divf", "tt.precise_sqrt", "tt.extern_elementwise",
))  # fmt: skip
_FIXED = _FIXED_BEFORE | {"tt.load", "tt.reduce", "tt.gather", "tt.histogram", "tt.trans", "tt.reshape"}
"""What no other access moves across, since memory may be the same, or what needs all of a block: between these a
compiler may go through elements one after the other, at these it must keep all that is alive. Functions with branches
inside are such points too."""


def _work(read: _Read) -> tuple[list[float], float]:
    """Instructions per thread by class outside of loops and in them; how many operations are of no known class."""
    result = np.zeros((2, len(CLASSES)))
    unknown_ops = 0
    for i, op in enumerate(read.flow.steps):
        if not op.results and op.name not in ("tt.store",):
            continue
        known, place, each = cost_of(op, read.types, read.axes)
        unknown_ops += not known
        if each:
            elements = read.each(op.results[0]) if op.results else 1.0
            result[int(read.flow.loop_of[i] >= 0), place] += each * elements
    return result.ravel().tolist(), float(unknown_ops)


def _in_flight(flow: Flow, types: Sequence[ValueType], layouts: Layouts, options: Options) -> frozenset[int]:
    """Steps of loads that are kept in flight in shared memory: in a loop, wide enough to be copied, for a product in
    the same loop.
    """
    if options.num_stages < 2:
        return frozenset()
    wanted: set[int] = set()
    for i, op in reversed(list(enumerate(flow.steps))):
        if op.name == "tt.dot" and flow.loop_of[i] >= 0:
            wanted.update(op.operands[:2])
        elif flow.loop_of[i] >= 0 and op.name not in _READS and not wanted.isdisjoint(op.results):
            wanted.update(op.operands)
    return frozenset(
        i for i, op in enumerate(flow.steps)
        if flow.loop_of[i] >= 0 and op.results and op.results[0] in wanted and shape_of(types[op.results[0]])
        and (op.name in DESCRIPTOR_LOADS or (
            op.name == "tt.load" and layouts.accesses[i].width * pointee_b(types[op.operands[0]]) >= _LEAST_COPY_B
        ))
    )  # fmt: skip


_READS = DESCRIPTOR_LOADS | {"tt.load"}
_LEAST_COPY_B = 4
"""The least bytes `cp.async` copies (PTX ISA, "Data Movement and Conversion Instructions: cp.async")."""


def _memory(read: _Read) -> dict[str, float]:
    n = dict.fromkeys(_MEMORY, 0.0)
    narrow = {"tt.load": 16.0, "tt.store": 16.0}
    for i, op in enumerate(read.flow.steps):
        looped = read.flow.loop_of[i] >= 0
        for value in op.results:
            each = read.each(value)
            n["held most"] = max(n["held most"], each)
            if looped:
                n["held most in loops"] = max(n["held most in loops"], each)
            n["block of most elements"] = max(n["block of most elements"], float(prod(shape_of(read.types[value]))))
        if i not in read.layouts.accesses:
            continue
        access, pointer = read.layouts.accesses[i], op.operands[0]
        elements, size = read.each(pointer), pointee_b(read.types[pointer])
        count = max(elements / access.width, 1.0)
        registers = elements * size / 4.0
        if not shape_of(read.types[pointer]):
            n["scalar loads"] += 1
        if op.name == "tt.load":
            n["widest load"] = max(n["widest load"], access.width * size)
            narrow["tt.load"] = min(narrow["tt.load"], access.width * size)
            n["masked loads"] += count * (len(op.operands) > 1)
            n["load bytes a thread"] += elements * size
            if i in read.in_flight:
                n["copies"] += count * read.options.num_stages
            else:
                n["loads in loops" if looped else "loads"] += count
                n["loaded registers in loops" if looped else "loaded registers"] += registers
        elif op.name == "tt.store":
            narrow["tt.store"] = min(narrow["tt.store"], access.width * size)
            n["stores in loops" if looped else "stores"] += count
            n["stored registers"] += registers
        else:
            n["atomics"] += count
        n["addresses kept"] += count
        spread = read.layouts.spreads.get(pointer)
        if spread is not None:
            block = prod(shape_of(read.types[pointer]))
            n["replicated"] += max(prod(spread.per_thread) * WARP * read.options.num_warps / max(block, 1) - 1.0, 0.0)
    n["narrowest load"], n["narrowest store"] = narrow["tt.load"], narrow["tt.store"]
    return n


def _products(read: _Read) -> dict[str, float]:
    n = dict.fromkeys(_PRODUCTS, 0.0)
    n["k least"] = float("inf") if read.layouts.products else 0.0
    root = roots_of(read.flow, _MOVES)
    loaded = {value for op in read.flow.steps if op.name == "tt.load" for value in op.results}
    for i, product in read.layouts.products.items():
        op, looped = read.flow.steps[i], read.flow.loop_of[i] >= 0
        n[product.kind] += product.instructions
        n["products in loops" if looped else "products"] += 1
        accumulators = product.batch * product.m * product.n / (WARP * read.options.num_warps)
        n["accumulators in loops" if looped else "accumulators"] += accumulators
        if product.kind != "wgmma":
            # An operand is held by every warp along the other dimension.
            threads = WARP * read.options.num_warps
            n["left registers"] = max(
                n["left registers"],
                product.parts * product.m * product.k * product.bits / 32 * product.warps[1] / threads,
            )
            n["right registers"] = max(
                n["right registers"],
                product.parts * product.k * product.n * product.bits / 32 * product.warps[0] / threads,
            )
        n["left computed"] += root.get(op.operands[0], op.operands[0]) not in loaded
        n["right computed"] += root.get(op.operands[1], op.operands[1]) not in loaded
        n["m most"], n["n most"], n["k most"] = (
            max(n["m most"], product.m),
            max(n["n most"], product.n),
            max(n["k most"], product.k),
        )
        n["k least"], n["bits"] = min(n["k least"], product.k), max(n["bits"], product.bits)
        n["warps along m"] = max(n["warps along m"], product.warps[0])
    n["converted"] = float(sum(
        op.name == "tt.store" and len(op.operands) > 1 and op.operands[1] in read.layouts.from_product for op in
        read.flow.steps
    ))  # fmt: skip
    return n


_MOVES = frozenset(("tt.trans", "tt.reshape"))


def _shared(read: _Read) -> list[float]:
    flow, types, layouts = read.flow, read.types, read.layouts
    tiles = in_flight(flow, types, layouts, read.in_flight, read.options.num_stages)
    copied = {value for i in read.in_flight for value in flow.steps[i].results}
    by_kind: dict[str, dict[int, float]] = {"tt.reduce": {}, "tt.scan": {}}
    for i, op in enumerate(flow.steps):
        if op.name in by_kind and op.operands:
            by_kind[op.name][i] = exchanged(op, types, layouts, _axis(op, max(len(shape_of(types[op.operands[0]])), 1)))
    converted = conversions(flow, types, layouts)
    registers = sum(read.each(flow.steps[i].operands[1]) for i in converted)
    return [
        len(read.in_flight),
        len(converted),
        registers,
        *candidates(flow, types, layouts, tiles, copied, by_kind["tt.reduce"], by_kind["tt.scan"]),
    ]


def _axis(op: Op, rank: int) -> int:
    axis = number_of(op.attributes, "axis")
    return axis if axis is not None and 0 <= axis < rank else rank - 1


def _reduced(read: _Read) -> dict[str, float]:
    n = dict.fromkeys(_REDUCED, 0.0)
    for i, op in enumerate(read.flow.steps):
        if op.name not in ("tt.reduce", "tt.scan") or not op.operands:
            continue
        spread = read.layouts.spreads.get(op.operands[0])
        if spread is None:
            continue
        axis = _axis(op, len(spread.per_thread))
        per_row = prod(spread.per_thread) / max(spread.per_thread[axis], 1)
        work = max(len(body_ops(op)), 1)
        steps = log2(max(spread.lanes[axis], 1)) * len(op.operands)
        rows = prod(spread.per_thread) if op.name == "tt.scan" else per_row
        n["shuffles in loops" if read.flow.loop_of[i] >= 0 else "shuffles"] += steps * rows
        n["reduced"] += prod(spread.per_thread) * work
        n["combined operations"] += work
        n["across warps"] += spread.warps[axis] > 1
    return n


def _paper(
    read: _Read, lives: Mapping[str, float], work: Sequence[float], moved: Mapping[str, float], products: Mapping[str, float],
    folded: Mapping[str, float],
) -> list[float]:  # fmt: skip
    """A rule of thumb for registers and instructions: what must be kept at once, and every operation once per
    element.
    """
    limit = register_limit(read.options.num_warps)
    operands = min(products["left registers"] + products["right registers"], 64.0)
    demand = lives["all at fixed points"] + operands + _OVERHEAD
    half = len(CLASSES)
    looped = sum(work[half:]) + moved["loads in loops"] + moved["stores in loops"] + folded["shuffles in loops"] * 2
    in_all = (
        looped + sum(work[:half]) + moved["loads"] + moved["stores"] + moved["copies"] * 2
        + folded["shuffles"] * 2 + folded["reduced"]
        + products["wgmma"] + 1.5 * products["mma"] + 1.5 * products["fma"] + moved["atomics"] * 2 + 20.0
    )  # fmt: skip
    trips = max((_trip_count(read, i) for i in range(len(read.flow.loops))), default=0.0)
    return [min(demand, limit), demand, max(demand - limit, 0.0), in_all, looped, trips]


_OVERHEAD = 12.0
"""Registers that every kernel takes beside its data: thread and block numbers, addresses, what is in between."""


def _trip_count(read: _Read, number: int) -> float:
    """Iterations of a loop where all its bounds are constants, 0 where not."""
    op = read.flow.loops[number].op
    bounds = [read.axes[v].value if v in read.axes else None for v in op.operands[:3]] if op.name == "scf.for" else []
    if len(bounds) < 3 or any(bound is None for bound in bounds) or not bounds[2]:
        return 0.0
    return max(float(((bounds[1] or 0) - (bounds[0] or 0)) // (bounds[2] or 1)), 0.0)
