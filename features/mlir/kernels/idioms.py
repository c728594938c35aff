"""Softmax and normalisations written out as many operations, found again; and the names of well-known chains.

A pattern is anchored at the one operation that cannot be missing (the exponential of a softmax, the root of a
normalisation) and follows the data from there, so that the order of operations, the casts between them and the way a
dialect spells a division do not matter. Every match looks at a bounded number of operations.

The forms are those of `jax.nn.softmax`, `jax.nn.log_softmax`, `jnp.var` and Flax's norms, and of torch-mlir's
decompositions of softmax, layer_norm and rms_norm into torch, linalg, TOSA and StableHLO operations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .dataflow import Flow

_BUDGET = 96
"""Most operations looked at for one pattern; the longest form known, Flax's layer norm in bf16, has about 40."""

_ANCHORS = frozenset({"exp", "rsqrt", "sqrt"})
_SQUARES = frozenset({"square", "pow", "powu", "integer_pow"})
_MEMBERS = frozenset({"elementwise", "reduction"})
_SCALES = frozenset({"mul", "div", "mulu", "divu"})
_AFFINE = frozenset({"mul", "add", "sub", "mulu", "addu"})


@dataclass(frozen=True, slots=True)
class Idiom:
    """One softmax or normalisation over the last axis.

    Attributes:
        kind: `softmax` or `layernorm`, a kernel family.
        variant: The variant of the family.
        members: Positions of its nodes in order; the last one is where its result appears.
        source: The value it normalises.
        rows: Number of rows, 0 or more.
        cols: Elements of a row.
        stand_in: How it differs from the kernel of the family, empty where it is the same.
    """

    kind: str
    variant: str
    members: tuple[int, ...]
    source: int
    rows: float
    cols: float
    stand_in: str = ""


def find_idioms(flow: Flow) -> list[Idiom]:
    """Softmaxes and normalisations among the nodes, in order; no node is in two of them."""
    results: list[Idiom] = []
    taken: set[int] = set()
    for index, operator in enumerate(flow.operators):
        if operator not in _ANCHORS or index in taken or flow.nodes[index].kind != "elementwise":
            continue
        idiom = _softmax(flow, index) if operator == "exp" else _normalization(flow, index)
        if idiom is not None and taken.isdisjoint(idiom.members):
            results.append(idiom)
            taken.update(idiom.members)
    return results


def _softmax(flow: Flow, index: int) -> Idiom | None:
    exponential = flow.nodes[index]
    users = flow.real_users(exponential.results[0])
    total = next((user for user in users if _reduces(flow, user, ("sum",))), None)
    if total is None:
        return None
    _, rows, _, cols = flow.nodes[total].loops
    if flow.sizes[index] != rows * cols:
        return None
    shifted = flow.strip(exponential.operands[0])
    source, maximum = _shifted_by(flow, shifted, "max")
    last = _divided_by(flow, users, total, _SCALES)
    note = "" if maximum else "does not subtract the maximum"
    if last is None:
        last = _divided_by(flow, flow.real_users(shifted), total, frozenset({"sub"}))
        note = "is the logarithm of a softmax"
    if last is None or flow.sizes[last] != rows * cols:
        return None
    return _idiom(flow, "softmax", "", (last,), source, rows, cols, note)


def _divided_by(flow: Flow, users: Iterable[int], total: int, operators: frozenset[str]) -> int | None:
    for user in users:
        node = flow.nodes[user]
        if node.kind == "elementwise" and flow.operators[user] in operators and user != total:
            divisor = next((value for value in node.operands if _reaches(flow, value, {total})), None)
            if divisor is not None:
                return user
    return None


def _shifted_by(flow: Flow, value: int, operator: str) -> tuple[int, bool]:
    """What a value was before its rows' maximum or mean was taken off, and whether one was."""
    index = flow.producer.get(value)
    if index is None or flow.nodes[index].kind != "elementwise" or flow.operators[index] != "sub":
        return value, False
    operands = flow.nodes[index].operands
    if len(operands) < 2:
        return value, False
    minuend = flow.strip(operands[0])
    names = ("max", "argmax") if operator == "max" else ("sum", "mean")
    for reduction in _reductions_behind(flow, operands[1]):
        reduced = flow.nodes[reduction]
        if _reduces(flow, reduction, names) and flow.strip(reduced.operands[0]) == minuend:
            return minuend, True
    return value, False


