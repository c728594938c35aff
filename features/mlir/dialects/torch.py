"""torch, as torch-mlir writes it: aten operations on value tensors, and the integers that sizes and axes are computed with."""

from __future__ import annotations

from math import prod

from ..semantics import costs
from ..semantics import torch_sizes as sizes
from ..semantics.costs import moving, not_costed, per_element, unknown
from ..semantics.dynamic_sizes import broadcast_shape, conserved, of_first, of_known, of_operands, static_sizes
from ..semantics.folding import folding, listed
from ..semantics.op_rule import Cost, CostOf, Dialect, Site, rules
from ..semantics.operators import operator
from ..semantics.torch_sizes import each, name_of
from ..types import attributes

_PLAIN = (
    "abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not "
    "bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min clip copysign cos cosh "
    "deg2rad div elu eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac ge gelu gt "
    "hardshrink hardsigmoid hardswish hardtanh heaviside isfinite isinf isnan isneginf isposinf le leaky_relu "
    "lerp log log10 log1p log2 log_sigmoid logaddexp logaddexp2 logical_and logical_not logical_or logical_xor "
    "logit lt masked_fill maximum minimum mish mul ne neg polar pow prelu rad2deg real reciprocal relu relu6 "
    "remainder round rrelu rsqrt rsub selu sgn sigmoid sign signbit silu sin sinh softplus softshrink sqrt square "
    "sub tan tanh threshold threshold_backward to trunc type_as where xlogy __and__ __or__ __xor__ __lshift__ "
    "__rshift__ nan_to_num quantize_per_tensor quantize_per_channel dequantize dropout native_dropout bucketize "
    "gelu_backward tanh_backward sigmoid_backward _to_copy softplus_backward hardtanh_backward view_as_complex "
    "view_as_real complex imag triu tril linspace"
)
_WITH_NUMBER = {"add": "addu", "sub": "addu", "mul": "mulu", "div": "divu", "pow": "powu"}


def _elementwise(site: Site) -> Cost:
    name = name_of(site)
    if site.name.endswith((".Scalar", ".Tensor_Scalar")) and name in _WITH_NUMBER:
        return costs.elementwise(site, _WITH_NUMBER[name])
    return costs.elementwise(site, operator({"log_sigmoid": "softplus", "rsub": "sub"}.get(name, name)))


def _copied(site: Site) -> Cost:
    """A change of dtype; nothing where it is the same already."""
    if site.arrays and site.arrays[0].dtype == site.results[0].dtype:
        return costs.view(site)
    return costs.elementwise(site, "convert")


def _matmul(site: Site) -> Cost:
    """mm, bmm, matmul: vectors are rows on the left and columns on the right."""
    left, right = map(static_sizes, site.operands[:2])
    if not left or not right:
        return unknown(f"{site.name} of numbers")
    m, n = (left[-2] if len(left) > 1 else 1), (right[-1] if len(right) > 1 else 1)
    batch = float(prod(size or 0 for size in broadcast_shape([left[:-2], right[:-2]]) or ()))
    if len(right) == 2 and len(left) > 2:
        # One matrix on the right for all on the left: they are rows of one product.
        m, batch = int(m * batch), 1.0
    return costs.contraction(site, (batch, float(m), float(n), float(left[-1])), site.operands[:2], site.results)


def _linear(site: Site) -> Cost:
    x, weight = map(static_sizes, site.operands[:2])
    loops = (1.0, float(prod(x[:-1])), float(weight[0]) if len(weight) > 1 else 1.0, float(x[-1]))
    return _biased(site, costs.contraction(site, loops, site.arrays, site.results, rhs_transposed=True))


def _addmm(site: Site) -> Cost:
    """addmm, baddbmm: the first operand is added to the product of the next two."""
    left, right = map(static_sizes, site.operands[1:3])
    loops = (float(left[0]) if len(left) > 2 else 1.0, float(left[-2]), float(right[-1]), float(left[-1]))
    return _biased(site, costs.contraction(site, loops, site.arrays, site.results, dtype=site.operands[1].dtype))


