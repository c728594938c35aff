"""What is not stored: views, constants, and operations that every kernel that needs them does again.

Broadcasts, fills, iotas, slices, operations on constants alone, integer arithmetic on single numbers, and cheap element
operations with one large input and several users. IREE clones the same into its dispatches (`isClonableIntoDispatchOp`); XLA
duplicates them unless `InstructionFusion::IsExpensive` says otherwise.
"""

from __future__ import annotations

from ..program import Node
from .dataflow import Flow
from .idioms import RANK, Cluster

_MOST_SOURCES = 6
"""Values that a recomputed operation may read; more and it is worth storing."""

_MOST_CARRIED = 24
"""Operations recomputed together with one, so that chains do not grow without end."""

_GENERATED = frozenset({"broadcast", "fill", "iota"})
_JOINED = frozenset({"concatenate", "pad"})
_ELEMENT = frozenset({"elementwise", "reduction"})


class Recomputing:
    """What values are made of. Asked and told of the nodes of a function in order.

    `home` is the kernel that stores a value; whoever forms kernels fills it. `part_of` is what a slice is cut from, `carried`
    the operations that are done again where a value is read, `swapped` the values whose two last axes are exchanged where they
    are read.
    """

    def __init__(self, flow: Flow) -> None:
        self.home: dict[int, Cluster] = {}
        self.part_of: dict[int, int] = {}
        self.carried: dict[int, tuple[int, ...]] = {}
        self.swapped: set[int] = set()
        self._flow = flow
        self._nodes = flow.nodes
        self._sources: dict[int, tuple[int, ...]] = {}
        self._constants: set[int] = set()
        self._returned: set[int] = set(flow.outputs)
        self._stored = _must_be_stored(flow, self._returned)

    def sources(self, value: int) -> tuple[int, ...]:
        """The stored values that a value is made of."""
        entry = self._sources.get(value)
        return (value,) if entry is None else entry

    def owner(self, value: int) -> Cluster | None:
        """The kernel that stores a value or, of a slice, what it is cut from."""
        cluster = self.home.get(self.part_of.get(value, value))
        return cluster if cluster is None or cluster.parent is None else cluster.current()

    def is_returned(self, value: int) -> bool:
        """Whether the function returns a value, or a view of it."""
        return value in self._returned

    def reads(self, index: int) -> dict[int, Cluster | None]:
        """The stored values that a node reads, with the kernels that store them."""
        result: dict[int, Cluster | None] = {}
        sources, home, parts = self._sources, self.home, self.part_of
        node = self._nodes[index]
        unread = node.detail.get("unread")
        for operand in node.operands[:-unread] if isinstance(unread, int) and unread else node.operands:
            behind = sources.get(operand)
            for value in (operand,) if behind is None else behind:
                cluster = home.get(parts.get(value, value) if parts else value)
                result[value] = cluster if cluster is None or cluster.parent is None else cluster.current()
        return result

    def free(self, index: int) -> None:
        """Takes note of a view or a constant."""
        node = self._nodes[index]
        kind = node.kind
        if kind == "view":
            for value in node.results:
                if value in self._flow.blank:
                    self._sources[value] = ()
                else:
                    self._hand_on(value, node.operands[0])
        elif kind == "constant":
            for value in node.results:
                self._constants.add(value)
                if value in self._flow.uniform or self._flow.elements(value) <= 1.0:
                    self._sources[value] = ()

    def movement(self, index: int) -> bool:
        """Takes note of a movement of data; whether it is not stored."""
        flow, node, operator = self._flow, self._flow.nodes[index], self._flow.operators[index]
        if len(node.results) != 1 or node.results[0] in self._returned:
            return False
        value = node.results[0]
        if not node.operands:
            self._sources[value] = ()
            self._constants.add(value)
            return operator in _GENERATED
        operand = node.operands[0]
        if operator in _GENERATED:
            same = flow.elements(operand) in (1.0, flow.elements(value))
            if value in self._stored and operand not in self._constants and not same:
                return False
            self._hand_on(value, operand)
            if not self._sources[value]:
                self._constants.add(value)
            return True
        if operand in self._constants and self._constant(index, value):
            return True
        if operator == "slice":
            self._slice(value, operand)
            return True
        if index in flow.passes:
            self._hand_on(value, operand)
            return True
        if operator == "transpose" and _is_layout(flow, index):
            self._hand_on(value, operand)
            self.swapped ^= {value}
            return True
        if operator == "pad" and _is_padding(flow, value):
            self._repeat(index, value, self.sources(operand))
            return True
        return False

    def note_view(self, index: int) -> bool:
        """Note a reduction of one element each, which is a view; returns whether the node is one.

        IREE computes one whose operand is an argument and whose result is returned (4 MB of `stablehlo.reduce` in 2 ms),
        except TOSA's, which its canonicaliser folds (1 µs).
        """
        node = self._flow.nodes[index]
        if not _drops_axes(self._flow, node):
            return False
        reads_no_kernel = all(self.owner(source) is None for source in self.sources(node.operands[0]))
        if reads_no_kernel and node.results[0] in self._returned and not node.op.startswith("tosa."):
            return False
        self._hand_on(node.results[0], node.operands[0])
        return True

    def element(self, index: int, reads: dict[int, Cluster | None]) -> bool:
        """Takes note of an element operation; whether it is not stored."""
        flow, node = self._flow, self._flow.nodes[index]
        if len(node.results) != 1:
            return False
        value = node.results[0]
        if value in self._returned:
            return False
        if self._constant(index, value):
            return True
        if value in self._stored or len(reads) > _MOST_SOURCES:
            return False
        if flow.sizes[index] <= 1.0 and node.dtype.startswith("i"):
            light = True
        else:
            light = (
                not node.transcendentals and len(flow.users.get(value, ())) > 1 and self._is_narrow(index, value, reads)
            )
        if not light or sum(len(self.carried.get(operand, ())) for operand in node.operands) >= _MOST_CARRIED:
            return False
        self._repeat(index, value, tuple(reads))
        return True

    def _hand_on(self, value: int, operand: int) -> None:
        """Makes a value the same as the one operand of a view or broadcast."""
        sources, constants = self._sources, self._constants
        entry = sources.get(operand)
        sources[value] = (operand,) if entry is None else entry
        if operand in constants:
            constants.add(value)
        if operand in self.carried:
            self.carried[value] = self.carried[operand]
        if operand in self.swapped:
            self.swapped.add(value)

    def _repeat(self, index: int, value: int, sources: tuple[int, ...]) -> None:
        """Makes a value one that is done again where it is read."""
        again = {index: None}
        for operand in self._flow.nodes[index].operands:
            if operand in self.carried:
                again.update(dict.fromkeys(self.carried[operand]))
        self._sources[value] = sources
        self.carried[value] = tuple(again)

    def _constant(self, index: int, value: int) -> bool:
        """Takes note of an operation on constants alone: compilers do it once, beforehand; on splats and iotas in passing."""
        operands, constants, sources = self._flow.nodes[index].operands, self._constants, self._sources
        # Numbers that no node makes are written in the text, or arguments that change nothing of what is done.
        producer, types = self._flow.producer, self._flow.types
        stored = result = False
        for operand in operands:
            if operand in constants:
                result = True
                stored = stored or sources.get(operand) != ()
            elif sources.get(operand) != () and (operand in producer or types[operand].is_array):
                return False
        if not result:
            return False
        constants.add(value)
        if not stored:
            self._repeat(index, value, ())
        return True

    def _is_narrow(self, index: int, value: int, reads: dict[int, Cluster | None]) -> bool:
        """Whether reading what a value is made of costs no more than reading it, and none of it comes from a kernel to join."""
        flow, size = self._flow, self._flow.sizes[index]
        for owner in reads.values():
            if owner is not None and ((not owner.closed and owner.space == size) or owner.kind in RANK):
                return False
        # An eighth more: a row vector or two beside the large input.
        if sum(flow.nbytes(source) for source in reads) > 1.125 * flow.nbytes(value):
            return False
        return all(flow.nodes[user].kind in _ELEMENT for user in flow.real_users(value))

    def _slice(self, value: int, operand: int) -> None:
        behind = self.sources(operand)
        self._hand_on(value, operand)
        if len(behind) == 1:
            self._sources[value] = (value,)
            self.part_of[value] = self.part_of.get(behind[0], behind[0])


