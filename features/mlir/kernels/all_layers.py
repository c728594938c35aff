"""Puts back the equal layers that were left out of a program's text: copies of the nodes and kernels of one that was read.

Of the layers that were read, the last but one, the model, and the one before it must have the same nodes and kernels, wired
alike. Then the model stands for those between it and the last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise

from ..parse.text_limits import MAX_OPS
from ..program import Group, Node
from ..semantics.dead_code import values_read
from ..types.graph import LAYERS_READ, Block, Function, Origin, RepeatedLayers, Shortened, ValueType

_LAST = LAYERS_READ - 1
_MODEL = LAYERS_READ - 2

Values = Sequence[int]


class WholeTextNeeded(Exception):  # noqa: N818  no error: the whole text is read
    """What was read of a shortened text does not tell what the whole text says."""

    def __init__(self, shortened: Shortened) -> None:
        super().__init__("the layers that were read do not give the whole program")
        self.shortened = shortened


def layer_inputs(shortened: Shortened, function: Function, types: Sequence[ValueType]) -> Sequence[tuple[int, ...]]:
    """For each layer of the whole text the values that it reads and the layer before does not.

    Raises:
        WholeTextNeeded: the layers are not this function's.
    """
    blocks, layers = function.body.blocks if function.body is not None else [], shortened.layers
    if (
        len(blocks) != 1
        or all(op.line != layers.line for op in blocks[0].ops)
        or _carries_numbers(blocks[0], layers, types)
    ):
        raise WholeTextNeeded(shortened)
    values: dict[Origin, int] = {
        ("line", op.line): op.results[0] for op in blocks[0].ops if op.line and len(op.results) == 1
    }
    values.update((("argument", position), value) for position, value in enumerate(function.arguments))
    try:
        return [tuple([values[origin] for origin in origins]) for origins in layers.origins]
    except KeyError:
        raise WholeTextNeeded(shortened) from None


_MOST_NUMBERS = 8
"""Elements of the largest array of integers whose values may be followed, as those of shapes and counters are."""


def _carries_numbers(block: Block, layers: RepeatedLayers, types: Sequence[ValueType]) -> bool:
    """Whether numbers that are no data go from a layer to the next, or to what follows: they may count the layers."""
    layer_of: dict[int, int | None] = {}
    for op in block.ops:
        layer = layers.layer_of(op.line)
        if any(layer_of.get(value, layer) != layer for value in values_read(op)):
            return True
        if layer is not None:
            layer_of.update((value, layer) for value in op.results if _may_count(types[value]))
    return False


def _may_count(kind: ValueType) -> bool:
    if not kind.is_array:
        return True
    # Names of integers begin so, those of `index` and of odd widths among them.
    return kind.dtype.startswith("i") and (not kind.is_static or kind.elements <= _MOST_NUMBERS)


def with_all_layers(
    shortened: Shortened,
    inputs: Sequence[Values],
    nodes: Sequence[Node],
    groups: Sequence[Group],
    types: list[ValueType],
    returned: Values,
) -> tuple[list[Node], tuple[Group, ...], tuple[int, ...]]:
    """Nodes, kernels and outputs of the whole text, from those of the shorter one, whose nodes are not to be used any more.

    Args:
        shortened: The layers of the text.
        inputs: For each layer of the whole text the values that it reads and the layer before does not.
        nodes: Nodes of the shorter text.
        groups: Its kernels.
        types: Types of its values; those of added layers are appended.
        returned: Values that it returns, in order, some of them more than once.

    Raises:
        WholeTextNeeded: the layers that were read are not alike, or the program is too large.
    """
    layers = shortened.layers
    starts = _starts(layers, nodes)
    if starts is not None and len(nodes) + (layers.n_layers - LAYERS_READ) * (starts[1] - starts[0]) <= MAX_OPS:
        stack = _ReadLayers(layers, inputs, nodes, groups, starts)
        if stack.match_nodes(types, returned) and stack.reads_only_the_last_layer(returned) and stack.match_kernels():
            created = [*stack.created, *stack.added_values(types)]
            outputs = stack.all_outputs(created, returned)
            if outputs is not None:
                return stack.all_nodes(created), stack.all_groups(), outputs
    raise WholeTextNeeded(shortened)


def _starts(layers: RepeatedLayers, nodes: Iterable[Node]) -> list[int] | None:
    """Where each layer's nodes begin, and where those of the last one end; None where layers do not follow each other, or are
    not equally long. Nodes of called functions are in other lines, and belong to the layer around them.
    """
    places: list[list[int]] = [[] for _ in range(LAYERS_READ)]
    for position, node in enumerate(nodes):
        layer = layers.layer_of(node.line)
        if layer is not None:
            places[min(layer, _LAST)].append(position)
    if not all(places):
        return None
    starts = [*(place[0] for place in places), places[_LAST][-1] + 1]
    follow = all(place[-1] < after for place, after in zip(places, starts[1:], strict=True))
    lengths = {after - before for before, after in pairwise(starts[:LAYERS_READ])}
    return starts if follow and len(lengths) == 1 else None


class _Positions:
    """Positions of nodes or kernels that those of layers name.

    Some are a step further in each layer; others stay, those before the layers, from `start` on, among them.
    """

    def __init__(self, step: int, start: int) -> None:
        self._step = step
        self._start = start
        self._stay: set[int] = set()
        self._move: set[int] = set()

    def match(self, before: Sequence[int], of_model: Sequence[int]) -> bool:
        """Whether the model names what the layer before it does, a layer further or the same; notes which."""
        if len(before) != len(of_model):
            return False
        for earlier, other in zip(before, of_model, strict=True):
            (self._stay if earlier == other else self._move).add(other)
            if other != earlier and (earlier < self._start or other != earlier + self._step):
                return False
        return self._stay.isdisjoint(self._move)

    def are_known(self, positions: Iterable[int], end: int) -> bool:
        """Whether it is known of all positions if they move: before the layers none does, from `end` on all do, and between
        those that the model names, or will name in the next layer.
        """
        known = self._stay | self._move
        return all(p < self._start or p >= end or p in known or p - self._step in self._move for p in positions)

    def moved(self, positions: Iterable[int], layers: int) -> tuple[int, ...]:
        by, stay, start = layers * self._step, self._stay, self._start
        return tuple([p if p < start or p in stay else p + by for p in positions])


class _ReadLayers:
    """The layers that were read.

    Nodes are in the order of the text: `length` of each layer, from `starts` on. Kernels are not: one that waits for others
    may come after the first ones of the next layer. So a layer's kernels are `n_groups` in a row, those of the model the ones
    before the first of the last layer, at `last_group`.
    """

    def __init__(
        self,
        layers: RepeatedLayers,
        inputs: Sequence[Values],
        nodes: Sequence[Node],
        groups: Sequence[Group],
        starts: Sequence[int],
    ) -> None:
        self.layers = layers
        self.inputs = inputs
        self.nodes = nodes
        self.groups = groups
        self.starts = starts
        self.length = starts[1] - starts[0]
        self.n_added = layers.n_layers - LAYERS_READ
        ends = [group.nodes[-1] for group in groups]
        self.n_groups = sum(starts[_MODEL] <= end < starts[_LAST] for end in ends)
        self.last_group = next((i for i, end in enumerate(ends) if end >= starts[_LAST]), len(ends))
        self.in_nodes = _Positions(self.length, starts[0])
        first_group = next((i for i, end in enumerate(ends) if end >= starts[0]), len(ends))
        self.in_needs = _Positions(self.n_groups, first_group)
        self.created = [
            [value for node in nodes[start:end] for value in node.results]
            for start, end in pairwise(starts[:LAYERS_READ])
        ]
        """Values that each layer makes but the last one; of the model and the one before also numbers written in their text."""

    def match_nodes(self, types: Sequence[ValueType], returned: Values) -> bool:
        """Whether the model's nodes are those of the layer before it, and all layers' inputs are alike; notes the numbers that
        the two have in their text.
        """
        nodes, length = self.nodes, self.length
        names: dict[int, int] = {}
        for layer in range(_MODEL):
            if len(self.created[layer]) != len(self.created[layer + 1]):
                return False
            names.update(zip(self.inputs[layer], self.inputs[layer + 1], strict=True))
            names.update(zip(self.created[layer], self.created[layer + 1], strict=True))
        elsewhere = {value for node in nodes for value in node.results}.union(*self.inputs)
        for i in range(self.starts[_MODEL - 1], self.starts[_MODEL]):
            node, of_model = nodes[i], nodes[i + length]
            if not _do_the_same(node, of_model):
                return False
            for value, wanted in zip(node.operands, of_model.operands, strict=True):
                if names.get(value, value) == wanted:
                    continue
                # Numbers written in the text leave no node; each layer has its own.
                if value in names or value in elsewhere or wanted in elsewhere or types[value].is_array:
                    return False
                names[value] = wanted
                self.created[_MODEL - 1].append(value)
                self.created[_MODEL].append(wanted)
        alike = (
            zip(names, names.values(), strict=True),
            *(zip(self.inputs[_MODEL], layer, strict=True) for layer in self.inputs),
        )
        outputs = set(returned)
        return all(types[value] == types[other] for value, other in chain.from_iterable(alike)) and all(
            (value in outputs) == (of_model in outputs)
            for value, of_model in zip(self.created[_MODEL - 1], self.created[_MODEL], strict=True)
        )

    def reads_only_the_last_layer(self, returned: Values) -> bool:
        """Whether what follows the last layer reads nothing of the layers before it, nor what they read; neither is an input
        returned, nor anything computed before the layers read both by them and after them.
        """
        nodes, starts = self.nodes, self.starts
        before = set().union(*self.created, *self.inputs[:-1]).difference(self.inputs[-1])
        read = {value for node in nodes[starts[0] : starts[LAYERS_READ]] for value in node.operands}
        shared = {value for node in nodes[: starts[0]] if node.kind != "constant" for value in node.results} & read
        inputs = set().union(*self.inputs)
        return inputs.isdisjoint(returned) and all(
            before.isdisjoint(node.operands) and shared.isdisjoint(node.operands)
            for node in nodes[starts[LAYERS_READ] :]
        )

    def match_kernels(self) -> bool:
        """Whether the model's kernels are those of the layer before it, and what those after them need is known."""
        groups, first = self.groups, self.last_group - self.n_groups
        if first < self.n_groups:
            return False
        for i in range(first, self.last_group):
            group, of_model = groups[i - self.n_groups], groups[i]
            if not (
                self.in_nodes.match(group.nodes, of_model.nodes)
                and self.in_needs.match(group.needs, of_model.needs)
                and replace(group, nodes=of_model.nodes, needs=of_model.needs) == of_model
            ):
                return False
        return _grow_alike(self.groups, self.starts, self.n_groups, self.last_group) and all(
            self.in_nodes.are_known(group.nodes, self.starts[_MODEL]) and self.in_needs.are_known(group.needs, first)
            for group in groups[self.last_group :]
        )

    def added_values(self, types: list[ValueType]) -> list[Values]:
        """New values for each layer that is added, their types appended."""
        first, model = len(types), self.created[_MODEL]
        types += [types[value] for value in model] * self.n_added
        return [range(first + i * len(model), first + (i + 1) * len(model)) for i in range(self.n_added)]

    def all_nodes(self, created: Sequence[Values]) -> list[Node]:
        """The nodes of the whole program, with the values that each layer makes."""
        nodes, starts, layers_back = self.nodes, self.starts, self._layers_back()
        model = nodes[starts[_MODEL] : starts[_LAST]]
        result = [*nodes[: starts[_LAST]]]
        for i in range(1, self.n_added + 1):
            result += self._copies(model, self._names(created, _MODEL, i, layers_back), i)
        names = self._names(created, _LAST, self.n_added, layers_back)
        for node in nodes[starts[_LAST] : starts[LAYERS_READ]]:
            node.operands = tuple([names.get(value, value) for value in node.operands])
        return [*result, *nodes[starts[_LAST] :]]

    def all_groups(self) -> tuple[Group, ...]:
        """The kernels of the whole program."""
        last, n_added = self.last_group, self.n_added
        model, after = self.groups[last - self.n_groups : last], self.groups[last:]
        added = (self._moved(group, i) for i in range(1, n_added + 1) for group in model)
        return (*self.groups[:last], *added, *(self._moved(group, n_added) for group in after))

    def all_outputs(self, created: Sequence[Values], returned: Values) -> tuple[int, ...] | None:
        """What the whole program returns; None where a value of the model is not returned once for each layer it stands for."""
        positions = {value: position for position, value in enumerate(created[_MODEL])}
        counts = Counter(value for value in returned if value in positions)
        if any(count != 1 + self.n_added for count in counts.values()):
            return None
        layers = dict.fromkeys(counts, _MODEL)
        outputs: dict[int, None] = {}
        for value in returned:
            if value in layers:
                outputs[created[layers[value]][positions[value]]] = None
                layers[value] += 1
            else:
                outputs[value] = None
        return tuple(outputs)

    def _layers_back(self) -> int:
        """How many layers back the last two read values."""
        layer_of = {value: layer for layer in range(_LAST) for value in (*self.created[layer], *self.inputs[layer])}
        read = self.nodes[self.starts[_MODEL] : self.starts[LAYERS_READ]]
        return _LAST - min((layer_of.get(value, _LAST) for node in read for value in node.operands), default=_LAST)

    def _names(self, created: Sequence[Values], layer: int, layers: int, layers_back: int) -> Mapping[int, int]:
        """What the values that a layer reads and makes are called so many layers further."""
        names: dict[int, int] = {}
        for before in range(max(layer - layers_back, 0), min(layer, _MODEL) + 1):
            names.update(zip(self.inputs[before], self.inputs[before + layers], strict=True))
            names.update(zip(created[before], created[before + layers], strict=False))
        return names

    def _copies(self, model: Sequence[Node], names: Mapping[int, int], layers: int) -> Iterator[Node]:
        """The model's nodes, so many layers further."""
        name, start = names.get, self.layers.line
        end, lines = start + LAYERS_READ * self.layers.n_lines, layers * self.layers.n_lines
        for node in model:
            # Called functions keep their lines.
            line = node.line + lines if node.line is not None and start <= node.line < end else node.line
            # In the order of the fields: names would cost a third of the time it takes to make one.
            yield Node(
                node.op, node.kind, tuple([name(v, v) for v in node.operands]), tuple([names[v] for v in node.results]),
                node.dtype, node.flops, node.transcendentals, node.bytes_in, node.bytes_out, node.loops, node.detail, node.note,
                node.runs, line,
            )  # fmt: skip

    def _moved(self, group: Group, layers: int) -> Group:
        nodes = self.in_nodes.moved(group.nodes, layers)
        needs = self.in_needs.moved(group.needs, layers)
        return Group(
            nodes, group.kind, group.dtype, group.flops, group.transcendentals, group.bytes_in, group.bytes_out, group.runs,
            group.parallelism, group.spec, group.stand_in, needs, group.title,
        )  # fmt: skip


