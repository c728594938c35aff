"""CUTLASS products on tensor cores, with tile, warp tile, stages, swizzle and split along k given by the case."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ....features.kernel import KernelSpec
from ...cpu.runner import UnsupportedCaseError
from ..kernels.cutlass_build import build, cutlass_binary, cutlass_version
from ..measure.bench import TOLERANCE, expected_product
from ..measure.runner import GpuRunner, Launch, Tensor

_ACCESS_B = 16
"""Bytes of one vector access; rows start at multiples of it, or the kernels would be others."""

_SIZES = (ctypes.c_int,) * 5
_POINTER = ctypes.c_void_p


def _compile(spec: KernelSpec, capability: int) -> None:
    build(cutlass_binary(spec), capability)


@cache
def _library(path: Path) -> Any:
    library = ctypes.CDLL(str(path))
    library.workspace_b.argtypes, library.workspace_b.restype = _SIZES, ctypes.c_longlong
    library.can_run.argtypes = (_POINTER, _POINTER, _POINTER, *_SIZES)
    library.launch.argtypes = (_POINTER, _POINTER, _POINTER, *_SIZES, _POINTER, _POINTER)
    return library


def _launch(spec: KernelSpec, operands: tuple[Tensor, ...]) -> Launch:
    import torch

    binary = cutlass_binary(spec)
    a, b = operands[0][0], operands[1][0]
    for name, size in (("n", spec["n"]), ("k", spec["k"])):
        if size * a.element_size() % _ACCESS_B:
            raise UnsupportedCaseError(
                f"the CUTLASS kernels take {name} in multiples of {_ACCESS_B // a.element_size()}, got {size}"
            )
    # CUTLASS's own check of addresses counts in elements.
    if any(operand.data_ptr() % _ACCESS_B for operand in (a, b)):
        raise UnsupportedCaseError(f"the CUTLASS kernels need operands aligned to {_ACCESS_B} bytes")
    if binary.column_b:
        b = b.t().contiguous().t()
    major, minor = torch.cuda.get_device_capability(a.device)
    built = build(binary, 10 * major + minor)
    library = _library(built.path)
    out = torch.empty((spec["m"], spec["n"]), dtype=a.dtype, device=a.device)
    sizes = (spec["m"], spec["n"], spec["k"], spec["k"] if binary.column_b else spec["n"],
             dict(spec.config).get("split_k", 1))  # fmt: skip
    workspace = torch.empty(max(1, library.workspace_b(*sizes)), dtype=torch.uint8, device=a.device)
    if status := library.can_run(a.data_ptr(), b.data_ptr(), out.data_ptr(), *sizes):
        raise UnsupportedCaseError(f"CUTLASS cannot run this case: its status is {status}")

    def call() -> Tensor:
        stream = torch.cuda.current_stream(a.device).cuda_stream
        # Addresses are asked for here: the library keeps nothing alive, this call keeps its operands.
        where = (a.data_ptr(), b.data_ptr(), out.data_ptr())
        if status := library.launch(*where, *sizes, workspace.data_ptr(), stream):
            raise UnsupportedCaseError(
                f"CUTLASS could not launch this case, status {status}; "
                f"it needs {library.shared_b()} B of shared memory per block"
            )
        return out

    call()  # What does not fit the device shows now, and the kernel is loaded: a graph being captured could not.
    return Launch(
        call,
        expected=expected_product(spec, *operands),
        tolerance=TOLERANCE[spec.dtype],
        resources={"registers": built.registers, "spill_b": built.spill_b, "shared_b": library.shared_b()},
    )


def _versions() -> Mapping[str, str]:
    try:
        version = cutlass_version()
    except UnsupportedCaseError:
        version = "none"
    return {"cutlass": version}


RUNNER = GpuRunner(name="cutlass", impls=("cutlass",), launch=_launch, versions=_versions, compile=_compile)
