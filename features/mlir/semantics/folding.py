"""Integers that operations fold to: constants, arithmetic on numbers and on lists of them, elements of lists, sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from ..types import attributes
from .op_rule import CostOf, FoldOf, Known, Rule, ShapesOf, Site, rules

_ACTS: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truncdiv": lambda a, b: int(a / b),
    "floordiv": operator.floordiv,
    "ceildiv": lambda a, b: -(-a // b),
    "mod": operator.mod,
    "max": max,
    "min": min,
    "and": operator.and_,
    "or": operator.or_,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def folded(act: str) -> FoldOf:
    """Arithmetic on two integers, or element by element on two lists of them; `act` is a name in `_ACTS`."""
    of_two = _ACTS[act]

    def fold(site: Site) -> Known:
        left, right = site.known(0), site.known(1)
        if isinstance(left, int) and isinstance(right, int):
            return int(of_two(left, right))
        if not isinstance(left, tuple) or not isinstance(right, tuple) or len(left) != len(right):
            return None
        pairs = zip(left, right, strict=True)
        return tuple(int(of_two(a, b)) if isinstance(a, int) and isinstance(b, int) else None for a, b in pairs)

    return fold


def folding(dialect: str, cost: CostOf, names: Mapping[str, str], shapes: ShapesOf | None = None) -> dict[str, Rule]:
    """Rules of a dialect's arithmetic on integers: for each name in `_ACTS` those of the operations, blanks between them."""
    result: dict[str, Rule] = {}
    for act, operations in names.items():
        result |= rules(dialect, operations, cost, shapes, fold=folded(act))
    return result


def constant(site: Site) -> Known:
    """The integer, or the list of them, that a constant is; None for floating-point and for larger arrays."""
    kind = site.results[0]
    if kind.dtype.startswith("fp") or kind.dtype in ("bf16", "tf32") or len(kind.shape or ()) > 1:
        return None
    numbers = attributes.numbers(attributes.value(site.text, "value") or site.text)
    return numbers if numbers is None or kind.shape else numbers[0]


def passed(site: Site) -> Known:
    """What the first operand is known to be."""
    return site.known(0)


def listed(site: Site) -> Known:
    """The list that the operands make."""
    return tuple(site.known(position) for position in range(len(site.operands)))


def joined(site: Site) -> Known:
    """The lists and numbers of the operands, one after the other."""
    items: list[Known] = []
    for position in range(len(site.operands)):
        known = site.known(position)
        items += known if isinstance(known, tuple) else [known]
    return tuple(items)


def extent(site: Site) -> Known:
    """A size of the first operand: which, the second one or an attribute tells."""
    shape = site.operands[0].shape
    axis = site.known(1) if len(site.operands) > 1 else site.int_of("dimension", "dim")
    return shape[axis] if shape is not None and isinstance(axis, int) and 0 <= axis < len(shape) else None
