"""What PyTorch runs on a CPU as loops over single numbers, and how long these take beside a pass over as many bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

from ..operation import Operation, TensorInfo
from .kernel_use import LOOPED, UNKNOWN


class Loop(NamedTuple):
    """A loop over single numbers.

    Attributes:
        times: How many times as long it takes as what stands for it.
        widening: How much further the ends of the interval lie.
    """

    times: float
    widening: float


_AT_TWO_SIZES = 1.5


def _loops(widening: float, table: Mapping[float, str]) -> Iterable[tuple[str, Loop]]:
    return ((name, Loop(times, widening)) for times, names in table.items() for name in names.split())


_LOOPS: Mapping[str, Loop] = {
    **dict(_loops(LOOPED, {
        6: "max_unpool2d index_reduce", 7: "bincount scatter_reduce", 11: "_cdist_forward segment_reduce",
        12: "upsample_nearest2d _upsample_nearest_exact2d pixel_shuffle", 13: "adaptive_max_pool3d", 14: "upsample_bilinear2d",
        15: "nonzero masked_select", 18: "im2col col2im", 23: "multi_margin_loss",
        26: "searchsorted bucketize _upsample_bilinear2d_aa", 38: "grid_sampler_2d", 56: "logcumsumexp",
        70: "upsample_trilinear3d", 88: "upsample_bicubic2d", 97: "histc", 117: "isin", 180: "unique_dim", 200: "poisson",
        300: "multilabel_margin_loss_forward",
    })),
    **dict(_loops(UNKNOWN, {24: "_embedding_bag _embedding_bag_forward_only", 80: "multinomial"})),
    **dict(_loops(_AT_TWO_SIZES, {
        0.13: "elu", 0.14: "rot90", 0.2: "hardswish", 2.7: "tril triu", 3.8: "count_nonzero", 4: "gt lt ge le eq ne isnan",
        4.5: "trunc", 4.7: "remainder", 4.8: "fmod", 5: "log10", 5.7: "heaviside", 6: "asin acos", 6.4: "hypot",
        7: "cosh mish", 7.2: "tan erfc", 8: "erfinv sinh atanh", 9: "randint randint_like", 9.7: "special_i1e floor_divide",
        10: "atan frexp where", 11: "atan2", 12: "logaddexp argmin max min", 13: "logsumexp",
        15: "linalg_cross masked_fill xlogy", 16: "argmax special_bessel_j0", 19: "special_entr acosh", 19.5: "ldexp",
        23: "uniform rand rand_like", 26: "normal randn randn_like", 30: "sinc random", 32: "special_ndtri", 42: "lgamma var",
        46: "randperm", 48: "affine_grid_generator any all", 53: "var_mean std std_mean digamma", 61: "special_erfcx",
        71: "special_i1", 75: "asinh bernoulli", 82: "special_log_ndtr", 113: "binomial", 126: "special_i0e", 145: "igamma",
        148: "exponential", 160: "i0 geometric", 189: "cauchy", 240: "special_zeta", 264: "igammac", 270: "_sample_dirichlet",
        290: "_standard_gamma", 295: "log_normal", 755: "polygamma",
    })),
}  # fmt: skip
"""By operator: PyTorch 2.13 on one core of a Zen 3 beside our own estimate of the bytes. What was measured at one size alone is
five times as wide, what was at two (2^17 and 2^20 numbers, whose ratios differ by a third in the mean) half as wide again. Sums
of embeddings take 6 times and greatest ones 99, draws without replacement 275, with it 23, so that these are wider."""

_POWERS, _STRIDED = Loop(45.0, 2.0), Loop(8.0, 2.5)
"""Norms of other orders than 1, 2 and the extremes (33 to 73 times), and scans along another dimension than that in which
neighbours lie together (4.3 to 16 times)."""
_ORDERS = (None, 0, 1, 2, inf, -inf)
_NORMS = frozenset({"linalg_vector_norm", "norm", "dist"})
_SCANS = frozenset({"cumsum", "cumprod", "cummax", "cummin"})


def loop_of(operation: Operation) -> Loop | None:
    """The loop that an operator is on a CPU; None where it is a pass of vectors. Gradients are loops as their operators are."""
    name, named = operation.base_name.removeprefix("aten."), operation.arguments
    if name == "div" and named.get("rounding_mode") == "floor":
        return _LOOPS["floor_divide"]
    if name in _NORMS:
        return None if named.get("ord", named.get("p")) in _ORDERS else _POWERS
    if name in _SCANS:
        return _STRIDED if _is_strided(operation.inputs[0], named.get("dim")) else None
    forward = name.removesuffix("_backward")
    loop = _LOOPS.get(forward)
    return None if loop is None or (loop.times < 1 and forward != name) else loop


def _is_strided(tensor: TensorInfo, dim: object) -> bool:
    """Whether neighbours along a dimension lie apart."""
    return isinstance(dim, int) and bool(tensor.shape) and tensor.strides[dim] > 1 and tensor.shape[dim] > 1
