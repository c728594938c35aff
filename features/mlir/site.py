"""What a dialect's rules are: from an operation at its place to what it costs, its sizes, and the integers it folds to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from . import attributes
from .graph import Op, ValueType

Known = int | float | tuple["Known", ...] | None
"""What is known of a value that is no data: an integer, a list of them, None where it is not known."""

Loops = tuple[float, float, float, float]
Shape = tuple[int | None, ...]
NOTHING: Mapping[str, object] = MappingProxyType({})


class Cost(NamedTuple):
    """A node's kind and costs, the fields of `Node` in their order."""

    kind: str
    dtype: str = ""
    flops: float = 0.0
    transcendentals: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    loops: Loops = (1.0, 1.0, 1.0, 1.0)
    detail: Mapping[str, object] = NOTHING
    note: str = ""


@dataclass(frozen=True)
class Site:
    """An operation with the types of its operands and results, sizes bound, and what is known around it.

    `known(i)` is what operand i is known to be, `maker(i)` the operation that made it, None for arguments. `runs` is how
    often it runs, `parts(i)` the types of the elements of operand i, a list.
    """

    op: Op
    operands: tuple[ValueType, ...]
    results: tuple[ValueType, ...]
    known: Callable[[int], Known] = lambda position: None
    maker: Callable[[int], Op | None] = lambda position: None
    runs: float = 1.0
    parts: Callable[[int], tuple[ValueType, ...]] = lambda position: ()

    @property
    def name(self) -> str:
        """The operation's name."""
        return self.op.name

    @property
    def text(self) -> str:
        """The text of its attributes."""
        return self.op.attributes

    @cached_property
    def short(self) -> str:
        """The name without its dialect."""
        return self.op.name.rpartition(".")[2]

    @cached_property
    def arrays(self) -> tuple[ValueType, ...]:
        """Types of the operands that have elements."""
        return tuple(kind for kind in self.operands if kind.is_array)

    @cached_property
    def body(self) -> tuple[Op, ...]:
        """Operations of its regions' blocks, in order; regions inside are not entered."""
        return tuple(op for region in self.op.regions for block in region.blocks for op in block.ops)

    @cached_property
    def body_arguments(self) -> tuple[int, ...]:
        """Values its first region is entered with."""
        return next((block.arguments for region in self.op.regions for block in region.blocks), ())

    def ints(self, *names: str) -> tuple[int, ...] | None:
        """Integers of the first of these attributes that there is."""
        return attributes.integers(self.op.attributes, *names)

    def int_of(self, *names: str) -> int | None:
        """Integer of the first of these attributes that there is."""
        return attributes.integer(self.op.attributes, *names)

    def listed(self, position: int) -> tuple[int, ...] | None:
        """The integers that an operand is known to be; None where one of them is not."""
        known = self.known(position) if position < len(self.operands) else None
        if isinstance(known, int):
            return (known,)
        if isinstance(known, tuple) and all(isinstance(one, int) for one in known):
            return tuple(int(one) for one in known if isinstance(one, int))
        return None


CostOf = Callable[[Site], Cost]
ShapesOf = Callable[[Site], "tuple[Shape | None, ...] | None"]
FoldOf = Callable[[Site], Known]


@dataclass(frozen=True, slots=True)
class Rule:
    """What is known of one operation.

    `cost` says what it costs. `shapes` gives the shapes of its results where the text leaves sizes open; without it they are
    inferred from the operands. `fold` gives the integers of its (first) result. `reads` says what the cost depends on besides
    types and attributes: `values` that are known, the `makers` of its operands, or how often it `runs`.
    """

    cost: CostOf
    shapes: ShapesOf | None = None
    fold: FoldOf | None = None
    reads: str = ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect, or a few that belong together: rules by operation name, and `structure`: operations whose regions are entered.

    `structure` maps a name to the word for what it is, one of `STRUCTURES`.
    """

    name: str
    rules: Mapping[str, Rule]
    structure: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


STRUCTURES = ("call", "for", "while", "branch", "body", "launch", "end", "jump", "insert")
"""What an operation with regions or successors does: calls a function, counts, loops on a condition, chooses between
regions, has a body that runs once, launches one on a GPU, ends a region, goes to another block, inserts what a parallel
loop made."""


def rules(
    names: str | Iterable[str],
    cost: CostOf,
    *,
    dialect: str = "",
    shapes: ShapesOf | None = None,
    fold: FoldOf | None = None,
    reads: str = "",
) -> dict[str, Rule]:
    """The same rule for several operations of a dialect; names as a list, or in one text with blanks between them."""
    rule = Rule(cost, shapes, fold, reads)
    listed = names.split() if isinstance(names, str) else names
    return {f"{dialect}.{name}" if dialect else name: rule for name in listed}
