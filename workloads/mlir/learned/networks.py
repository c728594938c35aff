"""The networks, each written once: what they compute is the same in PyTorch, which trains them, and in ONNX, which
serves.

A network gives every part of a program (a group, an operation, or the program as a whole) logarithms of factors on
that part's analytic time, one per setting (a compiler with so many threads). Times are positive and add up, whatever
the order: a sum over a set (Zaheer et al., "Deep sets", NeurIPS 2017) is what latency is on a device that does one
thing at a time, and it gives each part's share for nothing. The networks differ in what a part knows of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ....features.mlir.vectors.group_columns import GROUP_NUMBERS
from ....features.mlir.vectors.op_columns import CODE_SIZES, NUMBERS
from .ragged_batch import CONTEXT, N_KINDS, REACH

_CODE_WIDTHS = (8, 8, 4, 4, 4)
_KIND_WIDTH = 4
_OP_WIDTH, _GROUP_WIDTH, _CONTEXT_WIDTH = 32, 96, 12
_HEADS = 4

CLIP = 5.0
"""Standardised numbers stay within ± this: far outside the training range a network would extrapolate without limit."""

MOST_LOG_FACTOR = 8.0
"""A factor on an analytic time stays within e to the ± this."""


class Backend(Protocol):
    """The few operations that networks are made of, on tensors of one library; rows are parts, columns features."""

    def linear(self, x: Any, name: str, n_in: int, n_out: int, *, zero: bool = False) -> Any:
        """A dense layer with weights of that name; `zero` starts it at nothing."""

    def embed(self, codes: Any, column: int, name: str, size: int, width: int) -> Any:
        """A learned row for each code in a column."""

    def scaled(self, x: Any, name: str) -> Any:
        """Standardised by the mean and deviation kept under that name, within limits."""

    def relu(self, x: Any) -> Any:
        """Negative numbers become 0."""

    def add(self, x: Any, y: Any) -> Any:
        """The sum of two tensors of one shape."""

    def concat(self, parts: Sequence[Any]) -> Any:
        """Columns beside each other."""

    def drop(self, x: Any) -> Any:
        """In training, a share of the numbers at random becomes 0 (Srivastava et al., JMLR 2014); else nothing happens."""

    def take(self, x: Any, index: Any) -> Any:
        """The rows at these places."""

    def mean(self, x: Any, owner: Any, owners: Any) -> Any:
        """Mean of the rows of each owner; `owners` has a row per owner. Of none, 0."""

    def attend(self, query: Any, key: Any, value: Any, owner: Any, heads: int) -> Any:
        """Scaled dot-product attention among the rows of one owner (Vaswani et al., NeurIPS 2017)."""


Inputs = Mapping[str, Any]
"""Tensors by the names of `RaggedBatch`; further `before<i>` and `after<i>`, places of neighbours in a sequence."""


@dataclass(frozen=True, slots=True)
class Network:
    """One network: which inputs it reads, and what it computes of them.

    Attributes:
        name: Its name.
        parts: Whose times it factors: `groups` or `ops`.
        inputs: Names of what it reads.
        compute: `compute(backend, inputs, n_settings)` gives log factors of shape `(n_parts, n_settings)` and, for the
            program as a whole, `(n_programs, n_settings)`.
    """

    name: str
    parts: str
    inputs: tuple[str, ...]
    compute: Callable[[Backend, Inputs, int], tuple[Any, Any]]


def _operations(b: Backend, x: Inputs) -> Any:
    """Every distinct operation by itself, `_OP_WIDTH` numbers."""
    words = [
        b.embed(x["op_codes"], column, f"code{column}", size, width)
        for column, (size, width) in enumerate(zip(CODE_SIZES, _CODE_WIDTHS, strict=True))
    ]
    numbers = b.scaled(x["ops"], "ops")
    known = len(NUMBERS) + sum(_CODE_WIDTHS)
    return b.drop(b.relu(b.linear(b.concat([numbers, *words]), "op", known, _OP_WIDTH)))


def _context(b: Backend, x: Inputs) -> Any:
    """The program as a whole, `_CONTEXT_WIDTH` numbers."""
    return b.relu(b.linear(b.scaled(x["context"], "context"), "around", len(CONTEXT), _CONTEXT_WIDTH))


def _groups(b: Backend, x: Inputs, context: Any) -> Any:
    """Every group with its operations and the whole around it, `_GROUP_WIDTH` numbers."""
    ops = _operations(b, x)
    ops = b.relu(b.linear(ops, "op2", _OP_WIDTH, _OP_WIDTH))
    inside = b.mean(b.take(ops, x["op_row"]), x["op_group"], x["groups"])
    kind = b.embed(x["group_codes"], 0, "kind", N_KINDS, _KIND_WIDTH)
    parts = [b.scaled(x["groups"], "groups"), kind, inside, b.take(context, x["group_program"])]
    width = len(GROUP_NUMBERS) + _KIND_WIDTH + _OP_WIDTH + _CONTEXT_WIDTH
    return b.drop(b.relu(b.linear(b.concat(parts), "group", width, _GROUP_WIDTH)))


def _residual(b: Backend, h: Any, beside: Sequence[Any], name: str, width: int) -> Any:
    return b.add(h, b.drop(b.relu(b.linear(b.concat([h, *beside]), name, width * (1 + len(beside)), width))))


def _whole(b: Backend, context: Any, n_settings: int) -> Any:
    h = b.relu(b.linear(context, "whole", _CONTEXT_WIDTH, _CONTEXT_WIDTH))
    return b.linear(h, "whole out", _CONTEXT_WIDTH, n_settings, zero=True)


def _group_network(b: Backend, x: Inputs, n_settings: int) -> tuple[Any, Any]:
    context = _context(b, x)
    h = _groups(b, x, context)
    h = _residual(b, h, [b.take(h, x["sources"])], "source", _GROUP_WIDTH)
    h = _residual(b, h, [], "deep", _GROUP_WIDTH)
    return b.linear(h, "out", _GROUP_WIDTH, n_settings, zero=True), _whole(b, context, n_settings)


def _convolutional(b: Backend, x: Inputs, n_settings: int) -> tuple[Any, Any]:
    context = _context(b, x)
    h = b.take(_operations(b, x), x["op_row"])
    for i in range(len(REACH)):
        h = _residual(b, h, [b.take(h, x[f"before{i}"]), b.take(h, x[f"after{i}"])], f"conv{i}", _OP_WIDTH)
    around = b.take(b.take(context, x["group_program"]), x["op_group"])
    h = b.relu(b.linear(b.concat([h, around]), "mix", _OP_WIDTH + _CONTEXT_WIDTH, _OP_WIDTH))
    return b.linear(h, "out", _OP_WIDTH, n_settings, zero=True), _whole(b, context, n_settings)


def _transformer(b: Backend, x: Inputs, n_settings: int) -> tuple[Any, Any]:
    context = _context(b, x)
    h = b.relu(b.linear(_groups(b, x, context), "narrow", _GROUP_WIDTH, _OP_WIDTH))
    for i in range(2):
        query, key, value = (b.linear(h, f"{role}{i}", _OP_WIDTH, _OP_WIDTH) for role in ("query", "key", "value"))
        heard = b.attend(query, key, value, x["group_program"], _HEADS)
        h = b.add(h, b.linear(heard, f"heard{i}", _OP_WIDTH, _OP_WIDTH, zero=True))
        h = _residual(b, h, [], f"feed{i}", _OP_WIDTH)
    return b.linear(h, "out", _OP_WIDTH, n_settings, zero=True), _whole(b, context, n_settings)


_GROUP_INPUTS = ("context", "groups", "group_codes", "group_program", "ops", "op_codes", "op_row", "op_group")
_SIDES = tuple(f"{side}{i}" for i in range(len(REACH)) for side in ("before", "after"))

NETWORKS: Mapping[str, Network] = {
    network.name: network
    for network in (
        Network("group network", "groups", (*_GROUP_INPUTS, "sources"), _group_network),
        Network(
            "convolutional",
            "ops",
            ("context", "group_program", "ops", "op_codes", "op_row", "op_group", *_SIDES),
            _convolutional,
        ),
        Network("transformer", "groups", _GROUP_INPUTS, _transformer),
    )
}
"""group network: a group knows what it reads from; convolutional: an operation knows its neighbours in the text;
transformer: a group knows all others of its program."""


def serving_names(network: Network) -> tuple[str, ...]:
    """Names of the arrays a network's graph reads: its own inputs, and what the analytic times are made from.

    `classes` is each group's class (`analytic_base.classes_of`), `passed` of shape `(n, 1)` the seconds of copying what
    passes through, `per_op` of shape `(n_groups, 1)` one over a group's operations.
    """
    by_parts = {"groups": ("group_program",), "ops": ("op_group", "op_program", "per_op")}[network.parts]
    return tuple(dict.fromkeys((*network.inputs, "terms", "classes", "passed", *by_parts)))
