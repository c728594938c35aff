"""Two-dimensional convolution, square kernel; NCHW, or NHWC with the filter as height, width, in, out (variant `nhwc`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..kernel import Array, Dim, KernelFamily, KernelSpec, Size, View

# (in, out, height, kernel, stride, padding) of ResNet-50, MobileNet-style pointwise layers, VGG-16 and the ViT patch stem.
_LAYERS = (
    (3, 64, 224, 7, 2, 3), (64, 64, 56, 3, 1, 1), (64, 256, 56, 1, 1, 0), (128, 128, 28, 3, 1, 1),
    (256, 512, 28, 1, 2, 0), (256, 256, 14, 3, 1, 1), (512, 512, 7, 3, 1, 1), (3, 768, 224, 16, 16, 0),
    (96, 24, 56, 1, 1, 0), (3, 64, 224, 3, 1, 1), (512, 2048, 7, 1, 1, 0), (32, 64, 112, 3, 2, 1),
)  # fmt: skip


def output_size(size: Size, v: View | Mapping[str, int]) -> Size:
    """Output positions along one side: PyTorch's Conv2d shape formula with dilation 1."""
    return (size + 2 * v["padding"] - v["kernel"]) // v["stride"] + 1


def _inputs(v: View) -> tuple[Array, ...]:
    batch, channels, height, width = v["batch"], v["in_channels"], v["height"], v["width"]
    if v.variant == "nhwc":
        return (
            Array((batch, height, width, channels), v.dtype),
            Array((v["kernel"], v["kernel"], channels, v["out_channels"]), v.dtype),
        )
    return (
        Array((batch, channels, height, width), v.dtype),
        Array((v["out_channels"], channels, v["kernel"], v["kernel"]), v.dtype),
    )


def _out_shape(v: View) -> tuple[Size, ...]:
    return (v["batch"], v["out_channels"], output_size(v["height"], v), output_size(v["width"], v))


def _outputs(v: View) -> tuple[Array, ...]:
    batch, channels, height, width = _out_shape(v)
    shape = (batch, height, width, channels) if v.variant == "nhwc" else (batch, channels, height, width)
    return (Array(shape, v.dtype, "zeros"),)


def _flops(v: View) -> Size:
    outputs = Array(_out_shape(v), v.dtype).elements
    return 2.0 * outputs * v["in_channels"] * v["kernel"] * v["kernel"]


# Winograd's F(6x6, 3x3) needs 64 multiplications where the definition has 324 (Lavin and Gray, CVPR 2016, section 4).
_WINOGRAD_SAVING = 324 / 64


def _least_flops(v: View) -> Size:
    winograd = np.equal(v["kernel"], 3) & np.equal(v["stride"], 1)
    return _flops(v) / np.where(winograd, _WINOGRAD_SAVING, 1.0)


def _touched(size: Size, v: View) -> Size:
    """Input positions along one side that some output position reads: padding is not, nor what a long stride skips."""
    outputs = output_size(size, v)
    read = np.where(np.less(v["kernel"], v["stride"]), outputs * v["kernel"], (outputs - 1) * v["stride"] + v["kernel"])
    return np.clip(read - v["padding"], 1, size)


def _traffic_b(v: View) -> Size:
    touched = (v["batch"], v["in_channels"], _touched(v["height"], v), _touched(v["width"], v))
    return Array(touched, v.dtype).nbytes + _inputs(v)[1].nbytes + Array(_out_shape(v), v.dtype).nbytes


def _tiles(v: View) -> tuple[Size, Size, Size, Size]:
    batch, channels, height, width = _out_shape(v)
    return batch * 0 + 1, batch * height * width, channels, v["in_channels"] * v["kernel"] * v["kernel"]


def _torch(torch: Any, spec: KernelSpec, x: Any, weight: Any) -> Callable[[], Any]:
    if spec.variant == "nhwc":
        # The same memory under the order of axes that PyTorch names: its channels-last format.
        x, weight = x.permute(0, 3, 1, 2), weight.permute(3, 2, 0, 1)
        return lambda: torch.nn.functional.conv2d(x, weight, stride=spec["stride"], padding=spec["padding"]).permute(
            0, 2, 3, 1
        )
    return lambda: torch.nn.functional.conv2d(x, weight, stride=spec["stride"], padding=spec["padding"])


def _finish(sizes: dict[str, int]) -> dict[str, int]:
    kernel = min((1, 3, 5, 7), key=lambda size: abs(size - sizes["kernel"]))
    return sizes | {"kernel": kernel, "padding": kernel // 2, "width": sizes["height"]}


def _check(sizes: Mapping[str, int], _variant: str) -> str | None:
    for side in ("height", "width"):
        if sizes[side] + 2 * sizes["padding"] < sizes["kernel"]:
            return f"{side} plus padding must be at least the kernel, got {sizes[side]} and {sizes['kernel']}"
    return None


FAMILY = KernelFamily(
    name="conv2d",
    doc=__doc__,
    dims=(
        Dim("batch", "images"),
        Dim("in_channels", "input channels"),
        Dim("out_channels", "output channels"),
        Dim("height", "input height"),
        Dim("width", "input width"),
        Dim("kernel", "side of the square kernel"),
        Dim("stride", "step in both directions", default=1),
        Dim("padding", "zeros added on every side", default=0, minimum=0),
    ),
    variants=("", "nhwc"),
    config=("tile_h", "tile_w", "tile_c", "inner_w", "inner_c", "inner_k"),
    inputs=_inputs,
    outputs=_outputs,
    flops=_flops,
    least_flops=_least_flops,
    traffic_b=_traffic_b,
    run={"torch": _torch},
    unit="matrix",
    tiles=_tiles,
    mlir_ops=("linalg.conv_2d_nchw_fchw", "linalg.conv_2d_nhwc_hwcf", "stablehlo.convolution", "tosa.conv2d"),
    ranges={
        "batch": (1, 8),
        "in_channels": (1, 512),
        "out_channels": (1, 512),
        "height": (7, 160),
        "kernel": (1, 7),
        "stride": (1, 2),
    },
    model_shapes=[
        {
            "batch": batch,
            "in_channels": cin,
            "out_channels": cout,
            "height": side,
            "width": side,
            "kernel": kernel,
            "stride": stride,
            "padding": padding,
        }
        for cin, cout, side, kernel, stride, padding in _LAYERS
        for batch in (1, 4)
    ],
    finish=_finish,
    check=_check,
)
