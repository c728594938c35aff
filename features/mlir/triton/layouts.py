"""How a Triton compiler spreads the blocks of a function over threads: elements each thread holds along each dimension.

Loads and stores spread a block so that a thread moves up to 128 bits at once (Triton,
lib/Dialect/TritonGPU/Transforms/Coalesce.cpp, and `BlockedEncodingAttr` in TritonGPUAttrDefs.td); products spread
theirs as the tensor cores want it (AccelerateMatmul.cpp). What is computed from a block is spread as the block is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..types.graph import Op, ValueType
from .axis_info import Axis, unknown
from .program_order import WARP, Flow, number_of, pointee_b, shape_of

_WIDEST_B = 16
"""Bytes of the widest load or store of a thread, 128 bits (PTX ISA, `ld.global.v4.b32`)."""
_ELEMENTWISE_KEEPS = frozenset(("tt.reduce", "tt.scan", "tt.expand_dims", "tt.broadcast", "tt.splat", "tt.dot",
    "tt.trans", "tt.reshape", "tt.load", "tt.join", "tt.split", "tt.gather", "tt.cat", "tt.histogram", "scf.for",
    "scf.if",
                                "scf.while"))  # fmt: skip

MEMORY_OPS = frozenset(("tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas"))
"""Operations on an array of addresses."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How a block lies over the threads, along each dimension.

    Attributes:
        per_thread: Elements of a thread.
        lanes: Lanes of a warp that share the dimension.
        warps: Warps that share it.
    """

    per_thread: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]

    def without(self, axis: int) -> Spread:
        """One dimension left out, as after a reduction along it."""
        return Spread(*((*part[:axis], *part[axis + 1 :]) for part in (self.per_thread, self.lanes, self.warps)))

    def with_one(self, axis: int) -> Spread:
        """One more dimension, of size one."""
        return Spread(*((*part[:axis], 1, *part[axis:]) for part in (self.per_thread, self.lanes, self.warps)))

    def narrowed(self, shape: Sequence[int]) -> Spread:
        """The same over a block that has size one where `shape` has."""
        return Spread(*(tuple(1 if size == 1 else item for size, item in zip(shape, part, strict=True))
                        for part in (self.per_thread, self.lanes, self.warps)))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Access:
    """A load, store or atomic.

    Attributes:
        width: Elements a thread moves with one instruction.
        along: The dimension along which they lie.
        run: Neighbours its layout would give to one thread, were there no finer mask.
    """

    width: int
    along: int
    run: int


@dataclass(frozen=True, slots=True)
class Product:
    """A product as tensor cores run it.

    Attributes:
        m: Rows of a block.
        n: Columns of a block.
        k: Depth of a block.
        batch: Products of a block.
        kind: `wgmma` (four warps together, operands in shared memory), `mma` (a warp, operands in registers) or `fma` (no
            tensor core).
        warps: Warps along `m` and `n`.
        bits: Bits of an operand element.
        instructions: Instructions of one warp.
        parts: Parts an operand is split into.
    """

    m: int
    n: int
    k: int
    batch: int
    kind: str
    warps: tuple[int, int]
    bits: float
    instructions: float
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Layouts:
    """How each block is spread over the threads.

    Attributes:
        spreads: Spread of a value, by its number.
        accesses: Accesses by the position of their step.
        products: Products by the position of their step.
        from_product: Values that are spread as the result of a product.
        widths: Accesses by shape.
    """

    spreads: Mapping[int, Spread]
    accesses: Mapping[int, Access]
    products: Mapping[int, Product]
    from_product: frozenset[int]
    widths: Mapping[tuple[int, ...], Access]


def layouts_of(
    flow: Flow, types: Sequence[ValueType], axes: Mapping[int, Axis], capability: int, num_warps: int
) -> Layouts:
    """Layouts of the blocks of a function for a compute capability (90) and so many warps.

    Args:
        flow: The function's operations in order.
        types: Types by value.
        axes: What is known of values along each dimension.
        capability: Compute capability of the target, such as 90.
        num_warps: Warps of a block.
    """
    spreads: dict[int, Spread] = {}
    cored: set[int] = set()
    accesses = {i: access_of(op, types, axes, num_warps) for i, op in enumerate(flow.steps) if op.name in MEMORY_OPS}
    n_dots = sum(op.name == "tt.dot" for op in flow.steps)
    products = {
        i: product for i, op in enumerate(flow.steps) if op.name == "tt.dot"
        if (product := _product(op, types, capability, num_warps, n_dots <= _MOST_CHAINED and _is_chained(flow,
        op))) is not None
    }  # fmt: skip
    widths = _widths(flow, types, accesses)
    by_shape = {shape: blocked(shape, num_warps, item.run, item.along) for shape, item in widths.items()}
    _forward(flow, types, products, spreads, cored, by_shape, num_warps)
    for i in accesses:
        for value in flow.steps[i].operands:
            if (shape := shape_of(types[value])) in by_shape:
                spreads.setdefault(value, by_shape[shape])
    _backward(flow, types, spreads)
    for value in {value for op in flow.steps for value in (*op.results, *op.operands)}:
        shape = shape_of(types[value])
        if shape and (value not in spreads or len(spreads[value].per_thread) != len(shape)):
            spreads[value] = by_shape.get(shape) or blocked(shape, num_warps, 1, len(shape) - 1)
    return Layouts(spreads, accesses, products, frozenset(cored), widths)


_MOST_CHAINED = 32
"""With more products than this none is looked at for what it leads to: it takes the square of their number."""


def blocked(shape: Sequence[int], num_warps: int, width: int, along: int) -> Spread:
    """A blocked layout whose threads hold runs of `width` along one dimension."""
    order = [along, *(i for i in range(len(shape) - 1, -1, -1) if i != along)]
    size = [1] * len(shape)
    size[along] = max(min(width, shape[along]), 1)
    lanes, warps, threads = WARP, num_warps, WARP * num_warps
    by_lanes, by_warps = [1] * len(shape), [1] * len(shape)
    for place, i in enumerate(order):
        if place == len(order) - 1:
            by_lanes[i], by_warps[i] = lanes, warps
            break
        local = min(max(threads, 1), max(1, shape[i] // size[i]))
        by_lanes[i] = min(local, lanes)
        by_warps[i] = min(max(local // by_lanes[i], 1), warps)
        lanes, warps, threads = lanes // by_lanes[i], warps // by_warps[i], threads // local
    per_thread = (size[i] * max(1, -(-shape[i] // (size[i] * by_lanes[i] * by_warps[i]))) for i in range(len(shape)))
    return Spread(tuple(per_thread), tuple(by_lanes), tuple(by_warps))


def access_of(op: Op, types: Sequence[ValueType], axes: Mapping[int, Axis], num_warps: int) -> Access:
    """How wide one instruction of a load, store or atomic is."""
    pointer = op.operands[0]
    shape, size = shape_of(types[pointer]), pointee_b(types[pointer])
    if not shape:
        return Access(1, 0, 1)
    item = axes.get(pointer) or unknown(types[pointer])
    along = max(range(len(shape)), key=lambda i: (item.contiguity[i], i))
    aligned = max(int(item.divisibility[along] // size), 1)
    per_thread = max(prod(shape) // (WARP * num_warps), 1)
    width = min(item.contiguity[along], aligned, int(_WIDEST_B // size), per_thread, shape[along])
    run, mask = max(width, 1), _mask(op, types)
    if mask is not None and mask in axes:
        width = min(width, axes[mask].constancy[along])
    if op.name.startswith("tt.atomic"):
        width = 1
    return Access(max(width, 1), along, run)


def _mask(op: Op, types: Sequence[ValueType]) -> int | None:
    shape = shape_of(types[op.operands[0]])
    return next(
        (value for value in op.operands[1:] if types[value].dtype == "i1" and shape_of(types[value]) == shape), None
    )


def _widths(flow: Flow, types: Sequence[ValueType], accesses: Mapping[int, Access]) -> dict[tuple[int, ...], Access]:
    """For each shape the access of the longest run, which all loads of it are spread by."""
    best: dict[tuple[int, ...], Access] = {}
    for i, access in accesses.items():
        shape = shape_of(types[flow.steps[i].operands[0]])
        if shape and (shape not in best or access.run > best[shape].run):
            best[shape] = access
    return best


def _is_chained(flow: Flow, op: Op) -> bool:
    """Whether the result of a product is, after other work, an operand of another: then its warps all go along m."""
    reached = set(op.results)
    for step in flow.steps:
        if not reached.isdisjoint(step.operands):
            if step.name == "tt.dot" and step is not op and reached & set(step.operands[:2]):
                return True
            reached.update(step.results)
    return False


def _product(op: Op, types: Sequence[ValueType], capability: int, num_warps: int, is_chained: bool) -> Product | None:
    left, right = shape_of(types[op.operands[0]]), shape_of(types[op.operands[1]])
    if len(left) < 2 or len(right) < 2:
        return None
    batch, m, k, n = prod(left[:-2]), left[-2], left[-1], right[-1]
    bits = 8.0 * types[op.operands[0]].itemsize_b
    precise = "ieee" in op.attributes or "inputPrecision = 2" in op.attributes
    if bits > 32 or (bits == 32 and precise) or bits == 0:
        warps = (num_warps, 1)
        return Product(m, n, k, batch, "fma", warps, bits, batch * m * n * k / (WARP * num_warps))
    thrice = 3.0 if "x3" in op.attributes or "inputPrecision = 1" in op.attributes else 1.0
    if capability >= 90 and num_warps % 4 == 0 and m >= 64 and n >= 8 and thrice == 1.0 and batch == 1:
        width = next(w for w in (256, 128, 64, 32, 16, 8) if n % w == 0 or w == 8)
        along_m = min(num_warps, max(m // 16, 4))
        count = max(m / (16 * along_m), 1.0) * max(n * along_m / num_warps / width, 1.0) * k * bits / 256
        return Product(m, n, k, batch, "wgmma", (along_m, max(num_warps // along_m, 1)), bits, count)
    chained = (num_warps, 1) if m >= n else (1, num_warps)
    warps = chained if is_chained else _warps(m, n, num_warps)
    tiles = max(m / (16 * warps[0]), 1.0) * max(n / (8 * warps[1]), 1.0)
    return Product(m, n, k, batch, "mma", warps, bits, thrice * batch * tiles * k * bits / 256, 3 if thrice > 1 else 1)


def _warps(m: int, n: int, num_warps: int) -> tuple[int, int]:
    """Warps along m and n (AccelerateMatmul.cpp, `warpsPerTileV2`)."""
    along_m = along_n = 1
    while along_m * along_n < num_warps:
        if m // 16 // along_m >= n // 16 // along_n and along_m < m // 16:
            along_m *= 2
        else:
            along_n *= 2
    return along_m, along_n


def _of_product(product: Product, rank: int, num_warps: int) -> Spread:
    if product.kind == "fma":
        return blocked((1,) * (rank - 2) + (product.m, product.n), num_warps, 4, rank - 1)
    rows = 2 * max(-(-product.m // (16 * product.warps[0])), 1)
    columns = 2 * max(-(-product.n // (8 * product.warps[1])), 1)
    outer = (1,) * (rank - 2)
    return Spread(
        (*((product.batch,) + (1,) * rank)[: rank - 2], rows, columns), (*outer, 8, 4), (*outer, *product.warps)
    )


def _forward(
    flow: Flow, types: Sequence[ValueType], products: Mapping[int, Product], spreads: dict[int, Spread], cored: set[int],
    by_shape: Mapping[tuple[int, ...], Spread], num_warps: int,
) -> None:  # fmt: skip
    """From loads and products on to what is computed from them; results of products win, since moving those costs
    most.
    """
    loops = {id(loop.op): loop for loop in flow.loops}
    for i, op in enumerate(flow.steps):
        if i in products:
            for value in (*op.results, *op.operands[2:3]):
                spreads[value] = _of_product(products[i], len(shape_of(types[value])), num_warps)
                cored.add(value)
    for op in flow.steps:
        if id(op) in loops:
            loop = loops[id(op)]
            for carried, before, yielded, after in zip(
                loop.carried, loop.inits, loop.yields, loop.results, strict=False
            ):
                source = next((v for v in (yielded, carried, before) if v in cored), before)
                if source in spreads and shape_of(types[carried]):
                    spreads.setdefault(carried, spreads[source])
                    spreads.setdefault(after, spreads[source])
                    if source in cored:
                        cored.update((carried, after))
            continue
        for value in op.results:
            shape = shape_of(types[value])
            if not shape or value in spreads:
                continue
            result, of_product = _from_operands(op, shape, types, spreads, cored, by_shape)
            if result is not None:
                spreads[value] = result
                if of_product:
                    cored.add(value)


def _from_operands(
    op: Op, shape: tuple[int, ...], types: Sequence[ValueType], spreads: Mapping[int, Spread], cored: set[int],
    by_shape: Mapping[tuple[int, ...], Spread],
) -> tuple[Spread | None, bool]:  # fmt: skip
    if op.name == "tt.load":
        return by_shape.get(shape), False
    known = [value for value in op.operands if value in spreads]
    if not known:
        return None, False
    chosen = next((value for value in known if value in cored), known[0])
    local, before = spreads[chosen], shape_of(types[chosen])
    if op.name == "tt.reduce" and len(shape) == len(local.per_thread) - 1:
        return local.without(_axis(op, before, shape)), chosen in cored
    if op.name == "tt.expand_dims" and len(shape) == len(local.per_thread) + 1:
        return local.with_one(_axis(op, shape, before)), chosen in cored
    if op.name not in _ELEMENTWISE_KEEPS and before == shape:
        return local, chosen in cored
    return None, False


def _axis(op: Op, wide: Sequence[int], narrow: Sequence[int]) -> int:
    """The dimension that one has and the other has not."""
    axis = number_of(op.attributes, "axis")
    if axis is not None and 0 <= axis < len(wide):
        return axis
    return next((i for i in range(len(narrow)) if wide[i] != narrow[i]), len(narrow))


def _backward(flow: Flow, types: Sequence[ValueType], spreads: dict[int, Spread]) -> None:
    """From what is computed back to what it is computed from: addresses and masks are spread as their access is."""
    for op in reversed(flow.steps):
        if op.name in _STARTS or op.regions:
            continue
        target = next((value for value in op.results if value in spreads), None)
        if target is None:
            continue
        local, shape = spreads[target], shape_of(types[target])
        for value in op.operands:
            before = shape_of(types[value])
            if not before or value in spreads:
                continue
            if before == shape:
                spreads[value] = local
            elif op.name == "tt.broadcast" and len(before) == len(shape):
                spreads[value] = local.narrowed(before)
            elif op.name == "tt.expand_dims" and len(before) == len(shape) - 1:
                spreads[value] = local.without(_axis(op, shape, before))


_STARTS = frozenset(("tt.load", "tt.dot", "tt.gather", "tt.trans", "tt.reshape", "tt.cat", "tt.join", "tt.split"))
"""What they give is spread otherwise than what they take."""
