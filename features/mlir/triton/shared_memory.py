"""Shared memory a Triton function takes per block: what lies there, from which step to which, and the most at any time.

Tiles of loops are there once per stage in flight, operands of products until the product has them, and blocks that
change their layout while they do (Triton, lib/Dialect/TritonGPU/Transforms/Pipeliner and
lib/Analysis/Allocation.cpp). Which of these the compiler avoids, since threads already hold what they need, cannot be
seen in the text: `candidates` are the answers that come out either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from ..types.graph import Op, ValueType
from .layouts import Layouts, Product
from .program_order import Flow, itemsize_b, roots_of, shape_of

CANDIDATES = (
    "nothing", "exchange", "one operand", "operands", "one operand or result", "operands or result",
    "operands or moved", "result", "reduced", "scanned", "moved", "in flight", "all kept", "narrow",
)  # fmt: skip
"""How an amount comes about, in the order of `candidates`: in flight always counts; `one operand` is the larger of
two that are there one after the other, `result` a product's result on its way to memory, `exchange` what reductions
exchange between warps, `narrow` what accesses of different widths exchange."""

_BARRIER_B = 8
"""A barrier of the tensor memory accelerator (PTX ISA, "Parallel Synchronization and Communication Instructions:
mbarrier")."""

DESCRIPTOR_LOADS = frozenset(("tt.descriptor_load", "tt.descriptor_gather"))

Piece = tuple[float, int, int]
"""Bytes, the first step they lie there, and the last."""


def block_b(value: int, types: Sequence[ValueType]) -> float:
    """Bytes of a block as it lies in shared memory, where a truth value takes a whole one."""
    kind = types[value]
    return prod(shape_of(kind)) * max(itemsize_b(kind), 1.0)


def most(pieces: Iterable[Piece]) -> float:
    """The most bytes at any step."""
    ends: list[tuple[int, int, float]] = []
    for amount, first, last in pieces:
        ends += [(first, 1, amount), (last + 1, 0, -amount)]
    results = now = 0.0
    for _, _, change in sorted(ends):
        now += change
        results = max(results, now)
    return results


def in_flight(
    flow: Flow, types: Sequence[ValueType], layouts: Layouts, steps: frozenset[int], stages: int
) -> list[Piece]:
    """Tiles that loops keep in flight: a further one where the product reads it from shared memory while it runs.

    Args:
        flow: The function's operations in order.
        types: Types by value.
        layouts: How blocks are spread over threads.
        steps: Positions of the loads that loops start ahead.
        stages: Pipeline stages.
    """
    results = []
    in_place = _read_in_place(flow, layouts)
    n_described = max(sum(flow.steps[i].name in DESCRIPTOR_LOADS for i in steps), 1)
    for i in sorted(steps):
        op, loop = flow.steps[i], flow.loops[flow.loop_of[i]]
        buffers = stages if op.results[0] in in_place else stages - 1
        barrier = _BARRIER_B * buffers / n_described
        size = block_b(op.results[0], types) * buffers + (barrier if op.name in DESCRIPTOR_LOADS else 0.0)
        results.append((size, loop.start, loop.end))
    return results


def _read_in_place(flow: Flow, layouts: Layouts) -> set[int]:
    """Values that products of four warps read from shared memory, with what they are the transposes of."""
    results = {
        value for i, item in layouts.products.items() if item.kind == "wgmma" for value in flow.steps[i].operands[:2]
    }
    for op in reversed(flow.steps):
        if op.name == "tt.trans" and not results.isdisjoint(op.results):
            results.update(op.operands)
    return results


def candidates(
    flow: Flow, types: Sequence[ValueType], layouts: Layouts, tiles: Sequence[Piece], copied: set[int],
    exchanges: Mapping[int, float], scans: Mapping[int, float],
) -> list[float]:  # fmt: skip
    """Bytes of shared memory by each way of `CANDIDATES`.

    `copied` are values that `tiles` hold; `exchanges` and `scans` are bytes that reductions and scans exchange, by
    step.
    """
    pairs = list(_operands(flow, types, layouts, copied))
    both = [piece for pair in pairs for piece in pair]
    # One after the other: the second is not yet there when the first is read.
    items = [max(pair) for pair in pairs if pair]
    exchange: list[Piece] = [(amount, i, i) for i, amount in exchanges.items() if amount]
    scanned: list[Piece] = [(amount, i, i) for i, amount in scans.items() if amount]
    base = [*tiles, *_descriptors(flow, types), *exchange, *scanned]
    result, reduced, moved, narrow = (
        _stored(flow, types, layouts),
        _reduced(flow, types),
        _moved(flow, types),
        [(b, i, i) for i, b in conversions(flow, types, layouts).items()],
    )
    ways: tuple[Sequence[Piece], ...] = (
        [], exchange, [*base, *items], [*base, *both], [*base, *items, *result], [*base, *both, *result], [*base, *both,
        *moved], result,
        [*base, *reduced], scanned, [*base, *moved], tiles, [*base, *both, *_lasting(both, flow), *result], [*base,
        *narrow],
    )  # fmt: skip
    return [most(way) for way in ways]


def _operands(flow: Flow, types: Sequence[ValueType], layouts: Layouts, copied: set[int]) -> Iterable[list[Piece]]:
    created = {value: i for i, op in enumerate(flow.steps) for value in op.results}
    root = roots_of(flow, _TRANSPOSES)
    for i, product in layouts.products.items():
        op, pair = flow.steps[i], []
        for side, value in enumerate(op.operands[:2]):
            source = root.get(value, value)
            if source in copied or value in copied or _in_registers(product, side, value, layouts):
                continue
            begin, last, loop = created.get(source, 0), i, flow.loop_of[i]
            while loop >= 0 and flow.loops[loop].start > begin:
                last, loop = flow.loops[loop].end, flow.loops[loop].parent
            pair.append((block_b(value, types), begin, last))
        yield pair


_TRANSPOSES = frozenset(("tt.trans",))


def _in_registers(product: Product, side: int, value: int, layouts: Layouts) -> bool:
    """Whether a product takes the result of another out of registers: as its left operand, whole rows to a warp."""
    return side == 0 and value in layouts.from_product and product.warps[1] == 1


def _lasting(pieces: Sequence[Piece], flow: Flow) -> list[Piece]:
    """What operands would take on top, did those of different products not share their place."""
    last = len(flow.steps)
    return [(amount, end + 1, last) for amount, _, end in pieces if end < last]


def _stored(flow: Flow, types: Sequence[ValueType], layouts: Layouts) -> list[Piece]:
    return [
        (block_b(op.operands[1], types), i, i) for i, op in enumerate(flow.steps)
        if op.name == "tt.store" and len(op.operands) > 1 and op.operands[1] in layouts.from_product
    ]  # fmt: skip


def _reduced(flow: Flow, types: Sequence[ValueType]) -> list[Piece]:
    """Results of reductions whose threads are not those that store them."""
    reached: set[int] = set()
    results = []
    for i, op in enumerate(flow.steps):
        if op.name == "tt.reduce":
            reached.update(op.results)
        elif op.name == "tt.store" and len(op.operands) > 1 and op.operands[1] in reached:
            results.append((block_b(op.operands[1], types), i, i))
        elif not reached.isdisjoint(op.operands) and op.name not in ("tt.expand_dims", "tt.broadcast", "tt.dot"):
            reached.update(op.results)
    return results


def _moved(flow: Flow, types: Sequence[ValueType]) -> list[Piece]:
    return [
        (block_b(op.operands[0], types), i, i) for i, op in enumerate(flow.steps) if op.name in _MOVES and op.operands
    ]


_MOVES = frozenset(("tt.trans", "tt.gather", "tt.reshape", "tt.join", "tt.split", "tt.cat", "tt.histogram"))


def conversions(flow: Flow, types: Sequence[ValueType], layouts: Layouts) -> dict[int, float]:
    """Stores by step whose threads hold other elements than those that computed them, with the bytes a round through
    shared memory takes.

    A store gives each thread at most 128 bits of neighbours, or it would leave gaps, though loads of narrower
    elements gave it more.
    """
    results = {}
    for i, access in layouts.accesses.items():
        op = flow.steps[i]
        shape = shape_of(types[op.operands[0]])
        if op.name == "tt.load" or not shape or len(op.operands) < 2 or op.operands[1] in layouts.from_product:
            continue
        widest, spread = layouts.widths[shape], layouts.spreads.get(op.operands[1])
        if spread is None or (widest.run, widest.along) == (access.run, access.along):
            continue
        size = block_b(op.operands[1], types)
        threads = prod(spread.lanes) * prod(spread.warps)
        local = size if widest.along != access.along else threads * widest.run * size / prod(shape)
        results[i] = min(local, size)
    return results


def _descriptors(flow: Flow, types: Sequence[ValueType]) -> list[Piece]:
    """Blocks on their way through the tensor memory accelerator."""
    results: list[Piece] = []
    for i, op in enumerate(flow.steps):
        if op.name == "tt.descriptor_store" and len(op.operands) > 1 and shape_of(types[op.operands[1]]):
            results.append((block_b(op.operands[1], types), i, i))
    return results


def exchanged(op: Op, types: Sequence[ValueType], layouts: Layouts, axis: int) -> float:
    """Bytes that warps exchange in a reduction or scan along `axis`; 0 where each warp has whole rows."""
    value = op.operands[0]
    shape, spread = shape_of(types[value]), layouts.spreads.get(value)
    if not shape or spread is None or spread.warps[axis] < 2:
        return 0.0
    # A warp beyond the end of the block holds what another holds.
    warps = min(spread.warps[axis], max(shape[axis] // max(spread.lanes[axis], 1), 1))
    rest = prod(shape) / max(shape[axis], 1)
    return rest * warps * sum(max(itemsize_b(types[v]), 1.0) for v in op.operands) if warps > 1 else 0.0
