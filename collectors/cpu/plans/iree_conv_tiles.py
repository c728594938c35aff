"""Which tiled convolutions a CPU campaign measures: shapes × tile configurations for the `iree` runner.

As for products (`collectors/cpu/plans/iree_gemm_tiles.py`), most configurations are ones an engineer would try
and some are poor. A register tile that does not divide the row of results leaves a scalar remainder, some
thirty times slower per result, so three in four divide it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from ....features.families.conv2d import output_size
from ....features.kernel import KernelSpec, View, get_family
from ....features.tuning.cpu_block import MAX_BLOCKS, MAX_REGISTER_TILE, MAX_UNROLLED
from .iree_gemm_tiles import FLOPS, Config, drawn_within, multiple
from .shapes import MODEL_SHARE, additive_recurrence, aligned, between

SIZES = {"in_channels": (3, 512), "out_channels": (8, 512), "height": (7, 112)}
"""Range of each size of a space-filling shape, inclusive."""

WIDEST = 1.5
"""Largest width over height."""

_WIDER_EVERY = 3
"""Every third space-filling shape may be wider than high; the others are square."""

_ALIGNMENT = 16
"""Every second space-filling shape has its channels rounded to multiples of this: sizes as people choose them."""

_STRIDED_SHARE, _NHWC_SHARE, _SINGLE_SHARE = 0.3, 0.5, 0.8
"""Shares of shapes: with a stride of 2 (space-filling ones only), with channels innermost, and with one image, not two."""

_KERNELS = {3: 6, 5: 2, 7: 1}
"""Kernel sides and how often each is drawn; one by one is a product, and is measured as such."""

_INNER_W = {1: 3, 2: 5, 3: 4, 4: 12, 5: 4, 6: 8, 7: 12, 8: 16, 10: 5, 12: 6, 14: 10, 16: 5, 28: 2}
_INNER_C = {8: 6, 16: 26, 24: 3, 32: 32, 48: 10, 64: 20}
_INNER_K = {1: 25, 2: 15, 3: 5, 4: 25, 8: 20, 16: 10}
_DIVIDING_SHARE = 0.75
_TILE_C = (16, 256)
_TILE_W = (4, 128)

Shape = tuple[tuple[str, int | str], ...]


def tiled_conv_plan(n_shapes: int, n_configs: int, seed: int, threads: int = 1) -> list[KernelSpec]:
    """`n_shapes` convolutions in both layouts, each with IREE's default and `n_configs` different tile configurations.

    Cases are fp32, hot, without padding, in random order; equal arguments give equal plans. A shape that has fewer
    configurations has those it has.
    """
    rng = np.random.default_rng(seed)
    specs = []
    for shape in _shapes(n_shapes, rng):
        configs: list[Config] = [{}, *_configs(shape, n_configs, rng)]
        specs += [
            KernelSpec.of("conv2d", "fp32", impl="iree", threads=threads, config=config, **dict(shape))  # type: ignore[arg-type]
            for config in configs
        ]
    return [specs[i] for i in rng.permutation(len(specs))]


def _shapes(wanted: int, rng: np.random.Generator) -> list[Shape]:
    """Different shapes within `FLOPS`: `MODEL_SHARE` of them from models, the rest space-filling in log space."""
    chosen = dict.fromkeys(_model_shapes(round(wanted * MODEL_SHARE), rng))
    for i, point in enumerate(additive_recurrence(len(SIZES) + 2, rng.random(len(SIZES) + 2))):
        if len(chosen) >= wanted:
            break
        cin, cout, height = (between(float(u), *SIZES[name]) for name, u in zip(SIZES, point, strict=False))
        if i % 2:
            cin, cout = (aligned(size, _ALIGNMENT) for size in (cin, cout))
        kernel = drawn_within(_KERNELS, float(point[4]), height)
        stride = 1 + int(rng.random() < _STRIDED_SHARE)
        width = round(height * (1 + (WIDEST - 1) * float(point[3]))) if i % _WIDER_EVERY == 0 else height
        shape = _shape(rng, cin, cout, height, width, kernel, stride)
        if _fits(shape):
            chosen[shape] = None
    return list(chosen)


def _shape(rng: np.random.Generator, cin: int, cout: int, height: int, width: int, kernel: int, stride: int) -> Shape:
    sizes: dict[str, int | str] = {
        "variant": "nhwc" if rng.random() < _NHWC_SHARE else "", "batch": 1 if rng.random() < _SINGLE_SHARE else 2,
        "in_channels": cin, "out_channels": cout, "height": height, "width": width, "kernel": kernel,
        "stride": stride, "padding": 0,
    }  # fmt: skip
    return tuple(sizes.items())


def _fits(shape: Shape) -> bool:
    spec = KernelSpec.of("conv2d", "fp32", **dict(shape))  # type: ignore[arg-type]
    return FLOPS[0] <= float(get_family("conv2d").flops(View.of(spec))) <= FLOPS[1]


def _model_shapes(wanted: int, rng: np.random.Generator) -> list[Shape]:
    """Shapes of real models, their padding part of the input; one by one is a product and measured as such."""
    fitting = []
    for sizes in get_family("conv2d").model_shapes:
        side = sizes["height"] + 2 * sizes["padding"]
        shape = _shape(rng, sizes["in_channels"], sizes["out_channels"], side, side, sizes["kernel"], sizes["stride"])
        if sizes["kernel"] > 1 and _fits(shape):
            fitting.append(shape)
    return [fitting[i] for i in rng.permutation(len(fitting))[:wanted]]


def _configs(shape: Shape, wanted: int, rng: np.random.Generator) -> list[Config]:
    """Different legal configurations, evenly spread over the knobs."""
    sizes: dict[str, int] = {name: size for name, size in shape if isinstance(size, int)}
    rows, columns = (output_size(sizes[side], sizes) for side in ("height", "width"))
    configs: dict[tuple[tuple[str, int], ...], Config] = {}
    points = additive_recurrence(7, rng.random(7))
    for point in itertools.islice(points, 200 * (wanted + 1)):
        if len(configs) == wanted:
            break
        config = _config(sizes, rows, columns, iter(point.tolist()))
        if _is_sensible(sizes, rows, columns, config):
            configs[tuple(config.items())] = config
    return list(configs.values())


def _config(sizes: dict[str, int], rows: int, columns: int, u: Iterator[float]) -> Config:
    """The configuration at one point of the unit cube."""
    widths = {width: weight for width, weight in _INNER_W.items() if columns % width == 0}
    inner_w = drawn_within(widths if next(u) < _DIVIDING_SHARE else _INNER_W, next(u), columns)
    inner_c = drawn_within(_INNER_C, next(u), sizes["out_channels"])
    steps = {step: weight for step, weight in _INNER_K.items() if sizes["in_channels"] % step == 0}
    return {
        "tile_h": between(next(u), 1, rows),
        "tile_w": multiple(inner_w, next(u), _TILE_W, columns),
        "tile_c": multiple(inner_c, next(u), _TILE_C, sizes["out_channels"]),
        "inner_w": inner_w,
        "inner_c": inner_c,
        "inner_k": drawn_within(steps, next(u), sizes["in_channels"]),
    }


def _is_sensible(sizes: dict[str, int], rows: int, columns: int, config: Config) -> bool:
    """Whether a configuration compiles in about a second and is not cut into too many blocks."""
    register_tile = config["inner_w"] * config["inner_c"]
    blocks = (
        -(-rows // config["tile_h"]) * -(-columns // config["tile_w"]) * -(-sizes["out_channels"] // config["tile_c"])
    )
    return (
        register_tile <= MAX_REGISTER_TILE
        and register_tile * config["inner_k"] <= MAX_UNROLLED
        and blocks * sizes["batch"] <= MAX_BLOCKS
    )
