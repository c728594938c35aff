"""The OpenAPI document: `openapi.json` completed from families, answer types and the framework.

An operation of `openapi.json` has its standard members, but for the answers: `answer` is the one of status 200, and `refusals`
are the statuses it may refuse with beside those of every route.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from ...client import answers as client_answers
from ...client.answers import Device, Devices, Health, ServedModel, ServedModels
from ...features.device import Catalogue
from ...features.kernel import families, get_family
from ...features.spec_io.json_schema import coverage_schema, family_schema
from ...features.spec_io.reading import MAX_TEXT
from ...workloads.answers import device_answer
from ...workloads.whole_model import MAX_COUNT
from ..middleware.access import describe_access
from ..transport.problems import MEDIA_TYPE, Problem, problem_bytes

_FILE = Path(__file__).with_suffix(".json")

_DETAILS = {
    400: "the body is not valid JSON: Input data was truncated",
    401: "this address needs an API key; send the header `Authorization: Bearer kc_…`",
    403: "this service does not allow the host name 'site.example'; use localhost or 127.0.0.1",
    404: "no device 'h900'; known: amd-mi100, nvidia-h100-sxm-80gb",
    408: "the request's head did not come within 10 s",
    413: "the body is longer than 1048576 bytes; send the specs in parts",
    415: "send the header content-type: application/json (none was given)",
    422: "sizes.m: m must be between 1 and 1099511627776, got 0",
    431: "a request's head may have 100 headers and 32768 bytes in all; send fewer or shorter ones",
    503: "no model is loaded: /models/champion has no manifest.json",
    504: "the answer took longer than 30 s; send fewer rows at once",
}

_EVERY_ROUTE = (400, 408, 431, 500, 503, 504)
"""What any route may answer: the request was no HTTP, late or too long, there were too many of them, or the server failed."""

_OF_A_SPEC = ("CompareRequest", "RankRequest", "SweepRequest", "RooflineRequest")
"""Requests of a spec's fields beside their own."""

_NAMES = {
    "Intervals": "IntervalColumns", "Words": "WordsColumn", "RowNotes": "RowNotes", "Ranked": "RankedConfig",
    "Ranking": "RankAnswer", "DeviceCost": "DeviceComparison", "Comparison": "CompareAnswer", "Curve": "SweepCurve",
    "DeviceRoof": "RooflineOnDevice", "ReaderRefusal": "RefusalAnswer", "ServedModel": "ModelAnswer",
    "ServedModels": "ModelsAnswer",
}  # fmt: skip
"""Names in the document of the types of `client.answers`, where they are not the type's name followed by `Answer`."""


class Documented(Protocol):
    """What the document needs of a route: where it is, its operationId, and the types that it answers with."""

    @property
    def path(self) -> str:
        """The path, with parameters in braces."""

    @property
    def method(self) -> str:
        """The HTTP method."""

    @property
    def name(self) -> str:
        """The operationId, under which `openapi.json` has its operation."""

    @property
    def answers(self) -> tuple[type, ...]:
        """The types among which its answer is."""


def route_description(answer: type | str, summary: str, *refusals: int) -> dict[str, Any]:
    """Keyword arguments for a route of the framework: summary, type of the answer (or name of its schema), refusals."""
    name = answer if isinstance(answer, str) else _schema_name(answer.__name__)
    media_type = {"Metrics": "text/plain", "KernelSchema": "application/schema+json"}.get(name, "application/json")
    responses: dict[int | str, dict[str, Any]] = {
        200: {"description": "OK", "content": {media_type: {"schema": ref(name)}}},
        **{status: refusal(status) for status in (*refusals, 500)},
    }
    # A class without a media type, else the framework adds an empty JSON answer of its own.
    return {"summary": summary, "responses": responses, "response_model": None, "response_class": Response}


def _schema_name(answer: str) -> str:
    """What the document calls an answer's type, by the name of that."""
    return _NAMES.get(answer, f"{answer}Answer") if hasattr(client_answers, answer) else answer


def refusal(status: int) -> dict[str, Any]:
    """How a status is described: the problem it answers with, and an example."""
    detail = _DETAILS.get(status, "an error in the server; it has been logged")
    example = msgspec.json.decode(problem_bytes(status, detail))
    return {"description": example["title"], "content": {MEDIA_TYPE: {"schema": ref("Problem"), "example": example}}}


@cache
def document_parts() -> dict[str, Any]:
    """The contents of `openapi.json`: `operations` by operationId, and `schemas` by name."""
    content: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return content


