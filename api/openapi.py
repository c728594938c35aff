"""The OpenAPI document: the framework's for the plain routes, completed with the prediction routes and every type."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from ..features.device import Catalogue
from ..features.kernel import families
from .describe import coverage_schema, device_answer, family_example, family_schema
from .mlir_describe import program_operation, program_schemas
from .mlir_route import PATH as MLIR_PATH
from .mlir_wire import ProgramsAnswer
from .model_route import PATH as MODEL_PATH
from .model_route import model_operation, model_schemas
from .problems import MEDIA_TYPE, Problem, problem_bytes
from .wire import ANSWERS, DevicesAnswer, HealthAnswer, ModelAnswer, ModelsAnswer

_REF = "#/components/schemas/{name}"
_DETAILS = {
    400: "the body is not valid JSON: Input data was truncated",
    404: "no device 'h900'; known: amd-mi100, nvidia-h100-sxm-80gb",
    413: "the body is longer than 1048576 bytes; send the specs in parts",
    415: "send the header content-type: application/json (none was given)",
    422: "sizes.m: m must be between 1 and 1099511627776, got 0",
    503: "no model is loaded: /models/champion has no manifest.json",
}
_BOUNDS = {"compute": 1.389e-4, "dram": 3.0e-5, "cache": 6.0e-6, "launch": 1e-6}
_EXAMPLE_ANSWER = {
    "family": "gemm", "device": "nvidia-h100-sxm-80gb",
    "latency_s": {"value": 2.0e-4, "lower": 1.8e-4, "upper": 2.3e-4},
    "power_w": {"value": 640.0, "lower": 560.0, "upper": 690.0},
    "energy_j": {"value": 0.128, "lower": 0.101, "upper": 0.159},
    "coverage": 0.9, "bound": "compute", "breakdown": _BOUNDS, "method": "xgboost", "in_domain": True, "notes": [],
}  # fmt: skip


def documented(answer: type | str, summary: str, *refusals: int) -> dict[str, Any]:
    """Keyword arguments for a route: its summary, its answer's type (by class or by name) and its refusals."""
    name = answer if isinstance(answer, str) else answer.__name__
    responses: dict[int | str, dict[str, Any]] = {200: {"description": "OK", "content": _content(name)}}
    for status in (*refusals, 500):
        responses[status] = refusal(status)
    # A class without a media type, else the framework adds an empty JSON answer of its own.
    return {"summary": summary, "responses": responses, "response_model": None, "response_class": Response}


def refusal(status: int) -> dict[str, Any]:
    """How a status is described: the problem it answers with, and an example."""
    detail = _DETAILS.get(status, "an error in the server; it has been logged")
    example = msgspec.json.decode(problem_bytes(status, detail))
    return {
        "description": example["title"],
        "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}, "example": example}},
    }


