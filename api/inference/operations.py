"""The protocol's addresses as the OpenAPI document describes them, and the table of them that `api/doors.py` takes over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ... import __version__
from ...features.kernel import families
from ..describe import EXAMPLE_DEVICE
from ..openapi_parts import Refusal, json_of, ref, responses
from ..requests import DEFAULT_COVERAGE, MAX_TEXT
from . import metadata
from .infer import InferEndpoint
from .models import OUTPUTS, PLATFORM, inputs_of
from .tensors import DATATYPES

Operation = Callable[[Refusal], dict[str, Any]]

_VERSION = "1d6dcb9d6f6a"
_MODEL = "/v2/models/{name}"
_VERSIONED = "/v2/models/{name}/versions/{version}"
_PARAMETERS = {
    "name": "A kernel family, such as gemm",
    "version": "The first 12 hex digits of the SHA-256 of the served model's manifest; any other is 404",
}


def infer_schemas() -> dict[str, Any]:
    """Schemas of the protocol's requests and answers."""
    shape = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}
    free = {"type": "object"}
    tensor = {"name": {"type": "string"}, "datatype": {"enum": list(DATATYPES)}, "shape": shape, "parameters": free}
    data = {
        "type": "array",
        "description": "Flat, or one element per row; left out where the data are bytes after the JSON",
    }
    text = {"type": "string"}
    described = _object(tensor, "name", "datatype", "shape")
    return {
        "InferTensor": _object(tensor | {"data": data}, "name", "datatype", "shape"),
        "InferOutputRequest": _object({"name": {"enum": [one.name for one in OUTPUTS]}, "parameters": free}, "name"),
        "InferRequest": _object(
            {
                "id": text | {"maxLength": MAX_TEXT, "description": "Echoed in the answer"},
                "parameters": {
                    "type": "object",
                    "properties": {
                        "coverage": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1,
                                     "default": DEFAULT_COVERAGE},
                        "binary_data_output": {"type": "boolean", "default": False},
                    },
                },
                "inputs": {"type": "array", "minItems": 1, "items": ref("InferTensor")},
                "outputs": {"type": "array", "items": ref("InferOutputRequest")},
            },
            "inputs",
        ),
        "InferAnswer": _object(
            {"model_name": text, "model_version": text, "id": text, "parameters": free,
             "outputs": {"type": "array", "items": ref("InferTensor")}},
            "model_name", "model_version", "outputs",
        ),
        "InferServer": _object({"name": text, "version": text, "extensions": {"type": "array", "items": text}},
                               "name", "version", "extensions"),
        "InferModel": _object(
            {"name": text, "versions": {"type": "array", "items": text}, "platform": text,
             "inputs": {"type": "array", "items": described}, "outputs": {"type": "array", "items": described}},
            "name", "platform", "inputs", "outputs",
        ),
        "InferState": _object({"name": text, "live": {"type": "boolean"}, "ready": {"type": "boolean"}}),
        "InferIndex": {"type": "array", "items": _object({"name": text, "version": text, "state": text, "reason": text},
                                                         "name", "version", "state", "reason")},
    }  # fmt: skip


