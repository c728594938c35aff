"""The op graph of MLIR text: functions, regions, operations and typed values, whatever parser read them; types from text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

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


LAYERS_READ = 5
"""Layers that a shorter text has: the first ones, of which the last stands for those left out, and the last of all. Kernels of
the first layers differ from those of the others, as they begin with what comes before."""


Origin = tuple[Literal["argument", "line"], int]
"""Where a value comes from: the position of an argument of the function, or the line of an operation, from 1."""


@dataclass(frozen=True, slots=True)
class RepeatedLayers:
    """A text with `LAYERS_READ` of the equal layers that one of its functions has.

    Attributes:
        text: The shorter text; empty lines stand for the layers left out, so that what follows keeps its lines.
        line: Line of the first layer, from 1.
        n_lines: Lines of a layer.
        n_layers: Layers of the whole text.
        origins: For each layer of the whole text where those values come from that it reads and the layer before does not; what
            all layers read is left out.
    """

    text: str
    line: int
    n_lines: int
    n_layers: int
    origins: Sequence[tuple[Origin, ...]]

    def layer_of(self, line: int | None) -> int | None:
        """The layer of the whole text that a line is in; None for other lines."""
        layer = -1 if line is None else (line - self.line) // self.n_lines
        return layer if 0 <= layer < self.n_layers else None


class Shortened(NamedTuple):
    """The layers of which only some were read, and what reads the whole text."""

    layers: RepeatedLayers
    read_whole: Callable[[], Module]


@dataclass(slots=True)
class Module:
    """A module as it was read.

    Attributes:
        functions: Its functions, in order.
        types: Type of each value, by value number.
        reader: Name of the parser that read the text.
        refusals: (parser, reason) of those tried before it.
        unread: Pieces of text that the tolerant parser could not read.
        shortened: How the text was shortened before it was read; None where it was read as it is.
    """

    functions: tuple[Function, ...]
    types: list[ValueType]
    reader: str
    refusals: tuple[tuple[str, str], ...] = ()
    unread: Sequence[str] = ()
    shortened: Shortened | None = None


_OTHER_ITEMSIZES_B = {
    "i1": 1.0, "index": 8.0, "complex<f32>": 8.0, "complex<f64>": 16.0, "f80": 16.0, "f128": 16.0, "f4E2M1FN": 0.5,
    "f6E2M3FN": 0.75, "f6E3M2FN": 0.75,
}  # fmt: skip
"""Bytes per element of element types that are no dtype of kernels; MLIR's data layout: i1 takes a byte in memory, index is
64 bits on 64-bit targets, an f80 takes 16 bytes (x86-64 psABI)."""

_INTEGER = re.compile(r"i(\d{1,4})")


@lru_cache(maxsize=1024)
def _itemsize_b(dtype: str) -> float:
    known = DTYPES.get(dtype)
    if known is not None:
        return known.itemsize_b
    integer = _INTEGER.fullmatch(dtype)
    if integer is None or dtype in _OTHER_ITEMSIZES_B:
        return _OTHER_ITEMSIZES_B.get(dtype, 0.0)
    # Below a byte integers are packed; above, the next power of two of bytes holds one, as LLVM lays them out.
    return int(integer[1]) / 8 if int(integer[1]) < 8 else float(1 << ((int(integer[1]) + 7) // 8 - 1).bit_length())


MAX_ELEMENTS = 2**62
"""Sizes and element counts beyond this are no real program's; such a type is kept as text only."""

_CACHED_TYPES = 16384

_ELEMENT_DTYPES = {
    "f64": "fp64", "f32": "fp32", "tf32": "tf32", "bf16": "bf16", "f16": "fp16",
    "i8": "int8", "i32": "int32", "i64": "int64", "!torch.int": "int64", "!torch.float": "fp64", "!torch.bool": "i1",
}  # fmt: skip
"""MLIR's element types by kernelcast's names; integers of either sign are one here. A torch.int is 64 bits, a torch.float is a
double (torch-mlir, TorchTypes.td)."""

_ANY_INTEGER = re.compile(r"[su]?(i[1-9]\d{0,7})")
_FLOAT8 = re.compile(r"f8E\dM\d\w*")
_NUMBER = re.compile(r"f(?:4|6|8)E\dM\d\w*|f80|f128|index|complex<\w+>")
_QUANTIZED = re.compile(r"!quant\.(?:uniform|any|calibrated)<([su]?i\d+)")
_ARRAY = re.compile(r"(tensor|memref|vector|!ttg\.memdesc)<(?:(\*)x|((?:(?:\d+|\?|\[\d+\])x)*))(.*)>", re.DOTALL)
_TORCH = re.compile(r"!torch\.v?tensor(?:<(\*|\[[\d?, ]*\])?(?:,\s*([^,<>]+(?:<[^<>]*>)?))?.*>)?", re.DOTALL)
_SPARE = re.compile(r"\s*([x<>,?*\[\]])\s*")
_KINDS = {"tensor": "tensor", "memref": "memref", "vector": "vector", "!ttg.memdesc": "memref"}

_cache: dict[str, ValueType] = {}


def value_type(text: str) -> ValueType:
    """The type written as `text`; what is no array or number has kind `other`. The same text gives the same object."""
    known = _cache.get(text)
    if known is None:
        if len(_cache) >= _CACHED_TYPES:
            _cache.clear()
        known = _cache[text] = _read(text)
    return known


