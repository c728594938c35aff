"""memref, and the loads and stores of affine: memory by name, whole or element by element.

An element read or written in a loop costs its share of the memory: over all iterations one access site moves the memory it
names once, or the elements it touches where these are fewer. What is used again is in a cache or a register by then.
"""

from __future__ import annotations

from ..semantics import costs
from ..semantics.dynamic_sizes import conserved, of_first
from ..semantics.folding import extent
from ..semantics.op_rule import Cost, Dialect, Site, rules
from .tensor import element_bytes, of_sizes, reassociated, sliced_shape


def load(site: Site) -> Cost:
    """Elements read from the memory that the first operand names."""
    memory = site.operands[0]
    moved = element_bytes(site, memory.nbytes, sum(kind.elements for kind in site.results) * memory.itemsize_b)
    return costs.loaded(memory, site.results[0].elements, moved)


def store(site: Site) -> Cost:
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


_PLACES = "reinterpret_cast reshape view transpose extract_strided_metadata assume_alignment distinct_objects"

DIALECT = Dialect(
    "memref",
    {
        **rules("memref", "load", load, reads="runs"),
        **rules("memref", "store", store, reads="runs"),
        **rules("affine", "load vector_load", load, reads="runs"),
        **rules("affine", "store vector_store", store, reads="runs"),
        **rules("memref", "atomic_rmw generic_atomic_rmw", _atomic, reads="runs"),
        **rules("memref", "copy", _copy),
        **rules("memref", "alloc alloca realloc", costs.view, of_sizes),
        **rules("memref", "get_global", costs.constant),
        **rules("memref", "cast memory_space_cast", costs.view, of_first),
        **rules("memref", "expand_shape collapse_shape", costs.view, reassociated),
        **rules("memref", "subview", costs.view, sliced_shape),
        **rules("memref", _PLACES, costs.view, conserved),
        **rules("memref", "dim", costs.control, fold=extent),
        **rules("memref", "dealloc rank prefetch global extract_aligned_pointer_as_index", costs.control),
        **rules("affine", "prefetch dma_wait", costs.control),
        **rules("affine", "dma_start", _copy),
    },
    {"body": "memref.alloca_scope", "end": "memref.alloca_scope.return memref.atomic_yield"},
)
