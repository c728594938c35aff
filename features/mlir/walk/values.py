"""Values while a function is walked (bound types, the operation that made them, known integers), and all dialects' rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from ...kernel import discover
from ..semantics.costs import view
from ..semantics.dynamic_sizes import inferred
from ..semantics.op_rule import STRUCTURES, Dialect, Known, Rule, Site
from ..types.graph import Op, Region, ValueType
from .op_costs import signature

_MOST_NAMES = 16384
"""Names looked up that are remembered, those of no dialect included; a text may have as many as it likes."""


class Entry(NamedTuple):
    """What is known of an operation: its rule, the word for its regions, and what its cost depends on besides types."""

    rule: Rule | None
    structure: str
    reads: str


class DialectRules(dict[str, Entry]):
    """Entries by operation name, filled as names are met.

    A name with an overload, `torch.aten.add.Tensor`, is also found without it.
    """

    def __init__(self, rules: Mapping[str, Rule], structure: Mapping[str, str]) -> None:
        super().__init__()
        self._rules, self._structure = rules, structure

    def __missing__(self, name: str) -> Entry:
        rule = self._rules.get(name)
        if rule is None and name.startswith("torch."):
            rule = self._rules.get(name.rpartition(".")[0])
        entry = Entry(rule, self._structure.get(name, ""), rule.reads if rule is not None else "")
        if len(self) < _MOST_NAMES:
            self[name] = entry
        return entry


@cache
def dialect_rules() -> DialectRules:
    """The tables of all plug-ins in `dialects/`.

    Raises:
        ValueError: two of them have a rule for the same operation, or one has a word that means nothing.
    """
    from .. import dialects as package

    rules: dict[str, Rule] = {}
    structure: dict[str, str] = {}
    dialects: Mapping[str, Dialect] = discover(package, "DIALECT")
    for dialect in dialects.values():
        words = {name: word for word, names in dialect.structure.items() for name in names.split()}
        twice = (rules.keys() | structure.keys()) & (dialect.rules.keys() | words.keys())
        strange = dialect.structure.keys() - set(STRUCTURES)
        if twice or strange:
            raise ValueError(
                f"dialect {dialect.name} has rules for what another has, or strange words: {sorted(twice | strange)}"
            )
        rules |= dialect.rules
        structure |= words
    return DialectRules(rules, structure)


Names = dict[int, int]
"""From values of the text to values of the program: arguments of called functions and loops, and renumbered results."""

_DEEPEST = 200
"""Longest chain of integer arithmetic that is followed; sizes in real programs take a handful of steps."""


_LONGEST = 256
"""Most elements of a list that is followed: shapes, strides and permutations have as many as an array has axes."""

_DEEPEST_VIEW = 32
"""Longest chain of views of views whose memory is followed."""

_LARGEST = 2**63
"""Integers beyond 64 bits are none a program has."""


def _plain(known: Known) -> Known:
    """Integers and lists of them as programs have them: lists of lists, long ones and huge numbers are not followed.

    Each can double at every operation, and a few dozen of those would fill any memory.
    """
    if isinstance(known, tuple):
        return (
            tuple(None if isinstance(item, tuple) else _plain(item) for item in known)
            if len(known) <= _LONGEST
            else None
        )
    return None if isinstance(known, int) and abs(known) > _LARGEST else known


class Values:
    """Types and makers of values, by value number."""

    def __init__(self, types: Sequence[ValueType], entries: DialectRules, bound_sizes: frozenset[int]) -> None:
        self.types = list(types)
        self.texts = [kind.text for kind in types]
        self.producers: dict[int, tuple[Op, Names]] = {}
        self.lists: dict[int, tuple[int, ...]] = {}
        """The elements of values that are lists."""
        self.middles: dict[int, float] = {}
        """The middle of what a loop's counter runs over, where its bounds are known."""
        self.latest: dict[int, int] = {}
        """The newest version of memory that was written, by the value that names the memory."""
        self._entries = entries
        self._bodies: dict[int, tuple[object, ...]] = {}
        self._facts: dict[int, Known] = {}
        self._bound_sizes = bound_sizes
        self._depth = 0

    def new(self, kind: ValueType) -> int:
        """A value the text does not have."""
        self.types.append(kind)
        self.texts.append(kind.text)
        return len(self.types) - 1

    def copies(self, written: Sequence[int], names: Names) -> Names:
        """Numbers of their own for values of a function that is walked again, but for those that have a name already."""
        again = [v for v in written if v not in names]
        start = len(self.types)
        self.types += [self.types[v] for v in again]
        self.texts += [self.texts[v] for v in again]
        return dict(zip(again, range(start, start + len(again)), strict=True))

    def retype(self, value: int, kind: ValueType) -> None:
        """Give a value another type."""
        self.types[value] = kind
        self.texts[value] = kind.text

    def learn(self, value: int, known: Known) -> None:
        """A value is known to be this."""
        self._facts[value] = known

    def site(self, op: Op, operands: Sequence[int], results: Sequence[int], runs: float = 1.0) -> Site:
        """The operation at its place."""
        types = self.types
        return Site(
            op,
            tuple([types[v] for v in operands]),
            tuple([types[v] for v in results]),
            lambda position: self.known(operands[position]),
            lambda position: self.maker(operands[position]),
            runs,
            lambda position: tuple([types[v] for v in self.lists.get(operands[position], ())]),
        )

    def maker(self, value: int) -> Op | None:
        """The operation that made a value."""
        result = self.producers.get(value)
        return None if result is None else result[0]

    def known(self, value: int) -> Known:
        """What a value is known to be: an integer, a list of them, None."""
        if value in self._facts:
            return self._facts[value]
        result = self.producers.get(value)
        rule = None if result is None else self._entries[result[0].name].rule
        if result is None or rule is None or rule.fold is None or self._depth >= _DEEPEST:
            return None
        op, names = result
        results = [names.get(v, v) for v in op.results]
        if results[0] != value:
            return None
        self._facts[value] = None
        self._depth += 1
        try:
            self._facts[value] = _plain(rule.fold(self.site(op, [names.get(v, v) for v in op.operands], results)))
        except (ArithmeticError, IndexError, KeyError, TypeError, ValueError):
            # Fewer or other operands than the operation has by its definition: nothing is known of its result.
            return None
        finally:
            self._depth -= 1
        return self._facts[value]

    def number(self, value: int) -> float | None:
        """A number for a value in loop bounds: what it is known to be, or the middle of an outer loop's counter."""
        known = self.known(value)
        return known if isinstance(known, int | float) else self.middles.get(value)

    def infer(self, site: Site, rule: Rule | None, results: Sequence[int]) -> None:
        """Give results with open sizes the sizes that follow."""
        shapes = None
        if rule is not None and rule.shapes is not None:
            try:
                shapes = rule.shapes(site)
            except (ArithmeticError, IndexError, KeyError, TypeError, ValueError):
                shapes = None
        for value, kind_of in zip(results, inferred(site, shapes, self._bound_sizes), strict=True):
            self.retype(value, kind_of)

    def beside_types(self, op: Op, operands: Sequence[int], what: str, runs: float) -> object:
        """What a cost depends on besides types and attributes; `what` is a word of `Rule.reads`."""
        more: list[object] = [len(set(operands)) < len(operands)]
        if op.regions:
            # A function that is called again has the same operations, kept alive by the module.
            body = self._bodies.get(id(op))
            if body is None:
                body = self._bodies[id(op)] = signature(op)
            more.append(body)
        if what == "values":
            more += [self.known(v) for v in operands]
            more += [self.texts[inner] for v in operands if v in self.lists for inner in self.lists[v]]
        elif what == "makers":
            more += [None if (maker := self.maker(v)) is None else (maker.name, maker.attributes) for v in operands]
        elif what == "runs":
            more.append(runs)
        return tuple(more)

    def dataflow(self, operands: tuple[int, ...], results: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Operands as the newest versions of memory, lists as their elements; memory that is written becomes a result.

        An operation without results writes the memory that its last memref operand names, and what that is a view of.
        """
        types, created, lists = self.types, self.producers, self.lists
        if lists:
            operands = tuple([inner for v in operands for inner in lists.get(v, (v,))])
        seen = tuple([self.latest.get(v, v) for v in operands])
        written = None if results else next((v for v in reversed(operands) if types[v].kind == "memref"), None)
        if written is None:
            return seen, results
        version = self.new(types[written])
        for _ in range(_DEEPEST_VIEW):
            self.latest[written] = version
            op, names = created.get(written, (None, {}))
            rule = None if op is None else self._entries[op.name].rule
            if op is None or rule is None or rule.cost is not view or not op.operands:
                break
            written = names.get(op.operands[0], op.operands[0])
        return seen, (version,)


class Place(NamedTuple):
    """Where an operation with regions stands: its operands, the names around it, how often it runs, and whether its function
    is walked again, so that its values need numbers of their own.
    """

    operands: tuple[int, ...]
    names: Names
    runs: float
    again: bool


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
