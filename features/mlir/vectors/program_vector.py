"""From a program on a device to numbers: the one `extract` that training and serving share.

A program becomes three things: a row per group (what kernels are), a row per operation (`op_columns.OpTable`), and
one row of numbers for the whole. Compiler and threads are in none of them: models have an answer for each. Names are
part of a schema whose hash is kept in every artifact.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...batch.cases import Floats
from ...device import Device
from ..program import KINDS, Program
from .device_limits import LEVELS, hardware
from .group_columns import (
    GROUP_NUMBERS,
    KIND_CODE,
    TERMS,
    GroupColumns,
    group_columns,
    group_numbers,
    group_shapes,
    group_terms,
)
from .op_columns import CODE_SIZES, CODES, DTYPES, NUMBERS, OPERATORS, Codes, OpTable, op_table

EXTRACT_VERSION = 1
"""Raised whenever a number changes its meaning; part of the schema's hash."""

_BIGRAM_BUCKETS = 48
"""Buckets that pairs of operations are hashed into."""

_TOTALS = (
    "log groups", "log ops", "log dispatches", "log flops", "log transcendentals", "log bytes", "log bytes in groups",
    "log arguments b", "log outputs b", "log footprint b", "intensity", "log depth", "log width", "log runs max",
    "log parallelism max", "log parallelism mean", "largest share", "second share", "log compute 1", "log memory 1",
    "log roofline 1", "log roofline all", "log roofline max", "log small groups", "log transposed b", "log gathered b",
    "log inner b", "unknown ops", "narrow share", "reads along k share", "second along n share", "tail n share",
    "tail k share", "log largest argument b", "log arguments", "log control", "log passed b", "log outputs",
    "log distinct elements", "log distinct transcendentals",
)  # fmt: skip

_SUMMED_BY_KIND = ("groups", "roofline 1", "bytes", "flops")

TOTAL_NUMBERS = (
    *_TOTALS,
    *(
        f"log {kind} {what}"
        for kind in KINDS
        if kind not in ("view", "constant", "control")
        for what in _SUMMED_BY_KIND
    ),
    *(f"log roofline 1 {level}" for level in LEVELS),
    *(f"{dtype} share" for dtype in DTYPES),
    *(f"log {name} elements" for name in OPERATORS),
    *(f"dialect {name}" for name in ("stablehlo", "linalg", "tosa", "torch", "other")),
)
"""Columns of `Vectors.totals`, numbers of the whole program; shares are of the roofline time on one core."""

