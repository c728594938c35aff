"""The textbook tiled matrix product as a CuPy raw kernel, tile 1 to 32: what a first attempt at CUDA looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ....features.kernel import KernelSpec
from ..kernels.tiled_matmul import NAME, defines, grid_of, source, tile_of
from ..measure.bench import TOLERANCE, expected_product
from ..measure.runner import GpuRunner, Launch, Tensor


@dataclass(frozen=True, slots=True)
class _Stream:
    """A stream handle as the CUDA stream protocol asks for it."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


@cache
def _kernel(tile: int) -> Any:
    import cupy

    return cupy.RawKernel(source(), NAME, options=(defines(tile),))


def _launch(spec: KernelSpec, operands: tuple[Tensor, ...]) -> Launch:
    import cupy
    import torch

    tile = tile_of(spec)
    kernel, grid = _kernel(tile), (grid_of(spec, tile),)
    a, b = operands
    out = torch.empty((spec["m"], spec["n"]), dtype=a.dtype, device=a.device)
    # Addresses rather than arrays: nothing is copied or owned. Sizes are 64-bit, as CuPy passes whole numbers.
    arguments = (a.data_ptr(), b.data_ptr(), out.data_ptr(), spec["m"], spec["n"], spec["k"])
    attributes = kernel.attributes  # compiles and loads it now: a CUDA graph being captured could not

    def call() -> Tensor:
        with cupy.cuda.Stream.from_external(_Stream(torch.cuda.current_stream(a.device).cuda_stream)):
            kernel(grid, (tile, tile), arguments)
        return out

    return Launch(
        call=call,
        expected=expected_product(spec, a, b),
        tolerance=TOLERANCE[spec.dtype],
        resources={
            "registers": attributes["num_regs"],
            "spill_b": attributes["local_size_bytes"],
            "shared_b": attributes["shared_size_bytes"],
        },
    )


def _versions() -> Mapping[str, str]:
    import cupy  # asked for its version, since its package is called after the CUDA it is built for

    return {"cupy": cupy.__version__}


RUNNER = GpuRunner(name="cupy", impls=("cupy-tiled",), launch=_launch, versions=_versions)
