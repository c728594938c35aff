"""From operations to kernels: `group` fuses nodes, counts what crosses the border of every group, and names it.

Which operations run together is decided in `fusion`, what a group is in `recognition`. Attention written out stays two products
and a softmax, as compilers run it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from ..program import Group, Node
from ..types.graph import ValueType
from .dataflow import Flow
from .fusion import Fusion
from .idioms import Cluster
from .recognition import dtype_of, recognise

_TOUCHED = frozenset({"gather", "movement", "sort", "random", "unknown"})
"""Kinds that may touch a part of an operand or result, as their nodes say."""


def group(nodes: Sequence[Node], types: Sequence[ValueType], outputs: Sequence[int]) -> tuple[Group, ...]:
    """The kernels that nodes run as, each after those whose results it needs.

    `types` are the types of values, sizes bound; `outputs` the values that the function returns. Every node that costs
    something is in a group, except those that compilers compute beforehand because they depend on constants alone; one that is
    recomputed by several kernels is in each of them. Near-linear in the number of nodes.
    """
    flow = Flow(nodes, types, outputs)
    fusion = Fusion(flow)
    clusters = [cluster for cluster in fusion.clusters if cluster.parent is None]
    for cluster in clusters:
        cluster.nodes.sort()
    borders, needs = _borders(clusters, fusion)
    parts = fusion.values.part_of
    stored = {parts.get(value, value) for border in borders for value in border}
    stored.update(source for value in outputs for source in fusion.values.sources(value))
    order = _ordered(clusters, needs)
    place = {old: new for new, old in enumerate(order)}
    return tuple(
        [
            _group(clusters[old], flow, borders[old], stored, tuple(sorted([place[need] for need in needs[old]])))
            for old in order
        ]
    )


def _borders(clusters: Sequence[Cluster], fusion: Fusion) -> tuple[list[list[int]], list[set[int]]]:
    """For each cluster the values it reads and does not make itself, in order, and the positions of those that make them."""
    position = {cluster: index for index, cluster in enumerate(clusters)}
    owner_of = fusion.values.owner
    borders: list[list[int]] = []
    needs: list[set[int]] = []
    for cluster in clusters:
        border: list[int] = []
        needed: set[int] = set()
        for value in cluster.reads:
            owner = owner_of(value)
            if owner is not cluster:
                border.append(value)
                if owner is not None:
                    needed.add(position[owner])
        border.sort()
        cluster.reads = set(border)
        borders.append(border)
        needs.append(needed)
    return borders, needs


def _ordered(clusters: Sequence[Cluster], needs: Sequence[Iterable[int]]) -> list[int]:
    """Clusters with what they need before them, else by their first node."""
    waiting = [0] * len(clusters)
    users: list[list[int]] = [[] for _ in clusters]
    for index, needed in enumerate(needs):
        for need in needed:
            users[need].append(index)
            waiting[index] += 1
    ready = [(clusters[index].nodes[0], index) for index, count in enumerate(waiting) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        _, index = heappop(ready)
        order.append(index)
        for user in users[index]:
            waiting[user] -= 1
            if not waiting[user]:
                heappush(ready, (clusters[user].nodes[0], user))
    return order


def _group(cluster: Cluster, flow: Flow, border: Sequence[int], stored: set[int], needs: tuple[int, ...]) -> Group:
    nodes, nbytes, known = flow.nodes, flow.nbytes, recognise(cluster, flow)
    inside = cluster.nodes if not cluster.lights else sorted({*cluster.nodes, *cluster.lights})
    flops = transcendentals = 0.0
    for index in inside:
        flops += nodes[index].flops
        transcendentals += nodes[index].transcendentals
    written = [value for index in cluster.nodes for value in nodes[index].results]
    remaining = {value for value in written if value in stored}
    root = nodes[cluster.root]
    touched = cluster.kind in _TOUCHED
    if flow.accesses and not (touched and len(inside) == 1) and not flow.accesses.isdisjoint(cluster.nodes):
        bytes_in, bytes_out = _accessed(cluster, flow, border, remaining)
    else:
        remaining = remaining or set(written[-1:])
        bytes_in, bytes_out = sum(map(nbytes, border)), sum(map(nbytes, remaining))
        if touched:
            bytes_in, bytes_out = _touched(cluster, flow, root, border, remaining, bytes_in, bytes_out)
    # In the order of the fields: names would cost a third of the time it takes to make one.
    return Group(
        tuple(inside), cluster.kind, dtype_of(cluster, flow), flops, transcendentals, bytes_in, bytes_out, root.runs,
        max(root.parallelism, 1.0), known.spec, known.stand_in, needs, known.title,
    )  # fmt: skip


def _accessed(cluster: Cluster, flow: Flow, border: Sequence[int], remaining: set[int]) -> tuple[float, float]:
    """Traffic of a kernel with loads and stores: their own figures in place of the sizes of the memory they name."""
    nodes, accesses = flow.nodes, flow.accesses
    read = written = 0.0
    created: set[int] = set()
    named: set[int] = set()
    plain: set[int] = set()
    for index in cluster.nodes:
        node = nodes[index]
        (named if index in accesses else plain).update(map(flow.strip, node.operands))
        if index in accesses:
            read += node.bytes_in
            written += node.bytes_out
            created.update(node.results)
    read += sum(flow.nbytes(value) for value in border if value in plain or value not in named)
    return read, written + sum(flow.nbytes(value) for value in remaining - created)


def _touched(
    cluster: Cluster,
    flow: Flow,
    root: Node,
    border: Sequence[int],
    remaining: set[int],
    bytes_in: float,
    bytes_out: float,
) -> tuple[float, float]:
    """Traffic where the main operation touches a part of what it is given: its own figures in place of its operands' sizes."""
    operands = sum(flow.nbytes(value) for value in set(root.operands))
    whole = sum(flow.nbytes(value) for value in border)
    if len(cluster.nodes) == 1 and not cluster.lights:
        return root.bytes_in, root.bytes_out
    if operands > root.bytes_in:
        bytes_in = max(whole - (operands - root.bytes_in), min(whole, root.bytes_in))
    created = set(root.results)
    if created & remaining and root.bytes_out:
        bytes_out -= max(sum(flow.nbytes(value) for value in created & remaining) - root.bytes_out, 0.0)
    return bytes_in, bytes_out
