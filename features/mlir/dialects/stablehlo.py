"""StableHLO and CHLO (and MHLO, their predecessor): JAX's, TensorFlow's and torch-mlir's tensor operations."""

from __future__ import annotations

import re
from math import prod

from ..semantics import costs
from ..semantics import stablehlo_sizes as sizes
from ..semantics.costs import unknown
from ..semantics.dynamic_sizes import conserved, of_operands
from ..semantics.op_rule import Cost, Dialect, Rule, Shape, Site, rules
from ..semantics.operators import combined_by, combiner, operator, read_body

_PLAIN = (
    "abs add and atan2 cbrt ceil clamp compare complex convert cosine divide exponential exponential_minus_one "
    "floor imag is_finite log log_plus_one logistic maximum minimum multiply negate not or popcnt power real "
    "remainder round_nearest_afz round_nearest_even rsqrt select shift_left shift_right_arithmetic "
    "shift_right_logical sign sine sqrt subtract tan tanh xor count_leading_zeros reduce_precision "
    "uniform_quantize uniform_dequantize"
)
_CHLO = (
    "acos acosh asin asin_acos_kernel asinh atan atanh bessel_i1e broadcast_add broadcast_and broadcast_atan2 "
    "broadcast_compare broadcast_complex broadcast_divide broadcast_maximum broadcast_minimum broadcast_multiply "
    "broadcast_next_after broadcast_or broadcast_polygamma broadcast_power broadcast_remainder broadcast_select "
    "broadcast_shift_left broadcast_shift_right_arithmetic broadcast_shift_right_logical broadcast_subtract "
    "broadcast_xor broadcast_zeta conj cosh digamma erf erf_inv erfc is_inf is_neg_inf is_pos_inf lgamma "
    "next_after polygamma sinh square tan zeta"
)


def _elementwise(site: Site) -> Cost:
    return costs.elementwise(site, operator(site.short.removeprefix("broadcast_")))


def _dot_general(site: Site) -> Cost:
    lhs, rhs = site.operands[0].shape, site.operands[1].shape
    if lhs is None or rhs is None:
        return unknown(f"{site.name} of unranked operands")
    contracted, batched = sizes.dot_axes(site)

    def size(shape: Shape, axes: list[int] | tuple[int, ...]) -> float:
        return prod((float(shape[axis] or 0) for axis in axes), start=1.0)

    rows = [axis for axis in range(len(lhs)) if axis not in contracted[0] and axis not in batched[0]]
    columns = [axis for axis in range(len(rhs)) if axis not in contracted[1] and axis not in batched[1]]
    loops = (size(lhs, batched[0]), size(lhs, rows), size(rhs, columns), size(lhs, contracted[0]))
    return costs.contraction(
        site, loops, site.operands[0].dtype, site.operands[:2], site.results,
        lhs_transposed=bool(rows and contracted[0] and min(contracted[0]) < max(rows)),
        rhs_transposed=bool(columns and contracted[1] and max(contracted[1]) > min(columns)),
    )  # fmt: skip


_LAYOUT = re.compile(r"\[([\w, ]+)\]\s*x\s*\[([\w, ]+)\]\s*->\s*\[([\w, ]+)\]")


def _convolution(site: Site) -> Cost:
    match = _LAYOUT.search(site.text)
    image, kernel, result = (kind.shape for kind in (*site.operands[:2], site.results[0]))
    if match is None or image is None or kernel is None or result is None:
        return unknown(f"{site.name} without dimension numbers")
    ins, taps, outs = ([word.strip() for word in part.split(",")] for part in match.groups())
    spatial = [str(axis) for axis in range(len(image) - 2)]
    sides = [image[ins.index(axis)] or 0 for axis in spatial]
    window = [kernel[taps.index(axis)] or 0 for axis in spatial]
    padding = site.ints("padding", "pad") or (0,)
    dilated = site.ints("lhs_dilation", "lhs_dilate") or (1,)
    groups = (site.int_of("feature_group_count") or 1) * (site.int_of("batch_group_count") or 1)
    sizes = costs.conv_sizes(
        result[outs.index("b")] or 0, image[ins.index("f")] or 0, kernel[taps.index("o")] or 0, sides, window,
        stride=max(site.ints("window_strides", "stride") or (1,)), padding=max(padding), groups=groups,
        dilation=max(site.ints("rhs_dilation", "rhs_dilate") or (1,)),
    )  # fmt: skip
    return costs.convolution(site, site.operands[:2], site.results[0], sizes, transposed=max(dilated) > 1)


