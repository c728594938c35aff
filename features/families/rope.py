"""Rotary positions: heads of [tokens, heads, head_dim] turned by the angles of their position, half against half.

Su et al., arXiv 2104.09864; the halves are those of GPT-NeoX and Llama, `x · cos + (-x₂, x₁) · sin`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..kernel import Array, Dim, KernelFamily, KernelSpec, View


def _heads(v: View) -> Array:
    return Array((v["tokens"], v["heads"], v["head_dim"]), v.dtype)


def _angles(v: View) -> Array:
    return Array((v["tokens"], v["head_dim"]), v.dtype)


def _torch(torch: Any, spec: KernelSpec, x: Any, cosine: Any, sine: Any) -> Callable[[], Any]:
    half = spec["head_dim"] // 2
    cosine, sine = cosine[:, None], sine[:, None]
    return lambda: x * cosine + torch.cat((-x[..., half:], x[..., :half]), -1) * sine


FAMILY = KernelFamily(
    name="rope",
    doc=__doc__,
    dims=(
        Dim("tokens", "positions of all sequences"),
        Dim("heads", "heads of queries and keys together"),
        Dim("head_dim", "size of one head; an even number"),
    ),
    inputs=lambda v: (_heads(v), _angles(v), _angles(v)),
    outputs=lambda v: (_heads(v),),
    flops=lambda v: 3.0 * v["tokens"] * v["heads"] * v["head_dim"],
    run={"torch": _torch},
    launches=lambda v: 1,
    ranges={"tokens": (1, 4096), "heads": (1, 64), "head_dim": (32, 256)},
    # Qwen 2.5 0.5B, Llama 3 8B, Gemma 2 2B.
    model_shapes=[
        {"tokens": tokens, "heads": heads, "head_dim": size}
        for heads, size in ((16, 64), (40, 128), (12, 256))
        for tokens in (1, 16, 197, 1024)
    ],
    finish=lambda sizes: sizes | {"head_dim": sizes["head_dim"] // 2 * 2},
    check=lambda sizes, _: f"head_dim must be even, got {sizes['head_dim']}" if sizes["head_dim"] % 2 else None,
)
