"""Fusion: which operations compilers run as one kernel.

The model is what production compilers have in common, not any one of them:

* Views and constants cost nothing and are looked through; some operations are done again in whatever reads them
  (`recomputing`).
* An element operation joins the kernel of the operation that produces its input when both have the same number of elements:
  chains become one loop (XLA's producer-consumer loop fusion), contractions, convolutions and reductions get an epilogue
  (IREE fuses a root with its consumers in `FormDispatchRegions`, XLA calls it output fusion).
* A reduction takes the element operations before it into its loop (XLA's input fusion) and starts a new loop space.
* A chain of cheap operations on a smaller array is taken into the loop that it is broadcast into; a dear one is computed once
  (XLA's `ReusesOperandElements`).
* Softmaxes and normalisations written out as many operations are one kernel: IREE forms one dispatch of reductions and element
  operations that share their outer loops, Triton and XLA's GPU back end write them as one loop over rows.
* A transpose joins element operations. Before or after a product, one that swaps the two last axes is a flag of the product
  and free.
* A load begins a loop over what it reads, which takes in the operations after it; a store ends the loop that makes what it
  stores. Triton's kernels and vector code are such loops.
* Concatenations, pads, sorts, random numbers and what is not understood are kernels of their own.

One pass over the operations in order. Kernels may not wait for each other in a circle: every kernel has a level, larger than
those of the kernels it reads. An operation joins a kernel that others already read only if its other inputs have smaller
levels; this refuses some legal fusions and needs no search.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..program import FREE
from .dataflow import Flow
from .idioms import RANK, Cluster, Idiom, find_idioms
from .rematerialization import Recomputing

_SMALL_CHAIN = 8
"""Operations of a chain on a smaller array that are done again for every element of a larger one."""

_ROWWISE = frozenset({"softmax", "normalization"})
_CHAINED = frozenset({"elementwise", "movement"})
_REFUSED = frozenset({"concatenate", "pad"})
_ANY_SIZE = -1.0

Reads = dict[int, Cluster | None]


class Fusion:
    """The pass over a function's nodes, done when it is made.

    `clusters` are the kernels it formed, those merged into another included; `values` knows what values are made of.
    """

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.values = Recomputing(flow)
        self.clusters: list[Cluster] = []
        self._body = 0
        self._run()

    def _run(self) -> None:
        flow, values = self.flow, self.values
        idioms = find_idioms(flow)
        deferred = {index for idiom in idioms for index in idiom.members}
        anchored = {idiom.members[-1]: idiom for idiom in idioms}
        runs, bodies = 1.0, 0
        for index, node in enumerate(flow.nodes):
            kind = node.kind
            if kind in FREE:
                values.free(index)
                if kind == "control":
                    runs = -1.0
                continue
            if node.runs != runs:
                # A loop begins or ends; what runs once is one body, before, between and after loops.
                runs, bodies = node.runs, bodies + 1
                self._body = 0 if runs == 1.0 else bodies
            if index in deferred:
                if index in anchored:
                    self._rowwise(anchored[index])
            elif kind == "elementwise":
                reads = values.reads(index)
                if not values.element(index, reads):
                    self._into_loop(index, kind, reads, flow.sizes[index], flow.sizes[index])
            elif kind == "movement":
                self._movement(index)
            elif kind == "reduction":
                if values.note_view(index):
                    continue
                inside = flow.elements(node.operands[0]) if node.operands else 0.0
                self._into_loop(index, kind, values.reads(index), inside, node.loops[1])
            elif kind in _ROWWISE:
                size = flow.elements(node.results[0]) if node.results else node.loops[1] * node.loops[3]
                self._into_loop(index, kind, values.reads(index), size, size)
            elif kind == "gather":
                self._into_loop(index, kind, values.reads(index), _ANY_SIZE, flow.sizes[index])
            else:
                self._alone(index)

    def _movement(self, index: int) -> None:
        flow, node = self.flow, self.flow.nodes[index]
        if flow.operators[index] == "load":
            self._place((index,), self.values.reads(index), self._open("movement", index, flow.sizes[index]))
            return
        if flow.operators[index] == "store":
            self._store(index)
            return
        if self.values.movement(index):
            return
        if (
            flow.operators[index] == "transpose"
            and flow.swaps_last(node)
            and (product := self._bare_product(node.operands[0]))
        ):
            # (AB)ᵀ is BᵀAᵀ: compilers swap the operands instead (XLA's algebraic simplifier).
            product.turned = True
            self._place((index,), {}, product)
            return
        # A part written in place (an update of a slice) is no loop over all elements.
        partial = not node.results or node.bytes_out < flow.nbytes(node.results[0])
        if partial or flow.operators[index] in _REFUSED:
            self._alone(index)
        else:
            # Back ends write products' results in order; a transpose of one is a loop of its own.
            self._into_loop(index, "movement", self.values.reads(index), flow.sizes[index], flow.sizes[index])

    def _store(self, index: int) -> None:
        """A store, in the kernel that makes what it stores; what was in the memory before is not read, but must be there."""
        flow, reads = self.flow, self.values.reads(index)
        created = {value: owner for value, owner in reads.items() if flow.types[value].kind != "memref"}
        levels = [owner.level for owner in created.values() if owner is not None]
        before = [owner.level for value, owner in reads.items() if owner is not None and value not in created]
        cluster = None
        if levels and max(before, default=-1) < min(levels):
            cluster = self._joined((index,), created, flow.sizes[index], 1)
        if cluster is None:
            cluster = self._open("movement", index, flow.sizes[index])
        self._place((index,), reads, cluster)

    def _bare_product(self, value: int) -> Cluster | None:
        """The kernel that makes a value if it is a product and nothing else, and nothing else reads it."""
        for source in self.values.sources(value):
            owner = self.values.owner(source)
            if owner is not None and owner.kind == "contraction" and len(owner.nodes) == 1 and owner.body == self._body:
                read = self.flow.real_users(source)
                return owner if len(read) == 1 and not self.values.is_returned(source) else None
        return None

    def _alone(self, index: int) -> None:
        flow, node, swapped = self.flow, self.flow.nodes[index], self.values.swapped
        cluster = self._open(node.kind, index, flow.elements(node.results[0]) if node.results else node.parallelism)
        if node.kind == "contraction" and len(node.operands) > 1:
            cluster.swapped = (node.operands[0] in swapped, node.operands[1] in swapped)
        cluster.closed = node.kind not in RANK
        self._place((index,), self.values.reads(index), cluster)

    def _rowwise(self, idiom: Idiom) -> None:
        """A softmax or normalisation of many operations, placed when its last one is met."""
        flow, size = self.flow, idiom.rows * idiom.cols
        reads: Reads = {}
        for index in idiom.members:
            reads.update(self.values.reads(index))
        for index in idiom.members:
            for value in flow.nodes[index].results:
                reads.pop(value, None)
        cluster = self._joined(idiom.members, reads, size, 2) or self._open(idiom.kind, idiom.members[-1], size)
        cluster.kind, cluster.root, cluster.idiom = idiom.kind, idiom.members[-1], idiom
        self._place(idiom.members, reads, cluster)

    def _into_loop(self, index: int, kind: str, reads: Reads, inside: float, outside: float) -> None:
        """Places a node that is a loop over `inside` elements and leaves one over `outside` behind."""
        rank = RANK.get(kind, 1)
        cluster = self._joined((index,), reads, inside, rank if kind != "movement" else 0)
        if cluster is None:
            cluster = self._open(kind, index, outside)
        elif rank > 1 or cluster.kind == "movement":
            cluster.kind, cluster.root, cluster.space = kind, index, outside
        self._place((index,), reads, cluster)

    def _open(self, kind: str, root: int, space: float) -> Cluster:
        cluster = Cluster(kind, root, space, self._body)
        self.clusters.append(cluster)
        return cluster

    def _joined(self, indices: Sequence[int], reads: Reads, size: float, rank: int) -> Cluster | None:
        """The kernel that nodes over `size` elements join, those that it swallows merged into it; None for a new one.

        A loop with a name of its own takes in only loops over elements before it; an element operation joins any.
        """
        fits: dict[Cluster, bool] = {}
        smaller: dict[Cluster, int] = {}
        for value, owner in reads.items():
            if owner is None:
                continue
            fit = not owner.closed and owner.body == self._body and value not in self.values.part_of
            if fit and size == _ANY_SIZE:
                fit = owner.kind == "elementwise"
            elif fit:
                fit = (
                    owner.space == size
                    and (rank == 1 or owner.kind in _CHAINED)
                    and (self.flow.elements(value) == size or self.flow.is_spread(value, size))
                )
                if not fit and owner.kind == "elementwise" and owner.space < size:
                    smaller[owner] = value
            fits[owner] = fit and fits.get(owner, True)
        if not fits:
            return None
        fitting = [cluster for cluster, fit in fits.items() if fit]
        if len(fitting) > 1:
            fitting.sort(key=lambda cluster: (RANK.get(cluster.kind, 1), cluster.level), reverse=True)
        for main in fitting:
            if not main.is_read or all(other is main or other.level < main.level for other in fits):
                break
        else:
            return None
        for other in fitting:
            if other is not main and not other.is_read and other.kind in _CHAINED:
                main.absorb(other)
        for other, value in smaller.items():
            if other is not main and not other.is_read and _is_cheap(other, value, indices, self.flow, self.values):
                main.absorb(other)
        return main

    def _place(self, indices: Sequence[int], reads: Reads, cluster: Cluster) -> None:
        nodes, values = self.flow.nodes, self.values
        cluster.nodes += indices
        for value, owner in reads.items():
            if owner is cluster:
                continue
            cluster.reads.add(value)
            if owner is not None and (owner := owner.current()) is not cluster:
                owner.is_read = True
                if cluster.level <= owner.level:
                    cluster.level = owner.level + 1
        for index in indices:
            node = nodes[index]
            if values.carried:
                for operand in node.operands:
                    if operand in values.carried:
                        cluster.lights.update(values.carried[operand])
            for value in node.results:
                values.home[value] = cluster


def _is_cheap(cluster: Cluster, value: int, readers: Sequence[int], flow: Flow, values: Recomputing) -> bool:
    """Whether a chain on a smaller array can be done again for every element that its last value is broadcast to."""
    if len(cluster.nodes) > _SMALL_CHAIN or any(flow.nodes[index].transcendentals for index in cluster.nodes):
        return False
    inside = {*cluster.nodes, *readers}
    return not values.is_returned(value) and all(
        inside.issuperset(flow.real_users(result)) and not values.is_returned(result)
        for index in cluster.nodes
        for result in flow.nodes[index].results
    )
