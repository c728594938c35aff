"""Triton's tt, ttg and ttng: what one program of a kernel does; only loads and stores touch memory."""

from __future__ import annotations

from math import prod

from ..semantics import costs
from ..semantics.costs import unknown
from ..semantics.op_rule import Cost, Dialect, Site, rules
from ..semantics.operators import operator
from ..types.graph import ValueType


def _amount(kinds: tuple[ValueType, ...]) -> tuple[ValueType, float]:
    """The operand that holds the numbers moved, and their bytes: pointers, masks and descriptors hold none."""
    items = [kind for kind in kinds if kind.dtype and kind.itemsize_b and kind.dtype != "i1"]
    moved = max(items, key=lambda kind: kind.elements * kind.itemsize_b)
    return moved, moved.elements * moved.itemsize_b


def _store(site: Site) -> Cost:
    moved, amount = _amount(site.operands)
    return costs.stored(moved, moved.elements, amount)


def _copied_in(site: Site) -> Cost:
    moved, amount = _amount(site.operands)
    return costs.loaded(moved, moved.elements, amount)


def _atomic(site: Site) -> Cost:
    moved, amount = _amount(site.operands[1:])
    elements = moved.elements
    return costs.loop("elementwise", moved.dtype, elements, "atomic", flops=elements, bytes_in=amount, bytes_out=amount)


def _dot(site: Site) -> Cost:
    left, right = site.operands[0].shape, site.operands[1].shape
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return unknown(f"{site.name} of operands without shapes")
    batch = prod((float(size or 0) for size in left[:-2]), start=1.0)
    loops = (batch, float(left[-2] or 0), float(right[-1] or 0), float(left[-1] or 0))
    return costs.contraction(site, loops)


def _reduce(site: Site) -> Cost:
    return costs.reduction_by_body(site, (site.int_of("axis") or 0,))


def _mapped(site: Site) -> Cost:
    return costs.elementwise(site, site.computed.name, max(site.computed.flops, 1.0), site.computed.transcendentals)


def _arithmetic(site: Site) -> Cost:
    return costs.elementwise(
        site, operator({"precise_sqrt": "sqrt", "precise_divf": "div"}.get(site.short, site.short))
    )


_PLACES = (
    "addptr advance bitcast broadcast cat expand_dims int_to_ptr join make_range make_tensor_descriptor "
    "make_tensor_ptr ptr_to_int reshape splat split trans unsplat gather"
)
_LAYOUTS = (
    "convert_layout local_alloc local_load local_store local_dealloc memdesc_index memdesc_subslice "
    "memdesc_subview memdesc_trans memdesc_reshape memdesc_reinterpret global_scratch_alloc"
)
_STEERED = (
    "arrive_barrier async_copy_mbarrier_arrive async_tma_store_wait barrier_expect cluster_arrive cluster_wait "
    "fence_async_shared init_barrier inval_barrier reinterpret_tensor_descriptor tc_gen5_commit tensormap_create "
    "tensormap_fenceproxy_acquire wait_barrier"
)

MEMORY = frozenset((
    "tt.load", "tt.store", "tt.descriptor_load", "tt.descriptor_store", "tt.descriptor_gather", "tt.descriptor_scatter",
    "tt.descriptor_reduce", "tt.atomic_rmw", "tt.atomic_cas", "ttg.async_copy_global_to_local",
    "ttng.async_tma_copy_global_to_local", "ttng.async_tma_copy_local_to_global", "ttng.async_tma_gather",
    "ttng.async_tma_scatter", "ttng.async_tma_reduce",
))  # fmt: skip
"""What touches a GPU's memory; everything else of a kernel is in registers and shared memory."""

_ELEMENTWISE = "clampf fp_to_fp mulhiui precise_sqrt precise_divf extern_elementwise elementwise_inline_asm histogram"

DIALECT = Dialect(
    "triton",
    {
        **rules("tt", "load descriptor_load descriptor_gather", costs.load),
        **rules("tt", "store descriptor_store descriptor_scatter descriptor_reduce", _store),
        **rules("tt", "atomic_rmw atomic_cas", _atomic),
        **rules("tt", "dot dot_scaled", _dot),
        **rules("tt", "reduce", _reduce),
        **rules("tt", "scan", costs.cumulative),
        **rules("tt", "map_elementwise", _mapped),
        **rules("tt", _ELEMENTWISE, _arithmetic),
        **rules("tt", _PLACES, costs.view),
        **rules("tt", "get_program_id get_num_programs assert print", costs.control),
        **rules("ttg", _LAYOUTS, costs.view),
        **rules("ttg", "fp4_to_fp", _arithmetic),
        **rules("ttg", "async_copy_global_to_local", _copied_in),
        **rules("ttg", "async_commit_group async_wait local_barrier mask predicate_stage", costs.control),
        **rules("ttng", "warp_group_dot tc_gen5_mma tc_gen5_mma_scaled", _dot),
        **rules("ttng", "async_tma_copy_global_to_local async_tma_gather", _copied_in),
        **rules("ttng", "async_tma_copy_local_to_global async_tma_scatter async_tma_reduce", _store),
        **rules("ttng", _STEERED, costs.control),
        **rules("ttng", "tmem_alloc tmem_load tmem_store tmem_copy tmem_subslice warp_group_dot_wait", costs.view),
    },
    {
        "body": "ttg.warp_specialize",
        "end": "tt.return tt.reduce.return tt.scan.return tt.map_elementwise.return ttg.warp_yield ttg.warp_return",
    },
)
