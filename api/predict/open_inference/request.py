"""From the body of an infer request to checked columns: the JSON, the bytes after it, and what is asked back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....features.errors import SpecError, listed
from ....features.spec_io.reading import MAX_TEXT, kind_of, shown_name
from ...transport.bodies import read_coverage, read_object, refuse_duplicate_names
from ...transport.problems import MAX_LISTED, FieldProblem, ProblemError, field_problem, invalid, invalid_field
from .models import OUTPUTS, inputs_of
from .tensors import (
    Column,
    TensorKind,
    binary_size,
    from_bytes,
    from_json,
    read_datatype,
    read_rows,
)

HEADER = b"inference-header-content-length"
"""The header that says where the JSON ends and the tensors' bytes begin."""

_ROOT = ("id", "model_name", "model_version", "parameters", "inputs", "outputs")
# Hints of other servers' clients say nothing that changes an answer here.
_HINTS = ("content_type",)
_REQUEST_PARAMETERS = ("coverage", "binary_data_output", *_HINTS)
_INPUT_FIELDS = ("name", "shape", "datatype", "parameters", "data")
_OUTPUT_PARAMETERS = ("binary_data", *_HINTS)
_BY_NAME = {output.name: output for output in OUTPUTS}


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A checked infer request: kernels in columns, and the outputs wanted.

    Attributes:
        id: The client's id, which is echoed; None without one.
        rows: Number of kernels.
        columns: Values of each input; a column of one value is for all rows.
        positions: Position in `inputs` of each column.
        outputs: The outputs wanted, each with whether it is sent as bytes.
        coverage: Coverage of the intervals.
    """

    id: str | None
    rows: int
    columns: Mapping[str, Column]
    positions: Mapping[str, int]
    outputs: tuple[tuple[TensorKind, bool], ...]
    coverage: float


def read_infer_request(body: bytes, header_b: bytes | None, model: str, version: str, max_rows: int) -> InferRequest:
    """The request in a body; `header_b` is the value of `HEADER`, None where the whole body is JSON.

    Raises:
        ProblemError: 400 for a body that cannot be read, 422 naming the tensors that are wrong.
    """
    text, raw = split_body(body, header_b)
    root = read_object(text, what="the request")
    if b"\\" in text or text.count(b":") != _names(root):
        refuse_duplicate_names(text, root, [])
    if unknown := [name for name in root if name not in _ROOT]:
        raise invalid_field(shown_name(unknown[0]), f"unknown field; a request takes {listed(_ROOT)}")
    for field, expected in (("model_name", model), ("model_version", version)):
        if root.get(field) not in (None, "", expected):
            raise invalid_field(field, f"is {_short(root[field])}, and the address names {expected!r}")
    parameters = _parameters(root, "parameters", _REQUEST_PARAMETERS)
    identity = root.get("id")
    if identity is not None and (not isinstance(identity, str) or len(identity) > MAX_TEXT):
        raise invalid_field("id", f"must be text of at most {MAX_TEXT} characters")
    columns, positions = _read_inputs(root.get("inputs"), raw, model, max_rows)
    rows = max(map(len, columns.values()))
    return InferRequest(
        id=identity,
        rows=rows,
        columns=columns,
        positions=positions,
        outputs=_read_outputs(root.get("outputs"), _flag(parameters, "binary_data_output", "parameters")),
        coverage=read_coverage(parameters, "parameters.coverage"),
    )


def split_body(body: bytes, header_b: bytes | None) -> tuple[bytes, memoryview]:
    """The JSON of a body, and the bytes after it.

    Raises:
        ProblemError: 400, the header is no length, or longer than the body; or there is no body.
    """
    if not body:
        raise ProblemError(400, "the body is empty; send an inference request, a JSON object with inputs")
    if header_b is None:
        return body, memoryview(b"")
    shown = header_b.decode("latin-1")[:40]
    if not header_b.isdigit() or len(header_b) > 12:
        raise ProblemError(400, f"Inference-Header-Content-Length is {shown!r}; it is the number of bytes of the JSON")
    length = int(header_b)
    if not 0 < length <= len(body):
        raise ProblemError(400, f"Inference-Header-Content-Length is {length}, and the body has {len(body)} bytes")
    return body[:length], memoryview(body)[length:]


def _read_inputs(tensors: Any, raw: memoryview, model: str, max_rows: int) -> tuple[dict[str, Column], dict[str, int]]:
    if not isinstance(tensors, list) or not tensors:
        raise invalid_field("inputs", "must be a list of at least one tensor")
    known = inputs_of(model)
    if len(tensors) > len(known):
        raise invalid_field("inputs", f"{len(tensors)} tensors; {model} takes at most {len(known)}")
    columns: dict[str, Column] = {}
    positions: dict[str, int] = {}
    errors: list[FieldProblem] = []
    at = 0
    for index, tensor in enumerate(tensors):
        try:
            kind = _input_kind(tensor, known, columns, model)
            size = binary_size(tensor, kind.name)
            if size is not None and at + size > len(raw):
                raise SpecError(
                    f"{kind.name} says it has {size} bytes after the JSON, and {len(raw) - at} are left",
                    field="parameters.binary_data_size",
                )
            part, at = raw[at : at + (size or 0)], at + (size or 0)
            read_datatype(tensor, kind)
            rows = read_rows(tensor, kind.name, max_rows)
            columns[kind.name] = from_json(tensor["data"], kind, rows) if size is None else from_bytes(part, kind, rows)
            positions[kind.name] = index
        except SpecError as error:
            where = f"inputs[{index}].{error.field}" if error.field else f"inputs[{index}]"
            errors.append(field_problem(error, where))
    if not errors and at != len(raw):
        raise ProblemError(400, f"{len(raw) - at} bytes after the JSON belong to no input")
    if not errors:
        errors = _missing_or_unequal(columns, positions, known, model)
    if errors:
        raise invalid(errors[:MAX_LISTED])
    return columns, positions


def _input_kind(tensor: Any, known: Mapping[str, TensorKind], seen: Mapping[str, Column], model: str) -> TensorKind:
    if not isinstance(tensor, dict):
        raise SpecError(f"a tensor is a JSON object, not {kind_of(tensor)}")
    name = tensor.get("name")
    if not isinstance(name, str) or name not in known:
        raise SpecError(f"{model} has no input {_short(name)}; inputs: {listed(known)}", field="name")
    if name in seen:
        raise SpecError(f"{name} is given twice", field="name")
    if unknown := [field for field in tensor if field not in _INPUT_FIELDS]:
        raise SpecError(f"unknown field {shown_name(unknown[0])!r}; a tensor takes {listed(_INPUT_FIELDS)}")
    return known[name]


def _missing_or_unequal(
    columns: Mapping[str, Column], positions: Mapping[str, int], known: Mapping[str, TensorKind], model: str
) -> list[FieldProblem]:
    missing = [tensor for tensor in known.values() if not tensor.optional and tensor.name not in columns]
    if missing:
        needed = listed(tensor.name for tensor in known.values() if not tensor.optional)
        return [FieldProblem("inputs", f"{tensor.name} is missing; {model} needs {needed}") for tensor in missing]
    rows = max(map(len, columns.values()))
    return [
        FieldProblem(f"inputs[{positions[name]}].shape",
                     f"{name} has {len(column)} rows, others have {rows}; give one value, or as many as there are rows")
        for name, column in columns.items()
        if len(column) not in (1, rows)
    ]  # fmt: skip


def _read_outputs(items: Any, binary: bool) -> tuple[tuple[TensorKind, bool], ...]:
    if items is None or items == []:
        return tuple((output, binary) for output in OUTPUTS)
    if not isinstance(items, list) or len(items) > len(OUTPUTS):
        raise invalid_field("outputs", f"must be a list of at most {len(OUTPUTS)} outputs: {listed(_BY_NAME)}")
    outputs: dict[str, tuple[TensorKind, bool]] = {}
    for index, item in enumerate(items):
        where = f"outputs[{index}]"
        if not isinstance(item, dict):
            raise invalid_field(where, f"must be an object with a name, not {kind_of(item)}")
        name = item.get("name")
        if not isinstance(name, str) or name not in _BY_NAME:
            raise invalid_field(f"{where}.name", f"no output {_short(name)}; outputs: {listed(_BY_NAME)}")
        if name in outputs:
            raise invalid_field(f"{where}.name", f"{name} is asked for twice")
        parameters = _parameters(item, f"{where}.parameters", _OUTPUT_PARAMETERS)
        as_bytes = _flag(parameters, "binary_data", f"{where}.parameters", binary)
        outputs[name] = (_BY_NAME[name], as_bytes)
    return tuple(outputs.values())


def _parameters(holder: Mapping[str, Any], where: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    parameters = holder.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise invalid_field(where, f"must be an object, not {kind_of(parameters)}")
    if unknown := [name for name in parameters if name not in known]:
        raise invalid_field(
            f"{where}.{shown_name(unknown[0])}", f"unknown parameter; those known here: {listed(known)}"
        )
    return parameters


def _flag(parameters: Mapping[str, Any], name: str, where: str, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise invalid_field(f"{where}.{name}", f"must be true or false, not {kind_of(value)}")
    return value


def _names(value: Any) -> int:
    """How many names the objects of a request have, wherever the protocol has objects."""
    if isinstance(value, dict):
        return len(value) + sum(_names(part) for name, part in value.items() if name != "data")
    return sum(map(_names, value)) if isinstance(value, list) else 0


def _short(value: Any) -> str:
    return repr(shown_name(value)) if isinstance(value, str) else kind_of(value)