def _normalization(flow: Flow, index: int) -> Idiom | None:
    rooted = flow.nodes[index]
    if not rooted.operands:
        return None
    rows = flow.sizes[index]
    source, centre, variant, cols = None, None, "rmsnorm", 0.0
    for reduction in _reductions_behind(flow, rooted.operands[0]):
        node = flow.nodes[reduction]
        if not _reduces(flow, reduction, ("sum", "mean", "var")) or node.loops[1] != rows:
            return None
        cols = node.loops[3]
        if flow.operators[reduction] == "var":
            source, variant = flow.strip(node.operands[0]), "layernorm"
            continue
        squared = _squared(flow, node.operands[0])
        if squared is None:
            # E[x²] − E[x]²: the mean of x beside the mean of its squares.
            variant = "layernorm"
        else:
            source, centred = _shifted_by(flow, squared, "mean")
            centre, variant = squared, "layernorm" if centred else variant
    if source is None or cols <= 1:
        return None
    lasts, vectors = _scaled_by(flow, index, (source, centre), rows * cols, cols)
    if not lasts:
        return None
    missing = ("has no scale", "") if variant == "rmsnorm" else ("has no scale and shift", "has no shift", "")
    note = missing[min(vectors, len(missing) - 1)]
    return _idiom(flow, "normalization", variant, lasts, source, rows, cols, note)


def _scaled_by(
    flow: Flow, root: int, sources: tuple[int, int | None], size: float, cols: float
) -> tuple[tuple[int, ...], int]:
    """The last operation of a normalisation, from its root on, and how many row vectors scaled or shifted it.

    `sources` are the value normalised and the same less its mean, as the variance was taken of it.
    """
    lasts: tuple[int, ...] = ()
    vectors, current, reached = 0, root, False
    for _ in range(8):
        users = flow.real_users(flow.nodes[current].results[0])
        full = [u for u in users if flow.nodes[u].kind == "elementwise" and flow.sizes[u] == size]
        if len(full) != 1 or (reached and len(users) != 1):
            break
        step = full[0]
        operator = flow.operators[step]
        strip = flow.strip(flow.nodes[current].results[0])
        others = [
            v
            for v in flow.nodes[step].operands
            if flow.strip(v) != strip and not (v in flow.blank or flow.is_uniform(v))
        ]
        if not reached and operator in _SCALES and any(_from_source(flow, v, sources) for v in others):
            reached = True
        elif operator in _AFFINE and len(others) == 1 and (not reached or _is_row(flow, others[0], cols)):
            vectors += 1
        elif reached:
            break
        else:
            return (), 0
        current = step
        if reached:
            lasts = (step,)
    return lasts, vectors


def _is_row(flow: Flow, value: int, cols: float) -> bool:
    """Whether a value scales or shifts every row alike."""
    return 1 < flow.elements(flow.strip(value)) <= cols


def _from_source(flow: Flow, value: int, sources: tuple[int, int | None]) -> bool:
    """Whether a value is the source, or the source less the mean of its rows."""
    value = flow.strip(value)
    return value in sources or _shifted_by(flow, value, "mean") == (sources[0], True)


def _squared(flow: Flow, value: int) -> int | None:
    """What a value is the square of, None where it is no square."""
    index = flow.producer.get(flow.strip(value))
    if index is None or flow.nodes[index].kind != "elementwise":
        return None
    node = flow.nodes[index]
    operator = flow.operators[index]
    behind = [flow.strip(operand) for operand in node.operands if operand not in flow.blank]
    if operator in _SQUARES and behind:
        return behind[0]
    if operator in ("mul", "mulu") and behind and (len(behind) == 1 or behind[0] == behind[1]):
        return behind[0]
    return None


def _reduces(flow: Flow, index: int, operators: tuple[str, ...]) -> bool:
    node = flow.nodes[index]
    return (
        node.kind == "reduction"
        and bool(node.operands)
        and flow.operators[index] in operators
        and node.detail.get("axis", "inner") == "inner"
        and node.loops[3] > 1.0
    )


def _reductions_behind(flow: Flow, value: int) -> tuple[int, ...]:
    """Reductions that a value of one number a row comes from, through element operations."""
    known = flow.reductions.get(value)
    if known is not None:
        return known
    nodes, producer, passes = flow.nodes, flow.producer, flow.passes
    items: list[int] = []
    seen: set[int] = set()
    pending = [value]
    while pending and len(seen) < 24:
        index = producer.get(pending.pop())
        if index is None or index in seen:
            continue
        seen.add(index)
        node = nodes[index]
        kind = node.kind
        if kind == "reduction":
            items.append(index)
        elif kind == "elementwise" or index in passes:
            pending += node.operands
    flow.reductions[value] = behind = tuple(items)
    return behind


def _reaches(flow: Flow, value: int, targets: set[int]) -> bool:
    return not targets.isdisjoint(_reductions_behind(flow, value))


def _idiom(
    flow: Flow, kind: str, variant: str, lasts: tuple[int, ...], source: int, rows: float, cols: float, note: str
) -> Idiom | None:
    members = _members(flow, lasts, source)
    if not members or not _is_closed(flow, members):
        return None
    return Idiom(kind, variant, members, source, rows, cols, note)


