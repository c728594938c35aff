"""The CUDA source of the tiled product, and which cases it runs; imports no CUDA."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ....features.kernel import KernelSpec
from ...cpu.runner import UnsupportedCaseError

NAME = "tiled_matmul"
MAX_TILE = 32
"""A block has tile² threads, and CUDA's limit is 1024 (CUDA C++ Programming Guide, "Technical Specifications")."""

SOURCE = Path(__file__).with_suffix(".cu")
"""The file of the CUDA source; it needs `defines` of a tile."""

_KNOBS = ("tile_m", "tile_n", "tile_k")
_MAX_BLOCKS = 2**31 - 1


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