def _object(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": dict(properties)}
    return schema | ({"required": list(required)} if required else {})


def example_request() -> dict[str, Any]:
    """An infer request that can be sent to the model `gemm` as it is."""
    columns: dict[str, list[Any]] = {
        "device": [EXAMPLE_DEVICE] * 2, "dtype": ["bf16"] * 2, "m": [64, 4096], "n": [4096] * 2, "k": [4096] * 2,
    }  # fmt: skip
    known = inputs_of("gemm")
    inputs = [
        {"name": name, "shape": [2], "datatype": known[name].datatype, "data": data} for name, data in columns.items()
    ]
    return {"id": "42", "parameters": {"coverage": DEFAULT_COVERAGE}, "inputs": inputs,
            "outputs": [{"name": "latency_s"}, {"name": "in_domain"}]}  # fmt: skip


def _example_answer() -> dict[str, Any]:
    return {
        "model_name": "gemm", "model_version": _VERSION, "id": "42", "parameters": {"coverage": DEFAULT_COVERAGE},
        "outputs": [
            {"name": "latency_s", "datatype": "FP64", "shape": [2], "data": [1.4e-5, 2.2e-4]},
            {"name": "in_domain", "datatype": "BOOL", "shape": [2], "data": [True, True]},
        ],
    }  # fmt: skip


def _example_model() -> dict[str, Any]:
    return {
        "name": "gemm", "versions": [_VERSION], "platform": PLATFORM,
        "inputs": [{"name": one.name, "datatype": one.datatype, "shape": [-1]} for one in inputs_of("gemm").values()],
        "outputs": [{"name": one.name, "datatype": one.datatype, "shape": [-1]} for one in OUTPUTS],
    }  # fmt: skip


_EXAMPLES: Mapping[str, Callable[[], Any]] = {
    "InferServer": lambda: {"name": "kernelcast", "version": __version__, "extensions": list(metadata.EXTENSIONS)},
    "InferModel": _example_model,
    "InferAnswer": _example_answer,
    "InferIndex": lambda: [{"name": name, "version": _VERSION, "state": "READY", "reason": ""} for name in families()],
}


def _operation(
    path: str, name: str, summary: str, schema: str, refusals: tuple[int, ...], example: Any, refusal: Refusal
) -> dict[str, Any]:
    shown = _EXAMPLES[schema]() if example is None else example
    found: dict[str, Any] = {
        "summary": summary,
        "operationId": name,
        "responses": responses(json_of(schema, shown), refusal, (*refusals, 500)),
    }
    parameters = [
        {"name": one, "in": "path", "required": True, "description": doc, "schema": {"type": "string"}}
        for one, doc in _PARAMETERS.items()
        if f"{{{one}}}" in path
    ]
    return found | ({"parameters": parameters} if parameters else {})


def _infer_operation(path: str, name: str, refusal: Refusal) -> dict[str, Any]:
    summary = "What many kernels of one family cost, rows as tensors (Open Inference Protocol)"
    found = _operation(path, name, summary, "InferAnswer", (400, 404, 413, 415, 422, 503), None, refusal)
    length = {
        "name": "Inference-Header-Content-Length", "in": "header", "schema": {"type": "integer", "minimum": 1},
        "description": "Bytes of the JSON, where tensors follow it as bytes (the binary tensor data extension)",
    }  # fmt: skip
    found["parameters"].append(length)
    found["requestBody"] = {"required": True, "content": json_of("InferRequest", example_request())}
    return found


def _index_operation(path: str, name: str, refusal: Refusal) -> dict[str, Any]:
    found = _operation(path, name, "Every model, all of them ready", "InferIndex", (400, 413, 422, 503), None, refusal)
    schema = {
        "type": "object",
        "properties": {"ready": {"type": "boolean", "default": False}},
        "additionalProperties": False,
    }
    found["requestBody"] = {"required": False, "content": {"application/json": {"schema": schema, "example": {}}}}
    return found


def _no_schemas() -> dict[str, Any]:
    return {}


Row = tuple[
    str, str, str, Callable[[Any], Callable[..., Any]], Operation, tuple[type, ...], Callable[[], dict[str, Any]]
]


def _get(
    path: str, name: str, make: Callable[[Any], Callable[..., Any]], summary: str, schema: str,
    refusals: tuple[int, ...] = (), example: Any = None,
) -> Row:  # fmt: skip
    operation = partial(_operation, path, name, summary, schema, refusals, example)
    return path, "GET", name, lambda parts: make(parts.source), operation, (), _no_schemas


def _infer(path: str, name: str) -> Row:
    def build(parts: Any) -> InferEndpoint:
        return InferEndpoint(parts.source, parts.settings, parts.metrics)

    return path, "POST", name, build, partial(_infer_operation, path, name), (), infer_schemas


_TENSORS = "The tensors a model takes and gives"
_ANSWERS = "200 while the model answers"
_READY = {"name": "gemm", "ready": True}

ROWS: tuple[Row, ...] = (
    _get("/v2", "inference_server", metadata.server_metadata, "What this server is, and what it speaks", "InferServer"),
    _get("/v2/health/live", "inference_live", metadata.server_live, "200 while the process answers", "InferState", (),
         {"live": True}),
    _get("/v2/health/ready", "inference_ready", metadata.server_ready, "200 once a model is loaded", "InferState", (503,),
         {"ready": True}),
    _get(_MODEL, "inference_model", metadata.model, _TENSORS, "InferModel", (404, 503)),
    _get(_VERSIONED, "inference_model_version", metadata.model, _TENSORS, "InferModel", (404, 503)),
    _get(f"{_MODEL}/ready", "inference_model_ready", metadata.model_ready, _ANSWERS, "InferState", (404, 503), _READY),
    _get(f"{_VERSIONED}/ready", "inference_model_version_ready", metadata.model_ready, _ANSWERS, "InferState", (404, 503),
         _READY),
    _infer(f"{_MODEL}/infer", "inference_infer"),
    _infer(f"{_VERSIONED}/infer", "inference_infer_version"),
    ("/v2/repository/index", "POST", "inference_index", lambda parts: metadata.repository_index(parts.source),
     partial(_index_operation, "/v2/repository/index", "inference_index"), (), _no_schemas),
)  # fmt: skip
"""Every address of the protocol, as the fields of a `Door`: path, method, name, what builds it, its operation, schemas."""
