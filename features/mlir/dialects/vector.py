"""vector: arithmetic on registers. Only transfers, loads and stores touch memory."""

from __future__ import annotations

import re
from math import prod

from ..semantics import costs
from ..semantics.costs import unknown
from ..semantics.op_rule import Cost, Dialect, Site, rules
from ..semantics.operators import combined_by
from ..types import attributes
from ..types.attributes import parse_maps
from .memref import load, store


def _contract(site: Site) -> Cost:
    maps = parse_maps(attributes.value(site.text, "indexing_maps") or "")
    if len(maps) != 3:
        return unknown(f"{site.name} without three indexing maps")
    sizes: list[float | None] = [None] * len(maps[0].dims)
    for map_, kind in zip(maps[:2], site.operands[:2], strict=True):
        for dim, length in zip(map_.positions(), kind.shape or (), strict=False):
            if dim is not None:
                sizes[dim] = float(length or 0)
    a, b, c = ({dim for dim in map_.positions() if dim is not None} for map_ in maps)

    def size(dims: set[int]) -> float:
        return prod((sizes[dim] or 0.0 for dim in dims), start=1.0)

    loops = (size(a & b & c), size((a & c) - b), size((b & c) - a), size((a | b) - c))
    left, right = maps[0].positions(), maps[1].positions()
    missing = (a & b) - c
    return costs.contraction(
        site,
        loops,
        lhs_transposed=bool(left and left[-1] not in missing),
        rhs_transposed=bool(right and right[-1] in missing),
    )


def _outer(site: Site) -> Cost:
    flops = 2.0 if len(site.operands) > 2 else 1.0
    return costs.elementwise(site, "mul", flops, 0.0)


def _reduction(site: Site) -> Cost:
    source = site.operands[0]
    match = re.search(r"vector\.kind<(\w+)>|^<(\w+)>", site.text)
    name = combined_by(match[1] or match[2]) if match else "sum"
    axes = site.ints("reduction_dims")
    rank = len(source.shape or ())
    return costs.reduction(site, name, source, axes if axes is not None else range(rank))


def _registers(site: Site) -> Cost:
    """Elements change places between registers."""
    return costs.movement(site, site.short if site.short in ("broadcast", "transpose") else "copy", 0.0, 0.0)


def _transpose(site: Site) -> Cost:
    return costs.permuted(_registers(site), site.ints("permutation"))


def _gathered(site: Site) -> Cost:
    """Reads or writes of a vector's elements wherever an index vector points."""
    moved = (site.results or site.operands[-1:])[0]
    amount = moved.elements * moved.itemsize_b
    sides = (amount, 0.0) if site.results else (0.0, amount)
    return costs.loop("gather", moved.dtype, moved.elements, site.short, bytes_in=sides[0], bytes_out=sides[1])


_PLACES = (
    "broadcast bitcast shape_cast extract extract_strided_slice insert insert_strided_slice extractelement "
    "insertelement shuffle interleave deinterleave splat from_elements to_elements type_cast "
    "create_mask constant_mask vscale step scalable.extract scalable.insert flat_transpose"
)

DIALECT = Dialect(
    "vector",
    {
        **rules("vector", "contract matrix_multiply", _contract),
        **rules("vector", "transfer_read load maskedload expandload", load, reads="runs"),
        **rules("vector", "transfer_write store maskedstore compressstore", store, reads="runs"),
        **rules("vector", "gather scatter", _gathered),
        **rules("vector", "fma", costs.by_name),
        **rules("vector", "outerproduct", _outer),
        **rules("vector", "reduction multi_reduction scan", _reduction),
        **rules("vector", _PLACES, _registers),
        **rules("vector", "transpose", _transpose),
        **rules("vector", "print", costs.control),
    },
    {"body": "vector.mask", "end": "vector.yield"},
)
