"""Tiled matrix products and attention in Triton, with every tuning knob given by the case."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from ....features.families.gemm import output_dtype
from ....features.kernel import KernelSpec, View, get_family
from ...cpu.runner import UnsupportedCaseError
from ..kernels.triton_launches import ALIGNMENT, bound, compiled, triton_binaries, triton_steps
from ..measure.bench import TOLERANCE, expected_attention, expected_product
from ..measure.runner import GpuRunner, Launch, Tensor

_SPILL_B = 4
"""ptxas counts spilled registers, of four bytes."""

_PTXAS_SAYS = re.compile(r"ptxas fatal\s*: (.*)")

_NAMES = {"gemm": ("a", "b"), "attention": ("q", "k", "v")}
_EXPECTED: Mapping[str, Callable[..., Callable[[], Tensor] | None]] = {
    "gemm": expected_product,
    "attention": expected_attention,
}


def _launch(spec: KernelSpec, operands: tuple[Tensor, ...]) -> Launch:
    import torch
    from triton.runtime.errors import OutOfResources, PTXASError

    steps = triton_steps(spec)
    tensors = dict(zip(_NAMES[spec.family], operands, strict=True)) | outputs(spec, operands[0].device)
    if any(tensor.data_ptr() % ALIGNMENT for tensor in tensors.values()):
        raise UnsupportedCaseError(f"the Triton kernels need operands aligned to {ALIGNMENT} bytes")
    major, minor = torch.cuda.get_device_capability(operands[0].device)
    try:
        kernels = {binary: compiled(binary, 10 * major + minor) for binary in triton_binaries(spec)}
        calls = bound(steps, tensors, kernels.__getitem__)
    except OutOfResources as error:
        raise UnsupportedCaseError(f"this configuration does not fit the device: {error}") from None
    except PTXASError as error:
        output = _PTXAS_SAYS.search(str(error))
        reason = "it gives no reason" if output is None else output.group(1)
        raise UnsupportedCaseError(f"ptxas cannot compile this configuration: {reason}") from None
    main, out = kernels[steps.steps[0].binary], tensors["out"]

    def call() -> Tensor:
        for enqueue in calls:
            enqueue()
        return out

    return Launch(
        call=call,
        expected=_EXPECTED[spec.family](spec, *operands),
        tolerance=TOLERANCE[spec.dtype],
        resources={"registers": main.n_regs, "spill_b": _SPILL_B * main.n_spills, "shared_b": main.metadata.shared},
    )


def outputs(spec: KernelSpec, device: Any) -> dict[str, Tensor]:
    """Tensors the kernels write, by the names their steps use: the result and, for a split product, the partial ones."""
    import torch

    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int32": torch.int32}
    view = View.of(spec)
    (array,) = get_family(spec.family).outputs(view)
    shape = array.shape[1:] if spec.family == "gemm" else array.shape
    written = {"out": torch.empty(shape, dtype=dtypes[array.dtype], device=device)}
    if (partials := triton_steps(spec).partials) is not None:
        kind = torch.int32 if output_dtype(view) == "int32" else torch.float32
        written["partials"] = torch.empty(partials, dtype=kind, device=device)
    return written


def _compile(spec: KernelSpec, capability: int) -> None:
    for binary in triton_binaries(spec):
        compiled(binary, capability)


def _versions() -> Mapping[str, str]:
    return {"triton": version("triton")}


RUNNER = GpuRunner(name="triton", impls=("triton",), launch=_launch, versions=_versions, compile=_compile)
