"""Products and convolutions of linalg: which loop is batch, row, column or sum, from indexing maps or from names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from types import MappingProxyType

from ..types import attributes
from ..types.attributes import AffineMap, parse_maps
from ..types.graph import Op, ValueType
from . import costs
from .costs import unknown
from .op_rule import Cost, Site

PRODUCTS: Mapping[str, str] = MappingProxyType(
    {
        "matmul": "mk,kn>mn",
        "matmul_transpose_a": "km,kn>mn",
        "matmul_transpose_b": "mk,nk>mn",
        "batch_matmul": "bmk,bkn>bmn",
        "batch_matmul_transpose_a": "bkm,bkn>bmn",
        "batch_matmul_transpose_b": "bmk,bnk>bmn",
        "batch_reduce_matmul": "bmk,bkn>mn",
        "matvec": "mk,k>m",
        "vecmat": "k,kn>n",
        "batch_matvec": "bmk,bk>bm",
        "batch_vecmat": "bk,bkn>bn",
        "dot": "k,k>",
        "mmt4d": "mkpr,nkqr>mnpq",
        "batch_mmt4d": "bmkpr,bnkqr>bmnpq",
        "quantized_matmul": "mk,kn>mn",
        "quantized_batch_matmul": "bmk,bkn>bmn",
    }
)
"""Indices of A, B and C of the products by name (LinalgNamedStructuredOps.yaml and LinalgStructuredOps.td of LLVM)."""

_CONVOLUTIONS = (
    "conv_1d_ncw_fcw conv_1d_nwc_wcf conv_2d_nchw_fchw conv_2d_nchw_fchw_q conv_2d_ngchw_fgchw conv_2d_ngchw_gfchw "
    "conv_2d_ngchw_gfchw_q conv_2d_nhwc_fhwc conv_2d_nhwc_fhwc_q conv_2d_nhwc_hwcf conv_2d_nhwc_hwcf_q "
    "conv_2d_nhwgc_gfhwc conv_2d_nhwgc_gfhwc_q conv_3d_ncdhw_fcdhw conv_3d_ndhwc_dhwcf conv_3d_ndhwc_dhwcf_q "
    "depthwise_conv_1d_ncw_cw depthwise_conv_1d_nwc_wc depthwise_conv_1d_nwc_wcm depthwise_conv_2d_nchw_chw "
    "depthwise_conv_2d_nhwc_hwc depthwise_conv_2d_nhwc_hwc_q depthwise_conv_2d_nhwc_hwcm depthwise_conv_2d_nhwc_hwcm_q "
    "depthwise_conv_3d_ncdhw_cdhw depthwise_conv_3d_ndhwc_dhwc depthwise_conv_3d_ndhwc_dhwcm"
)
CONVOLUTIONS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        **{name: name.removesuffix("_q").split("_")[-2:] for name in _CONVOLUTIONS.split()},
        "conv_1d": ("w", "w"),
        "conv_2d": ("hw", "hw"),
        "conv_3d": ("dhw", "dhw"),
    }
)
"""Layouts of image and kernel: n image, g group, c channel, f filter, m multiplier, d, h, w places."""

LAYOUTS: Mapping[str, str] = MappingProxyType({
    f"pooling_{layout}": layout for layout in ("nchw", "nhwc", "ncw", "nwc", "ncdhw", "ndhwc")
})  # fmt: skip
"""Layouts of pools by the front of their names."""


_EMPTY = frozenset({"linalg.fill", "tensor.empty", "bufferization.alloc_tensor", "memref.alloc", "arith.constant"})
"""What makes a destination that is not worth reading: its contents are nothing, or one number."""


def destinations(site: Site) -> int:
    """How many of the last operands are destinations."""
    segments = site.ints("operandSegmentSizes")
    return segments[-1] if segments else max(len(site.results), 1)


def read_b(site: Site, inputs: Sequence[ValueType], outs: Sequence[ValueType]) -> float:
    """Bytes of the inputs, and of destinations whose contents come from somewhere: they are added to."""
    first = len(site.operands) - len(outs)
    items = [
        kind
        for position, kind in enumerate(outs)
        if (maker := site.maker(first + position)) is None or maker.name not in _EMPTY
    ]
    return costs.nbytes(inputs) + (costs.nbytes(items) if site.name.startswith("linalg.") else 0.0)


def dimension_sizes(maps: Sequence[AffineMap], operands: Sequence[ValueType]) -> list[int | None]:
    """Sizes of a map's dimensions, from the operands they index; None where none tells."""
    sizes: list[int | None] = [None] * len(maps[0].dims)
    for map_, kind in zip(maps, operands, strict=False):
        for dim, size in zip(map_.positions(), kind.shape or (), strict=False):
            if dim is not None and size is not None:
                sizes[dim] = size
    return sizes


