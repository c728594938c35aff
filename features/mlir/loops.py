"""How often loops run: trip counts from bounds, and the counting pattern that while loops are written in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from . import attributes
from .affine import AffineMap, parse_map
from .graph import Block, Op

Number = Callable[[int], float | None]
"""The number a value is known to be, by value number of the text; None where it is not known."""

_DYNAMIC = -(2**63)
"""What stands in a static list of bounds where the bound is an operand (ShapedType::kDynamic)."""

_RANGE = re.compile(r"=\s*(-?\d+)\s+to\s+(-?\d+)(?:\s+step\s+(\d+))?")
_MOST = 2.0**60
"""Trip counts are cut here, so that products of them stay finite."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A loop's counter: its value, how often it steps (None: not known), and the middle of what it runs over."""

    value: int | None
    trips: float | None
    middle: float | None = None


def counted(lower: float | None, upper: float | None, step: float | None, value: int | None) -> Counter:
    """The counter that goes from `lower` up to `upper`."""
    if lower is None or upper is None or not step or step < 0:
        return Counter(value, None)
    trips = min(max(float(ceil((upper - lower) / step)), 0.0), _MOST)
    return Counter(value, trips, (lower + upper - step) / 2)


def for_counters(op: Op, number: Number) -> tuple[Counter, ...]:
    """Counters of `scf.for`, `affine.for`, `affine.parallel`, `scf.parallel` and `scf.forall`."""
    blocks = op.regions[0].blocks if op.regions else []
    arguments = blocks[0].arguments if blocks else ()
    reader = {
        "scf.for": _scf_for,
        "affine.for": _affine_for,
        "affine.parallel": _affine_parallel,
        "scf.forall": _forall,
    }.get(op.name, _parallel)
    try:
        return reader(op, arguments, number)
    except (IndexError, KeyError, ValueError, TypeError):
        # Bounds that are not there: the loop is as good as one without known bounds.
        return (Counter(arguments[0] if arguments else None, None),)


def first_carried(op: Op) -> int:
    """Position of the first operand that a counting loop carries around."""
    if op.name == "scf.for":
        return 3
    segments = attributes.integers(op.attributes, "operandSegmentSizes")
    return sum(segments[:-1]) if segments else len(op.operands) - len(op.results)


def _written_range(op: Op, arguments: Sequence[int]) -> tuple[Counter, ...] | None:
    found = _RANGE.search(op.attributes)
    if found is None:
        return None
    lower, upper, step = found.groups()
    return (counted(float(lower), float(upper), float(step or 1), arguments[0] if arguments else None),)


def _scf_for(op: Op, arguments: Sequence[int], number: Number) -> tuple[Counter, ...]:
    if len(op.operands) < 3:
        return _written_range(op, arguments) or (Counter(arguments[0] if arguments else None, None),)
    lower, upper, step = (number(value) for value in op.operands[:3])
    return (counted(lower, upper, step, arguments[0] if arguments else None),)


def _affine_for(op: Op, arguments: Sequence[int], number: Number) -> tuple[Counter, ...]:
    lower_map = parse_map(attributes.value(op.attributes, "lowerBoundMap") or "")
    upper_map = parse_map(attributes.value(op.attributes, "upperBoundMap") or "")
    if lower_map is None or upper_map is None:
        return _written_range(op, arguments) or (Counter(arguments[0] if arguments else None, None),)
    segments = attributes.integers(op.attributes, "operandSegmentSizes") or (0, 0, 0)
    known = [number(value) for value in op.operands[: segments[0] + segments[1]]]
    lower = _extreme(lower_map.values(known[: segments[0]]), max)
    upper = _extreme(upper_map.values(known[segments[0] :]), min)
    step = attributes.integer(op.attributes, "step") or 1
    return (counted(lower, upper, float(step), arguments[0] if arguments else None),)


def _extreme(values: Iterable[float | None], choose: Callable[[list[float]], float]) -> float | None:
    found = [value for value in values if value is not None]
    return choose(found) if found else None


def _affine_parallel(op: Op, arguments: Sequence[int], number: Number) -> tuple[Counter, ...]:
    lower = _bounds(op, "lowerBoundsMap", number)
    upper = _bounds(op, "upperBoundsMap", number)
    steps = attributes.integers(op.attributes, "steps") or (1,) * len(lower)
    return tuple(counted(a, b, step, value) for a, b, step, value in zip(lower, upper, steps, arguments, strict=True))


def _bounds(op: Op, name: str, number: Number) -> tuple[float | None, ...]:
    found: AffineMap | None = parse_map(attributes.value(op.attributes, name) or "")
    if found is None:
        raise ValueError(name)
    return found.values([number(value) for value in op.operands])