def _members(flow: Flow, lasts: tuple[int, ...], source: int) -> tuple[int, ...]:
    """Everything between the source and the last operations, broadcasts and views left out; empty where it is too much."""
    nodes, passes = flow.nodes, flow.passes
    first, last = flow.producer.get(source, -1), max(lasts)
    between = range(first + 1, last + 1) if last - first <= _BUDGET else _leading_to(flow, lasts, source, first)
    created, depending = {source}, []
    for index in between:
        node = nodes[index]
        if not created.isdisjoint(node.operands) and (node.kind in _MEMBERS or index in passes):
            created.update(node.results)
            depending.append(index)
    read: set[int] = set()
    items: list[int] = []
    for index in reversed(depending):
        node = nodes[index]
        if index in lasts or not read.isdisjoint(node.results):
            read.update(node.operands)
            if node.kind in _MEMBERS:
                items.append(index)
    return tuple(reversed(items))


def _leading_to(flow: Flow, lasts: tuple[int, ...], source: int, first: int) -> list[int]:
    """The operations after `first` that the last ones come from, not by way of the source, in order; none beyond a budget."""
    nodes, producer, passes = flow.nodes, flow.producer, flow.passes
    seen: set[int] = set()
    pending = list(lasts)
    while pending:
        index = pending.pop()
        if index in seen:
            continue
        if len(seen) > _BUDGET:
            return []
        seen.add(index)
        node = nodes[index]
        if node.kind in _MEMBERS or index in passes:
            for value in node.operands:
                behind = producer.get(value, -1)
                if behind > first and value != source:
                    pending.append(behind)
    return sorted(seen)


def _is_closed(flow: Flow, members: tuple[int, ...]) -> bool:
    """Whether nothing outside needs an intermediate value before the last one is there."""
    inside, last = set(members), members[-1]
    return all(
        user in inside or user > last
        for index in members
        for value in flow.nodes[index].results
        for user in flow.real_users(value)
    )


ACTIVATIONS: tuple[tuple[str, frozenset[str], int], ...] = (
    ("gelu", frozenset({"gelu"}), 1),
    ("silu", frozenset({"silu"}), 1),
    ("relu", frozenset({"relu"}), 1),
    ("gelu", frozenset({"erf", "mul", "add"}), 3),
    ("gelu", frozenset({"erf", "mulu", "addu"}), 3),
    ("gelu", frozenset({"tanh", "mul", "add"}), 7),
    ("silu", frozenset({"sigmoid", "mul"}), 2),
    ("silu", frozenset({"exp", "neg", "add", "div", "mul"}), 5),
    ("sigmoid", frozenset({"exp", "neg", "add", "div"}), 4),
    ("sigmoid", frozenset({"sigmoid"}), 1),
    ("tanh", frozenset({"tanh"}), 1),
)
"""Activations by the operators they are written out in and the fewest operations of the form: PyTorch's definitions of GELU
(erf and tanh forms) and SiLU, and `jax.nn.gelu`, `jax.nn.silu`. The first that fits names a chain."""


def activation(operators: list[str]) -> str:
    """The activation that a chain of element operations is, empty where it is none known."""
    present = set(operators)
    for name, needed, fewest in ACTIVATIONS:
        if needed <= present and len(operators) >= fewest:
            return name
    return ""


RANK = {
    "contraction": 3,
    "convolution": 3,
    "attention": 3,
    "softmax": 2,
    "normalization": 2,
    "reduction": 2,
    "gather": 2,
}
"""Kinds that give a kernel its name, the strongest with the largest number; all others are 1."""


@dataclass(slots=True, eq=False)
class Cluster:
    """A kernel being formed: its nodes, what it reads, and what may still join it.

    Attributes:
        kind: The kind of its main operation.
        root: Position of its main operation.
        space: The number of elements that an operation must have to join.
        body: Number of the loop body it is in.
        nodes: Positions of its operations.
        lights: Operations recomputed in it.
        reads: Values it reads.
        level: Larger than those of the kernels it reads.
        is_read: Whether another kernel reads it.
        closed: Whether it takes nothing in.
        idiom: The softmax or normalisation it is.
        swapped: Which operands of its product come transposed.
        turned: Whether its result goes out transposed.
        parent: What it was merged into.
    """

    kind: str
    root: int
    space: float
    body: int
    nodes: list[int] = field(default_factory=list)
    lights: set[int] = field(default_factory=set)
    reads: set[int] = field(default_factory=set)
    level: int = 0
    is_read: bool = False
    closed: bool = False
    idiom: Idiom | None = None
    swapped: tuple[bool, bool] = (False, False)
    turned: bool = False
    parent: Cluster | None = None

    def current(self) -> Cluster:
        """The kernel it is a part of now."""
        cluster = self
        while cluster.parent is not None:
            cluster = cluster.parent
        if cluster is not self:
            self.parent = cluster
        return cluster

    def absorb(self, other: Cluster) -> None:
        """Takes in another kernel that no third one reads."""
        if len(other.nodes) > len(self.nodes):
            self.nodes, other.nodes = other.nodes, self.nodes
        self.nodes += other.nodes
        self.lights |= other.lights
        self.reads |= other.reads
        self.level = max(self.level, other.level)
        other.parent = self