def is_beyond_numbers(kind: ValueType) -> bool:
    """Whether it was an array of more than `MAX_ELEMENTS`, of which only the text was kept."""
    array = _ARRAY.fullmatch(kind.text) if kind.kind == "other" else None
    return array is not None and not array[2] and _shape(part for part in array[3].split("x") if part) is None


def element_dtype(text: str) -> str | None:
    """The dtype of an element type, MLIR's own name where kernelcast has none; None for what holds no numbers."""
    known = _ELEMENT_DTYPES.get(text)
    if known is not None:
        return known
    if integer := _ANY_INTEGER.fullmatch(text):
        return _ELEMENT_DTYPES.get(integer[1], integer[1])
    if _FLOAT8.fullmatch(text):
        return "fp8"
    if quantized := _QUANTIZED.match(text):
        return element_dtype(quantized[1])
    return text if _NUMBER.fullmatch(text) else None


def split_types(text: str) -> list[str]:
    """The types of a comma-separated list; commas inside brackets do not separate."""
    if "<" not in text and "(" not in text:
        return [part.strip() for part in text.split(",")] if text.strip() else []
    parts, start = [], 0
    for comma in _outside(text, ","):
        parts.append(text[start : comma.start()].strip())
        start = comma.end()
    last = text[start:].strip()
    return [*parts, last] if last or parts else []


def first_of_list(text: str) -> str:
    """What comes before the first comma that is inside no brackets."""
    comma = next(_outside(text, ","), None)
    return text[: len(text) if comma is None else comma.start()].strip()


_MARK = r'"(?:[^"\\]|\\.)*"|->|[<>()\[\]{},]'
_PLAIN = r'[^<>()\[\]{}"-]*+'
_ONE_BY_ONE = re.compile(_MARK)
_BRACKETS = re.compile(rf"<{_PLAIN}>|\((?:{_PLAIN}<{_PLAIN}>)*+{_PLAIN}\)|{_MARK}")
"""Types and lists of them at one go, all else one by one."""


def _outside(
    text: str, mark: str, brackets: re.Pattern[str] = _BRACKETS, start: int = 0, depth: int = 0
) -> Iterator[re.Match[str]]:
    """Where a comma or an arrow stands inside no brackets."""
    for item in brackets.finditer(text, start):
        if item[0] in "<([{":
            depth += 1
        elif item[0] in ">)]}":
            depth -= 1
            if depth < 0 and brackets is _BRACKETS:  # what opens from here on is taken for what closed too much
                yield from _outside(text, mark, _ONE_BY_ONE, item.end(), depth)
                return
        elif depth == 0 and item[0] == mark:
            yield item


def split_function_type(text: str) -> tuple[list[str], list[str]]:
    """Operand and result types of `(a, b) -> (c, d)` or `(a) -> c`; without an arrow all are results."""
    inputs, outs = sides_of_function_type(text)
    return split_types(inputs), split_types(outs)


def sides_of_function_type(text: str) -> tuple[str, str]:
    """The lists of operand and result types, as `split_function_type` splits them."""
    arrow = next(_outside(text, "->"), None)
    return ("", _bare(text)) if arrow is None else (_bare(text[: arrow.start()]), _bare(text[arrow.end() :]))


def _bare(text: str) -> str:
    """`text` without the parentheses around the whole of it."""
    text = text.strip()
    return text[1:-1] if text.startswith("(") and text.endswith(")") and _closes_at_end(text) else text


def _closes_at_end(text: str) -> bool:
    depth = 0
    for item in _BRACKETS.finditer(text):
        if item[0] in "<([{":
            depth += 1
        elif item[0] in ">)]}":
            depth -= 1
        if depth == 0:
            return item.end() == len(text)
    return False


def _read(text: str) -> ValueType:
    if (torch := _TORCH.fullmatch(text)) is not None:
        return _torch(text, torch[1], torch[2])
    array = _ARRAY.fullmatch(text) or _ARRAY.fullmatch(_SPARE.sub(r"\1", text))
    if array is None:
        dtype = element_dtype(text)
        return ValueType("other", None, "", text) if dtype is None else ValueType("scalar", (), dtype, text)
    opening, unranked, sizes, rest = array.groups()
    shape = None if unranked else _shape(part for part in sizes.split("x") if part)
    if not unranked and shape is None:
        return ValueType("other", None, "", text)
    element = (split_types(rest) or [""])[0]
    return ValueType(_KINDS[opening], shape, element_dtype(element) or element, text)


def _torch(text: str, sizes: str | None, element: str | None) -> ValueType:
    dtype = (element_dtype(element.strip()) or element.strip()) if element and element != "unk" else ""
    if sizes is None or sizes == "*":
        return ValueType("tensor", None, dtype, text)
    shape = _shape(part for part in sizes[1:-1].replace(" ", "").split(",") if part)
    return ValueType("other", None, "", text) if shape is None else ValueType("tensor", shape, dtype, text)


def _shape(parts: Iterable[str]) -> tuple[int | None, ...] | None:
    """Sizes; `?` and scalable sizes (`[4]`, a multiple only the machine knows) are dynamic. None when beyond all numbers."""
    shape: list[int | None] = []
    total = 1
    for part in parts:
        if not part.isdecimal():
            shape.append(None)
            continue
        size = int(part) if len(part) <= _MAX_DIGITS else MAX_ELEMENTS + 1
        total *= max(size, 1)
        if total > MAX_ELEMENTS:
            return None
        shape.append(size)
    return tuple(shape)


_MAX_DIGITS = len(str(MAX_ELEMENTS))
