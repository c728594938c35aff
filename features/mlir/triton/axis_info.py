"""What is known of the values of a Triton function along each dimension: runs of consecutive, of equal and of
divisible elements.

Triton decides by this how wide it loads and stores (Triton, lib/Analysis/AxisInfo.cpp, whose rules these are).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import gcd
from typing import NamedTuple

from ..types.graph import Function, Op, ValueType
from .program_order import Flow, is_pointer, number_of, pointee_b, shape_of

MOST = 1 << 16
"""No divisor beyond this matters."""

_DIVISIBILITY = re.compile(r"\btt\.divisibility = (\d+)")
_VALUE = re.compile(r"value = (?:dense<)?(-?\d+)>? :|value = dense<(-?\d+)>|value = (true|false)")
_PASSES = 2
"""Once with what loops are entered with, once with what their turns leave too."""


class Axis(NamedTuple):
    """One value along its dimensions: each entry divides the length of runs.

    In runs of `contiguity` neighbours count up by one and begin at a multiple of `divisibility`; in runs of
    `constancy` they are equal. `value` is its one number, where known. A scalar has one dimension.
    """

    contiguity: tuple[int, ...]
    divisibility: tuple[int, ...]
    constancy: tuple[int, ...]
    value: int | None = None


class _Site(NamedTuple):
    """An operation with what is known of its operands."""

    op: Op
    operands: list[Axis]
    types: Sequence[ValueType]


def axes_of(function: Function, types: Sequence[ValueType], flow: Flow) -> dict[int, Axis]:
    """What is known of each value of a function."""
    known: dict[int, Axis] = {}
    for position, value in enumerate(function.arguments):
        about = function.argument_attributes[position] if position < len(function.argument_attributes) else ""
        match = _DIVISIBILITY.search(about)
        known[value] = Axis((1,), (int(match[1]) if match else 1,), (1,))
    left: dict[int, Axis] = {}
    for _ in range(_PASSES):
        _one_pass(known, types, flow, left)
        for loop in flow.loops:
            for carried, after in zip(loop.carried, loop.yields, strict=False):
                if after in known:
                    left[carried] = known[after]
    return known


def _one_pass(known: dict[int, Axis], types: Sequence[ValueType], flow: Flow, left: Mapping[int, Axis]) -> None:
    loops = {id(loop.op): loop for loop in flow.loops}
    branches = dict(flow.branches)
    for op in flow.steps:
        loop = loops.get(id(op))
        if loop is not None:
            for carried, before, after in zip(loop.carried, loop.inits, loop.results, strict=False):
                start = known.get(before) or unknown(types[carried])
                known[carried] = _joined(start, left[carried]) if carried in left else start
                known[after] = known[carried]
            if op.name == "scf.for" and op.regions[0].blocks and len(op.operands) >= 3:
                low, step = (known.get(op.operands[i]) or unknown(types[op.operands[i]]) for i in (0, 2))
                known[op.regions[0].blocks[0].arguments[0]] = Axis(
                    (1,), (gcd(low.divisibility[0], step.divisibility[0]),), (1,)
                )
            continue
        if op.results in branches:
            for result in op.results:
                known[result] = unknown(types[result])
            continue
        short = op.name.partition(".")[2]
        site = _Site(op, [known.get(value) or unknown(types[value]) for value in op.operands], types)
        for result in op.results:
            rank = max(len(shape_of(types[result])), 1)
            results = None if short in _NO_RULE else _RULES.get(short, _elementwise)(site)
            known[result] = (
                results if results is not None and len(results.contiguity) == rank else unknown(types[result])
            )


def unknown(kind: ValueType) -> Axis:
    """Nothing is known of a value of this type."""
    ones = (1,) * max(len(shape_of(kind)), 1)
    return Axis(ones, ones, ones)


def _joined(axis: Axis, other: Axis) -> Axis:
    if len(axis.contiguity) != len(other.contiguity):
        return axis
    pairs = [tuple(map(gcd, a, b)) for a, b in zip(axis[:3], other[:3], strict=True)]
    return Axis(pairs[0], pairs[1], pairs[2])


def _power(number: int) -> int:
    """The largest power of two that divides a number."""
    return min(number & -number, MOST) if number else MOST


def _constant(site: _Site) -> Axis | None:
    shape = shape_of(site.types[site.op.results[0]]) or (1,)
    match = _VALUE.search(site.op.attributes)
    ones = (1,) * len(shape)
    if match is None:
        return Axis(ones, ones, shape) if "dense<" not in site.op.attributes or "[" not in site.op.attributes else None
    value = int(match[1] or match[2] or (match[3] == "true"))
    return Axis(ones, (_power(value),) * len(shape), shape, value)


def _make_range(site: _Site) -> Axis | None:
    start, end = number_of(site.op.attributes, "start") or 0, number_of(site.op.attributes, "end")
    return None if end is None else Axis((max(end - start, 1),), (_power(start),), (1,))


def _splat(site: _Site) -> Axis | None:
    shape, item = shape_of(site.types[site.op.results[0]]), site.operands[0]
    return Axis((1,) * len(shape), (item.divisibility[0],) * len(shape), shape, item.value)


def _expand_dims(site: _Site) -> Axis | None:
    axis, item = number_of(site.op.attributes, "axis"), site.operands[0]
    if axis is None or axis > len(item.contiguity):
        return None
    least = min(item.divisibility) if all(c == 1 for c in item.contiguity) else 1
    contiguity, divisibility, constancy = (
        (*parts[:axis], new, *parts[axis:]) for parts, new in zip(item[:3], (1, least, 1), strict=True)
    )
    return Axis(contiguity, divisibility, constancy, item.value)


def _broadcast(site: _Site) -> Axis | None:
    before, after, item = (
        shape_of(site.types[site.op.operands[0]]),
        shape_of(site.types[site.op.results[0]]),
        site.operands[0],
    )
    if len(before) != len(after) or len(item.contiguity) != len(after):
        return None
    wide = [b != a for b, a in zip(before, after, strict=True)]
    return Axis(
        tuple(1 if w else c for w, c in zip(wide, item.contiguity, strict=True)), item.divisibility,
        tuple(a if w else c for w, a, c in zip(wide, after, item.constancy, strict=True)), item.value,
    )  # fmt: skip


def _transpose(site: _Site) -> Axis | None:
    order, item = (
        [int(n) for n in re.findall(r"\d+", site.op.attributes.partition("order = ")[2].partition(":")[2])],
        site.operands[0],
    )
    if sorted(order[: len(item.contiguity)]) != list(range(len(item.contiguity))):
        return None
    places = order[: len(item.contiguity)]
    contiguity, divisibility, constancy = (tuple(part[i] for i in places) for part in item[:3])
    return Axis(contiguity, divisibility, constancy, item.value)


def _of_two(rule: Callable[[Axis, Axis], Axis]) -> Callable[[_Site], Axis | None]:
    """The rule of an operation on two operands of as many dimensions; nothing is known where they are not."""

    def of_site(site: _Site) -> Axis | None:
        local = site.operands
        if len(local) < 2 or len(local[0].contiguity) != len(local[1].contiguity):
            return None
        return rule(local[0], local[1])

    return of_site


def _gcds(item: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(gcd, item, other))


@_of_two
def _add(a: Axis, b: Axis) -> Axis:
    return _sum(a, b, 1)


def _add_pointer(site: _Site) -> Axis | None:
    unit = int(pointee_b(site.types[site.op.operands[0]]))
    return _of_two(lambda a, b: _sum(a, b, unit))(site)


def _sum(a: Axis, b: Axis, unit: int) -> Axis:
    """A sum whose second term counts so many bytes."""
    contiguity = map(max, _gcds(a.constancy, b.contiguity), _gcds(a.contiguity, b.constancy))
    value = a.value + b.value if a.value is not None and b.value is not None else None
    scaled = tuple(min(d * unit, MOST) for d in b.divisibility)
    return Axis(tuple(contiguity), _gcds(a.divisibility, scaled), _gcds(a.constancy, b.constancy), value)


@_of_two
def _subtract(a: Axis, b: Axis) -> Axis:
    value = a.value - b.value if a.value is not None and b.value is not None else None
    return Axis(
        _gcds(a.contiguity, b.constancy), _gcds(a.divisibility, b.divisibility), _gcds(a.constancy, b.constancy), value
    )


@_of_two
def _multiply(a: Axis, b: Axis) -> Axis:
    if b.value == 1 or a.value == 1:
        return a if b.value == 1 else b
    # Of a run that counts up only the first is divisible; times a number, all its elements are by that number.
    left = [1 if c > 1 else d for c, d in zip(a.contiguity, a.divisibility, strict=True)]
    right = [1 if c > 1 else d for c, d in zip(b.contiguity, b.divisibility, strict=True)]
    product = tuple(min(x * y, MOST) for x, y in zip(left, right, strict=True))
    value = a.value * b.value if a.value is not None and b.value is not None else None
    return Axis((1,) * len(product), product, _gcds(a.constancy, b.constancy), value)


@_of_two
def _divide(a: Axis, b: Axis) -> Axis:
    if b.value == 1:
        return a
    runs = map(gcd, a.contiguity, _gcds(a.divisibility, b.divisibility))
    by_one = b.value is not None
    equal = tuple(max(gcd(x, y), run if by_one else 1)
                  for x, y, run in zip(a.constancy, b.constancy, runs, strict=True))  # fmt: skip
    value = a.value // b.value if a.value is not None and b.value else None
    return Axis((1,) * len(equal), (1,) * len(equal), equal, value)


@_of_two
def _remainder(a: Axis, b: Axis) -> Axis:
    both = _gcds(a.divisibility, b.divisibility)
    runs = tuple(gcd(c, d) for c, d in zip(a.contiguity, both, strict=True))
    return Axis(runs, both, _gcds(a.constancy, b.constancy))


@_of_two
def _compare(a: Axis, b: Axis) -> Axis:
    equal = []
    for i in range(len(a.contiguity)):
        local = gcd(a.constancy[i], b.constancy[i])
        both = gcd(a.divisibility[i], b.divisibility[i])
        local = max(
            local, gcd(gcd(a.contiguity[i], b.constancy[i]), both), gcd(gcd(b.contiguity[i], a.constancy[i]), both)
        )
        equal.append(local)
    return Axis((1,) * len(equal), (1,) * len(equal), tuple(equal))


def _same(site: _Site) -> Axis | None:
    return site.operands[0] if site.operands else None


def _elementwise(site: _Site) -> Axis | None:
    """Equal inputs give equal outputs, for whatever works element by element."""
    shape = shape_of(site.types[site.op.results[0]])
    if not site.operands or any(
        shape_of(site.types[value]) != shape for value in site.op.operands if not is_pointer(site.types[value])
    ):
        return None
    equal = site.operands[0].constancy
    for operand in site.operands[1:]:
        equal = _gcds(equal, operand.constancy)
    return Axis((1,) * len(equal), (1,) * len(equal), equal)


_RULES: dict[str, Callable[[_Site], Axis | None]] = {
    "constant": _constant, "make_range": _make_range, "splat": _splat, "expand_dims": _expand_dims, "broadcast": _broadcast,
    "trans": _transpose, "addi": _add, "addptr": _add_pointer, "subi": _subtract, "muli": _multiply, "divsi": _divide,
    "divui": _divide,
    "remsi": _remainder, "remui": _remainder, "cmpi": _compare, "extsi": _same, "extui": _same, "trunci": _same,
    "index_cast": _same, "bitcast": _same, "int_to_ptr": _same, "ptr_to_int": _same,
}  # fmt: skip

_NO_RULE = frozenset(
    ("dot", "reduce", "scan", "reshape", "join", "split", "gather", "histogram", "atomic_rmw", "atomic_cas", "cat")
)
"""Nothing is known of what these give."""
