"""Who produces and who uses each value of a function, and the names that operations go by in all dialects."""

from __future__ import annotations

from collections.abc import Sequence

from ..program import FREE, Node
from ..semantics.dynamic_sizes import keeps_order
from ..semantics.operators import operator as canonical
from ..types.graph import ValueType

CASTS = frozenset({"convert", "copy", "bitcast", "to", "dtype"})
"""Element operations that change the number format and nothing else."""

_REDUCERS = {"add": "sum", "maximum": "max", "minimum": "min", "mul": "prod", "reduce_sum": "sum", "reduce_max": "max",
             "reduce_min": "min", "variance": "var"}  # fmt: skip

_ACCESSES = frozenset({"load", "store"})


def _operator(node: Node) -> str:
    """The operator of a node in kernelcast's words where there is one, else the short name of its operation."""
    entry = node.detail.get("operator")
    name = canonical(entry if isinstance(entry, str) and entry else node.op.rpartition(".")[2])
    return _REDUCERS.get(name, name) if node.kind == "reduction" else name


class Flow:
    """The nodes of a function, with everything that is asked of them often.

    `operators` and `sizes` are by position in `nodes`: a node's operator, empty for what costs nothing, and the elements of its
    loop space. `producer` and `users` are by value: the position of what makes it, and of all that reads it. `passes` are the
    nodes that hand their first operand on: views, broadcasts, changes of number format, transposes that only move axes of
    size 1. `accesses` are the loads and stores among them all, of which a memory is named. `blank` are values that are room for
    a result and no data, `uniform` constants with one number everywhere. `reductions` remembers which reductions values come
    from, as `patterns` finds them.
    """

    __slots__ = ("_behind", "_elements", "_nbytes", "accesses", "blank", "nodes", "operators", "outputs", "passes",
                 "producer", "reductions", "sizes", "types", "uniform", "users")  # fmt: skip

    def __init__(self, nodes: Sequence[Node], types: Sequence[ValueType], outputs: Sequence[int]) -> None:
        self.nodes = nodes
        self.types = types
        self.outputs = outputs
        self._elements: dict[int, float] = {}
        self._nbytes: dict[int, float] = {}
        self.producer: dict[int, int] = {}
        self.users: dict[int, list[int]] = {}
        self.passes: set[int] = set()
        self.blank: set[int] = set()
        self.accesses: set[int] = set()
        self.reductions: dict[int, tuple[int, ...]] = {}
        self.uniform: set[int] = set()
        self._behind: dict[int, int] = {}
        self.operators = [""] * len(nodes)
        self.sizes = [1.0] * len(nodes)
        self._index()

    def _index(self) -> None:
        producer, users, behind, passes = self.producer, self.users, self._behind, self.passes
        uniform, operators, sizes, types = self.uniform, self.operators, self.sizes, self.types
        names: dict[tuple[str, object, str], str] = {}
        for index, node in enumerate(self.nodes):
            kind, operands, results = node.kind, node.operands, node.results
            for value in operands:
                if value in users:
                    users[value].append(index)
                else:
                    users[value] = [index]
            for value in results:
                producer[value] = index
            if kind in FREE:
                handed = kind == "view"
                if handed and not any(types[value].is_array for value in operands):
                    self.blank.update(results)
                    handed = False
                elif kind == "constant" and node.detail.get("splat"):
                    uniform.update(results)
            else:
                key = (node.op, node.detail.get("operator"), kind)
                operator = names.get(key)
                if operator is None:
                    operator = names[key] = _operator(node)
                if kind == "movement":
                    if operator in _ACCESSES:
                        self.accesses.add(index)
                    handed = operator == "broadcast" or (operator == "transpose" and self._keeps_order(node))
                else:
                    handed = kind == "elementwise" and operator in CASTS
                size = node.loops[1]
                operators[index] = operator
                sizes[index] = size if size > 1.0 or not results else self.elements(results[0])
            # What was read before it was made comes from text that is no program; following it could go in a circle.
            if handed and operands and results and results[0] not in users:
                behind[results[0]] = behind.get(operands[0], operands[0])
                passes.add(index)
                if operands[0] in uniform:
                    uniform.add(results[0])

    def _keeps_order(self, node: Node) -> bool:
        """Whether a transpose leaves the axes that are larger than 1 in their order, so that nothing moves."""
        before = self.types[node.operands[0]].shape if node.operands else None
        after = self.types[node.results[0]].shape if node.results else None
        if not before or not after or 1 not in before:
            return False
        order = node.detail.get("permutation")
        if isinstance(order, tuple) and len(order) == len(before):
            return keeps_order(before, order)
        # Where the order is not told: axes of size 1 have moved and the others are as large as before, place by place.
        return before != after and [size for size in before if size != 1] == [size for size in after if size != 1]

    def swaps_last(self, node: Node) -> bool:
        """Whether a transpose swaps the two last axes and nothing else, axes of size 1 left out."""
        before = self.types[node.operands[0]].shape if node.operands else None
        after = self.types[node.results[0]].shape if node.results else None
        if before is None or after is None or len(before) < 2:
            return False
        order = node.detail.get("permutation")
        if not isinstance(order, tuple) or len(order) != len(before) or 1 in after[-2:]:
            return (*before[:-2], before[-1], before[-2]) == after
        moved = [axis for axis in order if before[axis] != 1]
        return moved[-2] > moved[-1] and [*moved[:-2], moved[-1], moved[-2]] == sorted(moved)

    def is_uniform(self, value: int) -> bool:
        """Whether a value is one number, or one number everywhere."""
        return value in self.uniform or self.elements(self.strip(value)) <= 1.0

    def elements(self, value: int) -> float:
        """Number of elements of a value; 0 where a size is not known."""
        kind = self.types[value]
        # Readers hand out one type object for many values.
        known = self._elements.get(id(kind))
        if known is None:
            known = self._elements[id(kind)] = kind.elements if kind.is_static or not kind.is_array else 0.0
        return known

    def is_spread(self, value: int, size: float) -> bool:
        """Whether an element operation or a load in a loop makes `size` elements of a value in all its iterations."""
        index = self.producer.get(value)
        if index is None or self.sizes[index] != size:
            return False
        return self.nodes[index].kind == "elementwise" or self.operators[index] == "load"

    def nbytes(self, value: int) -> float:
        """Bytes of a value in memory; 0 for scalars and vectors, which are in registers, and where a size is not known."""
        kind = self.types[value]
        known = self._nbytes.get(id(kind))
        if known is None:
            known = self.elements(value) * kind.itemsize_b if kind.kind in ("tensor", "memref") else 0.0
            self._nbytes[id(kind)] = known
        return known

    def strip(self, value: int) -> int:
        """The value behind views, broadcasts and changes of number format."""
        return self._behind.get(value, value)

    def real_users(self, value: int, limit: int = 16) -> list[int]:
        """Users of a value, those of its views, broadcasts and casts in their place; about `limit` of them at most."""
        users, passes = self.users, self.passes
        direct = users.get(value, [])[:limit]
        if passes.isdisjoint(direct):
            return direct
        nodes, steps = self.nodes, 0
        result: list[int] = []
        pending = [value]
        while pending and len(result) < limit and steps < 4 * limit:
            value = pending.pop()
            steps += 1
            for index in users.get(value, ())[:limit]:
                if index in passes and nodes[index].operands[0] == value:
                    pending.append(nodes[index].results[0])
                else:
                    result.append(index)
        return result
