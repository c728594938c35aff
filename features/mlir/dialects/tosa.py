"""TOSA: the operators of its specification 1.0 and of versions before, where sizes were attributes."""

from __future__ import annotations

from math import prod

from ..semantics import costs, folding
from ..semantics.costs import copied, moving, per_element, unknown
from ..semantics.dynamic_sizes import (
    Shapes,
    completed,
    conserved,
    joined,
    of_first,
    of_known,
    of_operands,
    permuted,
    static_sizes,
)
from ..semantics.op_rule import Cost, Dialect, Known, Site, rules

_PLAIN = (
    "abs add arithmetic_right_shift bitwise_and bitwise_not bitwise_or bitwise_xor cast ceil clamp clz cos div "
    "equal erf exp floor greater greater_equal intdiv log logical_and logical_left_shift logical_not logical_or "
    "logical_right_shift logical_xor maximum minimum mul negate pow reciprocal relun rescale rsqrt select sigmoid "
    "sin sub tanh cast_from_block_scaled cast_to_block_scaled reluN"
)
_REDUCED = "reduce_sum reduce_max reduce_min reduce_product reduce_prod reduce_all reduce_any argmax argmin"


def _matmul(site: Site) -> Cost:
    (batch, m, k), right = site.operands[0].shape or (), site.operands[1].shape or ()
    transposed = site.short.startswith("matmul_t")
    n = right[1] if transposed else right[2]
    loops = (float(batch or 0), float(m or 0), float(n or 0), float(k or 0))
    return costs.contraction(site, loops, site.operands[:2], site.results, rhs_transposed=transposed)


def _fully_connected(site: Site) -> Cost:
    (m, k), (n, _) = site.operands[0].shape or (), site.operands[1].shape or ()
    loops = (1.0, float(m or 0), float(n or 0), float(k or 0))
    return costs.contraction(site, loops, site.operands[:3], site.results, rhs_transposed=True)


