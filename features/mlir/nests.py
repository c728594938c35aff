"""Matrix products written as loops: a load of A, a load of B, a multiply-add into C, whatever the loops around are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

from .graph import Block, Op, ValueType
from .loops import Counter
from .site import Cost

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
    """A product found: what one run of it costs, the memory it reads and the memory it adds to.

    `steps` is how many iterations of the loops around it make one run.
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
    made = {result: op for op in body.ops for result in op.results}
    products = [op for op in body.ops if op.name in _PRODUCTS and types[op.results[0]].dtype != "index"]
    if len(products) != 1 or any(op.regions for op in body.ops):
        return None
    factors = [_through_casts(value, made) for value in products[0].operands]
    if len(factors) != 2 or any(op is None or op.name not in _LOADS for op in factors):
        return None
    first, second = (op for op in factors if op is not None)
    sums = [op for op in body.ops if op.name in _SUMS and _reaches(op, products[0], made)]
    if len(sums) != 1:
        return None
    counters = {counter.value: position for position, counter in enumerate(loops) if counter.value is not None}

    def indices(op: Op, first_index: int) -> set[int]:
        return _counters(op.operands[first_index:], made, counters, resolve)

    target = _target(body, sums[0], made)
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


def _through_casts(value: int, made: dict[int, Op]) -> Op | None:
    op = made.get(value)
    while op is not None and op.name in _CASTS and op.operands:
        op = made.get(op.operands[0])
    return op


def _reaches(total: Op, product: Op, made: dict[int, Op]) -> bool:
    return any(_through_casts(value, made) is product for value in total.operands)


def _target(body: Block, total: Op, made: dict[int, Op]) -> Op | None:
    """What takes the sum: the store to C, or the end of a loop that hands it on."""
    for op in body.ops:
        if op.name in _STORES and len(op.operands) > 1 and _through_casts(op.operands[0], made) is total:
            return op
        if op.name in _ENDS and len(op.operands) == 1 and _through_casts(op.operands[0], made) is total:
            return op
    return None


def _counters(values: Sequence[int], made: dict[int, Op], counters: dict[int, int], resolve: Resolve) -> set[int]:
    """Loops whose counters indices are made of, directly or by arithmetic in the body."""
    found: set[int] = set()
    waiting, seen = list(values), set(values)
    while waiting:
        value = waiting.pop()
        position = counters.get(resolve(value))
        if position is not None:
            found.add(position)
        op = made.get(value)
        more = [inner for inner in (op.operands if op is not None else ()) if inner not in seen]
        seen.update(more)
        waiting += more
    return found