def product(
    site: Site,
    inputs: Sequence[ValueType],
    outs: Sequence[ValueType],
    maps: Sequence[AffineMap],
    space: Sequence[float],
    summed: set[int],
) -> Cost:
    """A contraction or, where an input is indexed by sums, a convolution: loops by which operands they index.

    Args:
        site: The operation at its place.
        inputs: Types of the inputs.
        outs: Types of the outputs.
        maps: Indexing maps of inputs and outputs, in that order.
        space: Length of each loop.
        summed: Positions of the loops that are summed over.
    """
    a, b, c = (
        frozenset(dim for result in range(len(map_.results)) for dim in map_.used(result))
        for map_ in (maps[0], maps[1], maps[-1])
    )

    def size(dims: frozenset[int]) -> float:
        return prod((space[dim] for dim in dims), start=1.0)

    loops = (size((a & b & c) - summed), size((c & a) - b), size((c & b) - a), size(frozenset(summed)))
    slid = [result for result in range(len(maps[0].results)) if len(maps[0].used(result)) > 1]
    read, written = read_b(site, inputs, outs), costs.nbytes(outs)
    flops = 2.0 * prod(space, start=1.0)
    if slid:
        return Cost(
            "convolution",
            inputs[0].dtype,
            flops,
            0.0,
            read,
            written,
            loops,
            {"operator": site.short, **_slid_sizes(maps, inputs, outs, space, slid, loops, summed)},
        )
    left, right = maps[0].positions(), maps[1].positions()
    return Cost("contraction", inputs[0].dtype, flops, 0.0, read, written, loops, {
        "operator": site.short,
        "lhs_transposed": _before(left, frozenset(summed), (c & a) - b),
        "rhs_transposed": _before(right, (c & b) - a, frozenset(summed)),
    })  # fmt: skip


def _before(places: Sequence[int | None], first: frozenset[int], then: frozenset[int]) -> bool:
    """Whether dimensions of `first` index before the last of `then` does."""
    firsts = [place for place, dim in enumerate(places) if dim in first]
    thens = [place for place, dim in enumerate(places) if dim in then]
    return bool(firsts and thens and min(firsts) < max(thens))


def _slid_sizes(
    maps: Sequence[AffineMap],
    inputs: Sequence[ValueType],
    outs: Sequence[ValueType],
    space: Sequence[float],
    slid: Sequence[int],
    loops: tuple[float, float, float, float],
    summed: set[int],
) -> dict[str, int]:
    taps, sides, strides, dilations = [], [], [], []
    for result in slid:
        used = maps[0].used(result)
        taps.append(int(prod(space[dim] for dim in used if dim in summed)))
        sides.append(int((inputs[0].shape or ())[result] or 0))
        strides += [maps[0].factor(result, dim) for dim in used if dim not in summed]
        dilations += [maps[0].factor(result, dim) for dim in used if dim in summed]
    groups = int(loops[0])
    channels = int(loops[3] / max(prod(taps), 1)) * groups
    places = prod(float(size or 1) for size in (outs[0].shape or ())) / max(loops[0] * loops[2], 1.0)
    slid_out = prod(space[dim] for result in slid for dim in maps[0].used(result) if dim not in summed)
    return costs.conv_sizes(int(places / max(slid_out, 1.0)), channels, int(loops[0] * loops[2]), sides, taps,
                            stride=max(strides, default=1), groups=groups, dilation=max(dilations, default=1))  # fmt: skip


def named_product(site: Site) -> Cost:
    """A product by name: its maps where they are printed, else those its name stands for."""
    maps = parse_maps(attributes.value(site.text, "indexing_maps") or "") or parse_maps(_maps_text(site.short))
    count = destinations(site)
    if len(maps) != 3 or len(site.operands) < 2 + count:
        return unknown(f"{site.name} with operands or maps that a product does not have")
    sizes = dimension_sizes(maps, (*site.operands[:2], site.operands[-1]))
    if None in sizes:
        return unknown(f"{site.name} over sizes that its operands do not tell")
    space = [float(size or 0) for size in sizes]
    summed = set(range(len(space))) - {dim for result in range(len(maps[-1].results)) for dim in maps[-1].used(result)}
    return product(site, site.operands[:2], site.operands[-1:], maps, space, summed)


@lru_cache(256)
def _maps_text(name: str) -> str:
    letters = PRODUCTS.get(name, "")
    dims = sorted(set(letters) - {",", ">"})

    def listed(part: str) -> str:
        return f"affine_map<({', '.join(dims)}) -> ({', '.join(part)})>"

    return ", ".join(listed(part) for part in letters.replace(">", ",").split(",")) if letters else ""


def convolution(site: Site) -> Cost:
    """A convolution by name: its layouts say which axis is what."""
    layout, kernel_layout = CONVOLUTIONS[site.short]
    image, taps = site.operands[0].shape or (), site.operands[1].shape or ()
    result = site.operands[-1]
    at = dict(zip(layout, image, strict=True))
    of = dict(zip(kernel_layout, taps, strict=True))
    deep = [axis for axis in "dhw" if axis in kernel_layout]
    depthwise = site.short.startswith("depthwise")
    channels = (at.get("c") or 1) * (at.get("g") or 1)
    groups = channels if depthwise else (at.get("g") or 1)
    outs = channels * (of.get("m") or 1) if depthwise else (of.get("f") or 1) * (at.get("g") or 1)
    padding = _padding(site, layout, deep)
    sides = [(at[axis] or 0) - 2 * padding for axis in deep]
    sizes = costs.conv_sizes(
        at.get("n") or 1,
        channels,
        outs,
        sides,
        [of[axis] or 0 for axis in deep],
        stride=max(site.ints("strides") or (1,)),
        padding=padding,
        groups=groups,
        dilation=max(site.ints("dilations") or (1,)),
    )
    cost = costs.convolution(site, site.operands[:2], result, sizes)
    return cost._replace(bytes_in=read_b(site, site.operands[:2], (result,)))


def _padding(site: Site, layout: str, deep: Sequence[str]) -> int:
    """Zeros on every side that an operation before put around the image; 0 where sides differ or nothing is known."""
    maker: Op | None = site.maker(0)
    if maker is None or maker.name != "tensor.pad":
        return 0
    low, high = (attributes.integers(maker.attributes, name) for name in ("static_low", "static_high"))
    if low is None or low != high or len(low) != len(layout):
        return 0
    around = {low[layout.index(axis)] for axis in deep}
    return around.pop() if len(around) == 1 else 0
