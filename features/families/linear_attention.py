"""Linear attention with a state of fixed size per head: the gated delta rule, Kimi delta attention (KDA) and Mamba-2's scan.

A prompt is scanned in chunks; a `…_step` reads and writes the state for each position, as decoding and the verification of
drafts do. The state has a number format of its own (`kv_dtype`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..kernel import Array, Dim, KernelFamily, KernelSpec, Size, View

CHUNK = {"gated_delta": 64, "kda": 64, "mamba2": 256}
"""Positions of a chunk: flash-linear-attention's `fla/ops/gated_delta_rule/chunk.py` and `fla/ops/kda/chunk.py`, and the
default of Mamba-2's `mamba_ssm/ops/triton/ssd_combined.py`."""

_STEP = "_step"


def _tokens(v: View) -> Size:
    return v["batch"] * v["q_len"]


def _rule(v: View) -> str:
    return v.variant.removesuffix(_STEP)


def _gates(v: View) -> Size:
    """Numbers that gate a position of a head: a decay and a strength; KDA decays every channel of the key for itself."""
    return 1 + v["key_dim"] if _rule(v) == "kda" else 2


def _state(v: View) -> Array:
    return Array((v["batch"], v["heads"], v["key_dim"], v["value_dim"]), v.kv_dtype)


def _inputs(v: View) -> tuple[Array, ...]:
    keys = Array((_tokens(v), v["key_heads"], v["key_dim"]), v.dtype)
    values = Array((_tokens(v), v["heads"], v["value_dim"]), v.dtype)
    return values, keys, keys, Array((_tokens(v), v["heads"], _gates(v)), v.dtype), _state(v)


def _outputs(v: View) -> tuple[Array, ...]:
    return Array((_tokens(v), v["heads"], v["value_dim"]), v.dtype, "zeros"), _state(v)


def _traffic_b(v: View) -> Size:
    """A prompt starts without a state: only what it leaves is written, and a step reads it too."""
    total: Size = 0.0
    for operand in (*_inputs(v)[:-1], *_outputs(v), *((_state(v),) if v.variant.endswith(_STEP) else ())):
        total = total + operand.nbytes
    return total


def _step_flops(v: View) -> Size:
    """Per position and head: the decayed state, for delta rules what it answers for the key, its update, and the result."""
    products = 2 if _rule(v) == "mamba2" else 3
    return (2.0 * products + 1.0) * _tokens(v) * v["heads"] * v["key_dim"] * v["value_dim"]


def _flops(v: View) -> Size:
    """In chunks of L positions: scores of keys with each other and with queries, their product with values, and the state.

    Mamba-2: Dao and Gu, arXiv 2405.21060, section 6. Delta rules: Yang et al., arXiv 2412.06464, section 3.3, where the inverse
    of a triangle is applied to keys and to values besides.
    """
    if v.variant.endswith(_STEP):
        return _step_flops(v)
    size = np.minimum(CHUNK[_rule(v)], v["q_len"])
    key, value = v["key_dim"], v["value_dim"]
    if _rule(v) == "mamba2":
        of_group = v["key_heads"] * size * key
        return 2.0 * _tokens(v) * (of_group + v["heads"] * (size * value + 2 * key * value))
    return 2.0 * _tokens(v) * v["heads"] * (3 * size * key + 2 * size * value + 3 * key * value)


def _tiles(v: View) -> tuple[Size, Size, Size, Size]:
    size = v["q_len"] if v.variant.endswith(_STEP) else np.minimum(CHUNK[_rule(v)], v["q_len"])
    return v["batch"] * v["heads"] * np.ceil(v["q_len"] / size), size * 1.0, v["value_dim"], v["key_dim"]


def _torch(
    torch: Any, spec: KernelSpec, values: Any, keys: Any, queries: Any, gates: Any, state: Any
) -> Callable[[], Any]:
    shape = (spec["batch"], spec["q_len"], spec["heads"], -1)
    share = spec["heads"] // spec["key_heads"]
    keys, queries = (torch.repeat_interleave(each, share, 1).view(shape) for each in (keys, queries))
    values, gates, delta = values.view(shape), torch.sigmoid(gates.view(shape)), not spec.variant.startswith("mamba2")

    def run() -> Any:
        memory, results = state, []
        for at in range(spec["q_len"]):
            key, value = keys[:, at], values[:, at]
            memory = memory * gates[:, at, :, 1:, None]
            if delta:
                value = value - torch.einsum("bhkv,bhk->bhv", memory, key)
            memory = memory + torch.einsum("bhk,bhv->bhkv", key * gates[:, at, :, :1], value)
            results.append(torch.einsum("bhkv,bhk->bhv", memory, queries[:, at]))
        return torch.stack(results, 1).reshape(values.shape[0] * spec["q_len"], spec["heads"], -1)

    return run


def _finish(sizes: dict[str, int]) -> dict[str, int]:
    return sizes | {"heads": max(1, sizes["heads"] // sizes["key_heads"]) * sizes["key_heads"]}


def _check(sizes: Any, _variant: str) -> str | None:
    if sizes["heads"] % sizes["key_heads"]:
        return f"heads must be a multiple of key_heads, got {sizes['heads']} and {sizes['key_heads']}"
    return None


FAMILY = KernelFamily(
    name="linear_attention",
    doc=__doc__,
    dims=(
        Dim("batch", "sequences"),
        Dim("q_len", "new positions per sequence"),
        Dim("heads", "heads of values, each with a state of [key_dim, value_dim]"),
        Dim("key_heads", "heads of queries and keys (Mamba-2: groups); heads is a multiple of it"),
        Dim("key_dim", "size of a key (Mamba-2: of the state)", default=128),
        Dim("value_dim", "size of a value (Mamba-2: of a head)", default=128),
    ),
    variants=tuple(f"{rule}{end}" for rule in CHUNK for end in ("", _STEP)),
    default_variant="gated_delta",
    inputs=_inputs,
    outputs=_outputs,
    flops=_flops,
    least_flops=lambda v: np.minimum(_flops(v), _step_flops(v)),
    traffic_b=_traffic_b,
    run={"torch": _torch},
    unit="matrix",
    tiles=_tiles,
    # The norms of queries and keys, sums of decays, scores, the inverse, its products, states and results of the chunks.
    launches=lambda v: 1 if v.variant.endswith(_STEP) else 8,
    ranges={
        "batch": (1, 16),
        "q_len": (1, 16),
        "heads": (1, 32),
        "key_heads": (1, 16),
        "key_dim": (8, 256),
        "value_dim": (8, 256),
    },
    # Qwen3-Next and Qwen3.5 (16 key heads, 32 value heads of 128), Kimi Linear (32 of 128), Nemotron-H (128 heads of 64 in 8
    # groups, state 128) by tensor parallelism of 8.
    model_shapes=[
        {"batch": batch, "q_len": q_len, "heads": heads, "key_heads": key_heads, "key_dim": 128, "value_dim": value}
        for heads, key_heads, value in ((32, 16, 128), (4, 2, 128), (4, 4, 128), (16, 1, 64))
        for batch, q_len in ((1, 1), (8, 1), (16, 1), (1, 8))
    ],
    finish=_finish,
    check=_check,
)
