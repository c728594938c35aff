"""Walking a function: every operation in order to a node, called functions and loop bodies in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from ...errors import SpecError
from ..dialects.triton import MEMORY
from ..program import FREE, Node
from ..semantics.costs import unknown, view
from ..semantics.loops import Counter, ProductNest
from ..semantics.op_rule import Cost, Rule, Site
from ..types.graph import Function, Module, Op, Region, ValueType
from .regions import HANDLERS
from .values import Names, Place, Values, dialect_rules

MAX_STEPS = 400_000
"""Operations walked, those of called functions once per call: four times the largest module. Calls of calls multiply."""

MAX_DEPTH = 180
"""Deepest nesting of regions walked, those of called functions included; each takes a few frames of Python's stack of 1,000."""

_STEPS_PER_BLOCK = 20
"""What entering a function or a loop counts as: it takes as long as so many operations."""

_IN_REGISTERS = frozenset({"scalar", "vector"})
"""Kinds of types that registers hold."""

_SILENT = frozenset({"constant", "control"})
_READ_WHOLE = frozenset({"elementwise", "contraction"})
"""Kinds that read every operand whole, so that one named twice is read once."""

_REMEMBERED = 32768
"""Costs kept between walks, by all that a cost depends on: a layer met before, here or in another text, costs a look-up."""

_NO_NODE = Cost("none")
"""The cost of what leaves no node: constants and steering that are no arrays."""

_DEEPEST_VIEW = 32
"""Longest chain of views of views whose memory is followed."""