def _parallel(op: Op, arguments: Sequence[int], number: Number) -> tuple[Counter, ...]:
    count = len(arguments)
    lower, upper, step = (op.operands[part * count : (part + 1) * count] for part in range(3))
    return tuple(
        counted(number(a), number(b), number(c), value)
        for a, b, c, value in zip(lower, upper, step, arguments, strict=True)
    )


def _forall(op: Op, arguments: Sequence[int], number: Number) -> tuple[Counter, ...]:
    segments = attributes.integers(op.attributes, "operandSegmentSizes") or (0, 0, 0, 0)
    ends = [sum(segments[: part + 1]) for part in range(3)]
    groups = [list(op.operands[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    bounds: list[list[float | None]] = []
    for name, operands in zip(("staticLowerBound", "staticUpperBound", "staticStep"), groups, strict=True):
        static = attributes.integers(op.attributes, name) or ()
        bounds.append([number(operands.pop(0)) if size == _DYNAMIC else float(size) for size in static])
    lower, upper, step = bounds
    found = tuple(counted(a, b, c, value) for a, b, c, value in zip(lower, upper, step, arguments, strict=False))
    return found or (Counter(None, None),)


_CALLS_FOR_MORE = {"LT": 0, "LE": 1, "NE": 0, "GT": 0, "GE": 1}
_PREDICATES = {0: "EQ", 1: "NE", 2: "LT", 3: "LE", 4: "GT", 5: "GE", 6: "LT", 7: "LE", 8: "GT", 9: "GE"}
"""Values of arith.cmpi's predicate (ArithBase.td), signed and unsigned."""


def while_trips(condition: Block, body: Block, carried: Sequence[float | None], number: Number) -> float | None:
    """How often a while loop runs that counts: `i < bound`, and `i + step` in its body; None for any other.

    `carried` are the numbers the loop starts with, as far as known, in the order of the blocks' arguments. JAX writes
    `scan` and `fori_loop` so. `number` must know constants of both blocks.
    """
    made = {result: op for op in condition.ops for result in op.results}
    end = condition.ops[-1] if condition.ops else None
    compare = made.get(end.operands[0]) if end is not None and end.operands else None
    if (
        compare is None
        or len(compare.operands) != 2
        or ("cmp" not in compare.name and not compare.name.endswith("compare"))
    ):
        return None
    direction = attributes.word(compare.attributes, "comparison_direction")
    if compare.name.startswith("arith."):
        direction = _PREDICATES.get(attributes.integer(compare.attributes, "predicate") or 0, "")
    if not direction:
        found = re.search(r"\b(LT|LE|NE|GT|GE|[su]l[te]|[su]g[te]|ne)\b", compare.attributes)
        direction = found[1][-2:].upper() if found else ""
    place = {value: position for position, value in enumerate(condition.arguments)}
    left, right = compare.operands
    counter, limit = (left, right) if left in place else (right, left)
    if counter not in place or direction not in _CALLS_FOR_MORE or place[counter] >= len(carried):
        return None
    start, bound = carried[place[counter]], _bound(limit, place, condition, body, carried, number)
    step = _step(place[counter], body, number)
    if start is None or bound is None or not step:
        return None
    return min(max(float(ceil((abs(bound - start) + _CALLS_FOR_MORE[direction]) / abs(step))), 0.0), _MOST)


def _bound(
    limit: int, place: dict[int, int], condition: Block, body: Block, carried: Sequence[float | None], number: Number
) -> float | None:
    """The number a counter is compared with: a constant, or a value that the body hands on unchanged."""
    if limit not in place:
        return number(limit)
    position, handed = place[limit], body.ops[-1].operands if body.ops else ()
    unchanged = (
        position < len(handed) and position < len(body.arguments) and handed[position] == body.arguments[position]
    )
    return carried[position] if unchanged and len(condition.arguments) == len(carried) else None


def _step(position: int, body: Block, number: Number) -> float | None:
    """What the body adds to the counter."""
    handed = body.ops[-1].operands if body.ops else ()
    if position >= len(handed) or position >= len(body.arguments):
        return None
    for op in reversed(body.ops):
        if handed[position] in op.results:
            short = op.name.rpartition(".")[2]
            if (
                short not in ("add", "addi", "subtract", "subi")
                or len(op.operands) != 2
                or body.arguments[position] not in op.operands
            ):
                return None
            other = op.operands[1] if op.operands[0] == body.arguments[position] else op.operands[0]
            return number(other)
    return None
