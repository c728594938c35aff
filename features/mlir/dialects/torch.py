"""torch, as torch-mlir writes it: aten operations on value tensors, sizes and axes as integers that are folded."""

from __future__ import annotations

from ..semantics import costs
from ..semantics import torch_sizes as sizes
from ..semantics.costs import unknown
from ..semantics.dynamic_sizes import broadcast_shape, conserved, of_first, of_operands
from ..semantics.op_rule import Cost, Dialect, Shape, Site
from ..semantics.operators import operator
from ..semantics.torch_sizes import each, name_of
from ..types.graph import ValueType

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


def _array_shape(kind: ValueType) -> tuple[int, ...]:
    if kind.shape is None or None in kind.shape:
        raise ValueError(f"{kind.text} has a dynamic size")
    return tuple(size or 0 for size in kind.shape)


def _batched(left: Shape, right: Shape) -> float:
    joined = broadcast_shape([left, right])
    total = 1.0
    for size in joined or ():
        total *= size or 0
    return total


def _matmul(site: Site) -> Cost:
    """mm, bmm, matmul: vectors are rows on the left and columns on the right."""
    left, right = (_array_shape(kind) for kind in site.operands[:2])
    if not left or not right:
        return unknown(f"{site.name} of numbers")
    m, n = (left[-2] if len(left) > 1 else 1), (right[-1] if len(right) > 1 else 1)
    batch = _batched(left[:-2], right[:-2])
    if len(right) == 2 and len(left) > 2:
        # One matrix on the right for all on the left: they are rows of one product.
        m, batch = int(m * batch), 1.0
    return costs.contraction(
        site,
        (batch, float(m), float(n), float(left[-1])),
        site.operands[0].dtype,
        site.operands[:2],
        site.results,
        lhs_transposed=False,
        rhs_transposed=False,
    )


def _linear(site: Site) -> Cost:
    x, weight = (_array_shape(kind) for kind in site.operands[:2])
    rows = 1.0
    for size in x[:-1]:
        rows *= size
    cols = float(weight[0]) if len(weight) > 1 else 1.0
    cost = costs.contraction(
        site,
        (1.0, rows, cols, float(x[-1])),
        site.operands[0].dtype,
        site.arrays,
        site.results,
        lhs_transposed=False,
        rhs_transposed=True,
    )
    return _biased(site, cost, 3)


def _addmm(site: Site) -> Cost:
    """addmm, baddbmm: the first operand is added to the product of the next two."""
    left, right = (_array_shape(kind) for kind in site.operands[1:3])
    batch = float(left[0]) if len(left) > 2 else 1.0
    cost = costs.contraction(
        site,
        (batch, float(left[-2]), float(right[-1]), float(left[-1])),
        site.operands[1].dtype,
        site.arrays,
        site.results,
        lhs_transposed=False,
        rhs_transposed=False,
    )
    return _biased(site, cost, 3)


def _biased(site: Site, cost: Cost, arrays: int) -> Cost:
    if len(site.arrays) < arrays:
        return cost
    return cost._replace(flops=cost.flops + site.results[0].elements, detail={**cost.detail, "bias": True})


def _convolution(site: Site) -> Cost:
    """Convolution and convNd: image N C …, weights O I …; transposed ones have weights I O …."""
    image, kernel = (_array_shape(kind) for kind in site.operands[:2])
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


_REDUCED = {
    "sum": "sum",
    "mean": "mean",
    "amax": "max",
    "amin": "min",
    "max": "max",
    "min": "min",
    "prod": "prod",
    "any": "any",
    "all": "all",
    "argmax": "argmax",
    "argmin": "argmin",
    "logsumexp": "logsumexp",
    "norm": "norm",
    "linalg_vector_norm": "norm",
    "count_nonzero": "sum",
    "nansum": "sum",
    "frobenius_norm": "norm",
}
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
        site, _REDUCED.get(name, name), source, axes, _PER_ELEMENT.get(name, 1.0), 1.0 if name == "logsumexp" else 0.0
    )