def _biased(site: Site, cost: Cost) -> Cost:
    if len(site.arrays) < 3:
        return cost
    return cost._replace(flops=cost.flops + site.results[0].elements, detail={**cost.detail, "bias": True})


def _convolution(site: Site) -> Cost:
    """Convolution and convNd: image N C …, weights O I …; transposed ones have weights I O …."""
    image, kernel = map(static_sizes, site.operands[:2])
    general = name_of(site) in ("convolution", "_convolution")
    numbers = [site.listed(position) or (default,) for position, default in ((3, 1), (4, 0), (5, 1))]
    groups = site.known(8 if general else 6)
    transposed = (general and site.known(6) == 1) or "transpose" in site.short
    if "transpose" in site.short:
        groups = site.known(6)
    groups = groups if isinstance(groups, int) else 1
    outs = kernel[1] * groups if transposed else kernel[0]
    sizes = costs.conv_sizes(
        image[0],
        image[1],
        outs,
        list(image[2:]),
        list(kernel[2:]),
        stride=max(numbers[0]),
        padding=max(numbers[1]),
        dilation=max(numbers[2]),
        groups=groups,
    )
    return costs.convolution(site, site.arrays[:3], site.results[0], sizes, transposed=transposed)


_REDUCED = (
    "sum mean amax amin max min prod any all argmax argmin logsumexp norm linalg_vector_norm count_nonzero nansum "
    "frobenius_norm var std var_mean"
)
_REDUCED_AS = {
    "amax": "max",
    "amin": "min",
    "linalg_vector_norm": "norm",
    "frobenius_norm": "norm",
    "count_nonzero": "sum",
    "nansum": "sum",
}
"""Operators of reductions whose own name is another."""

_PER_ELEMENT = {
    "var": 3.0,
    "std": 3.0,
    "var_mean": 3.0,
    "norm": 2.0,
    "linalg_vector_norm": 2.0,
    "frobenius_norm": 2.0,
    "logsumexp": 4.0,
}
"""Operations per element where it is not one: a difference, its square and their sum for a variance."""


def _reduce(site: Site) -> Cost:
    name = name_of(site)
    source = site.operands[0]
    if len(site.arrays) > 1:
        # max and min of two tensors are elementwise.
        return costs.elementwise(site, operator(name))
    axes = _axes(site)
    return costs.reduction(
        site,
        _REDUCED_AS.get(name, name),
        source,
        axes,
        _PER_ELEMENT.get(name, 1.0),
        1.0 if name == "logsumexp" else 0.0,
    )


def _axes(site: Site) -> tuple[int, ...]:
    """Reduced axes: the first list or integer operand; all without one."""
    rank = len(static_sizes(site.operands[0]))
    position = 2 if name_of(site).endswith("norm") else 1
    results = site.listed(position)
    whole = site.name.count(".") < 3 and name_of(site) in _WHOLE
    return tuple(range(rank)) if not results or whole else results


_WHOLE = frozenset(("sum", "mean", "max", "min", "prod", "any", "all", "var", "std"))
"""Reductions of all axes where their name has no overload."""


def _cumulative(site: Site) -> Cost:
    return costs.elementwise(site, name_of(site), 1.0, 0.0)


def _softmax(site: Site) -> Cost:
    axis = site.known(1)
    return costs.softmax(site, axis if isinstance(axis, int) else None)


def _layer_norm(site: Site) -> Cost:
    shape = static_sizes(site.operands[0])
    last = len(site.listed(1) or (0,))
    cols = float(prod(shape[-last:]))
    # 7 operations per element for LayerNorm, 4 for RMSNorm, as `features.families.layernorm` counts them.
    rms = "rms" in site.short
    return costs.normalization(
        site, "rmsnorm" if rms else "layernorm", site.operands[0], cols, 4.0 if rms else 7.0, site.arrays[1:]
    )


