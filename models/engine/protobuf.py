"""Just enough of Protocol Buffers' wire format to read an ONNX file without the `onnx` package.

Field numbers are those of `onnx.proto` (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto); the encoding is
https://protobuf.dev/programming-guides/encoding/. What is not as this product writes it raises `UnlikeError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

_VARINT, _BYTES = 0, 2
_INTS_TAG = 8 << 3 | _VARINT
"""AttributeProto.ints, one tag for every number: proto2 does not pack them."""

_FLOAT, _INT64, _UINT8 = 1, 7, 2
_DTYPES: dict[int, Any] = {_FLOAT: np.dtype("<f4"), _INT64: np.dtype("<i8"), _UINT8: np.dtype("u1")}
"""TensorProto.DataType, of the kinds that this product writes."""

_MOST_ELEMENTS = 1 << 28


class UnlikeError(Exception):
    """The bytes are no ONNX graph of the kind that is read here. It never leaves `graph_reader`."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: its attributes are ints, strings' bytes, int64 arrays or tensors.

    Attributes:
        domain: Operator set; empty for ONNX's own.
        kind: Operator.
        inputs: Names of its inputs.
        outputs: Names of its outputs.
        attributes: Attributes by name.
    """

    domain: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


@dataclass(slots=True)
class Graph:
    """A graph's operations in their order, its constants, and the widths of its one input and its one output.

    Attributes:
        nodes: Operations in order.
        constants: Arrays by name.
        inputs: Shape of each input by name.
        outputs: Shape of each output by name.
    """

    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)


def read_graph(model: bytes) -> tuple[Graph, dict[str, int]]:
    """The graph of a serialised ModelProto, and the version of each operator set it names.

    Raises:
        UnlikeError: damaged, or with parts that this product does not write.
    """
    graph: Graph | None = None
    opsets: dict[str, int] = {}
    for number, value in _fields(memoryview(model)):
        match number:
            case 1 | 2:  # ir_version, producer_name
                pass
            case 7 if graph is None:
                graph = _graph(_part(value))
            case 8:
                entry = dict(_fields(_part(value)))
                opsets[_text(entry.get(1, memoryview(b"")))] = _whole(entry.get(2))
            case _:
                raise UnlikeError
    if graph is None:
        raise UnlikeError
    return graph, opsets


def _graph(content: memoryview) -> Graph:
    graph = Graph()
    for number, value in _fields(content):
        match number:
            case 1:
                graph.nodes.append(_node(_part(value)))
            case 2:  # name
                pass
            case 5:
                name, tensor = _tensor(_part(value))
                if name in graph.constants:
                    raise UnlikeError
                graph.constants[name] = tensor
            case 11 | 12:
                name, shape = _value_info(_part(value))
                (graph.inputs if number == 11 else graph.outputs)[name] = shape
            case _:
                raise UnlikeError
    return graph


def _node(content: memoryview) -> Node:
    inputs, outputs, domain, kind = [], [], "", ""
    attributes: dict[str, Any] = {}
    for number, value in _fields(content):
        match number:
            case 1:
                inputs.append(_text(value))
            case 2:
                outputs.append(_text(value))
            case 4:
                kind = _text(value)
            case 5:
                name, attribute = _attribute(_part(value))
                if name in attributes:
                    raise UnlikeError
                attributes[name] = attribute
            case 7:
                domain = _text(value)
            case _:
                raise UnlikeError
    return Node(domain, kind, tuple(inputs), tuple(outputs), attributes)


def _attribute(content: memoryview) -> tuple[str, Any]:
    """An attribute's name and value: `i`, `t` or `ints` (fields 3, 5, 8)."""
    name = ""
    items: list[Any] = []
    position = 0
    while position < len(content):
        if content[position] == _INTS_TAG:
            ints, position = _ints(content, position)
            items.append(ints)
            continue
        number, value, position = _field(content, position)
        match number:
            case 1:
                name = _text(value)
            case 3:
                items.append(_whole(value))
            case 5:
                items.append(_tensor(_part(value))[1])
            case 20:  # type
                pass
            case _:
                raise UnlikeError
    if len(items) != 1:
        raise UnlikeError
    return name, items[0]


