"""The operations of a program in columns: what sequence and graph models read, one row per operation.

Only operations that belong to a group are rows, in the order of the groups: those that cost nothing (views,
constants, returns) are in none. Names become numbers by hashing into fixed tables, so that an operation never seen in
training has a place too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import prod
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from ...batch.cases import Floats
from ..program import KINDS, Node, Program
from ..types.graph import ValueType

NAME_BUCKETS, OPERATOR_BUCKETS = 256, 64
"""Sizes of the tables that the names of operations, and of what they compute, are hashed into."""

DTYPES = ("fp64", "fp32", "bf16", "fp16", "int8", "int32", "int64", "i1", "index", "other")
"""Element types told apart; the last stands for all others."""

OPERATORS: Mapping[str, str] = {
    "plain": "add sub mul neg abs maximum minimum and or xor not fma clamp relu relu6 square sign floor ceil round leaky_relu "
             "hardsigmoid hardswish lerp addcmul",
    "choose": "compare select", "convert": "convert bitcast", "div": "div divu reciprocal addcdiv",
    "remainder": "remainder shift popcnt",
    "root": "sqrt rsqrt", "cbrt": "cbrt", "exp": "exp exp2", "expm1": "expm1 elu selu celu", "log": "log log2 log10",
    "log1p": "log1p softplus", "tanh": "tanh mish", "sigmoid": "sigmoid silu logit", "erf": "erf erfc gelu", "pow": "pow powu",
    "sine": "sin cos", "tan": "tan", "arc": "atan2 asin acos atan", "hyperbolic": "sinh cosh asinh acosh atanh",
    "special": "erf_inv lgamma digamma polygamma zeta", "iota": "iota",
    "broadcast": "broadcast", "transpose": "transpose permute",
    "concatenate": "concatenate concat", "slice": "slice dynamic_slice", "pad": "pad", "reverse": "reverse", "other": "",
}  # fmt: skip
"""Operators by what an element of theirs costs in compiled code: those of one class share a vector routine or, for
the rare ones, a call of a scalar function. The last stands for all others.
"""

CODES = ("name", "operator", "kind", "dtype", "class")
"""Columns of `OpTable.codes`: hashed names, and positions in `KINDS`, `DTYPES` and `OPERATORS`."""

CODE_SIZES = (NAME_BUCKETS, OPERATOR_BUCKETS, len(KINDS), len(DTYPES), len(OPERATORS))

_CLASS_OF_OPERATOR = {name: i for i, names in enumerate(OPERATORS.values()) for name in names.split()}

NUMBERS = (
    "log flops", "log transcendentals", "log bytes in", "log bytes out", "log batch", "log m", "log n", "log k", "log runs",
    "tail m", "tail n", "tail k", "rank", "log last out", "log last in", "tail last out", "operands", "log largest in",
    "reads along k", "second along n", "narrow", "log widens", "log shrinks", "axis inner", "axis middle", "axis outer",
    "log window", "stride", "log groups", "transposes", "log distinct",
)  # fmt: skip
"""Columns of `OpTable.numbers`. Logarithms are log2(1 + x). `tail …` is the remainder of a size by 16, the elements
of a 512-bit vector of fp32, as a share of 16. `reads along k`: the first operand's last dimension is the one summed
over; `second along n`: the second operand's last is that of the result. `narrow`: fewer than 16 results in a row.
`widens`, `shrinks`: elements out over elements in and the other way, less 1. `axis …`: where reduced or
sorted axes lie. `window`: elements of a convolution's filter, of a pooling's window, and of a sorted row those that are read
where they are a choice of the largest. `stride`, `groups`: of a convolution or a pooling. `transposes`: the last dimension of
its result is not that of its operand, of as many elements. `distinct`: elements of its result that differ at all, as far as
repeated and constant operands tell: compilers compute an element operation before they repeat its operand, and fold what is
constant."""

_VECTOR = 16.0
"""Elements of fp32 in the widest vector register (AVX-512); what is left over of a size is computed element by element."""
_KIND_CODE = {kind: code for code, kind in enumerate(KINDS)}
_DTYPE_CODE = {name: code for code, name in enumerate(DTYPES)}
_COSTS = attrgetter("flops", "transcendentals", "bytes_in", "bytes_out", "runs")
_LOOPS = attrgetter("loops")
_WORDS = attrgetter("op", "kind", "dtype")

Codes = npt.NDArray[np.int64]
ShapeFacts = tuple[float, float, float, float]
"""Rank, last size, elements and bytes of a value."""


@dataclass(frozen=True, slots=True)
class OpTable:
    """Operations of a program, group by group.

    Attributes:
        codes: Categories, shape `(n, len(CODES))`.
        numbers: Scaled numbers, shape `(n, len(NUMBERS))`.
        costs: Flops, transcendentals, bytes in, bytes out and runs, shape `(n, 5)`.
        elements_out: Elements of the result, shape `(n,)`.
        distinct: Distinct elements of the result, shape `(n,)`.
        group: The group of each row, shape `(n,)`.
    """

    codes: Codes
    numbers: Floats
    costs: Floats
    elements_out: Floats
    distinct: Floats
    group: Codes


def op_table(program: Program) -> OpTable:
    """The operations of a program's groups in columns."""
    members = [group.nodes for group in program.groups]
    sizes = np.fromiter(map(len, members), dtype=np.int64, count=len(members))
    all_nodes = program.nodes
    nodes = [all_nodes[i] for i in chain.from_iterable(members)]
    alike, rows = _alike(nodes, program.types)
    costs = _rows(map(_COSTS, alike), len(alike), 5)
    shapes = _rows(_shape_rows(alike, program.types), len(alike), 8)
    codes = np.array(
        [_codes(node.op, node.detail.get("operator", ""), node.kind, node.dtype) for node in alike], dtype=np.int64
    ).reshape(len(alike), len(CODES))
    elements_out = shapes[rows, 6]
    distinct = np.minimum(_distinct(program, nodes), elements_out)
    numbers = _numbers(alike, costs, shapes)[rows]
    numbers[:, -1] = np.log2(1.0 + distinct)
    return OpTable(codes[rows], numbers, costs[rows], elements_out, distinct, np.repeat(np.arange(len(members)), sizes))


