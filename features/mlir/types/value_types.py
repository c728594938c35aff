"""From the text of an MLIR type to a `ValueType`: shapes, element types, and what is no number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from .graph import ValueType

MAX_ELEMENTS = 2**62
"""Sizes and element counts beyond this are no real program's; such a type is kept as text only."""

_CACHED_TYPES = 16384

_ELEMENT_DTYPES = {
    "f64": "fp64", "f32": "fp32", "tf32": "tf32", "bf16": "bf16", "f16": "fp16",
    "i8": "int8", "i32": "int32", "i64": "int64", "!torch.int": "int64", "!torch.float": "fp64", "!torch.bool": "i1",
}  # fmt: skip
"""MLIR's element types by kernelcast's names; integers of either sign are one here. A torch.int is 64 bits, a torch.float is a
double (torch-mlir, TorchTypes.td)."""

_INTEGER = re.compile(r"[su]?(i[1-9]\d{0,7})")
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
    if integer := _INTEGER.fullmatch(text):
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
    for comma in _commas(text):
        parts.append(text[start:comma].strip())
        start = comma + 1
    last = text[start:].strip()
    return [*parts, last] if last or parts else []


def first_of_list(text: str) -> str:
    """What comes before the first comma that is inside no brackets."""
    return text[: next(_commas(text), len(text))].strip()


def _commas(text: str) -> Iterator[int]:
    """Where the commas inside no brackets are; ends where a bracket closes that was not opened."""
    depth = 0
    for item in _BRACKETS.finditer(text):
        mark = item[0]
        if mark in "<([{":
            depth += 1
        elif mark in ">)]}":
            depth -= 1
        elif mark == "," and depth == 0:
            yield item.start()


_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|->|[<>()\[\]{},]')
_ARROW_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|->|[<>()\[\]{}]')


def split_function_type(text: str) -> tuple[list[str], list[str]]:
    """Operand and result types of `(a, b) -> (c, d)` or `(a) -> c`; without an arrow all are results."""
    depth = 0
    for item in _ARROW_OR_BRACKET.finditer(text):
        mark = item[0]
        if mark == "->" and depth == 0:
            return split_types(_bare(text[: item.start()])), split_types(_bare(text[item.end() :]))
        if mark in "<([{":
            depth += 1
        elif mark in ">)]}":
            depth -= 1
    return [], split_types(_bare(text))


def _bare(text: str) -> str:
    """`text` without the parentheses around the whole of it."""
    text = text.strip()
    return text[1:-1] if text.startswith("(") and text.endswith(")") and _closes_at_end(text) else text


def _closes_at_end(text: str) -> bool:
    depth = 0
    for item in _ARROW_OR_BRACKET.finditer(text):
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
