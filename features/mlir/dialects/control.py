"""func, scf, cf, builtin and the loops of affine: what calls, loops, chooses and ends; and shape, which computes sizes."""

from __future__ import annotations

from math import prod

from ..semantics import costs
from ..semantics.folding import listed, passed
from ..semantics.op_rule import Dialect, Known, Site, rules
from ..types import attributes


def _dims(site: Site) -> Known:
    return site.operands[0].shape


def _extent(site: Site) -> Known:
    """A size of a shape, or of an array."""
    known, axis = site.known(0), site.known(1)
    if axis is None:
        axis = site.int_of("dim")
    shape = known if isinstance(known, tuple) else site.operands[0].shape
    return shape[axis] if shape is not None and isinstance(axis, int) and 0 <= axis < len(shape) else None


def _broadcast(site: Site) -> Known:
    known = [site.known(position) for position in range(len(site.operands))]
    lists = [item for item in known if isinstance(item, tuple)]
    if len(lists) != len(known) or not lists:
        return None
    rank = max(len(list_) for list_ in lists)
    padded = [(1,) * (rank - len(list_)) + list_ for list_ in lists]
    return tuple(
        None if None in sizes else max((s for s in sizes if isinstance(s, int)), default=None)
        for sizes in zip(*padded, strict=True)
    )


def _constant(site: Site) -> Known:
    return site.ints("shape") or attributes.numbers(site.text)


def _elements(site: Site) -> Known:
    known = site.known(0)
    sizes = [size for size in known if isinstance(size, int)] if isinstance(known, tuple) else []
    return prod(sizes) if isinstance(known, tuple) and len(sizes) == len(known) else None


DIALECT = Dialect(
    "control",
    {
        **rules("builtin", "unrealized_conversion_cast", costs.view),
        **rules("cf", "assert", costs.control),
        **rules("func", "constant", costs.control),
        **rules("shape", "shape_of", costs.control, fold=_dims),
        **rules("shape", "get_extent dim", costs.control, fold=_extent),
        **rules("shape", "from_extents", costs.control, fold=listed),
        **rules("shape", "broadcast", costs.control, fold=_broadcast),
        **rules("shape", "to_extent_tensor size_to_index index_to_size value_as_shape", costs.control, fold=passed),
        **rules("shape", "num_elements", costs.control, fold=_elements),
        **rules("shape", "const_shape", costs.control, fold=_constant),
        **rules(
            "shape",
            "const_size const_witness cstr_broadcastable cstr_eq cstr_require assuming_all is_broadcastable any concat "
            "mul add div rank",
            costs.control,
        ),
        **rules("ml_program", "global extern global_store", costs.control),
        **rules("ml_program", "global_load global_load_const", costs.constant),
    },
    {
        "call": "func.call call func.call_indirect llvm.call tt.call util.call torch.operator.call",
        "for": "scf.for scf.parallel scf.forall affine.for affine.parallel",
        "while": "scf.while",
        "branch": "scf.if scf.index_switch affine.if",
        "body": "scf.execute_region scf.forall.in_parallel shape.assuming scf.reduce",
        "insert": "tensor.parallel_insert_slice",
        "jump": "cf.br cf.cond_br cf.switch llvm.br llvm.cond_br",
        "end": "func.return return ml_program.return shape.assuming_yield scf.yield scf.condition scf.reduce.return "
        "affine.yield",
    },
)
