"""What was recorded of a program: its operators with shapes, dtypes and layouts, and when storages came and went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ...features.dtypes import DTYPES, parse_dtype
from ...features.errors import SpecError

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"

WEIGHTS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, INPUTS, WORKSPACE = (
    "weights", "gradients", "optimizer_state", "activations", "inputs", "workspace",
)  # fmt: skip
"""What memory holds. Buffers of modules count as weights, what a program makes and drops as activations; a workspace is what a
kernel needs besides its tensors."""

_DTYPES = {
    1: "bool int8 uint8 qint8 quint8 quint4x2 quint2x4 bits8 bits1x8 bits2x4 bits4x2 float8_e4m3fn float8_e5m2 "
       "float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 int1 int2 int3 int4 int5 int6 int7 "
       "uint1 uint2 uint3 uint4 uint5 uint6 uint7",
    2: "int16 uint16 bfloat16 float16 bits16", 4: "int32 uint32 qint32 float32 complex32",
    8: "int64 uint64 float64 complex64", 16: "complex128",
}  # fmt: skip
ITEMSIZES_B = {name: size_b for size_b, names in _DTYPES.items() for name in names.split()}
"""Bytes of an element by the names of all dtypes of PyTorch."""


class UnknownValueError(SpecError):
    """The program reads a value of a tensor, and none is computed."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor without its data.

    Attributes:
        shape: Its sizes.
        strides: Elements between neighbours, per dimension.
        dtype: PyTorch's name, such as `bfloat16`.
        itemsize_b: Bytes of one element.
        storage: Number of its storage in the recording; views share it.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize_b: int
    storage: int

    @property
    def numel(self) -> int:
        """Number of elements, repeated ones counted each time."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its distinct elements: dimensions of stride 0 repeat the same ones."""
        sizes = (size for size, stride in zip(self.shape, self.strides, strict=True) if stride or not size)
        return prod(sizes) * self.itemsize_b

    @property
    def kernel_dtype(self) -> str | None:
        """The dtype by the name kernels have for it; None where no kernel computes in it (`bool`, `uint8` …)."""
        if self.dtype.startswith("float8"):
            return "fp8"
        try:
            return parse_dtype(self.dtype)
        except SpecError:
            return None


FLOATS = frozenset({"fp64", "fp32", "bf16", "fp16"})
"""Dtypes in which families other than products were measured, or are near to measured ones."""

REAL_DTYPES: Mapping[str, str] = {"complex32": "fp16", "complex64": "fp32", "complex128": "fp64"}
"""Dtypes of the parts of complex numbers."""


def float_dtype(*tensors: TensorInfo) -> str:
    """The dtype of the first tensor that kernels other than products compute in; fp32 where there is none."""
    return next((tensor.kernel_dtype for tensor in tensors if tensor.kernel_dtype in FLOATS), None) or "fp32"


def itemsize_b(dtype: str) -> float:
    """Bytes of one element of a kernel's dtype."""
    return DTYPES[dtype].itemsize_b


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of an operator.

    Attributes:
        name: PyTorch's name without overload, such as `aten.addmm`.
        arguments: By the names of its schema: tensors as `TensorInfo`, lists as tuples.
        inputs: Tensors it is given, in order.
        outputs: Tensors it returns.
        flops: Arithmetic by PyTorch's own counter (`torch.utils.flop_counter`); of products that it leaves out as priced.
        module: Path of the module that called it, such as `GPT.blocks.0.mlp`.
        phase: `forward`, `backward` or `optimizer`.
        pointwise: Whether PyTorch tags it as element by element.
        compiled: Whether it ran inside what the program compiles.
        upper_bound: Whether its tensors are as large as values allow, so that it takes less where these leave fewer.
    """

    name: str
    arguments: Mapping[str, Any]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    flops: float = 0.0
    module: str = ""
    phase: str = FORWARD
    pointwise: bool = False
    compiled: bool = False
    upper_bound: bool = False

    @property
    def bytes_in(self) -> int:
        """Bytes of the distinct tensors it is given."""
        return sum({(tensor.storage, tensor.shape, tensor.strides): tensor.nbytes for tensor in self.inputs}.values())

    @property
    def bytes_out(self) -> int:
        """Bytes of what it returns."""
        return sum(tensor.nbytes for tensor in self.outputs)

    @property
    def base_name(self) -> str:
        """The name without the underscore of operators that work in place: `aten.add_` does what `aten.add` does."""
        return self.name.rstrip("_")


@dataclass(slots=True)
class Recording:
    """A program as it ran.

    Attributes:
        operations: Those that compute or move anything, in order.
        views: Number of calls that only gave another view of a tensor; they run on the host alone.
        lifetimes: By storage: bytes, the operation before which it came and the one before which it went (None: never);
            storages that were there before the first operation came before operation 0.
        roles: What storages hold, by storage, where it is more than an activation.
        tf32: Whether products of fp32 may be rounded to tf32 (`torch.set_float32_matmul_precision`).
        tf32_convolutions: Whether convolutions of fp32 may be (`torch.backends.cudnn.allow_tf32`, which is on by default).
        notes: What to know of how it was recorded.
    """

    operations: list[Operation] = field(default_factory=list)
    views: int = 0
    lifetimes: dict[int, tuple[int, int, int | None]] = field(default_factory=dict)
    roles: dict[int, str] = field(default_factory=dict)
    tf32: bool = False
    tf32_convolutions: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def flops(self) -> float:
        """Arithmetic of all operations."""
        return sum(operation.flops for operation in self.operations)
