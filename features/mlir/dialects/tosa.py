"""TOSA: the operators of its specification 1.0 and of versions before, where sizes were attributes."""

from __future__ import annotations

from collections.abc import Callable

from ..semantics import costs
from ..semantics.costs import unknown
from ..semantics.dynamic_sizes import conserved, of_first, of_operands
from ..semantics.op_rule import Cost, Dialect, Known, Shape, Site, rules
from ..semantics.operators import operator

_PLAIN = (
    "abs add arithmetic_right_shift bitwise_and bitwise_not bitwise_or bitwise_xor cast ceil clamp clz cos div "
    "equal erf exp floor greater greater_equal intdiv log logical_and logical_left_shift logical_not logical_or "
    "logical_right_shift logical_xor maximum minimum mul negate pow reciprocal relun rescale rsqrt select sigmoid "
    "sin sub tanh cast_from_block_scaled cast_to_block_scaled reluN"
)
_REDUCED = {
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_product": "prod",
    "reduce_prod": "prod",
    "reduce_all": "all",
    "reduce_any": "any",
    "argmax": "argmax",
    "argmin": "argmin",
}


def _elementwise(site: Site) -> Cost:
    return costs.elementwise(site, operator(site.short))


def _matmul(site: Site) -> Cost:
    (batch, m, k), right = site.operands[0].shape or (), site.operands[1].shape or ()
    transposed = site.short.startswith("matmul_t")
    n = right[1] if transposed else right[2]
    loops = (float(batch or 0), float(m or 0), float(n or 0), float(k or 0))
    return costs.contraction(
        site,
        loops,
        site.operands[0].dtype,
        site.operands[:2],
        site.results,
        lhs_transposed=False,
        rhs_transposed=transposed,
    )


def _fully_connected(site: Site) -> Cost:
    (m, k), (n, _) = site.operands[0].shape or (), site.operands[1].shape or ()
    loops = (1.0, float(m or 0), float(n or 0), float(k or 0))
    return costs.contraction(
        site, loops, site.operands[0].dtype, site.operands[:3], site.results, lhs_transposed=False, rhs_transposed=True
    )


