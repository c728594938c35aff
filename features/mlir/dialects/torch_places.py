"""torch, as torch-mlir writes it: what moves, views, makes or names data, and the integers that sizes are computed with."""

from __future__ import annotations

from collections.abc import Callable

from ..semantics import costs
from ..semantics import torch_sizes as sizes
from ..semantics.costs import unknown
from ..semantics.dynamic_sizes import conserved, of_first
from ..semantics.op_rule import Cost, Dialect, Rule, Site, rules
from ..semantics.torch_sizes import each, name_of
from ..types import attributes


def _embedding(site: Site) -> Cost:
    return costs.gathered("embedding", site.operands[1:2], site.results[0])


def _gather(site: Site) -> Cost:
    return costs.gathered(name_of(site), site.arrays[1:], site.results[0])


def _scatter(site: Site) -> Cost:
    """index_put, scatter, slice_scatter: the last array is what is written."""
    arrays = site.arrays
    return costs.gathered(name_of(site), arrays[1:-1], arrays[-1]) if len(arrays) > 1 else costs.movement(site, "copy")


def _moving(name: str) -> Callable[[Site], Cost]:
    def cost(site: Site) -> Cost:
        read = costs.nbytes(site.operands[:1]) if name in ("pad", "broadcast") else None
        return (
            costs.broadcast_of(site, site.operands[0])
            if name == "broadcast" and site.arrays
            else costs.movement(site, name, read)
        )

    return cost


def _transpose(site: Site) -> Cost:
    """Permute gives the order of axes; transpose and its kin swap two. movedim says neither."""
    return costs.transpose(site, None if name_of(site) == "movedim" else sizes.order_of(site))


def _made(site: Site) -> Cost:
    return costs.movement(site, "broadcast", 0.0)