def install_document(app: FastAPI, devices: Catalogue, routes: Sequence[Documented], max_devices: int) -> None:
    """Make `/openapi.json` complete; it is built once, at the first request.

    Args:
        app: the application, whose own routes the framework describes.
        devices: the catalogue, for examples.
        routes: the routes beside those.
        max_devices: how many devices a question about measured rows may name.
    """

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, devices, routes, max_devices)
        return app.openapi_schema

    # The framework's documented way of extending the document.
    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI, devices: Catalogue, routes: Sequence[Documented], max_devices: int) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, summary=app.summary, routes=app.routes, license_info=app.license_info
    )
    for path, operations in document["paths"].items():
        for operation in operations.values():
            # The framework adds its own form of 422, which no route here answers with.
            operation["responses"].pop("422", None)
            _add_example(path, operation, devices)
    for route in routes:
        if (operation := _operation(route.name)) is not None:
            document["paths"].setdefault(route.path, {})[route.method.lower()] = operation
    for operations in document["paths"].values():
        for operation in operations.values():
            for status in _EVERY_ROUTE:
                operation["responses"].setdefault(str(status), refusal(status))
    components = document.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        components.pop(unused, None)
    answers = [
        ServedModels,
        Devices,
        Device,
        Health,
        Problem,
        *(answer for route in routes for answer in route.answers),
    ]
    components.update(_answer_schemas(dict.fromkeys(answers)))
    components.update(document_parts()["schemas"])
    components.update(family_schemas(max_devices))
    for name in _OF_A_SPEC:
        components[name] = components[name] | one_of_families("Fields")
    components["KernelSchema"] = {"type": "object", "description": "A JSON Schema, draft 2020-12"}
    kernels = {"type": "object", "additionalProperties": ref("KernelSchema")}
    components["KernelSchemas"] = {"type": "object", "required": ["kernels"], "properties": {"kernels": kernels}}
    components["Metrics"] = {"type": "string"}
    describe_access(document, refusal)
    return document


def _operation(name: str) -> dict[str, Any] | None:
    """The operation of that operationId, None where the document leaves it out."""
    if (plain := document_parts()["operations"].get(name)) is None:
        return None
    operation = {key: part for key, part in plain.items() if key not in ("answer", "refusals")}
    for parameter in operation.get("parameters", ()):
        if name == "list_measurements" and parameter["name"] == "family":
            parameter["schema"]["items"]["enum"] = list(families())
    return operation | {
        "operationId": name,
        "responses": {
            "200": {"description": "OK"} | plain["answer"],
            **{str(status): refusal(status) for status in plain.get("refusals", ())},
        },
    }


def _answer_schemas(types: Iterable[type]) -> dict[str, Any]:
    """Schemas of msgspec types by the names that the document gives them."""
    _, schemas = msgspec.json.schema_components(types, ref_template=REF)
    text = re.sub(r'(?<="#/components/schemas/)\w+(?=")', lambda match: _schema_name(match[0]), json.dumps(schemas))
    named = {_schema_name(name): _with_described_fields(schema) for name, schema in json.loads(text).items()}
    return {name: schema | {"title": name} for name, schema in sorted(named.items())}


