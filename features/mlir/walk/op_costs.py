"""What an operation costs at its place: in registers, in a loop, with sizes or elements that are not known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..dialects.triton import MEMORY
from ..semantics.costs import unknown
from ..semantics.op_rule import Cost, Rule, Site
from ..types.graph import Op, ValueType

_IN_REGISTERS = frozenset({"scalar", "vector"})
"""Kinds of types that registers hold."""

_ADDRESSES = frozenset({"int32", "int64", "i1", "index"})
_UNSOUND = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What a rule raises for an operation that is not as its dialect defines it: text that a person wrote, unverified."""


def is_held(name: str, types: Sequence[ValueType], operands: Sequence[int], results: Sequence[int]) -> bool:
    """Whether an operation works on what registers hold: a loop around it is one kernel, not many runs of one."""
    return not name.startswith("linalg.") and all(types[v].kind in _IN_REGISTERS for v in results or operands[:1])


def spread(cost: Cost, runs: float) -> Cost:
    """All runs of an operation in a loop as one: as many times the rows."""
    batch, m, n, k = cost.loops
    return cost._replace(
        flops=cost.flops * runs,
        transcendentals=cost.transcendentals * runs,
        bytes_in=cost.bytes_in * runs,
        bytes_out=cost.bytes_out * runs,
        loops=(batch, m * runs, n, k),
    )


def in_registers(op: Op, cost: Cost) -> Cost:
    """A cost in a Triton kernel: arithmetic on integers computes addresses, and only what loads and stores moves bytes."""
    if op.dialect == "arith" and cost.kind == "elementwise" and cost.dtype in _ADDRESSES:
        return Cost("control")
    return cost if op.name in MEMORY else cost._replace(bytes_in=0.0, bytes_out=0.0)


def with_unsized(site: Site, cost: Cost) -> Cost:
    """Said of a cost where elements have no known size: their bytes are not in it; without arithmetic nothing is left."""
    arrays = [kind for kind in (*site.operands, *site.results) if kind.is_array and kind.is_static]
    unsized = sorted({kind.text for kind in arrays if not kind.itemsize_b and kind.elements})
    if not unsized:
        return cost
    if not cost.flops:
        return unknown(f"{site.name}: bytes per element of {unsized[0]} are not known")
    return cost._replace(note=f"bytes per element of {unsized[0]} are not known, {site.name} counts without them")


def costed(rule: Rule, site: Site) -> Cost:
    """What the rule says; what is not as its dialect defines it is not understood."""
    try:
        return rule.cost(site)
    except _UNSOUND:
        kinds = (*site.operands, *site.results)
        if any(kind.is_array and not kind.is_static for kind in kinds):
            return unknown(f"{site.name}: a size of it is not known")
        return unknown(f"{site.name} is not as its dialect defines it")


def signature(op: Op) -> tuple[object, ...]:
    """What a body computes: its operations, their attributes, how they are wired; the same for the same body elsewhere."""
    items: list[object] = []
    for region in op.regions:
        for block in region.blocks:
            ops = block.ops
            base = block.arguments[0] if block.arguments else (ops[0].results or (0,))[0] if ops else 0
            for inner in ops:
                items.append(inner.name)
                items.append(inner.attributes)
                for v in inner.operands:
                    if v >= base:
                        items.append(v - base)  # noqa: PERF401  a list of its own for each operation costs more
    return tuple(items)


def moving(operands: Iterable[ValueType], results: Iterable[ValueType], cost: Cost) -> Cost:
    """An operation that is not understood is taken to touch what it is given and what it gives, as far as that is known."""
    raw, created = (
        sum(kind.known_nbytes for kind in kinds if kind.kind in ("tensor", "memref")) for kinds in (operands, results)
    )
    return cost._replace(bytes_in=raw, bytes_out=created)
