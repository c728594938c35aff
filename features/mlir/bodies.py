"""Bodies that are applied per element: what they compute, counted, and the operator they amount to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .graph import Op
from .operators import arithmetic, operator

_NO_ARITHMETIC = frozenset(
    {
        "constant",
        "yield",
        "return",
        "index",
        "index_cast",
        "assert",
        "apply",
        "extract",
        "delinearize_index",
        "linearize_index",
        "bitcast",
        "dim",
    }
)
_COMBINERS = {"add": "sum", "maximum": "max", "minimum": "min", "mul": "prod", "and": "all", "or": "any", "xor": "xor"}
_WITH_SCALAR = {"add": "addu", "mul": "mulu", "div": "divu", "pow": "powu"}


@dataclass(frozen=True, slots=True)
class Body:
    """What a body computes for one element: operators in order, operations, transcendental ones, and one name for all of it."""

    operators: tuple[str, ...]
    flops: float
    transcendentals: float
    name: str


def read_body(region_ops: Iterable[Op], arguments: Sequence[int] = ()) -> Body:
    """Count a body's operations; `arguments` are what it is entered with, where it matters which values are constants."""
    ops = tuple(region_ops)
    counted = [(operator(short), op) for op in ops if (short := op.name.rpartition(".")[2]) not in _NO_ARITHMETIC]
    names = tuple(name for name, _ in counted)
    costs = [arithmetic(name) for name in names]
    return Body(
        names, sum(cost[0] for cost in costs), sum(cost[1] for cost in costs), _named(names, counted, ops, arguments)
    )


def combiner(ops: Sequence[Op]) -> str:
    """The operator of a reduction, from its body: `sum`, `max` …; `argmax` where a place is kept along."""
    names = {operator(op.name.rpartition(".")[2]) for op in ops} - _NO_ARITHMETIC
    if "select" in names and sum(len(op.operands) for op in ops if op.name.endswith(("return", "yield"))) > 1:
        return "argmax"
    found = [_COMBINERS[name] for name in ("mul", "add", "maximum", "minimum", "and", "or", "xor") if name in names]
    return found[-1] if found else ("max" if "select" in names else "reduce")


def combined_by(name: str) -> str:
    """The operator of a reduction that applies one operation, by that operation's name."""
    short = operator(name.rpartition(".")[2])
    return _COMBINERS.get(short, short)


def _named(
    names: tuple[str, ...], counted: Sequence[tuple[str, Op]], ops: Sequence[Op], arguments: Sequence[int]
) -> str:
    """The operator a body is, where kernelcast has a name for it; else its last operation's."""
    if not names:
        return "copy"
    if len(names) == 1:
        name, op = counted[0]
        one_constant = len(op.operands) == 2 and _has_constant(op, ops, arguments)
        return {**_WITH_SCALAR, "maximum": "relu"}.get(name, name) if one_constant else name
    distinct = frozenset(names)
    return next((name for name, parts in _FORMULAS if distinct in parts), names[-1])


_FORMULAS: tuple[tuple[str, tuple[frozenset[str], ...]], ...] = tuple(
    (name, tuple(frozenset(part.split()) for part in parts))
    for name, parts in (
        ("relu", ("compare select",)),
        ("sigmoid", ("neg exp add div", "neg exp addu div")),
        ("silu", ("neg exp add div mul", "sigmoid mul")),
        ("gelu", ("erf mul add", "erf mul add div", "tanh mul add", "tanh mul add pow")),
    )
)
"""Operators that are formulas, by the sets of operations their definitions are written in."""


def _has_constant(op: Op, ops: Sequence[Op], arguments: Sequence[int]) -> bool:
    """Whether an operand is a constant: made by one in the body, or from outside of it."""
    computed = {result for other in ops if not other.name.endswith("constant") for result in other.results}
    return any(value not in computed and value not in arguments for value in op.operands) if arguments else False
