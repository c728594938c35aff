"""Walking a function: every operation in order to a node, called functions and loop bodies in their place.

Functions below `Walk` handle operations with regions: calls, loops, branches, launches; `HANDLERS` lists them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod

from ...errors import SpecError
from ..program import FREE, Node
from ..semantics.costs import unknown
from ..semantics.loops import Counter, ProductNest, first_carried, for_counters, product_nest, while_trips
from ..semantics.op_rule import Cost
from ..types.attributes import integers, value
from ..types.graph import Block, Function, Module, Op, Region
from .op_costs import costed, in_registers, is_held, moving, spread, with_unsized
from .values import Names, Place, Values, dialect_rules, values_of

MAX_STEPS = 400_000
"""Operations walked, those of called functions once per call: four times the largest module. Calls of calls multiply."""

MAX_DEPTH = 180
"""Deepest nesting of regions walked, those of called functions included; each takes a few frames of Python's stack of 1,000."""

_STEPS_PER_BLOCK = 20
"""What entering a function or a loop counts as: it takes as long as so many operations."""


_SILENT = frozenset({"constant", "control"})
_READ_WHOLE = frozenset({"elementwise", "contraction"})
"""Kinds that read every operand whole, so that one named twice is read once."""

_REMEMBERED = 32768
"""Costs kept between walks, by all that a cost depends on: a layer met before, here or in another text, costs a look-up."""

_NO_NODE = Cost("none")
"""The cost of what leaves no node: constants and steering that are no arrays."""

_LIST = "torch.prim.ListConstruct"

MAX_CALLS = 40
"""Deepest nesting of calls followed; recursion never ends, and no exporter nests deeper."""

_CALLEE = re.compile(r'@(?:"([^"]+)"|([\w$.-]+))(?![\w$.:-])')
_CALLEES = ("callee", "decomposition", "kernel", "entry_point", "entry_points")
_MOST_RUNS = 2.0**100
"""Products of trip counts are cut here, so that costs stay finite."""


