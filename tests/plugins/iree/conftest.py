"""A module with one of everything that is read, and a cost model whose ranking is laid down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from kernelcast.features.tuning.kind import Candidates
from kernelcast.plugins.iree.compiler import compile_text, target_flags
from kernelcast.plugins.iree.dispatches import Dispatches, read_dispatches

DEVICE = "amd-epyc-9005-vm-2c"

NT = "indexing_maps = [affine_map<(m,n,k)->(m,k)>, affine_map<(m,n,k)->(n,k)>, affine_map<(m,n,k)->(m,n)>]"
STEPS = "{dilations = dense<1> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>}"
STEPS_2 = "{dilations = dense<1> : tensor<2xi64>, strides = dense<2> : tensor<2xi64>}"


def function(name: str, operation: str, a: str, b: str, c: str, maps: str = "") -> str:
    """A function of one operation with two inputs, its result starting from zero."""
    element = c.rpartition("x")[2]
    a, b, c = (f"tensor<{shape}>" for shape in (a, b, c))
    return f"""
func.func @{name}(%a: {a}, %b: {b}) -> {c} {{
  %zero = arith.constant 0.0 : {element}
  %empty = tensor.empty() : {c}
  %filled = linalg.fill ins(%zero : {element}) outs(%empty : {c}) -> {c}
  %result = {operation} {maps} ins(%a, %b : {a}, {b}) outs(%filled : {c}) -> {c}
  return %result : {c}
}}
"""


BIASED = """
func.func @biased(%a: tensor<40x24xf32>, %bias: tensor<48xf32>) -> tensor<40x48xf32> {
  %zero = arith.constant 0.0 : f32
  %weights = arith.constant dense<"0xWEIGHTS"> : tensor<24x48xf32>
  %empty = tensor.empty() : tensor<40x48xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<40x48xf32>) -> tensor<40x48xf32>
  %product = linalg.matmul ins(%a, %weights : tensor<40x24xf32>, tensor<24x48xf32>)
      outs(%filled : tensor<40x48xf32>) -> tensor<40x48xf32>
  %result = linalg.generic {indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(j)>, affine_map<(i,j)->(i,j)>],
      iterator_types = ["parallel", "parallel"]} ins(%product, %bias : tensor<40x48xf32>, tensor<48xf32>)
      outs(%empty : tensor<40x48xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %sum = arith.addf %x, %y : f32
    %kept = arith.maximumf %sum, %zero : f32
    linalg.yield %kept : f32
  } -> tensor<40x48xf32>
  return %result : tensor<40x48xf32>
}
""".replace("WEIGHTS", np.random.default_rng(0).standard_normal((24, 48), dtype=np.float32).tobytes().hex())

TUNABLE = "".join((
    function("plain", "linalg.matmul", "30x20xf32", "20x36xf32", "30x36xf32"),
    function("turned", "linalg.matmul", "32x20xf32", "36x20xf32", "32x36xf32", NT),
    function("batched", "linalg.batch_matmul", "3x30x20xf32", "3x20x36xf32", "3x30x36xf32"),
    function("vector", "linalg.vecmat", "64xf32", "64x96xf32", "96xf32"),
    function("nhwc", f"linalg.conv_2d_nhwc_hwcf {STEPS}", "1x10x12x8xf32", "3x3x8x16xf32", "1x8x10x16xf32"),
    function("nchw", f"linalg.conv_2d_nchw_fchw {STEPS_2}", "2x8x11x11xf32", "16x8x3x3xf32", "2x16x5x5xf32"),
    BIASED,
))  # fmt: skip

LEFT = "".join((
    function("half", "linalg.matmul", "30x20xbf16", "20x36xbf16", "30x36xbf16"),
    function("deep", f"linalg.depthwise_conv_2d_nhwc_hwc {STEPS}", "1x10x10x8xf32", "3x3x8xf32", "1x8x8x8xf32"),
    """
func.func @open(%a: tensor<?x20xf32>, %b: tensor<20x36xf32>, %c: tensor<?x36xf32>) -> tensor<?x36xf32> {
  %result = linalg.matmul ins(%a, %b : tensor<?x20xf32>, tensor<20x36xf32>) outs(%c : tensor<?x36xf32>) -> tensor<?x36xf32>
  return %result : tensor<?x36xf32>
}
""",
))  # fmt: skip

TILES = {"tile_m": 16, "tile_n": 32, "inner_m": 4, "inner_n": 16, "inner_k": 2}
VECTOR_TILES = {"tile_m": 1, "tile_n": 32, "inner_m": 1, "inner_n": 16, "inner_k": 2}
CONV_TILES = {"tile_h": 2, "tile_w": 5, "tile_c": 16, "inner_w": 5, "inner_c": 16, "inner_k": 4}


def dispatches(text: str) -> Dispatches:
    """What is read of a module."""
    return read_dispatches(compile_text(text, *target_flags(text), "--compile-to=flow", brief=True))


def by_name(found: Dispatches) -> dict[str, Any]:
    """Tunable dispatches by the function they come from."""
    return {item.names[0].partition("_dispatch")[0]: item for item in found.tunable}


@pytest.fixture(scope="session")
def tunable() -> dict[str, Any]:
    pytest.importorskip("iree.compiler")
    return by_name(dispatches(TUNABLE))


@dataclass
class LaidDown:
    """Seconds of the compiler's own choice, of its data tiling, of tiles with a `tile_m` or `tile_h` named, and of others."""

    default: float
    packed: float
    tiles: Mapping[int, float]
    otherwise: float = 1.0
    learnt: list[tuple[dict[str, int], float]] = field(default_factory=list)
    caveat: str = ""

    def predict(self, candidates: Candidates) -> Any:
        return np.array([self._seconds(candidates.config(i)) for i in range(len(candidates))])

    def _seconds(self, config: Mapping[str, int]) -> float:
        if not config:
            return self.default
        if "data_tiling" in config:
            return self.packed
        return self.tiles.get(config.get("tile_m", config.get("tile_h", 0)), self.otherwise)

    def update(self, candidates: Candidates, measured_s: Any) -> None:
        self.learnt += [(candidates.config(i), float(value)) for i, value in enumerate(measured_s)]
