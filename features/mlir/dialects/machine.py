"""gpu and llvm: scalar code of one thread, launches, and what steers threads."""

from __future__ import annotations

import re

from ..semantics import costs
from ..semantics.costs import unknown
from ..semantics.folding import constant
from ..semantics.op_rule import Cost, Dialect, Site, rules

_SCALAR = (
    "fadd fsub fmul fdiv frem fneg add sub mul sdiv udiv srem urem and or xor shl lshr ashr icmp fcmp select sext "
    "zext trunc fpext fptrunc sitofp uitofp fptosi fptoui bitcast"
)
_INTRINSICS = (
    "fmuladd fma exp exp2 log log2 log10 sqrt sin cos tan tanh pow powi fabs abs maxnum minnum maximum minimum "
    "floor ceil round roundeven rint trunc copysign smax smin umax umin ctlz cttz ctpop"
)


def _arithmetic(site: Site) -> Cost:
    """Arithmetic by name; LLVM's `trunc` shortens an integer."""
    return costs.elementwise(site, "convert") if site.short == "trunc" else costs.by_name(site)


def _store(site: Site) -> Cost:
    stored = site.operands[0]
    return costs.stored(stored, stored.elements, stored.elements * stored.itemsize_b)


_TILE = re.compile(r"mma_matrix<(\d+)x(\d+)x(\w+)")


def _mma(site: Site) -> Cost:
    items = [_TILE.search(kind.text) for kind in site.operands[:2]]
    if None in items:
        return unknown(f"{site.name} of operands without sizes")
    (m, k), (_, n) = ((float(item[1]), float(item[2])) for item in items if item is not None)
    return costs.contraction(site, (1.0, m, n, k), dtype=costs.dtype_of(site.operands) or "fp16")


def _shuffled(site: Site) -> Cost:
    """Values exchanged between threads through registers."""
    return costs.elementwise(site, site.short, 1.0, 0.0)


_LLVM_STEERED = (
    "mlir.undef mlir.zero mlir.poison mlir.addressof mlir.global getelementptr alloca extractvalue insertvalue "
    "extractelement insertelement shufflevector ptrtoint inttoptr addrspacecast unreachable intr.assume "
    "intr.lifetime.start intr.lifetime.end intr.memset intr.stacksave intr.stackrestore freeze"
)
_GPU_STEERED = (
    "thread_id block_id block_dim grid_dim global_id lane_id subgroup_id num_subgroups subgroup_size cluster_id "
    "cluster_dim barrier wait dealloc printf host_register host_unregister dynamic_shared_memory module "
    "set_default_device"
)
_MMA_VIEWS = "subgroup_mma_load_matrix subgroup_mma_store_matrix subgroup_mma_constant_matrix subgroup_mma_elementwise"

DIALECT = Dialect(
    "machine",
    {
        **rules("llvm", _SCALAR, _arithmetic),
        **rules("llvm.intr", _INTRINSICS, _arithmetic),
        **rules("llvm", "load", costs.load),
        **rules("llvm", "store", _store),
        **rules("llvm", "mlir.constant", costs.constant, fold=constant),
        **rules("llvm", _LLVM_STEERED, costs.control),
        **rules("gpu", _GPU_STEERED, costs.control),
        **rules("gpu", "alloc", costs.view),
        **rules("gpu", "memcpy memset", costs.copied(0)),
        **rules("gpu", "all_reduce subgroup_reduce shuffle rotate subgroup_broadcast", _shuffled),
        **rules("gpu", "subgroup_mma_compute", _mma),
        **rules("gpu", _MMA_VIEWS, costs.view),
        **rules("nvvm", "barrier0 barrier barrier.arrive fence.proxy", costs.control),
        **rules("rocdl", "barrier s.barrier s.waitcnt", costs.control),
        **rules("ub", "poison", costs.constant),
    },
    {
        "launch": "gpu.launch gpu.launch_func",
        "end": "gpu.return gpu.terminator gpu.yield llvm.return ub.unreachable",
    },
)