def _axes(site: Site) -> tuple[int, ...]:
    """Reduced axes: the first list or integer operand; all without one."""
    rank = len(_array_shape(site.operands[0]))
    position = 2 if name_of(site).endswith("norm") else 1
    results = site.listed(position)
    whole = site.name.count(".") < 3 and name_of(site) in (
        "sum",
        "mean",
        "max",
        "min",
        "prod",
        "any",
        "all",
        "var",
        "std",
    )
    return tuple(range(rank)) if not results or whole else results


def _cumulative(site: Site) -> Cost:
    return costs.elementwise(site, name_of(site), 1.0, 0.0)


def _softmax(site: Site) -> Cost:
    axis = site.known(1)
    return costs.softmax(site, site.operands[0], axis if isinstance(axis, int) else -1)


def _layer_norm(site: Site) -> Cost:
    shape = _array_shape(site.operands[0])
    last = len(site.listed(1) or (0,))
    cols = 1.0
    for size in shape[-last:]:
        cols *= size
    # 7 operations per element for LayerNorm, 4 for RMSNorm, as `features.families.layernorm` counts them.
    rms = "rms" in site.short
    return costs.normalization(
        site, "rmsnorm" if rms else "layernorm", site.operands[0], cols, 4.0 if rms else 7.0, site.arrays[1:]
    )


def _batch_norm(site: Site) -> Cost:
    channels = _array_shape(site.operands[0])[1]
    training = site.known(5) == 1
    return costs.normalization(
        site,
        "batch_norm",
        site.operands[0],
        site.operands[0].elements / channels,
        8.0 if training else 4.0,
        site.arrays[1:],
    )


def _group_norm(site: Site) -> Cost:
    """Groups: operand 1 of group_norm, 6 of native_group_norm; an instance norm has a group per channel."""
    shape = _array_shape(site.operands[0])
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
        spatial, out = _array_shape(source)[2:], _array_shape(result)[2:]
        window = tuple(-(-size // max(item, 1)) for size, item in zip(spatial, out, strict=False))
    cost = costs.window_reduction(site, "max" if "max" in site.name else "mean", source, result, window)
    return cost._replace(bytes_out=result.nbytes)


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
        **each(
            _ATEN,
            ("convolution _convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"),
            _convolution,
            sizes.convolved_sizes,
        ),
        **each(_ATEN, (*_REDUCED, "var", "std", "var_mean"), _reduce, sizes.reduced_sizes),
        **each("torch.prims", "var sum amax amin", _reduce, sizes.reduced_sizes),
        **each(_ATEN, "cumsum cumprod logcumsumexp cummax cummin", _cumulative, of_first),
        **each(_ATEN, "softmax _softmax log_softmax _log_softmax _safe_softmax", _softmax, of_first),
        **each(_ATEN, "layer_norm native_layer_norm rms_norm", _layer_norm, of_first),
        **each(
            _ATEN,
            (
                "batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training "
                "cudnn_batch_norm"
            ),
            _batch_norm,
            of_first,
        ),
        **each(_ATEN, "group_norm native_group_norm instance_norm", _group_norm, of_first),
        **each(_ATEN, "scaled_dot_product_attention", _attention, of_first),
        **each(
            _ATEN,
            (
                "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
                "_scaled_dot_product_efficient_attention"
            ),
            _flash,
            of_first,
        ),
        **each(
            _ATEN,
            (
                "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d "
                "adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d adaptive_max_pool2d adaptive_max_pool1d "
                "max_pool2d_with_indices max_pool3d_with_indices"
            ),
            _pool,
        ),
        **each(
            _ATEN,
            "sort argsort topk kthvalue median unique_consecutive _unique2 mode",
            lambda site: costs.sort(site, site.operands[0], -1),
        ),
        **each(
            _ATEN,
            (
                "rand randn randint rand_like randn_like bernoulli uniform normal normal_functional multinomial "
                "randperm exponential"
            ),
            costs.random,
        ),
        **each(
            _ATEN,
            "lstm gru rnn_tanh rnn_relu",
            lambda site: unknown(f"{site.name}: a recurrent network in one operation is not costed"),
        ),
        **each(
            _ATEN,
            "__interpolate upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa",
            lambda site: costs.elementwise(site, "resize", 7.0, 0.0),
        ),
    },
)
