"""StableHLO and CHLO (and MHLO, their predecessor): JAX's, TensorFlow's and torch-mlir's tensor operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from ..semantics import costs
from ..semantics.costs import copied, moving, not_costed, unknown
from ..semantics.dynamic_sizes import Shapes, conserved, joined, of_known, of_operands, permuted
from ..semantics.folding import constant, extent, folding
from ..semantics.folding import joined as joined_lists
from ..semantics.op_rule import Cost, Dialect, Known, Rule, Shape, Site, rules
from ..semantics.operators import combined_by, combiner, operator, puts_larger_first
from ..types import attributes

Axes = tuple[tuple[int, ...], tuple[int, ...]]

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
    contracted, batched = _dot_axes(site)

    def size(shape: Shape, axes: list[int] | tuple[int, ...]) -> float:
        return prod((float(shape[axis] or 0) for axis in axes), start=1.0)

    rows = [axis for axis in range(len(lhs)) if axis not in contracted[0] and axis not in batched[0]]
    columns = [axis for axis in range(len(rhs)) if axis not in contracted[1] and axis not in batched[1]]
    loops = (size(lhs, batched[0]), size(lhs, rows), size(rhs, columns), size(lhs, contracted[0]))
    cost = costs.contraction(
        site,
        loops,
        site.operands[:2],
        site.results,
        lhs_transposed=bool(rows and contracted[0] and min(contracted[0]) < max(rows)),
        rhs_transposed=bool(columns and contracted[1] and max(contracted[1]) > min(columns)),
    )
    return _with_precision(site, cost)


_PRECISE = re.compile(r"precision[^\]]*\bHIGH")


def _with_precision(site: Site, cost: Cost) -> Cost:
    """The cost of a product that notes where its operands are not to be rounded to shorter formats."""
    return cost._replace(detail={**cost.detail, "precise": True}) if _PRECISE.search(site.text) else cost


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
    cost = costs.convolution(site, site.operands[:2], site.results[0], sizes, transposed=max(dilated) > 1)
    return _with_precision(site, cost)


def _reduce(site: Site) -> Cost:
    axes = site.ints("dimensions")
    source = site.operands[0]
    if axes is None:
        remaining = len(site.results[0].shape or ())
        axes = tuple(range(remaining, len(source.shape or ())))
    applied = re.search(r"applies ([\w.]+)", site.text)
    if applied is not None or not site.body:
        return costs.reduction(site, combined_by(applied[1]) if applied else "reduce", source, axes)
    return costs.reduction_by_body(site, axes)


def _reduce_window(site: Site) -> Cost:
    window = site.ints("window_dimensions")
    if window is None:
        return unknown(f"{site.name} without window_dimensions")
    flops = max(site.computed.flops, 1.0)
    cost = costs.window_reduction(site, combiner(site.body), site.operands[0], site.results[0], window, flops)
    if not _is_cumulative(site, window):
        return cost
    return cost._replace(flops=site.results[0].elements * flops, detail={**cost.detail, "cumulative": True})


def _is_cumulative(site: Site, window: Sequence[int]) -> bool:
    """Whether a window as long as one axis, padded on one side alone, gives each place all that comes before it or after it.

    JAX writes cumulative sums so. Compilers compute one in as many operations as there are elements, or a few times as many.
    """
    axes = [axis for axis, length in enumerate(window) if length > 1]
    padding = site.ints("padding") or ()
    steps = (site.ints("window_strides"), site.ints("window_dilations"), site.ints("base_dilations"))
    if len(axes) != 1 or len(padding) != 2 * len(window) or any(set(step or (1,)) != {1} for step in steps):
        return False
    axis, whole = axes[0], window[axes[0]] - 1
    others = padding[: 2 * axis] + padding[2 * axis + 2 :]
    return (
        not any(others)
        and (site.operands[0].shape or ())[axis] == window[axis]
        and padding[2 * axis : 2 * axis + 2] in ((whole, 0), (0, whole))
    )


def _sort(site: Site) -> Cost:
    """A sort; `descending` where XLA's TopkRewriter makes a top-k of it if only the first of its results are read.

    It takes sorts of fp32 and bf16 along the first or the last axis, from the largest down, alone or with their indices.
    """
    cost = costs.sort_along(site)
    rank, along = len(site.operands[0].shape or ()), cost.detail["along"]
    index = site.maker(1) if len(site.operands) == 2 else None
    is_descending = (
        cost.dtype in ("fp32", "bf16")
        and along in (0, rank - 1, -1)
        and puts_larger_first(site.op.regions)
        and (len(site.operands) == 1 or (index is not None and index.name.endswith("iota")))
    )
    return cost._replace(detail={**cost.detail, "descending": is_descending})


def _select_and_scatter(site: Site) -> Cost:
    window = site.ints("window_dimensions") or (1,)
    source = site.operands[1]
    points = source.elements * prod(window)
    return Cost(
        "reduction", source.dtype, points + source.elements, 0.0, costs.nbytes(site.operands[:2]), costs.nbytes(site.results),
        (1.0, source.elements, 1.0, float(prod(window))), {"operator": "select_and_scatter", "axis": "middle"},
    )  # fmt: skip


def _scatter(site: Site) -> Cost:
    arrays = site.operands
    count = max((len(arrays) - 1) // 2, 1)
    updates, body = arrays[count + 1], site.computed
    cost = costs.gathered("scatter", arrays[count : count + 1], updates)
    # In place, as compilers do it; what is combined with must be read first.
    again = updates.nbytes if body.operators else 0.0
    return cost._replace(flops=updates.elements * body.flops, bytes_in=cost.bytes_in + again)


def _batch_norm(site: Site) -> Cost:
    source = site.operands[0]
    axis = site.int_of("feature_index") or 0
    channels = float((source.shape or (1,))[axis] or 1)
    # Inference scales and shifts; training also takes the mean and the variance, and its gradient both and two products.
    each = {"batch_norm_inference": 4.0, "batch_norm_training": 8.0}.get(site.short, 12.0)
    return costs.normalization(site, site.short, source, source.elements / channels, each, site.operands[1:])


_NO_CALLS = frozenset((
    "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement", "xla.sdy.FuncResultSharding",
    "LayoutConstraint",
))  # fmt: skip
_CALLED_ELEMENTWISE = frozenset(("mhlo.erf", "mhlo.erf_inv", "mhlo.tan", "chlo.erf", "stablehlo.erf"))


def _custom_call(site: Site) -> Cost:
    match = re.search(r'call_target_name = "([^"]*)"|@([\w$.]+)', site.text)
    target = (match[1] or match[2]) if match else ""
    if target in _NO_CALLS:
        return costs.view(site)
    if target in _CALLED_ELEMENTWISE:
        return costs.elementwise(site, target.rpartition(".")[2])
    solved = _LAPACK.fullmatch(target)
    if solved is not None:
        return _factored(site, solved[1])
    if target.rpartition(".")[2].lower().replace("_", "") in ("topk", "approxtopk"):
        return costs.sort(site)
    return unknown(f"custom_call to {target or 'an unnamed target'}")


_LAPACK = re.compile(r"(?:lapack|cusolver|cublas|hipsolver)_?[sdcz]?(potrf|getrf|geqrf|trsm)(?:_ffi|_batched)*")
_FACTORED = {"potrf": 1 / 3, "cholesky": 1 / 3, "getrf": 2 / 3, "geqrf": 4 / 3}
"""Operations per n³ of factoring an n×n matrix: Cholesky, LU, QR (Golub and Van Loan, Matrix Computations)."""


def _factored(site: Site, name: str = "") -> Cost:
    """A factorisation, or a triangular solve with n operations per element of the right-hand sides."""
    name = name or site.short
    shape = site.operands[0].shape or (1,)
    size = float(shape[-1] or 1)
    matrices = site.operands[0].elements / (float(shape[-2] or 1) * size)
    flops = matrices * size**3 * _FACTORED[name] if name in _FACTORED else size * site.results[0].elements
    n = max(round(flops / (2 * matrices * size * size)), 1)
    return Cost(
        "contraction", site.operands[0].dtype, flops, matrices * size, costs.nbytes(site.operands), costs.nbytes(site.results),
        (matrices, size, float(n), size), {"operator": name},
    )  # fmt: skip


def _fft(site: Site) -> Cost:
    elements = max(kind.elements for kind in (*site.operands, *site.results))
    return costs.fft(site, elements, prod(site.ints("fft_length") or (1,)))


def _transpose(site: Site) -> Cost:
    return costs.transpose(site, _order(site))


def _slice(site: Site) -> Cost:
    """A part of an array; `is_prefix` where it begins with its first element and has a stride of 1."""
    cost, ranges = costs.movement(site, "slice"), _RANGES.search(site.text)
    starts, steps = site.ints("start_indices") or (1,), site.ints("strides") or ()
    if ranges is not None:
        parts = [[int(number) for number in part.split(":")] for part in ranges[1].split(",")]
        starts, steps = tuple(part[0] for part in parts), tuple(part[2] for part in parts if len(part) > 2)
    is_prefix = not any(starts) and set(steps) <= {1}
    return cost._replace(detail={**cost.detail, "is_prefix": is_prefix})


_RANGES = re.compile(r"\[([\d\s:,]+)\]\s*(?:$|:)")
"""The printed ranges of a slice: `[0:4, 0:8:2]`."""


def _order(site: Site) -> tuple[int, ...] | None:
    return site.ints("permutation", "dims")


def _same(site: Site) -> Known:
    """What is handed on, as a number or as a list of one."""
    known = site.known(0)
    shape = site.results[0].shape
    if isinstance(known, tuple) and shape == () and len(known) == 1:
        return known[0]
    return (known,) if isinstance(known, int) and shape == (1,) else known


def _sliced(site: Site) -> Known:
    """A part of a list."""
    known, start, limit = site.known(0), site.int_of("start_indices"), site.int_of("limit_indices")
    return known[start:limit] if isinstance(known, tuple) and start is not None and limit is not None else None


def _dot_axes(site: Site) -> tuple[Axes, Axes]:
    """Axes of the left and of the right operand that are summed over, and those that are batches."""
    contracted, batched = (
        _written_pair(site.text, f"{word}ing_dims")
        or (site.ints(f"lhs_{word}ing_dimensions") or (), site.ints(f"rhs_{word}ing_dimensions") or ())
        for word in ("contract", "batch")
    )
    if site.short == "dot" and not contracted[0]:
        contracted = ((len(site.operands[0].shape or ()) - 1,), (0,))
    return contracted, batched


def _written_pair(text: str, name: str) -> Axes | None:
    match = re.search(rf"(?<!\w){name} = (\[[\d, ]*\]) x (\[[\d, ]*\])", text)
    return None if match is None else (attributes.numbers(match[1]) or (), attributes.numbers(match[2]) or ())


def _dot_sizes(site: Site) -> Shapes:
    """Batches, rows, columns."""
    lhs, rhs = site.operands[0].shape, site.operands[1].shape
    if lhs is None or rhs is None:
        return None
    (left, right), (batch_left, batch_right) = _dot_axes(site)
    rows = [size for axis, size in enumerate(lhs) if axis not in (*batch_left, *left)]
    columns = [size for axis, size in enumerate(rhs) if axis not in (*batch_right, *right)]
    return ((*(lhs[axis] for axis in batch_left), *rows, *columns),)


def _reduced_sizes(site: Site) -> Shapes:
    """Reduced axes gone."""
    shape, axes = site.operands[0].shape, site.ints("dimensions")
    if shape is None or axes is None:
        return None
    return tuple(tuple(size for axis, size in enumerate(shape) if axis not in axes) for _ in site.results)


def _first_sizes(site: Site) -> Shapes:
    """As large as the first operands."""
    return tuple(kind.shape for kind in site.operands[: len(site.results)])


def _sliced_sizes(site: Site) -> Shapes:
    """From start, limit and step of every axis, which are operands."""
    start, limit, step = (site.listed(position) for position in (1, 2, 3))
    if start is None or limit is None or step is None:
        return None
    return (tuple(-(-(last - first) // by) for first, last, by in zip(start, limit, step, strict=True)),)


def _gathered_sizes(site: Site) -> Shapes:
    """Offsets from the slice sizes, all others from the indices, in order (StableHLO specification, gather)."""
    rank, places, sizes = len(site.results[0].shape or ()), site.operands[1].shape, site.ints("slice_sizes")
    offsets, collapsed = site.ints("offset_dims") or (), site.ints("collapsed_slice_dims") or ()
    if places is None or sizes is None:
        return None
    vector = site.int_of("index_vector_dim")
    batch = iter([size for axis, size in enumerate(places) if axis != vector])
    missing = (*collapsed, *(site.ints("operand_batching_dims") or ()))
    remaining = iter([size for axis, size in enumerate(sizes) if axis not in missing])
    return (tuple(next(remaining if axis in offsets else batch, None) for axis in range(rank)),)


def _joined_sizes(site: Site) -> Shapes:
    return joined(site.operands, site.int_of("dimension", "dim"))


_COLLECTIVES = (
    "all_gather all_reduce all_to_all collective_broadcast collective_permute reduce_scatter infeed outfeed send recv "
    "cross-replica-sum"
)


_FOLDED = {"add": "add", "sub": "subtract", "mul": "multiply", "floordiv": "divide", "max": "maximum", "min": "minimum"}


def _table(dialect: str) -> dict[str, Rule]:
    return {
        **rules(dialect, _PLAIN, _elementwise, of_operands),
        **folding(dialect, _elementwise, _FOLDED, of_operands),
        **rules(dialect, "convert", _elementwise, of_operands, fold=_same),
        **rules(dialect, "dot_general dot", _dot_general, _dot_sizes),
        **rules(dialect, "convolution dynamic_conv", _convolution),
        **rules(dialect, "reduce", _reduce, _reduced_sizes),
        **rules(dialect, "reduce_window", _reduce_window),
        **rules(dialect, "select_and_scatter", _select_and_scatter, _first_sizes),
        **rules(dialect, "broadcast_in_dim broadcast broadcast_to iota", costs.broadcast),
        **rules(dialect, "dynamic_broadcast_in_dim", moving("broadcast", reads_first=True), of_known(1)),
        **rules(dialect, "dynamic_iota", costs.filled, of_known(0)),
        **rules(dialect, "transpose", _transpose, lambda site: permuted(site, _order(site))),
        **rules(dialect, "reverse", costs.reverse, _first_sizes),
        **rules(dialect, "slice", _slice, fold=_sliced),
        **rules(dialect, "dynamic_slice", moving("slice")),
        **rules(dialect, "real_dynamic_slice", moving("slice"), _sliced_sizes),
        **rules(dialect, "dynamic_update_slice", copied(1), _first_sizes),
        **rules(dialect, "concatenate", moving("concatenate"), _joined_sizes, fold=joined_lists),
        **rules(dialect, "pad dynamic_pad", moving("pad", reads_first=True)),
        **rules(dialect, "gather dynamic_gather torch_index_select", costs.gather, _gathered_sizes),
        **rules(dialect, "scatter", _scatter, _first_sizes),
        **rules(dialect, "sort", _sort, of_operands, reads="makers"),
        **rules(dialect, "batch_norm_inference batch_norm_training batch_norm_grad", _batch_norm),
        **rules(dialect, "rng rng_bit_generator", costs.random),
        **rules(dialect, "custom_call", _custom_call),
        **rules(dialect, "cholesky triangular_solve", _factored),
        **rules(dialect, "fft", _fft),
        **rules(dialect, "map", costs.by_body),
        **rules(dialect, "reshape", costs.view, conserved, fold=_same),
        **rules(dialect, "dynamic_reshape", costs.view, of_known(-1)),
        **rules(dialect, "bitcast_convert optimization_barrier get_tuple_element tuple set_dimension_size", costs.view),
        **rules(dialect, "constant", costs.constant, fold=constant),
        **rules(dialect, "get_dimension_size", costs.control, fold=extent),
        **rules(dialect, "create_token after_all partition_id replica_id", costs.control),
        **rules(dialect, _COLLECTIVES, not_costed(" talks to other devices, which is not costed")),
    }


DIALECT = Dialect(
    "stablehlo",
    {
        **_table("stablehlo"),
        **_table("mhlo"),
        **rules("chlo", _CHLO, _elementwise, of_operands),
        **rules("chlo", "top_k", costs.sort),
        **rules("chlo", "constant constant_like", costs.constant),
        **rules("chlo", "ragged_dot", _dot_general),
        **rules("chlo", "scan", lambda site: unknown("chlo.scan")),
    },
    {
        "while": "stablehlo.while mhlo.while",
        "branch": "stablehlo.if stablehlo.case mhlo.if mhlo.case",
        "call": "stablehlo.composite mhlo.composite",
        "end": "stablehlo.return mhlo.return",
    },
)