def _batch_norm(site: Site) -> Cost:
    each = 8.0 if site.known(5) == 1 else 4.0
    source = site.operands[0]
    cols = source.elements / static_sizes(source)[1]
    return costs.normalization(site, "batch_norm", source, cols, each, site.arrays[1:])


def _group_norm(site: Site) -> Cost:
    """Groups: operand 1 of group_norm, 6 of native_group_norm; an instance norm has a group per channel."""
    shape = static_sizes(site.operands[0])
    groups = shape[1] if "instance" in site.short else site.known(6 if "native" in site.short else 1)
    groups = groups if isinstance(groups, int) else 1
    return costs.normalization(
        site, "group_norm", site.operands[0], site.operands[0].elements / (shape[0] * groups), 7.0, site.arrays[1:]
    )


def _attention(site: Site) -> Cost:
    query, key, value = site.operands[:3]
    return costs.attention(site, query, key, value, site.results[0], site.known(5) == 1, site.arrays[3:4])


def _flash(site: Site) -> Cost:
    query, key, value = site.operands[:3]
    return costs.attention(site, query, key, value, site.results[0], site.known(4) == 1)


def _pool(site: Site) -> Cost:
    source, result = site.operands[0], site.results[0]
    window = site.listed(1) or (1,)
    if "adaptive" in site.short:
        spatial, out = static_sizes(source)[2:], static_sizes(result)[2:]
        window = tuple(-(-size // max(item, 1)) for size, item in zip(spatial, out, strict=False))
    cost = costs.window_reduction(site, "max" if "max" in site.name else "mean", source, result, window)
    return cost._replace(bytes_out=result.nbytes)


def _embedding(site: Site) -> Cost:
    return costs.gathered("embedding", site.operands[1:2], site.results[0])


def _gather(site: Site) -> Cost:
    return costs.gathered(name_of(site), site.arrays[1:], site.results[0])


def _scatter(site: Site) -> Cost:
    """index_put, scatter, slice_scatter: the last array is what is written."""
    arrays = site.arrays
    return costs.gathered(name_of(site), arrays[1:-1], arrays[-1]) if len(arrays) > 1 else costs.movement(site, "copy")


def _broadcast(site: Site) -> Cost:
    """Elements repeated; nothing where the result has no more of them."""
    if site.arrays and site.operands[0].elements == site.results[0].elements:
        return costs.view(site)
    return costs.movement(site, "broadcast", costs.nbytes(site.operands[:1]))


def _sorting(dim: int) -> CostOf:
    """The rule of sorts and of what sorts: operand `dim` is the axis, after `stable` if there; the last if left out."""

    def cost(site: Site) -> Cost:
        place = dim + site.name.endswith(".stable")
        axis = site.known(place) if place < len(site.operands) else None
        return costs.sort(site, axis if isinstance(axis, int) else None)

    return cost


def _transpose(site: Site) -> Cost:
    """Permute gives the order of axes; transpose and its kin swap two. movedim says neither."""
    return costs.transpose(site, None if name_of(site) == "movedim" else sizes.order_of(site))


def _unregistered(site: Site) -> Cost:
    return unknown(f"torch.operator {attributes.value(site.text, 'name') or site.text[:60]}")


_CONVOLUTIONS = "convolution _convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"
_SOFTMAXES = "softmax _softmax log_softmax _log_softmax _safe_softmax"
_BATCH_NORMS = (
    "batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm"
)
_FLASHES = (
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention"
)
_POOLS = (
    "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_avg_pool3d _adaptive_avg_pool2d adaptive_max_pool2d adaptive_max_pool1d max_pool2d_with_indices "
    "max_pool3d_with_indices"
)
_RANDOM = "rand randn randint rand_like randn_like bernoulli uniform normal normal_functional multinomial randperm exponential"
_GATHERS = "embedding_bag index index_select gather take masked_select grid_sampler roll nonzero _unsafe_index"
_SCATTERS = (
    "index_put _index_put_impl _unsafe_index_put scatter scatter_add scatter_reduce slice_scatter select_scatter "
    "index_add index_copy masked_scatter copy"
)
_PADS = "constant_pad_nd pad reflection_pad1d reflection_pad2d replication_pad2d replication_pad1d im2col col2im"
_COPIES = "clone contiguous flip rot90 pixel_shuffle pixel_unshuffle channel_shuffle lift_fresh_copy"
_VIEWS = "detach alias resolve_conj resolve_neg requires_grad lift_fresh view_as"
_FILLED = (
    "zeros ones full empty scalar_tensor eye tensor new_zeros new_ones new_full new_empty empty_strided "
    "new_empty_strided one_hot"
)
_LISTS = (
    "ListUnpack TupleUnpack ListIndex DictConstruct device dtype layout Print RaiseException Uninitialized GetAttr "
    "SetAttr CallMethod unchecked_cast abs min max"
)
_NUMBERS = "Int IntImplicit Float FloatImplicit Bool ScalarImplicit item _local_scalar_dense"
_STEERED = (
    "numel is_floating_point __is__ __isnot__ __not__ __contains__ neg.int mul.float_int add.float_int div.int "
    "div.float sub.float sqrt.int mul.float append append.t __range_length __derive_index warn format ceil.Scalar "
    "floor.Scalar ceil.float _assert_tensor_metadata sym_constrain_range sym_constrain_range_for_size _set_item "
    "_set_item.t Delete"
)
_WRAPPERS = (
    "copy.to_vtensor copy.to_tensor tensor_static_info_cast overwrite.tensor.contents derefine runtime.assert "
    "symbolic_int bind_symbolic_shape initialize.global_slots global_slot global_slot.get nn_module_terminator "
    "promote_dtypes"
)

_ATEN = "torch.aten"
DIALECT = Dialect(
    "torch",
    {
        **each(_ATEN, _PLAIN, _elementwise, of_operands),
        **each(_ATEN, "to _to_copy type_as", _copied, of_first),
        **each("torch.prims", "convert_element_type", _copied, of_first),
        **each("torch.prims", "collapse split_dim view_of", costs.view, conserved),
        **each("torch.prims", "squeeze", costs.view, sizes.squeezed_sizes),
        **each("torch.prims", "sqrt", _elementwise, of_operands),
        **each(_ATEN, "mm bmm matmul mv dot", _matmul, sizes.product_sizes),
        **each(_ATEN, "linear", _linear, sizes.product_sizes),
        **each(_ATEN, "addmm baddbmm", _addmm, sizes.product_sizes),
        **each(_ATEN, _CONVOLUTIONS, _convolution, sizes.convolved_sizes),
        **each(_ATEN, _REDUCED, _reduce, sizes.reduced_sizes),
        **each("torch.prims", "var sum amax amin", _reduce, sizes.reduced_sizes),
        **each(_ATEN, "cumsum cumprod logcumsumexp cummax cummin", _cumulative, of_first),
        **each(_ATEN, _SOFTMAXES, _softmax, of_first),
        **each(_ATEN, "layer_norm native_layer_norm rms_norm", _layer_norm, of_first),
        **each(_ATEN, _BATCH_NORMS, _batch_norm, of_first),
        **each(_ATEN, "group_norm native_group_norm instance_norm", _group_norm, of_first),
        **each(_ATEN, "scaled_dot_product_attention", _attention, of_first),
        **each(_ATEN, _FLASHES, _flash, of_first),
        **each(_ATEN, _POOLS, _pool),
        **each(_ATEN, "unique_consecutive _unique2", costs.sort),
        **each(_ATEN, "sort argsort median mode", _sorting(1)),
        **each(_ATEN, "topk kthvalue", _sorting(2)),
        **each(_ATEN, _RANDOM, costs.random),
        **each(_ATEN, "lstm gru rnn_tanh rnn_relu", not_costed(": a recurrent network in one operation is not costed")),
        **each(
            _ATEN,
            "__interpolate upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa",
            per_element("resize", 7.0),
        ),
        **each(_ATEN, "embedding", _embedding, sizes.embedded_sizes),
        **each(_ATEN, _GATHERS, _gather),
        **each(_ATEN, _SCATTERS, _scatter, of_first),
        **each(_ATEN, "permute transpose t numpy_T swapaxes movedim", _transpose, sizes.permuted_sizes),
        **each(_ATEN, "expand broadcast_to expand_as", _broadcast, sizes.expanded_sizes),
        **each(_ATEN, "repeat tile repeat_interleave", _broadcast),
        **each(_ATEN, "upsample_nearest2d upsample_nearest1d upsample_nearest_exact2d", _broadcast),
        **each(_ATEN, "slice", moving("slice"), sizes.sliced_sizes),
        **each(_ATEN, "select unbind", moving("slice"), sizes.selected_sizes),
        **each(_ATEN, "narrow split split_with_sizes chunk diagonal unfold as_strided tensor_split", moving("slice")),
        **each(_ATEN, "cat stack", moving("concatenate"), sizes.joined_sizes),
        **each(_ATEN, "hstack vstack column_stack", moving("concatenate")),
        **each(_ATEN, _PADS, moving("pad", reads_first=True)),
        **each(_ATEN, _COPIES, moving("copy"), of_first),
        **each(_ATEN, "view reshape _unsafe_view _reshape_alias view_copy", costs.view, sizes.viewed_sizes),
        **each(_ATEN, "unsqueeze", costs.view, sizes.unsqueezed_sizes),
        **each(_ATEN, "squeeze", costs.view, sizes.squeezed_sizes),
        **each(_ATEN, "flatten unflatten ravel atleast_1d atleast_2d", costs.view, conserved),
        **each(_ATEN, _VIEWS, costs.view, of_first),
        **each(_ATEN, _FILLED, costs.filled, of_known(0)),
        **each(_ATEN, "zeros_like ones_like full_like empty_like zero fill", costs.filled, of_first),
        **each(_ATEN, "arange", costs.filled, sizes.ranged_sizes),
        **each("torch.prims", "iota", costs.filled),
        **rules("torch", "vtensor.literal tensor.literal", costs.constant),
        **rules("torch.constant", "int bool float", costs.constant, fold=sizes.constant),
        **rules("torch.constant", "none str device number", costs.constant),
        **rules("torch.prim", "ListConstruct TupleConstruct", costs.control, fold=listed),
        **rules("torch.prim", _LISTS, costs.control),
        **rules("torch.prim", "tolist NumToTensor", costs.control, fold=sizes.passed),
        **rules(_ATEN, _NUMBERS, costs.control, fold=sizes.passed),
        **rules(_ATEN, "size sym_size", costs.control, fold=sizes.size),
        **rules(_ATEN, "len dim", costs.control, fold=sizes.length),
        **rules(_ATEN, "__getitem__ __getitem__.t", costs.control, fold=sizes.item),
        **folding(
            "torch",
            costs.control,
            {
                "add": "aten.add.int",
                "sub": "aten.sub.int",
                "mul": "aten.mul.int",
                "floordiv": "aten.floordiv.int",
                "mod": "aten.remainder.int",
                "eq": "aten.eq.int",
                "ne": "aten.ne.int",
                "gt": "aten.gt.int",
                "lt": "aten.lt.int",
                "ge": "aten.ge.int",
                "le": "aten.le.int",
                "max": "aten.max.int prim.max.int",
                "min": "aten.min.int prim.min.int",
            },
        ),
        **rules(_ATEN, _STEERED, costs.control),
        **rules("torch", _WRAPPERS, costs.view, of_first),
        **rules("torch_c", "to_builtin_tensor from_builtin_tensor", costs.view, of_first),
        **rules("torch_c", "to_i1 from_i1 to_i64 from_i64 to_f64 from_f64", costs.view, of_first),
        **rules("torch", "operator", _unregistered),
    },
    {
        "branch": "torch.prim.If",
        "body": "torch.prim.Loop torch.shape.calculate",
        "end": "torch.prim.If.yield torch.prim.Loop.condition torch.shape.calculate.yield.shapes "
        "torch.shape.calculate.yield",
    },
)