_ATEN = "torch.aten"
DIALECT = Dialect(
    "torch_places",
    {
        **each(_ATEN, "embedding", _embedding, sizes.embedded_sizes),
        **each(
            _ATEN,
            ("embedding_bag index index_select gather take masked_select grid_sampler roll nonzero _unsafe_index"),
            _gather,
        ),
        **each(
            _ATEN,
            (
                "index_put _index_put_impl _unsafe_index_put scatter scatter_add scatter_reduce slice_scatter "
                "select_scatter index_add index_copy masked_scatter copy"
            ),
            _scatter,
            of_first,
        ),
        **each(_ATEN, "permute transpose t numpy_T swapaxes movedim", _transpose, sizes.permuted_sizes),
        **each(_ATEN, "expand broadcast_to expand_as", _moving("broadcast"), sizes.expanded_sizes),
        **each(_ATEN, "repeat tile repeat_interleave", _moving("broadcast")),
        **each(_ATEN, "slice", _moving("slice"), sizes.sliced_sizes),
        **each(_ATEN, "select unbind", _moving("slice"), sizes.selected_sizes),
        **each(_ATEN, "narrow split split_with_sizes chunk diagonal unfold as_strided tensor_split", _moving("slice")),
        **each(_ATEN, "cat stack", _moving("concatenate"), sizes.joined_sizes),
        **each(_ATEN, "hstack vstack column_stack", _moving("concatenate")),
        **each(
            _ATEN,
            ("constant_pad_nd pad reflection_pad1d reflection_pad2d replication_pad2d replication_pad1d im2col col2im"),
            _moving("pad"),
        ),
        **each(
            _ATEN,
            ("clone contiguous flip rot90 pixel_shuffle pixel_unshuffle channel_shuffle lift_fresh_copy"),
            _moving("copy"),
            of_first,
        ),
        **each(_ATEN, "view reshape _unsafe_view _reshape_alias view_copy", costs.view, sizes.viewed_sizes),
        **each(_ATEN, "unsqueeze", costs.view, sizes.unsqueezed_sizes),
        **each(_ATEN, "squeeze", costs.view, sizes.squeezed_sizes),
        **each(_ATEN, "flatten unflatten ravel atleast_1d atleast_2d", costs.view, conserved),
        **each(_ATEN, "detach alias resolve_conj resolve_neg requires_grad lift_fresh view_as", costs.view, of_first),
        **each(
            _ATEN,
            (
                "zeros ones full empty scalar_tensor eye tensor new_zeros new_ones new_full new_empty empty_strided "
                "new_empty_strided one_hot"
            ),
            _made,
            sizes.made_sizes,
        ),
        **each(_ATEN, "zeros_like ones_like full_like empty_like zero fill", _made, of_first),
        **each(_ATEN, "arange", _made, sizes.ranged_sizes),
        **each("torch.prims", "iota", _made),
        **each(_ATEN, "upsample_nearest2d upsample_nearest1d upsample_nearest_exact2d", _moving("broadcast")),
        **rules("literal", costs.constant, dialect="torch.vtensor"),
        **rules("literal", costs.constant, dialect="torch.tensor"),
        **rules("int bool float", costs.constant, dialect="torch.constant", fold=sizes.constant),
        **rules("none str device number", costs.constant, dialect="torch.constant"),
        **rules("ListConstruct TupleConstruct", costs.control, dialect="torch.prim", fold=sizes.whole_list),
        **rules(
            (
                "ListUnpack TupleUnpack ListIndex DictConstruct device dtype layout Print RaiseException "
                "Uninitialized GetAttr SetAttr CallMethod unchecked_cast abs min max"
            ),
            costs.control,
            dialect="torch.prim",
        ),
        **rules("tolist", costs.control, dialect="torch.prim", fold=sizes.passed),
        **rules("NumToTensor", costs.control, dialect="torch.prim", fold=sizes.passed),
        **rules(
            "Int IntImplicit Float FloatImplicit Bool ScalarImplicit item _local_scalar_dense",
            costs.control,
            dialect=_ATEN,
            fold=sizes.passed,
        ),
        **rules("size sym_size", costs.control, dialect=_ATEN, fold=sizes.size),
        **rules("len dim", costs.control, dialect=_ATEN, fold=sizes.length),
        **rules("__getitem__ __getitem__.t", costs.control, dialect=_ATEN, fold=sizes.item),
        **{
            f"{_ATEN}.{name}" if not name.startswith("prim") else f"torch.{name}": Rule(
                costs.control, fold=sizes.act(name)
            )
            for name in sizes.ACTS
        },
        **rules(
            (
                "numel is_floating_point __is__ __isnot__ __not__ __contains__ neg.int mul.float_int add.float_int "
                "div.int div.float sub.float sqrt.int mul.float append append.t __range_length __derive_index warn "
                "format ceil.Scalar floor.Scalar ceil.float _assert_tensor_metadata sym_constrain_range "
                "sym_constrain_range_for_size _set_item _set_item.t Delete"
            ),
            costs.control,
            dialect=_ATEN,
        ),
        **rules(
            (
                "copy.to_vtensor copy.to_tensor tensor_static_info_cast overwrite.tensor.contents derefine "
                "runtime.assert symbolic_int bind_symbolic_shape initialize.global_slots global_slot "
                "global_slot.get nn_module_terminator promote_dtypes"
            ),
            costs.view,
            dialect="torch",
            shapes=of_first,
        ),
        **rules(
            "to_builtin_tensor from_builtin_tensor to_i1 from_i1 to_i64 from_i64 to_f64 from_f64",
            costs.view,
            dialect="torch_c",
            shapes=of_first,
        ),
        **rules(
            "operator",
            lambda site: unknown(f"torch.operator {attributes.value(site.text, 'name') or site.text[:60]}"),
            dialect="torch",
        ),
    },
    {
        "torch.prim.If": "branch",
        "torch.prim.If.yield": "end",
        "torch.prim.Loop": "body",
        "torch.prim.Loop.condition": "end",
        "torch.shape.calculate": "body",
        "torch.shape.calculate.yield.shapes": "end",
        "torch.shape.calculate.yield": "end",
    },
)
