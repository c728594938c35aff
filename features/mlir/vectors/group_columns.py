"""The groups of a program in columns: what each costs on paper, what it is like, and the terms an analytic model weighs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...batch.cases import Floats
from ..program import KINDS, Group, Program
from .device_limits import LEVELS, Hardware
from .op_columns import CODES, DTYPES, NUMBERS, OPERATORS, Codes, OpTable

_MAIN = ("log batch", "log m", "log n", "log k", "tail m", "tail n", "tail k", "rank", "log last out", "log last in",
         "tail last out", "reads along k", "second along n", "narrow", "axis inner", "axis middle", "axis outer", "log window",
         "stride", "log groups", "log largest in")  # fmt: skip
"""What a group takes from its main operation, columns of `op_columns.NUMBERS`."""

_MAIN_COLUMNS = [NUMBERS.index(name) for name in _MAIN]
_TRANSPOSES = NUMBERS.index("transposes")

GROUP_NUMBERS = (
    "log flops", "log transcendentals", "log bytes in", "log bytes out", "log runs", "log parallelism", "log ops",
    "log compute 1", "log memory 1", "log roofline 1", "log roofline all", "level 1", "log intensity", "log needs",
    "to outputs", "log elements", "log transposed b", "log inner b",
    "log distinct elements", "log distinct transcendentals",
    *(f"{kind} ops" for kind in KINDS), *(f"{dtype}" for dtype in DTYPES), *(f"main {name}" for name in _MAIN),
    *(f"log {name} elements" for name in OPERATORS),
)  # fmt: skip
"""Columns of `Vectors.groups`. `compute`, `memory` and `roofline` are log2 of nanoseconds + 1 on one core or all;
`level` is the cache level the group's traffic fits in. `inner b`: bytes between its own operations, which fusion
saves."""

TRAFFIC_TERMS = (
    "launch", "operations", "pieces", "rows", "compute", "padded", "in", "out", "beyond l1", "beyond l2", "beyond l3",
    "transposed", "scattered", "returned", "returned beyond l2",
)  # fmt: skip
TERMS = (*TRAFFIC_TERMS, *OPERATORS)
"""Seconds on one core per group, runs counted: see `group_terms`. Those after `TRAFFIC_TERMS` are of elements, by
operator."""

SHAPES = ("", "thin", "grouped", "inner", "window", "integer", "line", "pointwise")
"""What a group's main operation is like: thin, a product with fewer than eight rows or columns; grouped, a
convolution in groups; inner, reducing the innermost axis; window, reducing a window slid over an array; integer, a
product of integers; line, a convolution in one dimension; pointwise, one whose window is a single element."""


@dataclass(frozen=True, slots=True)
class GroupColumns:
    """Groups in columns of shape `(n_groups,)`, as they are; see `GROUP_NUMBERS` for what they mean."""

    flops: Floats
    transcendentals: Floats
    bytes_in: Floats
    bytes_out: Floats
    runs: Floats
    parallelism: Floats
    n_ops: Floats
    kind: Codes
    dtype: Codes
    compute_s: Floats
    memory_s: Floats
    roofline_s: Floats
    roofline_all_s: Floats
    level: Codes
    needs: Sequence[tuple[int, ...]]
    sources: Codes
    to_outputs: Floats
    main: Codes
    elements: Floats
    distinct: Floats
    distinct_transcendentals: Floats
    by_operator: Floats
    transposed_b: Floats
    inner_b: Floats
    passed_b: float


KIND_CODE = {kind: code for code, kind in enumerate(KINDS)}
"""Positions in `KINDS`."""
_DTYPE_CODE = {name: code for code, name in enumerate(DTYPES)}


def group_columns(program: Program, ops: OpTable, hardware: Hardware, every: Hardware) -> GroupColumns:
    """The columns of a program's groups on one core and on all.

    Args:
        program: The program.
        ops: Its operations in columns.
        hardware: The device, or one core of it.
        every: The device with all its cores.
    """
    groups = program.groups
    n = len(groups)
    raw = np.array([(g.flops, g.transcendentals, g.bytes_in, g.bytes_out, g.runs, g.parallelism) for g in groups])
    flops, transcendentals, bytes_in, bytes_out, runs, parallelism = raw.reshape(n, 6).T
    moved = bytes_in + bytes_out
    peaks = _peaks(groups, hardware, every)
    level = np.minimum(hardware.level(moved), len(LEVELS) - 1)
    memory_s = moved / hardware.rates_b_per_s[level]
    memory_all_s = moved / every.rates_b_per_s[every.level(moved)]
    compute_s = flops / peaks[:, 0]
    return GroupColumns(
        flops=flops, transcendentals=transcendentals, bytes_in=bytes_in, bytes_out=bytes_out, runs=runs,
        parallelism=parallelism,
        n_ops=np.bincount(ops.group, minlength=n).astype(np.float64),
        kind=np.array([KIND_CODE[g.kind] for g in groups], dtype=np.int64),
        dtype=np.array([_DTYPE_CODE.get(g.dtype, len(DTYPES) - 1) for g in groups], dtype=np.int64),
        compute_s=compute_s, memory_s=memory_s, roofline_s=np.maximum(compute_s, memory_s),
        roofline_all_s=np.maximum(flops / peaks[:, 1], memory_all_s), level=level,
        needs=[g.needs for g in groups],
        sources=np.array([g.needs[0] if g.needs else -1 for g in groups], dtype=np.int64),
        to_outputs=_to_outputs(program),
        main=_main(ops, groups),
        elements=_summed(ops, ops.elements_out, n),
        distinct=_summed(ops, ops.distinct, n),
        distinct_transcendentals=_summed(ops, ops.costs[:, 1] * ops.distinct / np.maximum(ops.elements_out, 1.0), n),
        by_operator=_by_operator(ops, n),
        transposed_b=_summed(ops, ops.numbers[:, _TRANSPOSES] * ops.costs[:, 3], n),
        inner_b=np.maximum(_summed(ops, ops.costs[:, 2] + ops.costs[:, 3], n) - moved, 0.0),
        passed_b=_passed_b(program),
    )  # fmt: skip


def _peaks(groups: Sequence[Group], hardware: Hardware, every: Hardware) -> Floats:
    """Peaks of one core and of all for each group, shape `(n_groups, 2)`."""
    result: dict[tuple[str, str], float] = {}
    for g in groups:
        if (g.dtype, g.kind) not in result:
            result[g.dtype, g.kind] = hardware.peak_flops_per_s(g.dtype, g.kind)
    peaks = np.array([result[g.dtype, g.kind] for g in groups])
    return np.stack([peaks, peaks * (every.share / hardware.share)], axis=1)


def _to_outputs(program: Program) -> Floats:
    outputs = set(program.outputs)
    returned = {i for i, node in enumerate(program.nodes) if not outputs.isdisjoint(node.results)}
    return np.array([not returned.isdisjoint(group.nodes) for group in program.groups], dtype=np.float64)


def _passed_b(program: Program) -> float:
    """Bytes of outputs that no group makes: arguments, seen otherwise, that a compiler must copy."""
    nodes = program.nodes
    created = {value for group in program.groups for i in group.nodes for value in nodes[i].results}
    missing = set(program.outputs) - created
    if missing:
        # A view of what a group made is no copy.
        source = {
            value: node.operands[0] for node in nodes if node.kind == "view" and node.operands for value in node.results
        }
        for value in list(missing):
            origin = value
            while origin in source:
                origin = source[origin]
            if origin in created:
                missing.discard(value)
    return sum(program.types[value].known_nbytes for value in missing)


def _main(ops: OpTable, groups: Sequence[Group]) -> Codes:
    """Row of each group's main operation: of the group's kind where there is one, with most arithmetic, then
    traffic.
    """
    n = len(groups)
    kind = np.array([KIND_CODE[g.kind] for g in groups], dtype=np.int64)
    local = ops.codes[:, 2] == kind[ops.group] if n else np.zeros(0, dtype=np.bool_)
    order = np.lexsort((ops.costs[:, 2] + ops.costs[:, 3], ops.costs[:, 0], local, ops.group))
    last = np.full(n, -1, dtype=np.int64)
    last[ops.group[order]] = order
    return last


def _summed(ops: OpTable, values: Floats, n: int) -> Floats:
    return np.bincount(ops.group, values, minlength=n).astype(np.float64)


def _by_operator(ops: OpTable, n: int) -> Floats:
    """Elements each operator makes in each group, shape `(n, len(OPERATORS))`."""
    width = len(OPERATORS)
    place = ops.codes[:, _CLASS]
    elements = np.bincount(ops.group * width + place, ops.elements_out, minlength=n * width)
    return elements.reshape(n, width).astype(np.float64)


_CLASS = CODES.index("class")


def group_numbers(ops: OpTable, c: GroupColumns) -> Floats:
    """The columns of `GROUP_NUMBERS`, shape `(n_groups, len(GROUP_NUMBERS))`."""
    n = len(c.flops)
    counts = np.bincount(ops.group * len(KINDS) + ops.codes[:, 2], minlength=n * len(KINDS)).reshape(n, len(KINDS))
    main = ops.numbers[c.main][:, _MAIN_COLUMNS] if n else np.zeros((0, len(_MAIN)))
    main = np.where(c.main[:, None] >= 0, main, 0.0)
    moved = c.bytes_in + c.bytes_out
    logs = [
        c.flops, c.transcendentals, c.bytes_in, c.bytes_out, c.runs, c.parallelism, c.n_ops, 1e9 * c.compute_s,
        1e9 * c.memory_s, 1e9 * c.roofline_s, 1e9 * c.roofline_all_s,
    ]  # fmt: skip
    needs = np.array([float(len(need)) for need in c.needs])
    more = [c.flops / np.maximum(moved, 1.0), needs]
    return np.column_stack([
        np.log2(1.0 + np.column_stack(logs)), c.level, np.log2(1.0 + np.column_stack(more)), c.to_outputs,
        np.log2(1.0 + np.column_stack([c.elements, c.transposed_b, c.inner_b, c.distinct, c.distinct_transcendentals])),
        np.log2(1.0 + counts),
        c.dtype[:, None] == np.arange(len(DTYPES)), main, np.log2(1.0 + c.by_operator),
    ])  # fmt: skip


def group_shapes(ops: OpTable, c: GroupColumns) -> Codes:
    """Position in `SHAPES` of each group, shape `(n_groups,)`."""
    if not len(c.flops):
        return np.zeros(0, dtype=np.int64)
    main = ops.numbers[c.main]
    batch, m, n = (2.0 ** main[:, _COLUMN[name]] - 1.0 for name in ("log batch", "log m", "log n"))
    product = c.kind == KIND_CODE["contraction"]
    grouped = (c.kind == KIND_CODE["convolution"]) & (batch > 1.5)
    inner = main[:, _COLUMN["axis inner"]] > 0
    integer = product & np.isin(c.dtype, _INTEGERS)
    window = (c.kind == KIND_CODE["reduction"]) & (main[:, _COLUMN["log window"]] > 0)
    is_thin = product & (np.minimum(m, n) < _THIN)
    line = (c.kind == KIND_CODE["convolution"]) & (main[:, _COLUMN["rank"]] < 3.5)
    pointwise = (c.kind == KIND_CODE["convolution"]) & (main[:, _COLUMN["log window"]] == 1.0)
    return np.select([integer, is_thin, grouped, pointwise, line, window, inner & ~product], [5, 1, 2, 7, 6, 4, 3], 0)


_INTEGERS = [_DTYPE_CODE[name] for name in ("int8", "int32", "int64", "i1", "index")]
_THIN = 7.5
_COLUMN = {name: i for i, name in enumerate(NUMBERS)}
_LANES = 16.0
_SCATTERING = [list(OPERATORS).index(name) for name in ("transpose", "concatenate", "slice", "pad", "reverse")]
"""Operators whose elements are not read in the order they are written: a loop they are fused into takes no vectors."""


def group_terms(ops: OpTable, c: GroupColumns, hardware: Hardware) -> Floats:
    """Seconds of each of `TERMS`, shape `(n_groups, len(TERMS))`, none negative.

    launch: a dispatch. operations, pieces, rows: a clock for each operation, independent product and row. compute:
    arithmetic at the peak; padded: the same with columns rounded up to a vector. in, out: at the first cache's rate;
    beyond …: traffic that outgrows a level, at the next one's rate. transposed: bytes that change order, scattered:
    elements where loads are out of order, a clock each. returned: outputs of the program, at memory's rate, since memory
    for them may be new every time. All others: elements, a clock each.
    """
    clock = 1.0 / hardware.device.required("boost_clock_hz")
    moved = c.bytes_in + c.bytes_out
    beyond = [np.maximum(moved - size, 0.0) / rate
              for size, rate in zip(hardware.sizes_b[:-1], hardware.rates_b_per_s[1:], strict=True)]  # fmt: skip
    columns = np.maximum(2.0 ** ops.numbers[c.main, _COLUMN["log n"]] - 1.0, 1.0) if len(moved) else np.ones(0)
    padded = c.compute_s * np.ceil(columns / _LANES - 1e-6) * _LANES / columns
    rows = _summed(
        ops, ops.elements_out / np.maximum(2.0 ** ops.numbers[:, _COLUMN["log last out"]] - 1.0, 1.0), len(moved)
    )
    returned_b = c.bytes_out * c.to_outputs
    seconds = [
        np.full(len(moved), hardware.dispatch_s), c.n_ops * clock, 2.0 ** ops.numbers[c.main, _COLUMN["log batch"]] * clock,
        rows * clock, c.compute_s, padded, c.bytes_in / hardware.rates_b_per_s[0], c.bytes_out / hardware.rates_b_per_s[0],
        *beyond,
        c.transposed_b * clock, c.elements * (c.by_operator[:, _SCATTERING].sum(axis=1) > 0) * clock,
        returned_b / hardware.rates_b_per_s[-1], np.maximum(returned_b - hardware.sizes_b[1], 0.0) / hardware.rates_b_per_s[-1],
        c.by_operator * clock,
    ]  # fmt: skip
    return np.column_stack(seconds) * c.runs[:, None]
