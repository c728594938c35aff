"""Operands of a module: what its public function takes, read from the text, and seeded data for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ...features.errors import SpecError
from ...features.mlir.semantics.dynamic_sizes import static_sizes
from ...features.mlir.types.graph import ValueType
from ...features.mlir.understanding import no_native_parser, read
from ..runner import UnsupportedCaseError

Array = npt.NDArray[Any]

STORED_AS: Mapping[str, np.dtype[Any]] = MappingProxyType({
    "f16": np.dtype(np.float16), "f32": np.dtype(np.float32), "f64": np.dtype(np.float64),
    # numpy has no bfloat16: its 16 bits, which are the upper half of a float32.
    "bf16": np.dtype(np.uint16), "i1": np.dtype(np.bool_),
    "i8": np.dtype(np.int8), "i16": np.dtype(np.int16), "i32": np.dtype(np.int32), "i64": np.dtype(np.int64),
    "ui8": np.dtype(np.uint8), "ui16": np.dtype(np.uint16), "ui32": np.dtype(np.uint32), "ui64": np.dtype(np.uint64),
    "index": np.dtype(np.int64),
})  # fmt: skip
"""Element types a module can be given, and how numpy holds them. Signed spellings (`si64`) are read as signless."""

BELOW = 8
"""Integer operands lie in [0, 8): any table that a program looks up has that many rows."""

_ELEMENT = re.compile(r"(?:^|[<x,])\s*s?((?:ui|i|f|bf)\d+|index)(?:,.*)?>?$")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a function.

    Attributes:
        shape: Its sizes; None for a scalar that is no tensor.
        dtype: Its element type as MLIR spells it (`bf16`).
    """

    shape: tuple[int, ...] | None
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of its elements in memory."""
        return int(np.prod(self.shape or (), dtype=np.int64)) * STORED_AS[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class Signature:
    """The public function of a module.

    Attributes:
        function: Its name.
        arguments: Its arguments.
    """

    function: str
    arguments: tuple[Argument, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all arguments."""
        return sum(argument.nbytes for argument in self.arguments)


def signature(text: str) -> Signature:
    """The first function of `text` that is not private.

    Raises:
        UnsupportedCaseError: there is none, or an argument is of a type that cannot be given: dynamic sizes, memrefs, tuples.
    """
    try:
        module = read(text, native=no_native_parser)
    except SpecError as error:
        raise UnsupportedCaseError(str(error)) from error
    public = next((function for function in module.functions if function.is_public and function.name), None)
    if public is None:
        raise UnsupportedCaseError("the module has no public function (func.func @name) that could be called")
    return Signature(public.name, tuple(_argument(module.types[value]) for value in public.arguments))


def _argument(kind: ValueType) -> Argument:
    element = _ELEMENT.search(kind.text)
    if kind.kind not in ("tensor", "scalar") or element is None or element[1] not in STORED_AS:
        raise UnsupportedCaseError(
            f"an argument is {kind.text}, which cannot be made; tensors and numbers can: {', '.join(STORED_AS)}"
        )
    if kind.kind == "scalar":
        return Argument(None, element[1])
    try:
        return Argument(static_sizes(kind), element[1])
    except ValueError as error:
        raise UnsupportedCaseError(f"an argument is {kind.text}: every size must be known") from error


def operands(arguments: Sequence[Argument], seed: int) -> list[Array]:
    """Seeded data, equal for equal seeds: floats standard normal, integers in [0, `BELOW`), truth values even odds."""
    rng = np.random.default_rng(seed)
    return [_data(argument, rng) for argument in arguments]


def _data(argument: Argument, rng: np.random.Generator) -> Array:
    shape, dtype = argument.shape or (), STORED_AS[argument.dtype]
    if argument.dtype == "f64":
        return np.asarray(rng.standard_normal(shape))
    if argument.dtype == "bf16":
        return bfloat16_bits(np.asarray(rng.standard_normal(shape, dtype=np.float32)))
    if argument.dtype in ("f16", "f32"):
        return np.asarray(rng.standard_normal(shape, dtype=np.float32)).astype(dtype, copy=False)
    return np.asarray(rng.integers(0, 2 if argument.dtype == "i1" else BELOW, shape)).astype(dtype, copy=False)


def bfloat16_bits(values: Array) -> Array:
    """float32 values as the bits of bfloat16, cut off."""
    return (np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
