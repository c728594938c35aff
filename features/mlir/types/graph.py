"""The op graph of MLIR text: functions, regions, operations and typed values, whatever parser read them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...dtypes import DTYPES


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a value.

    Attributes:
        kind: `tensor`, `memref`, `vector`, `scalar` or `other` (tokens, shapes, handles).
        shape: Sizes, None for a dynamic one; None: unranked.
        dtype: The name kernelcast has for the element type where there is one (`fp32`), else the one of MLIR (`i1`,
            `index`).
        text: The type as written.
    """

    kind: str
    shape: tuple[int | None, ...] | None
    dtype: str
    text: str

    @property
    def is_array(self) -> bool:
        """Whether it has elements in memory or registers: tensors, memrefs and vectors."""
        return self.kind in ("tensor", "memref", "vector")

    @property
    def is_static(self) -> bool:
        """Whether every size is known."""
        return self.shape is not None and None not in self.shape

    @property
    def elements(self) -> float:
        """Number of elements; 1 for what is no array.

        Raises:
            ValueError: a size is dynamic; bind it first.
        """
        if not self.is_array:
            return 1.0
        total = 1.0
        for size in (None,) if self.shape is None else self.shape:
            if size is None:
                raise ValueError(f"{self.text} has a dynamic size")
            total *= size
        return total

    @property
    def itemsize_b(self) -> float:
        """Bytes per element in memory; 0 for what holds no numbers."""
        return _itemsize_b(self.dtype)

    @property
    def nbytes(self) -> float:
        """Bytes in memory, derived from shape and dtype; 0 for what holds no numbers."""
        return self.elements * self.itemsize_b

    @property
    def known_nbytes(self) -> float:
        """Bytes in memory; 0 also for an array whose size is not known."""
        return 0.0 if self.is_array and not self.is_static else self.nbytes


@dataclass(slots=True)
class Op:
    """One operation.

    Attributes:
        name: Its name, with its dialect.
        operands: Value numbers it reads, positions in `Module.types`.
        results: Value numbers it defines.
        attributes: The text of its attributes and properties as printed, without braces; rules read it on demand.
        regions: Its regions.
        line: Line of the text, from 1; None where the parser does not tell.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    attributes: str = ""
    regions: tuple[Region, ...] = ()
    line: int | None = None

    @property
    def dialect(self) -> str:
        """The part of the name before the first dot."""
        return self.name.partition(".")[0]


@dataclass(slots=True)
class Block:
    """Operations in order.

    Attributes:
        arguments: Value numbers the block is entered with.
        ops: Its operations.
    """

    arguments: tuple[int, ...]
    ops: list[Op]


@dataclass(slots=True)
class Region:
    """A region of an operation.

    Attributes:
        blocks: Its blocks; the first is the entry.
    """

    blocks: list[Block]


@dataclass(slots=True)
class Function:
    """A function of a module.

    Attributes:
        name: Its name, without `@`.
        is_public: Whether other modules see it.
        arguments: Value numbers of its arguments.
        results: Types it returns.
        body: Its body, None for a declaration.
        argument_attributes: Attributes of each argument as printed, without braces; empty where no argument has any.
    """

    name: str
    is_public: bool
    arguments: tuple[int, ...]
    results: tuple[ValueType, ...]
    body: Region | None
    argument_attributes: tuple[str, ...] = ()


@dataclass(slots=True)
class Module:
    """A module as it was read.

    Attributes:
        functions: Its functions, in order.
        types: Type of each value, by value number.
        reader: Name of the parser that read the text.
        refusals: (parser, reason) of those tried before it.
        unread: Pieces of text that the tolerant parser could not read.
    """

    functions: tuple[Function, ...]
    types: list[ValueType]
    reader: str
    refusals: tuple[tuple[str, str], ...] = ()
    unread: Sequence[str] = ()


_OTHER_ITEMSIZES_B = {
    "i1": 1.0, "index": 8.0, "complex<f32>": 8.0, "complex<f64>": 16.0, "f80": 16.0, "f128": 16.0, "f4E2M1FN": 0.5,
    "f6E2M3FN": 0.75, "f6E3M2FN": 0.75,
}  # fmt: skip
"""Bytes per element of element types that are no dtype of kernels; MLIR's data layout: i1 takes a byte in memory, index is
64 bits on 64-bit targets, an f80 takes 16 bytes (x86-64 psABI)."""

_INTEGER = re.compile(r"i(\d{1,4})")


def _itemsize_b(dtype: str) -> float:
    known = DTYPES.get(dtype)
    if known is not None:
        return known.itemsize_b
    integer = _INTEGER.fullmatch(dtype)
    if integer is None or dtype in _OTHER_ITEMSIZES_B:
        return _OTHER_ITEMSIZES_B.get(dtype, 0.0)
    # Below a byte integers are packed; above, the next power of two of bytes holds one, as LLVM lays them out.
    return int(integer[1]) / 8 if int(integer[1]) < 8 else float(1 << ((int(integer[1]) + 7) // 8 - 1).bit_length())