BIGRAM_NUMBERS = tuple(f"bigram {i}" for i in range(_BIGRAM_BUCKETS))
"""Columns of `Vectors.bigrams`: log2(1 + n) of neighbouring pairs of operations, hashed."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """A program on a device, in numbers.

    Attributes:
        totals: Numbers of the whole program, shape `(len(TOTAL_NUMBERS),)`.
        bigrams: Which kinds follow each other, shape `(len(BIGRAM_NUMBERS),)`.
        groups: Numbers of the groups, shape `(n_groups, len(GROUP_NUMBERS))`.
        group_kinds: Kind of each group, shape `(n_groups,)`.
        terms: Analytic seconds that a model weighs, shape `(n_groups, len(TERMS))`.
        sources: First group each group reads from, -1 where there is none, shape `(n_groups,)`.
        shapes: Positions in `SHAPES`, shape `(n_groups,)`.
        passed_s: Seconds of copying outputs that no group makes.
        ops: The operations.
    """

    totals: Floats
    bigrams: Floats
    groups: Floats
    group_kinds: Codes
    terms: Floats
    sources: Codes
    shapes: Codes
    passed_s: float
    ops: OpTable


def schema_hash() -> str:
    """16 hex digits that change whenever a number of `extract` or its meaning does."""
    content = [EXTRACT_VERSION, TOTAL_NUMBERS, BIGRAM_NUMBERS, GROUP_NUMBERS, NUMBERS, CODES, CODE_SIZES, TERMS]
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()


def extract(program: Program, device: Device) -> Vectors:
    """The numbers of a program on a device; finite whatever the program.

    Takes about 1 ms for 300 operations and 8 ms for 5,000.
    """
    item, every = hardware(device, 1 if device.kind == "cpu" else None), hardware(device, None)
    ops = op_table(program)
    columns = group_columns(program, ops, item, every)
    return Vectors(
        totals=_totals(program, ops, columns),
        bigrams=_bigrams(ops),
        groups=group_numbers(ops, columns),
        group_kinds=columns.kind,
        terms=group_terms(ops, columns, item),
        sources=columns.sources,
        shapes=group_shapes(ops, columns),
        passed_s=columns.passed_b / float(item.rates_b_per_s[1]),
        ops=ops,
    )


_DIALECTS = ("stablehlo", "linalg", "tosa", "torch")


def _totals(program: Program, ops: OpTable, c: GroupColumns) -> Floats:
    n = len(c.flops)
    roofline = c.roofline_s * c.runs
    total_s = max(float(roofline.sum()), 1e-30)
    moved = (c.bytes_in + c.bytes_out) * c.runs
    shares = np.sort(roofline)[::-1] / total_s
    depth, width = _depth(c.needs)
    types = program.types
    argument_b = [types[value].known_nbytes for value in program.arguments]
    output_b = sum(types[value].known_nbytes for value in set(program.outputs))
    op_group_s = roofline[ops.group] / np.maximum(c.n_ops[ops.group], 1.0) / total_s if n else np.zeros(0)
    share_of = {name: float(ops.numbers[:, NUMBERS.index(name)] @ op_group_s) for name in _SHARED}
    flops, bytes_ = float(c.flops @ c.runs), float(moved.sum())
    gathered = float(moved[c.kind == KIND_CODE["gather"]].sum())
    unknown = float((c.kind == KIND_CODE["unknown"]).sum())
    plain = [
        n, len(ops.group), c.runs.sum(), flops, c.transcendentals @ c.runs, bytes_, (ops.costs[:, 2] + ops.costs[:, 3]).sum(),
        sum(argument_b), output_b, program.footprint_b,
    ]  # fmt: skip
    values = [
        *np.log2(1.0 + np.array(plain, dtype=np.float64)), np.log2(1.0 + flops / max(bytes_, 1.0)), _log(depth), _log(width),
        _log(c.runs.max(initial=0.0)), _log(c.parallelism.max(initial=0.0)),
        _log(float(np.mean(c.parallelism)) if n else 0.0), shares[0] if n else 0.0, shares[1] if n > 1 else 0.0,
        *(_log(1e9 * float(s @ c.runs)) for s in (c.compute_s, c.memory_s, c.roofline_s, c.roofline_all_s)),
        _log(1e9 * float(roofline.max(initial=0.0))), _log(float((moved < 16384.0).sum())),
        _log(float(c.transposed_b @ c.runs)),
        _log(gathered), _log(float(c.inner_b @ c.runs)), unknown, *(share_of[name] for name in _SHARED),
        _log(max(argument_b, default=0.0)), _log(float(len(argument_b))),
        _log(float(sum(node.kind == "control" for node in program.nodes))), _log(c.passed_b),
        _log(float(len(set(program.outputs)))), _log(float(c.distinct @ c.runs)),
        _log(float(c.distinct_transcendentals @ c.runs)),
    ]  # fmt: skip
    by_kind = [
        np.bincount(c.kind, weights, minlength=len(KINDS))[_COUNTED_KINDS]
        for weights in (np.ones(n), 1e9 * roofline, moved, c.flops * c.runs)
    ]
    by_level = np.bincount(c.level, 1e9 * roofline, minlength=len(LEVELS))
    by_dtype = np.bincount(c.dtype, roofline / total_s, minlength=len(DTYPES))
    dialects = _dialect_shares(program)
    by_operator = c.runs @ c.by_operator if n else np.zeros(len(OPERATORS))
    return np.concatenate([
        np.array(values, dtype=np.float64), np.log2(1.0 + np.column_stack(by_kind)).ravel(), np.log2(1.0 + by_level), by_dtype,
        np.log2(1.0 + by_operator), dialects,
    ])  # fmt: skip


_SHARED = ("narrow", "reads along k", "second along n", "tail n", "tail k")
_COUNTED_KINDS = [i for i, kind in enumerate(KINDS) if kind not in ("view", "constant", "control")]


def _log(value: float) -> float:
    return float(np.log2(1.0 + value))


def _depth(needs: Sequence[tuple[int, ...]]) -> tuple[float, float]:
    """Groups on the longest chain, and on average at each depth of it."""
    depths: list[int] = []
    for item in needs:
        deepest = 0
        for need in item:
            if need < len(depths) and depths[need] > deepest:
                deepest = depths[need]
        depths.append(deepest + 1)
    if not depths:
        return 0.0, 0.0
    longest = max(depths)
    return float(longest), len(depths) / longest


def _dialect_shares(program: Program) -> Floats:
    """Share of the operations from each of `_DIALECTS`, and of all others that cost something."""
    counts = [0] * (len(_DIALECTS) + 1)
    for node in program.nodes:
        if node.kind not in ("constant", "control"):
            counts[_dialect_place(node.op)] += 1
    return np.array(counts, dtype=np.float64) / max(sum(counts), 1)


@lru_cache(maxsize=8192)
def _dialect_place(name: str) -> int:
    dialect = name.partition(".")[0]
    return _DIALECTS.index(dialect) if dialect in _DIALECTS else len(_DIALECTS)


def _bigrams(ops: OpTable) -> Floats:
    """Pairs of neighbours by kind and operator, so that dialects which say the same count the same."""
    item = ops.codes[:, 2] * CODE_SIZES[1] + ops.codes[:, 1]
    pairs = (item[:-1] * 31 + item[1:] * 17) % _BIGRAM_BUCKETS
    logs: Floats = np.log2(1.0 + np.bincount(pairs, minlength=_BIGRAM_BUCKETS))
    return logs
