"""memref, the loads and stores of affine, and vector: memory by name, whole or element by element, and registers.

An element read or written in a loop costs its share of the memory: over all iterations one access site moves the memory it
names once, or the elements it touches where these are fewer. What is used again is in a cache or a register by then. Of vector
only transfers, loads and stores touch memory; the rest is arithmetic on registers.
"""

from __future__ import annotations

import re
from math import prod

from ..semantics import costs
from ..semantics.costs import unknown
from ..semantics.dynamic_sizes import conserved, of_first
from ..semantics.folding import extent
from ..semantics.linalg_products import dimension_sizes
from ..semantics.op_rule import Cost, Dialect, Site, rules
from ..semantics.operators import combined_by
from ..types import attributes
from ..types.attributes import parse_maps
from .tensor import element_bytes, of_sizes, reassociated, sliced_shape


def _load(site: Site) -> Cost:
    """Elements read from the memory that the first operand names."""
    memory = site.operands[0]
    moved = element_bytes(site, memory.nbytes, sum(kind.elements for kind in site.results) * memory.itemsize_b)
    return costs.loaded(memory, site.results[0].elements, moved)


def _store(site: Site) -> Cost:
    """Elements written to the memory that the second operand names (the first of two where that comes first)."""
    stored, memory = site.operands[:2]
    if memory.kind not in ("memref", "tensor"):
        # vector.store and vector.transfer_write name the value first; masked stores name the memory first and the value last.
        stored, memory = site.operands[-1], site.operands[0]
    moved = element_bytes(site, memory.nbytes, stored.elements * memory.itemsize_b)
    return costs.stored(memory, stored.elements, moved)


def _atomic(site: Site) -> Cost:
    memory = site.operands[1] if site.short == "atomic_rmw" else site.operands[0]
    moved = element_bytes(site, memory.nbytes, memory.itemsize_b)
    return costs.loop(
        "elementwise", memory.dtype, 1.0, "atomic", flops=site.computed.flops if site.body else 1.0,
        transcendentals=site.computed.transcendentals, bytes_in=moved, bytes_out=moved,
    )  # fmt: skip


def _copy(site: Site) -> Cost:
    source, target = site.operands[:2]
    return costs.movement(site, "copy", source.nbytes, target.nbytes)


def _contract(site: Site) -> Cost:
    maps = parse_maps(attributes.value(site.text, "indexing_maps") or "")
    if len(maps) != 3:
        return unknown(f"{site.name} without three indexing maps")
    sizes = dimension_sizes(maps[:2], site.operands[:2])
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


def _moved(site: Site) -> Cost:
    """Elements change places between registers."""
    return costs.movement(site, site.short if site.short in ("broadcast", "transpose") else "copy", 0.0, 0.0)


def _transpose(site: Site) -> Cost:
    return costs.permuted(_moved(site), site.ints("permutation"))


def _gathered(site: Site) -> Cost:
    """Reads or writes of a vector's elements wherever an index vector points."""
    moved = (site.results or site.operands[-1:])[0]
    amount = moved.elements * moved.itemsize_b
    sides = (amount, 0.0) if site.results else (0.0, amount)
    return costs.loop("gather", moved.dtype, moved.elements, site.short, bytes_in=sides[0], bytes_out=sides[1])


_VIEWS = "reinterpret_cast reshape view transpose extract_strided_metadata assume_alignment distinct_objects"
_REGISTERS = (
    "broadcast bitcast shape_cast extract extract_strided_slice insert insert_strided_slice extractelement "
    "insertelement shuffle interleave deinterleave splat from_elements to_elements type_cast "
    "create_mask constant_mask vscale step scalable.extract scalable.insert flat_transpose"
)

DIALECT = Dialect(
    "memref",
    {
        **rules("memref", "load", _load, reads="runs"),
        **rules("memref", "store", _store, reads="runs"),
        **rules("affine", "load vector_load", _load, reads="runs"),
        **rules("affine", "store vector_store", _store, reads="runs"),
        **rules("vector", "transfer_read load maskedload expandload", _load, reads="runs"),
        **rules("vector", "transfer_write store maskedstore compressstore", _store, reads="runs"),
        **rules("memref", "atomic_rmw generic_atomic_rmw", _atomic, reads="runs"),
        **rules("memref", "copy", _copy),
        **rules("memref", "alloc alloca realloc", costs.view, of_sizes),
        **rules("memref", "get_global", costs.constant),
        **rules("memref", "cast memory_space_cast", costs.view, of_first),
        **rules("memref", "expand_shape collapse_shape", costs.view, reassociated),
        **rules("memref", "subview", costs.view, sliced_shape),
        **rules("memref", _VIEWS, costs.view, conserved),
        **rules("memref", "dim", costs.control, fold=extent),
        **rules("memref", "dealloc rank prefetch global extract_aligned_pointer_as_index", costs.control),
        **rules("affine", "prefetch dma_wait", costs.control),
        **rules("affine", "dma_start", _copy),
        **rules("vector", "contract matrix_multiply", _contract),
        **rules("vector", "gather scatter", _gathered),
        **rules("vector", "fma", costs.by_name),
        **rules("vector", "outerproduct", _outer),
        **rules("vector", "reduction multi_reduction scan", _reduction),
        **rules("vector", _REGISTERS, _moved),
        **rules("vector", "transpose", _transpose),
        **rules("vector", "print", costs.control),
    },
    {
        "body": "memref.alloca_scope vector.mask",
        "end": "memref.alloca_scope.return memref.atomic_yield vector.yield",
    },
)
