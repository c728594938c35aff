"""gpu and llvm: scalar code of one thread, launches, and what steers threads."""

from __future__ import annotations

import re

from ..semantics import costs
from ..semantics.costs import unknown
from ..semantics.op_rule import Cost, Dialect, Known, Site, rules
from ..semantics.operators import operator
from .arith import constant_number

_SCALAR = (
    "fadd fsub fmul fdiv frem fneg add sub mul sdiv udiv srem urem and or xor shl lshr ashr icmp fcmp select sext "
    "zext trunc fpext fptrunc sitofp uitofp fptosi fptoui bitcast"
)
_INTRINSICS = (
    "fmuladd fma exp exp2 log log2 log10 sqrt sin cos tan tanh pow powi fabs abs maxnum minnum maximum minimum "
    "floor ceil round roundeven rint trunc copysign smax smin umax umin ctlz cttz ctpop"
)
_LLVM_NAMES = {
    "fadd": "add",
    "fsub": "sub",
    "fmul": "mul",
    "fdiv": "div",
    "sdiv": "div",
    "udiv": "div",
    "frem": "remainder",
    "srem": "remainder",
    "urem": "remainder",
    "fneg": "neg",
    "icmp": "compare",
    "fcmp": "compare",
    "fmuladd": "fma",
    "fabs": "abs",
    "maxnum": "maximum",
    "minnum": "minimum",
    **dict.fromkeys(("sext", "zext", "trunc", "fpext", "fptrunc", "sitofp", "uitofp", "fptosi", "fptoui"), "convert"),
}


def _arithmetic(site: Site) -> Cost:
    return costs.elementwise(site, operator(_LLVM_NAMES.get(site.short, site.short)))


def _load(site: Site) -> Cost:
    result = site.results[0]
    return Cost(
        "movement",
        result.dtype,
        0.0,
        0.0,
        result.elements * result.itemsize_b,
        0.0,
        (1.0, result.elements, 1.0, 1.0),
        {"operator": "load"},
    )


def _store(site: Site) -> Cost:
    stored = site.operands[0]
    return Cost(
        "movement",
        stored.dtype,
        0.0,
        0.0,
        0.0,
        stored.elements * stored.itemsize_b,
        (1.0, stored.elements, 1.0, 1.0),
        {"operator": "store"},
    )


_TILE = re.compile(r"mma_matrix<(\d+)x(\d+)x(\w+)")


def _mma(site: Site) -> Cost:
    items = [_TILE.search(kind.text) for kind in site.operands[:2]]
    if None in items:
        return unknown(f"{site.name} of operands without sizes")
    (m, k), (_, n) = ((float(item[1]), float(item[2])) for item in items if item is not None)
    return costs.contraction(
        site,
        (1.0, m, n, k),
        costs.dtype_of(site.operands) or "fp16",
        (),
        (),
        lhs_transposed=False,
        rhs_transposed=False,
    )


def _shuffled(site: Site) -> Cost:
    """Values exchanged between threads through registers."""
    return costs.elementwise(site, site.short, 1.0, 0.0)


def _copied(site: Site) -> Cost:
    target = site.arrays[0]
    return costs.movement(site, "copy", target.nbytes, target.nbytes)


def _constant(site: Site) -> Known:
    return constant_number(site)


DIALECT = Dialect(
    "machine",
    {
        **rules(_SCALAR, _arithmetic, dialect="llvm"),
        **rules([f"intr.{name}" for name in _INTRINSICS], _arithmetic, dialect="llvm"),
        **rules("load", _load, dialect="llvm"),
        **rules("store", _store, dialect="llvm"),
        **rules("mlir.constant", costs.constant, dialect="llvm", fold=_constant),
        **rules(
            (
                "mlir.undef mlir.zero mlir.poison mlir.addressof mlir.global getelementptr alloca extractvalue "
                "insertvalue extractelement insertelement shufflevector ptrtoint inttoptr addrspacecast unreachable "
                "intr.assume intr.lifetime.start intr.lifetime.end intr.memset intr.stacksave intr.stackrestore "
                "freeze"
            ),
            costs.control,
            dialect="llvm",
        ),
        **rules(
            (
                "thread_id block_id block_dim grid_dim global_id lane_id subgroup_id num_subgroups subgroup_size "
                "cluster_id cluster_dim barrier wait dealloc printf host_register host_unregister "
                "dynamic_shared_memory module set_default_device"
            ),
            costs.control,
            dialect="gpu",
        ),
        **rules("alloc", costs.view, dialect="gpu"),
        **rules("memcpy memset", _copied, dialect="gpu"),
        **rules("all_reduce subgroup_reduce shuffle rotate subgroup_broadcast", _shuffled, dialect="gpu"),
        **rules("subgroup_mma_compute", _mma, dialect="gpu"),
        **rules(
            (
                "subgroup_mma_load_matrix subgroup_mma_store_matrix subgroup_mma_constant_matrix "
                "subgroup_mma_elementwise"
            ),
            costs.view,
            dialect="gpu",
        ),
        **rules("barrier0 barrier barrier.arrive fence.proxy", costs.control, dialect="nvvm"),
        **rules("barrier s.barrier s.waitcnt", costs.control, dialect="rocdl"),
        **rules("poison", costs.constant, dialect="ub"),
    },
    {
        "gpu.launch": "launch",
        "gpu.launch_func": "launch",
        "gpu.return": "end",
        "gpu.terminator": "end",
        "gpu.yield": "end",
        "llvm.return": "end",
        "ub.unreachable": "end",
    },
)