def _must_be_stored(flow: Flow, returned: set[int]) -> set[int]:
    """What must be an array in memory because what reads it is no loop over elements.

    Adds to `returned` what is returned as a view of itself.
    """
    stored, operators = set[int](), flow.operators
    nodes = flow.nodes
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        kind = node.kind
        if kind == "view" or _drops_axes(flow, node):
            if node.operands and node.results:
                if node.results[0] in stored:
                    stored.add(node.operands[0])
                if node.results[0] in returned:
                    returned.add(node.operands[0])
        elif kind in _ELEMENT:
            continue
        elif kind == "contraction" or kind == "convolution":
            stored.update(node.operands[:2])
        elif kind == "movement":
            if operators[index] == "slice":
                if node.results and node.results[0] in stored:
                    stored.update(node.operands[:1])
            elif operators[index] in _JOINED:
                stored.update(node.operands)
        elif kind != "gather":
            stored.update(node.operands)
    return stored


def _drops_axes(flow: Flow, node: Node) -> bool:
    """Whether a reduction reduces one element each: its result is its operand. A place is no element."""
    return (
        node.kind == "reduction"
        and node.loops[3] == 1.0
        and len(node.results) == 1
        and bool(node.operands)
        and node.detail.get("operator") not in ("argmax", "argmin")
        and flow.elements(node.operands[0]) == flow.elements(node.results[0])
    )


def _is_padding(flow: Flow, value: int) -> bool:
    """Whether a padded array goes into convolutions alone whose own padding it is."""
    users = [flow.nodes[user] for user in flow.real_users(value)]
    return bool(users) and all(user.kind == "convolution" and user.detail.get("padding") for user in users)


def _is_layout(flow: Flow, index: int) -> bool:
    """Whether a transpose only swaps the two last axes of operands of products."""
    node = flow.nodes[index]
    if not flow.swaps_last(node):
        return False
    users = flow.real_users(node.results[0])
    return bool(users) and all(flow.nodes[user].kind == "contraction" for user in users)