def _with_described_fields(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type with the `Attributes:` of its docstring as the descriptions of its fields."""
    text, _, attributes = schema.get("description", "").partition("\n\n    Attributes:\n")
    if not attributes:
        return schema
    fields = re.findall(r"^ {8}(\w+): (.+(?:\n {9,}.+)*)", attributes, re.MULTILINE)
    about = {name: {"description": " ".join(words.split())} for name, words in fields}
    properties = {name: about.get(name, {}) | field for name, field in schema["properties"].items()}
    return schema | {"description": text, "properties": properties}


def _add_example(path: str, operation: dict[str, Any], devices: Catalogue) -> None:
    first = next(iter(devices))
    schema = family_schema(get_family("gemm"))
    examples: dict[str, Any] = {
        "/v1/devices": Devices([device_answer(first)]),
        "/v1/devices/{name}": device_answer(first),
        "/v1/kernels": {"kernels": {"gemm": schema}},
        "/v1/kernels/{family}": schema,
        "/v1/models": ServedModels(
            [ServedModel("pretrained", "/models/pretrained/kernels", "2026-01-31T12:00:00+00:00", {}, None)]
        ),
        "/healthz": Health("ok"),
        "/readyz": Health("ready"),
        "/metrics": "kernelcast_model_loaded 1.0\n",
    }
    if path in examples:
        for media in operation["responses"]["200"]["content"].values():
            media["example"] = msgspec.to_builtins(examples[path])
    for parameter in operation.get("parameters", ()):
        parameter["example"] = {"name": first.name, "family": "gemm"}[parameter["name"]]


REF = "#/components/schemas/{name}"
"""Where a schema is found by its name."""

Schema = dict[str, Any]


def ref(name: str) -> dict[str, str]:
    """The schema of that name."""
    return {"$ref": REF.format(name=name)}


def one_of_families(suffix: str) -> Schema:
    """Any one of the families' schemas with that suffix; readers tell them apart by `family`."""
    refs = {family: REF.format(name=_name(family, suffix)) for family in families()}
    return {
        "oneOf": [{"$ref": path} for path in refs.values()],
        "discriminator": {"propertyName": "family", "mapping": refs},
    }


def family_schemas(max_devices: int) -> dict[str, Schema]:
    """Every schema that families have one of, and those of requests that hold any of them, by name.

    `max_devices` is how many devices a question about measured rows may name.
    """
    kinds = {"Spec": _spec, "Request": _request, "Kernel": _kernel, "Columns": _columns, "Fields": _fields}
    named = {_name(family, suffix): make(family) for family in families() for suffix, make in kinds.items()}
    return {
        **named,
        "Spec": one_of_families("Spec"),
        "SpecRequest": one_of_families("Request"),
        "Kernel": one_of_families("Kernel"),
        "ColumnsRequest": one_of_families("Columns"),
        "LikeRequest": {"oneOf": [_like(family, max_devices) for family in families()]},
    }


def _name(family: str, suffix: str) -> str:
    return family.title().replace("_", "") + suffix


def _request(family: str, *, top_level: bool = True) -> Schema:
    schema = family_schema(families()[family], top_level=top_level)
    # An enum of one value rather than a constant, so that readers can tell the families apart by it.
    schema["properties"]["family"] = {"type": "string", "enum": [family]}
    return schema


def _spec(family: str) -> Schema:
    return _request(family, top_level=False)


def _without_device(family: str) -> Schema:
    schema = _spec(family)
    del schema["properties"]["device"], schema["examples"]
    schema["required"].remove("device")
    return schema


def _kernel(family: str) -> Schema:
    """A spec without a device, of a whole model."""
    schema = _without_device(family)
    schema["properties"]["count"] = {"type": "integer", "minimum": 1, "maximum": MAX_COUNT, "default": 1,
                                     "description": "How many times the model runs it"}  # fmt: skip
    schema["properties"]["name"] = {"type": ["string", "null"], "maxLength": MAX_TEXT, "default": "",
                                    "description": "What the model calls it"}  # fmt: skip
    return schema


def _fields(family: str) -> Schema:
    """The fields of a spec without a device, which requests add to.

    Sizes without a default are required, except the one that is swept; words say so, so that one schema serves all.
    """
    schema = _without_device(family)
    del schema["additionalProperties"]
    sizes = schema["properties"]["sizes"]
    sizes["description"] = f"Needed: {', '.join(sizes.pop('required'))}"
    return schema


def _like(family: str, max_devices: int) -> Schema:
    """A spec without a device, the devices, and the size or knob along which rows are wanted."""
    schema = _without_device(family)
    names = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}
    known = families()[family]
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [*schema["required"], "devices", "dim"],
        "properties": {
            **schema["properties"],
            "devices": {"type": "array", "minItems": 1, "maxItems": max_devices, "items": names},
            "dim": {"type": "string", "enum": [*known.dim_names, *known.config]},
        },
    }


def _columns(family: str) -> Schema:
    spec = _spec(family)
    columns = {name: schema for name, schema in spec["properties"].items() if name != "family"}
    for name, column in columns.items():
        if name in ("sizes", "config"):
            inner = column["properties"].items()
            column["properties"] = {key: _column(schema, optional=name == "config") for key, schema in inner}
        else:
            columns[name] = _column(column, optional=name in ("variant", "impl"))
    return {
        "type": "object",
        "description": f"Specs of {family}: a list has one value per row, anything else is for all rows",
        "required": ["family", "columns"],
        "additionalProperties": False,
        "properties": {
            "family": {"type": "string", "enum": [family]},
            "columns": {
                "type": "object",
                "required": [name for name in spec["required"] if name != "family"],
                "additionalProperties": False,
                "properties": columns,
            },
            "coverage": coverage_schema(),
        },
    }


def _column(schema: Schema, *, optional: bool) -> Schema:
    """One value for all rows, or a list of a value per row; null is no value where the column is `optional`."""
    value = {key: part for key, part in schema.items() if key not in ("description", "default", "examples")}
    if optional:
        value = {"anyOf": [value, {"type": "null"}]}
    about = {key: schema[key] for key in ("description", "default") if key in schema}
    return {"anyOf": [value, {"type": "array", "minItems": 1, "items": value}]} | about