def _ints(content: memoryview, start: int) -> tuple[npt.NDArray[np.int64], int]:
    """The run of `ints` that starts at `start`, and where it ends: tags and numbers take turns."""
    raw = np.frombuffer(content[start:], dtype=np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    ends = ends[: len(ends) // 2 * 2]
    tags, numbers = ends[0::2], ends[1::2]
    begins = np.concatenate([[0], numbers[:-1] + 1]) if len(numbers) else np.zeros(0, dtype=np.int64)
    other = np.flatnonzero((tags != begins) | (raw[tags] != _INTS_TAG))
    count = int(other[0]) if len(other) else len(tags)
    if not count:
        raise UnlikeError
    tags, numbers = tags[:count], numbers[:count]
    lengths = numbers - tags
    if lengths.max() > 9:  # a tenth byte is a negative number's
        raise UnlikeError
    values = np.zeros(count, dtype=np.int64)
    for place in range(int(lengths.max())):
        there = lengths > place
        values[there] |= (raw[tags[there] + 1 + place] & 0x7F).astype(np.int64) << (7 * place)
    return values, start + int(numbers[-1]) + 1


def _tensor(content: memoryview) -> tuple[str, npt.NDArray[Any]]:
    """A TensorProto's name and array: dims, data_type, name and raw_data."""
    dims: list[int] = []
    kind, name, raw = 0, "", memoryview(b"")
    for number, value in _fields(content):
        match number:
            case 1:
                dims.append(_whole(value))
            case 2:
                kind = _whole(value)
            case 8:
                name = _text(value)
            case 9:
                raw = _part(value)
            case _:
                raise UnlikeError
    if kind not in _DTYPES or len(dims) > 8 or any(not 0 <= size <= _MOST_ELEMENTS for size in dims):
        raise UnlikeError
    dtype, count = _DTYPES[kind], 1
    for size in dims:
        count *= size
    if count > _MOST_ELEMENTS or count * dtype.itemsize != len(raw):
        raise UnlikeError
    return name, np.frombuffer(raw, dtype=dtype).reshape(dims)


def _value_info(content: memoryview) -> tuple[str, tuple[int, ...]]:
    """Name and shape of a float32 input or output; a dimension with a name is 0."""
    named = dict(_fields(content))
    tensor = dict(_fields(_part(dict(_fields(_part(named.get(2)))).get(1))))
    if _whole(tensor.get(1)) != _FLOAT:
        raise UnlikeError
    dims = [dict(_fields(_part(dim))) for number, dim in _fields(_part(tensor.get(2))) if number == 1]
    return _text(named.get(1)), tuple(_whole(dim[1]) if 1 in dim else 0 for dim in dims)


def _fields(content: memoryview) -> Iterator[tuple[int, Any]]:
    position = 0
    while position < len(content):
        number, value, position = _field(content, position)
        yield number, value


def _field(content: memoryview, position: int) -> tuple[int, Any, int]:
    """Number and value of the field at `position`, and where the next one starts."""
    tag, position = _varint(content, position)
    number, wire = tag >> 3, tag & 7
    if wire == _VARINT:
        value, position = _varint(content, position)
        return number, value, position
    if wire == _BYTES:
        size, position = _varint(content, position)
        if size > len(content) - position:
            raise UnlikeError
        return number, content[position : position + size], position + size
    raise UnlikeError


def _varint(content: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if position >= len(content):
            break
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, position
    raise UnlikeError


def _part(value: Any) -> memoryview:
    if not isinstance(value, memoryview):
        raise UnlikeError
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise UnlikeError
    return value


def _text(value: Any) -> str:
    try:
        return bytes(_part(value)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnlikeError from error
