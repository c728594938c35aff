"""Scaled dot-product attention with grouped query heads and an optional sliding window, causal or (variant `full`) not.

Encoders and cross-attention are `full`: every query sees every key, which may be of another sequence and fewer or more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..kernel import Array, Dim, KernelFamily, KernelSpec, Size, View

# (heads, kv_heads, head_dim) of GPT-2, BERT-base, Llama 3 8B, Qwen 2.5 0.5B and 7B, Mistral 7B, Gemma 2 2B.
_HEADS = ((12, 12, 64), (16, 16, 64), (32, 8, 128), (14, 2, 64), (28, 4, 128), (8, 4, 256))


def scored_pairs(v: View) -> Size:
    """Query-key pairs per head that the mask lets through.

    Queries are the last `q_len` of `kv_len` positions, so query i (1-based) sees `kv_len - q_len + i` keys, at most
    `window` of them when there is a window: the sum over i in closed form. Without a causal mask each sees all keys of the
    window around it.
    """
    queries, before = v["q_len"], v["kv_len"] - v["q_len"]
    window = np.where(np.equal(v["window"], 0), v["kv_len"], v["window"])
    if v.variant == "full":
        return queries * 1.0 * np.minimum(window, v["kv_len"])
    growing = np.clip(window - before, 0, queries)
    return growing * 1.0 * before + growing * (growing + 1.0) / 2.0 + (queries - growing) * 1.0 * window


def touched_kv_len(v: View) -> Size:
    """Key positions that at least one query sees."""
    if v.variant == "full":
        return v["kv_len"]
    window = np.where(np.equal(v["window"], 0), v["kv_len"], v["window"])
    return np.minimum(v["kv_len"], window + v["q_len"] - 1)


def _operands(v: View, kv_len: Size) -> tuple[Array, ...]:
    q = Array((v["batch"], v["heads"], v["q_len"], v["head_dim"]), v.dtype)
    kv = Array((v["batch"], v["kv_heads"], kv_len, v["head_dim"]), v.kv_dtype)
    return q, kv, kv


def _outputs(v: View) -> tuple[Array, ...]:
    dtype = "bf16" if v.dtype in ("fp8", "fp8_block", "nvfp4", "int8") else v.dtype
    return (Array((v["batch"], v["heads"], v["q_len"], v["head_dim"]), dtype, "zeros"),)


def _traffic_b(v: View) -> Size:
    total: Size = 0.0
    for operand in (*_operands(v, touched_kv_len(v)), *_outputs(v)):
        total = total + operand.nbytes
    return total


def _blocked(v: View) -> tuple[Size, Size, Size, Size]:
    """Query heads that share keys share a block: its rows are the queries of all of them."""
    group = v["heads"] / v["kv_heads"]
    return v["batch"] * v["kv_heads"], v["q_len"] * group, touched_kv_len(v), v["head_dim"]


def _tiles(v: View) -> tuple[Size, Size, Size, Size]:
    """The second product, whose tiles are the blocks of a fused kernel: its inner dimension are the keys."""
    batch, queries, keys, head_dim = _blocked(v)
    return batch, queries, head_dim, keys


def _torch(torch: Any, spec: KernelSpec, q: Any, k: Any, v: Any) -> Callable[[], Any]:
    attend = torch.nn.functional.scaled_dot_product_attention
    grouped = spec["heads"] != spec["kv_heads"]
    if spec.variant == "full":
        return lambda: attend(q, k, v, attn_mask=_around(torch, spec, q.device), enable_gqa=grouped)
    causal, mask = spec["q_len"] > 1, None
    if causal and (spec["window"] or spec["q_len"] != spec["kv_len"]):
        # Made where it is used, as booleans alone: the distances of a long prompt would fill gigabytes.
        keys = torch.arange(spec["kv_len"], device=q.device)
        last = keys[spec["kv_len"] - spec["q_len"] :, None]
        mask = (keys <= last) & (keys > last - (spec["window"] or spec["kv_len"]))
    elif not causal and spec["window"]:
        k, v = k[:, :, -spec["window"] :], v[:, :, -spec["window"] :]
    return lambda: attend(q, k, v, attn_mask=mask, is_causal=causal and mask is None, enable_gqa=grouped)


def _around(torch: Any, spec: KernelSpec, device: Any) -> Any:
    """The mask of a window around each query, as booleans; None where there is no window."""
    if not spec["window"]:
        return None
    keys = torch.arange(spec["kv_len"], device=device)
    first = torch.arange(spec["q_len"], device=device)[:, None] - spec["window"] // 2
    return (keys >= first) & (keys < first + spec["window"])


def _finish(sizes: dict[str, int]) -> dict[str, int]:
    heads = max(sizes["kv_heads"], sizes["heads"] // sizes["kv_heads"] * sizes["kv_heads"])
    head_dim = min((32, 64, 80, 96, 128, 256), key=lambda size: abs(size - sizes["head_dim"]))
    sizes = sizes | {"heads": heads, "head_dim": head_dim}
    decode = sizes["q_len"] <= 2
    q_len = 1 if decode else sizes["q_len"]
    kv_len = max(sizes["kv_len"], q_len) if decode else q_len
    # One case in four has a window, and only one that hides something.
    window = kv_len // 3 if (sizes["batch"] + heads + kv_len) % 4 == 0 else 0
    return sizes | {"q_len": q_len, "kv_len": kv_len, "window": window}


def _check(sizes: Mapping[str, int], variant: str) -> str | None:
    if sizes["heads"] % sizes["kv_heads"]:
        return f"heads must be a multiple of kv_heads, got {sizes['heads']} and {sizes['kv_heads']}"
    if sizes["q_len"] > sizes["kv_len"] and variant != "full":
        return f"kv_len must be at least q_len, got {sizes['kv_len']} and {sizes['q_len']}"
    return None


FAMILY = KernelFamily(
    name="attention",
    doc=__doc__,
    dims=(
        Dim("batch", "sequences"),
        Dim("heads", "query heads"),
        Dim("kv_heads", "key and value heads; heads is a multiple of it"),
        Dim("q_len", "query positions per sequence (1 when decoding)"),
        Dim("kv_len", "key positions per sequence"),
        Dim("head_dim", "size of one head"),
        Dim("window", "sliding window in positions, 0 for none", default=0, minimum=0),
    ),
    variants=("prefill", "decode", "full"),
    config=("tile_m", "tile_n", "warps", "stages"),
    inputs=lambda v: _operands(v, v["kv_len"]),
    outputs=_outputs,
    flops=lambda v: 4.0 * v["batch"] * v["heads"] * v["head_dim"] * scored_pairs(v),
    traffic_b=_traffic_b,
    run={"torch": _torch},
    unit="matrix",
    tiles=_tiles,
    blocked=_blocked,
    mlir_ops=("iree_linalg_ext.attention", "torch.aten.scaled_dot_product_attention"),
    ranges={
        "batch": (1, 16),
        "heads": (1, 32),
        "kv_heads": (1, 16),
        "q_len": (1, 1536),
        "kv_len": (16, 8192),
        "head_dim": (32, 256),
    },
    model_shapes=[
        {"batch": batch, "heads": heads, "kv_heads": kv, "q_len": q, "kv_len": kv_len, "head_dim": dim, "window": 0}
        for heads, kv, dim in _HEADS
        for batch, q, kv_len in (
            (1, 1, 300),
            (1, 1, 2048),
            (4, 1, 777),
            (8, 1, 1024),
            (1, 128, 128),
            (1, 384, 384),
            (2, 197, 197),
        )
    ],
    variant_of=lambda sizes: "decode" if sizes.get("q_len") == 1 else "prefill",
    implied=("prefill", "decode"),
    finish=_finish,
    check=_check,
)
