"""The anchor cases: the same kernels every night, across families, short enough that a dozen of them take seconds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ...collectors.gpu.campaign import SENTINELS as GPU_SENTINELS
from ...collectors.sentinel import SENTINEL_CASES
from ...features.device import Device
from ...features.errors import SpecError, listed
from ...features.kernel import KernelSpec

_IMPL = "torch"

_WIDE = {"rows": 4096, "cols": 4096}
_ON_GPU: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("gemm", {"m": 2048, "n": 2048, "k": 2048}),
    ("gemm", {"m": 16, "n": 4096, "k": 4096}),
    ("conv2d", {"batch": 16, "in_channels": 128, "out_channels": 128, "height": 28, "width": 28, "kernel": 3, "padding": 1}),
    ("attention", {"batch": 1, "heads": 16, "kv_heads": 16, "q_len": 1024, "kv_len": 1024, "head_dim": 128}),
    ("attention", {"batch": 16, "heads": 32, "kv_heads": 8, "q_len": 1, "kv_len": 2048, "head_dim": 128}),
    ("moe", {"tokens": 256, "hidden": 1024, "inter": 512, "topk": 8, "experts": 32}),
    ("softmax", _WIDE), ("layernorm", _WIDE), ("reduction", _WIDE), ("copy", _WIDE),
    ("elementwise", {"variant": "gelu", **_WIDE}), ("elementwise", {"variant": "add", **_WIDE}),
)  # fmt: skip

_NARROW = {"rows": 512, "cols": 1024}
_ON_CPU: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("gemm", {"m": 256, "n": 256, "k": 256}),
    ("gemm", {"m": 1, "n": 1024, "k": 1024}),
    ("conv2d", {"batch": 1, "in_channels": 64, "out_channels": 64, "height": 28, "width": 28, "kernel": 3, "padding": 1}),
    ("attention", {"batch": 1, "heads": 8, "kv_heads": 8, "q_len": 128, "kv_len": 128, "head_dim": 64}),
    ("attention", {"batch": 1, "heads": 8, "kv_heads": 8, "q_len": 1, "kv_len": 1024, "head_dim": 64}),
    ("moe", {"tokens": 8, "hidden": 256, "inter": 256, "topk": 2, "experts": 8}),
    ("softmax", _NARROW), ("layernorm", _NARROW), ("reduction", _NARROW), ("copy", _NARROW),
    ("elementwise", {"variant": "gelu", **_NARROW}), ("elementwise", {"variant": "add", **_NARROW}),
)  # fmt: skip


def anchor_cases(device: Device, families: Collection[str] | None = None) -> list[KernelSpec]:
    """The kind of device's two sentinels and twelve cases over the families, or those of `families`; always the same.

    On a CPU on one thread in float32, on a GPU in bfloat16, or float16 where the datasheet gives no bfloat16 rate.

    Raises:
        SpecError: a family that has no anchor.
    """
    on_cpu = device.kind == "cpu"
    table = _ON_CPU if on_cpu else _ON_GPU
    known = sorted({family for family, _ in table})
    if families is not None and (unknown := sorted(set(families) - set(known))):
        raise SpecError(f"no anchor case of {unknown[0]!r}; families with one: {listed(known)}", field="family")
    half = "bf16" if "bf16" in device.matrix_flops_per_s else "fp16"
    dtype, threads = ("fp32", 1) if on_cpu else (half, None)
    anchors = [KernelSpec.of(family, dtype, impl=_IMPL, threads=threads, **given) for family, given in table]
    return [spec for spec in (*(SENTINEL_CASES if on_cpu else GPU_SENTINELS), *anchors)
            if families is None or spec.family in families]  # fmt: skip
