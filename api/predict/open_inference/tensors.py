"""Tensors on the wire: one column of an infer request or answer, as JSON or as raw bytes, to and from numpy.

The raw form is the binary tensor data extension of NVIDIA Triton Inference Server
(docs/protocol/extension_binary_data.md): numbers little-endian and row-major, BOOL one byte each, and every element of
BYTES its length in four bytes, little-endian, and then itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ....features.batch.categorical import Categorical
from ....features.errors import SpecError, listed
from ....features.spec_io.reading import MAX_TEXT, kind_of, shown_name
from ...transport.problems import ProblemError

Column = Categorical | npt.NDArray[np.int64]
"""The values of an input, shape `(n,)`: text with every distinct word once, or whole numbers."""

DATATYPES = (
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
)
"""The protocol's names of element types; inputs here are BYTES or INT64, outputs BYTES, FP64 or BOOL."""

_LENGTH = struct.Struct("<I")
_SHARED = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")


@dataclass(frozen=True, slots=True)
class TensorKind:
    """An input or output tensor of a model.

    Attributes:
        name: Its name.
        datatype: Its element type, one of `DATATYPES`.
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
        raise SpecError(
            f"{name} needs a shape, a list such as [3]; it is {_shown_field(tensor, 'shape')}", field="shape"
        )
    if (
        not shape
        or len(shape) > 2
        or (len(shape) == 2 and shape[1] != 1)
        or any(type(size) is not int for size in shape)
    ):
        raise SpecError(f"the shape of {name} is {_shown(shape)}; it must be [n] or [n, 1]", field="shape")
    rows: int = shape[0]
    if rows < 1:
        raise SpecError(f"the shape of {name} is {_shown(shape)}; it must have at least one row", field="shape")
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
    datatype = tensor.get("datatype")
    if datatype == kind.datatype:
        return
    if datatype not in DATATYPES:
        raise SpecError(
            f"{kind.name} needs the datatype {kind.datatype}; it is {_shown_field(tensor, 'datatype')}",
            field="datatype",
        )
    raise SpecError(f"{kind.name} is {datatype}; it must be {kind.datatype}", field="datatype")


def binary_size(tensor: Mapping[str, Any], name: str) -> int | None:
    """How many bytes after the JSON are this tensor's, None where its data is in the JSON.

    Raises:
        SpecError: no whole number of bytes, data in both places or in neither, or data in shared memory.
    """
    parameters = tensor.get("parameters")
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, Mapping):
        raise SpecError(f"the parameters of {name} must be an object, not {kind_of(parameters)}", field="parameters")
    if any(name in parameters for name in _SHARED):
        raise SpecError(f"{name} is in shared memory, which is not read here; send its data", field="parameters")
    size = parameters.get("binary_data_size")
    if size is None:
        if "data" not in tensor:
            raise SpecError(f"{name} has neither data nor the parameter binary_data_size", field="data")
        return None
    if type(size) is not int or size < 0:
        raise SpecError(
            f"binary_data_size of {name} is {_shown(size)}; it must be a whole number of bytes",
            field="parameters.binary_data_size",
        )
    if "data" in tensor:
        raise SpecError(f"{name} has data and the parameter binary_data_size; send only one of them", field="data")
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
        raise SpecError(f"{kind.name}[{index}] must be {word}, got {_element(value)}", field=f"data[{index}]")
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
        try:
            word = raw if isinstance(raw, str) else raw.decode()
        except UnicodeDecodeError:
            index = code.index(position)
            raise SpecError(f"{name}[{index}] is not UTF-8", field=f"data[{index}]") from None
        if len(word) > MAX_TEXT or "\0" in word:
            index = code.index(position)
            wrong = (
                "holds a zero byte"
                if "\0" in word
                else f"is {len(word)} characters long; names have at most {MAX_TEXT}"
            )
            raise SpecError(f"{name}[{index}] {wrong}", field=f"data[{index}]")
        texts.append(word)
    return Categorical(tuple(texts), np.array(code, dtype=np.intp))


def _plain(values: npt.NDArray[Any]) -> list[Any]:
    listed_values: list[Any] = values.tolist()
    return listed_values


def _numbers_or_null(values: npt.NDArray[np.float64]) -> list[float | None]:
    """JSON has no NaN: what is unknown is null."""
    unknown = np.isnan(values)
    numbers: list[float | None] = values.tolist()
    if unknown.any():
        for index in np.flatnonzero(unknown).tolist():
            numbers[index] = None
    return numbers


def _text_list(values: Categorical) -> list[str]:
    texts = values.words
    return [texts[code] for code in values.code.tolist()]


def _text_bytes(values: Categorical) -> bytes:
    encoded = [_LENGTH.pack(len(raw)) + raw for raw in (word.encode() for word in values.words)]
    return b"".join([encoded[code] for code in values.code.tolist()])


_AS_JSON: Mapping[str, Callable[[Any], list[Any]]] = {"FP64": _numbers_or_null, "BOOL": _plain, "BYTES": _text_list}
_AS_BYTES: Mapping[str, Callable[[Any], bytes]] = {
    "FP64": lambda values: values.astype("<f8", copy=False).tobytes(),
    "BOOL": lambda values: values.astype(np.bool_, copy=False).tobytes(),
    "BYTES": _text_bytes,
}


def to_json(datatype: str, values: Any) -> list[Any]:
    """An output's column of shape `(n,)` as a JSON array; NaN becomes null."""
    return _AS_JSON[datatype](values)


def to_bytes(datatype: str, values: Any) -> bytes:
    """An output's column of shape `(n,)` as raw bytes; NaN stays NaN."""
    return _AS_BYTES[datatype](values)


def _shown_field(tensor: Mapping[str, Any], field: str) -> str:
    return f"{_shown(tensor[field])}" if field in tensor else "missing"


def _element(value: Any) -> str:
    return str(value) if isinstance(value, float) else kind_of(value)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        inside = listed(map(_shown, value[:4]))
        return f"[{inside}{', …' if len(value) > 4 else ''}]"
    return shown_name(value) if isinstance(value, str | int | float) else kind_of(value)
