"""PyTorch operators as profilers record them, as cases of the families: what each operator's operands say of the kernel.

Every reader takes a `Recorded` call and gives the family and columns of its case, or one sentence that says why it is none.
Operand shapes and the order of arguments are those of the operators' schemas (`aten/src/ATen/native/native_functions.yaml`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

Shape = tuple[int, ...]
Case = tuple[str, dict[str, Any]]

TORCH_FORMATS: Mapping[str, str] = {
    "float": "fp32", "double": "fp64", "c10::half": "fp16", "c10::bfloat16": "bf16", "signed char": "int8",
    "c10::float8_e4m3fn": "fp8", "int": "int32", "long int": "int64", "long": "int64",
}  # fmt: skip
"""C++ types a profiler names, in lower case, that the project has a format for."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded call of an operator. What the profiler did not record is empty.

    Attributes:
        name: The operator, such as `aten::mm`.
        shapes: Shape of each argument in order; empty for an argument that is no tensor.
        types: Element type of each argument.
        strides: Strides of each argument; empty with older profilers.
        values: Arguments that are no tensors, as text; empty with older profilers.
    """

    name: str
    shapes: tuple[Shape, ...]
    types: tuple[str, ...]
    strides: tuple[Shape, ...]
    values: tuple[str, ...]

    def shape(self, at: int) -> Shape:
        """Shape of an argument, empty where it is no tensor."""
        return self.shapes[at] if at < len(self.shapes) else ()

    def value(self, at: int) -> Any:
        """An argument that is no tensor, as Python reads it; None where it was not recorded."""
        try:
            return ast.literal_eval(self.values[at])
        except (IndexError, ValueError, SyntaxError):
            return None

    def is_given(self, at: int) -> bool:
        """Whether an optional tensor was passed."""
        return bool(self.shape(at)) or (at < len(self.types) and self.types[at].lower() in TORCH_FORMATS)


def _column_first(call: Recorded, at: int) -> bool:
    """Whether an operand of two dimensions lies column by column; False where strides were not recorded."""
    if at >= len(call.strides) or len(call.strides[at]) != 2:
        return False
    (rows, columns), (_, width) = call.strides[at], call.shape(at)
    return rows == 1 and columns != 1 and width > 1


def _mm(call: Recorded) -> Case | str:
    a, b = call.shape(0), call.shape(1)
    if len(a) != 2 or len(b) != 2:
        return "products without recorded shapes"
    word = f"{'t' if _column_first(call, 0) else 'n'}{'t' if _column_first(call, 1) else 'n'}"
    return "gemm", {"variant": "" if word == "nn" else word, "batch": 1, "m": a[0], "n": b[1], "k": a[1]}


def _addmm(call: Recorded) -> Case | str:
    bias, a, b = (call.shape(at) for at in range(3))
    if len(a) != 2 or len(b) != 2:
        return "products without recorded shapes"
    if len(bias) != 1:
        return "products that add a whole matrix"
    return "gemm", {"variant": "bias", "batch": 1, "m": a[0], "n": b[1], "k": a[1]}


def _bmm(call: Recorded) -> Case | str:
    a, b = call.shape(0), call.shape(1)
    if len(a) != 3 or len(b) != 3:
        return "products without recorded shapes"
    return "gemm", {"variant": "batched", "batch": a[0], "m": a[1], "n": b[2], "k": a[2]}


def _flat(shape: Shape) -> dict[str, int]:
    return {"rows": prod(shape[:-1]), "cols": shape[-1]}


def _softmax(call: Recorded) -> Case | str:
    shape, dim = call.shape(0), call.value(1)
    if not shape or dim is None:
        return "softmax without a recorded shape and dimension"
    if dim not in (-1, len(shape) - 1):
        return "softmax over another dimension than the last"
    return "softmax", {"variant": ""} | _flat(shape)


def _norm(variant: str) -> Callable[[Recorded], Case | str]:
    def read(call: Recorded) -> Case | str:
        shape, over = call.shape(0), call.value(1)
        if not shape or not isinstance(over, list):
            return "norms without a recorded shape and dimensions"
        if len(over) != 1 or not call.is_given(2):
            return "norms over several dimensions, or without a learned scale"
        return "layernorm", {"variant": variant} | _flat(shape)

    return read


def _unary(variant: str) -> Callable[[Recorded], Case | str]:
    def read(call: Recorded) -> Case | str:
        shape = call.shape(0)
        return ("elementwise", {"variant": variant} | _flat(shape)) if shape else "operators without recorded shapes"

    return read


def _binary(variant: str) -> Callable[[Recorded], Case | str]:
    def read(call: Recorded) -> Case | str:
        a, b = call.shape(0), call.shape(1)
        if not a:
            return "operators without recorded shapes"
        if not b:
            scalar = f"{variant}u"
            if scalar not in ("addu", "mulu", "divu", "powu"):
                return "a tensor and a scalar, for an operator the family has with two tensors only"
            return "elementwise", {"variant": scalar} | _flat(a)
        if a != b:
            return "element-wise operators that broadcast one operand"
        if call.types[:2] and len(set(call.types[:2])) > 1:
            return "element-wise operators on two formats"
        return "elementwise", {"variant": variant} | _flat(a)

    return read


def _conv2d(call: Recorded) -> Case | str:
    image, weight = call.shape(0), call.shape(1)
    stride, padding, dilation, groups = (call.value(at) for at in range(3, 7))
    if len(image) != 4 or len(weight) != 4 or not all(isinstance(item, list) for item in (stride, padding, dilation)):
        return "convolutions without recorded shapes, stride and padding"
    if call.is_given(2):
        return "convolutions with a bias, which is a kernel more"
    sides = (weight[2:], stride, padding, dilation)
    if any(len(set(side)) != 1 for side in sides) or dilation[0] != 1 or groups != 1:
        return "convolutions that are grouped, dilated or not square"
    return "conv2d", {
        "variant": "", "batch": image[0], "in_channels": image[1], "out_channels": weight[0], "height": image[2],
        "width": image[3], "kernel": weight[2], "stride": stride[0], "padding": padding[0],
    }  # fmt: skip


def _attention(call: Recorded) -> Case | str:
    q, k, v = (call.shape(at) for at in range(3))
    if len(q) != 4 or len(k) != 4 or k != v or q[3] != k[3]:
        return "attention without recorded shapes, or whose values have another size than its keys"
    if call.is_given(3):
        return "attention with a mask of its own"
    case = {
        "batch": q[0],
        "heads": q[1],
        "kv_heads": k[1],
        "q_len": q[2],
        "kv_len": k[2],
        "head_dim": q[3],
        "window": 0,
    }
    if q[2] == 1:
        return "attention", {"variant": "decode"} | case
    causal = call.value(5)
    if causal is not True or q[2] != k[2]:
        return "attention without a causal mask, or not said to have one"
    return "attention", {"variant": "prefill"} | case


_UNARY = ("relu", "gelu", "silu", "tanh", "exp", "sigmoid", "sqrt", "log", "neg", "abs")
_BINARY = ("add", "sub", "mul", "div", "pow", "maximum")

OPERATORS: Mapping[str, Callable[[Recorded], Case | str]] = {
    "aten::mm": _mm, "aten::addmm": _addmm, "aten::bmm": _bmm, "aten::softmax": _softmax, "aten::_softmax": _softmax,
    "aten::layer_norm": _norm("layernorm"), "aten::rms_norm": _norm("rmsnorm"), "aten::conv2d": _conv2d,
    "aten::scaled_dot_product_attention": _attention,
    **{f"aten::{name}{end}": _unary(name) for name in _UNARY for end in ("", "_")},
    **{f"aten::{name}{end}": _binary(name) for name in _BINARY for end in ("", "_")},
}  # fmt: skip
"""Operators by the name a profiler records; in-place ones do the same work."""


CUTLASS_FORMATS: Mapping[str, str] = {
    "f64": "fp64", "f32": "fp32", "tf32": "tf32", "f16": "fp16", "bf16": "bf16", "e4m3": "fp8", "fe4m3": "fp8", "s8": "int8",
}  # fmt: skip
"""Element types of `cutlass/library/util.h` that the project has a format for."""

_NAME = re.compile(
    r"cutlass\w*?_(?P<kind>simt|tensorop)_(?P<accumulate>[sdh])(?P<instruction>\d*)(?P<inside>tf32|bf16|f16)?gemm_"
    r"(?:(?P<element>f16|bf16|tf32|f32)_)?(?P<m>\d+)x(?P<n>\d+)_(?P<k>\d+)x(?P<stages>\d+)_(?P<layout>[nt]{2})_align\d+"
)
_PLAIN = {"s": "fp32", "d": "fp64", "h": "fp16"}


@dataclass(frozen=True, slots=True)
class CutlassKernel:
    """What the name of a CUTLASS 2 kernel says.

    Attributes:
        dtype: Format of the operands.
        tile_m: Rows of the block tile.
        tile_n: Columns of the block tile.
        tile_k: Depth of the block tile.
        stages: Pipeline stages.
        layout: Layouts of A and B: `nn`, `tn` …
    """

    dtype: str
    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    layout: str


def parse_kernel(name: str) -> CutlassKernel | None:
    """The kernel of a name like `cutlass_simt_sgemm_128x128_8x2_nn_align1`, None where it is no plain product.

    The parts are those `GemmOperation.procedural_name` puts together (CUTLASS, python/cutlass_library/gemm_operation.py):
    accumulator, instruction, operands' type where it differs, block tile `m x n`, `k x stages`, layouts, alignment.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    word = match["element"] or match["inside"]
    if match["kind"] == "simt":
        dtype = _PLAIN[match["accumulate"]] if word is None else None
    else:
        dtype = CUTLASS_FORMATS[word] if word else ("fp16" if match["accumulate"] == "h" else None)
    # Tensor cores compute fp32 operands in tf32.
    dtype = "tf32" if dtype == "fp32" and match["kind"] == "tensorop" else dtype
    if dtype is None:
        return None
    m, n, k, stages = (int(match[part]) for part in ("m", "n", "k", "stages"))
    return CutlassKernel(dtype, m, n, k, stages, match["layout"])


def variant_of(a_by_column: bool, b_by_column: bool, c_by_column: bool) -> str:
    """The gemm variant of operands that lie row by row or column by column, as the product with C row by row.

    With C by column the operands change places: B, transposed, is then the left one. A left or right operand that lies
    column by column after that is `t`.
    """
    left, right = (not b_by_column, not a_by_column) if c_by_column else (a_by_column, b_by_column)
    word = f"{'t' if left else 'n'}{'t' if right else 'n'}"
    return "" if word == "nn" else word
