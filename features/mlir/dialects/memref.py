"""memref, and the loads and stores of affine: memory by name, whole or element by element.

An element read or written in a loop costs its share of the memory: over all iterations one access site moves the memory it
names once, or the elements it touches where these are fewer. What is used again is in a cache or a register by then.
"""

from __future__ import annotations

from ..semantics import costs
from ..semantics.dynamic_sizes import conserved, of_first
from ..semantics.op_rule import Cost, Dialect, Known, Site, rules
from ..semantics.operators import read_body
from .tensor import element_bytes, of_sizes, reassociated, sliced_shape


def load(site: Site) -> Cost:
    """Elements read from the memory that the first operand names."""
    memory = site.operands[0]
    moved = element_bytes(site, memory.nbytes, sum(kind.elements for kind in site.results) * memory.itemsize_b)
    return Cost(
        "movement", memory.dtype, 0.0, 0.0, moved, 0.0, (1.0, site.results[0].elements, 1.0, 1.0), {"operator": "load"}
    )


def store(site: Site) -> Cost:
    """Elements written to the memory that the second operand names (the first of two where that comes first)."""
    stored, memory = site.operands[:2]
    if memory.kind not in ("memref", "tensor"):
        # vector.store and vector.transfer_write name the value first; masked stores name the memory first and the value last.
        stored, memory = site.operands[-1], site.operands[0]
    moved = element_bytes(site, memory.nbytes, stored.elements * memory.itemsize_b)
    return Cost("movement", memory.dtype, 0.0, 0.0, 0.0, moved, (1.0, stored.elements, 1.0, 1.0), {"operator": "store"})


def _atomic(site: Site) -> Cost:
    memory = site.operands[1] if site.short == "atomic_rmw" else site.operands[0]
    moved = element_bytes(site, memory.nbytes, memory.itemsize_b)
    body = read_body(site.body, site.body_arguments)
    flops = body.flops if site.body else 1.0
    return Cost(
        "elementwise",
        memory.dtype,
        flops,
        body.transcendentals,
        moved,
        moved,
        (1.0, 1.0, 1.0, 1.0),
        {"operator": "atomic"},
    )


def _copy(site: Site) -> Cost:
    source, target = site.operands[:2]
    return costs.movement(site, "copy", source.nbytes, target.nbytes)


def _dim(site: Site) -> Known:
    shape, axis = site.operands[0].shape, site.known(1)
    return shape[axis] if shape is not None and isinstance(axis, int) and 0 <= axis < len(shape) else None


DIALECT = Dialect(
    "memref",
    {
        **rules("load", load, dialect="memref", reads="runs"),
        **rules("store", store, dialect="memref", reads="runs"),
        **rules("load vector_load", load, dialect="affine", reads="runs"),
        **rules("store vector_store", store, dialect="affine", reads="runs"),
        **rules("atomic_rmw generic_atomic_rmw", _atomic, dialect="memref", reads="runs"),
        **rules("copy", _copy, dialect="memref"),
        **rules("alloc alloca realloc", costs.view, dialect="memref", shapes=of_sizes),
        **rules("get_global", costs.constant, dialect="memref"),
        **rules("cast memory_space_cast", costs.view, dialect="memref", shapes=of_first),
        **rules("expand_shape collapse_shape", costs.view, dialect="memref", shapes=reassociated),
        **rules("subview", costs.view, dialect="memref", shapes=sliced_shape),
        **rules(
            ("reinterpret_cast reshape view transpose extract_strided_metadata assume_alignment distinct_objects"),
            costs.view,
            dialect="memref",
            shapes=conserved,
        ),
        **rules("dim", costs.control, dialect="memref", fold=_dim),
        **rules("dealloc rank prefetch global extract_aligned_pointer_as_index", costs.control, dialect="memref"),
        **rules("prefetch dma_wait", costs.control, dialect="affine"),
        **rules("dma_start", _copy, dialect="affine"),
    },
    {"memref.alloca_scope": "body", "memref.alloca_scope.return": "end", "memref.atomic_yield": "end"},
)
