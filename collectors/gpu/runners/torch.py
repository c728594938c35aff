"""PyTorch on a GPU: the family's own call, or what a quantised format needs instead of it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from ....features.kernel import KernelSpec, get_family
from ...cpu.runner import UnsupportedCaseError
from ..measure.runner import GpuRunner, Launch, Tensor


def _launch(spec: KernelSpec, operands: tuple[Tensor, ...]) -> Launch:
    import torch

    from ..kernels.torch_quantised import special_launch

    family = get_family(spec.family)
    if "torch" not in family.run:
        raise UnsupportedCaseError(f"{family.name} has no torch kernel")
    if spec.kv_dtype is not None:
        raise UnsupportedCaseError(f"torch's attention takes keys in the dtype of the queries, not {spec.kv_dtype}")
    if spec.config:
        raise UnsupportedCaseError(f"torch picks its own tiles, it takes no configuration; got {dict(spec.config)}")
    call = special_launch(torch, spec, operands)
    return Launch(call if call is not None else family.run["torch"](torch, spec, *operands))


def _versions() -> Mapping[str, Any]:
    import torch

    cudnn: Any = torch.backends.cudnn
    return {"torch": version("torch"), "cuda": str(torch.version.cuda), "cudnn": str(cudnn.version())}


RUNNER = GpuRunner(name="torch", impls=("torch",), launch=_launch, versions=_versions)
