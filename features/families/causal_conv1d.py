"""Short causal convolution of each channel over the last positions, before linear attention; `step` takes one after another.

A step reads and writes the last `width - 1` positions of each sequence, a prompt only writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..kernel import Array, Dim, KernelFamily, KernelSpec, Size, View


def _rows(v: View) -> Array:
    return Array((v["batch"] * v["q_len"], v["channels"]), v.dtype)


def _state(v: View) -> Array:
    return Array((v["batch"], v["width"] - 1, v["channels"]), v.dtype)


def _traffic_b(v: View) -> Size:
    weights = Array((v["width"], v["channels"]), v.dtype)
    return 2.0 * _rows(v).nbytes + weights.nbytes + (2.0 if v.variant == "step" else 1.0) * _state(v).nbytes


def _torch(torch: Any, spec: KernelSpec, x: Any, weight: Any, state: Any) -> Callable[[], Any]:
    batch, channels = spec["batch"], spec["channels"]
    kernel = weight.t()[:, None]

    def run() -> Any:
        rows = torch.cat([state, x.view(batch, -1, channels)], 1).transpose(1, 2)
        result = torch.nn.functional.silu(torch.nn.functional.conv1d(rows, kernel, groups=channels))
        return result.transpose(1, 2).reshape(x.shape)

    return run


FAMILY = KernelFamily(
    name="causal_conv1d",
    doc=__doc__,
    dims=(
        Dim("batch", "sequences"),
        Dim("q_len", "new positions per sequence"),
        Dim("channels", "channels"),
        Dim("width", "positions that a result sees", default=4, minimum=2),
    ),
    variants=("", "step"),
    inputs=lambda v: (_rows(v), Array((v["width"], v["channels"]), v.dtype), _state(v)),
    outputs=lambda v: (_rows(v), _state(v)),
    # A multiplication and an addition per position seen, and the SiLU that follows.
    flops=lambda v: (2.0 * v["width"] + 4.0) * v["batch"] * v["q_len"] * v["channels"],
    traffic_b=_traffic_b,
    run={"torch": _torch},
    launches=lambda v: 1,
    ranges={"batch": (1, 64), "q_len": (1, 1024), "channels": (32, 8192), "width": (2, 4)},
    # Qwen3-Next (8192 channels, and a share of 8 ranks), Mamba-2 2.7B (5376), Kimi Linear (12288).
    model_shapes=[
        {"batch": batch, "q_len": q_len, "channels": channels, "width": 4}
        for channels in (1024, 5376, 8192, 12288)
        for batch, q_len in ((1, 1), (16, 1), (1, 128), (2, 512))
    ],
)
