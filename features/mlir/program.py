"""What a function of a module does: its operations with their cost on paper, and the kernels a compiler makes of them.

The understanding of MLIR has two levels. `Node`s are operations, costed one by one. `Group`s are what runs as one kernel:
a contraction with the elementwise operations fused into it, a softmax, a chain of elementwise operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ..kernel import KernelSpec
from .types.graph import ValueType

KINDS = (
    "contraction", "convolution", "attention", "normalization", "softmax", "reduction", "elementwise", "movement", "gather",
    "sort", "random", "view", "constant", "control", "unknown",
)  # fmt: skip
"""What an operation does. `movement` copies or rearranges data (transpose, concatenate, pad, materialised broadcasts), `gather`
reads or writes at computed places (gather, scatter, embedding), `view` moves nothing (reshape, tensor.empty), `control` is
calls, loops and returns, whose bodies are nodes of their own. `unknown` was not understood."""

FREE = frozenset({"view", "constant", "control"})
"""Kinds that cost nothing themselves."""


@dataclass(slots=True)
class Node:
    """One operation and what one run of it costs.

    Attributes:
        op: Name of the operation, with its dialect.
        kind: What it does, such as `contraction` or `elementwise`.
        operands: Value numbers it reads.
        results: Value numbers it defines.
        dtype: What it computes in, by the name kernelcast has for it.
        flops: Arithmetic operations; a multiply-add is two.
        transcendentals: Exponentials, roots, divisions and the like among its element operations.
        bytes_in: Bytes of its operands it touches, each once, as if it ran alone.
        bytes_out: Bytes of its results, likewise.
        loops: `(batch, m, n, k)` of a contraction or of the product a convolution amounts to; `(1, rows kept, 1, elements
            reduced)` of a reduction; `(1, rows, 1, length of a row)` of a softmax, a normalisation or a sort;
            `(1, elements, 1, 1)` of all others.
        detail: What recognising its kernel needs: `kernel`, `stride` … of a convolution, `axis` and `operator` of a
            reduction, `along`, `axis`, `descending` and `window` of a sort, `cumulative` of a window, `is_prefix` of a
            slice, `operator` of an elementwise operation, how many of its last operands are written and `unread`.
        note: Why it is not, or only partly, understood; empty otherwise.
        runs: How often it runs: the product of the trip counts around it.
        line: Line of the text, from 1; None where the parser does not tell.
    """

    op: str
    kind: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    dtype: str
    flops: float = 0.0
    transcendentals: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    loops: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    detail: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    note: str = ""
    runs: float = 1.0
    line: int | None = None

    @property
    def understood(self) -> bool:
        """Whether its cost is known."""
        return self.kind != "unknown"

    @property
    def parallelism(self) -> float:
        """Independent results it computes: batch, rows and columns."""
        return self.loops[0] * self.loops[1] * self.loops[2]


@dataclass(frozen=True, slots=True)
class Group:
    """Operations that run as one kernel; costs are of one run.

    Attributes:
        nodes: Positions in `Program.nodes`, in order.
        kind: The kind of its main operation.
        dtype: What its main operation computes in.
        flops: Arithmetic operations.
        transcendentals: Exponentials, roots, divisions and the like.
        bytes_in: Bytes that enter the group; values that stay inside are not counted.
        bytes_out: Bytes that leave it, likewise.
        runs: How often it runs.
        parallelism: Number of independent results, which bounds how many cores can work on it.
        spec: The kernel it was recognised as, None where there is no family for it.
        stand_in: How the spec differs from what the group does, empty where it is the same.
        needs: Positions of the groups whose results it reads.
        title: A short title for people.
    """

    nodes: tuple[int, ...]
    kind: str
    dtype: str
    flops: float
    transcendentals: float
    bytes_in: float
    bytes_out: float
    runs: float
    parallelism: float
    spec: KernelSpec | None
    stand_in: str
    needs: tuple[int, ...]
    title: str


@dataclass(frozen=True, slots=True)
class Program:
    """A function, understood: what it computes and what that costs on paper.

    Attributes:
        function: Name of the function.
        reader: Name of the parser that read the text.
        nodes: Its operations in order; those of called functions and loop bodies lie in the place of the call.
        groups: The kernels they run as.
        types: Types of values, sizes bound.
        arguments: Value numbers of its arguments.
        outputs: Value numbers it returns.
        unread_share: Share of the operations of the text that no parser could read.
        notes: What a user must know of the understanding, in sentences.
    """

    function: str
    reader: str
    nodes: Sequence[Node]
    groups: Sequence[Group]
    types: Sequence[ValueType]
    arguments: tuple[int, ...]
    outputs: tuple[int, ...]
    unread_share: float
    notes: tuple[str, ...]

    @property
    def flops(self) -> float:
        """Arithmetic of the whole, trip counts included."""
        return sum(node.flops * node.runs for node in self.nodes)

    @property
    def bytes(self) -> float:
        """Traffic between the kernels of the whole, and with its arguments and results, in bytes."""
        return sum((group.bytes_in + group.bytes_out) * group.runs for group in self.groups)

    @property
    def footprint_b(self) -> float:
        """Bytes of arguments and results together, those of unknown size left out."""
        return sum(self.types[value].known_nbytes for value in {*self.arguments, *self.outputs})

    @property
    def intensity(self) -> float:
        """Arithmetic intensity of the whole, flops per byte between kernels; 0 where nothing is moved."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def not_understood(self) -> tuple[Node, ...]:
        """Operations whose cost is not known."""
        return tuple(node for node in self.nodes if not node.understood)
