"""Operations with regions: calls, loops, branches, launches; each function walks one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod

from ..program import Node
from ..semantics.loops import Counter, first_carried, for_counters, product_nest, while_trips
from ..types.attributes import integers, value
from ..types.graph import Block, Op
from .values import Names, Place, Walker

MAX_CALLS = 40
"""Deepest nesting of calls followed; recursion never ends, and no exporter nests deeper."""

_CALLEE = re.compile(r'@(?:"([^"]+)"|([\w$.-]+))(?![\w$.:-])')
_CALLEES = ("callee", "decomposition", "kernel", "entry_point", "entry_points")
_MOST_RUNS = 2.0**100
"""Products of trip counts are cut here, so that costs stay finite."""


def call(walk: Walker, op: Op, place: Place) -> None:
    """The body of the function called, in the place of the call."""
    named = next((text for key in _CALLEES if (text := value(op.attributes, key))), op.attributes)
    match = _CALLEE.search(named)  # of @module::@function the last
    name = (match[1] or match[2]) if match else ""
    function = walk.functions.get(name)
    why = ""
    if function is None or function.body is None:
        why = (
            f"{op.name} of @{name}, which has no body here"
            if name
            else f"{op.name} of a function known only when it runs"
        )
    elif name in walk.calls:
        why = f"{op.name} of @{name}, which calls itself"
    elif len(walk.calls) >= MAX_CALLS:
        why = f"{op.name} of @{name}, more than {MAX_CALLS} calls deep"
    if why or function is None:
        walk.unknown(op, place, why)
        return
    returned = walk.function(function, dict(zip(function.arguments, place.operands, strict=False)), place.runs)
    _alias(op.results, returned, place.names)


def count(walk: Walker, op: Op, place: Place) -> None:
    """A counting loop: its body as often as its counters step. One that is a matrix product becomes one node."""
    names, values = place.names, walk.values
    counters = for_counters(op, lambda v: values.number(names.get(v, v)))
    if not op.regions or not op.regions[0].blocks:
        walk.unknown(op, place, f"{op.name} without a body")
        return
    block = op.regions[0].blocks[0]
    items = [Counter(names.get(c.value, c.value), c.trips, c.middle) if c.value is not None else c for c in counters]
    for counter in items:
        if counter.value is not None and counter.middle is not None:
            values.middles[counter.value] = counter.middle
    _carry(walk, block.arguments[len(items) :], place.operands[first_carried(op) :], names)
    trips = prod(counter.trips if counter.trips is not None else 1.0 for counter in items)
    runs = min(place.runs * trips, _MOST_RUNS)
    note = (
        ""
        if all(counter.trips is not None for counter in items)
        else f"{op.name}: how often it runs is not known, counted as once"
    )
    walk.control(op, place, note, trips)
    walk.loops += items
    returned: tuple[int, ...]
    nest = product_nest(block, walk.loops, lambda v: names.get(v, v), values.types)
    if nest is not None:
        returned = ()
        walk.product(op, nest, names, runs)
    else:
        returned = walk.region(op.regions[0], names, runs, place.again)
    del walk.loops[len(walk.loops) - len(items) :]
    if op.name == "scf.forall":
        _inserted(walk, op, block, place)
    else:
        _alias(op.results, returned, names)


def loop_on_condition(walk: Walker, op: Op, place: Place) -> None:
    """A while loop: as often as its counting pattern says, once where it has none."""
    names, values = place.names, walk.values
    blocks = [region.blocks[0] for region in op.regions if region.blocks]
    if len(blocks) < 2:
        walk.unknown(op, place, f"{op.name} without a condition or a body")
        return
    for block in blocks:
        for inner in block.ops:
            for result in inner.results:
                values.made.setdefault(result, (inner, names))
        _carry(walk, block.arguments, place.operands, names)
    trips = while_trips(
        blocks[0], blocks[1], [values.number(v) for v in place.operands], lambda v: values.number(names.get(v, v))
    )
    note = "" if trips is not None else f"{op.name}: how often it runs is not known, counted as once"
    walk.control(op, place, note, trips if trips is not None else 1.0)
    runs = min(place.runs * (trips if trips is not None else 1.0), _MOST_RUNS)
    handed = walk.region(op.regions[0], names, runs, place.again)
    if len(handed) > len(op.results):
        # scf.condition hands on the loop's values after its condition, to the body and at last to the results.
        handed = handed[1:]
    if op.name == "scf.while":
        _carry(walk, blocks[1].arguments, handed, names)
        walk.region(op.regions[1], names, runs, place.again)
        _alias(op.results, handed, names)
    else:
        _alias(op.results, walk.region(op.regions[1], names, runs, place.again), names)


def branch(walk: Walker, op: Op, place: Place) -> None:
    """A choice between regions: the most expensive is counted, whichever runs."""
    start = len(walk.nodes)
    best: tuple[float, list[Node], tuple[int, ...]] = (-1.0, [], ())
    filled = 0
    for region in op.regions:
        returned = walk.region(region, place.names, place.runs, place.again)
        nodes = walk.nodes[start:]
        del walk.nodes[start:]
        filled += bool(nodes)
        weight = sum(
            (node.flops + node.bytes_in + node.bytes_out + (not node.understood)) * node.runs for node in nodes
        )
        best = max(best, (weight, nodes, returned), key=lambda item: item[0])
    walk.nodes += best[1]
    if filled > 1:
        walk.notes[f"{op.name}: only the most expensive branch is counted"] = None
    _alias(op.results, best[2], place.names)


def body(walk: Walker, op: Op, place: Place) -> None:
    """Regions that run once, in order."""
    for region in op.regions:
        returned = walk.region(region, place.names, place.runs, place.again)
        _alias(op.results, returned, place.names)


def launch(walk: Walker, op: Op, place: Place) -> None:
    """A GPU launch, of its own body or of a kernel by name: as often as its grid and blocks have threads."""
    segments = integers(op.attributes, "operandSegmentSizes")
    first = segments[0] if segments else 0
    sizes = [walk.values.number(v) for v in place.operands[first : first + 6]]
    whole = len(sizes) == 6 and None not in sizes
    note = "" if whole else f"{op.name}: its grid is not known, counted as one thread"
    threads = float(prod(size for size in sizes if size is not None)) if whole else 1.0
    walk.control(op, place, note, threads)
    inside = place._replace(runs=min(place.runs * threads, _MOST_RUNS))
    if op.regions:
        body(walk, op, inside)
        return
    # Of a kernel by name the operands are those before the last segment, an asynchronous object.
    raw = segments[-2] if segments and len(segments) > 1 else max(len(place.operands) - 6, 0)
    last = len(place.operands) - (segments[-1] if segments else 0)
    call(walk, op, inside._replace(operands=place.operands[last - raw : last]))


def _alias(results: Sequence[int], returned: Sequence[int], names: Names) -> None:
    """Results of an operation are the values its region ended with."""
    if len(results) == len(returned):
        names.update(zip(results, returned, strict=True))


def _carry(walk: Walker, arguments: Sequence[int], operands: Sequence[int], names: Names) -> None:
    """What a loop carries enters it as the value it started with.

    Only arrays do: a carried number changes from step to step, and must not be taken for the constant it started as.
    """
    types = walk.values.types
    for argument, operand in zip(arguments, operands, strict=False):
        if types[operand].is_array and types[operand].shape != ():
            names[argument] = operand


def _inserted(walk: Walker, op: Op, block: Block, place: Place) -> None:
    """Results of `scf.forall` are what its threads inserted."""
    names = place.names
    shared = dict(zip(block.arguments[len(block.arguments) - len(op.results) :], op.results, strict=False))
    end = block.ops[-1] if block.ops else None
    inserts = [
        inner for region in (end.regions if end is not None else ()) for item in region.blocks for inner in item.ops
    ]
    for insert in inserts:
        if len(insert.operands) > 1 and insert.operands[1] in shared:
            source, result = names.get(insert.operands[0], insert.operands[0]), shared[insert.operands[1]]
            walk.nodes.append(
                Node(
                    insert.name,
                    "view",
                    (source,),
                    (names.get(result, result),),
                    walk.values.types[source].dtype,
                    line=insert.line,
                )
            )


HANDLERS: Mapping[str, Callable[[Walker, Op, Place], None]] = {
    "call": call, "for": count, "while": loop_on_condition, "branch": branch, "body": body, "launch": launch,
}  # fmt: skip
"""Who walks an operation, by its word in `Dialect.structure`."""
