"""What a dialect's rules are: from an operation at its place to what it costs, its sizes, and the integers it folds to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from ..types import attributes
from ..types.graph import Op, ValueType
from .operators import Body, read_body

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
    """An operation with the types of its operands and results, sizes bound, and the facts known around it.

    Attributes:
        op: The operation.
        operands: Types of its operands.
        results: Types of its results.
        known: The integers that an operand is known to be, by its position.
        maker: The operation that made an operand, None for arguments.
        runs: How often the operation runs.
        parts: Types of the elements of an operand that is a list.
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
    def computed(self) -> Body:
        """What its body computes for one element."""
        entered = next((block.arguments for region in self.op.regions for block in region.blocks), ())
        return read_body(self.body, entered)

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
        if isinstance(known, tuple) and all(isinstance(item, int) for item in known):
            return tuple(int(item) for item in known if isinstance(item, int))
        return None


CostOf = Callable[[Site], Cost]
ShapesOf = Callable[[Site], "tuple[Shape | None, ...] | None"]
FoldOf = Callable[[Site], Known]


@dataclass(frozen=True, slots=True)
class Rule:
    """What is known of one operation.

    Attributes:
        cost: What it costs.
        shapes: Shapes of its results where the text leaves sizes open; None: inferred from the operands.
        fold: The integers of its first result; None: not known.
        reads: What the cost depends on beside types and attributes: `values` that are known, the `makers` of its operands,
            or how often it `runs`.
    """

    cost: CostOf
    shapes: ShapesOf | None = None
    fold: FoldOf | None = None
    reads: str = ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect, or a few that belong together; one file of `dialects/`.

    Attributes:
        name: Name of the dialect.
        rules: Rules by operation name.
        structure: For each word of `STRUCTURES` the operations that are so, in one text with blanks between them.
    """

    name: str
    rules: Mapping[str, Rule]
    structure: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


STRUCTURES = ("call", "for", "while", "branch", "body", "launch", "end", "jump", "insert")
"""What an operation with regions or successors does: calls a function, counts, loops on a condition, chooses between
regions, has a body that runs once, launches one on a GPU, ends a region, goes to another block, inserts what a parallel
loop made."""


def rules(
    dialect: str,
    names: str | Iterable[str],
    cost: CostOf,
    shapes: ShapesOf | None = None,
    *,
    fold: FoldOf | None = None,
    reads: str = "",
) -> dict[str, Rule]:
    """The same rule for several operations of a dialect; names as a list, or in one text with blanks between them.

    Args:
        dialect: Prefix of the operations' names.
        names: The operations, a list or one text with blanks between them.
        cost: From an operation at its place to its cost.
        shapes: From an operation to the shapes of its results; None keeps those of the text.
        fold: From an operation to the integers it computes; None for none.
        reads: What the cost depends on besides types and attributes, a word of `Rule.reads`.
    """
    rule = Rule(cost, shapes, fold, reads)
    return {f"{dialect}.{name}": rule for name in (names.split() if isinstance(names, str) else names)}