def _reduce(site: Site) -> Cost:
    axes = site.ints("dimensions")
    source = site.operands[0]
    if axes is None:
        remaining = len(site.results[0].shape or ())
        axes = tuple(range(remaining, len(source.shape or ())))
    applied = re.search(r"applies ([\w.]+)", site.text)
    if applied is not None or not site.body:
        return costs.reduction(site, combined_by(applied[1]) if applied else "reduce", source, axes)
    body = read_body(site.body, site.body_arguments)
    return costs.reduction(site, combiner(site.body), source, axes, max(body.flops, 1.0), body.transcendentals)


def _reduce_window(site: Site) -> Cost:
    window = site.ints("window_dimensions")
    if window is None:
        return unknown(f"{site.name} without window_dimensions")
    body = read_body(site.body, site.body_arguments)
    return costs.window_reduction(
        site, combiner(site.body), site.operands[0], site.results[0], window, max(body.flops, 1.0)
    )


def _cumulative_windows(shape: Shape) -> list[tuple[int, ...]]:
    return [
        tuple(size or 0 if at == axis else 1 for at in range(len(shape)))
        for axis, size in enumerate(shape)
        if (size or 0) > 1
    ]


def _select_and_scatter(site: Site) -> Cost:
    window = site.ints("window_dimensions") or (1,)
    source = site.operands[1]
    points = source.elements * prod(window)
    return Cost(
        "reduction",
        source.dtype,
        points + source.elements,
        0.0,
        costs.nbytes(site.operands[:2]),
        costs.nbytes(site.results),
        (1.0, source.elements, 1.0, float(prod(window))),
        {"operator": "select_and_scatter", "axis": "middle"},
    )


def _gather(site: Site) -> Cost:
    return costs.gathered("gather", site.operands[1:2], site.results[0])