_LIST = "torch.prim.ListConstruct"
_ADDRESSES = frozenset({"int32", "int64", "i1", "index"})
_UNSOUND = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What a rule raises for an operation that is not as its dialect defines it: text that a person wrote, unverified."""


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
        self.latest: dict[int, int] = {}
        """The newest version of memory that was written, by the value that names the memory."""
        self._defined: dict[str, tuple[int, ...]] = {}
        self._registers = registers
        self._memo = _memory(registers)
        self._bodies: dict[int, tuple[object, ...]] = {}
        self._steps = self._depth = 0

    def function(self, function: Function, names: Names, runs: float) -> tuple[int, ...]:
        """Walk a function's body; the values it returns. `names` says what its arguments are."""
        if function.body is None:
            return ()
        defined = self._defined.get(function.name)
        if defined is None:
            self._defined[function.name] = values_of(function.body)
        else:
            names |= self.values.copies(defined, names)
        self.calls.append(function.name)
        returned = self.region(function.body, names, runs, defined is not None)
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
        text_of, created, append = values.texts.__getitem__, values.made, self.nodes.append
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
                key = (key, self._more(op, operands, reads, runs))
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
            if runs > 1.0 and (self._registers or _is_held(name, values.types, operands, results)):
                cost, often = _spread(cost, runs), 1.0
            if self.latest or lists or not results:
                operands, results = self._dataflow(operands, results)
            append(Node(name, cost.kind, operands, results, *cost[1:], often, op.line))
        return ended

    def unknown(self, op: Op, place: Place, why: str) -> None:
        """A node for what was not understood."""
        self.notes[why] = None
        results = tuple(place.names.get(v, v) for v in op.results)
        operand_types, result_types = ([self.values.types[v] for v in part] for part in (place.operands, results))
        cost = _moving(operand_types, result_types, unknown(why))
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
        added_up = tuple(names.get(v, v) for v in op.results)
        operands, results = self._dataflow(nest.operands, ()) if nest.written is not None else (nest.operands, added_up)
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
        cost = self._foreign(op, place) if rule is None else _costed(rule, site)
        if cost.bytes_in and cost.kind in _READ_WHOLE and len(set(operands)) < len(operands):
            again = sum(
                site.operands[p].nbytes
                for p, v in enumerate(operands)
                if v in operands[:p] and site.operands[p].kind in ("tensor", "memref")
            )
            cost = cost._replace(bytes_in=max(cost.bytes_in - again, 0.0))
        if self._registers:
            cost = _in_registers(op, cost)
        elif cost.kind == "unknown":
            cost = _moving(site.operands, site.results, cost)
        elif cost.kind not in FREE:
            cost = _with_unsized(site, cost)
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

    def _more(self, op: Op, operands: Sequence[int], what: str, runs: float) -> object:
        """What a cost depends on besides types and attributes."""
        values = self.values
        more: list[object] = [len(set(operands)) < len(operands)]
        if op.regions:
            # A function that is called again has the same operations, kept alive by the module.
            body = self._bodies.get(id(op))
            if body is None:
                body = self._bodies[id(op)] = _signature(op)
            more.append(body)
        if what == "values":
            more += [values.known(v) for v in operands]
            more += [values.texts[inner] for v in operands if v in self.values.lists for inner in self.values.lists[v]]
        elif what == "makers":
            more += [None if (maker := values.maker(v)) is None else (maker.name, maker.attributes) for v in operands]
        elif what == "runs":
            more.append(runs)
        return tuple(more)

    def _dataflow(self, operands: tuple[int, ...], results: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Operands as the newest versions of memory, lists as their elements; memory that is written becomes a result.

        An operation without results writes the memory that its last memref operand names, and what that is a view of.
        """
        types, created, lists = self.values.types, self.values.made, self.values.lists
        if lists:
            operands = tuple([inner for v in operands for inner in lists.get(v, (v,))])
        seen = tuple([self.latest.get(v, v) for v in operands])
        written = None if results else next((v for v in reversed(operands) if types[v].kind == "memref"), None)
        if written is None:
            return seen, results
        version = self.values.new(types[written])
        for _ in range(_DEEPEST_VIEW):
            self.latest[written] = version
            op, names = created.get(written, (None, {}))
            rule = None if op is None else self._entries[op.name].rule
            if op is None or rule is None or rule.cost is not view or not op.operands:
                break
            written = names.get(op.operands[0], op.operands[0])
        return seen, (version,)


@cache
def _memory(registers: bool) -> dict[object, Cost]:  # noqa: ARG001  a memory for each
    return {}


def values_of(region: Region) -> tuple[int, ...]:
    """All values that a region defines, those of regions inside included."""
    items: list[int] = []
    waiting = [region]
    while waiting:
        for block in waiting.pop().blocks:
            items += block.arguments
            for op in block.ops:
                items += op.results
                waiting += op.regions
    return tuple(items)


def _is_held(name: str, types: Sequence[ValueType], operands: Sequence[int], results: Sequence[int]) -> bool:
    """Whether an operation works on what registers hold: a loop around it is one kernel, not many runs of one."""
    return not name.startswith("linalg.") and all(types[v].kind in _IN_REGISTERS for v in results or operands[:1])


def _spread(cost: Cost, runs: float) -> Cost:
    """All runs of an operation in a loop as one: as many times the rows."""
    batch, m, n, k = cost.loops
    return cost._replace(
        flops=cost.flops * runs,
        transcendentals=cost.transcendentals * runs,
        bytes_in=cost.bytes_in * runs,
        bytes_out=cost.bytes_out * runs,
        loops=(batch, m * runs, n, k),
    )


def _in_registers(op: Op, cost: Cost) -> Cost:
    """A cost in a Triton kernel: arithmetic on integers computes addresses, and only what loads and stores moves bytes."""
    if op.dialect == "arith" and cost.kind == "elementwise" and cost.dtype in _ADDRESSES:
        return Cost("control")
    return cost if op.name in MEMORY else cost._replace(bytes_in=0.0, bytes_out=0.0)


def _with_unsized(site: Site, cost: Cost) -> Cost:
    """Said of a cost where elements have no known size: their bytes are not in it; without arithmetic nothing is left."""
    arrays = [kind for kind in (*site.operands, *site.results) if kind.is_array and kind.is_static]
    unsized = sorted({kind.text for kind in arrays if not kind.itemsize_b and kind.elements})
    if not unsized:
        return cost
    if not cost.flops:
        return unknown(f"{site.name}: bytes per element of {unsized[0]} are not known")
    return cost._replace(note=f"bytes per element of {unsized[0]} are not known, {site.name} counts without them")


def _costed(rule: Rule, site: Site) -> Cost:
    try:
        return rule.cost(site)
    except _UNSOUND:
        kinds = (*site.operands, *site.results)
        if any(kind.is_array and not kind.is_static for kind in kinds):
            return unknown(f"{site.name}: a size of it is not known")
        return unknown(f"{site.name} is not as its dialect defines it")


def _signature(op: Op) -> tuple[object, ...]:
    """What a body computes: its operations and how they are wired, the same for the same body elsewhere."""
    items: list[object] = []
    for region in op.regions:
        for block in region.blocks:
            ops = block.ops
            base = block.arguments[0] if block.arguments else (ops[0].results or (0,))[0] if ops else 0
            for inner in ops:
                items.append(inner.name)
                for v in inner.operands:
                    if v >= base:
                        items.append(v - base)  # noqa: PERF401  a list of its own for each operation costs more
    return tuple(items)


def _moving(operands: Iterable[ValueType], results: Iterable[ValueType], cost: Cost) -> Cost:
    """An operation that is not understood is taken to touch what it is given and what it gives, as far as that is known."""
    raw, created = (
        sum(kind.known_nbytes for kind in kinds if kind.kind in ("tensor", "memref")) for kinds in (operands, results)
    )
    return cost._replace(bytes_in=raw, bytes_out=created)
