"""Mixture-of-experts block on one rank: each token through `topk` gated experts (gate, up and down products)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..kernel import Array, Dim, KernelFamily, KernelSpec, Size, View

_POWER_LAW = re.compile(r"power_law_(\d+(?:\.\d+)?)")
_PRODUCTS = 3
"""Of an expert: gate, up and down."""

MAX_EXPERTS = 16384
"""Most experts of a block. The largest models have some hundreds; each expert's share is computed, so the number is bounded."""


def _local(v: View | Mapping[str, int]) -> tuple[Size, Size, Size]:
    """Experts on this rank, the inner size of each, and routed token copies this rank gets on average."""
    return v["experts"] / v["ep"], v["inter"] / v["tp"], v["tokens"] * v["topk"] / v["ep"]


def touched_experts(v: View) -> Size:
    """Experts of this rank that at least one token copy reaches, as an expected count.

    Copies choose experts at random with the variant's shares: the sum over experts of 1 - (1 - share)^copies. Public
    timings of routers called balanced agree with equal shares, not with a round robin that misses no expert.
    """
    experts, _, copies = _local(v)
    pairs = np.stack(np.broadcast_arrays(*(np.atleast_1d(column) for column in (experts, copies))), axis=1)
    distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
    expected = np.array([_expected_distinct(v.variant, int(e), float(c)) for e, c in distinct])
    return np.clip(expected[inverse.reshape(-1)].reshape(np.shape(copies)), 1.0, experts)


def _expected_distinct(variant: str, experts: int, copies: float) -> float:
    return float(np.sum(-np.expm1(copies * np.log1p(-np.minimum(expert_shares(variant, experts), 1 - 1e-12)))))


def _weights(v: View, experts: Size) -> tuple[Array, ...]:
    inter = v["inter"] / v["tp"]
    return Array((experts, v["hidden"], 2 * inter), v.dtype), Array((experts, inter, v["hidden"]), v.dtype)


def activation_dtype(v: View) -> str:
    """Tokens come and go in bf16 when the weights are quantised."""
    return v.dtype if v.dtype in ("fp32", "fp16", "bf16") else "bf16"


def _tokens(v: View) -> Array:
    return Array((v["tokens"], v["hidden"]), activation_dtype(v))


def _flops(v: View) -> Size:
    _, inter, copies = _local(v)
    return 2.0 * _PRODUCTS * copies * v["hidden"] * inter


def _traffic_b(v: View) -> Size:
    gate_up, down = _weights(v, touched_experts(v))
    return gate_up.nbytes + down.nbytes + 2.0 * _tokens(v).nbytes


def _tiles(v: View) -> tuple[Size, Size, Size, Size]:
    _, inter, copies = _local(v)
    touched = touched_experts(v)
    return touched, copies / touched, 2 * inter, v["hidden"]


def expert_shares(variant: str, experts: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Share of tokens each expert gets, shape `(experts,)`: equal, or falling as rank^-exponent for `power_law_X`."""
    match = _POWER_LAW.fullmatch(variant)
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -(float(match.group(1)) if match else 0.0)
    shares: np.ndarray[Any, np.dtype[np.float64]] = weights / weights.sum()
    return shares


def _torch(torch: Any, spec: KernelSpec, tokens: Any, gate_up: Any, down: Any) -> Callable[[], Any]:
    experts, copies = gate_up.shape[0], max(1, spec["tokens"] * spec["topk"] // spec["ep"])
    counts = np.random.default_rng(0).multinomial(copies, expert_shares(spec.variant, experts))
    order = torch.randint(0, spec["tokens"], (copies,), generator=torch.Generator().manual_seed(0))
    chunks = [(e, part.to(tokens.device)) for e, part in enumerate(torch.split(order, counts.tolist())) if len(part)]

    def run() -> Any:
        result = torch.zeros_like(tokens)
        for expert, rows in chunks:
            gate, up = (tokens[rows] @ gate_up[expert]).chunk(2, dim=-1)
            result.index_add_(0, rows, (torch.nn.functional.silu(gate) * up) @ down[expert])
        return result

    return run


def _finish(sizes: dict[str, int]) -> dict[str, int]:
    return sizes | {"topk": min(sizes["topk"], sizes["experts"]), "tp": 1, "ep": 1}


def _check(sizes: Mapping[str, int], _variant: str) -> str | None:
    if sizes["experts"] > MAX_EXPERTS:
        return f"experts must be at most {MAX_EXPERTS}, got {sizes['experts']}"
    if sizes["topk"] > sizes["experts"]:
        return f"topk must be at most experts, got {sizes['topk']} and {sizes['experts']}"
    if sizes["experts"] % sizes["ep"]:
        return f"experts must be a multiple of ep, got {sizes['experts']} and {sizes['ep']}"
    if sizes["inter"] < sizes["tp"]:
        return f"inter must be at least tp, got {sizes['inter']} and {sizes['tp']}"
    return None


FAMILY = KernelFamily(
    name="moe",
    doc=__doc__,
    dims=(
        Dim("tokens", "tokens before routing"),
        Dim("hidden", "model width"),
        Dim("inter", "inner width of one expert before splitting"),
        Dim("topk", "experts each token goes to"),
        Dim("experts", "experts over all ranks"),
        Dim("tp", "ranks that split each expert", default=1),
        Dim("ep", "ranks that share out the experts", default=1),
    ),
    variants=("balanced", "power_law_1.01", "power_law_1.2"),
    default_variant="balanced",
    inputs=lambda v: (_tokens(v), *_weights(v, v["experts"] / v["ep"])),
    outputs=lambda v: (Array((v["tokens"], v["hidden"]), activation_dtype(v), "zeros"),),
    flops=_flops,
    traffic_b=_traffic_b,
    run={"torch": _torch},
    unit="matrix",
    tiles=_tiles,
    ranges={"tokens": (1, 1024), "hidden": (64, 1024), "inter": (32, 1024), "topk": (1, 8), "experts": (2, 64)},
    # Granite 3 MoE 1B, OLMoE 1B, DeepSeek-V2-Lite and Qwen1.5-MoE layers, narrowed where a whole layer would not fit.
    model_shapes=[
        {"tokens": tokens, "hidden": hidden, "inter": inter, "topk": topk, "experts": experts, "tp": 1, "ep": 1}
        for hidden, inter, topk, experts in (
            (1024, 512, 8, 32),
            (512, 1024, 8, 64),
            (512, 352, 6, 64),
            (768, 352, 4, 60),
        )
        for tokens in (1, 7, 64, 200)
    ],
    looks_at_sizes=True,
    finish=_finish,
    check=_check,
)