def _scatter(site: Site) -> Cost:
    arrays = site.operands
    count = max((len(arrays) - 1) // 2, 1)
    updates, body = arrays[count + 1], read_body(site.body, site.body_arguments)
    cost = costs.gathered("scatter", arrays[count : count + 1], updates)
    # In place, as compilers do it; what is combined with must be read first.
    again = updates.nbytes if body.operators else 0.0
    return cost._replace(flops=updates.elements * body.flops, bytes_in=cost.bytes_in + again)


def _update(site: Site) -> Cost:
    return costs.movement(site, "copy", site.operands[1].nbytes, site.operands[1].nbytes)


def _sort(site: Site) -> Cost:
    axis = site.int_of("dimension")
    return costs.sort(site, site.operands[0], -1 if axis is None else axis)


def _top_k(site: Site) -> Cost:
    return costs.sort(site, site.operands[0], -1)


def _batch_norm(site: Site) -> Cost:
    source = site.operands[0]
    axis = site.int_of("feature_index") or 0
    channels = float((source.shape or (1,))[axis] or 1)
    # Inference scales and shifts; training also takes the mean and the variance, and its gradient both and two products.
    each = {"batch_norm_inference": 4.0, "batch_norm_training": 8.0}.get(site.short, 12.0)
    return costs.normalization(site, site.short, source, source.elements / channels, each, site.operands[1:])


_NO_CALLS = frozenset(
    {
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "annotate_device_placement",
        "xla.sdy.FuncResultSharding",
        "LayoutConstraint",
    }
)
_CALLED_ELEMENTWISE = {
    "mhlo.erf": "erf",
    "mhlo.erf_inv": "erf_inv",
    "mhlo.tan": "tan",
    "chlo.erf": "erf",
    "stablehlo.erf": "erf",
}


def _custom_call(site: Site) -> Cost:
    match = re.search(r'call_target_name = "([^"]*)"|@([\w$.]+)', site.text)
    target = (match[1] or match[2]) if match else ""
    if target in _NO_CALLS:
        return costs.view(site)
    if target in _CALLED_ELEMENTWISE:
        return costs.elementwise(site, _CALLED_ELEMENTWISE[target])
    solved = _LAPACK.fullmatch(target)
    if solved is not None:
        return _factored(site, solved[1])
    if target.rpartition(".")[2].lower().replace("_", "") in ("topk", "approxtopk"):
        return costs.sort(site, site.operands[0], -1)
    return unknown(f"custom_call to {target or 'an unnamed target'}")


_LAPACK = re.compile(r"(?:lapack|cusolver|cublas|hipsolver)_?[sdcz]?(potrf|getrf|geqrf|trsm)(?:_ffi|_batched)*")
_FACTORED = {"potrf": 1 / 3, "cholesky": 1 / 3, "getrf": 2 / 3, "geqrf": 4 / 3}
"""Operations per n³ of factoring an n×n matrix: Cholesky, LU, QR (Golub and Van Loan, Matrix Computations)."""


def _factored(site: Site, name: str) -> Cost:
    """A factorisation, or a triangular solve with n operations per element of the right-hand sides."""
    shape = site.operands[0].shape or (1,)
    size = float(shape[-1] or 1)
    matrices = site.operands[0].elements / (float(shape[-2] or 1) * size)
    flops = matrices * size**3 * _FACTORED[name] if name in _FACTORED else size * site.results[0].elements
    n = max(round(flops / (2 * matrices * size * size)), 1)
    return Cost(
        "contraction",
        site.operands[0].dtype,
        flops,
        matrices * size,
        costs.nbytes(site.operands),
        costs.nbytes(site.results),
        (matrices, size, float(n), size),
        {"operator": name},
    )


def _cholesky(site: Site) -> Cost:
    return _factored(site, site.short)


def _fft(site: Site) -> Cost:
    length = prod(site.ints("fft_length") or (1,))
    elements = max(kind.elements for kind in (*site.operands, *site.results))
    # 5·n·log2(n), the usual count of a complex transform (FFTW, "FFT Benchmark Methodology").
    flops = 5.0 * elements * max(length.bit_length() - 1, 1)
    return costs.elementwise(site, "fft", 0.0, 0.0)._replace(flops=flops)


def _collective(site: Site) -> Cost:
    return unknown(f"{site.name} talks to other devices, which is not costed")


def _map(site: Site) -> Cost:
    body = read_body(site.body, site.body_arguments)
    return costs.elementwise(site, body.name, body.flops, body.transcendentals)


def _table(dialect: str) -> dict[str, Rule]:
    of_last, of_second = sizes.by_operand(-1), sizes.by_operand(1)
    return {
        **rules(_PLAIN, _elementwise, dialect=dialect, shapes=of_operands),
        **rules(
            "add subtract multiply maximum minimum divide",
            _elementwise,
            dialect=dialect,
            shapes=of_operands,
            fold=sizes.folded,
        ),
        **rules("convert", _elementwise, dialect=dialect, shapes=of_operands, fold=sizes.same),
        **rules("dot_general dot", _dot_general, dialect=dialect, shapes=sizes.dot_sizes),
        **rules("convolution dynamic_conv", _convolution, dialect=dialect),
        **rules("reduce", _reduce, dialect=dialect, shapes=sizes.reduced_sizes),
        **rules("reduce_window", _reduce_window, dialect=dialect),
        **rules("select_and_scatter", _select_and_scatter, dialect=dialect, shapes=sizes.first_sizes),
        **rules("broadcast_in_dim broadcast broadcast_to", costs.broadcast, dialect=dialect),
        **rules(
            "dynamic_broadcast_in_dim",
            lambda site: costs.movement(site, "broadcast", site.operands[0].nbytes),
            dialect=dialect,
            shapes=of_second,
        ),
        **rules("iota", costs.broadcast, dialect=dialect),
        **rules(
            "dynamic_iota",
            lambda site: costs.movement(site, "broadcast", 0.0),
            dialect=dialect,
            shapes=sizes.by_operand(0),
        ),
        **rules(
            "transpose",
            lambda site: costs.transpose(site, site.ints("permutation", "dims")),
            dialect=dialect,
            shapes=sizes.transposed_sizes,
        ),
        **rules("reverse", lambda site: costs.movement(site, "copy"), dialect=dialect, shapes=sizes.first_sizes),
        **rules("slice", lambda site: costs.movement(site, "slice"), dialect=dialect, fold=sizes.sliced),
        **rules("dynamic_slice", lambda site: costs.movement(site, "slice"), dialect=dialect),
        **rules(
            "real_dynamic_slice", lambda site: costs.movement(site, "slice"), dialect=dialect, shapes=sizes.sliced_sizes
        ),
        **rules("dynamic_update_slice", _update, dialect=dialect, shapes=sizes.first_sizes),
        **rules(
            "concatenate",
            lambda site: costs.movement(site, "concatenate"),
            dialect=dialect,
            shapes=sizes.joined_sizes,
            fold=sizes.joined,
        ),
        **rules("pad dynamic_pad", lambda site: costs.movement(site, "pad", site.operands[0].nbytes), dialect=dialect),
        **rules("gather dynamic_gather torch_index_select", _gather, dialect=dialect, shapes=sizes.gathered_sizes),
        **rules("scatter", _scatter, dialect=dialect, shapes=sizes.first_sizes),
        **rules("sort", _sort, dialect=dialect, shapes=of_operands),
        **rules("batch_norm_inference batch_norm_training batch_norm_grad", _batch_norm, dialect=dialect),
        **rules("rng rng_bit_generator", costs.random, dialect=dialect),
        **rules("custom_call", _custom_call, dialect=dialect),
        **rules("cholesky triangular_solve", _cholesky, dialect=dialect),
        **rules("fft", _fft, dialect=dialect),
        **rules("map", _map, dialect=dialect),
        **rules("reshape", costs.view, dialect=dialect, shapes=conserved, fold=sizes.same),
        **rules("dynamic_reshape", costs.view, dialect=dialect, shapes=of_last),
        **rules(
            "bitcast_convert optimization_barrier get_tuple_element tuple set_dimension_size",
            costs.view,
            dialect=dialect,
        ),
        **rules("constant", costs.constant, dialect=dialect, fold=sizes.constant),
        **rules("get_dimension_size", costs.control, dialect=dialect, fold=sizes.dimension_size),
        **rules("create_token after_all partition_id replica_id", costs.control, dialect=dialect),
        **rules(
            (
                "all_gather all_reduce all_to_all collective_broadcast collective_permute reduce_scatter infeed "
                "outfeed send recv cross-replica-sum"
            ),
            _collective,
            dialect=dialect,
        ),
    }


def _structure(dialect: str) -> dict[str, str]:
    words = {"while": "while", "if": "branch", "case": "branch", "return": "end", "composite": "call"}
    return {f"{dialect}.{name}": word for name, word in words.items()}


DIALECT = Dialect(
    "stablehlo",
    {
        **_table("stablehlo"),
        **_table("mhlo"),
        **rules(_CHLO, _elementwise, dialect="chlo", shapes=of_operands),
        **rules("top_k", _top_k, dialect="chlo"),
        **rules("constant constant_like", costs.constant, dialect="chlo"),
        **rules("ragged_dot", _dot_general, dialect="chlo"),
        **rules("scan", lambda site: unknown("chlo.scan"), dialect="chlo"),
    },
    {**_structure("stablehlo"), **_structure("mhlo")},
)
