"""Time of a two-dimensional convolution as it stands: square kernel, NCHW, height and width without padding."""

from __future__ import annotations

from collections.abc import Mapping

from ..family_kinds import family_kind, product_features, work_features
from ..formula import Value, equal, floor, less, maximum, minimum, where

_WINOGRAD_SAVING = 324 / 64
"""As in `families.conv2d`: Winograd's F(6x6, 3x3) needs 64 multiplications where the definition has 324 (Lavin and Gray, CVPR
2016, section 4)."""


def _features(v: Mapping[str, Value]) -> dict[str, Value]:
    batch, kernel, stride = v["batch"], v["kernel"], v["stride"]
    out_h, out_w = _outputs(v["height"], v), _outputs(v["width"], v)
    weights = v["out_channels"] * v["in_channels"] * kernel * kernel
    results = batch * v["out_channels"] * out_h * out_w
    touched = batch * v["in_channels"] * _touched(v["height"], out_h, v) * _touched(v["width"], out_w, v)
    flops = 2.0 * results * v["in_channels"] * kernel * kernel
    winograd = equal(kernel, 3.0) * equal(stride, 1.0)
    moved_b = (touched + weights + results) * v["element_b"]
    footprint_b = (batch * v["in_channels"] * v["height"] * v["width"] + weights + results) * v["element_b"]
    work = work_features(v, flops, moved_b, footprint_b, flops / where(winograd, _WINOGRAD_SAVING, 1.0))
    product = (1.0, batch * out_h * out_w, v["out_channels"], v["in_channels"] * kernel * kernel)
    return {
        **work,
        **product_features(v, work, product, (v["width"], v["width"])),
        "images": batch,
        "in_channels": v["in_channels"],
        "height": v["height"],
        "width": v["width"],
        "kernel": kernel,
        "stride": stride,
        "padding": v["padding"],
    }


def _outputs(size: Value, v: Mapping[str, Value]) -> Value:
    """As `families.conv2d.output_size`."""
    return floor((size + 2.0 * v["padding"] - v["kernel"]) / v["stride"]) + 1.0


def _touched(size: Value, outputs: Value, v: Mapping[str, Value]) -> Value:
    """Input positions along one side that some output position reads, as `families.conv2d` counts them."""
    apart, together = outputs * v["kernel"], (outputs - 1.0) * v["stride"] + v["kernel"]
    read = where(less(v["kernel"], v["stride"]), apart, together)
    return minimum(maximum(read - v["padding"], 1.0), size)


KIND = family_kind("conv2d", __doc__, _features)