def install_document(app: FastAPI, devices: Catalogue) -> None:
    """Make `/openapi.json` complete; it is built once, at the first request."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, devices)
        return app.openapi_schema

    # The framework's documented way of extending the document.
    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI, devices: Catalogue) -> dict[str, Any]:
    found = get_openapi(
        title=app.title, version=app.version, summary=app.summary, routes=app.routes, license_info=app.license_info
    )
    _, schemas = msgspec.json.schema_components([*ANSWERS, ProgramsAnswer, Problem], ref_template=_REF)
    requests = _request_schemas()
    components = found.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        components.pop(unused, None)
    components.update(
        {name: schemas[name] for name in sorted(schemas)} | requests | model_schemas() | program_schemas()
    )
    components["KernelSchema"] = {"type": "object", "description": "A JSON Schema, draft 2020-12"}
    kernels = {"type": "object", "additionalProperties": {"$ref": _REF.format(name="KernelSchema")}}
    components["KernelSchemas"] = {"type": "object", "required": ["kernels"], "properties": {"kernels": kernels}}
    components["Metrics"] = {"type": "string"}
    found["paths"]["/v1/predict"] = {"post": _predict_operation()}
    found["paths"][MODEL_PATH] = {"post": model_operation(refusal, _EXAMPLE_ANSWER)}
    found["paths"][MLIR_PATH] = {"post": program_operation(refusal)}
    for path, operations in found["paths"].items():
        for operation in operations.values():
            # The framework adds its own form of 422, which no route here answers with.
            if path not in ("/v1/predict", MODEL_PATH, MLIR_PATH):
                operation["responses"].pop("422", None)
            if path != MLIR_PATH:
                _add_example(path, operation, devices)
    return found


def _request_schemas() -> dict[str, Any]:
    known = families().values()
    specs = {f"{_title(family.name)}Spec": family_schema(family, top_level=False) for family in known}
    single = {f"{_title(family.name)}Request": family_schema(family) for family in known}
    for schema in (*specs.values(), *single.values()):
        # Required, so that readers can tell the families apart by it.
        schema["properties"]["family"] = {"type": "string", "enum": [schema["properties"]["family"]["const"]]}
    return {
        **specs,
        **single,
        "Spec": _one_of("Spec"),
        "SpecRequest": _one_of("Request"),
        "BatchRequest": {
            "type": "object",
            "description": "Any mix of families and devices, answered in this order",
            "required": ["requests"],
            "additionalProperties": False,
            "properties": {
                "requests": {"type": "array", "minItems": 1, "items": {"$ref": _REF.format(name="Spec")}},
                "coverage": coverage_schema(),
            },
        },
    }


def _predict_operation() -> dict[str, Any]:
    gemm = family_example(families()["gemm"]) | {"sizes": {"m": 4096, "n": 4096, "k": 4096}}
    attention = family_example(families()["attention"])
    answer = {name: {"$ref": _REF.format(name=name)} for name in ("PredictionAnswer", "BatchAnswer")}
    return {
        "summary": "What kernels cost: one spec, or many of any mix of families and devices",
        "operationId": "predict",
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"oneOf": [{"$ref": _REF.format(name=name)} for name in ("SpecRequest", "BatchRequest")]},
                    "examples": {
                        "one": {"summary": "One spec", "value": gemm},
                        "many": {"summary": "A batch", "value": {"requests": [gemm, attention], "coverage": 0.8}},
                    },
                }
            },
        },
        "responses": {
            "200": {
                "description": "A prediction for a single spec, predictions in order for a batch",
                "content": {
                    "application/json": {
                        "schema": {"anyOf": list(answer.values())},
                        "examples": {
                            "one": {"summary": "Answer to one spec", "value": _EXAMPLE_ANSWER},
                            "many": {"summary": "Answer to a batch", "value": {"predictions": [_EXAMPLE_ANSWER]}},
                        },
                    }
                },
            },
            **{str(status): refusal(status) for status in (400, 413, 415, 422, 500, 503)},
        },
    }


def _add_example(path: str, operation: dict[str, Any], devices: Catalogue) -> None:
    first = next(iter(devices))
    schema = family_schema(families()["gemm"])
    examples: dict[str, Any] = {
        "/v1/devices": DevicesAnswer([device_answer(first)]),
        "/v1/devices/{name}": device_answer(first),
        "/v1/kernels": {"kernels": {"gemm": schema}},
        "/v1/kernels/{family}": schema,
        "/v1/models": ModelsAnswer(
            [ModelAnswer("pretrained", "/models/pretrained", "2026-01-31T12:00:00+00:00", {}, None)]
        ),
        "/healthz": HealthAnswer("ok"),
        "/readyz": HealthAnswer("ready"),
        "/metrics": "kernelcast_model_loaded 1.0\n",
    }
    if path in examples:
        for media in operation["responses"]["200"]["content"].values():
            media["example"] = msgspec.to_builtins(examples[path])
    for parameter in operation.get("parameters", ()):
        parameter["example"] = {"name": first.name, "family": "gemm"}[parameter["name"]]


def _content(name: str) -> dict[str, Any]:
    media_type = {"Metrics": "text/plain", "KernelSchema": "application/schema+json"}.get(name, "application/json")
    return {media_type: {"schema": {"$ref": _REF.format(name=name)}}}


def _one_of(suffix: str) -> dict[str, Any]:
    refs = {name: _REF.format(name=_title(name) + suffix) for name in families()}
    return {
        "oneOf": [{"$ref": ref} for ref in refs.values()],
        "discriminator": {"propertyName": "family", "mapping": refs},
    }


def _title(name: str) -> str:
    return name.title().replace("_", "")
