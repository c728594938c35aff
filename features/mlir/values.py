"""Values while a function is walked: their types with sizes bound, what made them, and which integers they are."""

from __future__ import annotations

from collections.abc import Sequence

from .binding import inferred
from .dialect_rules import DialectRules
from .graph import Op, ValueType
from .site import Known, Rule, Site

Names = dict[int, int]
"""From values of the text to values of the program: arguments of called functions and loops, and renumbered results."""

_DEEPEST = 200
"""Longest chain of integer arithmetic that is followed; sizes in real programs take a handful of steps."""


_LONGEST = 256
"""Most elements of a list that is followed: shapes, strides and permutations have as many as an array has axes."""

_LARGEST = 2**63
"""Integers beyond 64 bits are none a program has."""


def _plain(known: Known) -> Known:
    """Integers and lists of them as programs have them: lists of lists, long ones and huge numbers are not followed.

    Each can double at every operation, and a few dozen of those would fill any memory.
    """
    if isinstance(known, tuple):
        return (
            tuple(None if isinstance(one, tuple) else _plain(one) for one in known) if len(known) <= _LONGEST else None
        )
    return None if isinstance(known, int) and abs(known) > _LARGEST else known


class Values:
    """Types and makers of values, by value number."""

    def __init__(self, types: Sequence[ValueType], entries: DialectRules, bound_sizes: frozenset[int]) -> None:
        self.types = list(types)
        self.texts = [kind.text for kind in types]
        self.made: dict[int, tuple[Op, Names]] = {}
        self.lists: dict[int, tuple[int, ...]] = {}
        """The elements of values that are lists."""
        self.middles: dict[int, float] = {}
        """The middle of what a loop's counter runs over, where its bounds are known."""
        self._entries = entries
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
        found = self.made.get(value)
        return None if found is None else found[0]

    def known(self, value: int) -> Known:
        """What a value is known to be: an integer, a list of them, None."""
        if value in self._facts:
            return self._facts[value]
        found = self.made.get(value)
        rule = None if found is None else self._entries[found[0].name].rule
        if found is None or rule is None or rule.fold is None or self._depth >= _DEEPEST:
            return None
        op, names = found
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