def _alike(nodes: Sequence[Node], types: Sequence[ValueType]) -> tuple[list[Node], Codes]:
    """Nodes of which no two have the same row but for `log distinct`, and the position among them of one like each node.

    A program of layers has few: their rows are made once.
    """
    kinds = list(map(id, types))
    places: dict[object, int] = {}
    items: list[Node] = []
    rows = np.empty(len(nodes), dtype=np.int64)
    for row, node in enumerate(nodes):
        results = node.results
        key = (
            _WORDS(node), _COSTS(node), node.loops, id(node.detail), kinds[results[0]] if results else None,
            *[kinds[value] for value in node.operands],
        )  # fmt: skip
        place = places.get(key)
        if place is None:
            place = places[key] = len(items)
            items.append(node)
        rows[row] = place
    return items, rows


def _numbers(nodes: Sequence[Node], costs: Floats, shapes: Floats) -> Floats:
    """The columns of `NUMBERS` but for the last, `log distinct`, which is zero."""
    n = len(nodes)
    loops = _rows(map(_LOOPS, nodes), n, 4)
    details = _rows(map(_detail_row, nodes), n, 6)
    rank, last_out, last_in, last_second, largest_b, elements_in, elements_out, operands = shapes.T
    widens = np.maximum((1.0 + elements_out) / (1.0 + elements_in) - 1.0, 0.0)
    shrinks = np.maximum((1.0 + elements_in) / (1.0 + elements_out) - 1.0, 0.0)
    numbers = np.empty((n, len(NUMBERS)))
    numbers[:, 0:4], numbers[:, 4:8], numbers[:, 8] = costs[:, :4], loops, costs[:, 4]
    numbers[:, 9:12] = np.mod(loops[:, 1:], _VECTOR) / _VECTOR
    numbers[:, 12], numbers[:, 13], numbers[:, 14] = rank, last_out, last_in
    numbers[:, 15], numbers[:, 16], numbers[:, 17] = np.mod(last_out, _VECTOR) / _VECTOR, operands, largest_b
    numbers[:, 18], numbers[:, 19], numbers[:, 20] = last_in == loops[:, 3], last_second == last_out, last_out < _VECTOR
    numbers[:, 21], numbers[:, 22], numbers[:, 23:29] = widens, shrinks, details
    numbers[:, 29] = (last_in != last_out) & (elements_in == elements_out)
    numbers[:, 30] = 0.0
    numbers[:, _LOGS] = np.log2(1.0 + numbers[:, _LOGS])
    return numbers


