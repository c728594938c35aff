"""The cases whose traffic is counted: of every family one that fits in any L2, one about as large, and one far larger.

The largest move hundreds of megabytes, so that what stays in L2 at the end (up to 126 MB on today's GPUs) matters little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...features.kernel import KernelSpec

Sizes = Mapping[str, int]


def _square(*sizes: int) -> tuple[Sizes, ...]:
    return tuple({"m": size, "n": size, "k": size} for size in sizes)


def _rows(*shapes: tuple[int, int]) -> tuple[Sizes, ...]:
    return tuple({"rows": rows, "cols": cols} for rows, cols in shapes)


def _attention(*shapes: tuple[int, int]) -> tuple[Sizes, ...]:
    """Llama 3 8B's heads over `batch` sequences of `length`."""
    return tuple({"batch": batch, "heads": 32, "kv_heads": 8, "q_len": length, "kv_len": length, "head_dim": 128}
                 for batch, length in shapes)  # fmt: skip


def _conv2d(*shapes: tuple[int, int, int]) -> tuple[Sizes, ...]:
    """3 x 3 convolutions of `channels` at `side` over `batch` images."""
    return tuple({"batch": batch, "in_channels": channels, "out_channels": channels, "height": side, "width": side,
                  "kernel": 3, "padding": 1} for batch, channels, side in shapes)  # fmt: skip


def _moe(*tokens: int) -> tuple[Sizes, ...]:
    return tuple({"tokens": count, "hidden": 2048, "inter": 1024, "topk": 4, "experts": 16} for count in tokens)


_CASES: Mapping[str, tuple[str, tuple[Sizes, ...]]] = {
    "attention": ("prefill", _attention((1, 512), (4, 2048), (16, 4096))),
    "conv2d": ("", _conv2d((1, 64, 56), (32, 64, 56), (128, 128, 56))),
    # A plain copy is no kernel but the driver's own.
    "copy": ("transpose", _rows((512, 4096), (8192, 4096), (65536, 4096))),
    "elementwise": ("gelu", _rows((512, 4096), (8192, 4096), (65536, 4096))),
    "gemm": ("", _square(1024, 4096, 8192)),
    "layernorm": ("layernorm", _rows((512, 4096), (8192, 4096), (65536, 4096))),
    "moe": ("balanced", _moe(16, 512, 4096)),
    "reduction": ("sum", _rows((512, 4096), (8192, 4096), (65536, 4096))),
    "softmax": ("", _rows((512, 4096), (8192, 4096), (65536, 4096))),
}
"""Variant and sizes of each family's cases."""


def counted_cases(families: Sequence[str] = (), per_family: int = 3, dtype: str = "bf16") -> list[KernelSpec]:
    """The cases of these families, all by default: up to `per_family` of each, the largest first.

    Raises:
        SpecError: unknown dtype.
    """
    return [
        KernelSpec.of(name, dtype, variant=variant, impl="torch", cache_state="cold", **sizes)  # type: ignore[arg-type]
        for name, (variant, shapes) in _CASES.items()
        if not families or name in families
        for sizes in shapes[::-1][:per_family]
    ]
