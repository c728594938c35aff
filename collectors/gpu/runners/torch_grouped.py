"""Mixture-of-experts blocks by PyTorch's grouped product: all experts in one kernel, as serving engines run them.

    tokens ─ gather by expert ─ grouped product ─ silu(gate) · up ─ grouped product ─ add back to each token

Routing is drawn once, from a seed, and lies on the device before the first call; nothing is read back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

from ....features.families.moe import expert_shares
from ....features.kernel import KernelSpec, get_family
from ...cpu.runner import UnsupportedCaseError
from ..measure.runner import GpuRunner, Launch, Tensor

_ALIGNED = 8
"""Elements of bf16 in 16 bytes: strides of grouped operands are multiples of it (torch's own check)."""

_TOLERANCE = 2e-2
"""Relative error in the Frobenius norm against one product per expert: both round to bf16 twice and add up in bf16."""


def _launch(spec: KernelSpec, operands: tuple[Tensor, ...]) -> Launch:
    import torch

    if spec.family != "moe":
        raise UnsupportedCaseError(f"torch-grouped runs moe, not {spec.family}")
    if spec.dtype != "bf16":
        raise UnsupportedCaseError(f"torch's grouped product takes bf16, not {spec.dtype}")
    if spec.config:
        raise UnsupportedCaseError(f"torch picks its own tiles, it takes no configuration; got {dict(spec.config)}")
    tokens, gate_up, down = operands
    for name, size in (("hidden", tokens.shape[1]), ("inter over tp", down.shape[1])):
        if size % _ALIGNED:
            raise UnsupportedCaseError(f"torch's grouped product wants {name} in multiples of {_ALIGNED}, got {size}")
    product = grouped_product(torch)
    rows, ends = (part.to(tokens.device) for part in routing(torch, spec, gate_up.shape[0]))
    silu = torch.nn.functional.silu

    def call() -> Tensor:
        gate, up = product(tokens.index_select(0, rows), gate_up, offs=ends).chunk(2, dim=-1)
        return torch.zeros_like(tokens).index_add_(0, rows, product(silu(gate) * up, down, offs=ends))

    return Launch(call, expected=get_family("moe").run["torch"](torch, spec, *operands), tolerance=_TOLERANCE)


def grouped_product(torch: Any) -> Callable[..., Tensor]:
    """PyTorch's grouped product: the public function since 2.10, the private one before.

    Raises:
        UnsupportedCaseError: this torch has neither.
    """
    results = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if results is None:
        raise UnsupportedCaseError(f"torch {torch.__version__} has no grouped product; install torch 2.8 or newer")
    result: Callable[..., Tensor] = results
    return result


def routing(torch: Any, spec: KernelSpec, experts: int) -> tuple[Tensor, Tensor]:
    """Which token each copy is of, copies sorted by expert, and where each expert's copies end (int32), on the CPU.

    The same as the family's own: shares by `expert_shares`, counts and tokens drawn from seed 0.
    """
    copies = max(1, spec["tokens"] * spec["topk"] // spec["ep"])
    counts = np.random.default_rng(0).multinomial(copies, expert_shares(spec.variant, experts))
    rows = torch.randint(0, spec["tokens"], (copies,), generator=torch.Generator().manual_seed(0))
    return rows, torch.tensor(np.cumsum(counts), dtype=torch.int32)


def _versions() -> Mapping[str, str]:
    import torch

    return {"torch": version("torch"), "cuda": str(torch.version.cuda)}


RUNNER = GpuRunner(name="torch_grouped", impls=("torch-grouped",), launch=_launch, versions=_versions)