_LOGS = [i for i, name in enumerate(NUMBERS) if name.startswith("log ")]


def bucket(name: str, size: int) -> int:
    """The place of a name in a table of that size: the same on every machine and in every version of Python."""
    return zlib.crc32(name.encode()) % size


def _rows(rows: Iterable[Sequence[float]], n: int, width: int) -> Floats:
    return np.fromiter(chain.from_iterable(rows), dtype=np.float64, count=n * width).reshape(n, width)


@lru_cache(maxsize=16384)
def _codes(name: str, operator: object, kind: str, dtype: str) -> tuple[int, ...]:
    return (
        bucket(name, NAME_BUCKETS),
        bucket(str(operator), OPERATOR_BUCKETS),
        _KIND_CODE[kind],
        _DTYPE_CODE.get(dtype, len(DTYPES) - 1),
        _CLASS_OF_OPERATOR.get(str(operator), len(OPERATORS) - 1),
    )


def _shape_rows(nodes: Sequence[Node], types: Sequence[ValueType]) -> Iterable[tuple[float, ...]]:
    """Of each node rank and last size of the result, last sizes of the first and the second operand, bytes of the
    largest operand, most elements in, elements out, and how many operands.
    """
    for node in nodes:
        rank, last_out, elements_out, _ = _shape_facts(types[node.results[0]]) if node.results else _NOTHING
        operands = [_shape_facts(types[value]) for value in node.operands]
        if not operands:
            yield rank, last_out, 0.0, 0.0, 0.0, 0.0, elements_out, 0.0
            continue
        first = operands[0]
        if len(operands) == 1:
            yield rank, last_out, first[1], 0.0, first[3], first[2], elements_out, 1.0
            continue
        largest_b, most_elements = (max(operand[i] for operand in operands) for i in (3, 2))
        yield rank, last_out, first[1], operands[1][1], largest_b, most_elements, elements_out, float(len(operands))


def _distinct(program: Program, nodes: Sequence[Node]) -> Floats:
    """Distinct elements of the first result of `nodes`, shape `(n,)`, infinite where all may differ."""
    known: dict[int, float] = {}
    types = program.types
    for node in program.nodes:
        kind = node.kind
        if kind == "constant":
            entry = 0.0
        elif kind == "view" or node.detail.get("operator") == "broadcast":
            if not node.operands:
                continue
            entry = known.get(node.operands[0], -1.0)
            if entry < 0 and kind != "view":
                entry = _shape_facts(types[node.operands[0]])[2]
        elif kind == "elementwise" and node.operands:
            entry = 0.0
            for value in node.operands:
                entry = max(entry, known.get(value, np.inf))
                if entry == np.inf:
                    break
        else:
            continue
        if 0 <= entry < np.inf:
            for value in node.results:
                known[value] = entry
    items = [known.get(node.results[0], np.inf) if node.results else 0.0 for node in nodes]
    return np.array(items, dtype=np.float64)


_NOTHING = (0.0, 0.0, 0.0, 0.0)


@lru_cache(maxsize=4096)
def _shape_facts(kind: ValueType) -> ShapeFacts:
    """A size that is not known counts as 1."""
    shape = [1 if size is None else size for size in kind.shape or ()]
    elements = float(prod(shape))
    return float(len(shape)), float(shape[-1]) if shape else 0.0, elements, elements * kind.itemsize_b


def _detail_row(node: Node) -> tuple[float, ...]:
    """Whether reduced axes are inner, in the middle or outer; elements of the window, its stride, and groups."""
    detail = node.detail
    if len(detail) < 2:
        return _NO_DETAIL
    axis = detail.get("axis")
    window = detail.get("window")
    taps = float(prod(window)) if isinstance(window, tuple) else 0.0
    if "kernel_h" in detail:
        taps = prod(_number(detail.get(side, 1)) for side in ("kernel_h", "kernel_w", "kernel_d"))
    return (float(axis == "inner"), float(axis == "middle"), float(axis == "outer"), taps,
            _number(detail.get("stride_h", detail.get("stride"))), _number(detail.get("groups")))  # fmt: skip


_NO_DETAIL = (0.0,) * 6


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
