"""The routes of measured rows as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Any

from ..features.kernel import families
from .measured_request import DEFAULT_LIMIT, MAX_DEVICES, MAX_LIMIT
from .measured_wire import FILTERS, SETS
from .openapi_parts import Refusal, json_of, post_operation, responses, schema_name
from .predict_describe import predict_schemas
from .requests import MAX_TEXT

_DEVICE = "amd-epyc-9005-vm-2c"
_ENUMS: dict[str, list[str]] = {"set": list(SETS), "family": list(families())}
_SET = {
    "name": "shipped", "title": "Kernels measured by kernelcast", "rows": 1720, "families": ["copy"], "devices": [_DEVICE],
    "dtypes": ["bf16", "fp32"], "impls": ["torch"], "variants": ["none", "transpose"], "statuses": ["ok"],
    "cards": [{"title": "PyTorch kernels on two Zen 5 cores", "text": "# PyTorch kernels on two Zen 5 cores\n"}], "notes": [],
}  # fmt: skip
_POINT = {
    "device": _DEVICE, "value": 1024, "latency_s": 4.1e-5, "power_w": None, "energy_j": None, "threads": 1,
    "cache_state": "hot", "impl": "torch", "runs": 2,
}  # fmt: skip


def sets_operation(refusal: Refusal) -> dict[str, Any]:
    """`GET /v1/measurements/sets`."""
    return {
        "summary": "The sets of measured rows: what ships with kernelcast, and the user's own store",
        "operationId": "list_measurement_sets",
        "responses": responses(json_of("MeasuredSetsAnswer", {"sets": [_SET]}), refusal, (422, 500, 503)),
    }


def rows_operation(refusal: Refusal) -> dict[str, Any]:
    """`GET /v1/measurements`."""
    columns, row = ["set", "device", "latency_s"], ["shipped", _DEVICE, 4.1e-5]
    page = {"total": 1720, "offset": 0, "columns": columns, "rows": [row]}
    return {
        "summary": "Measured rows: filtered, sorted, a page at a time",
        "operationId": "list_measurements",
        "parameters": [
            *(_filter(name) for name in FILTERS),
            _parameter("sort", {"type": "string", "maxLength": MAX_TEXT}, "A column; missing cells come last", "latency_s"),
            _parameter("descending", {"type": "boolean", "default": False}, "Largest first", False),
            _parameter("offset", {"type": "integer", "minimum": 0, "maximum": 10**9, "default": 0}, "Rows to pass over", 0),
            _parameter(
                "limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}, "Rows of a page", 50
            ),
        ],
        "responses": responses(json_of("MeasurementsAnswer", page), refusal, (422, 500, 503)),
    }  # fmt: skip


def like_operation(refusal: Refusal) -> dict[str, Any]:
    """`POST /v1/measurements/like`."""
    example = {
        "family": "copy", "dtype": "fp32", "sizes": {"rows": 1024, "cols": 1024}, "threads": 1, "devices": [_DEVICE],
        "dim": "cols",
    }  # fmt: skip
    answer = {"dim": "cols", "points": [_POINT], "left_out": 0}
    return post_operation(
        "Measured points along one dimension of a spec, everything else equal", "list_measurements_like",
        ("LikeRequest", example), ("OK", "LikeAnswer", answer), refusal,
    )  # fmt: skip


def like_schemas() -> dict[str, Any]:
    """The schema of a question along a dimension: a spec of a family without its device, by family."""
    schemas = predict_schemas()
    kinds = []
    for name, family in families().items():
        spec = schemas[schema_name(name, "Spec")]
        own = {key: value for key, value in spec["properties"].items() if key != "device"}
        names = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}
        own["devices"] = {"type": "array", "minItems": 1, "maxItems": MAX_DEVICES, "items": names}
        own["dim"] = {"type": "string", "enum": [*family.dim_names, *family.config]}
        required = [one for one in spec["required"] if one != "device"]
        kinds.append(
            {
                "type": "object",
                "additionalProperties": False,
                "required": [*required, "devices", "dim"],
                "properties": own,
            }
        )
    return {"LikeRequest": {"oneOf": kinds}}


def _filter(name: str) -> dict[str, Any]:
    item: dict[str, Any] = {"type": "string", "maxLength": MAX_TEXT}
    if name in _ENUMS:
        item["enum"] = _ENUMS[name]
    what = f"Rows of this {name.replace('_', ' ')}; several are alternatives, `none` is the empty name"
    found = _parameter(name, {"type": "array", "items": item}, what, [_EXAMPLES[name]])
    return found | {"style": "form", "explode": True}


_EXAMPLES = {
    "set": "shipped", "family": "copy", "device": _DEVICE, "dtype": "fp32", "impl": "torch", "variant": "transpose",
    "status": "ok", "cache_state": "hot",
}  # fmt: skip


def _parameter(name: str, schema: dict[str, Any], what: str, example: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": what, "schema": schema, "example": example}
