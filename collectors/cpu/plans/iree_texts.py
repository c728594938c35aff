"""MLIR text of a case for the IREE runner, and how a tile configuration is written into it.

A product's configuration travels as the op attribute `compilation_info`. A convolution loses attributes when it is
rewritten into the loop nest that is configured, so its configuration replaces IREE's own in the text of the phase
`executable-configurations`, from which compilation goes on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ....features.families.conv2d import output_size
from ....features.kernel import KernelSpec
from ...runner import UnsupportedCaseError

GEMM_KNOBS = ("tile_m", "tile_n", "inner_m", "inner_n", "inner_k")
"""Knobs that a product's configuration names together; `tile_k` may join them."""

CONV_KNOBS = ("tile_h", "tile_w", "tile_c", "inner_w", "inner_c", "inner_k")
"""Knobs that a convolution's configuration names together."""

CONV_PIPELINE = "ConvTileAndDecomposeExpert"

LAYOUTS = MappingProxyType({
    "": ("linalg.matmul", ()),
    "batched": ("linalg.batch_matmul", ()),
    "nt": ("linalg.matmul", ("(m, n, k) -> (m, k)", "(m, n, k) -> (n, k)", "(m, n, k) -> (m, n)")),
    "tn": ("linalg.matmul", ("(m, n, k) -> (k, m)", "(m, n, k) -> (k, n)", "(m, n, k) -> (m, n)")),
})  # fmt: skip
"""Variants of `gemm` that are run: the operation, and its operands' maps where they are not the operation's own."""


def matmul_mlir(spec: KernelSpec) -> str:
    """MLIR of C = A · B in fp32, C written into the caller's third operand.

    Without `iree.abi.output` every call would allocate C, and the first touch of its pages would be part of the time.
    """
    m, n, k = spec["m"], spec["n"], spec["k"]
    operation, maps = LAYOUTS[spec.variant]
    a, b = (k, m) if spec.variant == "tn" else (m, k), (n, k) if spec.variant == "nt" else (k, n)
    batch = (spec["batch"],) if spec.variant == "batched" else ()
    shapes = [(*batch, *shape) for shape in (a, b, (m, n))]
    attributes = [f"indexing_maps = [{', '.join(f'affine_map<{each}>' for each in maps)}]"] if maps else []
    attributes += _compilation_info(dict(spec.config), batched=spec.variant == "batched")
    return _function(operation, attributes, [_tensor(shape) for shape in shapes])


def conv_mlir(spec: KernelSpec) -> str:
    """MLIR of an unpadded convolution in fp32, written into the caller's third operand; both layouts."""
    batch, cin, cout, side = spec["batch"], spec["in_channels"], spec["out_channels"], spec["kernel"]
    height, width = spec["height"], spec["width"]
    sizes = dict(spec.dims)
    rows, columns = output_size(height, sizes), output_size(width, sizes)
    if spec.variant == "nhwc":
        operation = "linalg.conv_2d_nhwc_hwcf"
        shapes = [(batch, height, width, cin), (side, side, cin, cout), (batch, rows, columns, cout)]
    else:
        operation = "linalg.conv_2d_nchw_fchw"
        shapes = [(batch, cin, height, width), (cout, cin, side, side), (batch, cout, rows, columns)]
    steps = [f"dilations = dense<1> : tensor<2xi64>, strides = dense<{spec['stride']}> : tensor<2xi64>"]
    return _function(operation, steps, [_tensor(shape) for shape in shapes])


def _tensor(shape: Sequence[int]) -> str:
    return f"tensor<{'x'.join(map(str, shape))}xf32>"


def _function(operation: str, attributes: Sequence[str], types: Sequence[str]) -> str:
    a, b, c = types
    # Products take what belongs to the operation before its operands, as maps and as attributes alike.
    maps = " ".join(each for each in attributes if each.startswith("indexing_maps"))
    rest = ", ".join(each for each in attributes if not each.startswith("indexing_maps"))
    return f"""
func.func @kernel(%a: {a}, %b: {b}, %out: {c} {{iree.abi.output = 0 : index}}) -> {c} {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : {c}
  %filled = linalg.fill ins(%zero : f32) outs(%empty : {c}) -> {c}
  %result = {operation} {maps} {{{rest}}} ins(%a, %b : {a}, {b}) outs(%filled : {c}) -> {c}
  return %result : {c}
}}
"""


def _compilation_info(config: Mapping[str, int], *, batched: bool) -> list[str]:
    if "tile_m" not in config:
        return []
    # A workgroup takes one product of a batch, and one vector step too.
    batch_tile, batch_step = ((1,), (0,)) if batched else ((), ())
    levels = {
        "distribution": (*batch_tile, config["tile_m"], config["tile_n"], 0),
        "cache_reduction": (*batch_step, 0, 0, config.get("tile_k", 0)),
        "vector_common_parallel": (*batch_tile, config["inner_m"], config["inner_n"], 0),
        "vector_reduction": (*batch_step, 0, 0, config["inner_k"]),
    }
    tiles = ", ".join(f"{level} = {list(sizes)}" for level, sizes in levels.items() if any(sizes))
    # Peeling splits remainder iterations off; sizes that tiles do not divide would otherwise run masked throughout,
    # at half the speed. Where tiles divide the sizes it changes nothing.
    return [
        f"compilation_info = #iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<{tiles}>, "
        "translation_info = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>, "
        "{enable_loop_peeling}>>"
    ]


def with_conv_config(configured: str, spec: KernelSpec) -> str:
    """IREE's `executable-configurations` of `conv_mlir(spec)` with the configuration of `spec` in place of its own.

    Raises:
        UnsupportedCaseError: IREE lowers this convolution by another pipeline.
    """
    config = dict(spec.config)
    height, width, channels = config["tile_h"], config["tile_w"], config["tile_c"]
    if spec.variant == "nhwc":
        block, vector = (1, height, width, channels), (1, 1, config["inner_w"], config["inner_c"])
        steps = (1, 1, config["inner_k"])
    else:
        block, vector = (1, channels, height, width), (1, config["inner_c"], 1, config["inner_w"])
        steps = (config["inner_k"], 1, 1)
    levels = (
        f"distribution = {[*block, 0, 0, 0]}, vector_common_parallel = {[*vector, 0, 0, 0]}, "
        f"vector_reduction = {[0, 0, 0, 0, *steps]}"
    )
    text = configured
    for pattern, replacement in (
        (r"(?<=lowering_config<)distribution = [^>]*", levels),
        (
            r"(?<=linalg.fill \{lowering_config = #iree_cpu.lowering_config<)[^>]*",
            f"vector_common_parallel = {[*vector]}",
        ),
        (rf"#iree_cpu.pipeline<{CONV_PIPELINE}>", f"#iree_cpu.pipeline<{CONV_PIPELINE}>, {{enable_loop_peeling}}"),
    ):
        text, result = re.subn(pattern, replacement, text)
        if result != 1:
            raise UnsupportedCaseError(f"IREE does not lower {spec} by {CONV_PIPELINE} with a fill before it")
    return text
