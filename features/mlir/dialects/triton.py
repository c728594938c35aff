"""Triton's tt, ttg and ttng: what one program of a kernel does; only loads and stores touch memory."""

from __future__ import annotations

from math import prod

from ..semantics import costs
from ..semantics.costs import unknown
from ..semantics.op_rule import Cost, Dialect, Rule, Site, rules
from ..semantics.operators import combiner, operator, read_body
from ..types.graph import ValueType


def _load(site: Site) -> Cost:
    """A block of elements read: as many as the result has."""
    result = site.results[0]
    amount = result.elements * result.itemsize_b
    return Cost("movement", result.dtype, 0.0, 0.0, amount, 0.0, (1.0, result.elements, 1.0, 1.0), {"operator": "load"})


def _amount(kinds: tuple[ValueType, ...]) -> tuple[ValueType, float]:
    """The operand that holds the numbers moved, and their bytes: pointers, masks and descriptors hold none."""
    items = [kind for kind in kinds if kind.dtype and kind.itemsize_b and kind.dtype != "i1"]
    moved = max(items, key=lambda kind: kind.elements * kind.itemsize_b)
    return moved, moved.elements * moved.itemsize_b


def _store(site: Site) -> Cost:
    moved, amount = _amount(site.operands)
    return Cost("movement", moved.dtype, 0.0, 0.0, 0.0, amount, (1.0, moved.elements, 1.0, 1.0), {"operator": "store"})


def _copied_in(site: Site) -> Cost:
    moved, amount = _amount(site.operands)
    return Cost("movement", moved.dtype, 0.0, 0.0, amount, 0.0, (1.0, moved.elements, 1.0, 1.0), {"operator": "load"})


def _atomic(site: Site) -> Cost:
    moved, amount = _amount(site.operands[1:])
    return Cost(
        "elementwise",
        moved.dtype,
        moved.elements,
        0.0,
        amount,
        amount,
        (1.0, moved.elements, 1.0, 1.0),
        {"operator": "atomic"},
    )


def _dot(site: Site) -> Cost:
    left, right = site.operands[0].shape, site.operands[1].shape
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return unknown(f"{site.name} of operands without shapes")
    batch = prod((float(size or 0) for size in left[:-2]), start=1.0)
    loops = (batch, float(left[-2] or 0), float(right[-1] or 0), float(left[-1] or 0))
    return costs.contraction(site, loops, site.operands[0].dtype, (), (), lhs_transposed=False, rhs_transposed=False)


def _reduce(site: Site) -> Cost:
    axis, source = site.int_of("axis"), site.operands[0]
    body = read_body(site.body, site.body_arguments)
    return costs.reduction(site, combiner(site.body), source, (axis or 0,), max(body.flops, 1.0), body.transcendentals)


def _scan(site: Site) -> Cost:
    body = read_body(site.body, site.body_arguments)
    return costs.elementwise(site, "cumulative", max(body.flops, 1.0), body.transcendentals)


def _mapped(site: Site) -> Cost:
    body = read_body(site.body, site.body_arguments)
    return costs.elementwise(site, body.name, max(body.flops, 1.0), body.transcendentals)


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
_STEERED = "async_commit_group async_wait local_barrier mask predicate_stage"
_STEERED_ASYNC = (
    "arrive_barrier async_copy_mbarrier_arrive async_tma_store_wait barrier_expect cluster_arrive cluster_wait "
    "fence_async_shared init_barrier inval_barrier reinterpret_tensor_descriptor tc_gen5_commit tensormap_create "
    "tensormap_fenceproxy_acquire wait_barrier"
)

MEMORY = frozenset(
    {
        "tt.load",
        "tt.store",
        "tt.descriptor_load",
        "tt.descriptor_store",
        "tt.descriptor_gather",
        "tt.descriptor_scatter",
        "tt.descriptor_reduce",
        "tt.atomic_rmw",
        "tt.atomic_cas",
        "ttg.async_copy_global_to_local",
        "ttng.async_tma_copy_global_to_local",
        "ttng.async_tma_copy_local_to_global",
        "ttng.async_tma_gather",
        "ttng.async_tma_scatter",
        "ttng.async_tma_reduce",
    }
)
"""What touches a GPU's memory; everything else of a kernel is in registers and shared memory."""

DIALECT = Dialect(
    "triton",
    {
        **rules("load descriptor_load descriptor_gather", _load, dialect="tt"),
        **rules("store descriptor_store descriptor_scatter descriptor_reduce", _store, dialect="tt"),
        **rules("atomic_rmw atomic_cas", _atomic, dialect="tt"),
        **rules("dot dot_scaled", _dot, dialect="tt"),
        **rules("warp_group_dot tc_gen5_mma tc_gen5_mma_scaled", _dot, dialect="ttng"),
        **rules("reduce", _reduce, dialect="tt"),
        **rules("scan", _scan, dialect="tt"),
        **rules("map_elementwise", _mapped, dialect="tt"),
        **rules(
            ("clampf fp_to_fp mulhiui precise_sqrt precise_divf extern_elementwise elementwise_inline_asm histogram"),
            _arithmetic,
            dialect="tt",
        ),
        **rules(_PLACES, costs.view, dialect="tt"),
        **rules("get_program_id get_num_programs assert print", costs.control, dialect="tt"),
        **rules(_LAYOUTS, costs.view, dialect="ttg"),
        **rules("fp4_to_fp", _arithmetic, dialect="ttg"),
        **rules("async_copy_global_to_local", _copied_in, dialect="ttg"),
        **rules(_STEERED, costs.control, dialect="ttg"),
        **rules("async_tma_copy_global_to_local async_tma_gather", _copied_in, dialect="ttng"),
        **rules("async_tma_copy_local_to_global async_tma_scatter async_tma_reduce", _store, dialect="ttng"),
        **rules(_STEERED_ASYNC, costs.control, dialect="ttng"),
        **rules("tmem_alloc tmem_load tmem_store tmem_copy tmem_subslice", costs.view, dialect="ttng"),
        "ttng.warp_group_dot_wait": Rule(costs.view),
    },
    {
        "tt.return": "end",
        "tt.reduce.return": "end",
        "tt.scan.return": "end",
        "tt.map_elementwise.return": "end",
        "ttg.warp_specialize": "body",
        "ttg.warp_yield": "end",
        "ttg.warp_return": "end",
    },
)
