"""Tensors on the wire: one column of an infer request or answer, as JSON or as raw bytes, to and from numpy.

The raw form is the binary tensor data extension of NVIDIA Triton Inference Server
(docs/protocol/extension_binary_data.md): numbers little-endian and row-major, BOOL one byte each, and every element of
BYTES its length in four bytes, little-endian, and then itself.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ....features.batch.categorical import Categorical
from ....features.errors import SpecError
from ....features.spec_io.reading import MAX_TEXT, kind_of, shown_name
from ...transport.problems import ProblemError

Column = Categorical | npt.NDArray[np.int64]
"""The values of an input, shape `(n,)`: text with every distinct word once, or whole numbers."""

_LENGTH = struct.Struct("<I")
_SHARED = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")


@dataclass(frozen=True, slots=True)
class TensorKind:
    """An input or output tensor of a model.

    Attributes:
        name: Its name.
        datatype: Its element type as the protocol calls it; inputs are BYTES or INT64, outputs BYTES, FP64 or BOOL.
        doc: What it holds.
        optional: Whether an input may be left out.
    """

    name: str
    datatype: str
    doc: str
    optional: bool = False


def read_rows(tensor: Mapping[str, Any], name: str, max_rows: int) -> int:
    """The number of rows a tensor's shape says, `[n]` or `[n, 1]`.

    Raises:
        SpecError: another shape.
        ProblemError: 413, more rows than are taken.
    """
    shape = tensor.get("shape")
    if not isinstance(shape, list):
        shown = _shown_field(tensor, "shape")
        raise SpecError(f"{name} needs a shape, a list such as [3]; it is {shown}", field="shape")
    is_column = shape[1:] in ([], [1]) and all(type(size) is int for size in shape)
    if not shape or not is_column or shape[0] < 1:
        shown = _shown_field(tensor, "shape")
        raise SpecError(
            f"the shape of {name} is {shown}; it must be [n] or [n, 1], with at least one row", field="shape"
        )
    rows: int = shape[0]
    if rows > max_rows:
        raise ProblemError(
            413, f"{name} has {rows} rows; at most {max_rows} are allowed in one request, send them in parts"
        )
    return rows


def read_datatype(tensor: Mapping[str, Any], kind: TensorKind) -> None:
    """Check that a tensor is of its input's datatype.

    Raises:
        SpecError: it is another, or none.
    """
    if tensor.get("datatype") != kind.datatype:
        shown = _shown_field(tensor, "datatype")
        raise SpecError(f"{kind.name} needs the datatype {kind.datatype}; it is {shown}", field="datatype")


def binary_size(tensor: Mapping[str, Any], name: str) -> int | None:
    """How many bytes after the JSON are this tensor's, None where its data is in the JSON.

    Raises:
        SpecError: no whole number of bytes, data in both places or in neither, or data in shared memory.
    """
    parameters = {} if tensor.get("parameters") is None else tensor["parameters"]
    if not isinstance(parameters, Mapping):
        raise SpecError(f"the parameters of {name} must be an object, not {kind_of(parameters)}", field="parameters")
    if any(name in parameters for name in _SHARED):
        raise SpecError(f"{name} is in shared memory, which is not read here; send its data", field="parameters")
    size = parameters.get("binary_data_size")
    if (size is None) == ("data" not in tensor):
        wrong = "neither data nor" if size is None else "data and"
        raise SpecError(f"{name} has {wrong} the parameter binary_data_size; send one of them", field="data")
    if size is not None and (type(size) is not int or size < 0):
        shown = _shown_field(parameters, "binary_data_size")
        raise SpecError(
            f"binary_data_size of {name} is {shown}; it must be a whole number of bytes",
            field="parameters.binary_data_size",
        )
    return size


def from_json(data: Any, kind: TensorKind, rows: int) -> Column:
    """The column in a JSON array, flat or with one element per row.

    Raises:
        SpecError: not as many elements as rows, or an element that is not of the datatype.
    """
    if not isinstance(data, list):
        raise SpecError(f"the data of {kind.name} must be a list, not {kind_of(data)}", field="data")
    if len(data) != rows:
        raise SpecError(f"the shape of {kind.name} says {rows} rows, its data has {len(data)}", field="data")
    if set(map(type, data)) == {list}:
        if any(len(row) != 1 for row in data):
            raise SpecError(f"every row of {kind.name} must hold one element", field="data")
        data = [row[0] for row in data]
    wanted = str if kind.datatype == "BYTES" else int
    if set(map(type, data)) != {wanted}:
        index, value = next((index, value) for index, value in enumerate(data) if type(value) is not wanted)
        word = "text" if wanted is str else "a whole number"
        shown = value if isinstance(value, float) else kind_of(value)
        raise SpecError(f"{kind.name}[{index}] must be {word}, got {shown}", field=f"data[{index}]")
    return _coded(data, kind.name) if wanted is str else _whole_numbers(data, kind.name)


def from_bytes(raw: memoryview, kind: TensorKind, rows: int) -> Column:
    """The column in a tensor's part of the bytes after the JSON.

    Raises:
        SpecError: the bytes are not as many as the rows need, or hold a text that is none.
    """
    if kind.datatype == "BYTES":
        return _coded(_texts(raw, kind.name, rows), kind.name)
    if len(raw) != 8 * rows:
        raise SpecError(
            f"{kind.name} has {len(raw)} bytes; {rows} rows of INT64 are {8 * rows}",
            field="parameters.binary_data_size",
        )
    return np.frombuffer(raw, dtype="<i8").astype(np.int64)


def _whole_numbers(data: list[int], name: str) -> npt.NDArray[np.int64]:
    try:
        return np.array(data, dtype=np.int64)
    except OverflowError:
        index = next(index for index, value in enumerate(data) if not -(2**63) <= value < 2**63)
        raise SpecError(f"{name}[{index}] does not fit an INT64", field=f"data[{index}]") from None


def _texts(raw: memoryview, name: str, rows: int) -> list[bytes]:
    """The elements of a BYTES tensor, each still as bytes."""
    if len(raw) >= 4:
        (length,) = _LENGTH.unpack_from(raw)
        # One word in every row, as a column of devices often is, needs no walk over the rows.
        if len(raw) == rows * (4 + length) and bytes(raw) == bytes(raw[: 4 + length]) * rows:
            return [bytes(raw[4 : 4 + length])] * rows
    texts: list[bytes] = []
    body, at, end = bytes(raw), 0, len(raw)
    unpack = _LENGTH.unpack_from
    while at < end and len(texts) < rows:
        if at + 4 > end:
            raise SpecError(f"{name}[{len(texts)}] ends within its length", field="data")
        start = at + 4
        at = start + unpack(body, at)[0]
        if at > end:
            raise SpecError(
                f"{name}[{len(texts)}] says it has {at - start} bytes, and {end - start} are left", field="data"
            )
        texts.append(body[start:at])
    if len(texts) != rows or at != end:
        more = "more" if at != end else str(len(texts))
        raise SpecError(f"the shape of {name} says {rows} rows, its bytes hold {more}", field="data")
    return texts


def _coded(data: Sequence[str] | Sequence[bytes], name: str) -> Categorical:
    """The column with each distinct word once; only distinct words are checked."""
    number: dict[str | bytes, int] = {}
    code = [number.setdefault(word, len(number)) for word in data]
    texts: list[str] = []
    for raw, position in number.items():
        word, wrong = "", ""
        try:
            word = raw if isinstance(raw, str) else raw.decode()
        except UnicodeDecodeError:
            wrong = "is not UTF-8"
        if "\0" in word:
            wrong = "holds a zero byte"
        elif len(word) > MAX_TEXT:
            wrong = f"is {len(word)} characters long; names have at most {MAX_TEXT}"
        if wrong:
            index = code.index(position)
            raise SpecError(f"{name}[{index}] {wrong}", field=f"data[{index}]")
        texts.append(word)
    return Categorical(tuple(texts), np.array(code, dtype=np.intp))


def _text_bytes(values: Categorical) -> bytes:
    encoded = [_LENGTH.pack(len(raw)) + raw for raw in (word.encode() for word in values.words)]
    return b"".join([encoded[code] for code in values.code.tolist()])


def to_json(values: Any) -> list[Any]:
    """An output's column of shape `(n,)` as a JSON array; what is NaN is encoded as null."""
    texts = values.strings() if isinstance(values, Categorical) else values
    items: list[Any] = texts.tolist()
    return items


def to_bytes(datatype: str, values: Any) -> bytes:
    """An output's column of shape `(n,)` as raw bytes; NaN stays NaN."""
    if datatype == "BYTES":
        return _text_bytes(values)
    raw: bytes = values.astype({"FP64": "<f8", "BOOL": np.bool_}[datatype], copy=False).tobytes()
    return raw


def _shown_field(holder: Mapping[str, Any], field: str) -> str:
    """A field as an error shows it."""
    value = holder.get(field)
    if field not in holder:
        return "missing"
    return shown_name(value if isinstance(value, str) else json.dumps(value))
