"""How often loops run: trip counts from bounds, and the counting pattern that while loops are written in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, prod

from ..types import attributes
from ..types.attributes import AffineMap, parse_map
from ..types.graph import Block, Op, ValueType
from .op_rule import Cost

Number = Callable[[int], float | None]
"""The number a value is known to be, by value number of the text; None where it is not known."""

_DYNAMIC = -(2**63)
"""What stands in a static list of bounds where the bound is an operand (ShapedType::kDynamic)."""

_RANGE = re.compile(r"=\s*(-?\d+)\s+to\s+(-?\d+)(?:\s+step\s+(\d+))?")
_MOST = 2.0**60
"""Trip counts are cut here, so that products of them stay finite."""


@dataclass(frozen=True, slots=True)
class Counter:
    """The counter of a loop.

    Attributes:
        value: Its value number, None where it has none.
        trips: How often it steps, None where that is not known.
        middle: The middle of its range, None where that is not known.
    """

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


def _written_range(op: Op, arguments: Sequence[int]) -> tuple[Counter, ...]:
    match = _RANGE.search(op.attributes)
    if match is None:
        raise ValueError(op.attributes)
    lower, upper, step = match.groups()
    return (counted(float(lower), float(upper), float(step or 1), arguments[0] if arguments else None),)


def _scf_for(op: Op, arguments: Sequence[int], number: Number) -> tuple[Counter, ...]:
    if len(op.operands) < 3:
        return _written_range(op, arguments)
    lower, upper, step = (number(value) for value in op.operands[:3])
    return (counted(lower, upper, step, arguments[0] if arguments else None),)


def _affine_for(op: Op, arguments: Sequence[int], number: Number) -> tuple[Counter, ...]:
    lower_map = parse_map(attributes.value(op.attributes, "lowerBoundMap") or "")
    upper_map = parse_map(attributes.value(op.attributes, "upperBoundMap") or "")
    if lower_map is None or upper_map is None:
        return _written_range(op, arguments)
    segments = attributes.integers(op.attributes, "operandSegmentSizes") or (0, 0, 0)
    known = [number(value) for value in op.operands[: segments[0] + segments[1]]]
    lower = _extreme(lower_map.values(known[: segments[0]]), max)
    upper = _extreme(upper_map.values(known[segments[0] :]), min)
    step = attributes.integer(op.attributes, "step") or 1
    return (counted(lower, upper, float(step), arguments[0] if arguments else None),)


def _extreme(values: Iterable[float | None], choose: Callable[[list[float]], float]) -> float | None:
    items = [value for value in values if value is not None]
    return choose(items) if items else None


def _affine_parallel(op: Op, arguments: Sequence[int], number: Number) -> tuple[Counter, ...]:
    lower = _bounds(op, "lowerBoundsMap", number)
    upper = _bounds(op, "upperBoundsMap", number)
    steps = attributes.integers(op.attributes, "steps") or (1,) * len(lower)
    return tuple(counted(a, b, step, value) for a, b, step, value in zip(lower, upper, steps, arguments, strict=True))


def _bounds(op: Op, name: str, number: Number) -> tuple[float | None, ...]:
    results: AffineMap | None = parse_map(attributes.value(op.attributes, name) or "")
    if results is None:
        raise ValueError(name)
    return results.values([number(value) for value in op.operands])


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
    results = tuple(counted(a, b, c, value) for a, b, c, value in zip(lower, upper, step, arguments, strict=False))
    return results or (Counter(None, None),)


_CALLS_FOR_MORE = {"LT": 0, "LE": 1, "NE": 0, "GT": 0, "GE": 1}
_PREDICATES = {0: "EQ", 1: "NE", 2: "LT", 3: "LE", 4: "GT", 5: "GE", 6: "LT", 7: "LE", 8: "GT", 9: "GE"}
"""Values of arith.cmpi's predicate (ArithBase.td), signed and unsigned."""


def while_trips(condition: Block, body: Block, carried: Sequence[float | None], number: Number) -> float | None:
    """How often a while loop runs that counts: `i < bound`, and `i + step` in its body; None for any other.

    `carried` are the numbers the loop starts with, as far as known, in the order of the blocks' arguments. JAX writes
    `scan` and `fori_loop` so. `number` must know constants of both blocks.
    """
    created = {result: op for op in condition.ops for result in op.results}
    end = condition.ops[-1] if condition.ops else None
    compare = created.get(end.operands[0]) if end is not None and end.operands else None
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
        match = re.search(r"\b(LT|LE|NE|GT|GE|[su]l[te]|[su]g[te]|ne)\b", compare.attributes)
        direction = match[1][-2:].upper() if match else ""
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


_LOADS = frozenset({"affine.load", "memref.load", "tensor.extract"})
_STORES = frozenset({"affine.store", "memref.store"})
_PRODUCTS = frozenset({"arith.mulf", "arith.muli"})
_SUMS = frozenset({"arith.addf", "arith.addi"})
_CASTS = frozenset(
    {"arith.extf", "arith.truncf", "arith.sitofp", "arith.uitofp", "arith.extsi", "arith.extui", "arith.trunci"}
)
_ENDS = frozenset({"affine.yield", "scf.yield"})

