"""Operands of a module: what its public function takes, read from the text, and seeded data for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

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

_FUNCTION = re.compile(r"func\.func\s+(?P<private>private\s+)?(?:public\s+)?@(?P<name>[\w$.-]+)\s*\(")
# The same as operations are written in generic form, where attributes are sorted by name.
_GENERIC = re.compile(r'"func\.func"\(\)\s*<\{(?:[^{}]|\{[^{}]*\})*?\bfunction_type = \(')
_NAME = re.compile(r'\bsym_name = "([^"]+)"')
_TENSOR = re.compile(r"tensor<((?:(?:\d+|\?)x)*)([^,<>]+?)(?:,.*)?>$")
_TORCH = re.compile(r"!torch\.v?tensor<\[([^\]]*)\],\s*(\w+)>$")


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
    name, at = _public_function(text)
    types = [_type_of(part) for part in _parts(text, at)]
    return Signature(name, tuple(_argument(written) for written in types))


def _public_function(text: str) -> tuple[str, int]:
    """Its name, and where its arguments begin."""
    for match in _FUNCTION.finditer(text):
        if not match["private"]:
            return match["name"], match.end()
    for match in _GENERIC.finditer(text):
        rest = text[match.end() : text.find("}>", match.end())]
        name = _NAME.search(rest)
        if name is not None and 'sym_visibility = "private"' not in rest:
            return name[1], match.end()
    raise UnsupportedCaseError("the module has no public function (func.func @name) that could be called")


def _parts(text: str, at: int) -> list[str]:
    """The arguments in the parenthesis that opened just before `at`, split at the outermost commas."""
    parts, depth, begin = [], 0, at
    quoted = False
    for i in range(at, len(text)):
        letter = text[i]
        if letter == '"':
            quoted = not quoted
        elif quoted or (letter == ">" and text[i - 1] == "-"):
            continue
        elif letter in "([{<":
            depth += 1
        elif letter == ")" and depth == 0:
            parts.append(text[begin:i])
            return [part for part in parts if part.strip()]
        elif letter in ")]}>":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
    raise UnsupportedCaseError("the argument list of the module's function does not end")


def _type_of(part: str) -> str:
    """`%arg0: tensor<4xf32> {jax.x = 1} loc(…)` → `tensor<4xf32>`."""
    written = part.partition(":")[2].strip() if part.lstrip().startswith("%") else part.strip()
    return re.split(r"\s+(?:\{|loc\()", written)[0].strip()


def _argument(written: str) -> Argument:
    shape: tuple[int, ...] | None = None
    dtype = written
    if torch := _TORCH.match(written):
        sizes = [size.strip() for size in torch[1].split(",") if size.strip()]
        dtype = torch[2]
    elif tensor := _TENSOR.match(written):
        sizes = [size for size in tensor[1].split("x") if size]
        dtype = tensor[2].strip()
    else:
        sizes = None
    if sizes is not None:
        if "?" in sizes:
            raise UnsupportedCaseError(f"an argument is {written}: every size must be known")
        shape = tuple(map(int, sizes))
    dtype = dtype.removeprefix("s") if dtype.startswith("si") else dtype
    if dtype not in STORED_AS:
        raise UnsupportedCaseError(
            f"an argument is {written}, which cannot be made; element types: {', '.join(STORED_AS)}"
        )
    return Argument(shape, dtype)


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
