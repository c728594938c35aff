"""PyTorch's attention with its backend chosen: flash, memory-efficient, cuDNN, or plain products and softmax."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from ....features.kernel import KernelSpec, get_family
from ...cpu.runner import UnsupportedCaseError
from ..measure.runner import GpuRunner, Launch, Tensor
from ..plan.strata import masked

BACKENDS: Mapping[str, str] = MappingProxyType({
    "torch-flash": "FLASH_ATTENTION",
    "torch-efficient": "EFFICIENT_ATTENTION",
    "torch-cudnn": "CUDNN_ATTENTION",
    "torch-math": "MATH",
})  # fmt: skip
"""The name in `torch.nn.attention.SDPBackend` of each impl."""

_LOWER_RIGHT = ("torch-flash", "torch-efficient")
"""Backends with a kernel for causal masks whose queries are the last of the keys; the others take a mask as a tensor."""

_TOLERANCE = {"fp32": 1e-4, "fp16": 2e-3, "bf16": 1e-2}
"""Largest relative error in the Frobenius norm: about five times what rounding probabilities and result gives."""

_MAX_CHECKED_SCORES = 2**26
"""With a mask torch's own choice, which the result is compared with, may write all scores to memory: only this many."""


def _launch(spec: KernelSpec, operands: tuple[Tensor, ...]) -> Launch:
    import torch

    if spec.family != "attention":
        raise UnsupportedCaseError(f"{spec.impl} runs attention, not {spec.family}")
    if spec.config:
        raise UnsupportedCaseError(f"torch picks its own tiles, it takes no configuration; got {dict(spec.config)}")
    local: Callable[[], Tensor] = get_family("attention").run["torch"](torch, spec, *operands)
    lower_right = masked(spec) and not spec["window"] and spec.impl in _LOWER_RIGHT
    call = with_backend(torch, spec.impl, _lower_right(torch, spec, *operands) if lower_right else local)
    _try(torch, spec.impl, call)
    scores = float(spec["batch"] * spec["heads"]) * spec["q_len"] * spec["kv_len"]
    checked = spec.impl != "torch-math" and (not masked(spec) or scores <= _MAX_CHECKED_SCORES)
    return Launch(call, expected=local if checked else None, tolerance=_TOLERANCE.get(spec.dtype, 1e-2))


def with_backend(torch: Any, impl: str, own: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """`own` with only the backend of `impl` allowed; what is switched is the host's, so a CUDA graph captures it."""
    backend = getattr(torch.nn.attention.SDPBackend, BACKENDS[impl])
    only = torch.nn.attention.sdpa_kernel

    def call() -> Tensor:
        with only(backend):
            return own()

    return call


def _lower_right(torch: Any, spec: KernelSpec, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    from torch.nn.attention.bias import causal_lower_right

    attend, grouped = torch.nn.functional.scaled_dot_product_attention, spec["heads"] != spec["kv_heads"]
    bias = causal_lower_right(spec["q_len"], spec["kv_len"])
    return lambda: attend(q, k, v, attn_mask=bias, enable_gqa=grouped)


def _try(torch: Any, impl: str, call: Callable[[], Tensor]) -> None:
    """One call, thrown away.

    Raises:
        UnsupportedCaseError: the backend does not take the case, with torch's reasons.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # torch gives its reasons as warnings before it gives up.
            reasons = [str(warning.message).split(" (Triggered")[0] for warning in caught]
            why = "; ".join(dict.fromkeys(reasons)) or str(error).strip().split("\n")[0]
            raise UnsupportedCaseError(f"{impl} does not take this case: {why}") from None


def _versions() -> Mapping[str, str]:
    import torch

    cudnn: Any = torch.backends.cudnn
    return {"torch": version("torch"), "cuda": str(torch.version.cuda), "cudnn": str(cudnn.version())}


RUNNER = GpuRunner(name="torch_attention", impls=tuple(BACKENDS), launch=_launch, versions=_versions)