class Walk:
    """One walk over one function: collects nodes and notes.

    `registers` says that tensors are in registers, as in Triton's kernels, where only loads and stores touch memory.
    """

    def __init__(self, module: Module, bound_sizes: frozenset[int], registers: bool) -> None:
        self._entries = dialect_rules()
        self.values = Values(module.types, self._entries, bound_sizes)
        self.nodes: list[Node] = []
        self.notes: dict[str, None] = {}
        self.loops: list[Counter] = []
        self.calls: list[str] = []
        self.functions: Mapping[str, Function] = {function.name: function for function in module.functions}
        self._defined: dict[str, tuple[int, ...] | None] = {}
        self._registers = registers
        self._memo = _memory(registers)
        self._steps = self._depth = 0

    def function(self, function: Function, names: Names, runs: float) -> tuple[int, ...]:
        """Walk a function's body; the values it returns. `names` says what its arguments are."""
        if function.body is None:
            return ()
        again = function.name in self._defined
        defined = self._defined.setdefault(function.name, None)
        if again:
            if defined is None:
                defined = self._defined[function.name] = values_of(function.body)
            names |= self.values.copies(defined, names)
        self.calls.append(function.name)
        returned = self.region(function.body, names, runs, again)
        self.calls.pop()
        return returned

    def region(self, region: Region, names: Names, runs: float, again: bool) -> tuple[int, ...]:
        """Walk a region; the values it ends with."""
        if len(region.blocks) > 1:
            self.notes["control flow between blocks is not followed: each block is counted as run once"] = None
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SpecError(
                f"the function nests more than {MAX_DEPTH} loops and calls; give a part of it", field="mlir"
            )
        returned: tuple[int, ...] = ()
        for block in region.blocks:
            returned = self.block(block.ops, names, runs, again) or returned
        self._depth -= 1
        return returned

    def block(self, ops: Sequence[Op], names: Names, runs: float, again: bool) -> tuple[int, ...]:
        """Walk operations in order; the operands of the one that ends the block."""
        self._steps += len(ops) + _STEPS_PER_BLOCK
        if self._steps > MAX_STEPS:
            raise SpecError(
                f"the function comes to more than {MAX_STEPS:,} operations with all it calls; give a part of it",
                field="mlir",
            )
        values, memo, entries, lists = self.values, self._memo, self._entries, self.values.lists
        text_of, created, append = values.texts.__getitem__, values.producers, self.nodes.append
        ended: tuple[int, ...] = ()
        for op in ops:
            name, operands, results = op.name, op.operands, op.results
            if names:
                operands = tuple([names.get(v, v) for v in operands])
            if again:
                results = tuple([names[v] for v in results])
            if results:
                here = (op, names)
                for v in results:
                    created[v] = here
            _, word, reads = entries[name]
            if word:
                if word == "end":
                    ended = operands
                elif word in HANDLERS:
                    HANDLERS[word](self, op, Place(operands, names, runs, again))
                continue
            key: object = (name, op.attributes, len(operands), *map(text_of, operands), *map(text_of, results))
            if op.regions or reads:
                key = (key, values.beside_types(op, operands, reads, runs))
            elif len(operands) > 1 and operands[0] == operands[1]:
                key = (key, "twice")
            cost = memo.get(key)
            if cost is None:
                cost = self._cost(op, operands, results, Place(operands, names, runs, again), key)
            if cost is _NO_NODE:
                if name == _LIST and results:
                    lists[results[0]] = operands
                continue
            often = runs
            if runs > 1.0 and (self._registers or is_held(name, values.types, operands, results)):
                cost, often = spread(cost, runs), 1.0
            if values.latest or lists or not results:
                operands, results = values.dataflow(operands, results)
            kind, dtype, flops, transcendentals, bytes_in, bytes_out, loops, detail, note = cost
            append(Node(name, kind, operands, results, dtype, flops, transcendentals, bytes_in, bytes_out, loops, detail, note,
                        often, op.line))  # fmt: skip
        return ended

    def unknown(self, op: Op, place: Place, why: str) -> None:
        """A node for what was not understood."""
        self.notes[why] = None
        results = tuple(place.names.get(v, v) for v in op.results)
        operand_types, result_types = ([self.values.types[v] for v in part] for part in (place.operands, results))
        cost = moving(operand_types, result_types, unknown(why))
        self.nodes.append(Node(op.name, cost.kind, place.operands, results, *cost[1:], place.runs, op.line))

    def control(self, op: Op, place: Place, note: str, trips: float) -> None:
        """A node for a loop itself; it has no part in what values are made of."""
        if note:
            self.notes[note] = None
        self.nodes.append(
            Node(op.name, "control", (), (), "", runs=place.runs, line=op.line, detail={"trips": trips}, note=note)
        )

    def product(self, op: Op, nest: ProductNest, names: Names, runs: float) -> None:
        """A node for a matrix product written as loops."""
        operands, results = nest.operands, tuple(names.get(v, v) for v in op.results)
        if nest.written is not None:
            operands, results = self.values.dataflow(operands, ())
        often = runs / max(nest.steps, 1.0)
        self.nodes.append(Node(op.name, nest.cost.kind, operands, results, *nest.cost[1:], often, op.line))

    def _cost(self, op: Op, operands: Sequence[int], results: Sequence[int], place: Place, key: object) -> Cost:
        """What an operation costs; remembered unless sizes had to be inferred; `_NO_NODE` for what leaves none."""
        values, rule = self.values, self._entries[op.name].rule
        site = values.site(op, operands, results, place.runs)
        inferring = any(kind.is_array and not kind.is_static for kind in site.results)
        if inferring:
            values.infer(site, rule, results)
            site = values.site(op, operands, results, place.runs)
        cost = self._foreign(op, place) if rule is None else costed(rule, site)
        if cost.bytes_in and cost.kind in _READ_WHOLE and len(set(operands)) < len(operands):
            again = sum(
                site.operands[p].nbytes
                for p, v in enumerate(operands)
                if v in operands[:p] and site.operands[p].kind in ("tensor", "memref")
            )
            cost = cost._replace(bytes_in=max(cost.bytes_in - again, 0.0))
        if self._registers:
            cost = in_registers(op, cost)
        elif cost.kind == "unknown":
            cost = moving(site.operands, site.results, cost)
        elif cost.kind not in FREE:
            cost = with_unsized(site, cost)
        remembered = _NO_NODE if cost.kind in _SILENT and not any(kind.is_array for kind in site.results) else cost
        if not inferring and not (rule is None and op.regions):
            if len(self._memo) >= _REMEMBERED:
                self._memo.clear()
            self._memo[key] = remembered
        return remembered

    def _foreign(self, op: Op, place: Place) -> Cost:
        """An operation that no dialect here has; what is in its regions is still walked."""
        for region in op.regions:
            self.region(region, place.names, place.runs, place.again)
        more = "; its body is counted as run once" if op.regions else ""
        return unknown(f"{op.name} is not known{more}")


@cache
def _memory(registers: bool) -> dict[object, Cost]:  # noqa: ARG001  a memory for each
    return {}


def call(walk: Walk, op: Op, place: Place) -> None:
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


def count(walk: Walk, op: Op, place: Place) -> None:
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


def loop_on_condition(walk: Walk, op: Op, place: Place) -> None:
    """A while loop: as often as its counting pattern says, once where it has none."""
    names, values = place.names, walk.values
    blocks = [region.blocks[0] for region in op.regions if region.blocks]
    if len(blocks) < 2:
        walk.unknown(op, place, f"{op.name} without a condition or a body")
        return
    for block in blocks:
        for inner in block.ops:
            for result in inner.results:
                values.producers.setdefault(result, (inner, names))
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


def branch(walk: Walk, op: Op, place: Place) -> None:
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


def body(walk: Walk, op: Op, place: Place) -> None:
    """Regions that run once, in order."""
    for region in op.regions:
        returned = walk.region(region, place.names, place.runs, place.again)
        _alias(op.results, returned, place.names)


def launch(walk: Walk, op: Op, place: Place) -> None:
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


def _carry(walk: Walk, arguments: Sequence[int], operands: Sequence[int], names: Names) -> None:
    """What a loop carries enters it as the value it started with.

    Only arrays do: a carried number changes from step to step, and must not be taken for the constant it started as.
    """
    types = walk.values.types
    for argument, operand in zip(arguments, operands, strict=False):
        if types[operand].is_array and types[operand].shape != ():
            names[argument] = operand


def _inserted(walk: Walk, op: Op, block: Block, place: Place) -> None:
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


HANDLERS: Mapping[str, Callable[[Walk, Op, Place], None]] = {
    "call": call, "for": count, "while": loop_on_condition, "branch": branch, "body": body, "launch": launch,
}  # fmt: skip
"""Who walks an operation, by its word in `Dialect.structure`."""
