"""The OpenAPI document: `openapi.json` completed from the table of routes, families and answer types.

`operations` of `openapi.json` has an operation for each route by its name, with the standard members but for the answers:
`answer` is the one of status 200, and `refusals` are the statuses it may refuse with beside those of every route. `tags` has
the groups of routes in the order in which they are shown, each with the names of its operations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ...client import answers as client_answers
from ...client.answers import Devices
from ...features.device import Catalogue
from ...features.kernel import families, get_family
from ...features.spec_io.json_schema import coverage_schema, family_schema, setting_schemas
from ...features.spec_io.reading import MAX_TEXT
from ...models.predict.carbon import ELECTRICITY_FIELDS
from ...version import __version__
from ...workloads.answers import device_line
from ...workloads.whole_model import MAX_COUNT
from ..browse.device_page import page_without_model
from ..browse.measurements import MAX_DEVICES
from ..middleware.access import ADMIN_FOLDER, HEALTH_PATHS
from ..routes import ROUTES, Route
from ..transport.problems import MEDIA_TYPE, Problem, problem_bytes

_FILE = Path(__file__).with_suffix(".json")

_EVERY_ROUTE = (400, 408, 431, 500, 503, 504)
"""What any route may answer: the request was no HTTP, late or too long, there were too many of them, or the server failed."""

_OF_A_SPEC = ("CompareRequest", "RankRequest", "SweepRequest", "RooflineRequest")
"""Requests of a spec's fields beside their own."""

_NAMES = {
    "Intervals": "IntervalColumns", "Words": "WordsColumn", "RowNotes": "RowNotes", "Ranked": "RankedConfig",
    "Ranking": "RankAnswer", "DeviceCost": "DeviceComparison", "Comparison": "CompareAnswer", "Curve": "SweepCurve",
    "DeviceRoof": "RooflineOnDevice", "ReaderRefusal": "RefusalAnswer", "ServedModel": "ModelAnswer",
    "ServedModels": "ModelsAnswer", "Health": "HealthAnswer",
}  # fmt: skip
"""Names in the document of types of answers, where they are not the type's name, followed by `Answer` of `client.answers`."""


def document_parts() -> dict[str, Any]:
    """The contents of `openapi.json`."""
    document: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return document


def document(devices: Catalogue) -> dict[str, Any]:
    """The OpenAPI document of the service; `devices` are for examples."""
    parts = document_parts()
    paths: dict[str, Any] = {}
    tag_of = {name: tag["name"] for tag in parts["tags"] for name in tag.pop("operations")}
    for route in ROUTES:
        if route.name in parts["operations"]:
            operation = {"tags": [tag_of[route.name]], **_operation(route, parts)}
            paths.setdefault(route.path, {})[route.method.lower()] = operation
    _add_examples(paths, devices)
    answers = dict.fromkeys([Problem, *(answer for route in ROUTES for answer in route.answers)])
    schemas = _answer_schemas(answers) | parts["schemas"] | _family_schemas()
    for name in _OF_A_SPEC:
        schemas[name] = schemas[name] | _one_of_families("Fields")
    return {
        "openapi": "3.1.0",
        "info": parts["info"] | {"version": __version__},
        "tags": parts["tags"],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": parts["securitySchemes"]},
        # Keys are optional here, since whether they are asked for is a setting of the service.
        "security": parts["security"],
    }


def _operation(route: Route, parts: dict[str, Any]) -> dict[str, Any]:
    """The operation of a route, with what it may refuse with."""
    operation = parts["operations"][route.name]
    answer, refusals = operation.pop("answer"), operation.pop("refusals", [])
    if route.path in HEALTH_PATHS:
        operation["security"] = []
    else:
        refusals = [*refusals, 401, 403]
    if route.path.startswith(ADMIN_FOLDER):
        operation["security"] = [{"key": []}]
    responses = {str(status): _refusal(status, parts["refusals"][str(status)]) for status in (*refusals, *_EVERY_ROUTE)}
    return {"operationId": route.name, **operation, "responses": {"200": {"description": "OK"} | answer, **responses}}


def _refusal(status: int, detail: str) -> dict[str, Any]:
    """How a status is described: the problem it answers with, and an example."""
    example = msgspec.json.decode(problem_bytes(status, detail))
    schema = {"$ref": _REF.format(name="Problem")}
    return {"description": example["title"], "content": {MEDIA_TYPE: {"schema": schema, "example": example}}}


