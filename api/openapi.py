"""The OpenAPI document: the framework's for the plain routes, completed with the prediction routes and every type."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from ..features.device import Catalogue
from ..features.kernel import families
from .access import describe_access
from .describe import device_answer, family_schema
from .doors import DOORS
from .openapi_parts import REF, ref
from .problems import MEDIA_TYPE, Problem, problem_bytes
from .wire import ANSWERS, DevicesAnswer, HealthAnswer, ModelAnswer, ModelsAnswer

_DETAILS = {
    400: "the body is not valid JSON: Input data was truncated",
    401: "this address needs an API key; send the header `Authorization: Bearer kc_…`",
    403: "this service is not known as 'site.example'; ask for localhost or 127.0.0.1",
    404: "no device 'h900'; known: amd-mi100, nvidia-h100-sxm-80gb",
    408: "the request's head did not come within 10 s",
    413: "the body is longer than 1048576 bytes; send the specs in parts",
    415: "send the header content-type: application/json (none was given)",
    422: "sizes.m: m must be between 1 and 1099511627776, got 0",
    431: "a request's head may have 100 headers and 32768 bytes in all; send fewer or shorter ones",
    503: "no model is loaded: /models/champion has no manifest.json",
    504: "the answer took longer than 30 s; ask for fewer rows at once",
}

_AROUND_THE_ROUTES = (400, 408, 431, 503, 504)
"""What stands around the routes may answer for any: the request was no HTTP, late or too long, there were too many of them, or
the answer took too long."""


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
        "content": {MEDIA_TYPE: {"schema": ref("Problem"), "example": example}},
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
    described = [door for door in DOORS if door.operation is not None]
    answers = dict.fromkeys(answer for door in described for answer in door.answers)
    _, schemas = msgspec.json.schema_components([*ANSWERS, *answers, Problem], ref_template=REF)
    components = found.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        components.pop(unused, None)
    components.update({name: schemas[name] for name in sorted(schemas)})
    for door in described:
        components.update(door.schemas())
    components["KernelSchema"] = {"type": "object", "description": "A JSON Schema, draft 2020-12"}
    kernels = {"type": "object", "additionalProperties": ref("KernelSchema")}
    components["KernelSchemas"] = {"type": "object", "required": ["kernels"], "properties": {"kernels": kernels}}
    components["Metrics"] = {"type": "string"}
    for path, operations in found["paths"].items():
        for operation in operations.values():
            # The framework adds its own form of 422, which no route here answers with.
            operation["responses"].pop("422", None)
            _add_example(path, operation, devices)
    for door in described:
        assert door.operation is not None  # noqa: S101 - just selected; for the type checker
        found["paths"].setdefault(door.path, {})[door.method.lower()] = door.operation(refusal)
    for operations in found["paths"].values():
        for operation in operations.values():
            for status in _AROUND_THE_ROUTES:
                operation["responses"].setdefault(str(status), refusal(status))
    describe_access(found, refusal)
    return found


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
    return {media_type: {"schema": ref(name)}}
