"""PyTorch on the CPU: seeded operands, then the family's own call, inside inference mode."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from ....features.kernel import Array, KernelSpec, View, get_family
from ....version import required_versions
from ...runner import Prepared, Runner, UnsupportedCaseError

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
_INDEX = "int64"
"""Of operands that say which rows are meant; a family draws their values."""

_inference: list[Any] = []
"""The inference mode entered by `use_threads`, kept alive for the life of the process."""


def _prepare(spec: KernelSpec) -> Prepared:
    import torch

    family = get_family(spec.family)
    if "torch" not in family.run:
        raise UnsupportedCaseError(f"{family.name} has no torch kernel")
    if spec.config:
        raise UnsupportedCaseError(f"torch picks its own tiles, it takes no configuration; got {dict(spec.config)}")
    generator = torch.Generator().manual_seed(int(spec.case_id, 16) % 2**63)
    operands = [_filled(torch, operand, generator) for operand in family.inputs(View.of(spec))]
    began = time.perf_counter()
    call = family.run["torch"](torch, spec, *operands)
    return Prepared(call, time.perf_counter() - began)


def _filled(torch: Any, operand: Array, generator: Any) -> Any:
    if operand.dtype == _INDEX:
        return torch.zeros([int(size) for size in operand.shape], dtype=torch.int64)
    if operand.dtype not in DTYPES:
        raise UnsupportedCaseError(f"torch on a CPU is measured in {', '.join(DTYPES)}, not {operand.dtype}")
    # Sizes split over ranks come as floats.
    values = torch.empty([int(size) for size in operand.shape], dtype=torch.float32)
    if operand.fill == "zeros":
        values.zero_()
    else:
        values.normal_(generator=generator)
    if operand.fill == "positive":
        values.abs_().add_(0.5)
    return values.to(getattr(torch, DTYPES[operand.dtype]))


def _use_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    if not _inference:
        # Entered once for good: entering it around every call would add a microsecond to kernels that take two.
        _inference.append(torch.inference_mode())
        _inference[0].__enter__()


RUNNER = Runner(name="torch", prepare=_prepare, use_threads=_use_threads, versions=partial(required_versions, "torch"))