def _convolution(site: Site) -> Cost:
    """Image N(D)HWC; weights O(D)HWI, of a depthwise convolution HWCM."""
    image, kernel = map(static_sizes, site.operands[:2])
    transposed = site.short == "transpose_conv2d"
    outs, window, groups = kernel[0], kernel[1:-1], max(image[-1] // max(kernel[-1], 1), 1)
    if site.short == "depthwise_conv2d":
        outs, window, groups = kernel[2] * kernel[3], kernel[:2], kernel[2]
    sizes = costs.conv_sizes(
        image[0],
        image[-1],
        outs,
        list(image[1:-1]),
        list(window),
        stride=max(site.ints("stride") or (1,)),
        padding=max(site.ints("pad") or (0,)),
        groups=1 if transposed else groups,
        dilation=max(site.ints("dilation") or (1,)),
    )
    return costs.convolution(site, site.operands[:3], site.results[0], sizes, transposed=transposed)


def _pool(site: Site) -> Cost:
    window = site.ints("kernel")
    if window is None:
        return unknown(f"{site.name} without a kernel")
    return costs.window_reduction(
        site, "max" if "max" in site.short else "mean", site.operands[0], site.results[0], window
    )


def _reduce(site: Site) -> Cost:
    axis, name = site.int_of("axis"), site.short.removeprefix("reduce_")
    axes = () if axis is None else (axis,)
    return costs.reduction(site, "prod" if name == "product" else name, site.operands[0], axes)


def _resize(site: Site) -> Cost:
    # Bilinear: four products and three sums per element; nearest moves only.
    return costs.elementwise(site, "resize", 0.0 if "NEAREST" in site.text else 7.0, 0.0)


def _fft(site: Site) -> Cost:
    source = site.operands[0]
    return costs.fft(site, source.elements, prod(size or 1 for size in (source.shape or ())[-2:]))


def _order(site: Site) -> tuple[int, ...] | None:
    """The order of axes: an attribute, an operand in versions before 1.0."""
    return site.ints("perms") or (site.listed(1) if len(site.operands) > 1 else None)


def _transpose(site: Site) -> Cost:
    return costs.transpose(site, _order(site))


def _matmul_shape(site: Site) -> Shapes:
    left, right = site.operands[0].shape, site.operands[1].shape
    return None if left is None or right is None else ((left[0], left[1], right[2]),)


def _reduced_shape(site: Site) -> Shapes:
    shape, axis = site.operands[0].shape, site.int_of("axis")
    if shape is None or axis is None:
        return None
    remaining = (*shape[:axis], *((1,) if site.short.startswith("reduce") else ()), *shape[axis + 1 :])
    return (remaining,)


def _reshaped(site: Site) -> Shapes:
    known = (site.listed(1) if len(site.operands) > 1 else None) or site.ints("new_shape")
    if known is None:
        return conserved(site)
    return completed([None if size < 0 else size for size in known], site.operands[0].shape)


def _gathered_shape(site: Site) -> Shapes:
    values, places = site.operands[0].shape, site.operands[1].shape
    return None if values is None or places is None else ((*places, values[-1]),)


def _pooled_shape(site: Site) -> Shapes:
    shape, result = site.operands[0].shape, site.results[0].shape
    window, stride, pad = site.ints("kernel"), site.ints("stride"), site.ints("pad")
    if shape is None or result is None or window is None or stride is None or pad is None:
        return None
    height, width = (
        None if size is None else (size + pad[2 * side] + pad[2 * side + 1] - window[side]) // stride[side] + 1
        for side, size in enumerate(shape[1:3])
    )
    return ((shape[0], height, width, shape[3]),)


def _convolved_shape(site: Site) -> Shapes:
    image, result = site.operands[0].shape, site.results[0].shape
    if image is None or result is None:
        return None
    return ((image[0], *result[1:]),)


def _constant(site: Site) -> Known:
    return site.ints("values", "value")


def _dim(site: Site) -> Known:
    shape, axis = site.operands[0].shape, site.int_of("axis")
    return None if shape is None or axis is None or shape[axis] is None else (shape[axis],)


_CONVOLUTIONS = "conv2d conv3d conv2d_block_scaled depthwise_conv2d transpose_conv2d"
_STEERED = "slice_shape exp2_shape log2_ceil_shape log2_floor_shape assert_equal_shape variable apply_scale"

DIALECT = Dialect(
    "tosa",
    {
        **rules("tosa", _PLAIN, costs.by_name, of_operands),
        **rules("tosa", "matmul matmul_t matmul_t_block_scaled", _matmul, _matmul_shape),
        **rules("tosa", "fully_connected", _fully_connected),
        **rules("tosa", _CONVOLUTIONS, _convolution, _convolved_shape),
        **rules("tosa", "avg_pool2d max_pool2d avg_pool2d_adaptive max_pool2d_adaptive", _pool, _pooled_shape),
        **rules("tosa", _REDUCED, _reduce, _reduced_shape),
        **rules("tosa", "gather row_gather", costs.gather, _gathered_shape),
        **rules("tosa", "scatter", costs.scatter(1, 2), of_first),
        **rules("tosa", "table", per_element("table", 1.0), of_first),
        **rules("tosa", "resize", _resize),
        **rules("tosa", "fft2d rfft2d", _fft, of_first),
        **rules("tosa", "transpose", _transpose, lambda site: permuted(site, _order(site)), reads="values"),
        **rules("tosa", "concat", moving("concatenate"), lambda site: joined(site.operands, site.int_of("axis"))),
        **rules("tosa", "pad", moving("pad", reads_first=True)),
        **rules("tosa", "slice", moving("slice"), of_known(2)),
        **rules("tosa", "tile", moving("broadcast", reads_first=True)),
        **rules("tosa", "reverse", costs.reverse, of_first),
        **rules("tosa", "reshape", costs.view, _reshaped),
        **rules("tosa", "identity reshape_block_scaled", costs.view, of_first),
        **rules("tosa", "const", costs.constant, fold=_constant),
        **rules("tosa", "variable_read", costs.constant),
        **rules("tosa", "const_shape", costs.control, fold=_constant),
        **rules("tosa", "dim", costs.control, fold=_dim),
        **rules("tosa", "concat_shape", costs.control, fold=folding.joined),
        **folding.folding(
            "tosa",
            costs.control,
            {
                "add": "add_shape",
                "sub": "sub_shape",
                "mul": "mul_shape",
                "floordiv": "div_shape div_floor_shape",
                "ceildiv": "div_ceil_shape",
                "mod": "mod_shape",
                "max": "max_shape",
                "min": "min_shape",
            },
        ),
        **rules("tosa", _STEERED, costs.control),
        **rules("tosa", "variable_write", copied(0)),
        **rules("tosa", "custom", lambda site: unknown(f"tosa.custom {site.text[:60]}")),
    },
    {"branch": "tosa.cond_if", "while": "tosa.while_loop", "end": "tosa.yield"},
)
