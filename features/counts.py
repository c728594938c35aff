"""What the operands of cases amount to: one pass over a family's formulas that bounds, terms and features all read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .cases import Cases, Floats
from .kernel import Size, View


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of `n` cases, a column of shape `(n,)` each.

    `flops` and `least_flops` count arithmetic (the latter of the cheapest algorithm), `bytes` compulsory traffic,
    `footprint_b` all operands. `operand_b` of shape `(3, n)` are the bytes of the first operand, of the other inputs and of
    the outputs; `rows` the rows of the first operand and `last` its last dimension. `products` of shape `(4, n)` are batch, m,
    n and k of the matrix products inside, None for a family without any.
    """

    flops: Floats
    least_flops: Floats
    bytes: Floats
    footprint_b: Floats
    operand_b: Floats
    rows: Floats
    last: Floats
    products: Floats | None


def counts(cases: Cases) -> Counts:
    """The counts of cases."""
    family, n = cases.family, len(cases)
    table = np.empty((6, n))
    flops, least, moved, footprint, rows, last = table
    operand_b = np.empty((3, n))
    for index, view in cases.views():
        inputs, outputs = family.inputs(view), family.outputs(view)
        flops[index] = family.flops(view)
        least[index] = flops[index] if family.least_flops is None else family.least_flops(view)
        sizes_b = [operand.nbytes for operand in inputs], [operand.nbytes for operand in outputs]
        operand_b[0, index] = sizes_b[0][0]
        operand_b[1, index] = sum(sizes_b[0][1:])
        operand_b[2, index] = sum(sizes_b[1])
        footprint[index] = sum(sizes_b[0] + sizes_b[1])
        moved[index] = footprint[index] if family.traffic_b is None else family.traffic_b(view)
        last[index] = inputs[0].shape[-1]
        rows[index] = inputs[0].elements / inputs[0].shape[-1]
    products = None if family.tiles is None else product_shapes(cases, family.tiles)
    return Counts(flops, least, moved, footprint, operand_b, rows, last, products)


def product_shapes(cases: Cases, shape_of: Callable[[View], tuple[Size, Size, Size, Size]]) -> Floats:
    """Rows `batch`, `m`, `n`, `k` of the matrix products inside the cases, shape `(4, n)`; `shape_of` gives them for a view."""
    shape = np.empty((4, len(cases)))
    for index, view in cases.views():
        for row, column in zip(shape, shape_of(view), strict=True):
            row[index] = column
    return shape