Resolve = Callable[[int], int]
"""From a value of the text to one of the program."""


@dataclass(frozen=True, slots=True)
class ProductNest:
    """A nest of loops that is one matrix product.

    Attributes:
        cost: Cost of one run of it.
        operands: Value numbers of the memory it reads.
        written: Value number of the memory it adds to.
        steps: Iterations of the loops around it that make one run.
    """

    cost: Cost
    operands: tuple[int, ...]
    written: int | None
    steps: float


def product_nest(
    body: Block, loops: Sequence[Counter], resolve: Resolve, types: Sequence[ValueType]
) -> ProductNest | None:
    """The product that an innermost loop's body and the loops around it are; None where they are something else.

    Every loop's counter is one dimension, told apart by which of A, B and C it indexes. Bytes are those of the memory
    itself, each array once: what a cache or a compiler's tiling reuses is not read again.
    """
    created = {result: op for op in body.ops for result in op.results}
    products = [op for op in body.ops if op.name in _PRODUCTS and types[op.results[0]].dtype != "index"]
    if len(products) != 1 or any(op.regions for op in body.ops):
        return None
    factors = [_through_casts(value, created) for value in products[0].operands]
    if len(factors) != 2 or any(op is None or op.name not in _LOADS for op in factors):
        return None
    first, second = (op for op in factors if op is not None)
    sums = [op for op in body.ops if op.name in _SUMS and _reaches(op, products[0], created)]
    if len(sums) != 1:
        return None
    counters = {counter.value: position for position, counter in enumerate(loops) if counter.value is not None}

    def indices(op: Op, first_index: int) -> set[int]:
        return _counters(op.operands[first_index:], created, counters, resolve)

    target = _target(body, sums[0], created)
    if target is None:
        return None
    a, b = indices(first, 1), indices(second, 1)
    c = indices(target, 2) if target.name in _STORES else (a | b) - {len(loops) - 1}
    loops_of = _dimensions(a, b, c, loops)
    if loops_of is None:
        return None
    memory = [resolve(op.operands[0]) for op in (first, second)]
    written = resolve(target.operands[1]) if target.name in _STORES else None
    read = sum(types[value].nbytes for value in dict.fromkeys((*memory, *(() if written is None else (written,)))))
    # A sum handed on by the loop is in a register; the store that takes it from there counts its bytes.
    back = types[written].nbytes if written is not None else 0.0
    operands = (*memory, *(() if written is None else (written,)))
    cost = Cost("contraction", types[memory[0]].dtype, 2.0 * prod(loops_of), 0.0, read, back, loops_of, {
        "operator": "loop_nest", "lhs_transposed": False, "rhs_transposed": False,
    }, "")  # fmt: skip
    return ProductNest(cost, operands, written, prod(loops[position].trips or 1.0 for position in a | b | c))


def _dimensions(
    a: set[int], b: set[int], c: set[int], loops: Sequence[Counter]
) -> tuple[float, float, float, float] | None:
    """`(batch, m, n, k)`, None where nothing is summed over or a trip count is not known."""
    if not (a | b) - c or any(loops[position].trips is None for position in a | b | c):
        return None

    def size(positions: Iterable[int]) -> float:
        return prod((loops[position].trips or 1.0 for position in positions), start=1.0)

    return size(a & b & c), size((a & c) - b), size((b & c) - a), size((a | b) - c)


def _through_casts(value: int, producers: dict[int, Op]) -> Op | None:
    op = producers.get(value)
    while op is not None and op.name in _CASTS and op.operands:
        op = producers.get(op.operands[0])
    return op


def _reaches(total: Op, product: Op, producers: dict[int, Op]) -> bool:
    return any(_through_casts(value, producers) is product for value in total.operands)


def _target(body: Block, total: Op, producers: dict[int, Op]) -> Op | None:
    """What takes the sum: the store to C, or the end of a loop that hands it on."""
    for op in body.ops:
        if op.name in _STORES and len(op.operands) > 1 and _through_casts(op.operands[0], producers) is total:
            return op
        if op.name in _ENDS and len(op.operands) == 1 and _through_casts(op.operands[0], producers) is total:
            return op
    return None


def _counters(values: Sequence[int], producers: dict[int, Op], counters: dict[int, int], resolve: Resolve) -> set[int]:
    """Loops whose counters indices are made of, directly or by arithmetic in the body."""
    results: set[int] = set()
    waiting, seen = list(values), set(values)
    while waiting:
        value = waiting.pop()
        position = counters.get(resolve(value))
        if position is not None:
            results.add(position)
        op = producers.get(value)
        more = [inner for inner in (op.operands if op is not None else ()) if inner not in seen]
        seen.update(more)
        waiting += more
    return results
