"""func, scf, cf, builtin and the loops of affine: what calls, loops, chooses and ends; and shape, which computes sizes."""

from __future__ import annotations

from ..semantics import costs
from ..semantics.op_rule import Dialect, Known, Site, rules
from ..types import attributes


def _dims(site: Site) -> Known:
    return site.operands[0].shape


def _extent(site: Site) -> Known:
    known, axis = site.known(0), site.known(1)
    if axis is None:
        axis = site.int_of("dim")
    shape = known if isinstance(known, tuple) else site.operands[0].shape
    return shape[axis] if shape is not None and isinstance(axis, int) and 0 <= axis < len(shape) else None


def _all(site: Site) -> Known:
    return tuple(site.known(position) for position in range(len(site.operands)))


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


def _first(site: Site) -> Known:
    return site.known(0)


def _constant(site: Site) -> Known:
    return site.ints("shape") or attributes.numbers(site.text)


def _elements(site: Site) -> Known:
    known = site.known(0)
    total = 1
    for size in known if isinstance(known, tuple) else (None,):
        if not isinstance(size, int):
            return None
        total *= size
    return total


DIALECT = Dialect(
    "control",
    {
        **rules("unrealized_conversion_cast", costs.view, dialect="builtin"),
        **rules("assert", costs.control, dialect="cf"),
        **rules("constant", costs.control, dialect="func"),
        **rules("shape_of", costs.control, dialect="shape", fold=_dims),
        **rules("get_extent dim", costs.control, dialect="shape", fold=_extent),
        **rules("from_extents", costs.control, dialect="shape", fold=_all),
        **rules("broadcast", costs.control, dialect="shape", fold=_broadcast),
        **rules(
            "to_extent_tensor size_to_index index_to_size value_as_shape", costs.control, dialect="shape", fold=_first
        ),
        **rules("num_elements", costs.control, dialect="shape", fold=_elements),
        **rules("const_shape", costs.control, dialect="shape", fold=_constant),
        **rules(
            (
                "const_size const_witness cstr_broadcastable cstr_eq cstr_require assuming_all is_broadcastable any "
                "concat mul add div rank"
            ),
            costs.control,
            dialect="shape",
        ),
        **rules("global extern global_store", costs.control, dialect="ml_program"),
        **rules("global_load global_load_const", costs.constant, dialect="ml_program"),
    },
    {
        "func.call": "call",
        "call": "call",
        "func.call_indirect": "call",
        "llvm.call": "call",
        "tt.call": "call",
        "util.call": "call",
        "torch.operator.call": "call",
        "func.return": "end",
        "return": "end",
        "ml_program.return": "end",
        "scf.for": "for",
        "scf.parallel": "for",
        "scf.forall": "for",
        "affine.for": "for",
        "affine.parallel": "for",
        "scf.while": "while",
        "scf.if": "branch",
        "scf.index_switch": "branch",
        "affine.if": "branch",
        "scf.execute_region": "body",
        "scf.forall.in_parallel": "body",
        "shape.assuming": "body",
        "shape.assuming_yield": "end",
        "scf.yield": "end",
        "scf.condition": "end",
        "scf.reduce": "body",
        "scf.reduce.return": "end",
        "affine.yield": "end",
        "tensor.parallel_insert_slice": "insert",
        "cf.br": "jump",
        "cf.cond_br": "jump",
        "cf.switch": "jump",
        "llvm.br": "jump",
        "llvm.cond_br": "jump",
    },
)
