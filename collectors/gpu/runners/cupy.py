"""The textbook tiled matrix product as a CuPy raw kernel, tile 1 to 32: what a first attempt at CUDA looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ....features.kernel import KernelSpec
from ...runner import GpuRunner, Launch, Tensor, UnsupportedCaseError
from ..measure.bench import TOLERANCE, expected_product

NAME = "tiled_matmul"
MAX_TILE = 32
"""A block has tile² threads, and CUDA's limit is 1024 (CUDA C++ Programming Guide, "Technical Specifications")."""

SOURCE = Path(__file__).parents[1] / "kernels" / "tiled_matmul.cu"
"""The file of the CUDA source; it needs `defines` of a tile."""

_KNOBS = ("tile_m", "tile_n", "tile_k")
_MAX_BLOCKS = 2**31 - 1
"""Largest grid in x (CUDA C++ Programming Guide, "Technical Specifications")."""


@cache
def source() -> str:
    """The CUDA source as text."""
    return SOURCE.read_text(encoding="utf-8")


def defines(tile: int) -> str:
    """The compiler option that fixes the tile."""
    return f"-DTILE={tile}"


def tile_of(spec: KernelSpec) -> int:
    """The tile of a case.

    Raises:
        UnsupportedCaseError: the kernel cannot run it; the message says what it can.
    """
    if spec.family != "gemm" or spec.dtype != "fp32" or spec.variant or spec["batch"] != 1:
        raise UnsupportedCaseError(f"the CuPy tiled kernel is one plain fp32 product, not {spec}")
    knobs = dict(spec.config)
    tiles = {knobs.get(name) for name in _KNOBS}
    tile = knobs.get("tile_k")
    if set(knobs) != set(_KNOBS) or len(tiles) != 1 or tile is None or not 1 <= tile <= MAX_TILE:
        raise UnsupportedCaseError(
            f"the CuPy tiled kernel needs tile_m, tile_n and tile_k, equal and between 1 and {MAX_TILE}; got {knobs}"
        )
    if grid_of(spec, tile) > _MAX_BLOCKS:
        raise UnsupportedCaseError(
            f"tile {tile} cuts this product into more than {_MAX_BLOCKS} blocks; take a larger one"
        )
    return tile


def grid_of(spec: KernelSpec, tile: int) -> int:
    """Blocks of a launch."""
    return -(-spec["m"] // tile) * -(-spec["n"] // tile)


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