def _add_examples(paths: dict[str, Any], devices: Catalogue) -> None:
    """Examples that change with the families and the catalogue."""
    device, schema = device_line(next(iter(devices))), family_schema(get_family("gemm"))
    examples: dict[str, Any] = {
        "/v1/devices": Devices([device]),
        "/v1/devices/{name}": page_without_model(next(iter(devices))),
        "/v1/kernels": {"kernels": {"gemm": schema}},
        "/v1/kernels/{family}": schema,
    }
    for path, example in examples.items():
        (media,) = paths[path]["get"]["responses"]["200"]["content"].values()
        media["example"] = msgspec.to_builtins(example)
    for parameter in paths["/v1/measurements"]["get"]["parameters"]:
        if parameter["name"] == "family":
            parameter["schema"]["items"]["enum"] = list(families())


def _schema_name(answer: str) -> str:
    """What the document calls an answer's type, by the name of that."""
    return _NAMES.get(answer) or (f"{answer}Answer" if hasattr(client_answers, answer) else answer)


def _answer_schemas(types: Iterable[type]) -> dict[str, Any]:
    """Schemas of msgspec types by the names that the document gives them."""
    _, schemas = msgspec.json.schema_components(types, ref_template=_REF)
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


_REF = "#/components/schemas/{name}"
"""Where a schema is found by its name."""

Schema = dict[str, Any]


def _one_of_families(suffix: str) -> Schema:
    """Any one of the families' schemas with that suffix; readers tell them apart by `family`."""
    refs = {family: _REF.format(name=_name(family, suffix)) for family in families()}
    return {
        "oneOf": [{"$ref": path} for path in refs.values()],
        "discriminator": {"propertyName": "family", "mapping": refs},
    }


def _family_schemas() -> dict[str, Schema]:
    """Every schema that families have one of, and those of requests that hold any of them, by name."""
    kinds = {"Spec": _set_spec, "Request": _set_request, "Kernel": _kernel, "Columns": _columns, "Fields": _fields}
    named = {_name(family, suffix): make(family) for family in families() for suffix, make in kinds.items()}
    return {
        **named,
        "Spec": _one_of_families("Spec"),
        "SpecRequest": _one_of_families("Request"),
        "Kernel": _one_of_families("Kernel"),
        "ColumnsRequest": _one_of_families("Columns"),
        "LikeRequest": {"oneOf": [_like(family, ("dim",)) for family in families()]},
        "NearestRequest": {"oneOf": [_like(family, ()) for family in families()]},
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


def _set_request(family: str, *, top_level: bool = True) -> Schema:
    """A spec with how its board is set, and its electricity."""
    schema = _request(family, top_level=top_level)
    return schema | {"properties": schema["properties"] | setting_schemas() | _electricity_schemas()}


def _electricity_schemas() -> Schema:
    """Schemas of where electricity is from and what it costs, by name, as in `openapi.json`."""
    properties = document_parts()["schemas"]["EstimateRequest"]["properties"]
    return {name: properties[name] for name in ELECTRICITY_FIELDS}


def _set_spec(family: str) -> Schema:
    return _set_request(family, top_level=False)


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


def _like(family: str, needed: tuple[str, ...]) -> Schema:
    """A spec without a device, the devices, and where `needed` the size or knob (`dim`) along which rows are wanted."""
    schema = _without_device(family)
    names = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}
    known = families()[family]
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [*schema["required"], "devices", *needed],
        "properties": {
            **schema["properties"],
            "devices": {"type": "array", "minItems": 1, "maxItems": MAX_DEVICES, "items": names},
            **{name: {"type": "string", "enum": [*known.dim_names, *known.config]} for name in needed},
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
            **setting_schemas(),
        },
    }


def _column(schema: Schema, *, optional: bool) -> Schema:
    """One value for all rows, or a list of a value per row; null is no value where the column is `optional`."""
    value = {key: part for key, part in schema.items() if key not in ("description", "default", "examples")}
    if optional:
        value = {"anyOf": [value, {"type": "null"}]}
    about = {key: schema[key] for key in ("description", "default") if key in schema}
    return {"anyOf": [value, {"type": "array", "minItems": 1, "items": value}]} | about
