"""Kernels while they are being formed."""

from __future__ import annotations

from .patterns import Idiom

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


class Cluster:
    """A kernel being formed: its nodes, what it reads, and what may still join it.

    `space` is the number of elements that an operation must have to join. `lights` are operations recomputed in it. `closed`
    kernels take nothing in. `swapped` tells which operands of its product come transposed, `turned`
    whether its result goes out transposed. `level` is larger than those of the
    kernels it reads; `is_read` tells whether another kernel reads it. `parent` is what it was merged into.
    """

    __slots__ = ("body", "closed", "idiom", "is_read", "kind", "level", "lights", "nodes", "parent", "reads", "root",
                 "space", "swapped", "turned")  # fmt: skip

    def __init__(self, kind: str, root: int, space: float, body: int) -> None:
        self.kind = kind
        self.root = root
        self.space = space
        self.body = body
        self.nodes: list[int] = []
        self.lights: set[int] = set()
        self.reads: set[int] = set()
        self.level = 0
        self.is_read = False
        self.closed = False
        self.idiom: Idiom | None = None
        self.swapped: tuple[bool, bool] = (False, False)
        self.turned = False
        self.parent: Cluster | None = None

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
