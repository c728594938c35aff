"""Latent attention of one layer as a whole: projections into and out of the latents, the cache, attention and the output.

Keys and values of all heads come from one latent vector per position, which is cached (DeepSeek-V2, arXiv 2405.04434, section
2.1). A prompt (variant `prefill`) expands the latents into keys and values of every head; `decode` absorbs that product into
queries and results and attends to the latents themselves. The dtype is that of the weights; the cache has one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..kernel import Array, Dim, KernelFamily, KernelSpec, Size, View
from .moe import activation_dtype


def _tokens(v: View) -> Size:
    return v["batch"] * v["q_len"]


def _key_dim(v: View) -> Size:
    return v["nope_dim"] + v["rope_dim"]


def _cached(v: View) -> Size:
    """Elements per position in the cache: the latent, and the part of the key with rotary position."""
    return v["kv_rank"] + v["rope_dim"]


def _weights(v: View) -> tuple[tuple[Size, Size], ...]:
    """Rows and columns: into the latents, of queries out of theirs, of keys and values out of theirs, of the output.

    Without a latent of queries they are projected from the residual stream, in the first matrix.
    """
    heads = v["heads"]
    first = np.where(np.greater(v["query_rank"], 0), v["query_rank"], heads * _key_dim(v))
    return (
        (v["hidden"], first + _cached(v)),
        (v["query_rank"], heads * _key_dim(v)),
        (v["kv_rank"], heads * (v["nope_dim"] + v["value_dim"])),
        (heads * v["value_dim"], v["hidden"]),
    )


def _inputs(v: View) -> tuple[Array, ...]:
    return (
        Array((_tokens(v), v["hidden"]), activation_dtype(v)),
        *(Array(shape, v.dtype) for shape in _weights(v)),
        Array((v["batch"], v["kv_len"], _cached(v)), v.kv_dtype),
    )


def _flops(v: View) -> Size:
    into, queries, expand, output = (2.0 * rows * columns for rows, columns in _weights(v))
    projected = _tokens(v) * (into + queries + output)
    if v.variant == "decode":
        # 2 · (kv_rank + rope_dim) for a score and 2 · kv_rank for its share of the result, of every head.
        pairs = v["batch"] * v["heads"] * (v["q_len"] * 1.0) * v["kv_len"]
        return projected + _tokens(v) * expand + 2.0 * pairs * (2 * v["kv_rank"] + v["rope_dim"])
    before = v["kv_len"] - v["q_len"]
    pairs = v["batch"] * v["heads"] * (v["q_len"] * 1.0 * before + v["q_len"] * (v["q_len"] + 1.0) / 2.0)
    return projected + v["batch"] * v["kv_len"] * expand + 2.0 * pairs * (_key_dim(v) + v["value_dim"])


def _tiles(v: View) -> tuple[Size, Size, Size, Size]:
    """The product of scores with values: of a head's queries, or of all heads' where they share the latents."""
    if v.variant == "decode":
        return v["batch"], v["heads"] * v["q_len"], v["kv_rank"], v["kv_len"]
    return v["batch"] * v["heads"], v["q_len"], v["value_dim"], v["kv_len"]


def _torch(
    torch: Any, spec: KernelSpec, x: Any, into: Any, queries: Any, expand: Any, output: Any, cache: Any
) -> Callable[[], Any]:
    batch, heads, nope, rank = spec["batch"], spec["heads"], spec["nope_dim"], spec["kv_rank"]
    attend = torch.nn.functional.scaled_dot_product_attention
    keys_up, values_up = expand.view(rank, heads, -1).split([nope, spec["value_dim"]], -1)
    cache = cache.to(x.dtype)
    latents, rotary = cache[..., :rank], cache[:, None, :, rank:].expand(-1, heads, -1, -1)

    def project() -> Any:
        first = (x @ into)[:, : -cache.shape[-1]]
        return (first @ queries if spec["query_rank"] else first).view(batch, spec["q_len"], heads, -1).transpose(1, 2)

    def prefill() -> Any:
        keys = torch.cat([torch.einsum("blr,rhn->bhln", latents, keys_up), rotary], -1)
        values = torch.einsum("blr,rhn->bhln", latents, values_up)
        result = attend(project(), keys, values, is_causal=spec["q_len"] == spec["kv_len"])
        return result.transpose(1, 2).reshape(x.shape[0], -1) @ output

    def decode() -> Any:
        heads_of = project()
        absorbed = torch.cat([torch.einsum("bhqn,rhn->bhqr", heads_of[..., :nope], keys_up), heads_of[..., nope:]], -1)
        shared = cache[:, None].expand(-1, heads, -1, -1)
        result = attend(absorbed, shared, shared[..., :rank])
        return torch.einsum("bhqr,rhn->bqhn", result, values_up).reshape(x.shape[0], -1) @ output

    return decode if spec.variant == "decode" else prefill


def _finish(sizes: dict[str, int]) -> dict[str, int]:
    q_len = 1 if sizes["q_len"] <= 2 else sizes["q_len"]
    return sizes | {"q_len": q_len, "kv_len": max(sizes["kv_len"], 1) if q_len == 1 else q_len}


def _check(sizes: Mapping[str, int], _variant: str) -> str | None:
    if sizes["q_len"] > sizes["kv_len"]:
        return f"kv_len must be at least q_len, got {sizes['kv_len']} and {sizes['q_len']}"
    return None


FAMILY = KernelFamily(
    name="latent_attention",
    doc=__doc__,
    dims=(
        Dim("batch", "sequences"),
        Dim("heads", "query heads of the rank"),
        Dim("q_len", "new positions per sequence (1 when decoding)"),
        Dim("kv_len", "positions per sequence, the new ones included"),
        # Defaults are DeepSeek-V3's (arXiv 2412.19437, section 4.2).
        Dim("hidden", "model width", default=7168),
        Dim("query_rank", "size of the queries' latent, 0 for none", default=1536, minimum=0),
        Dim("kv_rank", "size of the latent of keys and values", default=512),
        Dim("nope_dim", "part of a head's key without position", default=128),
        Dim("rope_dim", "part of a key with rotary position", default=64),
        Dim("value_dim", "size of a head's value", default=128),
    ),
    variants=("prefill", "decode"),
    inputs=_inputs,
    outputs=lambda v: (Array((_tokens(v), v["hidden"]), activation_dtype(v), "zeros"),),
    flops=_flops,
    run={"torch": _torch},
    unit="matrix",
    tiles=_tiles,
    # Five products or four and two of absorbed queries and results, three norms and positions, the cache, attention in parts.
    launches=lambda v: 14,
    variant_of=lambda sizes: "decode" if sizes.get("q_len") == 1 else "prefill",
    implied=("prefill", "decode"),
    ranges={
        "batch": (1, 16),
        "heads": (1, 16),
        "q_len": (1, 256),
        "kv_len": (1, 4096),
        "hidden": (256, 2048),
        "query_rank": (32, 768),
        "kv_rank": (32, 512),
        "nope_dim": (8, 128),
        "rope_dim": (4, 64),
        "value_dim": (8, 128),
    },
    # DeepSeek-V2-Lite (no latent of queries, 16 heads), and shares of DeepSeek-V3's 128 heads.
    model_shapes=[
        {
            "batch": batch,
            "heads": heads,
            "q_len": q_len,
            "kv_len": kv_len,
            "hidden": hidden,
            "query_rank": rank,
            "kv_rank": 512,
            "nope_dim": 128,
            "rope_dim": 64,
            "value_dim": 128,
        }
        for hidden, rank, heads in ((2048, 0, 16), (7168, 1536, 16), (7168, 1536, 4))
        for batch, q_len, kv_len in ((1, 1, 300), (8, 1, 1024), (1, 1, 4096), (1, 128, 128), (2, 197, 197))
    ],
    finish=_finish,
    check=_check,
)
