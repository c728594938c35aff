"""What the names of linalg's operations stand for: indices of products, layouts of convolutions and pools."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

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

_CONVOLUTIONS = [
    "conv_1d_ncw_fcw",
    "conv_1d_nwc_wcf",
    "conv_2d_nchw_fchw",
    "conv_2d_nchw_fchw_q",
    "conv_2d_ngchw_fgchw",
    "conv_2d_ngchw_gfchw",
    "conv_2d_ngchw_gfchw_q",
    "conv_2d_nhwc_fhwc",
    "conv_2d_nhwc_fhwc_q",
    "conv_2d_nhwc_hwcf",
    "conv_2d_nhwc_hwcf_q",
    "conv_2d_nhwgc_gfhwc",
    "conv_2d_nhwgc_gfhwc_q",
    "conv_3d_ncdhw_fcdhw",
    "conv_3d_ndhwc_dhwcf",
    "conv_3d_ndhwc_dhwcf_q",
    "depthwise_conv_1d_ncw_cw",
    "depthwise_conv_1d_nwc_wc",
    "depthwise_conv_1d_nwc_wcm",
    "depthwise_conv_2d_nchw_chw",
    "depthwise_conv_2d_nhwc_hwc",
    "depthwise_conv_2d_nhwc_hwc_q",
    "depthwise_conv_2d_nhwc_hwcm",
    "depthwise_conv_2d_nhwc_hwcm_q",
    "depthwise_conv_3d_ncdhw_cdhw",
    "depthwise_conv_3d_ndhwc_dhwc",
    "depthwise_conv_3d_ndhwc_dhwcm",
]


def _layouts(name: str) -> tuple[str, str]:
    image, kernel = name.removesuffix("_q").split("_")[-2:]
    return image, kernel


CONVOLUTIONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        **{name: _layouts(name) for name in _CONVOLUTIONS},
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