def _grow_alike(groups: Sequence[Group], starts: Sequence[int], n_groups: int, last_group: int) -> bool:
    """Whether kernels that need earlier layers wait for as many more kernels in each layer, and for more than others do.

    Fusion compares for how many kernels two of them wait. Only so does it decide alike for any number of layers.
    """
    layers = [bisect_right(starts, group.nodes[-1]) for group in groups]
    waits: list[int] = []
    follows: list[bool] = []
    for group, layer in zip(groups, layers, strict=True):
        waits.append(1 + max([waits[need] for need in group.needs], default=0))
        follows.append(any(follows[need] or 0 < layers[need] < layer for need in group.needs))
    model = range(last_group - n_groups, last_group)
    gains = {waits[i] - waits[i - n_groups] for i in model if follows[i]}
    fewest = min([waits[i - n_groups] for i in model if follows[i]], default=0)
    others = [
        waits[need]
        for group, is_after in zip(groups, follows, strict=True) if is_after
        for need in group.needs if not follows[need]
    ]  # fmt: skip
    return (
        len(gains) <= 1
        and 0 not in gains
        and all(follows[i] == follows[i - n_groups] for i in model)
        and all(waits[i] == waits[i - n_groups] for i in model if not follows[i])
        and max(others, default=0) < fewest
    )


def _do_the_same(node: Node, other: Node) -> bool:
    """Whether two nodes are alike but for their values and lines."""
    if len(node.operands) != len(other.operands) or len(node.results) != len(other.results):
        return False
    return replace(node, operands=other.operands, results=other.results, line=other.line) == other