def _convolution(site: Site) -> Cost:
    """conv2d and conv3d: image N(D)HWC, weights O(D)HWI."""
    image, kernel = _sizes(site.operands[0].shape), _sizes(site.operands[1].shape)
    sizes = costs.conv_sizes(
        image[0],
        image[-1],
        kernel[0],
        list(image[1:-1]),
        list(kernel[1:-1]),
        groups=max(image[-1] // max(kernel[-1], 1), 1),
        **_window(site),
    )
    return costs.convolution(site, site.operands[:3], site.results[0], sizes)


def _depthwise(site: Site) -> Cost:
    """Weights HWCM."""
    image, kernel = _sizes(site.operands[0].shape), _sizes(site.operands[1].shape)
    sizes = costs.conv_sizes(
        image[0],
        image[-1],
        kernel[2] * kernel[3],
        list(image[1:-1]),
        list(kernel[:2]),
        groups=kernel[2],
        **_window(site),
    )
    return costs.convolution(site, site.operands[:3], site.results[0], sizes)


def _transpose_conv(site: Site) -> Cost:
    image, kernel = _sizes(site.operands[0].shape), _sizes(site.operands[1].shape)
    sizes = costs.conv_sizes(
        image[0], image[-1], kernel[0], list(image[1:-1]), list(kernel[1:-1]), stride=max(site.ints("stride") or (1,))
    )
    return costs.convolution(site, site.operands[:3], site.results[0], sizes, transposed=True)


def _sizes(shape: Shape | None) -> tuple[int, ...]:
    if shape is None or None in shape:
        raise ValueError("a dynamic size")
    return tuple(size or 0 for size in shape)


def _window(site: Site) -> dict[str, int]:
    return {
        "stride": max(site.ints("stride") or (1,)),
        "padding": max(site.ints("pad") or (0,)),
        "dilation": max(site.ints("dilation") or (1,)),
    }


def _pool(site: Site) -> Cost:
    window = site.ints("kernel")
    if window is None:
        return unknown(f"{site.name} without a kernel")
    return costs.window_reduction(
        site, "max" if "max" in site.short else "mean", site.operands[0], site.results[0], window
    )


def _reduce(site: Site) -> Cost:
    axis = site.int_of("axis")
    return costs.reduction(site, _REDUCED[site.short], site.operands[0], () if axis is None else (axis,))


def _gather(site: Site) -> Cost:
    return costs.gathered("gather", site.operands[1:2], site.results[0])


def _scatter(site: Site) -> Cost:
    return costs.gathered("scatter", site.operands[1:2], site.operands[2])


def _table(site: Site) -> Cost:
    return costs.elementwise(site, "table", 1.0, 0.0)


def _resize(site: Site) -> Cost:
    # Bilinear: four products and three sums per element; nearest moves only.
    return costs.elementwise(site, "resize", 0.0 if "NEAREST" in site.text else 7.0, 0.0)


def _moving(name: str) -> Callable[[Site], Cost]:
    return lambda site: costs.movement(
        site, name, sum(kind.nbytes for kind in site.arrays[:1]) if name in ("broadcast", "pad") else None
    )


def _fft(site: Site) -> Cost:
    source = site.operands[0]
    length = 1.0
    for size in (source.shape or ())[-2:]:
        length *= size or 1
    # 5·n·log2(n) per transform, as is usual.
    cost = costs.elementwise(site, "fft", 0.0, 0.0)
    return cost._replace(flops=5.0 * source.elements * max(int(length).bit_length() - 1, 1))


def _order(site: Site) -> tuple[int, ...] | None:
    """The order of axes: an attribute, an operand in versions before 1.0."""
    return site.ints("perms") or (site.listed(1) if len(site.operands) > 1 else None)


def _transposed_shape(site: Site) -> tuple[Shape | None, ...] | None:
    shape = site.operands[0].shape
    order = _order(site)
    return None if shape is None or order is None else (tuple(shape[axis] for axis in order),)


def _matmul_shape(site: Site) -> tuple[Shape | None, ...] | None:
    left, right = site.operands[0].shape, site.operands[1].shape
    return None if left is None or right is None else ((left[0], left[1], right[2]),)


def _reduced_shape(site: Site) -> tuple[Shape | None, ...] | None:
    shape, axis = site.operands[0].shape, site.int_of("axis")
    if shape is None or axis is None:
        return None
    remaining = (*shape[:axis], *((1,) if site.short.startswith("reduce") else ()), *shape[axis + 1 :])
    return (remaining,)


def _joined_shape(site: Site) -> tuple[Shape | None, ...] | None:
    axis, shapes = site.int_of("axis"), [kind.shape for kind in site.operands]
    if axis is None or any(shape is None for shape in shapes):
        return None
    sizes = [shape[axis] for shape in shapes if shape is not None]
    first = list(shapes[0] or ())
    first[axis] = None if None in sizes else sum(size or 0 for size in sizes)
    return (tuple(first),)


def _reshaped(site: Site) -> tuple[Shape | None, ...] | None:
    known = (site.listed(1) if len(site.operands) > 1 else None) or site.ints("new_shape")
    if known is None:
        return conserved(site)
    written = tuple(None if size < 0 else size for size in known)
    source = site.operands[0].shape
    if written.count(None) == 1 and source is not None and None not in source:
        total, rest = 1, 1
        for size in source:
            total *= size or 0
        for size in written:
            rest *= size if size is not None else 1
        return (tuple(total // rest if size is None else size for size in written),) if rest else None
    return (written,)


def _gathered_shape(site: Site) -> tuple[Shape | None, ...] | None:
    values, places = site.operands[0].shape, site.operands[1].shape
    return None if values is None or places is None else ((*places, values[-1]),)


def _pooled_shape(site: Site) -> tuple[Shape | None, ...] | None:
    shape, result = site.operands[0].shape, site.results[0].shape
    window, stride, pad = site.ints("kernel"), site.ints("stride"), site.ints("pad")
    if shape is None or result is None or window is None or stride is None or pad is None:
        return None
    height, width = (
        None if size is None else (size + pad[2 * side] + pad[2 * side + 1] - window[side]) // stride[side] + 1
        for side, size in enumerate(shape[1:3])
    )
    return ((shape[0], height, width, shape[3]),)


def _convolved_shape(site: Site) -> tuple[Shape | None, ...] | None:
    image, result = site.operands[0].shape, site.results[0].shape
    if image is None or result is None:
        return None
    return ((image[0], *result[1:]),)


def _const_shape(site: Site) -> Known:
    return site.ints("values", "value")


def _dim(site: Site) -> Known:
    shape, axis = site.operands[0].shape, site.int_of("axis")
    return None if shape is None or axis is None or shape[axis] is None else (shape[axis],)


def _concat_shape(site: Site) -> Known:
    items: list[Known] = []
    for position in range(len(site.operands)):
        known = site.known(position)
        if not isinstance(known, tuple):
            return None
        items += known
    return tuple(items)


def _on_shapes(act: Callable[[int, int], int]) -> Callable[[Site], Known]:
    def fold(site: Site) -> Known:
        left, right = site.known(0), site.known(1)
        if not isinstance(left, tuple) or not isinstance(right, tuple):
            return None
        return tuple(
            act(a, b) if isinstance(a, int) and isinstance(b, int) else None for a, b in zip(left, right, strict=False)
        )

    return fold


_SHAPE_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add_shape": lambda a, b: a + b,
    "sub_shape": lambda a, b: a - b,
    "mul_shape": lambda a, b: a * b,
    "div_shape": lambda a, b: a // b,
    "div_floor_shape": lambda a, b: a // b,
    "div_ceil_shape": lambda a, b: -(-a // b),
    "mod_shape": lambda a, b: a % b,
    "max_shape": max,
    "min_shape": min,
}

DIALECT = Dialect(
    "tosa",
    {
        **rules(_PLAIN, _elementwise, dialect="tosa", shapes=of_operands),
        **rules("matmul matmul_t matmul_t_block_scaled", _matmul, dialect="tosa", shapes=_matmul_shape),
        **rules("fully_connected", _fully_connected, dialect="tosa"),
        **rules("conv2d conv3d conv2d_block_scaled", _convolution, dialect="tosa", shapes=_convolved_shape),
        **rules("depthwise_conv2d", _depthwise, dialect="tosa", shapes=_convolved_shape),
        **rules("transpose_conv2d", _transpose_conv, dialect="tosa", shapes=_convolved_shape),
        **rules(
            "avg_pool2d max_pool2d avg_pool2d_adaptive max_pool2d_adaptive", _pool, dialect="tosa", shapes=_pooled_shape
        ),
        **rules(_REDUCED, _reduce, dialect="tosa", shapes=_reduced_shape),
        **rules("gather row_gather", _gather, dialect="tosa", shapes=_gathered_shape),
        **rules("scatter", _scatter, dialect="tosa", shapes=of_first),
        **rules("table", _table, dialect="tosa", shapes=of_first),
        **rules("resize", _resize, dialect="tosa"),
        **rules("fft2d rfft2d", _fft, dialect="tosa", shapes=of_first),
        **rules(
            "transpose",
            lambda site: costs.transpose(site, _order(site)),
            dialect="tosa",
            shapes=_transposed_shape,
            reads="values",
        ),
        **rules("concat", _moving("concatenate"), dialect="tosa", shapes=_joined_shape),
        **rules("pad", _moving("pad"), dialect="tosa"),
        **rules(
            "slice",
            _moving("slice"),
            dialect="tosa",
            shapes=lambda site: None if (known := site.listed(2)) is None else (known,),
        ),
        **rules("tile", _moving("broadcast"), dialect="tosa"),
        **rules("reverse", _moving("copy"), dialect="tosa", shapes=of_first),
        **rules("reshape", costs.view, dialect="tosa", shapes=_reshaped),
        **rules("identity reshape_block_scaled", costs.view, dialect="tosa", shapes=of_first),
        **rules("const", costs.constant, dialect="tosa", fold=_const_shape),
        **rules("variable_read", costs.constant, dialect="tosa"),
        **rules("const_shape", costs.control, dialect="tosa", fold=_const_shape),
        **rules("dim", costs.control, dialect="tosa", fold=_dim),
        **rules("concat_shape", costs.control, dialect="tosa", fold=_concat_shape),
        **{
            key: rule
            for name, act in _SHAPE_ARITHMETIC.items()
            for key, rule in rules((name,), costs.control, dialect="tosa", fold=_on_shapes(act)).items()
        },
        **rules(
            ("slice_shape exp2_shape log2_ceil_shape log2_floor_shape assert_equal_shape variable apply_scale"),
            costs.control,
            dialect="tosa",
        ),
        **rules(
            "variable_write",
            lambda site: costs.movement(site, "copy", costs.nbytes(site.operands), costs.nbytes(site.operands)),
            dialect="tosa",
        ),
        **rules("custom", lambda site: unknown(f"tosa.custom {site.text[:60]}"), dialect="tosa"),
    },
    {"tosa.cond_if": "branch", "tosa.while_loop": "while", "tosa.yield": "end"},
)
